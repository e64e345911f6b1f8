"""What of the fake cuDNN pools and normalises: plain loops over single windows and rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .pointwise import usual


def _windows(pooling: dict[str, Any], y_shape: tuple[int, ...], x_shape: tuple[int, ...]) -> Any:
    """Each output position, with the input positions under its window."""
    for position in np.ndindex(*y_shape[2:]):
        starts = [
            p * s - pad for p, s, pad in zip(position, pooling["stride"], pooling["padding"], strict=True)
        ]
        taps = [
            tuple(start + i for start, i in zip(starts, tap, strict=True))
            for tap in np.ndindex(*pooling["window"])
        ]
        inside = [at for at in taps if all(0 <= i < n for i, n in zip(at, x_shape[2:], strict=True))]
        yield position, inside


MAX, INCLUDING, EXCLUDING, MAX_DETERMINISTIC = range(4)


def _pool(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    pooling, (x,), y = fake._get(head[0], "pooling"), inputs, np.empty(shape)
    for position, inside in _windows(pooling, shape, x.shape):
        for image in np.ndindex(*shape[:2]):
            values = [x[(*image, *at)] for at in inside]
            if pooling["mode"] in (MAX, MAX_DETERMINISTIC):
                y[(*image, *position)] = (np.max if pooling["nan"] else np.nanmax)(values)
            else:
                whole = np.prod(pooling["window"])
                y[(*image, *position)] = sum(values) / (
                    whole if pooling["mode"] == INCLUDING else len(values)
                )
    return y


def _unpool(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    pooling, (y, dy, x), dx = fake._get(head[0], "pooling"), inputs, np.zeros(shape)
    for position, inside in _windows(pooling, y.shape, shape):
        for image in np.ndindex(*shape[:2]):
            gradient = dy[(*image, *position)]
            if pooling["mode"] in (MAX, MAX_DETERMINISTIC):
                same = (at for at in inside if x[(*image, *at)] == y[(*image, *position)])
                winner = next(same, inside[0])  # of a y that is not that of x, any
                dx[(*image, *winner)] += gradient
                continue
            whole = np.prod(pooling["window"]) if pooling["mode"] == INCLUDING else len(inside)
            for at in inside:
                dx[(*image, *at)] += gradient / whole
    return dx


INSTANCE, CHANNEL = range(2)
FAST, ACCURATE, LOG = range(3)


def _rows(mode: int, *arrays: np.ndarray) -> Any:
    """Views of each row that a softmax sums over."""
    assert all(array.ndim == 4 for array in arrays)
    for n in range(arrays[0].shape[0]):
        if mode == INSTANCE:
            yield tuple(array[n] for array in arrays)
        else:
            for at in np.ndindex(*arrays[0].shape[2:]):
                yield tuple(array[(n, slice(None), *at)] for array in arrays)


def _softmax(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    (algo, mode), y = head, np.empty(shape)
    for x, row in _rows(mode, *inputs, y):
        powers = np.exp(x - x.max())
        row[...] = powers / powers.sum()
        if algo == LOG:
            row[...] = x - x.max() - np.log(powers.sum())
    return y


def _softmax_gradient(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    (algo, mode), dx = head, np.empty(shape)
    for y, dy, row in _rows(mode, *inputs, dx):
        row[...] = dy - np.exp(y) * dy.sum() if algo == LOG else y * (dy - (y * dy).sum())
    return dx


def _around(lrn: dict[str, Any], c: int, channels: int) -> range:
    """The channels in the window of one."""
    behind = (lrn["n"] - 1) // 2
    return range(max(0, c - behind), min(channels, c - behind + lrn["n"]))


def _squares(lrn: dict[str, Any], x: np.ndarray) -> np.ndarray:
    sums = np.empty(x.shape)
    for c in range(x.shape[1]):
        total = sum(x[:, i] ** 2 for i in _around(lrn, c, x.shape[1]))
        sums[:, c] = lrn["k"] + lrn["alpha"] / lrn["n"] * total
    return sums


def _without_bfloat16(function: Any) -> Any:
    """A C function that refuses bfloat16, as cuDNN 9.19 does."""

    def refusing(self: Any, *arguments: Any) -> int:
        if self._get(arguments[-2], "tensor")["dtype"].name == "bfloat16":
            return 3000
        function(self, *arguments)
        return 0

    return refusing


def _lrn(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    lrn, (x,) = fake._get(head[0], "lrn"), inputs
    return np.asarray(x / _squares(lrn, x) ** lrn["beta"])


def _lrn_gradient(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    lrn, (y, dy, x) = fake._get(head[0], "lrn"), inputs
    sums = _squares(lrn, x)
    dx = dy / sums ** lrn["beta"]
    for c in range(shape[1]):
        for i in _around(lrn, c, shape[1]):  # y of c depends on x of i
            slope = -2 * lrn["alpha"] * lrn["beta"] / lrn["n"]
            dx[:, i] += slope * x[:, i] * dy[:, c] * y[:, c] / sums[:, c]
    return np.asarray(dx)


class Layers:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    def cudnnCreatePoolingDescriptor(self: Any, out: Any) -> None:
        self._create(out, "pooling")

    def cudnnDestroyPoolingDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetPoolingNdDescriptor(
        self: Any, pooling: Any, mode: int, nan: int, axes: int, window: Any, padding: Any, stride: Any
    ) -> None:
        lists = {"window": window[:axes], "padding": padding[:axes], "stride": stride[:axes]}
        self._get(pooling, "pooling").update(mode=mode, nan=nan, **lists)

    def cudnnCreateLRNDescriptor(self: Any, out: Any) -> None:
        self._create(out, "lrn")

    def cudnnDestroyLRNDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetLRNDescriptor(self: Any, lrn: Any, n: int, alpha: float, beta: float, k: float) -> None:
        self._get(lrn, "lrn").update(n=n, alpha=alpha, beta=beta, k=k)

    cudnnLRNCrossChannelForward = _without_bfloat16(usual(2, _lrn))
    cudnnLRNCrossChannelBackward = _without_bfloat16(usual(2, _lrn_gradient))
    cudnnPoolingForward = usual(1, _pool)
    cudnnPoolingBackward = usual(1, _unpool)

    cudnnSoftmaxForward = usual(2, _softmax)
    cudnnSoftmaxBackward = usual(2, _softmax_gradient)
