"""What of the fake cuDNN works element by element, and the fused convolution that is made of it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

NOT_SUPPORTED = 3000

SIGMOID, RELU, TANH, CLIPPED_RELU, ELU, IDENTITY, SWISH = range(7)


def activate(mode: int, coef: float, values: np.ndarray) -> np.ndarray:
    """An activation in float64, one element after the other."""
    return np.array([_one(mode, coef, float(v)) for v in values.reshape(-1)]).reshape(values.shape)


def _one(mode: int, coef: float, v: float) -> float:
    if mode == RELU:
        return v if v > 0 else 0.0
    if mode == CLIPPED_RELU:
        return min(v, coef) if v > 0 else 0.0
    if mode == ELU:
        return v if v > 0 else coef * (np.exp(v) - 1)
    if mode == TANH:
        return float(np.tanh(v))
    if mode in (SIGMOID, SWISH):
        sigmoid = float(1 / (1 + np.exp(-v * (coef if mode == SWISH else 1))))
        return v * sigmoid if mode == SWISH else sigmoid
    return v


class Pointwise:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    def cudnnCreateActivationDescriptor(self: Any, out: Any) -> None:
        self._create(out, "activation")

    def cudnnDestroyActivationDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetActivationDescriptor(self: Any, activation: Any, mode: int, nan: int, coef: float) -> None:
        self._get(activation, "activation").update(mode=mode, coef=coef)

    def cudnnSetActivationDescriptorSwishBeta(self: Any, activation: Any, beta: float) -> None:
        self._get(activation, "activation").update(coef=beta)

    def cudnnActivationForward(
        self: Any,
        handle: Any,
        activation: Any,
        alpha: int,
        x: Any,
        read: int,
        beta: int,
        y: Any,
        written: int,
    ) -> None:
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        a, b = factors(source.dtype, alpha, beta)
        state = self._get(activation, "activation")
        values = a * activate(state["mode"], state["coef"], source.astype(np.float64))
        target[...] = (values + (b * target.astype(np.float64) if b else 0)).astype(target.dtype)

    def cudnnAddTensor(
        self: Any, handle: Any, alpha: int, x: Any, read: int, beta: int, y: Any, written: int
    ) -> None:
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        a, b = factors(source.dtype, alpha, beta)
        target[...] = (a * source.astype(np.float64) + b * target.astype(np.float64)).astype(target.dtype)

    def cudnnConvolutionBiasActivationForward(self: Any, *arguments: Any) -> int:
        handle, alpha1, x, xp, w, wp, convolution, algorithm, workspace, size, *rest = arguments
        alpha2, z, zp, bias, bp, activation, y, yp = rest
        state, target = self._get(activation, "activation"), self._memory(y, "tensor", yp)
        if state["mode"] not in (RELU, IDENTITY) or target.dtype == np.float64:
            return NOT_SUPPORTED
        a2, _ = factors(target.dtype, alpha2, alpha2)
        residual = a2 * self._memory(z, "tensor", zp).astype(np.float64) if a2 else 0
        zero = ctypes.c_float(0)
        status = self.cudnnConvolutionForward(
            handle,
            alpha1,
            x,
            xp,
            w,
            wp,
            convolution,
            algorithm,
            workspace,
            size,
            ctypes.addressof(zero),
            y,
            yp,
        )
        sums = target.astype(np.float64) + residual + self._memory(bias, "tensor", bp).astype(np.float64)
        target[...] = activate(state["mode"], state["coef"], sums).astype(target.dtype)
        return int(status)


def factors(dtype: Any, *addresses: int) -> list[float]:
    """The scaling factors at addresses: double for double data, else float."""
    scalar = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    return [scalar.from_address(address).value for address in addresses]
