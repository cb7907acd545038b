# SPDX-License-Identifier: Apache-2.0
"""Optimizers beside their formulas: wide copies, states that move, counts that are loaded, hooks, copies."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import dtypes, optimizers, serializers, testing
from tensorbackend.function import arrays
from tensorbackend.function.ready import listeners

pytestmark = pytest.mark.rehearsed


def link_of(*data: Any) -> tb.Link:
    """A link with parameters of these arrays."""
    link = tb.Link()
    with link.init_scope():
        for n, x in enumerate(data):
            setattr(link, f"p{n}", tb.Parameter(x))
    return link


def set_gradients(link: tb.Link, be: Any, value: float = 1.0) -> None:
    """Fill the gradients of all parameters."""
    for p in link.params():
        p.grad = arrays.moved(np.full(p.shape, value, p.dtype), be)


def test_a_wide_copy_is_not_what_was_rounded_at_random(be, array) -> None:
    if be is None:
        pytest.skip("arrays of NumPy's are not rounded at random")
    data = array(np.full(64, 3.0), np.float16)
    data.rounding = 4
    link = link_of(data)
    optimizer = optimizers.SGD(1e-3)
    optimizer.use_fp32_update()
    optimizer.setup(link)
    for _ in range(5):
        set_gradients(link, be)
        optimizer.update()
    testing.assert_allclose(link.p0.update_rule.state["master"], np.full(64, 2.995), atol=1e-6)
    assert len(np.unique(arrays.to_cpu(link.p0.array))) == 2


METHODS = [optimizers.AdaDelta, optimizers.AdaGrad, optimizers.Adam, optimizers.MomentumSGD, optimizers.RMSprop]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_steps_of_halves_are_those_of_float32(be, array, method, dtype) -> None:
    """The square of 1e-4 is 0 in float16; a thousandth of a change is none in bfloat16."""
    kinds = [dtypes.as_dtype(dtype), np.dtype(np.float32)]
    links = [link_of(array(np.zeros(2), kind)) for kind in kinds]
    for link in links:
        optimizer = method().setup(link)
        for _ in range(3):
            link.p0.grad = arrays.moved(np.array([1e-4, 4.0]).astype(kinds[0]).astype(link.p0.dtype), be)
            optimizer.update()
    found, expected = ({k: arrays.to_cpu(v) for k, v in link.p0.update_rule.state.items()} for link in links)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        testing.assert_allclose(found[name], value, atol=0, rtol=1e-6)
    testing.assert_allclose(links[0].p0, links[1].p0, atol=3e-7, rtol=0.03)


@pytest.mark.parametrize(("fp32", "states"), [
    (True, [{"v": np.float64}, {"master": np.float32, "v": np.float32}]),
    (False, [{"v": np.float64}, {"v": np.float32}]),
])  # fmt: skip
def test_states_have_the_type_in_which_steps_are_computed(fp32, states, be, array) -> None:
    """Parameters that are no halves have no wide copy."""
    link = link_of(array(np.ones(3), np.float64), array(np.ones(3), np.float16))
    optimizer = optimizers.MomentumSGD()
    optimizer.use_fp32_update(fp32)
    optimizer.setup(link)
    set_gradients(link, be)
    optimizer.update()
    assert [{name: x.dtype for name, x in p.update_rule.state.items()} for p in link.params()] == states


def test_parameters_without_an_array_are_left_out(be, array) -> None:
    link = link_of(None, array(np.ones(3)))
    for p in link.params():
        p.grad = arrays.moved(np.ones(3, np.float32), be)
    optimizers.SGD(0.5).setup(link).update()
    assert link.p0.array is None
    assert arrays.to_cpu(link.p1.array).tolist() == [0.5, 0.5, 0.5]


def test_states_move_with_their_parameters(be, array) -> None:
    def trained(*places: Any) -> np.ndarray:
        link = link_of(np.ones(3, np.float32))
        optimizer = optimizers.MomentumSGD(0.1).setup(link)
        for place in places:
            link.to_device(place)
            set_gradients(link, place)
            optimizer.update()
            assert arrays.backend_of(link.p0.update_rule.state["v"]) is place
        return arrays.to_cpu(link.p0.array)

    np.testing.assert_allclose(trained(None, be, be, None), trained(None, None, None, None), rtol=1e-6)


def test_arrays_that_no_tensor_can_lie_in_are_changed_too() -> None:
    words = np.zeros(13, np.uint8)
    data = words[1:].view(np.float32)  # not aligned
    data[:] = 1
    link = link_of(data)
    set_gradients(link, None)
    optimizers.SGD(0.5).setup(link).update()
    assert link.p0.array.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_steps_with_gradients_that_are_no_numbers_are_left_out_if_asked_for(be, array, value) -> None:
    link = link_of(array(np.ones(3)), array(np.ones(2)))
    optimizer = optimizers.SGD(0.5).setup(link)
    optimizer.check_nan_in_grads = True
    set_gradients(link, be)
    link.p1.grad[1] = value
    optimizer.update()
    assert optimizer.t == 0
    assert all((arrays.to_cpu(p.array) == 1).all() for p in link.params())
    set_gradients(link, be)
    optimizer.update()
    assert optimizer.t == 1
    assert all((arrays.to_cpu(p.array) == 0.5).all() for p in link.params())


def test_listeners_are_told_of_gradients_that_a_loss_scale_changes(be, array) -> None:
    told: list[tuple] = []

    class Listener:
        def scaled(self, leaf: Any, before: Any) -> None:
            told.append((leaf, float(arrays.to_cpu(before)[0]), float(arrays.to_cpu(leaf.grad)[0])))

    listener = Listener()
    link = link_of(array(np.ones(3)))
    optimizer = optimizers.SGD(0.5).setup(link).loss_scaling(scale=4.0)
    set_gradients(link, be, 8.0)
    listeners.add(listener)
    optimizer.update()
    assert told == [(link.p0, 8.0, 2.0)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("method", [optimizers.MomentumSGD, optimizers.Adam])
def test_a_step_that_overflowed_is_left_out(method, dtype, value, be, array) -> None:
    links = [link_of(array(np.ones(3), dtype), array(np.ones(2), dtype), array(np.ones(0), dtype)) for _ in range(2)]
    found = []
    for link, values in zip(links, ((1.0, value, 2.0), (1.0, 2.0))):
        optimizer = method(0.5).setup(link).loss_scaling(scale=4.0)
        optimizer.use_fp32_update()
        for number in values:
            for p in link.params():
                p.grad = array(np.ones(p.shape), dtype)
            link.p1.grad = array([1.0, number], dtype)
            optimizer.update()
            assert all(p.grad.dtype == dtype for p in link.params())
        assert optimizer.t == 2 and optimizer.loss_scale == 4.0
        rules = [p.update_rule for p in link.params()]
        found.append([*(p.array for p in link.params()), *(x for r in rules for x in r.state.values())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(arrays.to_cpu(a), arrays.to_cpu(b))


def test_a_loss_scale_adapts_itself(array) -> None:
    link = link_of(array(np.ones(2), "float16"))
    optimizer = optimizers.SGD(2.0**-12).setup(link).loss_scaling(interval=2)
    big = array([6e4, 0.0], "float16")  # times the scale infinite, until that is 1
    scales = []
    for x in (big, *[array([1.0, 1.0], "float16")] * 5):
        optimizer.update(lambda x=x: F.sum(link.p0 * x))
        scales.append(optimizer.loss_scale)
    assert scales == [2.0**13, 2.0**13, 2.0**14, 2.0**14, 2.0**15, 2.0**15] and optimizer.t == 5
    saved = serializers.DictionarySerializer().save(optimizer)
    other = optimizers.SGD().setup(link_of(array(np.ones(2), "float16"))).loss_scaling(interval=2)
    serializers.NpzDeserializer({name: np.array(x) for name, x in saved.items()}).load(other)
    assert other.loss_scale == 2.0**15 and other._good_steps == optimizer._good_steps == 1
    for _ in range(20):
        optimizer.update(lambda: F.sum(link.p0 * big) * np.float16(2.0))
    assert optimizer.loss_scale == 1.0 and optimizer.t == 5
    optimizer.loss_scale = 8.0
    link.p0.grad = array([np.inf, 1.0], "float16")
    optimizer.update()
    assert optimizer.loss_scale == 8.0


def test_a_loss_scaling_that_is_asked_for_again_counts_anew(array) -> None:
    link = link_of(array(np.ones(2), "float16"))
    optimizer = optimizers.SGD(2.0**-12).setup(link)
    scales = []
    for _ in range(2):
        optimizer.loss_scaling(interval=3)
        for _ in range(2):
            optimizer.update(lambda: F.sum(link.p0))
            scales.append(optimizer.loss_scale)
    optimizer.update(lambda: F.sum(link.p0))
    assert scales == [2.0**14] * 4 and optimizer.loss_scale == 2.0**15


@pytest.mark.parametrize("method", [optimizers.MomentumSGD, optimizers.Adam])
def test_a_captured_step_that_overflowed_is_left_out(method, be, array, host) -> None:
    if be is None:
        pytest.skip("programs are of tensors")

    def trained(capture: bool) -> list[Any]:
        link = link_of(array(np.ones(3)))
        optimizer = method(0.5).setup(link).loss_scaling(scale=2.0)

        def step(x: Any) -> None:
            optimizer.update(lambda: F.sum(link.p0 * x))

        step(array(np.ones(3)))
        run = be.capture(step, array(np.ones(3))) if capture else step
        if not capture:
            step(array(np.ones(3)))
        for value in (np.inf, 2.0, np.nan, 3.0):
            run(array([1.0, value, 1.0]))
        saved = dict(serializers.DictionarySerializer().save(optimizer))
        t = saved.pop("t")  # which Adam alone counts on the backend
        return [*map(np.asarray, saved.values()), host(link.p0), np.array(t if method is optimizers.Adam else 0)]

    for plain, captured in zip(trained(False), trained(True), strict=True):
        assert np.isfinite(plain).all() and (plain == captured).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("hook", [
    optimizers.WeightDecay(0.1), optimizers.GradientClipping(0.5), optimizers.GradientLARS(0.1, 0.2),
    optimizers.GradientNoise(0.1), optimizers.Lasso(0.1), optimizers.GradientHardClipping(-1, 1),
], ids=lambda hook: hook.name)  # fmt: skip
def test_hooks_leave_gradients_arrays_of_their_kind(be, array, hook, dtype) -> None:
    link = link_of(array(np.ones(3), dtype))
    optimizer = optimizers.SGD(0.5).setup(link)
    optimizer.add_hook(hook)
    set_gradients(link, be)
    given = link.p0.grad
    optimizer.update()
    assert link.p0.grad is not given
    assert type(link.p0.grad) is type(given)
    assert link.p0.grad.dtype == np.dtype(dtype)


@pytest.mark.parametrize(("size", "slope"), [(0.0, 1.0), (1.0, 0.0), (1e-6, 1.0)])
def test_rates_of_layers_that_come_to_nothing_are_one(be, array, size, slope) -> None:
    link = link_of(array(np.full(4, size)))
    optimizer = optimizers.SGD(1.0).setup(link)
    optimizer.add_hook(optimizers.GradientLARS(1e-2, 0.0, 1e-3))
    set_gradients(link, be, slope)
    optimizer.update()
    testing.assert_allclose(link.p0.grad, np.full(4, slope), atol=1e-7)


@pytest.mark.parametrize(("timing", "other"), [("pre", "post"), ("post", "pre")])
def test_hooks_have_names_whenever_they_are_called(timing, other, array) -> None:
    optimizer = optimizers.SGD(0.5).setup(link_of(array(np.ones(3))))
    called: list[str] = []
    optimizer.add_hook(lambda o: called.append(timing), "mine", timing)
    with pytest.raises(KeyError, match="mine"):
        optimizer.add_hook(lambda o: None, "mine", other)
    optimizer.update()
    optimizer.remove_hook("mine")
    optimizer.update()
    assert called == [timing]
    with pytest.raises(KeyError, match="mine"):
        optimizer.remove_hook("mine")


def test_a_copy_leaves_rules_of_other_optimizers_alone(array) -> None:
    whole = tb.Chain()
    with whole.init_scope():
        whole.mine, whole.other = link_of(array(np.ones(3))), link_of(array(np.ones(3)))
    optimizer = optimizers.SGD(0.5).setup(whole)
    optimizers.SGD(0.25).setup(whole.other)
    made = copy.deepcopy(optimizer)
    optimizer.lr, made.lr = 0.125, 2.0
    found = [[p.update_rule.hyperparam.lr for p in o.target.params()] for o in (optimizer, made)]
    assert found == [[0.125, 0.25], [2.0, 0.25]]


# Adam's count


def test_the_step_and_the_decay_of_adam_are_scaled_by_eta(be, array) -> None:
    link = link_of(array(np.full(3, 2.0)))
    set_gradients(link, be)
    optimizers.Adam(alpha=0.125, eta=0.5, weight_decay_rate=0.25).setup(link).update()
    testing.assert_allclose(link.p0, np.full(3, 2.0 - 0.5 * (0.125 + 0.25 * 2.0)), atol=1e-6)


def test_a_copy_of_adam_goes_on_counting(be, array) -> None:
    """By itself: steps of the copy are those that the original makes, before and after."""
    optimizer = optimizers.Adam(alpha=0.5).setup(link_of(array(np.zeros(3), np.float64)))
    for n in range(3):
        set_gradients(optimizer.target, be, n + 1.0)
        optimizer.update()
    made = copy.deepcopy(optimizer)
    for one in (made, optimizer):
        for n in range(3, 6):
            set_gradients(one.target, be, n + 1.0)
            one.update()
    np.testing.assert_array_equal(*(arrays.to_cpu(o.target.p0.array) for o in (made, optimizer)))
    m, v, expected = 0.0, 0.0, 0.0
    for n in range(1, 7):
        m, v = m + 0.1 * (n - m), v + 0.001 * (n * n - v)
        expected -= 0.5 * np.sqrt(1 - 0.999**n) / (1 - 0.9**n) * m / (np.sqrt(v) + 1e-8)
    testing.assert_allclose(made.target.p0, np.full(3, expected), rtol=1e-9)


def test_rates_that_are_not_used_any_more_are_forgotten(be, array) -> None:
    link = link_of(array(np.ones(3)))
    optimizer = optimizers.Adam().setup(link)
    for n in range(10):
        optimizer.alpha = 0.001 * (n + 1)
        set_gradients(link, be)
        optimizer.update()
    assert len(optimizer._clock._rates) <= 2


def stepped(link: tb.Link, optimizer: Any, be: Any, values: Any) -> np.ndarray:
    """The parameter after steps with these gradients."""
    for value in values:
        set_gradients(link, be, value)
        optimizer.update()
    return np.array(arrays.to_cpu(link.p0.array))


def test_a_state_that_is_loaded_back_brings_its_count(be, array) -> None:
    """Into the optimizer that went on: what it has counted on a backend goes back as well."""
    straight = link_of(array(np.ones(3)))
    expected = stepped(straight, optimizers.Adam().setup(straight), be, (1.0, -0.5))
    link = link_of(array(np.ones(3)))
    optimizer = optimizers.Adam().setup(link)
    after_one = stepped(link, optimizer, be, (1.0,))
    saved = {name: np.array(x) for name, x in serializers.DictionarySerializer().save(optimizer).items()}
    stepped(link, optimizer, be, (3.0, 4.0, 5.0))
    serializers.NpzDeserializer(saved).load(optimizer)
    link.p0.array = arrays.moved(after_one, be)
    np.testing.assert_array_equal(stepped(link, optimizer, be, (-0.5,)), expected)
    assert optimizer.t == 2


def test_the_first_step_after_loading_may_be_captured(be, array) -> None:
    if be is None:
        pytest.skip("programs are of tensors")

    def trained(capture: bool) -> np.ndarray:
        link = link_of(array(np.ones(3)))
        optimizer = optimizers.Adam().setup(link)
        stepped(link, optimizer, be, (1.0,))
        saved = serializers.DictionarySerializer().save(optimizer)
        fresh = link_of(link.p0.array)
        optimizer = optimizers.Adam().setup(fresh)
        serializers.NpzDeserializer(saved).load(optimizer)
        g = array(np.full(3, -0.5))

        def step(g: Any) -> None:
            fresh.p0.grad = g
            optimizer.update()

        run = be.capture(step, g) if capture else step  # which runs it once
        for _ in range(2 if capture else 3):
            run(g)
        assert serializers.DictionarySerializer().save(optimizer)["t"] == 4
        return arrays.to_cpu(fresh.p0.array)

    np.testing.assert_array_equal(trained(True), trained(False))


@pytest.mark.parametrize("method", [optimizers.Adam, optimizers.AdamW, optimizers.SGD], ids=lambda m: m.__name__)
def test_rates_may_be_arguments_of_a_program(method, be, array) -> None:
    """A schedule of rates in captured training; Adam's rate is worked out once for all parameters."""
    if be is None:
        pytest.skip("programs are of tensors")

    def trained(capture: bool) -> list[list[float]]:
        link = link_of(array(np.ones(3)), array([2.0, -1.0]))
        optimizer = method().setup(link)
        if method is optimizers.Adam:
            optimizer.weight_decay_rate = 0.125

        def step(factor: float, rate: float) -> None:
            for p in link.params():
                p.grad = p.array * factor
            if method is optimizers.SGD:
                optimizer.lr = rate
            else:
                optimizer.alpha, optimizer.eta = rate, 2 * rate
            optimizer.update()

        step(0.5, 0.1)
        run = step
        if capture:
            run = be.capture(step, 0.25, 0.2)
        else:
            step(0.25, 0.2)
        for factor, rate in ((1.0, 0.4), (2.0, 0.05)):
            run(factor, rate)
        step(1.0, 0.05)
        return [arrays.to_cpu(p.array).tolist() for p in link.params()]

    assert trained(True) == trained(False)


def test_adam_counts_on_from_an_assigned_t(array, host, be) -> None:
    link = link_of(array([1.0, -2.0]))
    optimizer = optimizers.Adam(alpha=0.1).setup(link)
    p, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for t in (1, 2, 1001, 1002, 7):
        if t != optimizer.t + 1:
            optimizer.t = t - 1
        g = np.array([0.5, -0.25]) * t
        link.p0.grad = array(g)
        optimizer.update()
        m, v = m + 0.1 * (g - m), v + 0.001 * (g * g - v)
        p = p - 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        np.testing.assert_allclose(host(link.p0.array), p, rtol=1e-5)
    if be is not None:
        optimizer.t = 100
        with pytest.raises(RuntimeError, match="t was assigned before a capture"):
            be.capture(optimizer.update)
