"""What the module that this package descends from meant, row by row, as checks of ``ct`` wherever it runs.

A row's name gives the subject, then what is so, and where the package means something else on purpose, what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

ROWS: dict[str, Callable[[], None]] = {}


def row(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Name the row that a check is for."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        assert name not in ROWS
        ROWS[name] = check
        return check

    return register


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def same(got: Any, wanted: np.ndarray, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(got.numpy().astype(np.float64), wanted, rtol=0, atol=tolerance)


def on(*arrays: np.ndarray) -> list[ct.DeviceArray]:
    return [ct.asarray(array) for array in arrays]


# --- pooling -----------------------------------------------------------------------------------------------


@row("pooling: the shape is floor((in + 2 p - w) / s) + 1, for 1 to 3 spatial axes")
def _() -> None:
    for size in ((9,), (9, 8), (5, 6, 7)):
        x = ct.asarray(normal(2, 3, *size))
        y = ct.pool(x, window=3, stride=2, padding=1)
        assert y.shape == (2, 3, *((n + 2 - 3) // 2 + 1 for n in size))


@row("pooling: 'average' is 'average_inc_pad', which counts the padding; 'average_exc_pad' does not")
def _() -> None:
    x = ct.asarray(np.ones((1, 1, 2, 2)))
    keywords: dict[str, Any] = {"window": 2, "stride": 1, "padding": 1}
    corner = [
        ct.pool(x, mode=mode, **keywords).numpy()[0, 0, 0, 0] for mode in ("average", "average_inc_pad")
    ]
    assert corner == [0.25, 0.25]
    assert ct.pool(x, mode="average_exc_pad", **keywords).numpy()[0, 0, 0, 0] == 1


@row("pooling: 'sum' is 'average_inc_pad' times the size of the window")
def _() -> None:
    x = ct.asarray(normal(2, 3, 6, 7))
    keywords: dict[str, Any] = {"window": (2, 3), "padding": (1, 0)}
    same(ct.pool(x, mode="sum", **keywords), 6 * ct.pool(x, mode="average_inc_pad", **keywords).numpy())


@row("pooling: NaN propagates")
def _() -> None:
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 1] = np.nan
    y = ct.pool(ct.asarray(x), window=2).numpy()
    np.testing.assert_array_equal(np.isnan(y[0, 0]), [[True, False], [False, False]])


@row("pooling: 'max_deterministic' gives what 'max' gives")
def _() -> None:
    x = ct.asarray(normal(2, 3, 6, 6))
    np.testing.assert_array_equal(
        ct.pool(x, window=2, mode="max_deterministic").numpy(), ct.pool(x, window=2, mode="max").numpy()
    )


@row("pooling: an empty batch gives an empty result")
def _() -> None:
    assert ct.pool(ct.empty((0, 3, 4, 4)), window=2).shape == (0, 3, 2, 2)


@row("pooling: the gradient of an average needs no y")
def _() -> None:
    x, dy = on(normal(1, 2, 4, 4), np.ones((1, 2, 2, 2)))
    dx = ct.pool_backward(dy, x, ct.full((1, 2, 2, 2), np.nan, "float64"), window=2, mode="average")
    same(dx, np.full((1, 2, 4, 4), 0.25))


# --- batch normalisation -----------------------------------------------------------------------------------


def trained(
    mode: str, shape: tuple[int, ...], **more: Any
) -> tuple[Any, np.ndarray, tuple[int, ...], list[np.ndarray]]:
    axes = (0,) if mode == "per_activation" else (0, *range(2, len(shape)))
    own = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    x, scale, bias = normal(*shape), normal(*own, seed=1), normal(*own, seed=2)
    return ct.batch_norm_training(*on(x, scale, bias), mode=mode, **more), x, axes, [scale, bias]


@row("batch normalisation: statistics over (0,) per activation, (0, 2, ...) spatial, of axes kept")
def _() -> None:
    for mode, shape in (("per_activation", (6, 3, 4, 5)), ("spatial", (6, 3, 4, 5))):
        result, x, axes, (scale, bias) = trained(mode, shape, epsilon=0.1)
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        same(result.mean, mean)
        same(result.y, (x - mean) / np.sqrt(var + 0.1) * scale + bias)


@row("batch normalisation: invstd is 1 / sqrt(biased variance + epsilon)")
def _() -> None:
    result, x, axes, _ = trained("spatial", (4, 3, 5, 5), epsilon=0.25)
    same(result.invstd, 1 / np.sqrt(x.var(axes, keepdims=True) + 0.25))


@row("batch normalisation: running statistics are old (1 - f) + new f, the variance unbiased by m / (m - 1)")
def _() -> None:
    mean, var = ct.full((1, 3, 1, 1), 2.0, "float64"), ct.full((1, 3, 1, 1), 3.0, "float64")
    _, x, axes, _ = trained("spatial", (4, 3, 5, 5), running_mean=mean, running_var=var, momentum=0.25)
    same(mean, 2 * 0.75 + 0.25 * x.mean(axes, keepdims=True))
    same(var, 3 * 0.75 + 0.25 * x.var(axes, keepdims=True) * 100 / 99)


@row("batch normalisation: running statistics are given both or neither")
def _() -> None:
    with pytest.raises(ValueError, match="both are updated, or neither"):
        trained("spatial", (4, 3, 5, 5), running_mean=ct.zeros((1, 3, 1, 1), "float64"))


@row("batch normalisation: one sample has no unbiased variance (an error here, infinite there)")
def _() -> None:
    ones = [ct.full((1, 3), 1.0, "float64") for _ in range(2)]
    with pytest.raises(ValueError, match="one sample"):
        trained("per_activation", (1, 3), running_mean=ones[0], running_var=ones[1])


@row("batch normalisation: epsilon may be 0, cuDNN's floor today, and not less")
def _() -> None:
    result, x, axes, _ = trained("spatial", (4, 3, 5, 5), epsilon=0)
    same(result.invstd, 1 / np.sqrt(x.var(axes, keepdims=True)))
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        trained("spatial", (4, 3, 5, 5), epsilon=-1e-9)


@row("batch normalisation: in inference, (x - mean) gamma / sqrt(var + epsilon) + beta")
def _() -> None:
    x, own = normal(4, 3, 5, 5), (1, 3, 1, 1)
    scale, bias, mean = (normal(*own, seed=seed) for seed in (1, 2, 3))
    var = np.full(own, 2.0)
    y = ct.batch_norm_inference(*on(x, scale, bias, mean, var), epsilon=0.5)
    same(y, (x - mean) * scale / math.sqrt(2.5) + bias)


@row("batch normalisation: the gradient takes the saved statistics, or computes them")
def _() -> None:
    result, on_host, _, (scale_on_host, _) = trained("spatial", (4, 3, 5, 5), epsilon=0.1)
    x, dy, scale = on(on_host, normal(4, 3, 5, 5, seed=5), scale_on_host)
    with_saved = ct.batch_norm_backward(dy, x, scale, result.mean, result.invstd, epsilon=0.1)
    for ours, recomputed in zip(
        with_saved[:3], ct.batch_norm_backward(dy, x, scale, epsilon=0.1)[:3], strict=True
    ):
        same(ours, recomputed.numpy())


@row("batch normalisation: fewer than 4 axes are padded with ones, more than 5 flattened")
def _() -> None:
    for shape in ((6, 3), (6, 3, 4), (3, 2, 2, 1, 2, 2)):
        for mode in ("spatial", "per_activation"):
            result, x, axes, (scale, bias) = trained(mode, shape, epsilon=0.1)
            mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            same(result.y, (x - mean) / np.sqrt(var + 0.1) * scale + bias)


@row("batch normalisation: parameters of half precision data are float32")
def _() -> None:
    x, ones = ct.full((4, 8, 2, 2), 1.0, "float16"), ct.full((8,), 1.0)
    result = ct.batch_norm_training(x, ones, ones)
    assert [array.spec.dtype for array in result] == ["float16", "float32", "float32"]
    with pytest.raises(TypeError, match="scale is float16; x of float16 needs float32"):
        ct.batch_norm_training(x, ct.full((8,), 1.0, "float16"), ones)


# --- spatial transformer -----------------------------------------------------------------------------------

SAME = np.array([[[1.0, 0, 0], [0, 1, 0]]])


@row("spatial transformer: theta is (N, 2, 3), the result ceil(H scale_height) by ceil(W scale_width)")
def _() -> None:
    y = ct.spatial_transformer(*on(normal(1, 2, 5, 7), SAME), scale_height=0.5, scale_width=1.5)
    assert y.shape == (1, 2, 3, 11)


@row("spatial transformer: the grid is (N, H, W, 2), x before y, and meets the centres of the corner pixels")
def _() -> None:
    grid = ct.affine_grid(ct.asarray(SAME), (1, 1, 3, 5)).numpy()
    assert grid.shape == (1, 3, 5, 2)
    np.testing.assert_allclose(grid[0, 0, 0], [-1, -1])
    np.testing.assert_allclose(grid[0, 0, -1], [1, -1])
    np.testing.assert_allclose(grid[0, -1, -1], [1, 1])
    x = normal(1, 2, 5, 7)
    same(ct.spatial_transformer(*on(x, SAME)), x)


@row("spatial transformer: bilinear, zeros outside")
def _() -> None:
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    grid = np.array([[[[0.0, 0.0], [-0.5, -1.0], [9.0, 0.0]]]])
    same(ct.grid_sample(*on(x, grid)), np.array([[[[1.5, 0.25, 0.0]]]]))


@row("spatial transformer: a theta of another shape, and axes of length 0, are errors")
def _() -> None:
    with pytest.raises(ValueError, match=r"theta has shape \(1, 3, 2\)"):
        ct.spatial_transformer(*on(normal(1, 2, 5, 7), SAME.reshape(1, 3, 2)))
    with pytest.raises(ValueError, match="H and W of at least 1"):
        ct.spatial_transformer(ct.empty((1, 2, 0, 7), "float64"), ct.asarray(SAME))


@row("spatial transformer: gradients with regard to the image and to theta, (N, 2, 3)")
def _() -> None:
    x, theta, dy = normal(1, 2, 5, 7), 0.8 * SAME, normal(1, 2, 5, 7, seed=1)
    got = ct.spatial_transformer_backward(*on(dy, x, theta))
    for ours, theirs in zip(got, ct.reference.spatial_transformer_backward(dy, x, theta), strict=True):
        same(ours, theirs, 1e-9)


# --- softmax -----------------------------------------------------------------------------------------------


@row("softmax: 'channel' over C at each pixel, 'instance' over C, H, W")
def _() -> None:
    x = normal(2, 3, 4, 5)
    same(ct.softmax(ct.asarray(x)), np.exp(x) / np.exp(x).sum(1, keepdims=True))
    same(ct.softmax(ct.asarray(x), mode="instance"), np.exp(x) / np.exp(x).sum((1, 2, 3), keepdims=True))


@row("softmax: two axes are (n, m, 1, 1) by channel")
def _() -> None:
    x = normal(4, 5)
    same(ct.softmax(ct.asarray(x)), np.exp(x) / np.exp(x).sum(1, keepdims=True))


@row("softmax: 'fast', 'accurate', and 'log' for its logarithm, whose gradient takes the same")
def _() -> None:
    x, dy = normal(4, 5), normal(4, 5, seed=1)
    plain = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    for algo, y in (("fast", plain), ("accurate", plain), ("log", np.log(plain))):
        same(ct.softmax(ct.asarray(x), algo=algo), y)
        dx = ct.softmax_backward(*on(dy, y), algo=algo)
        same(dx, ct.reference.softmax_backward(dy, y, algo=algo))


@row("softmax: of nothing is nothing")
def _() -> None:
    assert ct.softmax(ct.empty((0, 3, 4, 4))).shape == (0, 3, 4, 4)


# --- reduction ---------------------------------------------------------------------------------------------


@row("reduction: add, mul, minimum, maximum, absmax, avg, norm1, norm2 (here min, max, amax)")
def _() -> None:
    x = normal(3, 4, 5)
    expected = {
        "add": x.sum((0, 2)),
        "mul": x.prod((0, 2)),
        "min": x.min((0, 2)),
        "max": x.max((0, 2)),
        "amax": abs(x).max((0, 2)),
        "avg": x.mean((0, 2)),
        "norm1": abs(x).sum((0, 2)),
        "norm2": np.sqrt((x * x).sum((0, 2))),
    }
    for op, wanted in expected.items():
        same(ct.reduce(ct.asarray(x), op=op, axis=(0, 2)), wanted)


@row("reduction: at most 8 axes")
def _() -> None:
    x = normal(1, 2, 1, 2, 1, 2, 1, 2)
    same(ct.reduce(ct.asarray(x), axis=(1, 4, 7)), x.sum((1, 4, 7)))
    with pytest.raises(ValueError, match="at most 8 axes"):
        ct.reduce(ct.empty((1,) * 9))


@row("reduction: indices of smallest and largest, flattened over the reduced axes (int32 here, uint32 there)")
def _() -> None:
    x = normal(3, 4, 5)
    result = ct.reduce_with_indices(ct.asarray(x), op="max", axis=(1, 2))
    np.testing.assert_array_equal(result.indices.numpy(), x.reshape(3, -1).argmax(1))
    assert result.indices.spec.dtype == "int32"
    with pytest.raises(ValueError, match="op has no indices"):
        ct.reduce_with_indices(ct.asarray(x), op="add")


@row("reduction: over axes of length 1 a copy, without signs for absmax, norm1 and norm2")
def _() -> None:
    x = normal(3, 1, 4)
    for op in ("add", "mul", "min", "max", "avg", "amax", "norm1", "norm2"):
        wanted = abs(x) if op in ("amax", "norm1", "norm2") else x
        same(ct.reduce(ct.asarray(x), op=op, axis=1), wanted[:, 0])


# --- dropout -----------------------------------------------------------------------------------------------


@row("dropout: what stays is divided by 1 - p, and the gradient drops the same")
def _() -> None:
    state = ct.DropoutState(0.25, seed=4242)
    x = ct.full((50, 40), 3.0)
    y, mask = ct.dropout(x, state)
    assert set(np.unique(y.numpy())) == {0.0, 4.0}
    dx = ct.dropout_backward(ct.full((50, 40), 6.0), mask, state).numpy()
    np.testing.assert_array_equal(dx, 2 * y.numpy())


# --- recurrent networks ------------------------------------------------------------------------------------

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


def network(mode: str, **options: Any) -> tuple[ct.RNN, ct.DeviceArray, ct.DeviceArray]:
    """A network of 5 inputs and 4 units in 2 layers, its weights, and 3 steps of 2 sequences."""
    net = ct.RNN(mode, options.pop("input_size", 5), 4, 2, dtype="float64", algo="standard", **options)
    return net, ct.asarray(0.3 * normal(net.weight_size, seed=1)), ct.asarray(normal(3, 2, net.input_size))


@row("recurrent: x (T, B, I), states (layers x directions, B, H), y (T, B, H x directions); cells of lstm")
def _() -> None:
    for mode in GATES:
        for direction, count in (("unidirectional", 1), ("bidirectional", 2)):
            net, w, x = network(mode, direction=direction)
            y, hy, cy, _ = net.forward(x, w)
            assert y.shape == (3, 2, 4 * count)
            assert hy.shape == (2 * count, 2, 4)
            assert (cy is None) == (mode != "lstm")
            assert cy is None or cy.shape == hy.shape


@row("recurrent: always the training pass there, standard, no dropout; here training=True gives a reserve")
def _() -> None:
    net, w, x = network("gru")
    there, here = net.forward(x, w), net.forward(x, w, training=True)
    assert there.reserve is None
    assert here.reserve is not None
    same(here.y, there.y.numpy())
    assert net.spec.dropout == 0


@row("recurrent: an lstm must be given cells there; here none are zeros, and other modes refuse them")
def _() -> None:
    net, w, x = network("lstm")
    zeros = ct.zeros((2, 2, 4), "float64")
    same(net.forward(x, w).y, net.forward(x, w, zeros, zeros).y.numpy())
    gru, w, x = network("gru")
    with pytest.raises(ValueError, match="has no cells"):
        gru.forward(x, w, zeros, zeros)


@row("recurrent: the size of the weights is in items")
def _() -> None:
    for mode, gates in GATES.items():
        net, _, _ = network(mode)
        assert net.weight_size == gates * ((5 + 4) * 4 + 8 + (4 + 4) * 4 + 8)
        assert net.weight_bytes == 8 * net.weight_size


@row("recurrent: a layer's parameters by linLayerID, W before b: 4, 12 or 16; by name here, in that order")
def _() -> None:
    names = {
        "rnn_relu": ("hidden",),
        "rnn_tanh": ("hidden",),
        "gru": ("reset", "update", "new"),
        "lstm": ("input", "forget", "cell", "output"),
    }
    for mode, gates in GATES.items():
        net, w, _ = network(mode)
        found = net.split_params(w, 0)
        wanted = [
            f"l0.{part}{letter}_{gate}" for letter in "WR" for gate in names[mode] for part in ("", "b")
        ]
        assert list(found) == wanted
        assert len(found) == 4 * gates


@row("recurrent: matrices (in, H) by columns there, so that x @ W; here (H, in) by rows: the same memory")
def _() -> None:
    net, w, x = network("rnn_tanh")
    parts = {name: view.numpy() for name, view in net.split_params(w, 0).items()}
    assert parts["l0.W_hidden"].shape == (4, 5)
    assert parts["l0.R_hidden"].shape == (4, 4)
    h, steps = np.zeros((2, 4)), []
    for given in x.numpy():
        a = given @ parts["l0.W_hidden"].T + parts["l0.bW_hidden"]
        h = np.tanh(a + h @ parts["l0.R_hidden"].T + parts["l0.bR_hidden"])
        steps.append(h)
    one = ct.RNN("rnn_tanh", 5, 4, dtype="float64")
    same(one.forward(x, one.pack_params(list(parts.values()))).y, np.stack(steps))
    assert net.split_params(w, 1)["l1.W_hidden"].shape == (4, 4)


@row("recurrent: the layer of split_params is cuDNN's pseudo layer there, 2 l + d; here layer and direction")
def _() -> None:
    net, w, _ = network("gru", direction="bidirectional")
    sizes = [view.shape for view in net.split_params(w, 1, 1).values()]
    assert next(iter(net.split_params(w, 1, 1))) == "l1_reverse.W_reset"
    assert sizes[0] == (4, 8)
    flat = {view.pointer for p in range(4) for view in net.split_params(w, *divmod(p, 2)).values()}
    assert len(flat) == 4 * 12


@row("recurrent: the parameters are views that can be written")
def _() -> None:
    net, w, x = network("lstm")
    before = net.forward(x, w).y.numpy()
    for layer in (0, 1):
        for view in net.split_params(w, layer).values():
            view.fill(0.0)
    assert not w.numpy().any()
    after = net.forward(x, w).y.numpy()
    assert not after.any()
    assert before.any()


@row("recurrent: skip input has no matrices for the input of the first layer")
def _() -> None:
    net, w, _ = network("rnn_tanh", input_mode="skip", input_size=4)
    assert list(net.split_params(w, 0)) == ["l0.bW_hidden", "l0.R_hidden", "l0.bR_hidden"]
    with pytest.raises(ValueError, match="input_size is 5, hidden_size 4"):
        network("rnn_tanh", input_mode="skip")


@row("recurrent: a projection is linLayerID 8, the last of its layer")
def _() -> None:
    net, w, x = network("lstm", projection_size=3)
    found = net.split_params(w, 1)
    assert list(found)[-1] == "l1.P"
    assert found["l1.P"].shape == (3, 4)
    assert net.forward(x, w).y.shape == (3, 2, 3)


@row("recurrent: gradients of outputs that are not given are zeros")
def _() -> None:
    net, w, x = network("lstm")
    zeros = ct.zeros((2, 2, 4), "float64")
    dy = ct.asarray(normal(3, 2, 4, seed=3))
    some, all_ = (net.forward(x, w, training=True).reserve for _ in range(2))
    same(net.backward_data(dy, some).dx, net.backward_data(dy, all_, zeros, zeros).dx.numpy())
    some, all_ = (net.forward(x, w, training=True).reserve for _ in range(2))
    wanted = net.backward_data(ct.zeros((3, 2, 4), "float64"), all_, zeros, zeros).dx.numpy()
    same(net.backward_data(None, some, None, None).dx, wanted)


@row("recurrent: the reserve is copied there, since the gradients change it; here it serves once")
def _() -> None:
    net, w, x = network("gru")
    reserve, dy = net.forward(x, w, training=True).reserve, ct.full((3, 2, 4), 1.0, "float64")
    net.backward_data(dy, reserve)
    with pytest.raises(ValueError, match="reserve"):
        net.backward_data(dy, reserve)


@row(
    "recurrent: the gradient of weights is set to zero before cuDNN adds to it; add=True keeps what is there"
)
def _() -> None:
    net, w, x = network("gru")
    dy = ct.full((3, 2, 4), 1.0, "float64")
    out = ct.full((net.weight_size,), math.nan, "float64")
    found = []
    for options in ({}, {"out": out}, {"out": out, "add": True}):
        reserve = net.forward(x, w, training=True).reserve
        net.backward_data(dy, reserve)
        found.append(net.backward_weights(reserve, **options).numpy())
    np.testing.assert_allclose(found[1], found[0])
    np.testing.assert_allclose(found[2], 2 * found[0])
