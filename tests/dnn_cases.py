"""Cases for every name of ``cudnn_ct.dnn``, compared with ``reference``, for the fakes and for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, reference
from cudnn_ct._config import config
from cudnn_ct.errors import CudnnWarning
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import rnn_parameters
from tests.layers import Place, compare
from tests.rnn_cases import check_weights
from tests.strategies import in_memory_of

CROSS = {"cross": "cross_correlation", "conv": "convolution"}


def integers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@contextmanager
def flag(name: str, value: Any) -> Iterator[None]:
    """Set a flag within a block."""
    owner, _, last = name.rpartition(".")
    flags = attrgetter(owner)(config)
    before = getattr(flags, last)
    setattr(flags, last, value)
    try:
        yield
    finally:
        setattr(flags, last, before)


def same(got: Any, wanted: Any, tolerance: float | None = None) -> None:
    """Compare a result or a list of results; whole numbers must be equal."""
    if isinstance(wanted, tuple | list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            same(one, other, tolerance)
        return
    exact = wanted is not None and tolerance is None and bool((wanted == np.rint(wanted)).all())
    compare(got, wanted, exact=exact, tolerance=tolerance)


# --- convolutions ------------------------------------------------------------------------------------------

GEOMETRIES: tuple[dict[str, Any], ...] = (
    {},
    {"border_mode": "half", "subsample": (2, 1)},
    {"border_mode": (1, 2), "dilation": (1, 2), "conv_mode": "cross"},
    {"border_mode": 1, "subsample": (1, 2), "num_groups": 2, "conv_mode": "cross"},
    {"border_mode": "full", "direction_hint": "forward!"},
    {"border_mode": "full", "subsample": (2, 2)},
    {"algo": "none", "direction_hint": "bprop weights"},
)


def reference_geometry(geometry: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``reference`` for a geometry."""
    return {
        "padding": geometry.get("border_mode", "valid"),
        "stride": geometry.get("subsample", 1),
        "dilation": geometry.get("dilation", 1),
        "groups": geometry.get("num_groups", 1),
        "mode": CROSS[geometry.get("conv_mode", "conv")],
    }


def images(groups: int = 1, size: tuple[int, ...] = (6, 7)) -> tuple[np.ndarray, np.ndarray]:
    return integers(2, 4, *size), integers(6, 4 // groups, *(3, 2, 2)[: len(size)], seed=1)


def compare_directions(place: Place, suffix: str, x: np.ndarray, w: np.ndarray, **geometry: Any) -> None:
    """Compare convolution and gradients with the reference; sizes are passed as NumPy arrays."""
    known = reference_geometry(geometry)
    geometry = {key: np.array(one) if isinstance(one, tuple) else one for key, one in geometry.items()}
    y = reference.conv(x, w, **known)
    same(getattr(dnn, f"dnn_conv{suffix}")(place(x), place(w), **geometry), y)
    if "direction_hint" not in geometry:
        dy = integers(*y.shape, seed=2)
        dw = getattr(dnn, f"dnn_gradweight{suffix}")(place(x), place(dy), np.array(w.shape), **geometry)
        same(dw, reference.conv_backward_filter(dy, x, w.shape, **known))
        dx = getattr(dnn, f"dnn_gradinput{suffix}")(place(w), place(dy), x.shape, **geometry)
        same(dx, reference.conv_backward_data(dy, w, x.shape, **known))


def case_convolutions(place: Place) -> None:
    for geometry in GEOMETRIES:
        compare_directions(place, "", *images(geometry.get("num_groups", 1)), **geometry)


def case_convolutions_of_volumes(place: Place) -> None:
    for geometry in ({}, {"border_mode": "half", "conv_mode": "cross", "algo": "none"}):
        compare_directions(place, "3d", *images(size=(4, 5, 4)), **geometry)


def case_convolutions_computed_as_gradients(place: Place) -> None:
    for convolve, size in ((dnn.dnn_conv, (6, 7)), (dnn.dnn_conv3d, (4, 5, 4))):
        x, w = images(size=size)
        full = {"border_mode": "full", "dilation": (2, *(1,) * (len(size) - 1))}
        for keywords, what in (
            (full, "images"),
            ({"border_mode": "full", "conv_mode": "cross"}, "images"),
            ({"direction_hint": "bprop weights", "conv_mode": "cross"}, "filters"),
        ):
            with pytest.warns(CudnnWarning, match=f"as a gradient with respect to {what}") as caught:
                y = convolve(place(x), place(w), **keywords)
            assert caught[0].filename == __file__
            same(y, reference.conv(x, w, **reference_geometry(keywords)))


def operations() -> Iterator[tuple[str, Any, tuple[np.ndarray, ...], np.ndarray]]:
    """Yield the name, the descriptor, the operands and the expected result of each operation."""
    for size, suffix in (((6, 7), ""), ((4, 5, 4), "3d")):
        x, w = images(size=size)
        ones = (1,) * len(size)
        desc = dnn.GpuDnnConvDesc("half", ones, ones, "cross")(w.shape)
        y = reference.conv(x, w, padding="half")
        dy = integers(*y.shape, seed=2)
        yield f"GpuDnnConv{suffix}", desc, (x, w), y
        dw = reference.conv_backward_filter(dy, x, w.shape, padding="half")
        yield f"GpuDnnConv{suffix}GradW", desc, (x, dy), dw
        dx = reference.conv_backward_data(dy, w, x.shape, padding="half")
        yield f"GpuDnnConv{suffix}GradI", desc, (w, dy), dx


def case_conv_operations_scale_and_add(place: Place) -> None:
    for name, desc, operands, wanted in operations():
        make, placed = getattr(dnn, name), [place(array) for array in operands]
        before = integers(*wanted.shape, seed=7)
        output = place(before)
        same(make(algo="none")(*placed, wanted.shape, desc), wanted)
        same(make(algo="none")(*placed, np.array(wanted.shape, np.uint16), desc), wanted)
        same(make(inplace=False)(*placed, output, desc, 2, -1), 2 * wanted - before)
        same(make()(*placed, output, desc), wanted)
        same(output, before)
        result = make(inplace=True)(*placed, output, desc, 0.5, 1)
        assert in_memory_of(result, output)
        same(output, wanted / 2 + before)


def case_conv_operation_accepts_none_groups_and_empty_operands(place: Place) -> None:
    for own, described in ((1, 1), (2, 1), (1, 2), (2, 2)):
        x, w = images(max(own, described))
        desc = dnn.GpuDnnConvDesc("valid", conv_mode="cross", num_groups=described)
        got = dnn.GpuDnnConv(num_groups=own)(place(x), place(w), None, desc)
        same(got, reference.conv(x, w, groups=max(own, described)))
    x, w, before = integers(2, 0, 5, 5), integers(3, 0, 2, 2), integers(2, 3, 4, 4, seed=7)
    same(dnn.GpuDnnConv()(place(x), place(w), place(before), dnn.GpuDnnConvDesc("valid"), 1, 2), 2 * before)


# --- pooling -----------------------------------------------------------------------------------------------


def case_pooling(place: Place) -> None:
    x = np.random.default_rng(0).permutation(2 * 2 * 6 * 7).reshape(2, 2, 6, 7).astype(np.float64)
    geometries: tuple[tuple[Any, ...], ...] = (((2, 3), None, None), ((3, 3), (2, 2), (1, 1)))
    for mode in ("max", "average", "average_exc_pad", "sum"):
        for ws, stride, pad in geometries:
            keywords = {"window": ws, "stride": stride or 1, "padding": pad or 0, "mode": mode}
            y = reference.pool(x, **keywords)
            same(dnn.dnn_pool(place(x), ws, stride, mode, pad), y)
            same(dnn.GpuDnnPool(mode)(place(x), ws, stride, pad), y)
            dy = floats(*y.shape, seed=1)
            dx = reference.pool_backward(dy, x, y, **keywords)
            same(dnn.GpuDnnPoolGrad(mode)(place(x), place(y), place(dy), ws, stride, pad), dx)
        sizes = [np.array(one) for one in (ws, stride, pad)]
        same(dnn.dnn_pool(place(x), *sizes[:2], mode, sizes[2]), y)
        desc = dnn.GpuDnnPoolDesc(sizes[0], sizes[1], mode, sizes[2])()
        sizes[0][:] = 1  # the descriptor has a copy
        same(dnn.GpuDnnPool()(place(x), desc), y)
        same(dnn.GpuDnnPoolGrad()(place(x), place(y), inp_grad=place(dy), ws=desc), dx)


# --- batch normalisation -----------------------------------------------------------------------------------

MODES = {"per-activation": "per_activation", "spatial": "spatial"}


def batch(mode: str) -> tuple[np.ndarray, ...]:
    """Return x, scale, bias, mean and variance."""
    own = (1, 3, 2, 3) if mode == "per-activation" else (1, 3, 1, 1)
    scale, bias, mean, root = (floats(*own, seed=seed) for seed in (1, 2, 3, 4))
    return floats(4, 3, 2, 3), scale, bias, mean, 1 + root**2


def case_batch_norm_training(place: Place) -> None:
    for mode, word in MODES.items():
        x, gamma, beta, _, _ = batch(mode)
        placed = [place(array) for array in (x, gamma, beta)]
        wanted = reference.batch_norm_training(x, gamma, beta, mode=word, epsilon=1e-4)
        given = () if mode == "per-activation" else (mode,)
        got = dnn.dnn_batch_normalization_train(*placed, *given)
        assert type(got) is tuple
        same(got, wanted)
        same(dnn.GpuDnnBatchNorm(mode, epsilon=1e-4)(*placed), wanted)
        operands = (floats(*x.shape, seed=9), x, gamma, wanted.mean, wanted.invstd)
        gradients = reference.batch_norm_backward(*operands, mode=word, epsilon=1e-4)
        dy, x, gamma, mean, invstd = map(place, operands)
        same(dnn.GpuDnnBatchNormGrad(mode)(x, dy, gamma, mean, invstd), gradients[:3])


def case_batch_norm_running_statistics(place: Place) -> None:
    arrays = batch("spatial")
    x, gamma, beta, mean, var = arrays
    new = {"running_mean": mean.copy(), "running_var": var.copy()}
    wanted = reference.batch_norm_training(x, gamma, beta, epsilon=0.01, momentum=0.25, **new)
    placed = [place(array) for array in arrays]
    got = dnn.dnn_batch_normalization_train(*placed[:3], "spatial", 0.01, 0.25, *placed[3:])
    same(got, (*wanted, *new.values()))
    same(placed, arrays)
    first = dnn.GpuDnnBatchNorm("spatial", epsilon=0.5)(*placed[:3], 0.01)
    same(first, wanted)  # the epsilon of the call wins
    made = {"epsilon": 0.01, "running_average_factor": 0.25}
    normalise = dnn.GpuDnnBatchNorm("spatial", True, True, True, True, **made)
    got = normalise(*placed[:3], running_mean=placed[3], running_var=placed[4])
    assert in_memory_of(got[0], placed[0])
    assert got[3] is placed[3]
    assert got[4] is placed[4]
    same(got, (*wanted, *new.values()))


def case_batch_norm_inference(place: Place) -> None:
    for mode, word in MODES.items():
        arrays = batch(mode)
        wanted = reference.batch_norm_inference(*arrays, mode=word, epsilon=1e-4)
        placed = [place(array) for array in arrays]
        same(dnn.dnn_batch_normalization_test(*placed, mode), wanted)
        normalise = dnn.GpuDnnBatchNormInference(mode, inplace=True, epsilon=1e-4)
        assert in_memory_of(normalise(*placed), placed[0])
        same(placed[0], wanted)


# --- softmax, reduction, dropout ---------------------------------------------------------------------------


def case_softmax(place: Place) -> None:
    x, dy = floats(2, 3, 4, 2), floats(2, 3, 4, 2, seed=1)
    for algo, mode in (("fast", "instance"), ("accurate", "channel"), ("log", "channel")):
        y = reference.softmax(x, algo=algo, mode=mode)
        same(dnn.GpuDnnSoftmax(algo, mode)(place(x)), y)
        dx = dnn.GpuDnnSoftmaxGrad(algo, mode, tensor_format="bc01")(place(dy), place(y))
        same(dx, reference.softmax_backward(dy, y, algo=algo, mode=mode))


def case_reduction(place: Place) -> None:
    x = floats(3, 4, 5)
    words = {"minimum": "min", "maximum": "max", "absmax": "amax", "avg": "average"}
    for op in ("add", "mul", "minimum", "maximum", "absmax", "avg", "norm1", "norm2"):
        for axes, given in ((None, None), ((0, 2), np.array([0, 2])), (1, 1)):
            wanted = reference.reduce(x, op=words.get(op, op), axis=axes)
            same(dnn.GpuDnnReduction(op, given)(place(x)), wanted)
    indexed = dnn.GpuDnnReduction("maximum", [1, 2], "float64", "float64", True)(place(x))
    same(indexed, reference.reduce_with_indices(x, op="max", axis=(1, 2)))
    x = integers(3, 4)
    half = dnn.GpuDnnReduction("add", 0, "float32", "float16")(place(x))
    same(half, x.sum(0).astype(np.float16))
    for length in (2049, 70_000):  # float16 rounds the first and cannot represent the second
        total = dnn.GpuDnnReduction("add", None, None, "float32")(place(np.ones(length, np.float16)))
        same(total, np.array(length, np.float32))


def case_dropout(place: Place) -> None:
    x = np.full((40, 30), 3.0, np.float32)
    y, desc, odesc, states = dnn.dropout(place(x), 0.25)
    assert states is desc
    assert desc.seed == 4242
    kept = ct.asarray(y).numpy() != 0
    assert 0.5 < kept.mean() < 0.95
    same(y, np.where(kept, np.float32(4), np.float32(0)))
    same(ct.dropout_backward(place(x), odesc, desc), y.numpy())
    same(dnn.dropout(place(x), 0.25).y, y.numpy())
    same(dnn.dropout(place(x)).y, x)
    operand = place(x)
    result, state, mask = dnn.GpuDnnDropoutOp(inplace=True)(operand, desc, states)
    assert in_memory_of(result, operand)
    assert state is desc
    same(ct.dropout_backward(place(x), mask, state), ct.asarray(operand).numpy())
    with pytest.raises(ValueError, match="state is not the descriptor: got"):
        dnn.GpuDnnDropoutOp()(operand, desc, ct.DropoutState(0.5))


# --- spatial transformers ----------------------------------------------------------------------------------


def case_spatial_transformer(place: Place) -> None:
    x, theta = floats(2, 3, 5, 6), np.array([[[0.9, 0.1, 0], [-0.1, 0.8, 0.1]]] * 2)
    near = partial(same, tolerance=1e-10)
    y = reference.spatial_transformer(x, theta, scale_height=0.8, scale_width=1.5)
    assert y.shape == (2, 3, 4, 9)
    near(dnn.dnn_spatialtf(place(x), place(theta), 1.5, 0.8), y)
    grid = dnn.GpuDnnTransformerGrid()(place(theta), (2, 3, 4, 9))
    near(grid, reference.affine_grid(theta, (2, 4, 9)))
    near(dnn.GpuDnnTransformerSampler()(place(x), grid), y)
    points, dy = np.random.default_rng(2).uniform(-1.1, 1.1, (2, 4, 3, 2)), floats(2, 3, 4, 3, seed=1)
    gradients = reference.grid_sample_backward(dy, x, points)
    near(dnn.GpuDnnTransformerGradI()(place(x), place(points), place(dy)), gradients)
    dtheta = dnn.GpuDnnTransformerGradT()(place(gradients.dgrid))
    near(dtheta, reference.affine_grid_backward(gradients.dgrid))


# --- recurrent networks ------------------------------------------------------------------------------------

COUNTS = {"rnn_relu": 4, "rnn_tanh": 4, "gru": 12, "lstm": 16}


class Network:
    """A block with operands on the host, and the results of the reference."""

    def __init__(self, mode: str, direction: str = "unidirectional", **options: Any) -> None:
        self.inputs = 4 if options.get("input_mode") == "skip" else 5
        self.block = dnn.RNNBlock("float64", 4, 2, mode, direction_mode=direction, **options)
        self.spec = self.block.network(self.inputs).spec
        self.w = 0.4 * floats(self.block.get_param_size([2, self.inputs]), seed=1)
        self.weights = [row.view(self.w) for row in rnn_parameters(self.spec)]
        self.x = floats(3, 2, self.inputs)
        self.hx = floats(2 * self.spec.directions, 2, 4, seed=2)
        self.cx = floats(*self.hx.shape, seed=3) if mode == "lstm" else None
        self.operands = (self.w, self.x, self.hx) if self.cx is None else (self.w, self.x, self.hx, self.cx)
        results = rnn(self.x, self.weights, self.spec, h0=self.hx, c0=self.cx)
        self.results = [one for one in results if one is not None]
        self.incoming = [floats(*one.shape, seed=4 + i) for i, one in enumerate(self.results)]

    def gradients(self, dy: np.ndarray, dhy: Any = None, dcy: Any = None) -> Any:
        states = {"h0": self.hx, "c0": self.cx}
        return rnn_backward(self.x, self.weights, self.spec, dy, dhy=dhy, dcy=dcy, **states)

    def check_gradients(self, dw: Any, others: Any, wanted: Any) -> None:
        check_weights(ct.asarray(dw), self.spec, wanted.dweights, 1e-10)
        for got, other in zip(others, (wanted.dx, wanted.dh0, wanted.dc0), strict=False):
            same(got, other, 1e-10)


def case_rnn_block(place: Place) -> None:
    for mode in COUNTS:
        for direction in ("unidirectional", "bidirectional"):
            net = Network(mode, direction)
            same(net.block.apply(*map(place, net.operands)), net.results, 1e-10)


def case_rnn_operations(place: Place) -> None:
    for mode, uses_states in (("lstm", True), ("lstm", False), ("gru", True), ("rnn_relu", False)):
        net = Network(mode)
        w, x, hx, *cells = map(place, net.operands)
        dy, dhy, *dcells = map(place, net.incoming)
        desc, cx, dcy = net.block.desc, *(cells or [None]), *(dcells or [None])
        reserve, y, *others = dnn.GpuDnnRNNOp(mode, "Unidirectional")(desc, w, x, hx, *cells)
        same([y, *others], net.results, 1e-10)
        inputs = dnn.GpuDnnRNNGradInputs(mode, uses_states, uses_states)
        reserve, *got = inputs(desc, x, y, dy, dhy, dcy, w, hx, cx, reserve)
        assert len(got) == 2 + len(cells)
        dw = dnn.GpuDnnRNNGradWeights()(desc, x, hx, y, reserve, w)
        net.check_gradients(dw, got, net.gradients(*net.incoming[: 3 if uses_states else 1]))
        with pytest.raises(ValueError, match="reserve"):  # a reserve can be used once
            inputs(desc, x, y, dy, dhy, dcy, w, hx, cx, reserve)


def case_rnn_split_params(place: Place) -> None:
    for mode, count in COUNTS.items():
        net = Network(mode, "bidirectional")
        w, wanted = ct.asarray(net.w), iter(net.weights)
        for pseudo in range(4):
            parts = net.block.split_params(w, pseudo, [2, net.inputs])
            assert len(parts) == count
            for part in parts:
                same(part, next(wanted).T)
                assert part.spec.strides == ((1, part.shape[0]) if part.ndim == 2 else (1,))
                part.fill(0.0)
        assert next(wanted, None) is None
        assert not w.numpy().any()


def case_rnn_split_params_of_skip_input(place: Place) -> None:
    net = Network("gru", input_mode="skip")
    parts = net.block.split_params(place(net.w), 0, [2, 4])
    assert [part is None for part in parts] == [True, False] * 3 + [False] * 6
    same(net.block.apply(*map(place, net.operands)), net.results, 1e-10)


# --- availability ------------------------------------------------------------------------------------------


def case_availability(place: Place) -> None:
    assert dnn.version() == ct.version()
    assert dnn.dnn_present()
    assert dnn.dnn_present.msg is None
    assert dnn.dnn_available("dev0")
    assert dnn.dnn_available.msg is None
    assert not dnn.dnn_available(10_000)
    assert "device 10000 does not exist" in str(dnn.dnn_available.msg)
    with pytest.raises(ValueError, match="context_name is not a device"):
        dnn.dnn_available("somewhere")


ROWS: dict[str, Callable[[Place], None]] = {
    name.removeprefix("case_"): check for name, check in globals().items() if name.startswith("case_")
}
