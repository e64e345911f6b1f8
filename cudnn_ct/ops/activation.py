"""Activations and their gradients."""

from __future__ import annotations

from typing import Any

from ..shapes.activation import activation_problem
from ._call import Operation, execute
from ._fallback import Implementation, of_problem
from .activation_graph import activation as graph_activation
from .activation_legacy import activation as legacy_activation

__all__ = ["activation", "activation_backward"]

_IMPLEMENTATIONS = (
    Implementation(graph_activation, aligned=True, scales=False),
    of_problem(legacy_activation),
)
_ACTIVATION = Operation("an activation", activation_problem, _IMPLEMENTATIONS, in_place=True)
_GRADIENT = Operation("the gradient of an activation", activation_problem, _IMPLEMENTATIONS, in_place=True)


def activation(
    x: Any,
    *,
    mode: Any = "relu",
    coef: float = 0,
    nan: Any = "propagate",
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Compute ``alpha * act(x) + beta * out`` element by element.

    Relu is max(x, 0); clipped relu min(max(x, 0), coef); sigmoid 1 / (1 + exp(-x)); elu x where it is
    positive and coef * (exp(x) - 1) elsewhere; swish x * sigmoid(coef * x).

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
    mode : {"relu", "clipped_relu", "sigmoid", "tanh", "elu", "swish", "identity"}
    coef : float
        The ceiling of a clipped relu, the alpha of elu, the beta of swish, for which 0 stands for 1. With the
        default a clipped relu is 0 everywhere, and elu is relu.
    nan : {"propagate", "not_propagate"}
        Whether relu and clipped relu of NaN are NaN, or 0. The others propagate it always.
    alpha, beta : float
    out : device array, shape and dtype of x, optional
        Where the result goes; read only where beta is not 0, which needs it. It may be x itself.
    stream : optional
        An address, or anything with ``__cuda_stream__``; by default that of ``ct.use``.

    Returns
    -------
    DeviceArray, shape and dtype of x; or ``out``

    Raises
    ------
    TypeError
        An operand is not on the device, its dtype is none of the four, or ``coef`` no number.
    ValueError
        There is no such activation, or ``out`` does not fit.
    NotSupportedError
        cuDNN has no way to compute it; the message says what each way was refused for.
    AllocationError
        Device memory ran out.

    Notes
    -----
    ``cudnnActivationForward``; the identity is ``cudnnTransformTensor``.

    From 2**24 elements on a graph of the same mathematics is tried first. Each element is computed by itself:
    the same bits from run to run.

    Examples
    --------
    >>> x = ct.asarray([-1, 2, 9], "float32")
    >>> ct.activation(x, mode="clipped_relu", coef=6).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    return execute(_ACTIVATION, ("x",), (x,), (mode, coef, nan), alpha, beta, (out,), stream)[0]


def activation_backward(
    x: Any,
    y: Any,
    dy: Any,
    *,
    mode: Any = "relu",
    coef: float = 0,
    alpha: float = 1,
    beta: float = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Compute the gradient of :func:`activation` with regard to x: ``alpha * gradient + beta * out``.

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
    y : device array, shape and dtype of x
        The result of :func:`activation` for x.
    dy : device array, shape and dtype of x
    mode, coef
        Those of the activation; for elu ``coef`` is at least 0.
    alpha, beta, out, stream
        As in :func:`activation`; ``out`` may be one of the operands.

    Returns
    -------
    DeviceArray, shape and dtype of x; or ``out``

    Raises
    ------
    TypeError, ValueError, NotSupportedError, AllocationError
        As in :func:`activation`; ValueError also where the shapes differ, or ``coef`` of elu is negative.

    Notes
    -----
    ``cudnnActivationBackward``; of the identity ``cudnnTransformTensor``.

    The slope of elu comes from y: it is 1 where y is 0, which includes negative x so small that y is rounded
    to 0. With ``coef`` 0 elu is relu, whose slope at 0 is 0.

    From 2**24 elements on a graph of the same mathematics is tried first. Each element is computed by itself:
    the same bits from run to run.

    Examples
    --------
    >>> x, dy = ct.asarray([-1, 2], "float32"), ct.asarray([10, 20], "float32")
    >>> ct.activation_backward(x, ct.activation(x), dy).numpy()
    array([ 0., 20.], dtype=float32)
    """
    return execute(
        _GRADIENT, ("x", "y", "dy"), (x, y, dy), (mode, coef, "propagate"), alpha, beta, (out,), stream
    )[0]
