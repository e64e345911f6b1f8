"""What of the fake cuDNN works element by element, and the fused convolution that is made of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

NOT_SUPPORTED = 3000

SIGMOID, RELU, TANH, CLIPPED_RELU, ELU, IDENTITY, SWISH = range(7)


PROPAGATE = 1  # cudnnNanPropagation_t


def activate(state: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Apply the activation of a descriptor in float64, one element after the other."""
    mode, coef = state["mode"], state["coef"]
    with np.errstate(all="ignore"):
        results = np.array([_one(mode, coef, float(v)) for v in values.reshape(-1)]).reshape(values.shape)
    rectified = mode in (RELU, CLIPPED_RELU) and state["nan"] == PROPAGATE
    return np.where(np.isnan(values), np.nan, results) if rectified else results


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


def usual(heads: int, compute: Callable[..., np.ndarray]) -> Callable[..., None]:
    """A C function f(handle, heads, alpha, (descriptor, pointer) of inputs, beta, those of the result).

    ``compute(fake, heads, inputs, shape)`` gets float64 arrays and gives the result before alpha and beta.
    """

    def function(self: Any, handle: Any, *arguments: Any) -> None:
        head, (alpha, *pairs, beta, descriptor, written) = arguments[:heads], arguments[heads:]
        inputs = [self._memory(*pair) for pair in zip(pairs[::2], ("tensor",) * 9, pairs[1::2], strict=False)]
        target = self._memory(descriptor, "tensor", written)
        a, b = factors(target.dtype, alpha, beta)
        values = compute(self, head, [array.astype(np.float64) for array in inputs], target.shape)
        before = b * target.astype(np.float64) if b else 0
        target[...] = (a * values + before).astype(target.dtype)

    return function


def _forward(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    state = fake._get(head[0], "activation")
    return activate(state, inputs[0])


def _slope(mode: int, coef: float, v: float) -> float:
    if mode == RELU:
        return float(v > 0)
    if mode == CLIPPED_RELU:
        return float(0 < v < coef)
    if mode == TANH:
        return float(1 - np.tanh(v) ** 2)
    sigmoid = float(1 / (1 + np.exp(-v * (coef if mode == SWISH else 1))))
    slope = sigmoid * (1 - sigmoid)
    return sigmoid + coef * v * slope if mode == SWISH else slope


def _backward(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    state, (y, dy, x) = fake._get(head[0], "activation"), inputs
    if state["mode"] == ELU:  # as measured on an H200, cuDNN 9.19: from y alone
        return np.asarray(dy * np.where(y >= 0, 1.0, y + state["coef"]))
    slopes = [_slope(state["mode"], state["coef"], float(v)) for v in x.reshape(-1)]
    return dy * np.array(slopes).reshape(shape)


_activation, _gradient = usual(1, _forward), usual(1, _backward)


class Pointwise:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    def cudnnCreateActivationDescriptor(self: Any, out: Any) -> None:
        self._create(out, "activation")

    def cudnnDestroyActivationDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetActivationDescriptor(self: Any, activation: Any, mode: int, nan: int, coef: float) -> None:
        self._get(activation, "activation").update(mode=mode, nan=nan, coef=coef)

    def cudnnSetActivationDescriptorSwishBeta(self: Any, activation: Any, beta: float) -> None:
        self._get(activation, "activation").update(coef=beta)

    def cudnnActivationForward(self: Any, handle: Any, activation: Any, *arguments: Any) -> int:
        state = self._get(activation, "activation")
        if state["mode"] == IDENTITY:
            return NOT_SUPPORTED
        _activation(self, handle, activation, *arguments)
        return 0

    def cudnnActivationBackward(self: Any, handle: Any, activation: Any, *arguments: Any) -> int:
        state = self._get(activation, "activation")
        if state["mode"] == IDENTITY:
            return NOT_SUPPORTED
        _gradient(self, handle, activation, *arguments)
        return 0

    def cudnnAddTensor(
        self: Any, handle: Any, alpha: int, x: Any, read: int, beta: int, y: Any, written: int
    ) -> None:
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        a, b = factors(source.dtype, alpha, beta)
        before = b * target.astype(np.float64) if b else 0
        target[...] = (a * source.astype(np.float64) + before).astype(target.dtype)

    def cudnnConvolutionBiasActivationForward(self: Any, *arguments: Any) -> int:
        handle, alpha1, x, xp, w, wp, convolution, algorithm, workspace, size, *rest = arguments
        alpha2, z, zp, bias, bp, activation, y, yp = rest
        bad = [hex(pointer) for pointer in (xp, wp, zp, bp, yp, workspace) if pointer and pointer % 16]
        assert not bad, f"misaligned operands of a fused convolution: {bad}"
        state, target = self._get(activation, "activation"), self._memory(y, "tensor", yp)
        if state["mode"] not in (RELU, IDENTITY) or target.dtype == np.float64:
            return NOT_SUPPORTED
        a2, _ = factors(target.dtype, alpha2, alpha2)
        assert not a2 or self._get(z, "tensor")["strides"] == self._get(y, "tensor")["strides"]
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
        target[...] = activate(state, sums).astype(target.dtype)
        return int(status)


def factors(dtype: Any, *addresses: int) -> list[float]:
    """The scaling factors at addresses: double for double data, else float."""
    scalar = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    return [scalar.from_address(address).value for address in addresses]
