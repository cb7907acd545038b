# SPDX-License-Identifier: Apache-2.0
"""Files of links and optimizers: every type comes back bit for bit, others can read them, bad files are refused."""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import optimizers, serializers, testing
from tensorbackend.function import arrays

FORMATS = {
    "npz": (serializers.save_npz, serializers.load_npz),
    "safetensors": (serializers.save_safetensors, serializers.load_safetensors),
}
each_format = pytest.mark.parametrize("save, load", FORMATS.values(), ids=FORMATS)


def numbers(link: tb.Link) -> list[bytes]:
    return [np.ascontiguousarray(arrays.to_cpu(p.array)).tobytes() for p in link.params()]


@each_format
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_every_type_comes_back(save, load, dtype, be, array) -> None:
    with tb.using_config("dtype", np.dtype(getattr(ml_dtypes, dtype, dtype))):
        first, second = (L.Linear(3, 4).to_device(be) for _ in range(2))
    assert numbers(first) != numbers(second)
    file = io.BytesIO()
    save(file, first)
    load(io.BytesIO(file.getvalue()), second)
    assert numbers(first) == numbers(second)
    assert second.W.dtype == dtype and second.W.device is be


@each_format
def test_a_part_of_a_file(save, load) -> None:
    whole = tb.Chain(head=L.Linear(2, 3), tail=L.Linear(3, 1))
    file = io.BytesIO()
    save(file, whole)
    tail = L.Linear(3, 1)
    load(io.BytesIO(file.getvalue()), tail, path="tail/")
    assert numbers(tail) == numbers(whole.tail)
    with pytest.raises(KeyError, match="body/W"):
        load(io.BytesIO(file.getvalue()), tail, path="body/")
    load(io.BytesIO(file.getvalue()), tail, path="body/", strict=False)
    assert numbers(tail) == numbers(whole.tail)


@each_format
@pytest.mark.parametrize(
    "ignored, stays",
    [
        ("head/b", {"head/b"}),
        (["head/b", "tail/W"], {"head/b", "tail/W"}),
        (lambda key: key.startswith("tail/"), {"tail/W", "tail/b"}),
        ((lambda key: key.endswith("W"), "tail/b"), {"head/W", "tail/W", "tail/b"}),
        ("b", set()),
    ],
    ids=["a name", "names", "a function", "both", "no whole name"],
)
def test_what_is_ignored_stays(save, load, ignored, stays) -> None:
    first, second = (tb.Chain(head=L.Linear(2, 3), tail=L.Linear(3, 1)) for _ in range(2))
    for value, link in ((1.0, first), (2.0, second)):
        for p in link.params():
            p.array[...] = value
    file = io.BytesIO()
    save(file, first)
    load(io.BytesIO(file.getvalue()), second, ignore_names=ignored)
    assert {name[1:] for name, p in second.namedparams() if (p.array == 2.0).all()} == stays
    assert all((p.array == 1.0).all() for name, p in second.namedparams() if name[1:] not in stays)


def test_what_is_missing_is_an_error_unless_said_otherwise() -> None:
    link = L.Linear(2, 3)
    with pytest.raises(KeyError, match=r"^load: a missing key\n  given "):
        serializers.NpzDeserializer({}).load(link)
    before = numbers(link)
    serializers.NpzDeserializer({}, strict=False).load(link)
    assert numbers(link) == before


def test_what_is_not_there_yet_stays_so_where_nothing_is_found() -> None:
    link = L.Linear(None, 3)
    serializers.NpzDeserializer({}, strict=False).load(link)
    assert not link.W.is_initialized
    with pytest.raises(KeyError, match=r"^load: a missing key\n  given "):
        serializers.NpzDeserializer({}).load(link)


@each_format
def test_random_numbers_go_on_where_they_were_saved(save, load, be) -> None:
    state = serializers.RandomState(be)
    backend = state.backend

    def draw() -> tuple[list, float]:
        out = backend.empty((8,))
        out[:] = backend.rand()
        return out.tolist(), float(backend.rng.normal())

    draw()  # half of a pair of normal numbers is left
    file = io.BytesIO()
    save(file, state)
    expected = [draw(), draw()]
    load(io.BytesIO(file.getvalue()), state)
    assert [draw(), draw()] == expected


@each_format
@pytest.mark.parametrize("copied", [False, True], ids=["loaded", "copied"])
def test_numbers_that_come_from_elsewhere_are_not_drawn_first(save, load, copied, be) -> None:
    """So that the state of random numbers may be loaded before the parameters that are not there yet."""
    first, second = L.Linear(3, 2).to_device(be), L.Linear(None, 2).to_device(be)
    file = io.BytesIO()
    save(file, first)
    before = serializers.DictionarySerializer().save(serializers.RandomState(be))
    if copied:
        second.copyparams(first)
    else:
        load(io.BytesIO(file.getvalue()), second)
    after = serializers.DictionarySerializer().save(serializers.RandomState(be))
    assert all((before[name] == after[name]).all() for name in before)
    assert numbers(second) == numbers(first) and second.in_size == 3


def test_others_read_and_write_safetensors(tmp_path) -> None:
    link = L.Linear(2, 3)
    path = tmp_path / "link.safetensors"
    serializers.save_safetensors(path, link, {"made by": "a test"})
    found = safetensors.numpy.load_file(path)
    assert set(found) == {"W", "b"}
    assert (found["W"] == link.W.array).all() and (found["b"] == link.b.array).all()
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"made by": "a test"}
    turned = np.arange(6, dtype=np.float32).reshape(2, 3)
    safetensors.numpy.save_file({"W": np.ascontiguousarray(turned.T), "b": np.ones(3, np.float32)}, path)
    serializers.load_safetensors(path, link)
    assert (link.W.array == turned.T).all()


def test_a_strided_array_is_stored_in_the_order_of_its_axes() -> None:
    link = L.Linear(2, 3)
    link.W.array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    file = io.BytesIO()
    serializers.save_safetensors(file, link)
    assert (safetensors.numpy.load(file.getvalue())["W"] == link.W.array).all()


def test_what_is_no_file_of_safetensors_is_refused_and_nothing_changes(tmp_path) -> None:
    link = L.Linear(2, 3)
    file = io.BytesIO()
    serializers.save_safetensors(file, L.Linear(2, 3))
    before = numbers(link)
    for data in (b"", b"PK\3\4", file.getvalue()[:-1], file.getvalue() + b"?"):
        with pytest.raises(ValueError, match="safetensors"):
            serializers.load_safetensors(io.BytesIO(data), link)
    complex_numbers = safetensors.numpy.save({"W": np.zeros((3, 2), np.complex64), "b": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="W\n.*C64"):
        serializers.load_safetensors(io.BytesIO(complex_numbers), link)
    with pytest.raises(FileNotFoundError):
        serializers.load_safetensors(tmp_path / "absent.safetensors", link)
    assert numbers(link) == before


@pytest.mark.parametrize("compression", [True, False])
def test_arrays_of_any_name_come_back_from_an_npz(tmp_path, compression) -> None:
    """`file` and `allow_pickle` are names of `numpy.savez`'s own."""
    def model() -> tb.Chain:
        made = tb.Chain()
        with made.init_scope():
            for k, name in enumerate(("file", "allow_pickle", "arr_0")):
                setattr(made, name, tb.Parameter(np.full(2, k, np.float32)))
        return made

    stored, loaded = model(), model()
    for p in loaded.params():
        p.array[:] = 9
    serializers.save_npz(tmp_path / "model.npz", stored, compression)
    with np.load(tmp_path / "model.npz") as found:
        assert set(found) == {"file", "allow_pickle", "arr_0"}
    serializers.load_npz(tmp_path / "model.npz", loaded)
    assert [p.array.tolist() for p in (loaded.file, loaded.allow_pickle, loaded.arr_0)] == [[0, 0], [1, 1], [2, 2]]
    with zipfile.ZipFile(tmp_path / "model.npz") as parts:
        kinds = {part.compress_type for part in parts.infolist()}
    assert kinds == {zipfile.ZIP_DEFLATED if compression else zipfile.ZIP_STORED}


@each_format
@pytest.mark.parametrize(("value", "other"), [([1, 2], [7]), ((0.5, 1.5), ()), ([[1, 2], [3, 4]], [0])], ids=str)
def test_persistent_lists_of_numbers_come_back(save, load, value, other) -> None:
    saved, loaded, file = tb.Link(), tb.Link(), io.BytesIO()
    saved.add_persistent("order", value)
    loaded.add_persistent("order", other)
    save(file, saved)
    load(io.BytesIO(file.getvalue()), loaded)
    assert loaded.order == value and type(loaded.order) is type(value)


@each_format
@pytest.mark.parametrize("value", [[1, "a"], ["a"], {"a": 1}, [None]], ids=str)
def test_persistent_values_that_could_not_be_loaded_are_not_saved(save, load, value) -> None:
    link = tb.Link()
    link.add_persistent("order", value)
    with pytest.raises(TypeError, match="order: [\\s\\S]*a number or numbers"):
        save(io.BytesIO(), link)


def test_what_is_no_whole_npz_is_refused_and_nothing_changes(tmp_path) -> None:
    link = L.Linear(20, 30)
    path = tmp_path / "link.npz"
    serializers.save_npz(path, L.Linear(20, 30))
    data, before = path.read_bytes(), numbers(link)
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 0xFF
    for bad in (b"", b"no zip at all", data[:-1], data[: len(data) // 2], bytes(damaged)):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="not a whole"):
            serializers.load_npz(path, link)
    np.save(tmp_path / "one.npy", np.ones(3))
    for name in ("one.npy", "text.npz"):
        (tmp_path / "text.npz").write_text("no zip at all")
        with pytest.raises(ValueError, match=rf"not a whole .npz\n  given     \S*{name}: no zip archive\n"):
            serializers.load_npz(tmp_path / name, link)
    with pytest.raises(FileNotFoundError):
        serializers.load_npz(tmp_path / "none.npz", link)
    assert numbers(link) == before


def test_an_npz_that_says_that_it_is_encrypted_or_compressed_otherwise_is_refused() -> None:
    file = io.BytesIO()
    serializers.save_npz(file, L.Linear(2, 3))
    for offset, value in ((8, 1), (10, 9), (10, 12), (10, 14)):  # in the directory's entry: flags; methods, bz2, lzma
        data = bytearray(file.getvalue())
        data[data.index(b"PK\1\2") + offset] = value
        with pytest.raises(ValueError, match="not a whole"):
            serializers.load_npz(io.BytesIO(data), L.Linear(2, 3))


@pytest.mark.parametrize("place, wrong", [
    ("bn/beta", np.array(["1", "2", "3"])), ("bn/beta", np.zeros(3, complex)), ("bn/N", np.array(np.nan)),
    ("bn/N", np.array("many")), ("bn/avg_var", np.zeros(3, [("a", "f4")])), ("bn/avg_var", np.zeros(3, "M8[s]")),
])  # fmt: skip
def test_what_is_no_number_changes_nothing(place, wrong, be) -> None:
    def state() -> dict[str, bytes]:
        return {name: x.tobytes() for name, x in serializers.DictionarySerializer().save(link).items()}

    link = tb.Chain(a=L.Linear(2, 3), bn=L.BatchNormalization(3)).to_device(be)
    stored = {name: x + 1 for name, x in serializers.DictionarySerializer().save(link).items()}
    file, before = io.BytesIO(), state()
    np.savez(file, **{**stored, place: wrong})
    with pytest.raises(ValueError, match=f"load: {place}"):
        serializers.load_npz(io.BytesIO(file.getvalue()), link)
    assert state() == before


@pytest.mark.parametrize("wrong", [np.array([["1", "2"]]), np.zeros((1, 2), complex)])
def test_what_is_no_number_is_refused_where_there_is_no_array_yet(wrong, be) -> None:
    link = tb.Chain(a=L.Linear(2, 3), b=L.Linear(None, 1)).to_device(be)
    stored = dict(serializers.DictionarySerializer().save(tb.Chain(a=L.Linear(2, 3), b=L.Linear(2, 1))))
    before = arrays.to_cpu(link.a.W.array).copy()
    with pytest.raises(ValueError, match="load: b/W"):
        serializers.NpzDeserializer({**stored, "b/W": wrong}).load(link)
    assert not link.b.W.is_initialized and (arrays.to_cpu(link.a.W.array) == before).all()
    serializers.NpzDeserializer(stored).load(link)
    assert arrays.to_cpu(link.b.W.array).shape == (1, 2)


@each_format
def test_a_shape_that_differs_changes_nothing(save, load) -> None:
    file = io.BytesIO()
    save(file, tb.Chain(a=L.Linear(2, 3), b=L.Linear(3, 4)))
    other = tb.Chain(a=L.Linear(2, 3), b=L.Linear(3, 5))
    before = numbers(other)
    with pytest.raises(ValueError, match=r"b/W\n.*\(4, 3\)\n.*\(5, 3\)"):
        load(io.BytesIO(file.getvalue()), other)
    assert numbers(other) == before


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'tensorbackend\[safetensors\]'"):
        serializers.save_safetensors(io.BytesIO(), L.Linear(2, 3))
    with pytest.raises(ImportError, match=r"pip install 'tensorbackend\[safetensors\]'"):
        serializers.load_safetensors(io.BytesIO(), L.Linear(2, 3))


@each_format
def test_an_optimizer_comes_back(save, load, be, array) -> None:
    def stepped(optimizer: tb.optimizers.Optimizer) -> None:
        for p in optimizer.target.params():
            p.grad = arrays.moved(np.ones(p.shape, np.float32), be)
        optimizer.update()

    first = optimizers.Adam().setup(L.Linear(2, 3).to_device(be))
    stepped(first)
    files = io.BytesIO(), io.BytesIO()
    save(files[0], first)
    save(files[1], first.target)
    second = optimizers.Adam().setup(L.Linear(2, 3).to_device(be))
    load(io.BytesIO(files[0].getvalue()), second)
    load(io.BytesIO(files[1].getvalue()), second.target)
    for optimizer in (first, second):
        stepped(optimizer)
    assert second.t == 2 and numbers(first.target) == numbers(second.target)


@each_format
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (optimizers.Adam, optimizers.MomentumSGD),
        (optimizers.MomentumSGD, optimizers.SGD),
        (lambda: optimizers.Adam(amsgrad=True), optimizers.Adam),
    ],
    ids=["Adam as MomentumSGD", "MomentumSGD as SGD", "AMSGrad as Adam"],
)
def test_states_of_another_optimizer_change_nothing(save, load, saved, loaded) -> None:
    def stepped(optimizer: tb.optimizers.Optimizer, times: int) -> tb.optimizers.Optimizer:
        for _ in range(times):
            for p in optimizer.target.params():
                p.grad = np.ones(p.shape, p.dtype)
            optimizer.update()
        return optimizer

    def state(optimizer: tb.optimizers.Optimizer) -> list:
        return [{name: x.tolist() for name, x in p.update_rule.state.items()} for p in optimizer.target.params()]

    first, second = (stepped(kind().setup(tb.Chain(a=L.Linear(2, 3))), n) for kind, n in ((saved, 2), (loaded, 1)))
    file = io.BytesIO()
    save(file, first)
    before = state(second)
    with pytest.raises(ValueError, match=rf"load: a/W/\n[\s\S]* of {loaded.__name__}\n[\s\S]*strict=False"):
        load(io.BytesIO(file.getvalue()), second)
    assert second.t == 1 and state(second) == before
    load(io.BytesIO(file.getvalue()), second, ignore_names=lambda key: key.rpartition("/")[2] in "m v vhat".split())
    assert second.t == 2 and state(second) == before
    load(io.BytesIO(file.getvalue()), stepped(second, 1), strict=False)
    assert second.t == 2


def test_a_rule_may_have_more_values_than_its_states() -> None:
    class Rule(optimizers.SGD.rule):
        steps = 0

        def serialize(self, serializer, p) -> None:
            super().serialize(serializer, p)
            self.steps = serializer("steps", self.steps)

    class Counted(optimizers.SGD):
        rule = Rule

    first, second = (Counted().setup(L.Linear(2, 3)) for _ in range(2))
    first.target.W.update_rule.steps = 3
    serializers.NpzDeserializer(serializers.DictionarySerializer().save(first)).load(second)
    assert second.target.W.update_rule.steps == 3


@each_format
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_states_of_halves_that_are_changed_in_float32_come_back_whole(save, load, dtype) -> None:
    def optimizer() -> tb.optimizers.Optimizer:
        link = tb.Link()
        with link.init_scope():
            link.p = tb.Parameter(np.ones(3, tb.dtypes.as_dtype(dtype)))
        made = optimizers.MomentumSGD(0.1, 0.9).setup(link)
        made.use_fp32_update()
        return made

    def stepped(optimizer: tb.optimizers.Optimizer) -> None:
        p = optimizer.target.p
        p.grad = np.array([1.0, 0.3, -7.1], p.dtype)
        optimizer.update()

    first, second = optimizer(), optimizer()
    stepped(first)
    file = io.BytesIO()
    save(file, first)
    load(io.BytesIO(file.getvalue()), second)
    second.target.copyparams(first.target)  # the master follows what is written beside it
    for optimizer in (first, second):
        stepped(optimizer)
    states = [{name: arrays.to_cpu(x) for name, x in o.target.p.update_rule.state.items()} for o in (first, second)]
    for name in ("v", "master"):
        assert states[1][name].dtype == np.float32
        np.testing.assert_array_equal(states[1][name], states[0][name])


@each_format
def test_an_optimizer_that_has_not_stepped_comes_back(save, load, be) -> None:
    optimizer = optimizers.MomentumSGD(0.5, 0.5).setup(L.Linear(2, 3, nobias=True).to_device(be))
    file = io.BytesIO()
    save(file, optimizer)
    W = optimizer.target.W
    for _ in range(2):
        W.grad = arrays.moved(np.ones(W.shape, np.float32), be)
        optimizer.update()
    load(io.BytesIO(file.getvalue()), optimizer)
    before = arrays.to_cpu(W.array).copy()
    optimizer.update()
    testing.assert_allclose(W, before - 0.5)  # no momentum of steps that were not


@each_format
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_state_beside_a_wide_copy_comes_back(save, load, dtype, be, array) -> None:
    with tb.using_config("dtype", np.dtype(getattr(ml_dtypes, dtype, dtype))):
        links = [L.Linear(3, 4).to_device(be) for _ in range(2)]
    made = [optimizers.Adam().setup(link) for link in links]
    for optimizer in made:
        optimizer.use_fp32_update()
    links[0].W.grad = array(np.linspace(0.1, 1, 12).reshape(4, 3), links[0].W.dtype)
    made[0].update()
    file = io.BytesIO()
    save(file, made[0])
    load(io.BytesIO(file.getvalue()), made[1])
    for name, first in links[0].W.update_rule.state.items():
        second = links[1].W.update_rule.state[name]
        assert second.dtype == np.float32 and arrays.to_cpu(first).tobytes() == arrays.to_cpu(second).tobytes()


def test_an_optimizer_is_loaded_before_its_parameters_are_there(be, array) -> None:
    links = [L.Linear(None, 3).to_device(be) for _ in range(2)]
    made = [optimizers.MomentumSGD().setup(link) for link in links]
    made[0].update(lambda: F.sum(links[0](array(np.ones((2, 4)))) ** 2))
    stored = serializers.DictionarySerializer().save(made[0])
    serializers.NpzDeserializer(stored).load(made[1])
    for first, second in zip(*(link.W.update_rule.state.values() for link in links)):
        testing.assert_allclose(first, second)
        assert arrays.backend_of(second) is be


@pytest.mark.parametrize(("name", "number"), [("t", -1), ("epoch", -2), ("loss_scale", 0.0), ("good_steps", -3)])
def test_counts_and_scales_of_an_optimizer_that_cannot_be_are_refused(name, number) -> None:
    optimizer = optimizers.SGD().setup(L.Linear(2, 3)).loss_scaling()
    stored = serializers.DictionarySerializer().save(optimizer)
    stored |= {"t": np.array(7), name: np.array(number)}
    with pytest.raises(ValueError, match=rf"SGD: {name}\n[\s\S]*{number}"):
        serializers.NpzDeserializer(stored).load(optimizer)
    assert optimizer.t == 0 and optimizer.loss_scale == 2.0**14


@each_format
def test_what_may_not_be_written_is_refused_and_nothing_changes(save, load, be) -> None:
    file, link = io.BytesIO(), tb.Chain(a=L.Linear(2, 2), b=L.Linear(2, 2)).to_device(be)
    save(file, tb.Chain(a=L.Linear(2, 2), b=L.Linear(2, 2)))
    values = np.ones((2, 2), np.float32)
    values.flags.writeable = False
    if be is not None and not be._views_host:
        pytest.skip("memory of its own")
    link.b.W.array = values if be is None else be.view(values)
    before = numbers(link)
    with pytest.raises(ValueError, match="load: b/W\n.*read-only"):
        load(io.BytesIO(file.getvalue()), link)
    assert numbers(link) == before


def test_a_file_that_is_saved_while_it_is_saved_is_whole(tmp_path) -> None:
    path = tmp_path / "state.npz"
    found = []

    class Interrupted(dict):
        def items(self):
            yield "a", np.arange(1000)
            serializers.write_npz(path, {"b": np.arange(3)})  # as the handler of a signal does
            found.append(serializers.read_npz(path))
            yield "c", np.arange(5)

    serializers.write_npz(path, Interrupted())
    found.append(serializers.read_npz(path))
    assert [{name: x.tolist() for name, x in held.items()} for held in found] == [
        {"b": [0, 1, 2]}, {"a": [*range(1000)], "c": [*range(5)]}
    ]  # fmt: skip
    assert os.listdir(tmp_path) == ["state.npz"]


@each_format
def test_a_file_is_on_the_disk_before_it_takes_its_place(save, load, tmp_path, monkeypatch) -> None:
    path, written = tmp_path / "state", []

    def fsync(descriptor: int) -> None:
        written.append((os.fstat(descriptor).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    save(path, L.Linear(2, 3))
    assert written == [(path.stat().st_size, False)]


@each_format
def test_a_pipe_is_written_into_and_a_link_followed(save, load, tmp_path) -> None:
    pipe, target, link = (tmp_path / name for name in ("pipe", "target", "link"))
    os.mkfifo(pipe)
    target.write_bytes(b"before")
    link.symlink_to(target.name)
    first, second, third = (L.Linear(2, 3) for _ in range(3))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        save(pipe, first)
        load(io.BytesIO(os.read(reader, 1 << 16)), second)
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    save(link, first)
    load(target, third)
    assert link.is_symlink()
    assert {p.name for p in tmp_path.iterdir()} == {"pipe", "target", "link"}
    for other in (second, third):
        np.testing.assert_array_equal(first.W.array, other.W.array)


@pytest.mark.parametrize("value", ["text", 1j, np.zeros(2, "M8[s]"), np.zeros(2, ml_dtypes.float8_e4m3fn)], ids=str)
def test_types_that_safetensors_lacks_are_refused_by_name_and_nothing_is_written(value, tmp_path) -> None:
    link = tb.Chain(a=tb.Link())
    link.a.add_persistent("kind", value)
    with pytest.raises(TypeError, match=r"save_safetensors: a/kind\n[\s\S]*BF16[\s\S]*save_npz"):
        serializers.save_safetensors(tmp_path / "state", link)
    assert os.listdir(tmp_path) == []


def test_safetensors_holds_numbers_of_another_byte_order() -> None:
    saved, loaded, file = tb.Link(), tb.Link(), io.BytesIO()
    saved.add_persistent("held", np.arange(3, dtype=">f4"))
    loaded.add_persistent("held", np.zeros(3))
    serializers.save_safetensors(file, saved)
    serializers.load_safetensors(io.BytesIO(file.getvalue()), loaded)
    assert loaded.held.tolist() == [0, 1, 2]


@each_format
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666], ids=oct)
def test_a_file_that_is_saved_again_keeps_its_permissions(save, load, mode, tmp_path) -> None:
    path = tmp_path / "state"
    link = L.Linear(2, 3)
    save(path, link)
    fresh = path.stat().st_mode
    for given in (mode, stat.S_IMODE(fresh)):
        path.chmod(given)
        save(path, link)
        assert stat.S_IMODE(path.stat().st_mode) == given
    load(path, link)
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize(("name", "number"), [("t", 3.7), ("epoch", np.float32(0.5)), ("good_steps", 2.5)])
def test_counts_that_are_not_whole_are_refused(name, number) -> None:
    optimizer = optimizers.SGD().setup(L.Linear(2, 3)).loss_scaling()
    stored = serializers.DictionarySerializer().save(optimizer) | {"t": np.array(7.0), name: np.array(number)}
    with pytest.raises(ValueError, match=rf"load: {name}\n[\s\S]*{number}[\s\S]*becomes int"):
        serializers.NpzDeserializer(stored).load(optimizer)
    assert optimizer.t == optimizer.epoch == 0
    serializers.NpzDeserializer(stored | {name: np.array(3.0)}).load(optimizer)
    assert optimizer.t == (3 if name == "t" else 7)


@each_format
def test_a_state_of_another_shape_changes_nothing(save, load) -> None:
    first, second = (optimizers.MomentumSGD().setup(L.Linear(2, n, nobias=True)) for n in (3, 4))
    first.target.W.grad = np.ones((3, 2), np.float32)
    first.update()
    file = io.BytesIO()
    save(file, first)
    with pytest.raises(ValueError, match=r"W/v\n.*\(3, 2\)\n.*\(4, 2\)"):
        load(io.BytesIO(file.getvalue()), second)
    assert second.t == 0 and not second.target.W.update_rule.state
