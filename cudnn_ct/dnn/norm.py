"""Batch normalization: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import cast

from ..array import DeviceArray
from ..ops.norm.norm import batch_norm_backward, batch_norm_inference, batch_norm_training
from ..typing import ArrayLike, NormMode
from .availability import run
from .checks import Checked, Epsilon, Factor, TheanoNormMode, copied, overwritten

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
