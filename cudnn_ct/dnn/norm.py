"""Batch normalisation: training, inference, gradient."""

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
    """Normalise a batch by its own mean and variance.

    Parameters
    ----------
    inputs : device array, shape (N, C, ...), float16 | bfloat16 | float32 | float64
    gamma, beta : device arrays, the axes of inputs, of length 1 where the mean is over
        float32 for half types, else of the dtype of inputs.
    mode : {"per-activation", "spatial"}
        Whether a mean is over the first axis, or over all but the second.
    epsilon : float, at least 0
    running_average_factor : float
        The weight of this batch in the running statistics.
    running_mean, running_var : device arrays, as gamma, both or neither, optional
        They are not changed.

    Returns
    -------
    tuple of DeviceArray
        ``out``, ``mean``, ``invstd``, which is 1 / sqrt(variance + epsilon), and with running statistics
        ``new_running_mean`` and ``new_running_var``.

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`cudnn_ct.batch_norm_training`.

    Notes
    -----
    By :func:`cudnn_ct.batch_norm_training`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> x = ct.asarray([[1], [3]], "float32")
    >>> gamma, beta = ct.asarray([[10]], "float32"), ct.asarray([[5]], "float32")
    >>> y, mean, invstd = ct.dnn.dnn_batch_normalization_train(x, gamma, beta)
    >>> y.numpy().ravel(), mean.numpy().ravel()
    (array([-4.9995,  14.9995], dtype=float32), array([2.], dtype=float32))
    """
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
    """Compute ``(inputs - mean) * gamma / sqrt(var + epsilon) + beta``.

    Parameters
    ----------
    inputs, gamma, beta, mode, epsilon
        As in :func:`dnn_batch_normalization_train`.
    mean, var : device arrays, as gamma

    Returns
    -------
    DeviceArray, shape and dtype of inputs

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`cudnn_ct.batch_norm_inference`.

    Notes
    -----
    By :func:`cudnn_ct.batch_norm_inference`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> x, gamma, beta, mean, var = (
    ...     ct.asarray(values, "float32") for values in ([[7], [9]], [[4]], [[1]], [[5]], [[4]])
    ... )
    >>> ct.dnn.dnn_batch_normalization_test(x, gamma, beta, mean, var, epsilon=0).numpy().ravel()
    array([5., 9.], dtype=float32)
    """
    return GpuDnnBatchNormInference(mode)(inputs, gamma, beta, mean, var, epsilon)


class GpuDnnBatchNorm:
    """A batch normalisation in training.

    Parameters
    ----------
    mode : {"per-activation", "spatial"}
    running_averages : bool
        Whether the call takes running statistics and gives new ones.
    inplace_running_mean, inplace_running_var : bool
        Whether the new ones take the place of the old.
    inplace_output : bool
        Whether the result takes the place of x, by a copy.
    epsilon, running_average_factor : float, optional
        Where the older module has them; the call's count, where they are not its defaults.

    Raises
    ------
    TypeError
        A flag is not a bool, as in the argument order of the older module.
    ValueError
        There is no such mode.

    Notes
    -----
    By :func:`cudnn_ct.batch_norm_training`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> x = ct.asarray([[1], [3]], "float32")
    >>> gamma, beta = ct.asarray([[10]], "float32"), ct.asarray([[5]], "float32")
    >>> y, mean, invstd = ct.dnn.GpuDnnBatchNorm("spatial")(x, gamma, beta)
    >>> mean.numpy().ravel()
    array([2.], dtype=float32)
    """

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
        """Normalise, as :func:`dnn_batch_normalization_train` does.

        Parameters
        ----------
        x, scale, bias : device arrays
            ``inputs``, ``gamma`` and ``beta`` there.
        epsilon, running_average_factor, running_mean, running_var
            As there.

        Returns
        -------
        list of DeviceArray
            The result, ``mean``, ``invstd``, and with running statistics the new ones.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As there; ValueError also where running statistics are given, or not, against
            ``running_averages``.
        """
        given = (running_mean, running_var)
        if self.running_averages != any(array is not None for array in given):
            wanted = "are to be given" if self.running_averages else "need running_averages=True"
            raise ValueError(f"running_mean and running_var {wanted}")
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
    """A batch normalisation by given statistics.

    Parameters
    ----------
    mode : {"per-activation", "spatial"}
    inplace : bool
        Whether the result takes the place of x, by a copy.
    epsilon : float, optional
        Where the older module has it; the call's counts, where it is not its default.

    Raises
    ------
    TypeError
        ``inplace`` is not a bool, as in the argument order of the older module.
    ValueError
        There is no such mode.

    Notes
    -----
    By :func:`cudnn_ct.batch_norm_inference`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> x, scale, bias, mean, var = (
    ...     ct.asarray(values, "float32") for values in ([[7], [9]], [[4]], [[1]], [[5]], [[4]])
    ... )
    >>> ct.dnn.GpuDnnBatchNormInference("spatial")(x, scale, bias, mean, var, 0).numpy().ravel()
    array([5., 9.], dtype=float32)
    """

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
        """Normalise, as :func:`dnn_batch_normalization_test` does.

        Parameters
        ----------
        x, scale, bias, estimated_mean, estimated_variance : device arrays
            ``inputs``, ``gamma``, ``beta``, ``mean`` and ``var`` there.
        epsilon : float, at least 0

        Returns
        -------
        DeviceArray; with ``inplace`` x itself

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As there.
        """
        epsilon = _either(epsilon, EPSILON, self.epsilon)
        operands = (x, scale, bias, estimated_mean, estimated_variance)
        y = ops().batch_norm_inference(*operands, mode=self.mode, epsilon=epsilon)
        return overwritten(x, y) if self.inplace else y


class GpuDnnBatchNormGrad:
    """The gradient of a batch normalisation in training.

    Parameters
    ----------
    mode : {"per-activation", "spatial"}
    epsilon : float, optional
        Where the older module has it; the call's counts, where it is not its default.

    Raises
    ------
    ValueError
        There is no such mode.

    Notes
    -----
    By :func:`cudnn_ct.batch_norm_backward`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> x, dy = ct.asarray([[1], [3], [5]], "float32"), ct.asarray([[0], [0], [6]], "float32")
    >>> one = ct.asarray([[1]], "float32")
    >>> y, mean, invstd = ct.dnn.GpuDnnBatchNorm("spatial")(x, one, one)
    >>> dx, dscale, dbias = ct.dnn.GpuDnnBatchNormGrad("spatial")(x, dy, one, mean, invstd)
    >>> dbias.numpy().ravel()
    array([6.], dtype=float32)
    """

    def __init__(self, mode: str = "per-activation", *, epsilon: float | None = None) -> None:
        self.mode, self.epsilon = _mode(mode), epsilon

    def __call__(
        self, x: Any, dy: Any, scale: Any, x_mean: Any, x_invstd: Any, epsilon: float = EPSILON
    ) -> list[Any]:
        """Compute the gradients with regard to x, scale and bias.

        Parameters
        ----------
        x, dy : device arrays, shape (N, C, ...), float16 | bfloat16 | float32 | float64
        scale : device array, as gamma in :func:`dnn_batch_normalization_train`
        x_mean, x_invstd : device arrays
            What the forward step gave.
        epsilon : float, at least 0
            That of the forward step.

        Returns
        -------
        list of DeviceArray
            Gradients, as x, scale and scale.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`cudnn_ct.batch_norm_backward`.
        """
        epsilon = _either(epsilon, EPSILON, self.epsilon)
        gradients = ops().batch_norm_backward(x, dy, scale, x_mean, x_invstd, mode=self.mode, epsilon=epsilon)
        return list(gradients[:3])


def _mode(mode: str) -> str:
    return MODES[as_choice(mode, tuple(MODES), "mode")]


def _either(called: float, default: float, made: float | None) -> float:
    """What a call says, unless that is its default and the operation was made with another number."""
    return called if made is None or called != default else made
