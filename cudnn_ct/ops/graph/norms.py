"""Normalisations and their statistics: methods of :class:`cudnn_ct.Graph`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .builder import GraphBuilder
from .tensors import GraphTensor, Operands

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
