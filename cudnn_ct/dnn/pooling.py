"""Pooling and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..array import DeviceArray
from ..ops.pooling import pool, pool_backward
from ..typing import ArrayLike, PoolMode
from .arguments import Border, Sizes, integers
from .availability import run


def dnn_pool(
    img: ArrayLike, ws: Sizes, stride: Sizes | None = None, mode: PoolMode = "max", pad: Border | None = None
) -> DeviceArray:
    """Return the maximum, average or sum of each window. See :func:`cudnn_ct.pool`."""
    return run(pool, img, **_arguments(mode, ws, stride, pad))


@dataclass(eq=False)
class GpuDnnPoolDesc:
    """Window, stride, mode and padding of a pooling, in place of ``ws``. See :func:`cudnn_ct.pool`."""

    ws: Sizes = (1, 1)
    stride: Sizes = (1, 1)
    mode: PoolMode = "max"
    pad: Border = (0, 0)

    def __post_init__(self) -> None:
        self.ws, self.stride, self.pad = map(integers, (self.ws, self.stride, self.pad))

    def __call__(self) -> GpuDnnPoolDesc:
        """Return the descriptor itself."""
        return self


@dataclass(eq=False)
class GpuDnnPool:
    """Pooling. See :func:`cudnn_ct.pool`."""

    mode: PoolMode = "max"

    def __call__(
        self,
        img: ArrayLike,
        ws: Sizes | GpuDnnPoolDesc,
        stride: Sizes | None = None,
        pad: Border | None = None,
    ) -> DeviceArray:
        """Return the maximum, average or sum of each window."""
        return run(pool, img, **_arguments(self.mode, ws, stride, pad))


@dataclass(eq=False)
class GpuDnnPoolGrad:
    """Gradient of a pooling. See :func:`cudnn_ct.pool_backward`."""

    mode: PoolMode = "max"

    def __call__(
        self,
        inp: ArrayLike,
        out: ArrayLike,
        out_grad: ArrayLike | None = None,
        ws: Sizes | GpuDnnPoolDesc | None = None,
        stride: Sizes | None = None,
        pad: Border | None = None,
        *,
        inp_grad: ArrayLike | None = None,
    ) -> DeviceArray:
        """Return the gradient with respect to ``inp``."""
        if ws is None:
            raise TypeError("ws is missing; pass the window, such as ws=(2, 2)")
        gradient = inp_grad if out_grad is None else out_grad
        if gradient is None or (out_grad is not None and inp_grad is not None):
            given = "neither" if gradient is None else "both"
            raise TypeError(f"out_grad is also called inp_grad: got {given}, expected one of the two")
        return run(pool_backward, gradient, inp, out, **_arguments(self.mode, ws, stride, pad))


def _arguments(mode: PoolMode, ws: Any, stride: Any, pad: Any) -> dict[str, Any]:
    if isinstance(ws, GpuDnnPoolDesc):
        mode, ws, stride, pad = ws.mode, ws.ws, ws.stride, ws.pad
    window, stride, padding = map(integers, (ws, stride, pad))
    return {
        "mode": mode,
        "window": window,
        "stride": 1 if stride is None else stride,
        "padding": 0 if padding is None else padding,
    }
