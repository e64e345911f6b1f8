"""Convolutions, products, reductions, pooling and normalisations: methods of :class:`cudnn_ct.Graph`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from ..._hints import methods_of
from ...shapes.checks import as_ints, some_axes
from ...shapes.tensor import as_reduce_op
from ...typing import ConvMode, Padding, PerAxis, ReduceOp
from .builder import GraphBuilder
from .tensors import GraphTensor, Operands

Pooling = Literal["maxpool", "avgpool", "avgpool_exclude_padding"]
Resampling = Literal["maxpool", "avgpool", "avgpool_exclude_padding", "bilinear"]


@methods_of("Graph")
class ProductMethods(GraphBuilder):
    """Operations that combine many elements into one."""

    def matmul(self, a: GraphTensor, b: GraphTensor, *, name: str | None = None) -> GraphTensor:
        """Return the matrix product of a (..., M, K) and b (..., K, N); batch axes broadcast."""
        return self._apply("matmul", {"a": a, "b": b}, name)["c"]

    def conv(
        self,
        x: GraphTensor,
        w: GraphTensor,
        *,
        padding: Padding = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        mode: ConvMode = "cross_correlation",
        name: str | None = None,
    ) -> GraphTensor:
        """Return the convolution of x (N, C, *spatial) with w (K, C / groups, *window)."""
        geometry = {"padding": padding, "stride": stride, "dilation": dilation, "conv_mode": mode}
        return self._apply("conv_forward", {"x": x, "w": w}, name, **geometry)["y"]

    def conv_backward_data(
        self,
        dy: GraphTensor,
        w: GraphTensor,
        x_shape: Iterable[int],
        *,
        padding: Padding = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        mode: ConvMode = "cross_correlation",
        name: str | None = None,
    ) -> GraphTensor:
        """Return the gradient of :meth:`conv` with respect to x of this shape."""
        geometry = {"padding": padding, "stride": stride, "dilation": dilation, "conv_mode": mode}
        operands, shape = {"dy": dy, "w": w}, as_ints(x_shape, "x_shape")
        return self._apply("conv_backward_data", operands, name, x_shape=shape, **geometry)["dx"]

    def conv_backward_filter(
        self,
        dy: GraphTensor,
        x: GraphTensor,
        w_shape: Iterable[int],
        *,
        padding: Padding = 0,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        mode: ConvMode = "cross_correlation",
        name: str | None = None,
    ) -> GraphTensor:
        """Return the gradient of :meth:`conv` with respect to w of this shape."""
        geometry = {"padding": padding, "stride": stride, "dilation": dilation, "conv_mode": mode}
        operands, shape = {"dy": dy, "x": x}, as_ints(w_shape, "w_shape")
        return self._apply("conv_backward_filter", operands, name, w_shape=shape, **geometry)["dw"]

    def reduce(
        self,
        x: GraphTensor,
        op: ReduceOp = "add",
        axes: int | Iterable[int] | None = None,
        *,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the reduction of x over ``axes``, all by default; reduced axes have length 1.

        Unlike NumPy's, maxima and minima pass over NaN, and those of infinities only may be finite.
        """
        operator = as_reduce_op(op)
        if not isinstance(x, GraphTensor):
            raise TypeError(f"x is not a GraphTensor: got {type(x).__name__}")
        rank = len(x.shape)
        over = tuple(range(rank)) if axes is None else some_axes(axes, rank, "axes")
        return self._apply("reduction", {"x": x}, name, operator=operator, axes=over)["y"]

    def resample(
        self,
        x: GraphTensor,
        mode: Resampling,
        window: PerAxis | None = None,
        *,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the pooling of x (N, C, *spatial) with 2 or 3 spatial axes, or x of twice the size.

        Poolings need a window, and the stride is the window by default. Mode "bilinear" doubles two spatial
        axes: ``y[2 * i] = x[i]`` and ``y[2 * i + 1] = (x[i] + x[min(i + 1, n - 1)]) / 2`` along both of them,
        for x of n elements. PyTorch's ``interpolate`` places pixels differently, with ``align_corners`` or
        without. cuDNN computes it for float32 operands with channels last.
        """
        return self._resample("resample_forward", {"x": x}, mode, window, stride, padding, name)["y"]

    def resample_with_indices(
        self,
        x: GraphTensor,
        window: PerAxis,
        *,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        name: str | None = None,
    ) -> tuple[GraphTensor, GraphTensor]:
        """Return the maximum in each window, and its index in the window as int8, for the gradient."""
        made = self._resample("resample_forward", {"x": x}, "maxpool", window, stride, padding, name)
        return made["y"], made["indices"]

    def resample_backward(
        self,
        dy: GraphTensor,
        x_shape: Iterable[int],
        mode: Pooling,
        window: PerAxis,
        *,
        stride: PerAxis | None = None,
        padding: Padding = 0,
        indices: GraphTensor | None = None,
        x: GraphTensor | None = None,
        y: GraphTensor | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the gradient of a pooling; that of maxpool needs the indices, or x and y."""
        operands: Operands = {"dy": dy, "indices": indices, "x": x, "y": y}
        shape = as_ints(x_shape, "x_shape")
        given = (mode, window, stride, padding, name)
        return self._resample("resample_backward", operands, *given, x_shape=shape)["dx"]

    def moe_grouped_matmul(
        self,
        token: GraphTensor,
        weight: GraphTensor,
        first_token_offset: GraphTensor,
        *,
        mode: Literal["none", "gather", "scatter"] = "none",
        token_index: GraphTensor | None = None,
        token_ks: GraphTensor | None = None,
        top_k: int | None = None,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the products of token (1, T, K), in groups of rows, with the experts weight (E, K, N).

        ``first_token_offset`` (E, 1, 1) int32 has the first row of each expert. Mode "gather" takes the rows
        ``token_index`` names, and "scatter" writes to them. Building a "gather" raises NotSupportedError,
        because it ended the CUDA context on an H200; the cause is not known.
        """
        operands: Operands = {
            "token": token,
            "weight": weight,
            "first_token_offset": first_token_offset,
            "token_index": token_index,
            "token_ks": token_ks,
        }
        return self._apply("moe_grouped_matmul", operands, name, mode=mode, top_k=top_k)["output"]

    def _resample(
        self,
        kind: str,
        operands: Operands,
        mode: Resampling,
        window: PerAxis | None,
        stride: PerAxis | None,
        padding: Padding,
        name: str | None,
        **attributes: Any,
    ) -> dict[str, GraphTensor]:
        step = window if stride is None else stride
        attributes |= {"mode": mode, "window": window, "stride": step, "padding": padding}
        return self._apply(kind, operands, name, **attributes)


Norm = Literal["layer_norm", "instance_norm", "batch_norm", "group_norm", "rms_norm", "ada_layer_norm"]


class GraphNorm(NamedTuple):
    """Results of a normalisation in training: y, and the statistics that exist."""

    y: GraphTensor
    mean: GraphTensor | None
    inv_variance: GraphTensor
    next_running_mean: GraphTensor | None = None
    next_running_var: GraphTensor | None = None


class GraphNormGradients(NamedTuple):
    """Gradients of a normalisation; ``dbias`` is None for an RMS norm without bias."""

    dx: GraphTensor
    dscale: GraphTensor
    dbias: GraphTensor | None


@methods_of("Graph")
class NormMethods(GraphBuilder):
    """Normalisations in all modes of cuDNN, and the parts of a batch norm."""

    def layer_norm(
        self,
        x: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        *,
        epsilon: float = 1e-5,
        name: str | None = None,
    ) -> GraphTensor:
        """Return x normalised over the axes along which ``scale`` varies, times scale, plus bias."""
        operands: Operands = {"x": x, "scale": scale, "bias": bias, "epsilon": epsilon}
        return self._apply("norm_forward", operands, name, mode="layer_norm", phase="inference")["y"]

    def rms_norm(
        self,
        x: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor | None = None,
        *,
        epsilon: float = 1e-5,
        name: str | None = None,
    ) -> GraphTensor:
        """Return ``x / sqrt(mean(x * x) + epsilon)`` over the axes of ``scale``, times scale, plus bias."""
        operands: Operands = {"x": x, "scale": scale, "bias": bias, "epsilon": epsilon}
        return self._apply("norm_forward", operands, name, mode="rms_norm", phase="inference")["y"]

    def batch_norm_inference(
        self,
        x: GraphTensor,
        mean: GraphTensor,
        inv_variance: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        *,
        name: str | None = None,
    ) -> GraphTensor:
        """Return ``(x - mean) * inv_variance * scale + bias``, in pointwise operations."""
        centred = self._apply("pointwise", {"x": x, "b": mean}, None, mode="sub")["y"]
        normalised = self._apply("pointwise", {"x": centred, "b": inv_variance}, None, mode="mul")["y"]
        scaled = self._apply("pointwise", {"x": normalised, "b": scale}, None, mode="mul")["y"]
        return self._apply("pointwise", {"x": scaled, "b": bias}, name, mode="add")["y"]

    def norm(
        self,
        x: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor | None = None,
        *,
        mode: Norm,
        epsilon: float = 1e-5,
        axes: int | tuple[int, ...] | None = None,
        running_mean: GraphTensor | None = None,
        running_var: GraphTensor | None = None,
        momentum: float | None = None,
        name: str | None = None,
    ) -> GraphNorm:
        """Return a normalisation in training, with its statistics for :meth:`norm_backward`.

        ``axes`` are those of the statistics; by default, layer and RMS norm take the axes along which
        ``scale`` varies, adaptive layer norm the last, instance norm the spatial axes, and batch norm these
        and the batch. Running statistics become ``(1 - momentum) * running + momentum * statistics``.
        """
        if (running_mean is None) != (running_var is None) or (running_mean is None) != (momentum is None):
            raise ValueError("running statistics are incomplete: pass running_mean, running_var and momentum")
        operands: Operands = {
            "x": x,
            "scale": scale,
            "bias": bias,
            "epsilon": epsilon,
            "running_mean": running_mean,
            "running_var": running_var,
            "exp_average_factor": momentum,
        }
        made = self._apply("norm_forward", operands, name, mode=mode, phase="training", axes=axes)
        return GraphNorm(*(made.get(field) for field in GraphNorm._fields))  # type: ignore[arg-type]

    def norm_backward(
        self,
        dy: GraphTensor,
        x: GraphTensor,
        scale: GraphTensor,
        mean: GraphTensor | None,
        inv_variance: GraphTensor,
        *,
        mode: Norm,
        axes: int | tuple[int, ...] | None = None,
        bias_gradient: bool = True,
        name: str | None = None,
    ) -> GraphNormGradients:
        """Return the gradients of :meth:`norm` from the statistics that it returned."""
        operands: Operands = {"x": x, "dy": dy, "scale": scale, "mean": mean, "inv_variance": inv_variance}
        made = self._apply(
            "norm_backward", operands, name, mode=mode, axes=axes, bias_gradient=bias_gradient or None
        )
        return GraphNormGradients(made["dx"], made["dscale"], made.get("dbias"))

    def gen_stats(self, x: GraphTensor, *, name: str | None = None) -> tuple[GraphTensor, GraphTensor]:
        """Return the sums of x (N, C, *spatial) and of its squares for each channel, (1, C, 1, 1) float32."""
        made = self._apply("gen_stats", {"x": x}, name, mode="sum_sqsum")
        return made["sum"], made["sq_sum"]

    def bn_finalize(
        self,
        y_sum: GraphTensor,
        y_sq_sum: GraphTensor,
        scale: GraphTensor,
        bias: GraphTensor,
        *,
        running_mean: GraphTensor,
        running_var: GraphTensor,
        momentum: float,
        count: int,
        epsilon: float = 1e-5,
        name: str | None = None,
    ) -> dict[str, GraphTensor]:
        """Return the statistics of a batch norm from sums over ``count`` elements per channel.

        The results are ``eq_scale`` and ``eq_bias``, with ``y * eq_scale + eq_bias`` the normalised y,
        ``saved_mean``, ``saved_inv_std``, ``updated_running_mean`` and ``updated_running_var``.
        """
        elements = self.constant(count, "int64")
        operands: Operands = {
            "y_sum": y_sum,
            "y_sq_sum": y_sq_sum,
            "scale": scale,
            "bias": bias,
            "prev_running_mean": running_mean,
            "prev_running_var": running_var,
            "accum_count": elements,
            "epsilon": epsilon,
            "exp_average_factor": momentum,
        }
        return self._apply("bn_finalize", operands, name, stats_mode="training")

    def bn_backward_weights(
        self,
        dy: GraphTensor,
        x: GraphTensor,
        mean: GraphTensor,
        inv_std: GraphTensor,
        scale: GraphTensor,
        *,
        name: str | None = None,
    ) -> dict[str, GraphTensor]:
        """Return the gradients ``dscale`` and ``dbias`` of a batch norm, and that of x by parts.

        The gradient of x is ``dy * eq_dy_scale + x * eq_x_scale + eq_bias``.
        """
        operands: Operands = {"x": x, "dy": dy, "mean": mean, "inv_std": inv_std, "scale": scale}
        return self._apply("bn_backward_weights", operands, name)
