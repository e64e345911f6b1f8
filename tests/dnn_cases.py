"""Cases for every name of ``cudnn_ct.dnn``, compared with ``reference``, for the fakes and for a GPU."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, reference
from cudnn_ct._config import config
from cudnn_ct.errors import CudnnWarning
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn_params import rnn_offsets, rnn_parameters
from tests.layers import Place, compare
from tests.properties import in_memory_of
from tests.rnn_properties import check_weights

Check = Callable[[Place], None]

ROWS: dict[str, Check] = {}

CROSS = {"cross": "cross_correlation", "conv": "convolution"}


def row(name: str) -> Callable[[Check], Check]:
    """Register a check under a name."""

    def register(check: Check) -> Check:
        assert name not in ROWS
        ROWS[name] = check
        return check

    return register


def integers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def floats(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@contextmanager
def flag(name: str, value: Any) -> Iterator[None]:
    """Set a flag within a block."""
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)


def same(got: Any, wanted: np.ndarray, exact: bool = True) -> None:
    compare(got, wanted, exact=exact)


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


@row("dnn_conv, dnn_gradweight, dnn_gradinput equal the reference for each kind of border, stride and mode")
def _(place: Place) -> None:
    for geometry in GEOMETRIES:
        x, w = images(geometry.get("num_groups", 1))
        known = reference_geometry(geometry)
        y = reference.conv(x, w, **known)
        same(dnn.dnn_conv(place(x), place(w), **geometry), y)
        if "direction_hint" in geometry:
            continue
        dy = integers(*y.shape, seed=2)
        dw = dnn.dnn_gradweight(place(x), place(dy), w.shape, **geometry)
        same(dw, reference.conv_backward_filter(dy, x, w.shape, **known))
        dx = dnn.dnn_gradinput(place(w), place(dy), x.shape, **geometry)
        same(dx, reference.conv_backward_data(dy, w, x.shape, **known))


@row("dnn_conv with border_mode='full' warns and computes the gradient with respect to images")
def _(place: Place) -> None:
    x, w = images()
    for mode in CROSS:
        for dilation in ((1, 1), (2, 1)):
            geometry = {"border_mode": "full", "conv_mode": mode, "dilation": dilation}
            with pytest.warns(CudnnWarning, match="as a gradient with respect to images") as caught:
                y = dnn.dnn_conv(place(x), place(w), **geometry)
            assert caught[0].filename == __file__
            same(y, reference.conv(x, w, **reference_geometry(geometry)))


@row("dnn_conv with 'bprop weights' warns and computes the gradient with respect to filters")
def _(place: Place) -> None:
    x, w = images()
    for mode in CROSS:
        with pytest.warns(CudnnWarning, match="as a gradient with respect to filters"):
            y = dnn.dnn_conv(place(x), place(w), conv_mode=mode, direction_hint="bprop weights")
        same(y, reference.conv(x, w, mode=CROSS[mode]))


@row("dnn_conv as a gradient uses the flag of the gradient and rejects float16 arithmetic")
def _(place: Place) -> None:
    x, w = images()
    keywords = {"border_mode": "full", "conv_mode": "cross"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CudnnWarning)
        with flag("dnn__conv__algo_fwd", "large"), flag("dnn__conv__algo_bwd_data", "deterministic"):
            y = dnn.dnn_conv(place(x), place(w), **keywords)
        same(y, reference.conv(x, w, padding="full"))
        halves = place(x.astype(np.float16)), place(w.astype(np.float16))
        for precision in ("float16", "as_input"):
            with pytest.raises(TypeError, match="Float16 precision is disabled for cuDNN backward"):
                dnn.dnn_conv(*halves, **keywords, precision=precision)


@row("dnn_conv, dnn_conv3d accept workmem with a warning")
def _(place: Place) -> None:
    for convolve, size in ((dnn.dnn_conv, (6, 7)), (dnn.dnn_conv3d, (4, 5, 4))):
        x, w = images(size=size)
        with pytest.warns(DeprecationWarning, match="workmem is deprecated; write algo='none'") as caught:
            y = convolve(place(x), place(w), workmem="none")
        assert caught[0].filename == __file__
        same(y, reference.conv(x, w, mode="convolution"))


@row("dnn_conv rejects integers, other numbers of channels and unknown names")
def _(place: Place) -> None:
    x, w = images()
    placed = place(x), place(w)
    with pytest.raises(TypeError, match="cuDNN convolution only works on real numbers, not int32"):
        dnn.dnn_conv(place(x.astype(np.int32)), place(w.astype(np.int32)))
    keywords: dict[str, Any]
    for keywords in ({}, {"direction_hint": "bprop weights"}, {"border_mode": "full"}):
        with pytest.raises(ValueError, match="x has 4 channels; w expects 3"):
            dnn.dnn_conv(placed[0], place(integers(6, 3, 3, 2)), **keywords)
    for keywords, message in (
        ({"algo": "quick"}, "algo is unknown: got 'quick'"),
        ({"algo": "deterministic"}, "'deterministic' is not for forward"),
        ({"border_mode": "same"}, "padding must be one of valid"),
        ({"precision": "nothing"}, "precision must be one of as_input_f32"),
    ):
        with pytest.raises(ValueError, match=message):
            dnn.dnn_conv(*placed, **keywords)


@row("dnn_conv and dnn_conv3d use the flags of algorithm and precision")
def _(place: Place) -> None:
    with flag("dnn__conv__algo_fwd", "fft"), pytest.raises(ValueError, match="can't be used for 3d"):
        dnn.dnn_conv3d(*(place(array) for array in images(size=(4, 4, 4))))
    rejected = pytest.raises(ValueError, match="precision='float16' is for")
    with flag("dnn__conv__precision", "float16"), rejected:
        dnn.dnn_conv(*(place(array) for array in images()))


@row("dnn_conv3d equals the reference, also as a gradient, and rejects algorithms without volumes")
def _(place: Place) -> None:
    x, w = images(size=(4, 5, 4))
    placed = place(x), place(w)
    y = dnn.dnn_conv3d(*placed, border_mode="half", conv_mode="cross", algo="none")
    same(y, reference.conv(x, w, padding="half"))
    with pytest.warns(CudnnWarning, match="with respect to images"):
        same(dnn.dnn_conv3d(*placed, "full"), reference.conv(x, w, padding="full", mode="convolution"))
    with pytest.warns(CudnnWarning, match="with respect to filters"):
        y = dnn.dnn_conv3d(*placed, direction_hint="bprop weights")
    same(y, reference.conv(x, w, mode="convolution"))
    for algo in ("large", "fft", "winograd", "winograd_non_fused", "deterministic"):
        with pytest.raises(ValueError, match=f"convolution algo {algo} can't be used for 3d convolutions"):
            dnn.dnn_conv3d(*placed, algo=algo)


@row("dnn_gradweight, dnn_gradinput reject float16 arithmetic and algorithms of another direction")
def _(place: Place) -> None:
    x, w = images()
    dy = reference.conv(x, w)
    for dtype, precision in (("float16", "as_input"), ("float32", "float16")):
        halves = [place(array.astype(dtype)) for array in (x, w, dy)]
        with pytest.raises(TypeError, match="Float16 precision is disabled"):
            dnn.dnn_gradweight(halves[0], halves[2], w.shape, precision=precision)
        with pytest.raises(TypeError, match="Float16 precision is disabled"):
            dnn.dnn_gradinput(halves[1], halves[2], x.shape, precision=precision)
    with pytest.raises(ValueError, match="'small' is not for backward_data"):
        dnn.dnn_gradinput(place(w), place(dy), x.shape, algo="small")


@row("dnn_gradweight3d, dnn_gradinput3d equal the reference and reject algorithms without volumes")
def _(place: Place) -> None:
    x, w = images(size=(4, 5, 4))
    dy = integers(*reference.conv(x, w, mode="convolution").shape, seed=2)
    dw = dnn.dnn_gradweight3d(place(x), place(dy), w.shape)
    same(dw, reference.conv_backward_filter(dy, x, w.shape, mode="convolution"))
    dx = dnn.dnn_gradinput3d(place(w), place(dy), x.shape)
    same(dx, reference.conv_backward_data(dy, w, x.shape, mode="convolution"))
    with pytest.raises(ValueError, match="algo deterministic can't be used for 3d"):
        dnn.dnn_gradweight3d(place(x), place(dy), w.shape, algo="deterministic")
    with pytest.raises(ValueError, match="algo winograd can't be used for 3d"):
        dnn.dnn_gradinput3d(place(w), place(dy), x.shape, algo="winograd")


def operations() -> Iterator[tuple[str, Any, tuple[np.ndarray, ...], np.ndarray]]:
    """Yield the name, the descriptor, the operands and the expected result of each operation."""
    for size, suffix in (((6, 7), ""), ((4, 5, 4), "3d")):
        x, w = images(size=size)
        ones = (1,) * len(size)
        desc = dnn.GpuDnnConvDesc("half", ones, ones, "cross")(w.shape)
        dy = integers(*reference.conv(x, w, padding="half").shape, seed=2)
        yield f"GpuDnnConv{suffix}", desc, (x, w), reference.conv(x, w, padding="half")
        dw = reference.conv_backward_filter(dy, x, w.shape, padding="half")
        yield f"GpuDnnConv{suffix}GradW", desc, (x, dy), dw
        dx = reference.conv_backward_data(dy, w, x.shape, padding="half")
        yield f"GpuDnnConv{suffix}GradI", desc, (w, dy), dx


@row("GpuDnnConv and its gradients return alpha * result + beta * output, in a copy or in place")
def _(place: Place) -> None:
    for name, desc, operands, wanted in operations():
        placed = [place(array) for array in operands]
        before = integers(*wanted.shape, seed=7)
        same(getattr(dnn, name)(algo="none")(*placed, wanted.shape, desc), wanted)
        output = place(before)
        result = getattr(dnn, name)(inplace=False)(*placed, output, desc, 2, -1)
        same(result, 2 * wanted - before)
        same(output, before)
        same(getattr(dnn, name)()(*placed, output, desc), wanted)
        same(output, before)
        result = getattr(dnn, name)(inplace=True)(*placed, output, desc, 0.5, 1)
        assert in_memory_of(result, output)
        same(output, wanted / 2 + before)


@row("GpuDnnConv accepts None as output and rejects an output of another shape")
def _(place: Place) -> None:
    x, w = images()
    desc = dnn.GpuDnnConvDesc("valid", conv_mode="cross")
    same(dnn.GpuDnnConv()(place(x), place(w), None, desc), reference.conv(x, w))
    with pytest.raises(ValueError, match=r"impossible convolution output dim: expected \(2, 6, 4, 6\) but"):
        dnn.GpuDnnConv()(place(x), place(w), (2, 6, 4, 5), desc)
    with pytest.raises(ValueError, match="beta"):
        dnn.GpuDnnConv()(place(x), place(w), None, desc, 1, 1)


@row("GpuDnnConv uses the groups of the operation or of the descriptor")
def _(place: Place) -> None:
    x, w = images(2)
    for own, described in ((2, 1), (1, 2), (2, 2)):
        desc = dnn.GpuDnnConvDesc("valid", conv_mode="cross", num_groups=described)
        same(dnn.GpuDnnConv(num_groups=own)(place(x), place(w), None, desc), reference.conv(x, w, groups=2))
    with pytest.raises(ValueError, match="num_groups does not match desc: got 4, expected 1 or 2"):
        dnn.GpuDnnConv(num_groups=4)(place(x), place(w), None, desc)


@row("GpuDnnConv returns beta * output for empty operands")
def _(place: Place) -> None:
    x, w = integers(2, 0, 5, 5), integers(3, 0, 2, 2)
    desc, before = dnn.GpuDnnConvDesc("valid"), integers(2, 3, 4, 4, seed=7)
    same(dnn.GpuDnnConv()(place(x), place(w), place(before), desc, 1, 2), 2 * before)


# --- pooling -----------------------------------------------------------------------------------------------

POOLINGS = (
    ((2, 3), {}),
    ((3, 3), {"stride": (2, 2), "pad": (1, 1)}),
    ((2, 2), {"stride": (2, 1)}),
)


def pooled(ws: Any, geometry: dict[str, Any]) -> dict[str, Any]:
    return {"window": ws, "stride": geometry.get("stride", 1), "padding": geometry.get("pad", 0)}


@row("dnn_pool, GpuDnnPool, GpuDnnPoolGrad equal the reference, with a default stride of 1")
def _(place: Place) -> None:
    x = np.random.default_rng(0).permutation(2 * 2 * 6 * 7).reshape(2, 2, 6, 7).astype(np.float64)
    for mode in ("max", "average", "average_inc_pad", "average_exc_pad", "sum", "max_deterministic"):
        for ws, geometry in POOLINGS:
            keywords = {**pooled(ws, geometry), "mode": mode}
            y = reference.pool(x, **keywords)
            same(dnn.dnn_pool(place(x), ws, mode=mode, **geometry), y, exact=False)
            same(dnn.GpuDnnPool(mode)(place(x), ws, **geometry), y, exact=False)
            dy = floats(*y.shape, seed=1)
            dx = dnn.GpuDnnPoolGrad(mode)(place(x), place(y), place(dy), ws, **geometry)
            same(dx, reference.pool_backward(dy, x, y, **keywords), exact=False)


@row("dnn_pool accepts volumes and empty batches, and operations a GpuDnnPoolDesc")
def _(place: Place) -> None:
    x = integers(2, 3, 4, 5, 4)
    same(dnn.dnn_pool(place(x), (2, 2, 2)), reference.pool(x, window=2, stride=1))
    assert dnn.dnn_pool(ct.empty((0, 3, 4, 4)), (2, 2)).shape == (0, 3, 3, 3)
    x = integers(2, 3, 4, 5)
    desc = dnn.GpuDnnPoolDesc((2, 2), (2, 1), "average_inc_pad", (1, 0))()
    keywords = {"window": 2, "stride": (2, 1), "padding": (1, 0), "mode": "average_inc_pad"}
    y = reference.pool(x, **keywords)
    same(dnn.GpuDnnPool()(place(x), desc), y)
    dx = dnn.GpuDnnPoolGrad()(place(x), place(y), place(y), desc)
    same(dx, reference.pool_backward(y, x, y, **keywords))


# --- batch normalisation -----------------------------------------------------------------------------------


def batch(mode: str, shape: tuple[int, ...] = (4, 3, 2, 3)) -> tuple[np.ndarray, ...]:
    axes = (0,) if mode == "per-activation" else (0, *range(2, len(shape)))
    own = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return (
        floats(*shape),
        floats(*own, seed=1),
        floats(*own, seed=2),
        floats(*own, seed=3),
        1 + floats(*own, seed=4) ** 2,
    )


@row("dnn_batch_normalization_train returns result, mean and invstd, by default per activation")
def _(place: Place) -> None:
    for mode in ("per-activation", "spatial"):
        x, gamma, beta, _, _ = batch(mode)
        word = mode.replace("-", "_")
        wanted = reference.batch_norm_training(x, gamma, beta, mode=word, epsilon=1e-4)
        given = () if mode == "per-activation" else (mode,)
        got = dnn.dnn_batch_normalization_train(place(x), place(gamma), place(beta), *given)
        assert type(got) is tuple
        for one, other in zip(got, wanted, strict=True):
            same(one, other, exact=False)
        again = dnn.GpuDnnBatchNorm(mode, epsilon=1e-4)(place(x), place(gamma), place(beta))
        for one, other in zip(again, wanted, strict=True):
            same(one, other, exact=False)


@row("dnn_batch_normalization_train returns new running statistics and keeps the old ones")
def _(place: Place) -> None:
    x, gamma, beta, mean, var = batch("spatial")
    placed = [place(array) for array in (mean, var)]
    new_mean, new_var = mean.copy(), var.copy()
    reference.batch_norm_training(
        x, gamma, beta, epsilon=0.01, momentum=0.25, running_mean=new_mean, running_var=new_var
    )
    head = (place(x), place(gamma), place(beta))
    got = dnn.dnn_batch_normalization_train(*head, "spatial", 0.01, 0.25, *placed)
    assert len(got) == 5
    for one, other in zip((*got[3:], *placed), (new_mean, new_var, mean, var), strict=True):
        same(one, other, exact=False)
    with pytest.raises(ValueError, match="both are updated, or neither"):
        dnn.dnn_batch_normalization_train(*head, "spatial", running_mean=placed[0])
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        dnn.dnn_batch_normalization_train(*head, "spatial", epsilon=-1e-9)


@row("GpuDnnBatchNorm computes in place and accepts epsilon and the factor when it is created")
def _(place: Place) -> None:
    x, gamma, beta, mean, var = batch("spatial")
    new_mean, new_var = mean.copy(), var.copy()
    wanted = reference.batch_norm_training(
        x, gamma, beta, epsilon=0.01, momentum=0.25, running_mean=new_mean, running_var=new_var
    )
    normalise = dnn.GpuDnnBatchNorm(
        "spatial", True, True, True, True, epsilon=0.01, running_average_factor=0.25
    )
    placed = [place(array) for array in (x, gamma, beta, mean, var)]
    got = normalise(*placed[:3], running_mean=placed[3], running_var=placed[4])
    assert in_memory_of(got[0], placed[0])
    assert got[3] is placed[3]
    assert got[4] is placed[4]
    for one, other in zip(got, (*wanted, new_mean, new_var), strict=True):
        same(one, other, exact=False)
    with pytest.raises(ValueError, match="running_mean and running_var are missing"):
        normalise(*placed[:3])
    with pytest.raises(ValueError, match="need running_averages=True"):
        dnn.GpuDnnBatchNorm("spatial")(*placed[:3], running_mean=placed[3], running_var=placed[4])
    first = dnn.GpuDnnBatchNorm("spatial", epsilon=0.5)(*(place(one) for one in (x, gamma, beta)), 0.01)
    same(first[0], wanted[0], exact=False)  # the epsilon of the call wins


@row("dnn_batch_normalization_test, GpuDnnBatchNormInference equal the reference, also in place")
def _(place: Place) -> None:
    for mode in ("per-activation", "spatial"):
        arrays = batch(mode)
        wanted = reference.batch_norm_inference(*arrays, mode=mode.replace("-", "_"), epsilon=1e-4)
        placed = [place(array) for array in arrays]
        same(dnn.dnn_batch_normalization_test(*placed, mode), wanted, exact=False)
        normalise = dnn.GpuDnnBatchNormInference(mode, inplace=True, epsilon=1e-4)
        assert in_memory_of(normalise(*placed), placed[0])
        same(placed[0], wanted, exact=False)


@row("GpuDnnBatchNormGrad equals the reference")
def _(place: Place) -> None:
    for mode in ("per-activation", "spatial"):
        x, gamma, beta, _, _ = batch(mode)
        dy, word = floats(*x.shape, seed=9), mode.replace("-", "_")
        _, mean, invstd = reference.batch_norm_training(x, gamma, beta, mode=word, epsilon=1e-4)
        wanted = reference.batch_norm_backward(dy, x, gamma, mean, invstd, mode=word, epsilon=1e-4)
        got = dnn.GpuDnnBatchNormGrad(mode)(*(place(one) for one in (x, dy, gamma, mean, invstd)))
        for one, other in zip(got, wanted[:3], strict=True):
            same(one, other, exact=False)


# --- softmax, reduction, dropout ---------------------------------------------------------------------------


@row("GpuDnnSoftmax, GpuDnnSoftmaxGrad equal the reference for each algorithm and mode")
def _(place: Place) -> None:
    for shape in ((2, 3, 4, 2), (4, 5)):
        x, dy = floats(*shape), floats(*shape, seed=1)
        for algo in ("fast", "accurate", "log"):
            for mode in ("instance", "channel"):
                y = reference.softmax(x, algo=algo, mode=mode)
                same(dnn.GpuDnnSoftmax(algo, mode)(place(x)), y, exact=False)
                dx = dnn.GpuDnnSoftmaxGrad(algo, mode, tensor_format="bc01")(place(dy), place(y))
                same(dx, reference.softmax_backward(dy, y, algo=algo, mode=mode), exact=False)
    assert dnn.GpuDnnSoftmax("fast", "channel")(ct.empty((0, 3, 2, 2))).shape == (0, 3, 2, 2)


@row("GpuDnnReduction equals the reference for each operation, with axes, dtypes and indices")
def _(place: Place) -> None:
    x = floats(3, 4, 5)
    words = {"minimum": "min", "maximum": "max", "absmax": "amax"}
    for op in ("add", "mul", "minimum", "maximum", "absmax", "avg", "norm1", "norm2"):
        for axes in (None, (0, 2), 1):
            wanted = reference.reduce(x, op=words.get(op, op), axis=axes)
            same(dnn.GpuDnnReduction(op, axes)(place(x)), wanted, exact=False)
    y, places = dnn.GpuDnnReduction("maximum", [1, 2], "float64", "float64", True)(place(x))
    wanted = reference.reduce_with_indices(x, op="max", axis=(1, 2))
    same(y, wanted[0], exact=False)
    same(places, wanted[1])
    x = integers(3, 4)
    half = dnn.GpuDnnReduction("add", 0, "float32", "float16")(place(x))
    same(half, x.sum(0).astype(np.float16))
    with pytest.raises(ValueError, match="acc_dtype does not match float32: got float64, expected float32"):
        dnn.GpuDnnReduction("add", 0, "float64")(place(x))


@row("GpuDnnReduction does not round a float32 result to half precision")
def _(place: Place) -> None:
    for length in (2049, 70_000):  # float16 rounds the first and cannot represent the second
        halves = place(np.ones(length, np.float16))
        for acc_dtype in (None, "float32"):
            total = dnn.GpuDnnReduction("add", None, acc_dtype, "float32")(halves)
            same(total, np.array(length, np.float32))
    with pytest.raises(ValueError, match="acc_dtype does not match float16: got float64, expected float32"):
        dnn.GpuDnnReduction("add", None, "float64", "float64")(halves)


@row("dropout, GpuDnnDropoutOp divide kept elements by 1 - p, and the gradient has the same mask")
def _(place: Place) -> None:
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


@row("dnn_spatialtf, GpuDnnTransformerGrid, GpuDnnTransformerSampler equal the reference")
def _(place: Place) -> None:
    x, theta = floats(2, 3, 5, 6), np.array([[[0.9, 0.1, 0], [-0.1, 0.8, 0.1]]] * 2)
    y = dnn.dnn_spatialtf(place(x), place(theta), 1.5, 0.8)
    wanted = reference.spatial_transformer(x, theta, scale_height=0.8, scale_width=1.5)
    assert y.shape == (2, 3, 4, 9)
    compare(y, wanted, tolerance=1e-10)
    grid = dnn.GpuDnnTransformerGrid()(place(theta), (2, 3, 4, 9))
    compare(grid, reference.affine_grid(theta, (2, 4, 9)), tolerance=1e-10)
    compare(dnn.GpuDnnTransformerSampler()(place(x), grid), wanted, tolerance=1e-10)


@row("GpuDnnTransformerGradI, GpuDnnTransformerGradT equal the reference")
def _(place: Place) -> None:
    x, dy = floats(2, 3, 5, 6), floats(2, 3, 4, 3, seed=1)
    grid = np.random.default_rng(2).uniform(-1.1, 1.1, (2, 4, 3, 2))
    got = dnn.GpuDnnTransformerGradI()(place(x), place(grid), place(dy))
    wanted = reference.grid_sample_backward(dy, x, grid)
    for one, other in zip(got, wanted, strict=True):
        compare(one, other, tolerance=1e-10)
    dtheta = dnn.GpuDnnTransformerGradT()(place(wanted[1]))
    compare(dtheta, reference.affine_grid_backward(wanted[1]), tolerance=1e-10)


@row("dnn_spatialtf, GpuDnnTransformerGrid raise a RuntimeError for bad shapes")
def _(place: Place) -> None:
    x, theta = place(floats(2, 3, 5, 6)), place(floats(2, 2, 2))
    message = r"incorrect dimensions for theta, expected \(2, 2, 3\), got \(2, 2, 2\)"
    with pytest.raises(RuntimeError, match=message):
        dnn.dnn_spatialtf(x, theta)
    with pytest.raises(RuntimeError, match=message):
        dnn.GpuDnnTransformerGrid()(theta, (2, 3, 4, 4))
    theta = place(floats(2, 2, 3))
    with pytest.raises(RuntimeError, match="img has an axis of length 0"):
        dnn.dnn_spatialtf(ct.empty((2, 3, 0, 6), "float64"), theta)
    with pytest.raises(RuntimeError, match="out_dims has an axis of length 0"):
        dnn.GpuDnnTransformerGrid()(theta, (2, 0, 4, 4))


# --- recurrent networks ------------------------------------------------------------------------------------

COUNTS = {"rnn_relu": 4, "rnn_tanh": 4, "gru": 12, "lstm": 16}


class Network:
    """A block with operands on the host."""

    def __init__(self, mode: str, direction: str = "unidirectional", **options: Any) -> None:
        self.inputs = 4 if options.get("input_mode") == "skip" else 5
        self.block = dnn.RNNBlock("float64", 4, 2, mode, direction_mode=direction, **options)
        self.spec = self.block.network(self.inputs).spec
        self.size = self.block.get_param_size([2, self.inputs])
        self.w = 0.4 * floats(self.size, seed=1)
        self.x = floats(3, 2, self.inputs)
        rows = 2 * self.spec.directions
        self.hx = floats(rows, 2, 4, seed=2)
        self.cx = floats(rows, 2, 4, seed=3) if mode == "lstm" else None

    @property
    def weights(self) -> list[np.ndarray]:
        rows = zip(rnn_parameters(self.spec), rnn_offsets(self.spec), strict=True)
        return [self.w[start : start + part.size].reshape(part.shape) for part, start in rows]

    def check_weights(self, dw: Any, wanted: tuple[np.ndarray, ...]) -> None:
        check_weights(ct.asarray(dw), self.spec, wanted, 1e-10)

    def operands(self, place: Place) -> tuple[Any, ...]:
        w, x, hx = (place(array) for array in (self.w, self.x, self.hx))
        return (w, x, hx) if self.cx is None else (w, x, hx, place(self.cx))


@row("RNNBlock.apply equals the reference")
def _(place: Place) -> None:
    for mode in COUNTS:
        for direction in ("unidirectional", "bidirectional"):
            net = Network(mode, direction)
            wanted = rnn(net.x, net.weights, net.spec, h0=net.hx, c0=net.cx)
            got = net.block.apply(*net.operands(place))
            assert len(got) == (3 if mode == "lstm" else 2)
            for one, other in zip(got, wanted, strict=False):
                compare(one, other, tolerance=1e-10)


def gradients(net: Network) -> tuple[tuple[np.ndarray | None, ...], Any]:
    """Return gradients with respect to the results, and the gradients of the reference."""
    done = rnn(net.x, net.weights, net.spec, h0=net.hx, c0=net.cx)
    dy, dhy = floats(*done.y.shape, seed=4), floats(*done.hy.shape, seed=5)
    dcy = None if net.cx is None else floats(*done.cy.shape, seed=6)
    wanted = rnn_backward(net.x, net.weights, net.spec, dy, dhy=dhy, dcy=dcy, h0=net.hx, c0=net.cx)
    return (dy, dhy, dcy), wanted


@row("RNNBlock.gradients equals the reference")
def _(place: Place) -> None:
    for mode in COUNTS:
        net = Network(mode, "bidirectional")
        given, wanted = gradients(net)
        placed = [None if one is None else place(one) for one in given]
        operands = net.operands(place)
        cells = () if net.cx is not None else (None,)
        got = net.block.gradients(*operands, *cells, *placed)
        net.check_weights(got.dw, wanted.dweights)
        for one, other in zip(got[1:], (wanted.dx, wanted.dh0, wanted.dc0), strict=True):
            compare(one, other, tolerance=1e-10)
        alone = net.block.gradients(*operands, dy=placed[0])
        less = rnn_backward(net.x, net.weights, net.spec, given[0], h0=net.hx, c0=net.cx)
        compare(alone.dx, less.dx, tolerance=1e-10)


@row("GpuDnnRNNOp, GpuDnnRNNGradInputs, GpuDnnRNNGradWeights equal the reference")
def _(place: Place) -> None:
    for mode in ("lstm", "gru"):
        net = Network(mode)
        given, wanted = gradients(net)
        dy, dhy, dcy = (None if one is None else place(one) for one in given)
        w, x, hx, *cells = net.operands(place)
        desc, cx = net.block.desc, cells[0] if cells else None
        reserve, y, *_ = dnn.GpuDnnRNNOp(mode, "unidirectional")(desc, w, x, hx, *cells)
        inputs = dnn.GpuDnnRNNGradInputs(mode, True, cx is not None)
        reserve, dx, dhx, *dcx = inputs(desc, x, y, dy, dhy, dcy, w, hx, cx, reserve)
        dw = dnn.GpuDnnRNNGradWeights()(desc, x, hx, y, reserve, w)
        net.check_weights(dw, wanted.dweights)
        compare(dx, wanted.dx, tolerance=1e-10)
        compare(dhx, wanted.dh0, tolerance=1e-10)
        assert len(dcx) == len(cells)
        for one in dcx:
            compare(one, wanted.dc0, tolerance=1e-10)
        with pytest.raises(ValueError, match="reserve"):  # a reserve can be used once
            inputs(desc, x, y, dy, dhy, dcy, w, hx, cx, reserve)


@row("GpuDnnRNNGradInputs ignores dhy and dcy without grad_h and grad_c")
def _(place: Place) -> None:
    net = Network("lstm")
    (dy, dhy, dcy), _ = gradients(net)
    w, x, hx, cx = net.operands(place)
    reserve, y, *_ = dnn.GpuDnnRNNOp("lstm", "unidirectional")(net.block, w, x, hx, cx)
    inputs = dnn.GpuDnnRNNGradInputs("lstm", False, False)
    got = inputs(net.block, x, y, place(dy), place(dhy), place(dcy), w, hx, cx, reserve)
    wanted = rnn_backward(net.x, net.weights, net.spec, dy, h0=net.hx, c0=net.cx)
    compare(got[1], wanted.dx, tolerance=1e-10)


@row("RNNBlock.split_params returns matrices in Fortran order and biases, in the order of linLayerID")
def _(place: Place) -> None:
    for mode, count in COUNTS.items():
        net = Network(mode, "bidirectional")
        w = place(net.w)
        wanted = iter(net.weights)
        for pseudo in range(4):
            parts = net.block.split_params(w, pseudo, [2, net.inputs])
            assert len(parts) == count
            for part in parts:
                other = next(wanted)
                same(part, other.T if other.ndim == 2 else other)
                if other.ndim == 2:
                    assert part.spec.strides == (1, part.shape[0])
        assert next(wanted, None) is None
        for none in (4, -1):
            with pytest.raises(ValueError, match=f"layer must be from 0 to 3, got {none}"):
                net.block.split_params(w, none, [2, net.inputs])


@row("RNNBlock.split_params returns writable weights of a layer that NumPy can compute")
def _(place: Place) -> None:
    block = dnn.RNNBlock("float64", 4, 1, "rnn_tanh")
    w = ct.asarray(0.4 * floats(block.get_param_size([2, 5]), seed=1))
    x, h = floats(3, 2, 5), np.zeros((2, 4))
    matrix, bias, recurrent, other = (part.numpy() for part in block.split_params(w, 0, [2, 5]))
    steps = []
    for given in x:
        h = np.tanh(given @ matrix + bias + h @ recurrent + other)
        steps.append(h)
    y, _ = block.apply(w, place(x), ct.zeros((1, 2, 4), "float64"))
    compare(y, np.stack(steps), tolerance=1e-10)
    for part in block.split_params(w, 0, [2, 5]):
        part.fill(0.0)
    assert not w.numpy().any()


@row("RNNBlock.split_params returns None for the matrices that skip input does not have")
def _(place: Place) -> None:
    net = Network("gru", input_mode="skip")
    parts = net.block.split_params(place(net.w), 0, [2, 4])
    assert len(parts) == 12
    assert [part is None for part in parts] == [True, False] * 3 + [False] * 6
    wanted = rnn(net.x, net.weights, net.spec, h0=net.hx)
    compare(net.block.apply(*net.operands(place))[0], wanted.y, tolerance=1e-10)
    with pytest.raises(ValueError, match="input_size is 5, hidden_size 4"):
        net.block.get_param_size([2, 5])


@row("RNNBlock requires cells for an lstm, and its operations the modes of the block, in any case")
def _(place: Place) -> None:
    net = Network("lstm")
    w, x, hx, cx = net.operands(place)
    block = dnn.RNNBlock("float64", 4, 2, "LSTM", direction_mode="Unidirectional")
    for one in (net.block, block):
        with pytest.raises(ValueError, match="cx is missing"):
            one.apply(w, x, hx)
    with pytest.raises(ValueError, match="rnn_mode does not match desc: got 'gru', expected 'lstm'"):
        dnn.GpuDnnRNNOp("gru", "unidirectional")(net.block, w, x, hx, cx)
    with pytest.raises(ValueError, match="direction_mode does not match desc: got 'bidirectional'"):
        dnn.GpuDnnRNNOp("lstm", "bidirectional")(net.block, w, x, hx, cx)
    wanted = rnn(net.x, net.weights, net.spec, h0=net.hx, c0=net.cx)
    for one, modes in ((block, ("lstm", "unidirectional")), (net.block, ("Lstm", "UNIDIRECTIONAL"))):
        compare(dnn.GpuDnnRNNOp(*modes)(one, w, x, hx, cx)[1], wanted.y, tolerance=1e-10)


# --- availability --------------------------------------------------------------------------------


@row("version, dnn_present, dnn_available report the library and the device")
def _(place: Place) -> None:
    assert dnn.version() == ct.version()
    assert dnn.dnn_present()
    assert dnn.dnn_present.msg is None
    assert dnn.dnn_available("dev0")
    assert dnn.dnn_available.msg is None
    assert not dnn.dnn_available(10_000)
    assert "device 10000 does not exist" in str(dnn.dnn_available.msg)
    with pytest.raises(ValueError, match="context_name is not a device"):
        dnn.dnn_available("somewhere")


@row("dnn.enabled: operations run with auto, True and no_check")
def _(place: Place) -> None:
    x = integers(1, 1, 3, 3)
    for value in ("auto", True, "no_check"):
        with flag("dnn__enabled", value):
            same(dnn.dnn_pool(place(x), (2, 2)), reference.pool(x, window=2, stride=1))


def check_every_name_is_in_a_row() -> None:
    """Check that the name of a case or a call in this file contains each name of dnn."""
    source = Path(__file__).read_text()
    found = {*re.findall(r"[\w.]+", " ".join(ROWS)), *re.findall(r"dnn\.(\w+)\(", source)}
    of_operations = {f"GpuDnnConv{size}{end}" for size in ("", "3d") for end in ("", "GradW", "GradI")}
    assert set(dnn.__all__) <= found | of_operations
