"""What must hold of recurrent networks wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import RNNSpec
from cudnn_ct.shapes.rnn_params import rnn_parameters
from cudnn_ct.shapes.sequences import packed_for_cudnn
from tests.layers import compare
from tests.properties import in_memory_of
from tests.rnn_cases import RNNCase, rnn_cases

# Largest error over the largest element: rounded states are handed on from step to step and layer to layer.
TOLERANCE = {"float16": 2e-2, "bfloat16": 1.6e-1, "float32": 3e-5, "float64": 1e-11}

DTYPES = ("float32", "float64", "float16", "bfloat16")
LAYOUTS = ("sequence_major", "batch_major", "packed")

Place = Callable[[np.ndarray], Any]


def network(spec: RNNSpec, **options: Any) -> ct.RNN:
    """The network of a spec, in strict arithmetic."""
    fields = spec._asdict()
    for name in ("compute", "math", "algo"):
        del fields[name]
    if spec.dtype == "float32":
        options.setdefault("precision", "float32")
    return ct.RNN(**fields, **options)


@st.composite
def passes(draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES, **options: Any) -> tuple[RNNCase, str]:
    """A case, and a layout that cuDNN takes it in. In half precision no slope depends on a rounding."""
    dtype = draw(st.sampled_from(dtypes))
    case = draw(rnn_cases(dtype=dtype, **options))
    if dtype in ("float16", "bfloat16"):
        mode = "rnn_tanh" if case.spec.mode == "rnn_relu" else case.spec.mode
        case = case._replace(spec=case.spec._replace(mode=mode, clip=None, compute="float32"))
    if draw(st.booleans()):
        case = case._replace(lengths=tuple(sorted(case.lengths, reverse=True)))
    layout = draw(st.sampled_from(LAYOUTS if packed_for_cudnn(case.lengths) else LAYOUTS[:2]))
    return case, layout


def active(array: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Return which time steps of (T, B, size) exist."""
    mask: np.ndarray = np.arange(len(array))[:, None] < np.array(lengths, int)
    return mask


def laid_out(array: np.ndarray, lengths: tuple[int, ...], layout: str) -> np.ndarray:
    """Data of (T, B, size) in a layout, where it is NaN past the end of each sequence."""
    if layout == "packed":
        return array[active(array, lengths)]
    array = array.copy()
    array[~active(array, lengths)] = np.nan
    return np.ascontiguousarray(array if layout == "sequence_major" else array.swapaxes(0, 1))


def as_it_was(array: np.ndarray, lengths: tuple[int, ...], layout: str) -> np.ndarray:
    """A result of (T, B, size) in a layout."""
    if layout == "packed":
        return array[active(array, lengths)]
    return array if layout == "sequence_major" else array.swapaxes(0, 1)


def beginning_at(offset: int) -> Place:
    """Arrays that begin some elements into memory of their own."""

    def place(array: np.ndarray) -> ct.DeviceArray:
        memory = ct.asarray(np.concatenate([np.zeros(offset, array.dtype), array.reshape(-1)]))
        spec = ct.TensorSpec.packed(array.shape, memory.spec.dtype)
        start = memory.pointer + offset * memory.itemsize
        return ct.DeviceArray(spec, start, memory, memory.writer, memory.home)

    return place


def unwritten(array: np.ndarray, place: Place) -> Any:
    """Somewhere for a result: NaN all over."""
    return place(np.full(array.shape, np.nan).astype(array.dtype))


def check_passes(case: RNNCase, layout: str, place: Place, padding: float = -2.0, **options: Any) -> ct.RNN:
    """Forward and both gradients give what the reference gives, and every element is written."""
    spec, lengths, tolerance = case.spec, case.lengths, TOLERANCE[case.spec.dtype]
    net, weights, states = network(spec, **options), case.tame, case.options
    del states["lengths"]
    expected = rnn(case.x, weights, spec, padding=padding, **case.options)
    w = place(net.pack_params(weights).numpy())
    x = place(laid_out(case.x, lengths, layout))
    given = [None if name not in states else place(states[name]) for name in ("h0", "c0")]
    told = {"lengths": lengths, "layout": layout, "padding_value": padding}

    y = as_it_was(expected.y, lengths, layout)
    for training in (False, True):
        out = (unwritten(y, place), unwritten(expected.hy, place))
        out += (None if expected.cy is None else unwritten(expected.cy, place),)
        done = net.forward(x, w, *given, **told, training=training, out=out)
        assert in_memory_of(done.y, out[0])
        assert in_memory_of(done.hy, out[1])
        for got, wanted in zip(done[:3], (y, expected.hy, expected.cy), strict=True):
            compare(got, wanted, tolerance=tolerance)

    dy, dhy = case.random(expected.y.shape, 3), case.random(expected.hy.shape, 4)
    dcy = None if expected.cy is None else case.random(expected.cy.shape, 5)
    wanted = rnn_backward(case.x, weights, spec, dy, dhy=dhy, dcy=dcy, **case.options)
    dx = as_it_was(wanted.dx, lengths, layout)
    out = (unwritten(dx, place), unwritten(wanted.dh0, place))
    out += (None if wanted.dc0 is None else unwritten(wanted.dc0, place),)
    back = net.backward_data(
        place(laid_out(dy, lengths, layout)),
        done.reserve,
        place(dhy),
        None if dcy is None else place(dcy),
        out=out,
    )
    # A gradient is a sum over the steps of what comes in, which may be much more than what is left of it.
    incoming = [dy, dhy] if dcy is None else [dy, dhy, dcy]
    terms = sum(float(np.abs(a.astype(np.float64)).max(axis=(1, 2), initial=0).sum()) for a in incoming)
    for got, want in zip(back, (dx, wanted.dh0, wanted.dc0), strict=True):
        compare(got, want, tolerance=tolerance, terms=terms)
    dw = place(np.ones(net.weight_size, case.x.dtype))
    assert in_memory_of(net.backward_weights(done.reserve, out=dw, add=True), dw)
    check_weights(dw, spec, tuple(1 + part for part in wanted.dweights), tolerance)
    return net


def check_weights(dw: Any, spec: RNNSpec, wanted: tuple[np.ndarray, ...], tolerance: float) -> None:
    """Parts of an array of weights against arrays in the order of the parameters."""
    flat = ct.asarray(dw).numpy()
    assert flat.shape == (sum(row.size for row in rnn_parameters(spec)),)
    scale = max(1.0, *(float(np.abs(part.astype(np.float64)).max(initial=0)) for part in wanted))
    for row, part in zip(rnn_parameters(spec), wanted, strict=True):
        got, want = (array.astype(np.float64) for array in (row.view(flat), part))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale, err_msg=row.name)
