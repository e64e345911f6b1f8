"""Pooling, and its gradient."""

from __future__ import annotations

from typing import Any

from .arguments import integers
from .availability import ops

__all__ = ["GpuDnnPool", "GpuDnnPoolDesc", "GpuDnnPoolGrad", "dnn_pool"]


def dnn_pool(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Any:
    """Pool: the largest element, average or sum of each window.

    Parameters
    ----------
    img : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
    ws : tuple of int
        The window.
    stride : tuple of int, optional
        1 by default, so that windows overlap.
    mode : {"max", "average_inc_pad", "average_exc_pad", "sum", "max_deterministic"}
        ``"average"`` is ``"average_inc_pad"``.
    pad : tuple of int, optional
        0 by default; less than the window.

    Returns
    -------
    DeviceArray, shape (N, C, *out), each ``out = (n + 2 * pad - ws) // stride + 1``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`cudnn_ct.pool`.

    Notes
    -----
    By :func:`cudnn_ct.pool`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 5, 2, 4]]]], "float32")
    >>> ct.dnn.dnn_pool(img, (1, 2), stride=(1, 2)).numpy()
    array([[[[5., 4.]]]], dtype=float32)
    """
    return ops().pool(img, mode=mode, **_geometry(ws, stride, pad))


class GpuDnnPoolDesc:
    """The window of a pooling, as a value; the operations take it in place of ``ws``.

    Parameters
    ----------
    ws, stride, mode, pad
        As in :func:`dnn_pool`.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 5, 2, 4]]]], "float32")
    >>> desc = ct.dnn.GpuDnnPoolDesc((1, 2), (1, 2))
    >>> ct.dnn.GpuDnnPool()(img, desc).numpy()
    array([[[[5., 4.]]]], dtype=float32)
    """

    def __init__(self, ws: Any = (1, 1), stride: Any = (1, 1), mode: str = "max", pad: Any = (0, 0)) -> None:
        self.ws, self.stride, self.pad = map(integers, (ws, stride, pad))
        self.mode = mode

    def __call__(self) -> GpuDnnPoolDesc:
        """Return the description itself."""
        return self

    def __repr__(self) -> str:
        return f"GpuDnnPoolDesc(ws={self.ws}, stride={self.stride}, mode={self.mode!r}, pad={self.pad})"


class GpuDnnPool:
    """A pooling.

    Parameters
    ----------
    mode : str
        As in :func:`dnn_pool`.

    Notes
    -----
    By :func:`cudnn_ct.pool`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 5, 2, 4]]]], "float32")
    >>> ct.dnn.GpuDnnPool(mode="sum")(img, (1, 2), (1, 2), (0, 0)).numpy()
    array([[[[6., 6.]]]], dtype=float32)
    """

    def __init__(self, mode: str = "max") -> None:
        self.mode = mode

    def __call__(self, img: Any, ws: Any, stride: Any = None, pad: Any = None) -> Any:
        """Pool, as :func:`dnn_pool` does.

        Parameters
        ----------
        img, ws, stride, pad
            As there; or a :class:`GpuDnnPoolDesc` for ``ws``, whose mode, stride and pad then hold.

        Returns
        -------
        DeviceArray

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As there.
        """
        return ops().pool(img, **_described(self.mode, ws, stride, pad))


class GpuDnnPoolGrad:
    """The gradient of a pooling.

    Parameters
    ----------
    mode : str
        As in :func:`dnn_pool`.

    Notes
    -----
    By :func:`cudnn_ct.pool_backward`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 5, 2, 4]]]], "float32")
    >>> y, dy = ct.dnn.dnn_pool(img, (1, 2), (1, 2)), ct.asarray([[[[1, 10]]]], "float32")
    >>> ct.dnn.GpuDnnPoolGrad()(img, y, dy, (1, 2), (1, 2), (0, 0)).numpy()
    array([[[[ 0.,  1.,  0., 10.]]]], dtype=float32)
    """

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
        """Compute the gradient with regard to ``inp``.

        Parameters
        ----------
        inp : device array, shape (N, C, *spatial), float16 | bfloat16 | float32 | float64
        out : device array
            What the pooling gave; an average does not look at it.
        out_grad : device array, shape of out
        ws, stride, pad
            As in :class:`GpuDnnPool`; ``ws`` is required.
        inp_grad : device array
            The older name of ``out_grad``.

        Returns
        -------
        DeviceArray, shape of inp

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.pool_backward`; TypeError also if ``ws`` is missing, or not exactly one of
            ``out_grad`` and ``inp_grad`` is given.
        """
        if ws is None:
            raise TypeError("ws is missing; pass the window, such as ws=(2, 2)")
        if (out_grad is None) == (inp_grad is None):
            given = "neither" if out_grad is None else "both"
            raise TypeError(f"out_grad is also called inp_grad: got {given}, expected one of the two")
        gradient = inp_grad if out_grad is None else out_grad
        return ops().pool_backward(inp, out, gradient, **_described(self.mode, ws, stride, pad))


def _described(mode: str, ws: Any, stride: Any, pad: Any) -> dict[str, Any]:
    if isinstance(ws, GpuDnnPoolDesc):
        return {"mode": ws.mode, **_geometry(ws.ws, ws.stride, ws.pad)}
    return {"mode": mode, **_geometry(ws, stride, pad)}


def _geometry(ws: Any, stride: Any, pad: Any) -> dict[str, Any]:
    window, stride, padding = map(integers, (ws, stride, pad))
    stride, padding = 1 if stride is None else stride, 0 if padding is None else padding
    return {"window": window, "stride": stride, "padding": padding}
