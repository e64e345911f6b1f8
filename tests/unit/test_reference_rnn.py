"""Recurrent networks of the reference: padding, states and clipping; loops are in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import RNN_MODES, RNNSpec, rnn_spec
from cudnn_ct.shapes.rnn_params import rnn_parameters
from cudnn_ct.shapes.rnn_weights import to_torch
from tests.gradients import assert_gradient
from tests.rnn_cases import RNNCase, rnn_cases


@given(case=rnn_cases())
def test_rnn_accepts_weights_by_name_or_in_order(case: RNNCase) -> None:
    rows = rnn_parameters(case.spec)
    named = {row.name: w for row, w in zip(rows, case.weights, strict=True)}
    backwards = dict(reversed(named.items()))
    first, second = (rnn(case.x, w, case.spec, **case.options) for w in (case.weights, backwards))
    np.testing.assert_array_equal(first.y, second.y)


@given(case=rnn_cases())
def test_rnn_ignores_steps_past_the_end(case: RNNCase) -> None:
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
def test_rnn_keeps_the_states_when_there_are_no_steps(mode: str) -> None:
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
def test_rnn_accepts_an_empty_batch(shape: tuple[int, int]) -> None:
    spec = rnn_spec("lstm", 3, 4, dtype="float64")
    case = RNNCase(spec, shape[0], (shape[0],) * shape[1], True, 0)
    y, hy, _ = rnn(case.x, case.weights, spec, **case.options)
    assert y.shape == (*shape, 4)
    np.testing.assert_array_equal(hy, case.options["h0"])
    assert rnn_backward(case.x, case.weights, spec, y).dx.shape == (*shape, 3)


def test_rnn_keeps_infinities_in_their_element() -> None:
    spec = rnn_spec("rnn_relu", 2, 2, input_mode="skip", bias="no_bias", dtype="float64")
    weights = [np.diag([1.0, 1.0])]
    x = np.array([[[np.inf, 1.0]]])
    assert rnn(x, weights, spec).y.tolist() == [[[np.inf, 1.0]]]


def test_rnn_keeps_nan_in_its_sequence() -> None:
    case = RNNCase(rnn_spec("lstm", 3, 4, 2, direction="bidirectional", dtype="float64"), 3, (3, 0), True, 0)
    options = case.options
    options["h0"][:, 1] = np.nan
    y, hy, _ = rnn(case.x, case.weights, case.spec, **options)
    assert np.isnan(hy).all((0, 2)).tolist() == [False, True]
    assert not np.isnan(hy[:, 0]).any()
    d = rnn_backward(case.x, case.weights, case.spec, np.ones_like(y), **options)
    assert not any(np.isnan(g).any() for g in (d.dx, d.dh0, d.dc0, *d.dweights))


def test_rnn_applies_masks_between_layers() -> None:
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


def test_rnn_clips_cells_where_they_are_used() -> None:
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


def module_of(torch: Any, spec: RNNSpec) -> Any:
    kinds = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    more = {"nonlinearity": spec.mode[4:]} if spec.mode.startswith("rnn") else {}
    if spec.projection_size:
        more["proj_size"] = spec.projection_size
    return kinds.get(spec.mode, torch.nn.RNN)(
        spec.input_size, spec.hidden_size, spec.num_layers, bias=spec.bias != "no_bias",
        bidirectional=spec.directions == 2, dtype=torch.float64, **more,
    )  # fmt: skip


@pytest.mark.parametrize("bias", ["single_inp_bias", "single_rec_bias"])
@pytest.mark.parametrize("mode", RNN_MODES)
def test_rnn_one_bias_becomes_two_in_torch(mode: str, bias: str) -> None:
    torch = pytest.importorskip("torch")
    case = RNNCase(rnn_spec(mode, 3, 4, 2, bias=bias, dtype="float64"), 3, (3, 3), False, 0)
    module = module_of(torch, case.spec)
    module.load_state_dict({n: torch.from_numpy(a) for n, a in to_torch(case.weights, case.spec).items()})
    y = module(torch.from_numpy(case.x))[0].detach().numpy()
    np.testing.assert_allclose(rnn(case.x, case.weights, case.spec).y, y, rtol=1e-12, atol=1e-13)


def test_rnn_clips_the_first_cells_when_they_are_used() -> None:
    spec = rnn_spec("lstm", 1, 1, clip=(-0.1, 0.1), dtype="float64")
    weights = [np.full(row.shape, 0.5) for row in rnn_parameters(spec)]
    x = np.ones((2, 1, 1))
    clipped, given = (rnn(x, weights, spec, c0=np.full((1, 1, 1), c)) for c in (0.1, 3.0))
    np.testing.assert_array_equal(given.y, clipped.y)
    backward = rnn_backward(x, weights, spec, np.ones((2, 1, 1)), c0=np.full((1, 1, 1), 3.0))
    assert not backward.dc0.any()
