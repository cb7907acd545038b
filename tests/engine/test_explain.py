# SPDX-License-Identifier: Apache-2.0
"""Explanations, TB_DEBUG and TB_CHECK: what they say is what ran, and looking changes nothing."""

from __future__ import annotations

import logging
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import tensorbackend
from tensorbackend import BackendError, ShapeError, testing, using
from tensorbackend.backends import watch
from tensorbackend.explain import Roof, Step
from tensorbackend.explain_page import highlighted, roofline


@pytest.fixture
def tensors(backend):
    """x (4, 6), b (4, 1) and an output."""
    x = backend.array(np.arange(24.0).reshape(4, 6), name="x", dtype="float32")
    b = backend.array(np.ones((4, 1)), name="b", dtype="float32")
    return x, b, backend.empty((4, 6), dtype="float32", name="y")


class Page(HTMLParser):
    """Notes the tags, and the addresses that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.fetched = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href") and value[:1] != "#"]


def test_one_expression_is_one_kernel_with_its_facts(backend, tensors) -> None:
    x, b, _ = tensors
    (step,) = backend.explain(backend.tanh(x * 0.5 + b)).steps
    assert step.name == "ew_mul_add_tanh_f32"
    assert step.reason == "the statement"
    assert step.nbytes == 4 * (24 + 4 + 24)
    assert step.flops >= 3 * 24
    assert [text.split()[0] for text in step.reads] == ["x", "b"]
    assert len(step.times) == 10 and step.seconds > 0
    assert bool(step.source) == bool(getattr(backend, "jit", False))


@pytest.mark.parametrize(
    ("dtype", "row", "gated"),
    [("float16", False, True), ("bfloat16", False, True), ("float32", False, True), ("bfloat16", True, False),
     ("float64", False, False)],
)
def test_a_gate_divides_once_where_both_factors_vary_alike(backend, dtype, row, gated) -> None:
    x = backend.array(np.linspace(-3, 3, 24).reshape(4, 6), dtype=dtype)
    z = x[:1] if row else x
    for tree in (backend.sig(x) * backend.tanh(z), backend.tanh(z) * backend.sig(x)):
        (step,) = backend.explain(tree).steps
        assert ("tb_gate_" in step.source or "_gate_half(" in step.source) == (gated and bool(step.source))
        testing.assert_bounded(backend.evaluate(tree).get(), testing.reference(tree))


def test_the_text_names_why_a_tree_was_cut(backend, tensors) -> None:
    x, _, y = tensors
    text = str(backend.explain(y, backend.cumsum(x, axis=1) + x))
    assert "a primitive" in text
    assert "2 steps" in text
    assert "y[:] = " in text


def test_a_function_shows_all_its_statements_and_counts_runs(backend, tensors) -> None:
    x, _, y = tensors

    def both() -> None:
        for _ in range(3):
            y[:] = x * 2
        with backend.fuse():
            y[:] = y * 2
            x[:] = y + x

    both()
    found = backend.explain(both)
    assert [s.runs for s in found.statements] == [3, 1]
    assert len(found.statements[1].texts) == 2
    assert found.longest(1).statements[0] in found.statements


def test_explaining_a_statement_leaves_what_one_run_leaves(backend, tensors) -> None:
    x, _, y = tensors
    y[:] = 1
    backend.rng_reset()
    backend.explain(y, y * 2 + backend.rand() * 0)
    np.testing.assert_array_equal(y.get(), np.full((4, 6), 2))
    assert backend._draws == 1
    backend.explain(backend.rand() * x)
    assert backend._draws == 1


def test_explaining_inside_what_is_explained(backend, tensors) -> None:
    x, _, y = tensors
    inner = []

    def function() -> None:
        inner.append(backend.explain(y, x * 2))
        y[:] = x + 1

    outer = backend.explain(function)
    assert [statement.runs for statement in outer.statements] == [10, 1]
    assert [statement.runs for statement in inner[0].statements] == [10]
    assert not watch.wanted(backend)


def test_each_kernel_has_the_statements_that_it_runs(backend, tensors) -> None:
    """Not one that was refused, nor one that came to a fuse block and could not join those before it."""
    x, _, y = tensors
    ones, other = backend.ones((7, 3)), backend.empty((7, 3))

    def function() -> None:
        with pytest.raises(ShapeError):
            y[:] = backend.ones((3, 9)) * 2
        with backend.fuse():
            y[:] = x * 3
            other[:] = ones + 4
            other[:] = other * 5
        with pytest.raises(ShapeError):
            y[:] = backend.ones((3, 9)) * 6

    first, second = backend.explain(function).statements[-2:]
    assert [text[-1] for text in first.texts] == ["3"]
    assert [text[-1] for text in second.texts] == ["4", "5"]
    assert [text[-1] for text in backend.explain(y, x * 7, repeat=1).statements[0].texts] == ["7"]


def test_looking_ends_with_the_block(backend, tensors) -> None:
    x, _, y = tensors
    with watch.recording() as found:
        y[:] = x + 1
    y[:] = x + 2
    assert len(found) == 1
    assert not watch.watching
    np.testing.assert_array_equal(y.get(), x.get() + 2)


def test_work_of_a_reduction_counts_what_it_reads(backend, tensors) -> None:
    x, _, _ = tensors
    (step,) = backend.explain(backend.sum(x, axis=1)).steps
    assert step.axes == (1,)
    assert (step.nbytes, step.flops) == (4 * (24 + 4), 24)


# The page


def test_the_page_is_complete_and_fetches_nothing(backend, tensors, tmp_path) -> None:
    x, _, y = tensors
    x.name = "<b>&"
    found = backend.explain(y, backend.softmax(x, axis=1))
    text = found.save(tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.fetched == []
    assert "script" not in page.tags
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text
    assert ("svg" in page.tags) == (found.steps[0].roof is not None)


def test_the_page_is_well_formed_and_its_links_lead_somewhere(backend, tensors) -> None:
    x, b, y = tensors
    twice = backend.elementwise("T x", "T z", "z = x < 1 && x > 0 ? x : 2 * x /* a & b */", "twice")

    def both() -> None:
        y[:] = backend.dot(x, backend.ones((6, 6))) + b
        if getattr(backend, "jit", False):
            twice(x, y)

    page = ElementTree.fromstring(backend.explain(both).html().partition("\n")[2])
    targets = {e.get("id") for e in page.iter() if e.get("id")}
    links = {e.get("href")[1:] for e in page.iter("a")}
    assert links and links == targets
    assert "url(" not in "".join(page.itertext())


def test_a_browser_shows_the_page_without_complaint(backend, tensors, tmp_path, absent) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    if browser is None:
        absent("chromium", "no Chromium here")
    x, _, y = tensors
    page, picture = backend.explain(y, backend.softmax(x, axis=1)).save(tmp_path / "page.html"), tmp_path / "page.png"
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,800", "--enable-logging=stderr"]
    command = [browser, *flags, f"--user-data-dir={tmp_path}", f"--screenshot={picture}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    assert picture.read_bytes()[16:24] == (1280).to_bytes(4, "big") + (800).to_bytes(4, "big")


def test_highlighting_keeps_the_text() -> None:
    source = '#include "x"\nconst float y = a < 1.5f; // why & how\n'
    shown = Page(highlighted(source))
    assert shown.tags.count("span") >= 4
    kept: list[str] = []
    shown.handle_data = kept.append
    shown.reset()
    shown.feed(highlighted(source))
    shown.close()
    assert "".join(kept) == source


def test_a_share_is_the_least_time_over_the_measured() -> None:
    step = Step("k", "", "map", (4,), (), [], ["y"], 1000, 10, times=[3e-6, 2e-6, 9e-6], roof=Roof(1e9, 1e9))
    assert step.seconds == 3e-6
    assert step.share == pytest.approx(1 / 3)
    assert "33% of the roof" in step.line()
    assert "<circle" in roofline([step])
    assert roofline([Step("k", "", "map", (4,), (), [], [], 1000, 10)]) == ""


# TB_DEBUG and TB_CHECK


def test_debug_shows_a_line_for_each_run(backend, tensors, caplog) -> None:
    x, _, y = tensors
    y[:] = x * 3 + 1
    with caplog.at_level(logging.WARNING, "tensorbackend"), using(debug=2):
        y[:] = x * 3 + 1
        y[:] = x * 3 + 1
    lines = [record.message for record in caplog.records]
    assert [line.split()[0] for line in lines] == ["ew_mul_add_f32"] * 2
    caplog.clear()
    with using(debug=3):
        y[:] = x * 3 + 1
    assert "y[:] = (x * 3) + 1" in caplog.text
    assert "for the statement" in caplog.text
    assert "void" not in caplog.text


def test_debug_shows_the_source_of_a_kernel_that_is_made(jit, caplog) -> None:
    y = jit.empty((4, 6))
    jit.structures.clear()
    jit.structures.plans.clear()
    with caplog.at_level(logging.WARNING, "tensorbackend"), using(debug=4):
        y[:] = jit.ones((4, 6)) * 0.75 + 1.5
    assert "#include" in caplog.text and "v2 + v3" in caplog.text


@pytest.mark.filterwarnings("error")
def test_check_knows_in_which_type_was_computed(backend) -> None:
    x = backend.array(np.linspace(0.3, 9, 24).reshape(4, 6), dtype=np.float32)
    y = backend.empty((4, 6), dtype=np.float64)
    with using(check=True):
        y[:] = backend.log(x)  # float32, stored in float64
        y[:] = backend.sinh(x) + y
        y[:] = backend.log(x * 0)  # nothing finite


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
def test_check_knows_that_floats_were_truncated(backend, dtype) -> None:
    x = backend.array(np.linspace(-3, 3, 4000).reshape(40, 100), dtype=np.float32)
    y, total = backend.empty((40, 100), dtype=dtype), backend.empty((40, 1), dtype=dtype)
    with using(check=True):
        y[:] = backend.exp(backend.log(backend.rint(abs(x * 9)) + 1))  # whole numbers, and next to them
        y[:] = backend.exp(x * 14)
        total[:] = backend.prod(x, axis=1)


@pytest.mark.filterwarnings("error")
def test_check_knows_that_terms_cancel(backend) -> None:
    x = np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32)
    x = backend.array(x - x.mean(0))
    with using(check=True):
        sums = backend.evaluate(backend.sum(x, axis=0))
        backend.evaluate(backend.sum(x * 3 - sums, axis=0) + backend.where(x > 1e30, x, 0))
        backend.evaluate(backend.sum(x * np.inf, axis=0))


def test_check_finds_a_sum_that_lacks_a_term(backend, monkeypatch) -> None:
    x, y = backend.array(np.ones((300, 7)) * np.resize([1, -1], (300, 1))), backend.empty((1, 7))
    x[0] = 1.001

    def short(calls):
        for call in calls:

            def run(call=call) -> None:
                call.run()
                backend._upload(y, np.zeros((1, 7)))

            yield call._replace(run=run)

    ran = watch.run
    monkeypatch.setattr(watch, "run", lambda be, plan, names, calls: ran(be, plan, names, short(calls)))
    with using(check=True), pytest.raises(BackendError, match="differs"):
        y[:] = backend.sum(x, axis=0)


def test_check_passes_what_is_right(backend, tensors) -> None:
    x, b, y = tensors
    with using(check=True):
        y[:] = backend.softmax(backend.tanh(x) + b, axis=0)
        y[:] = y * 2 + backend.rand()
        y[:] = backend.dot(x, backend.ones((6, 6))) + x
        half = backend.array(x.get(), dtype="float16")
        half[:] = backend.exp(half * 0.1)
        backend.evaluate(backend.argmax(x, axis=1) > 2)
        with backend.fuse():
            y[:] = x * 2
            y[:] = y + 1
    np.testing.assert_array_equal(y.get(), x.get() * 2 + 1)


def test_check_names_the_kernel_and_the_element_that_differs(backend, tensors, monkeypatch) -> None:
    x, _, y = tensors

    def wrong(calls):
        for call in calls:

            def run(call=call) -> None:
                call.run()
                values = call.arrays()[1][0].copy()
                values[2, 3] += 1
                backend._upload(y, values)

            yield call._replace(run=run)

    ran = watch.run
    monkeypatch.setattr(watch, "run", lambda be, plan, names, calls: ran(be, plan, names, wrong(calls)))
    with using(check=True), pytest.raises(BackendError, match=r"ew_mul_f32 .*differs.*\n.*\(2, 3\)"):
        y[:] = x * 2


def test_a_closed_backend_explains_nothing() -> None:
    be = tensorbackend.Backend.allocate_backend("cpu", jit=False)
    x = be.ones((2, 2))
    be.cleanup_backend()
    with pytest.raises(BackendError):
        be.explain(x, 1)
