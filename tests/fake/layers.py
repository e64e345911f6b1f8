"""Pooling, softmax and local response normalisation of the fake cuDNN, by the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnn_ct.reference import lrn, lrn_backward, pool, pool_backward, softmax, softmax_backward

from .pointwise import descriptor, usual

_POOLING_MODES = ("max", "average_inc_pad", "average_exc_pad", "max_deterministic")
_SOFTMAX_ALGOS = ("fast", "accurate", "log")
_SOFTMAX_MODES = ("instance", "channel")


def _pool(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    return pool(*inputs, **fake._get(head[0], "pooling")["parameters"])


def _unpool(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    y, dy, x = inputs
    return pool_backward(dy, x, y, **fake._get(head[0], "pooling")["parameters"])


def _softmax(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    assert len(shape) == 4
    algo, mode = head
    return softmax(*inputs, algo=_SOFTMAX_ALGOS[algo], mode=_SOFTMAX_MODES[mode])


def _softmax_gradient(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    assert len(shape) == 4
    (algo, mode), (y, dy) = head, inputs
    return softmax_backward(dy, y, algo=_SOFTMAX_ALGOS[algo], mode=_SOFTMAX_MODES[mode])


def _without_bfloat16(function: Any) -> Any:
    """A C function that refuses bfloat16, as cuDNN 9.19 does."""

    def refusing(self: Any, *arguments: Any) -> int:
        if self._get(arguments[-2], "tensor")["dtype"].name == "bfloat16":
            return 3000
        function(self, *arguments)
        return 0

    return refusing


def _lrn(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    return lrn(*inputs, **fake._get(head[0], "lrn")["parameters"])


def _lrn_gradient(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    y, dy, x = inputs
    return lrn_backward(dy, x, y, **fake._get(head[0], "lrn")["parameters"])


class Layers:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor = descriptor("pooling")

    def cudnnSetPoolingNdDescriptor(
        self: Any, pooling: Any, mode: int, nan: int, axes: int, window: Any, padding: Any, stride: Any
    ) -> None:
        self._get(pooling, "pooling")["parameters"] = {
            "window": window[:axes],
            "padding": padding[:axes],
            "stride": stride[:axes],
            "mode": _POOLING_MODES[mode],
            "propagate_nan": bool(nan),
        }

    cudnnCreateLRNDescriptor, cudnnDestroyLRNDescriptor = descriptor("lrn")

    def cudnnSetLRNDescriptor(self: Any, lrn: Any, n: int, alpha: float, beta: float, k: float) -> None:
        self._get(lrn, "lrn")["parameters"] = {"n": n, "lrn_alpha": alpha, "lrn_beta": beta, "k": k}

    cudnnLRNCrossChannelForward = _without_bfloat16(usual(2, _lrn))
    cudnnLRNCrossChannelBackward = _without_bfloat16(usual(2, _lrn_gradient))
    cudnnPoolingForward = usual(1, _pool)
    cudnnPoolingBackward = usual(1, _unpool)

    cudnnSoftmaxForward = usual(2, _softmax)
    cudnnSoftmaxBackward = usual(2, _softmax_gradient)
