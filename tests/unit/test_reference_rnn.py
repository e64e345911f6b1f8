"""Recurrent networks of the reference: padding, states and clipping; loops are in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import RNN_MODES, rnn_parameters, rnn_spec
from tests.rnn_cases import RNNCase, rnn_cases


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
    rows = rnn_parameters(case.spec)
    by_name = {row.name: w for row, w in zip(rows, case.weights, strict=True)}
    y, hy, cy = rnn(case.x, dict(reversed(by_name.items())), case.spec, **options, padding=-5)
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
    along = case.random(case.x.shape, 4)
    up, down = (
        rnn(case.x + step * along, case.weights, case.spec, lengths=case.lengths, masks=masks).y
        for step in (1e-5, -1e-5)
    )
    np.testing.assert_allclose((d.dx * along).sum(), ((up - down) * dy).sum() / 2e-5, atol=1e-7)


def test_rnn_clips_the_first_cells_when_they_are_used() -> None:
    spec = rnn_spec("lstm", 1, 1, clip=(-0.1, 0.1), dtype="float64")
    weights = [np.full(row.shape, 0.5) for row in rnn_parameters(spec)]
    x = np.ones((2, 1, 1))
    clipped, given = (rnn(x, weights, spec, c0=np.full((1, 1, 1), c)) for c in (0.1, 3.0))
    np.testing.assert_array_equal(given.y, clipped.y)
    backward = rnn_backward(x, weights, spec, np.ones((2, 1, 1)), c0=np.full((1, 1, 1), 3.0))
    assert not backward.dc0.any()
