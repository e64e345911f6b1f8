"""Element-wise functions of the fake cuDNN, and the fused convolution, by the reference in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

import cudnn_ct as ct

from .host import NOT_SUPPORTED

MODES = ("sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish")
SIGMOID, RELU, TANH, CLIPPED_RELU, ELU, IDENTITY, SWISH = range(7)

PROPAGATE = 1  # cudnnNanPropagation_t


def activate(state: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Apply the activation of a descriptor in float64."""
    keywords = {"mode": MODES[state["mode"]], "coefficient": state["coef"]}
    return ct.reference.activation(values, **keywords, propagate_nan=state["nan"] == PROPAGATE)


def descriptor(kind: str, **state: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """The C functions that create and destroy a descriptor, which has a state at first."""

    def create(self: Any, out: Any) -> None:
        self._create(out, kind, **state)

    def destroy(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    return create, destroy


def usual(heads: int, compute: Callable[..., np.ndarray]) -> Callable[..., None]:
    """A C function f(handle, heads, alpha, (descriptor, pointer) of inputs, beta, those of the result).

    ``compute(fake, heads, inputs, shape)`` gets float64 arrays and gives the result before alpha and beta.
    """

    def function(self: Any, handle: Any, *arguments: Any) -> None:
        head, (alpha, *pairs, beta, descriptor, written) = arguments[:heads], arguments[heads:]
        inputs = [self._memory(*pair) for pair in zip(pairs[::2], ("tensor",) * 9, pairs[1::2], strict=False)]
        target = self._memory(descriptor, "tensor", written)
        values = compute(self, head, [array.astype(np.float64) for array in inputs], target.shape)
        write(target, values, alpha, beta)

    return function


def _forward(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    state = fake._get(head[0], "activation")
    return activate(state, inputs[0])


def _backward(fake: Any, head: Any, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    state, (y, dy, x) = fake._get(head[0], "activation"), inputs
    if state["mode"] == ELU:  # as measured on an H200, cuDNN 9.19: from y alone
        return np.asarray(dy * np.where(y >= 0, 1.0, y + state["coef"]))
    return ct.reference.activation_backward(dy, x, y, mode=MODES[state["mode"]], coefficient=state["coef"])


def _without_identity(function: Callable[..., None]) -> Callable[..., int]:
    """A C function that rejects the identity, as cuDNN does."""

    def rejecting(self: Any, handle: Any, activation: Any, *arguments: Any) -> int:
        if self._get(activation, "activation")["mode"] == IDENTITY:
            return NOT_SUPPORTED
        function(self, handle, activation, *arguments)
        return 0

    return rejecting


class Pointwise:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor = descriptor("activation")

    def cudnnSetActivationDescriptor(self: Any, activation: Any, mode: int, nan: int, coef: float) -> None:
        self._get(activation, "activation").update(mode=mode, nan=nan, coef=coef)

    def cudnnSetActivationDescriptorSwishBeta(self: Any, activation: Any, beta: float) -> None:
        self._get(activation, "activation").update(coef=beta)

    cudnnActivationForward = _without_identity(usual(1, _forward))
    cudnnActivationBackward = _without_identity(usual(1, _backward))

    def cudnnAddTensor(
        self: Any, handle: Any, alpha: int, x: Any, read: int, beta: int, y: Any, written: int
    ) -> None:
        source, target = self._memory(x, "tensor", read), self._memory(y, "tensor", written)
        write(target, source.astype(np.float64), alpha, beta)

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
        data = alpha1, x, xp, w, wp, convolution, algorithm, workspace, size
        status = self.cudnnConvolutionForward(handle, *data, ctypes.addressof(zero), y, yp)
        sums = target.astype(np.float64) + residual + self._memory(bias, "tensor", bp).astype(np.float64)
        target[...] = activate(state, sums).astype(target.dtype)
        return int(status)


def factors(dtype: Any, *addresses: int) -> list[float]:
    """The scaling factors at addresses: double for double data, else float."""
    scalar = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    return [scalar.from_address(address).value for address in addresses]


def write(target: np.ndarray, values: Any, alpha: int | None, beta: int) -> None:
    """Write alpha * values + beta * target, which is not read if beta is 0; without alpha, it is 1."""
    a, b = factors(target.dtype, alpha or beta, beta)
    a = a if alpha else 1.0
    with np.errstate(all="ignore"):
        target[...] = (a * values + (b * target.astype(np.float64) if b else 0)).astype(target.dtype)
