"""Pooling, softmax, reductions, dropout and spatial transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..array import DeviceArray
from ..dtypes import as_dtype
from ..ops import dropout as dropouts
from ..ops._operands import stream_of
from ..ops.dropout import DropoutMask, DropoutState
from ..ops.pooling import pool, pool_backward
from ..ops.reduce import reduce as reductions
from ..ops.softmax import softmax, softmax_backward
from ..ops.spatial import spatial
from ..ops.tensor import transform
from ..shapes.specs import check_shape
from ..typing import ArrayLike, DTypeLike, PoolMode, ReduceOp, SoftmaxAlgo, SoftmaxMode
from .availability import run
from .checks import Border, Checked, Sizes, SoftmaxFormat, TheanoReduceOp, integers, on_device

# --- spatial -----------------------------------------------------------------------------------------------


def dnn_spatialtf(
    img: ArrayLike, theta: ArrayLike, scale_width: float = 1, scale_height: float = 1
) -> DeviceArray:
    """Return the images sampled at affine grids. See :func:`cudnn_ct.spatial_transformer`."""
    img, theta = on_device(img, "img"), on_device(theta, "theta")
    _check_sizes("img", img.shape, theta)
    return run(spatial.spatial_transformer, img, theta, scale_height=scale_height, scale_width=scale_width)


class GpuDnnTransformerGrid:
    """Sampling grids of affine transforms. See :func:`cudnn_ct.affine_grid`."""

    def __call__(self, theta: ArrayLike, out_dims: Sizes) -> DeviceArray:
        """Return the position in the image, from -1 to 1, for each element of the output."""
        theta, sizes = on_device(theta, "theta"), check_shape(integers(out_dims), "out_dims")
        _check_sizes("out_dims", sizes, theta)
        return run(spatial.affine_grid, theta, sizes)


class GpuDnnTransformerSampler:
    """Bilinear sampling of images at a grid. See :func:`cudnn_ct.grid_sample`."""

    def __call__(self, img: ArrayLike, grid: ArrayLike) -> DeviceArray:
        """Return the sampled images; positions outside of an image are 0."""
        return run(spatial.grid_sample, img, grid)


class GpuDnnTransformerGradI:
    """Gradients of the sampler. See :func:`cudnn_ct.grid_sample_backward`."""

    def __call__(self, img: ArrayLike, grid: ArrayLike, dy: ArrayLike) -> list[DeviceArray]:
        """Return a list of the gradients with respect to ``img`` and ``grid``."""
        return list(run(spatial.grid_sample_backward, dy, img, grid))


class GpuDnnTransformerGradT:
    """Gradient of the grid. See :func:`cudnn_ct.affine_grid_backward`."""

    def __call__(self, dgrid: ArrayLike) -> DeviceArray:
        """Return the gradient with respect to the transforms ``theta``."""
        return run(spatial.affine_grid_backward, dgrid)


def _check_sizes(name: str, sizes: tuple[int, ...], theta: DeviceArray) -> None:
    if 0 in sizes:
        raise RuntimeError(f"{name} has an axis of length 0: got {sizes}, expected lengths of at least 1")
    expected = (*sizes[:1], 2, 3)
    if theta.shape != expected:
        raise RuntimeError(f"incorrect dimensions for theta, expected {expected}, got {theta.shape}")


# --- layers ------------------------------------------------------------------------------------------------

# Theano's names of the reductions, and ours.
REDUCTIONS: dict[TheanoReduceOp, ReduceOp] = {
    "add": "add", "mul": "mul", "minimum": "min", "maximum": "max",
    "absmax": "amax", "avg": "average", "norm1": "norm1", "norm2": "norm2",
}  # fmt: skip


def dnn_pool(
    img: ArrayLike, ws: Sizes, stride: Sizes | None = None, mode: PoolMode = "max", pad: Border | None = None
) -> DeviceArray:
    """Return the maximum, average or sum of each window. See :func:`cudnn_ct.pool`."""
    return run(pool, img, **_pooling(mode, ws, stride, pad))


@dataclass(eq=False)
class GpuDnnPoolDesc(Checked):
    """Window, stride, mode and padding of a pooling, in place of ``ws``. See :func:`cudnn_ct.pool`."""

    ws: Sizes = (1, 1)
    stride: Sizes = (1, 1)
    mode: PoolMode = "max"
    pad: Border = (0, 0)

    def __call__(self) -> GpuDnnPoolDesc:
        """Return the descriptor itself."""
        return self


@dataclass(eq=False)
class GpuDnnPool(Checked):
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
        return run(pool, img, **_pooling(self.mode, ws, stride, pad))


@dataclass(eq=False)
class GpuDnnPoolGrad(Checked):
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
        return run(pool_backward, gradient, inp, out, **_pooling(self.mode, ws, stride, pad))


@dataclass(eq=False)
class GpuDnnSoftmax(Checked):
    """Softmax: ``exp(x) / sum(exp(x))``, or its logarithm. See :func:`cudnn_ct.softmax`."""

    algo: SoftmaxAlgo
    mode: SoftmaxMode
    tensor_format: SoftmaxFormat | None = field(default=None, kw_only=True)

    def __call__(self, x: ArrayLike) -> DeviceArray:
        """Return the softmax of ``x``."""
        return run(softmax, x, algo=self.algo, mode=self.mode)


class GpuDnnSoftmaxGrad(GpuDnnSoftmax):
    """Gradient of the softmax with respect to its input. See :func:`cudnn_ct.softmax_backward`."""

    def __call__(self, dy: ArrayLike, sm: ArrayLike) -> DeviceArray:  # type: ignore[override]
        """Return the gradient, from the result ``sm`` of the softmax."""
        return run(softmax_backward, dy, sm, algo=self.algo, mode=self.mode)


@dataclass(eq=False)
class GpuDnnReduction(Checked):
    """Reduction over axes, which are removed. See :func:`cudnn_ct.reduce`."""

    red_op: TheanoReduceOp
    axis: Sizes | None = None
    acc_dtype: DTypeLike | None = None
    dtype: DTypeLike | None = None
    return_indices: bool = False

    def __call__(self, inp: ArrayLike) -> DeviceArray | list[DeviceArray]:
        """Return the reduction of ``inp``, or a list of it and the indices."""
        inp = on_device(inp, "inp")
        own = as_dtype(inp.spec.dtype).accumulate
        if self.acc_dtype not in (None, own):
            text = f"acc_dtype does not match {inp.spec.dtype}: got {self.acc_dtype}, expected {own} or None"
            raise ValueError(text)
        if self.dtype not in (None, inp.spec.dtype) and own != inp.spec.dtype:
            inp = run(transform, inp, dtype=own)  # else the result is rounded to half precision first
        arguments: dict[str, Any] = {"op": REDUCTIONS[self.red_op], "axis": self.axis}
        if self.return_indices:
            y, *indices = run(reductions.reduce_with_indices, inp, **arguments)
        else:
            y, indices = run(reductions.reduce, inp, **arguments), []
        if self.dtype not in (None, inp.spec.dtype):
            y = run(transform, y, dtype=self.dtype)
        return [y, *indices] if self.return_indices else y


class Dropped(NamedTuple):
    """Result of :func:`dropout`: ``desc`` and ``states`` are the random state, ``odesc`` is the mask."""

    y: DeviceArray
    desc: DropoutState
    odesc: DropoutMask
    states: DropoutState


def dropout(x: ArrayLike, dropout: float = 0.0, seed: int = 4242) -> Dropped:
    """Return ``x * mask / (1 - dropout)`` with a random mask. See :func:`cudnn_ct.dropout`."""
    state = run(DropoutState, dropout, seed, stream=stream_of(x, "x", None))
    y, mask = run(dropouts.dropout, x, state)
    return Dropped(y, state, mask, state)


@dataclass(eq=False)
class GpuDnnDropoutOp(Checked):
    """Dropout with an existing random state. See :func:`cudnn_ct.dropout`."""

    inplace: bool = False

    def __call__(
        self, inp: ArrayLike, descriptor: DropoutState, state: DropoutState | None = None
    ) -> list[DeviceArray | DropoutState | DropoutMask]:
        """Return a list of the result, the random state and the mask."""
        if state is not None and state is not descriptor:
            raise ValueError(f"state is not the descriptor: got {state!r}, expected {descriptor!r} or None")
        y, mask = run(dropouts.dropout, inp, descriptor, out=inp if self.inplace else None)
        return [y, descriptor, mask]


def _pooling(mode: PoolMode, ws: Any, stride: Any, pad: Any) -> dict[str, Any]:
    if isinstance(ws, GpuDnnPoolDesc):
        mode, ws, stride, pad = ws.mode, ws.ws, ws.stride, ws.pad
    window, stride, padding = map(integers, (ws, stride, pad))
    return {
        "mode": mode,
        "window": window,
        "stride": 1 if stride is None else stride,
        "padding": 0 if padding is None else padding,
    }
