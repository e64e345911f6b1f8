"""Recurrent networks against one sequence and one gate at a time, against torch, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cudnn_ct import reference
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.checks import FLOATS
from cudnn_ct.shapes.rnn import RNN_MODES, RNNSpec, rnn_spec
from cudnn_ct.shapes.rnn_params import rnn_parameters
from cudnn_ct.shapes.rnn_weights import from_torch, to_torch
from cudnn_ct.shapes.sequences import rnn_shapes
from tests.gradients import assert_gradient
from tests.rnn_cases import RNNCase, rnn_cases

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-12}


# --- forward -----------------------------------------------------------------------------------------------


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def one_step(spec: RNNSpec, named: dict[str, np.ndarray], where: str, x: Any, h: Any, c: Any) -> Any:
    """The equations of cuDNN's manual for one sequence, gate by gate."""
    of_x, of_h = {}, {}
    for gate in spec.gates:
        w = named.get(f"{where}.W_{gate}")
        of_x[gate] = (x if w is None else w @ x) + named.get(f"{where}.bW_{gate}", 0)
        of_h[gate] = named[f"{where}.R_{gate}"] @ h + named.get(f"{where}.bR_{gate}", 0)
    both = {gate: of_x[gate] + of_h[gate] for gate in spec.gates}
    if spec.mode == "rnn_relu":
        return np.maximum(both["hidden"], 0), c
    if spec.mode == "rnn_tanh":
        return np.tanh(both["hidden"]), c
    if spec.mode == "gru":
        reset, update = sigmoid(both["reset"]), sigmoid(both["update"])
        new = np.tanh(of_x["new"] + reset * of_h["new"])
        return (1 - update) * new + update * h, c
    low, high = spec.clip or (-np.inf, np.inf)
    c = sigmoid(both["forget"]) * min_max(c, low, high) + sigmoid(both["input"]) * np.tanh(both["cell"])
    h = sigmoid(both["output"]) * np.tanh(min_max(c, low, high))
    return (named[f"{where}.P"] @ h if spec.projection_size else h), c


def min_max(c: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.minimum(np.maximum(c, low), high)


def by_sequences(case: RNNCase, padding: float) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    spec, steps, lengths, *_ = case
    shapes = rnn_shapes(spec, steps, len(lengths))
    named = {row.name: w.astype(float) for row, w in zip(rnn_parameters(spec), case.weights, strict=True)}
    y, options = np.full(shapes.y, padding, float), case.options
    hy = options.get("h0", np.zeros(shapes.h)).astype(float)
    cy = options.get("c0", np.zeros(shapes.c or shapes.h)).astype(float)
    for b, length in enumerate(lengths):
        inputs = list(case.x[:length, b].astype(float))
        for layer in range(spec.num_layers):
            outputs: list[list[Any]] = [[] for _ in range(length)]
            for d, ending in enumerate(("", "_reverse")[: spec.directions]):
                i = layer * spec.directions + d
                h, c = hy[i, b], cy[i, b]
                for t in range(length) if not d else reversed(range(length)):
                    h, c = one_step(spec, named, f"l{layer}{ending}", inputs[t], h, c)
                    outputs[t].append(h)
                hy[i, b], cy[i, b] = h, c
            inputs = [np.concatenate(o) for o in outputs]
        for t in range(length):
            y[t, b] = inputs[t]
    return y, hy, cy if spec.has_cells else None


def assert_close(got: Any, wanted: Any, tolerance: float) -> None:
    assert (got is None) == (wanted is None)
    if got is not None:
        np.testing.assert_allclose(np.asarray(got, float), wanted, rtol=tolerance, atol=tolerance)


@given(case=st.sampled_from(FLOATS).flatmap(lambda dtype: rnn_cases(dtype=dtype)), padding=st.integers(-2, 2))
def test_a_sequence_at_a_time(case: RNNCase, padding: int) -> None:
    got = rnn(case.x, case.weights, case.spec, **case.options, padding=padding)
    for result, wanted in zip(got, by_sequences(case, padding), strict=True):
        assert result is None or result.dtype == as_dtype(case.spec.dtype).numpy
        assert_close(result, wanted, TOLERANCE[case.spec.dtype] * 4)


@given(case=rnn_cases())
def test_weights_by_name_or_in_order(case: RNNCase) -> None:
    rows = rnn_parameters(case.spec)
    named = {row.name: w for row, w in zip(rows, case.weights, strict=True)}
    backwards = dict(reversed(named.items()))
    first, second = (rnn(case.x, w, case.spec, **case.options) for w in (case.weights, backwards))
    np.testing.assert_array_equal(first.y, second.y)


@given(case=rnn_cases())
def test_what_is_past_the_end_is_not_looked_at(case: RNNCase) -> None:
    x, dirty = case.x, case.x
    past = np.arange(case.steps)[:, None] >= np.array(case.lengths)
    dirty[past] = np.nan
    clean = rnn(x, case.weights, case.spec, **case.options, padding=7)
    again = rnn(dirty, case.weights, case.spec, **case.options, padding=7)
    np.testing.assert_array_equal(clean.y, again.y)
    assert (clean.y[past] == 7).all()
    dy = case.random(clean.y.shape, 3)
    dirty_dy = np.where(past[..., None], np.nan, dy)
    first = rnn_backward(x, case.weights, case.spec, dy, **case.options)
    second = rnn_backward(dirty, case.weights, case.spec, dirty_dy, **case.options)
    np.testing.assert_array_equal(first.dx, second.dx)
    assert not first.dx[past].any()
    for one, other in zip(first.dweights, second.dweights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", RNN_MODES)
def test_no_steps_leave_the_states_as_they_are(mode: str) -> None:
    case = RNNCase(rnn_spec(mode, 3, 3, 2, direction="bidirectional", dtype="float64"), 2, (0, 0), True, 0)
    options = case.options
    y, hy, cy = rnn(case.x, case.weights, case.spec, **options, padding=-5)
    assert (y == -5).all()
    np.testing.assert_array_equal(hy, options["h0"])
    dcy = {} if cy is None else {"dcy": options["c0"]}
    d = rnn_backward(case.x, case.weights, case.spec, y, dhy=hy, **dcy, **options)
    np.testing.assert_array_equal(d.dh0, hy)
    assert not any(dw.any() for dw in (d.dx, *d.dweights))
    if cy is not None:
        np.testing.assert_array_equal(cy, options["c0"])
        np.testing.assert_array_equal(d.dc0, options["c0"])


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_an_empty_batch_and_no_steps(shape: tuple[int, int]) -> None:
    spec = rnn_spec("lstm", 3, 4, dtype="float64")
    case = RNNCase(spec, shape[0], (shape[0],) * shape[1], True, 0)
    y, hy, _ = rnn(case.x, case.weights, spec, **case.options)
    assert y.shape == (*shape, 4)
    np.testing.assert_array_equal(hy, case.options["h0"])
    assert rnn_backward(case.x, case.weights, spec, y).dx.shape == (*shape, 3)


def test_the_reset_gate_of_a_gru_comes_after_the_product() -> None:
    """cuDNN's variant: with the gate before the product, the state's bias would not be reset."""
    spec = rnn_spec("gru", 1, 1, bias="single_rec_bias", dtype="float64")
    weights = {row.name: np.zeros(row.shape) for row in rnn_parameters(spec)}
    weights |= {"l0.bR_reset": np.array([-50.0]), "l0.bR_new": np.array([9.0])}
    assert abs(rnn(np.zeros((1, 1, 1)), weights, spec).y.item()) < 1e-15


def test_infinities_stay_where_they_are() -> None:
    spec = rnn_spec("rnn_relu", 2, 2, input_mode="skip", bias="no_bias", dtype="float64")
    weights = [np.diag([1.0, 1.0])]
    x = np.array([[[np.inf, 1.0]]])
    assert rnn(x, weights, spec).y.tolist() == [[[np.inf, 1.0]]]


def test_what_is_not_finite_stays_in_its_sequence() -> None:
    case = RNNCase(rnn_spec("lstm", 3, 4, 2, direction="bidirectional", dtype="float64"), 3, (3, 0), True, 0)
    options = case.options
    options["h0"][:, 1] = np.nan
    y, hy, _ = rnn(case.x, case.weights, case.spec, **options)
    assert np.isnan(hy).all((0, 2)).tolist() == [False, True]
    assert not np.isnan(hy[:, 0]).any()
    d = rnn_backward(case.x, case.weights, case.spec, np.ones_like(y), **options)
    assert not any(np.isnan(g).any() for g in (d.dx, d.dh0, d.dc0, *d.dweights))


def test_masks_stand_for_dropout() -> None:
    case = RNNCase(rnn_spec("gru", 3, 4, 2, dropout=0.5, dtype="float64"), 3, (3, 2), False, 0)
    masks = np.random.default_rng(0).choice([0.0, 2.0], (1, 3, 2, 4))
    rows = rnn_parameters(case.spec)
    below, above = (
        [w for r, w in zip(rows, case.weights, strict=True) if r.pseudo_layer == i] for i in (0, 1)
    )
    first = rnn(case.x, below, rnn_spec("gru", 3, 4, dtype="float64"), lengths=case.lengths)
    second = rnn(first.y * masks[0], above, rnn_spec("gru", 4, 4, dtype="float64"), lengths=case.lengths)
    both = rnn(case.x, case.weights, case.spec, lengths=case.lengths, masks=masks)
    np.testing.assert_allclose(both.y, second.y, rtol=1e-13)
    dy = case.random(both.y.shape, 3)
    d = rnn_backward(case.x, case.weights, case.spec, dy, lengths=case.lengths, masks=masks)
    assert_gradient(
        d.dx, lambda x: rnn(x, case.weights, case.spec, lengths=case.lengths, masks=masks).y, case.x, dy
    )


def test_there_is_no_operation_of_that_name() -> None:
    assert not {"rnn", "rnn_backward"} & set(reference.__all__)


# --- gradients ---------------------------------------------------------------------------------------------


@given(case=rnn_cases(most=3))
def test_gradients_in_a_direction(case: RNNCase) -> None:
    spec, operands = case.spec, {"x": case.x, **case.options}
    lengths = operands.pop("lengths")
    weights = {row.name: w for row, w in zip(rnn_parameters(spec), case.weights, strict=True)}
    result = rnn(case.x, weights, spec, **case.options)
    dresult = [None if r is None else case.random(r.shape, 5 + i) for i, r in enumerate(result)]
    dy, dhy, dcy = dresult
    cells = {} if dcy is None else {"dcy": dcy}
    d = rnn_backward(case.x, weights, spec, dy, dhy=dhy, **cells, **case.options)
    gradients = {"x": d.dx, "h0": d.dh0, "c0": d.dc0}
    gradients |= dict(zip(weights, d.dweights, strict=True))

    def loss(changed: dict[str, np.ndarray]) -> float:
        own = {name: changed[name] for name in weights}
        states = {name: changed[name] for name in ("h0", "c0") if name in changed}
        results = rnn(changed["x"], own, spec, lengths=lengths, **states)
        return sum((r * dr).sum() for r, dr in zip(results, dresult, strict=True) if r is not None)

    given_operands = operands | weights
    here = loss(given_operands)
    for salt, (name, value) in enumerate(given_operands.items()):
        way = case.random(value.shape, 100 + salt)
        above, below = (loss(given_operands | {name: value + s * way}) for s in (1e-5, -1e-5))
        assume(abs(above + below - 2 * here) < 1e-7)  # not at a bend of relu, nor at a bound of cells
        slope = (gradients[name] * way).sum()
        np.testing.assert_allclose((above - below) / 2e-5, slope, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
@pytest.mark.parametrize("missing", ["dy", "states"])
def test_each_element_of_each_gradient(mode: str, missing: str) -> None:
    """Also that gradients that are missing are zeros."""
    projection = 2 if mode == "lstm" else 0
    spec = rnn_spec(mode, 2, 3, 2, direction="bidirectional", projection_size=projection, dtype="float64")
    case = RNNCase(spec, 3, (2, 3), True, 0)
    names = [row.name for row in rnn_parameters(spec)]
    operands = {"x": case.x, **case.options, **dict(zip(names, case.weights, strict=True))}
    lengths = operands.pop("lengths")

    def forward(name: str, value: np.ndarray) -> np.ndarray:
        changed = operands | {name: value}
        states = {n: changed[n] for n in ("h0", "c0") if n in changed}
        y, hy, cy = rnn(changed["x"], [changed[n] for n in names], spec, lengths=lengths, **states)
        parts = [y] if missing == "states" else [hy] if cy is None else [hy, cy]
        return np.concatenate([p.ravel() for p in parts])

    shapes = rnn_shapes(spec, 3, 2)
    if missing == "states":
        given_gradients = {"dy": case.random(shapes.y, 3)}
    else:
        given_gradients = {"dhy": case.random(shapes.h, 3)}
        if shapes.c:
            given_gradients["dcy"] = case.random(shapes.c, 4)
    flat = np.concatenate([g.ravel() for g in given_gradients.values()])
    d = rnn_backward(case.x, case.weights, spec, **given_gradients, **case.options)
    gradients = {"x": d.dx, "h0": d.dh0, "c0": d.dc0, **dict(zip(names, d.dweights, strict=True))}
    for name, value in operands.items():
        assert_gradient(gradients[name], lambda v, n=name: forward(n, v), value, flat)


def test_cells_are_clipped_where_they_are_used() -> None:
    """The last is returned as it was; no gradient of what comes after passes a cell that was held."""
    spec = rnn_spec("lstm", 1, 1, clip=(-0.1, 0.1), dtype="float64")
    weights = [np.full(row.shape, 3.0) for row in rnn_parameters(spec)]
    x = np.ones((1, 1, 1))
    found = rnn(x, weights, spec)
    gate = 1 / (1 + np.exp(-9.0))
    np.testing.assert_allclose(found.cy.item(), gate * np.tanh(9))
    np.testing.assert_allclose(found.y.item(), gate * np.tanh(0.1))
    d = rnn_backward(x, weights, spec, np.ones((1, 1, 1)))
    assert not d.dc0.any()
    assert d.dx.item() == pytest.approx(3 * np.tanh(0.1) * gate * (1 - gate))  # by the output gate alone
    assert rnn_backward(x, weights, spec, dcy=np.ones((1, 1, 1))).dc0.item() == pytest.approx(gate)


def test_gradients_are_rounded_once_to_the_dtype() -> None:
    narrow = RNNCase(rnn_spec("lstm", 3, 4, dtype="float16"), 5, (5, 4), True, 0)
    broad = rnn_spec("lstm", 3, 4, dtype="float64")
    dy = narrow.random((5, 2, 4), 3)
    wide = {k: v.astype(float) if k != "lengths" else v for k, v in narrow.options.items()}
    exact = rnn_backward(
        narrow.x.astype(float), [w.astype(float) for w in narrow.weights], broad, dy.astype(float), **wide
    )
    d = rnn_backward(narrow.x, narrow.weights, narrow.spec, dy, **narrow.options)
    for got, wanted in zip((d.dx, d.dh0, d.dc0, *d.dweights), (*exact[:3], *exact.dweights), strict=True):
        np.testing.assert_array_equal(got, wanted.astype(np.float16))


# --- torch -------------------------------------------------------------------------------------------------


def module_of(torch: Any, spec: RNNSpec) -> Any:
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    more = {"nonlinearity": spec.mode[4:]} if spec.mode.startswith("rnn") else {}
    if spec.projection_size:
        more["proj_size"] = spec.projection_size
    return kinds.get(spec.mode, torch.nn.RNN)(
        spec.input_size, spec.hidden_size, spec.num_layers, bias=spec.bias != "no_bias",
        bidirectional=spec.directions == 2, dtype=torch.float64, **more,
    )  # fmt: skip


@given(case=rnn_cases(torch=True, least=1))
def test_against_torch(case: RNNCase) -> None:
    torch = pytest.importorskip("torch")
    spec, options = case.spec, case.options
    module = module_of(torch, spec)
    arrays = to_torch(case.weights, spec)
    assert {n: tuple(t.shape) for n, t in module.state_dict().items()} == {
        n: a.shape for n, a in arrays.items()
    }
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    x = torch.from_numpy(case.x).requires_grad_()
    states = [torch.from_numpy(options[n]).requires_grad_() for n in ("h0", "c0") if n in options]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(case.lengths), enforce_sorted=False)
    given_states = (tuple(states) if spec.has_cells else states[0]) if states else None
    out, last = module(packed, given_states)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(out, padding_value=-3.0, total_length=case.steps)
    last = last if spec.has_cells else (last,)

    got = rnn(case.x, case.weights, spec, **options, padding=-3)
    close = {"rtol": 1e-11, "atol": 1e-12}
    for result, wanted in zip(got, (y, *last), strict=False):
        np.testing.assert_allclose(result, wanted.detach().numpy(), **close)

    gradients = [case.random(tuple(t.shape), 5 + i) for i, t in enumerate((y, *last))]
    torch.autograd.backward((y, *last), [torch.from_numpy(g) for g in gradients])
    names = ("dhy", "dcy")[: len(last)]
    d = rnn_backward(
        case.x, case.weights, spec, gradients[0], **dict(zip(names, gradients[1:], strict=True)), **options
    )
    np.testing.assert_allclose(d.dx, x.grad.numpy(), **close)
    for mine, state in zip((d.dh0, d.dc0), states, strict=False):
        np.testing.assert_allclose(mine, state.grad.numpy(), **close)
    theirs = from_torch({n: p.grad.numpy() for n, p in module.named_parameters()}, spec)
    for mine, other in zip(d.dweights, theirs, strict=True):
        np.testing.assert_allclose(mine, other, **close)


@pytest.mark.parametrize("bias", ["single_inp_bias", "single_rec_bias"])
@pytest.mark.parametrize("mode", RNN_MODES)
def test_one_bias_goes_to_torch_as_two(mode: str, bias: str) -> None:
    torch = pytest.importorskip("torch")
    case = RNNCase(rnn_spec(mode, 3, 4, 2, bias=bias, dtype="float64"), 3, (3, 3), False, 0)
    module = module_of(torch, case.spec)
    module.load_state_dict({n: torch.from_numpy(a) for n, a in to_torch(case.weights, case.spec).items()})
    y = module(torch.from_numpy(case.x))[0].detach().numpy()
    np.testing.assert_allclose(rnn(case.x, case.weights, case.spec).y, y, rtol=1e-12, atol=1e-13)


# --- what does not fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"x": np.ones((3, 2, 4))}, ValueError, r"x has shape \(3, 2, 4\); .* needs \(T, B, 5\)"),
        ({"x": np.ones((3, 5))}, ValueError, r"needs \(T, B, 5\)"),
        ({"x": np.ones((3, 2, 5), np.float32)}, TypeError, "network is float64 and x is float32"),
        ({"h0": np.ones((1, 2, 4))}, ValueError, r"h0 has shape \(1, 2, 4\); this network needs \(2, 2, 4\)"),
        ({"c0": np.ones((2, 2, 4))}, ValueError, "c0 is given, but mode='gru' has no cells"),
        ({"h0": np.ones((2, 2, 4), np.float16)}, TypeError, "h0 is float16"),
        ({"lengths": [3, 4]}, ValueError, "sequence 1 has length 4; it must be between 0 and the 3 steps"),
        ({"lengths": [3]}, ValueError, "there are 1 lengths; the batch has 2 sequences"),
        ({"lengths": [-1, 3]}, ValueError, "sequence 0 has length -1"),
        ({"lengths": [1.5, 3]}, TypeError, "lengths must be integers"),
        ({"masks": np.ones((1, 3, 2, 4))}, ValueError, r"masks have shape \(1, 3, 2, 4\); .* \(0, 3, 2, 8\)"),
        ({"weights": []}, ValueError, "there are 0 weights; this network has 24: gru 5 -> 4, 1 layer"),
        ({"weights": 3}, TypeError, "weights are a mapping by names or a sequence, not int"),
        ({"weights": None}, TypeError, "weights are a mapping by names or a sequence, not NoneType"),
        ({"x": None}, ValueError, r"x has shape \(\)"),
        ({"spec": None}, TypeError, "spec must be an RNNSpec, not NoneType"),
        ({"spec": ("gru", 5, 4)}, TypeError, "spec must be an RNNSpec, not tuple"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    spec = rnn_spec("gru", 5, 4, direction="bidirectional", dtype="float64")
    weights = [np.zeros(row.shape) for row in rnn_parameters(spec)]
    good: dict[str, Any] = {"x": np.ones((3, 2, 5)), "weights": weights, "spec": spec}
    with pytest.raises(error, match=says):
        rnn(**(good | change))
    with pytest.raises(error, match=says):
        rnn_backward(**(good | change), dy=np.zeros((3, 2, 8)))


@pytest.mark.parametrize("padding", [[], np.zeros((2, 3)), None, "0"])
def test_padding_is_a_number(padding: Any) -> None:
    case = RNNCase(rnn_spec("gru", 2, 3, dtype="float64"), 2, (2, 1), False, 0)
    with pytest.raises(TypeError, match="padding must be a number"):
        rnn(case.x, case.weights, case.spec, **case.options, padding=padding)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dy": np.ones((3, 2, 4))}, ValueError, r"dy has shape \(3, 2, 4\); y has \(3, 2, 8\)"),
        ({"dhy": np.ones((2, 4))}, ValueError, r"dhy has shape \(2, 4\); this network needs \(2, 2, 4\)"),
        ({"dcy": np.ones((2, 2, 4))}, ValueError, "dcy is given, but mode='gru' has no cells"),
        ({"dhy": np.ones((2, 2, 4), np.float32)}, TypeError, "dhy is float32"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    spec = rnn_spec("gru", 5, 4, direction="bidirectional", dtype="float64")
    weights = [np.zeros(row.shape) for row in rnn_parameters(spec)]
    with pytest.raises(error, match=says):
        rnn_backward(np.ones((3, 2, 5)), weights, spec, **change)
