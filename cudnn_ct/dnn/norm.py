"""Batch normalization: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``."""

from __future__ import annotations

from typing import Any

from ..shapes.parse import as_choice
from .arguments import checked_flag
from .arrays import copied, overwritten
from .availability import ops

__all__ = [
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference",
    "dnn_batch_normalization_test",
    "dnn_batch_normalization_train",
]

MODES = {"per-activation": "per_activation", "spatial": "spatial"}

EPSILON, FACTOR = 1e-4, 0.1


def dnn_batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: str = "per-activation",
    epsilon: float = EPSILON,
    running_average_factor: float = FACTOR,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Any, ...]:
    """Normalize by the statistics of the batch. See :func:`cudnn_ct.batch_norm_training`."""
    normalise = GpuDnnBatchNorm(mode, running_averages=running_mean is not None or running_var is not None)
    return tuple(normalise(inputs, gamma, beta, epsilon, running_average_factor, running_mean, running_var))


def dnn_batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: str = "per-activation",
    epsilon: float = EPSILON,
) -> Any:
    """Normalize by ``mean`` and ``var``. See :func:`cudnn_ct.batch_norm_inference`."""
    return GpuDnnBatchNormInference(mode)(inputs, gamma, beta, mean, var, epsilon)


class GpuDnnBatchNorm:
    """Batch normalization in training. See :func:`cudnn_ct.batch_norm_training`."""

    def __init__(
        self,
        mode: str = "per-activation",
        running_averages: bool = False,
        inplace_running_mean: bool = False,
        inplace_running_var: bool = False,
        inplace_output: bool = False,
        *,
        epsilon: float | None = None,
        running_average_factor: float | None = None,
    ) -> None:
        self.mode = _mode(mode)
        self.running_averages = checked_flag(running_averages, "running_averages")
        self.inplace_running_mean = checked_flag(inplace_running_mean, "inplace_running_mean")
        self.inplace_running_var = checked_flag(inplace_running_var, "inplace_running_var")
        self.inplace_output = checked_flag(inplace_output, "inplace_output")
        self.epsilon, self.running_average_factor = epsilon, running_average_factor

    def __call__(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        epsilon: float = EPSILON,
        running_average_factor: float = FACTOR,
        running_mean: Any = None,
        running_var: Any = None,
    ) -> list[Any]:
        """Return a list of the result, ``mean``, ``invstd`` and the new running statistics, if any."""
        given = (running_mean, running_var)
        if self.running_averages != any(array is not None for array in given):
            problem = "are missing" if self.running_averages else "need running_averages=True"
            raise ValueError(f"running_mean and running_var {problem}")
        places = (self.inplace_running_mean, self.inplace_running_var)
        names = ("running_mean", "running_var")
        new = [
            array if inplace or array is None else copied(array, name)
            for array, inplace, name in zip(given, places, names, strict=True)
        ]
        y, mean, invstd = ops().batch_norm_training(
            x,
            scale,
            bias,
            mode=self.mode,
            epsilon=_either(epsilon, EPSILON, self.epsilon),
            running_mean=new[0],
            running_var=new[1],
            momentum=_either(running_average_factor, FACTOR, self.running_average_factor),
        )
        y = overwritten(x, y) if self.inplace_output else y
        return [y, mean, invstd, *(new if self.running_averages else [])]


class GpuDnnBatchNormInference:
    """Batch normalization with given statistics. See :func:`cudnn_ct.batch_norm_inference`."""

    def __init__(
        self, mode: str = "per-activation", inplace: bool = False, *, epsilon: float | None = None
    ) -> None:
        self.mode, self.inplace, self.epsilon = _mode(mode), checked_flag(inplace, "inplace"), epsilon

    def __call__(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        estimated_mean: Any,
        estimated_variance: Any,
        epsilon: float = EPSILON,
    ) -> Any:
        """Return ``(x - mean) / sqrt(variance + epsilon) * scale + bias``."""
        epsilon = _either(epsilon, EPSILON, self.epsilon)
        operands = (x, scale, bias, estimated_mean, estimated_variance)
        y = ops().batch_norm_inference(*operands, mode=self.mode, epsilon=epsilon)
        return overwritten(x, y) if self.inplace else y


class GpuDnnBatchNormGrad:
    """Gradients of batch normalization in training. See :func:`cudnn_ct.batch_norm_backward`."""

    def __init__(self, mode: str = "per-activation", *, epsilon: float | None = None) -> None:
        self.mode, self.epsilon = _mode(mode), epsilon

    def __call__(
        self, x: Any, dy: Any, scale: Any, x_mean: Any, x_invstd: Any, epsilon: float = EPSILON
    ) -> list[Any]:
        """Return a list of the gradients with respect to ``x``, ``scale`` and the bias."""
        epsilon = _either(epsilon, EPSILON, self.epsilon)
        gradients = ops().batch_norm_backward(dy, x, scale, x_mean, x_invstd, mode=self.mode, epsilon=epsilon)
        return list(gradients[:3])


def _mode(mode: str) -> str:
    return MODES[as_choice(mode, tuple(MODES), "mode")]


def _either(called: float, default: float, made: float | None) -> float:
    """Return the value of a call, or that of the operation if the call has the default."""
    return called if made is None or called != default else made
