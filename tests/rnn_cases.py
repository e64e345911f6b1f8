"""Recurrent networks with operands, and their properties, which the fakes and the GPU tests check."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import (
    RNN_BIASES,
    RNN_DIRECTIONS,
    RNN_INPUT_MODES,
    RNN_MODES,
    RNNSpec,
    rnn_parameters,
    rnn_spec,
)
from cudnn_ct.shapes.sequences import packed_for_cudnn, rnn_shapes
from tests.layers import FLOATS, compare
from tests.strategies import Place, in_memory_of

# Largest error over the largest element: rounded states are handed on from step to step and layer to layer.
TOLERANCE = {"float16": 2e-2, "bfloat16": 1.6e-1, "float32": 3e-5, "float64": 1e-11}

LAYOUTS = ("sequence_major", "batch_major", "packed")


class RNNCase(NamedTuple):
    """A network, how much it is given, and a seed of the numbers."""

    spec: RNNSpec
    steps: int
    lengths: tuple[int, ...]
    states: bool
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``rnn``."""
        shapes = rnn_shapes(self.spec, (self.steps, len(self.lengths)), len(self.lengths))
        options: dict[str, Any] = {"lengths": self.lengths}
        if self.states:
            options["h0"] = self.random(shapes.h, 1)
            if shapes.c:
                options["c0"] = self.random(shapes.c, 2)
            if shapes.c and self.spec.clip:  # how cuDNN takes a first cell beyond the bounds was not seen
                low, high = self.spec.clip
                inside = np.clip(options["c0"].astype(np.float64), low + 0.05, high - 0.05)
                options["c0"] = inside.astype(options["c0"].dtype)
        return options

    def random(self, shape: tuple[int, ...], salt: int) -> np.ndarray:
        values = np.random.default_rng([self.seed, salt]).standard_normal(shape)
        return values.astype(as_dtype(self.spec.dtype).numpy)

    @property
    def x(self) -> np.ndarray:
        return self.random((self.steps, len(self.lengths), self.spec.input_size), 0)

    @property
    def weights(self) -> list[np.ndarray]:
        return [self.random(row.shape, 10 + i) for i, row in enumerate(rnn_parameters(self.spec))]

    @property
    def tame(self) -> list[np.ndarray]:
        """Weights so small that roundings grow little from step to step."""
        factor = min(0.5, self.spec.hidden_size**-0.5)
        return [(factor * w.astype(np.float64)).astype(w.dtype) for w in self.weights]

    def operands(self, **options: Any) -> tuple[ct.RNN, ct.DeviceArray, ct.DeviceArray]:
        """Return the network, x and w on the device."""
        net = network(self.spec, **options)
        return net, ct.asarray(self.x), net.pack_params(self.tame)


@st.composite
def rnn_specs(draw: st.DrawFn, *, torch: bool = False, dtype: str = "float64", most: int = 4) -> RNNSpec:
    """Draw a network, with ``torch=True`` one that torch has too."""
    mode = draw(st.sampled_from(RNN_MODES))
    hidden = draw(st.integers(1, most))
    input_mode = "linear" if torch else draw(st.sampled_from(RNN_INPUT_MODES))
    clip = None if mode != "lstm" or torch else draw(st.sampled_from([None, (-0.3, 0.4), (0.0, np.inf)]))
    return rnn_spec(
        mode,
        hidden if input_mode == "skip" else draw(st.integers(1, most)),
        hidden,
        draw(st.integers(1, 3)),
        direction=draw(st.sampled_from(RNN_DIRECTIONS)),
        input_mode=input_mode,
        bias=draw(st.sampled_from(("no_bias", "double_bias") if torch else sorted(RNN_BIASES))),
        projection_size=draw(st.integers(0, hidden - 1)) if mode == "lstm" else 0,
        dtype=dtype,
        clip=clip,
    )


@st.composite
def rnn_cases(draw: st.DrawFn, *, least: int = 0, **options: Any) -> RNNCase:
    """Draw a network and sequences of at least ``least`` steps."""
    steps = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(least, steps), min_size=1, max_size=3))
    return RNNCase(
        draw(rnn_specs(**options)), steps, tuple(lengths), draw(st.booleans()), draw(st.integers(0, 99))
    )


# --- properties ------------------------------------------------------------------------------------------


def network(spec: RNNSpec, **options: Any) -> ct.RNN:
    """The network of a spec, in strict arithmetic."""
    fields = spec._asdict()
    for name in ("compute", "math", "algo"):
        del fields[name]
    if spec.dtype == "float32":
        options.setdefault("precision", "float32")
    return ct.RNN(**fields, **options)


@st.composite
def passes(draw: st.DrawFn, dtypes: tuple[str, ...] = FLOATS, **options: Any) -> tuple[RNNCase, str]:
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
    """Data of (T, B, size) in a layout."""
    if layout == "packed":
        return array[active(array, lengths)]
    return array if layout == "sequence_major" else array.swapaxes(0, 1)


def operand(array: np.ndarray, lengths: tuple[int, ...], layout: str) -> np.ndarray:
    """Data of (T, B, size) in a layout, where it is NaN past the end of each sequence."""
    ends = np.arange(len(array))[:, None, None] >= np.array(lengths, int)[:, None]
    return np.ascontiguousarray(laid_out(np.where(ends, np.nan, array).astype(array.dtype), lengths, layout))


def unwritten(arrays: tuple[np.ndarray | None, ...], place: Place) -> tuple[Any, ...]:
    """Memory for results: NaN all over; None for a result that is None."""
    return tuple(None if one is None else place(np.full_like(one, np.nan)) for one in arrays)


def check_passes(case: RNNCase, layout: str, place: Place, padding: float = -2.0, **options: Any) -> None:
    """Forward and both gradients give what the reference gives, and every element is written."""
    spec, lengths, tolerance = case.spec, case.lengths, TOLERANCE[case.spec.dtype]
    net, weights, states = network(spec, **options), case.tame, case.options
    expected = rnn(case.x, weights, spec, padding=padding, **states)
    w, x = place(net.pack_params(weights).numpy()), place(operand(case.x, lengths, layout))
    given = [None if name not in states else place(states[name]) for name in ("h0", "c0")]

    wanted = laid_out(expected.y, lengths, layout), expected.hy, expected.cy
    for training in (False, True):
        out = unwritten(wanted, place)
        done = net.forward(
            *(x, w, *given), lengths=lengths, layout=layout, padding_value=padding, training=training, out=out
        )
        check_results(done[:3], wanted, out, tolerance=tolerance)

    dy, dhy = case.random(expected.y.shape, 3), case.random(expected.hy.shape, 4)
    dcy = None if expected.cy is None else case.random(expected.cy.shape, 5)
    gradients = rnn_backward(case.x, weights, spec, dy, dhy=dhy, dcy=dcy, **states)
    # A gradient is a sum over the steps of what comes in, which may be much more than what is left of it.
    incoming = [np.float64(array) for array in (dy, dhy, dcy) if array is not None]
    terms = sum(float(np.abs(array).max(axis=(1, 2), initial=0).sum()) for array in incoming)
    wanted = laid_out(gradients.dx, lengths, layout), gradients.dh0, gradients.dc0
    out = unwritten(wanted, place)
    after = place(dhy), None if dcy is None else place(dcy)
    back = net.backward_data(place(operand(dy, lengths, layout)), done.reserve, *after, out=out)
    check_results(back, wanted, out, tolerance=tolerance, terms=terms)
    dw = place(np.ones(net.weight_size, case.x.dtype))
    assert in_memory_of(net.backward_weights(done.reserve, out=dw, add=True), dw)
    check_weights(dw, spec, tuple(1 + part for part in gradients.dweights), tolerance)


def check_results(got: Any, wanted: Any, out: Any, **tolerance: Any) -> None:
    for one, want, memory in zip(got, wanted, out, strict=True):
        assert memory is None or in_memory_of(one, memory)
        compare(one, want, **tolerance)


def check_weights(dw: Any, spec: RNNSpec, wanted: tuple[np.ndarray, ...], tolerance: float) -> None:
    """Parts of an array of weights against arrays in the order of the parameters."""
    flat = ct.asarray(dw).numpy()
    assert flat.shape == (sum(row.size for row in rnn_parameters(spec)),)
    scale = max(1.0, *(float(np.abs(part.astype(np.float64)).max(initial=0)) for part in wanted))
    for row, part in zip(rnn_parameters(spec), wanted, strict=True):
        got, want = (array.astype(np.float64) for array in (row.view(flat), part))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale, err_msg=row.name)
