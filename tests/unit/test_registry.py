# SPDX-License-Identifier: Apache-2.0
"""The registry: the global backend, names and settings, scripts' arguments, and backends of other packages."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorbackend
from tensorbackend import Backend, BackendError, cleanup_backend, current_backend, gen_backend, using
from tensorbackend.backends import registry
from tensorbackend.backends.cpu import CPUBackend

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_global_backend() -> Iterator[None]:
    """Each test starts and ends without a global backend."""
    cleanup_backend()
    yield
    cleanup_backend()


def in_process(code: str, *paths: Path, **variables: str) -> str:
    """What Python code prints in a process with these environment variables alone of ours."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TB_")}
    search = os.pathsep.join(map(str, [ROOT, *paths]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**inherited, "PYTHONPATH": search, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The global backend


def test_gen_backend_makes_the_global_one() -> None:
    be = gen_backend("cpu")
    assert current_backend() is be
    assert be.backend_name == "cpu"


def test_a_new_backend_closes_the_one_it_replaces() -> None:
    first = gen_backend("cpu")
    t = first.ones((2, 2))
    second = gen_backend("cpu")
    assert first.closed
    assert not second.closed
    assert current_backend() is second
    np.testing.assert_array_equal(t.get(), np.ones((2, 2)))
    with pytest.raises(BackendError, match="closed"):
        t.fill(0)


def test_a_backend_that_cannot_be_made_leaves_the_global_one() -> None:
    first = gen_backend("cpu")
    for wrong in ({"backend": "nonsense"}, {"datatype": "int32"}, {"compat_mode": "x"}, {"rng_seed": -1}):
        with pytest.raises(ValueError):
            gen_backend(**wrong)
    assert current_backend() is first
    assert not first.closed


def test_cleanup_may_be_repeated() -> None:
    be = gen_backend("cpu")
    cleanup_backend()
    cleanup_backend()
    be.cleanup_backend()
    assert be.closed
    with pytest.raises(BackendError, match="gen_backend"):
        current_backend()


def test_allocation_and_constructors_leave_the_global_one() -> None:
    be = gen_backend("cpu")
    others = [Backend.allocate_backend("cpu"), CPUBackend()]
    assert current_backend() is be
    for other in others:
        assert other.bsz is None
        other.cleanup_backend()
    assert not be.closed


# Arguments


def test_arguments_reach_the_backend() -> None:
    be = gen_backend("cpu", rng_seed=5, datatype="float64", batch_size=32, compat_mode="caffe", min_dims=0, jit=False)
    facts = (be.rng_seed, be.default_dtype, be.bsz, be.compat_mode, be.min_dims, be.deterministic)
    assert facts == (5, np.float64, 32, "caffe", 0, True)
    assert gen_backend("cpu", stochastic_round=True, device_id=0, max_devices=1).round_mode == 10
    assert gen_backend("cpu").bsz == 0


def test_defaults() -> None:
    with using(backend="cpu", seed=None, dtype="float32"):
        be = gen_backend()
    facts = (be.backend_name, be.default_dtype, be.rng_seed, be.deterministic, be.min_dims, be.compat_mode, be.bench)
    assert facts == ("cpu", np.float32, None, False, 2, None, False)
    assert (be.hist_bins, be.hist_offset, be.device_type, be.device_id, be.num_devices) == (64, -48, 0, 0, 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_datatype_is_that_of_new_tensors(dtype) -> None:
    be = gen_backend("cpu", datatype=dtype)
    made = [be.zeros(2), be.array([1]), be.array(np.arange(3)), be.evaluate(be.zeros(2) + 1)]
    assert {t.dtype.name for t in made} == {dtype}


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64", "float99", object])
def test_datatype_must_be_a_float(dtype) -> None:
    with pytest.raises(ValueError, match="float32"):
        gen_backend("cpu", datatype=dtype)


def test_unknown_names_list_the_choices() -> None:
    for make in (gen_backend, Backend.allocate_backend):
        with pytest.raises(ValueError, match="cpu") as caught:
            make("cpuu")
        assert "'cpuu'" in str(caught.value)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        gen_backend("cpu", colour="red")


@pytest.mark.parametrize("name", [5, b"cpu", ["cpu"]], ids=repr)
def test_names_are_strings(name) -> None:
    for make in (gen_backend, Backend.allocate_backend):
        with pytest.raises(ValueError, match="cpu, gpu"):
            make(name)


@pytest.mark.parametrize("wrong", [-1, 2.5, "x", float("nan")], ids=repr)
@pytest.mark.parametrize("option", ["batch_size", "device_id", "max_devices"])
def test_counts_are_integers_of_0_or_more(option, wrong) -> None:
    first = gen_backend("cpu", batch_size=np.int32(4), device_id=0, max_devices=0)
    with pytest.raises(ValueError, match="0 or more"):
        gen_backend("cpu", **{option: wrong})
    assert current_backend() is first
    assert first.bsz == 4


@pytest.mark.parametrize("given", [True, 1, np.True_, 4], ids=repr)
def test_winograd_is_on_by_any_truth(given) -> None:
    assert gen_backend("cpu", enable_winograd=given).enable_winograd == 4


@pytest.mark.parametrize("argument", ["deterministic", "deterministic_update"])
def test_deprecated_arguments_warn_once(argument, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_warned", set())
    with pytest.warns(DeprecationWarning, match=argument) as caught:
        gen_backend("cpu", **{argument: True})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gen_backend("cpu", **{argument: True})
        gen_backend("cpu", **{argument: None})


# Settings


def test_settings_decide_what_arguments_leave_open() -> None:
    with using(backend="cpu", seed=9, dtype="float64"):
        be = gen_backend()
        assert (be.rng_seed, be.default_dtype, be.deterministic) == (9, np.float64, True)
        be = gen_backend("cpu", rng_seed=1, datatype=np.float16)
        assert (be.rng_seed, be.default_dtype) == (1, np.float16)


def test_environment_decides_what_arguments_leave_open() -> None:
    code = """
        from tensorbackend import gen_backend
        be = gen_backend()
        print(be.backend_name, be.rng_seed, be.default_dtype, be.zeros(2).dtype)
        """
    assert in_process(code, TB_SEED="3", TB_DTYPE="float64") == "cpu 3 float64 float64"
    code = """
        from tensorbackend import gen_backend
        try:
            gen_backend()
        except ValueError as error:
            print(error)
        """
    assert "'nonsense'" in in_process(code, TB_BACKEND="nonsense")


def test_the_global_backend_is_cleaned_up_at_exit() -> None:
    code = """
        import atexit
        from tensorbackend import gen_backend
        backends = []
        atexit.register(lambda: print([be.closed for be in backends]))
        backends += [gen_backend(), gen_backend()]
        """
    assert in_process(code) == "[True, True]"


# Scripts


def parsed(*words: str) -> argparse.Namespace:
    """The arguments of a script."""
    return tensorbackend.add_backend_arguments(argparse.ArgumentParser()).parse_args(words)


def test_script_arguments_choose_the_backend() -> None:
    words = ["-b", "cpu", "--seed", "4", "--dtype", "float64", "--batch-size", "16", "--threads", "1"]
    be = tensorbackend.backend_from_arguments(parsed(*words), min_dims=0)
    assert current_backend() is be
    assert (be.backend_name, be.rng_seed, be.default_dtype, be.bsz, be.threads, be.min_dims) == (
        "cpu", 4, np.float64, 16, 1, 0,
    )  # fmt: skip


def test_script_arguments_left_out_follow_the_settings() -> None:
    with using(backend="cpu", seed=8, dtype="float64"):
        be = tensorbackend.backend_from_arguments(parsed())
    assert (be.rng_seed, be.default_dtype, be.bsz) == (8, np.float64, 128)


def test_script_help_names_the_choices() -> None:
    text = tensorbackend.add_backend_arguments(argparse.ArgumentParser()).format_help()
    for part in ("--backend", "cpu", "gpu:emulator", "TB_BACKEND", "--seed", "--dtype", "--batch-size", "--threads"):
        assert part in text


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("--backend", "gpus", "'gpus' given, expected one of gpu"),
        ("--backend", "nonsense:emulator", "'nonsense:emulator' given, expected one of cpu, gpu"),
        ("--dtype", "float33", "'float33' given, expected the name of a float type as float32"),
        ("--dtype", "int32", "'int32' given, expected the name of a float type as float32"),
    ],
)
def test_names_that_do_not_exist_are_refused_by_the_parser(name: str, wrong: str, said: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parsed(name, wrong)
    assert f"{name}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "said"), [("cpu:fast", "'cpu'"), ("gpu:nosuch", "no such driver")])
def test_a_backend_that_cannot_be_made_ends_a_script_as_its_parser_does(name: str, said: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        tensorbackend.backend_from_arguments(parsed("-b", name))
    text = capsys.readouterr().err
    assert ended.value.code == 2 and "error: --backend: " in text and said in text


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("--batch-size", ("0", "-1", "x")), ("--threads", ("0", "-1", "1.5")), ("--seed", ("x", "-1", "4294967296"))],
)
def test_wrong_numbers_of_scripts_are_errors_of_the_parser(name, wrong, capsys) -> None:
    for text in wrong:
        with pytest.raises(SystemExit):
            parsed(name, text)
        error = capsys.readouterr().err
        assert f"argument {name}: " in error and text in error and "expected" in error


# Other backends


@pytest.fixture
def registered() -> Iterator[dict]:
    """The registry, put back afterwards."""
    before = dict(Backend.backends)
    yield Backend.backends
    Backend.backends.clear()
    Backend.backends.update(before)


def test_defining_a_backend_registers_it(registered) -> None:
    class Mine(CPUBackend):
        backend_name = "mine"

    class Nameless(CPUBackend):
        pass

    class Unfinished(Backend):
        backend_name = "unfinished"

    assert registered["mine"] is Mine
    assert registered["Nameless"] is Nameless
    assert "unfinished" not in registered
    assert Unfinished.backend_name == "unfinished"
    with pytest.raises(ValueError, match=r"(?s)not finished.*methods _allocate, _close, _download, _run_plan, _upload"):
        gen_backend("unfinished")
    assert Backend.backend_choices() == sorted(registered)
    be = gen_backend("mine")
    assert type(be) is Mine
    assert "mine" in repr(be.zeros((2, 2)))


def test_a_driver_follows_the_name(registered) -> None:
    class Driven(CPUBackend):
        backend_name = "driven"

        def __init__(self, *arguments: object, driver: str = "none", **keywords: object) -> None:
            super().__init__(*arguments, **keywords)
            self.driver = driver

    assert gen_backend("driven:emulator").driver == "emulator"
    assert Backend.allocate_backend("driven:emulator").driver == "emulator"
    assert gen_backend("driven").driver == "none"
    with using(backend="driven:other"):
        assert gen_backend().driver == "other"
    with pytest.raises(ValueError, match="driver"):
        gen_backend("cpu:emulator")


def distribution(folder: Path, name: str, module: str) -> None:
    """A distribution in a folder on the path: its metadata, with a backend as entry point, and its module."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tensorbackend.backends]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(textwrap.dedent(module))


OTHERS = """
    import logging
    logging.basicConfig(format="%(message)s")
    from tensorbackend import Backend, add_backend_arguments, gen_backend
    print("other" in Backend.backend_choices())
    be = gen_backend("other")
    print(be.backend_name, be.zeros((2, 2)).get().sum())
    """


@pytest.mark.slow
def test_backends_of_other_packages_are_found_by_entry_point(tmp_path) -> None:
    module = """
        from tensorbackend.backends.cpu import CPUBackend
        class Other(CPUBackend):
            backend_name = "other"
        """
    distribution(tmp_path, "other", module)
    assert in_process(OTHERS, tmp_path).splitlines() == ["False", "other 0.0"]
    help_text = in_process(
        """
        import argparse
        from tensorbackend import add_backend_arguments
        print(add_backend_arguments(argparse.ArgumentParser()).format_help())
        """,
        tmp_path,
    )
    assert "cpu, gpu, other" in help_text


def test_a_broken_package_is_named_and_left_out(tmp_path) -> None:
    distribution(tmp_path, "broken", "import a_module_that_is_nowhere\n")
    code = """
        import argparse, logging, sys
        logging.basicConfig(format="%(message)s", stream=sys.stdout)
        from tensorbackend import add_backend_arguments, gen_backend
        add_backend_arguments(argparse.ArgumentParser())
        print(gen_backend().backend_name)
        """
    warning, name = in_process(code, tmp_path).splitlines()
    assert "broken" in warning
    assert "a_module_that_is_nowhere" in warning
    assert name == "cpu"


@pytest.mark.parametrize("name, options, kind, message", [
    ("cpu:foo", {}, ValueError, "backend 'cpu' has no drivers"),
    ("gpu:emulator", {"threads": 2}, TypeError, "backend 'gpu' takes no threads"),
    *(("cpu", {"threads": n}, ValueError, f"threads[\\s\\S]*{n!r}[\\s\\S]*1 or more") for n in (0, -1, 1.5, "2")),
    ("cpu", {"treads": 2}, TypeError, "takes no treads[\\s\\S]*threads"),
    ("cpu", {"batchsize": 2}, TypeError, "takes no batchsize[\\s\\S]*batch_size"),
    ("cpu", {"default_dtype": "float64"}, TypeError, "expected  datatype='float64'"),
])  # fmt: skip
def test_an_option_that_a_backend_does_not_take_is_named(name, options, kind, message) -> None:
    with pytest.raises(kind, match=message):
        gen_backend(name, **options)


def test_other_packages_are_looked_for_only_where_they_may_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    monkeypatch.setattr(registry, "_load_entry_points", lambda: looked.append(True))
    registry.allocate("cpu", jit=False).cleanup_backend()
    assert not looked
    with pytest.raises(ValueError, match="no_such"):
        registry.allocate("no_such")
    assert looked
