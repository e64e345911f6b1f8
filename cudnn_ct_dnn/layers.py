"""Pooling, softmax, reductions, dropout, spatial transformers and batch normalization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, cast

from cudnn_ct.array import DeviceArray
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.ops import dropout as dropouts
from cudnn_ct.ops._operands import stream_of
from cudnn_ct.ops.dropout import DropoutMask, DropoutState
from cudnn_ct.ops.norm.norm import batch_norm_backward, batch_norm_inference, batch_norm_training
from cudnn_ct.ops.pooling import pool, pool_backward
from cudnn_ct.ops.reduce import reduce as reductions
from cudnn_ct.ops.softmax import softmax, softmax_backward
from cudnn_ct.ops.spatial import spatial
from cudnn_ct.ops.tensor import transform
from cudnn_ct.shapes.specs import check_shape
from cudnn_ct.typing import ArrayLike, DTypeLike, NormMode, PoolMode, ReduceOp, SoftmaxAlgo, SoftmaxMode

from .checks import (
    Border,
    Checked,
    Epsilon,
    Factor,
    Sizes,
    SoftmaxFormat,
    TheanoNormMode,
    TheanoReduceOp,
    copied,
    integers,
    on_device,
    overwritten,
    run,
)

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


# --- batch normalization -----------------------------------------------------------------------------------

MODES: dict[TheanoNormMode, NormMode] = {"per-activation": "per_activation", "spatial": "spatial"}

EPSILON, FACTOR = 1e-4, 0.1


def dnn_batch_normalization_train(
    inputs: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    mode: TheanoNormMode = "per-activation",
    epsilon: float = EPSILON,
    running_average_factor: float = FACTOR,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
) -> tuple[DeviceArray, ...]:
    """Normalize by the statistics of the batch. See :func:`cudnn_ct.batch_norm_training`."""
    normalise = GpuDnnBatchNorm(mode, running_averages=running_mean is not None or running_var is not None)
    results = normalise(inputs, gamma, beta, epsilon, running_average_factor, running_mean, running_var)
    return cast(tuple[DeviceArray, ...], tuple(results))  # the new running statistics are copies


def dnn_batch_normalization_test(
    inputs: ArrayLike,
    gamma: ArrayLike,
    beta: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    mode: TheanoNormMode = "per-activation",
    epsilon: float = EPSILON,
) -> DeviceArray:
    """Normalize by ``mean`` and ``var``. See :func:`cudnn_ct.batch_norm_inference`."""
    return GpuDnnBatchNormInference(mode)(inputs, gamma, beta, mean, var, epsilon)


@dataclass(eq=False)
class GpuDnnBatchNorm(Checked):
    """Batch normalization in training. See :func:`cudnn_ct.batch_norm_training`."""

    mode: TheanoNormMode = "per-activation"
    running_averages: bool = False
    inplace_running_mean: bool = False
    inplace_running_var: bool = False
    inplace_output: bool = False
    _: KW_ONLY
    epsilon: Epsilon | None = None
    running_average_factor: Factor | None = None

    def __call__(
        self,
        x: ArrayLike,
        scale: ArrayLike,
        bias: ArrayLike,
        epsilon: float = EPSILON,
        running_average_factor: float = FACTOR,
        running_mean: ArrayLike | None = None,
        running_var: ArrayLike | None = None,
    ) -> list[ArrayLike]:
        """Return a list of the result, ``mean``, ``invstd`` and the new running statistics, if any."""
        new = {"running_mean": running_mean, "running_var": running_var}
        if self.running_averages != any(array is not None for array in new.values()):
            problem = "are missing" if self.running_averages else "need running_averages=True"
            raise ValueError(f"running_mean and running_var {problem}")
        for name, array in new.items():
            if array is not None and not getattr(self, f"inplace_{name}"):
                new[name] = copied(array, name)
        y, mean, invstd = run(
            batch_norm_training,
            x,
            scale,
            bias,
            mode=MODES[self.mode],
            epsilon=_either(epsilon, EPSILON, self.epsilon),
            running_mean=new["running_mean"],
            running_var=new["running_var"],
            momentum=_either(running_average_factor, FACTOR, self.running_average_factor),
        )
        y = overwritten(x, y) if self.inplace_output else y
        return [y, mean, invstd, *(new.values() if self.running_averages else ())]


@dataclass(eq=False)
class GpuDnnBatchNormInference(Checked):
    """Batch normalization with given statistics. See :func:`cudnn_ct.batch_norm_inference`."""

    mode: TheanoNormMode = "per-activation"
    inplace: bool = False
    _: KW_ONLY
    epsilon: Epsilon | None = None

    def __call__(
        self,
        x: ArrayLike,
        scale: ArrayLike,
        bias: ArrayLike,
        estimated_mean: ArrayLike,
        estimated_variance: ArrayLike,
        epsilon: float = EPSILON,
    ) -> DeviceArray:
        """Return ``(x - mean) / sqrt(variance + epsilon) * scale + bias``."""
        operands = (x, scale, bias, estimated_mean, estimated_variance)
        epsilon = _either(epsilon, EPSILON, self.epsilon)
        y = run(batch_norm_inference, *operands, mode=MODES[self.mode], epsilon=epsilon)
        return overwritten(x, y) if self.inplace else y


@dataclass(eq=False)
class GpuDnnBatchNormGrad(Checked):
    """Gradients of batch normalization in training. See :func:`cudnn_ct.batch_norm_backward`."""

    mode: TheanoNormMode = "per-activation"
    _: KW_ONLY
    epsilon: Epsilon | None = None

    def __call__(
        self,
        x: ArrayLike,
        dy: ArrayLike,
        scale: ArrayLike,
        x_mean: ArrayLike,
        x_invstd: ArrayLike,
        epsilon: float = EPSILON,
    ) -> list[DeviceArray]:
        """Return a list of the gradients with respect to ``x``, ``scale`` and the bias."""
        operands, epsilon = (dy, x, scale, x_mean, x_invstd), _either(epsilon, EPSILON, self.epsilon)
        gradients = run(batch_norm_backward, *operands, mode=MODES[self.mode], epsilon=epsilon)
        return [gradients.dx, gradients.dscale, gradients.dbias]


def _either(called: float, default: float, made: float | None) -> float:
    """Return the value of a call, or that of the operation if the call has the default."""
    return called if made is None or called != default else made
