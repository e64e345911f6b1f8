"""Pooling and its gradient."""

from __future__ import annotations

from typing import Any

from .arguments import integers
from .availability import ops

__all__ = ["GpuDnnPool", "GpuDnnPoolDesc", "GpuDnnPoolGrad", "dnn_pool"]


def dnn_pool(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Any:
    """Return the maximum, average or sum of each window. See :func:`cudnn_ct.pool`."""
    return ops().pool(img, mode=mode, **_geometry(ws, stride, pad))


class GpuDnnPoolDesc:
    """Window, stride, mode and padding of a pooling, in place of ``ws``. See :func:`cudnn_ct.pool`."""

    def __init__(self, ws: Any = (1, 1), stride: Any = (1, 1), mode: str = "max", pad: Any = (0, 0)) -> None:
        self.ws, self.stride, self.pad = map(integers, (ws, stride, pad))
        self.mode = mode

    def __call__(self) -> GpuDnnPoolDesc:
        """Return the descriptor itself."""
        return self

    def __repr__(self) -> str:
        return f"GpuDnnPoolDesc(ws={self.ws}, stride={self.stride}, mode={self.mode!r}, pad={self.pad})"


class GpuDnnPool:
    """Pooling. See :func:`cudnn_ct.pool`."""

    def __init__(self, mode: str = "max") -> None:
        self.mode = mode

    def __call__(self, img: Any, ws: Any, stride: Any = None, pad: Any = None) -> Any:
        """Return the maximum, average or sum of each window."""
        return ops().pool(img, **_described(self.mode, ws, stride, pad))


class GpuDnnPoolGrad:
    """Gradient of a pooling. See :func:`cudnn_ct.pool_backward`."""

    def __init__(self, mode: str = "max") -> None:
        self.mode = mode

    def __call__(
        self,
        inp: Any,
        out: Any,
        out_grad: Any = None,
        ws: Any = None,
        stride: Any = None,
        pad: Any = None,
        *,
        inp_grad: Any = None,
    ) -> Any:
        """Return the gradient with respect to ``inp``."""
        if ws is None:
            raise TypeError("ws is missing; pass the window, such as ws=(2, 2)")
        if (out_grad is None) == (inp_grad is None):
            given = "neither" if out_grad is None else "both"
            raise TypeError(f"out_grad is also called inp_grad: got {given}, expected one of the two")
        gradient = inp_grad if out_grad is None else out_grad
        return ops().pool_backward(gradient, inp, out, **_described(self.mode, ws, stride, pad))


def _described(mode: str, ws: Any, stride: Any, pad: Any) -> dict[str, Any]:
    if isinstance(ws, GpuDnnPoolDesc):
        return {"mode": ws.mode, **_geometry(ws.ws, ws.stride, ws.pad)}
    return {"mode": mode, **_geometry(ws, stride, pad)}


def _geometry(ws: Any, stride: Any, pad: Any) -> dict[str, Any]:
    window, stride, padding = map(integers, (ws, stride, pad))
    stride, padding = 1 if stride is None else stride, 0 if padding is None else padding
    return {"window": window, "stride": stride, "padding": padding}
