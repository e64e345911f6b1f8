"""Element-wise operations on tensors, copies and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Never

from .._hints import UNSET, corrected
from .._lib import load
from ..array import DeviceArray
from ..context import Context
from ..errors import NotSupportedError
from ..plans.base import Plan, tensors_of
from ..plans.elementwise import alpha_plan, fill_plan, op_tensor_of, scale_plan, transform_plan
from ..plans.elementwise import op_tensor as op_tensor_plan
from ..plans.program import Program
from ..plans.strided_copy import StridedCopy
from ..plans.wrappers import on_copies, on_operands_of
from ..shapes import tensor as rules
from ..shapes.checks import as_float
from ..shapes.specs import INT_MAX, LayerProblem, TensorSpec
from ..typing import ArrayLike, DTypeLike, Layout, OpTensorOp, StreamLike
from ._call import ONE, execute
from ._documented import documented
from ._formulas import MIN_ELEMENTS, Formulas, Matrix, cast_by_graph, elementwise_plan, matrix_of, pointwise
from ._implementations import IGNORES_NAN, Implementation, by_engines, every_axis, of_problem
from ._operation import Operation
from ._state import CallState


@documented()
def op_tensor(
    a: ArrayLike,
    b: ArrayLike | None = None,
    *more: Never,
    op: OpTensorOp = "add",
    alpha1: float = 1,
    alpha2: float = 1,
    beta: float = 0,
    propagate_nan: bool = True,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``op(alpha1 * a, alpha2 * b) + beta * out`` element by element.

    Parameters
    ----------
    a : device array, any shape and strides, float16 | bfloat16 | float32 | float64
    b : device array, dtype of a, as many axes, each as long or of length 1; None for "sqrt" and "not"
    op : {"add", "mul", "min", "max", "sqrt", "not"}
        ``"not"`` is ``1 - alpha1 * a``. Half precision is computed in float32.
    alpha1, alpha2 : float
        Factors of a and b.
    propagate_nan : bool
        Whether the smaller or larger of a number and NaN is NaN, or the number. Other operations always
        propagate NaN.
    out : device array, shape and dtype of a, optional
        Destination of the result. It may be a or b itself.

    Returns
    -------
    DeviceArray, shape and dtype of a; or ``out`` as one

    Notes
    -----
    ``cudnnOpTensor``, which takes five axes. Axes that are adjacent in all operands are joined; if more than
    five are left, each slice takes a call.

    Examples
    --------
    >>> a, b = ct.asarray([[1, 5]], "float32"), ct.asarray([[3, 3]], "float32")
    >>> ct.op_tensor(a, b, op="max").numpy()
    array([[3., 5.]], dtype=float32)
    """
    if more or unknown or a is UNSET:
        return corrected(op_tensor, locals())
    names, given = (("a",), (a,)) if b is None else (("a", "b"), (a, b))
    # Factors belong to a run, so that a learning rate that changes in each step needs one prepared call.
    alpha: Any = ONE
    if alpha1 is not ONE or alpha2 is not ONE:
        factors = rules.OpTensorScales(as_float(alpha1, "alpha1"), as_float(alpha2, "alpha2"))
        alpha = ONE if factors == (1, 1) else factors
    return execute(_OP_TENSOR, names, given, (op, propagate_nan), alpha, beta, (out,), stream)[0]


@documented(op_tensor)
def add(
    a: ArrayLike,
    b: ArrayLike,
    *more: Never,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * (a + b) + beta * out``.

    Parameters
    ----------
    b : device array, dtype of a, as many axes, each as long or of length 1
        For example a bias of shape (1, C, 1, 1).

    Returns
    -------
    DeviceArray, shape and dtype of a; or ``out`` as one

    Notes
    -----
    ``cudnnOpTensor``, because ``cudnnAddTensor`` works in place only.

    Examples
    --------
    >>> x, bias = ct.asarray([[1, 2], [3, 4]], "float32"), ct.asarray([[10, 20]], "float32")
    >>> ct.add(x, bias).numpy()
    array([[11., 22.],
           [13., 24.]], dtype=float32)
    """
    if more or unknown or a is UNSET or b is UNSET:
        return corrected(add, locals())
    return execute(_OP_TENSOR, ("a", "b"), (a, b), ("add", True), alpha, beta, (out,), stream)[0]


@documented()
def scale(
    x: ArrayLike, *more: Never, alpha: float, stream: StreamLike | None = None, **unknown: Never
) -> DeviceArray:
    """Multiply an array by a number, in place.

    Parameters
    ----------
    x : device array, any shape, float16 | bfloat16 | float32 | float64
        Written and returned. It is not read-only, its strides are positive, and no two elements share memory.
    alpha : float
        Infinity times 0 is NaN, and NaN stays NaN; :func:`fill` sets zeros in any case.

    Returns
    -------
    DeviceArray of the memory of x

    Notes
    -----
    ``cudnnScaleTensor``.

    Examples
    --------
    >>> gradient = ct.asarray([64, 32], "float32")
    >>> ct.scale(gradient, alpha=1 / 64).numpy()
    array([1. , 0.5], dtype=float32)
    """
    if more or unknown or x is UNSET or alpha is UNSET:
        return corrected(scale, locals())
    return execute(_SCALE, (), (), (), as_float(alpha, "alpha"), 0, (x,), stream)[0]


@documented(scale)
def fill(
    x: ArrayLike, value: float, *more: Never, stream: StreamLike | None = None, **unknown: Never
) -> DeviceArray:
    """Set every element of an array to a number, rounded to its dtype.

    Parameters
    ----------
    value : float

    Returns
    -------
    DeviceArray of the memory of x

    Notes
    -----
    ``cuMemsetD*Async``, or for views and float64 ``cudnnSetTensor``. Memory between the elements of a view is
    not written.

    Examples
    --------
    >>> ct.fill(ct.asarray([1, 2], "float32"), 7).numpy()
    array([7., 7.], dtype=float32)
    """
    if more or unknown or x is UNSET or value is UNSET:
        return corrected(fill, locals())
    number = as_float(value, "value")  # belongs to a run, so that one prepared call serves all values
    state = CallState(value=number, variant=(repr(number),))
    return execute(_FILL, (), (), outs=(x,), stream=stream, state=state)[0]


@documented()
def transform(
    x: ArrayLike,
    *more: Never,
    layout: Layout | None = None,
    strides: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    alpha: float = 1,
    beta: float = 0,
    out: ArrayLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> DeviceArray:
    """Compute ``alpha * x + beta * out`` in another memory layout or dtype.

    Parameters
    ----------
    x : device array, any shape and strides, float16 | bfloat16 | float32 | float64 | int8
    layout : {"nchw", "nhwc"}, optional
        Contiguous, channels second or last; the axes keep their order. By default that of x.
    strides : tuple of int, optional
        In elements, instead of a layout. Elements must not share memory; memory between them is not written.
    dtype : dtype, optional
        By default that of x. float32, float16 and bfloat16 are converted to each other, int8 only to itself.
        float64 is converted if cuDNN has an engine for it: its legacy calls do not.
    out : device array, shape of x, dtype of the result, optional
        Destination of the result, with its own strides. It must not overlap x.

    Returns
    -------
    DeviceArray, shape of x; or ``out`` as one

    Notes
    -----
    ``cudnnTransformTensor`` within a dtype. A conversion is ``cudnnOpTensor``, whose operands and result may
    have different dtypes, or a graph of one node.

    Examples
    --------
    >>> x = ct.asarray([[1, 2]], "float32")
    >>> ct.transform(x, dtype="float16").numpy()
    array([[1., 2.]], dtype=float16)
    """
    if more or unknown or x is UNSET:
        return corrected(transform, locals())
    return execute(_TRANSFORM, ("x",), (x,), (layout, strides, dtype), alpha, beta, (out,), stream)[0]


def convert_by_graph(problem: LayerProblem[None], context: Context) -> Program | None:
    """Return the plan of a conversion between two dtypes."""
    x, y = tensors_of(problem).values()
    return None if x.dtype == y.dtype else cast_by_graph(x, y, context)


def operation_by_graph(problem: rules.OpTensorProblem, context: Context) -> Plan | None:
    """Return the plan of an operation without factors, for a cuDNN without ``cudnnOpTensor``."""
    if problem.op == "not":
        raise NotSupportedError("op is 'not', which only legacy functions support")
    if not problem.propagate_nan and problem.op in ("min", "max"):
        raise NotSupportedError(IGNORES_NAN)
    a, b, y = problem.a, problem.b, problem.c
    if b is not None and b.shape != a.shape:  # engines repeat no operand of such a graph
        whole = problem._replace(b=a._replace(dtype=b.dtype))
        made = operation_by_graph(whole, context) if a.is_dense else None
        return made and on_operands_of(made, problem, whole)
    if b is None or problem.op not in ("min", "max"):
        return elementwise_plan(problem.op, tuple(tensors_of(problem).values()), context)
    matrix = _matrix_of(a, b, y)
    if matrix is None:
        return None
    one = Formulas(matrix, 3, context)
    first, second = (one.tensor(place, a.dtype) for place in (0, 1))
    # Engines pass over NaN. Its tanh is NaN, all others are finite.
    nan = (pointwise("tanh_fwd", first) + pointwise("tanh_fwd", second)) * 0.0
    one.store(pointwise(problem.op, first, second) + nan, 2, y.dtype)
    return one.program()


def large_operation(problem: rules.OpTensorProblem, context: Context) -> Plan | None:
    """Return a graph for large sums and products in one memory order; None for others.

    Its engine reaches the bandwidth of the memory, the C function two thirds of it.
    """
    if problem.op not in ("add", "mul") or problem.c.size < MIN_ELEMENTS or load().lacks("ops"):
        return None
    return elementwise_plan(problem.op, tuple(tensors_of(problem).values()), context)


def transformed_by_graph(problem: LayerProblem[None], context: Context) -> Plan | None:
    """Return the plan of a copy by the driver or a conversion by an engine, without factors."""
    x, y = tensors_of(problem).values()
    if x.dtype == y.dtype:
        return StridedCopy(x, y)
    return elementwise_plan("identity", (x, y), context)


def _matrix_of(*specs: TensorSpec) -> Matrix | None:
    """Return the matrix that contiguous tensors are for elementwise formulas; None if they are not."""
    fits = 1 <= specs[0].size <= INT_MAX and {spec.shape for spec in specs} == {specs[0].shape}
    return matrix_of(specs, [TensorSpec.packed((1,) * len(specs[0].shape))]) if fits else None


def scaled_by_graph(problem: Any, context: Context) -> Plan | None:
    """Return the plan of a product in place with alpha, which is written to the device."""
    x = problem.x
    dense = x if x.is_dense else TensorSpec.packed(x.shape, x.dtype)
    matrix = _matrix_of(dense)
    if matrix is None:
        return None
    one = Formulas(matrix, 1, context)
    factor = one.scalar(alpha_plan())
    one.store(one.tensor(0, x.dtype) * factor, 0, x.dtype)
    plan = one.program(scaled=0)
    return plan if x.is_dense else on_copies(plan, [(x, dense)], updated=1)


_OP_TENSOR_PLANS = (
    Implementation(large_operation, aligned=True, scales=False),
    of_problem(op_tensor_plan),
    by_engines(operation_by_graph),
)
_OP_TENSOR = Operation(
    "an operation on tensors",
    rules.op_tensor_problem,
    _OP_TENSOR_PLANS,
    in_place=True,
    broadcasts=("b",),
    independent=every_axis,
    factor="alpha1 or alpha2",
)
_SCALE_PLANS = (
    of_problem(lambda problem: scale_plan(problem.x)),
    of_problem(lambda problem: op_tensor_of("max", problem.x)),  # in place, as max(alpha x, alpha x)
    by_engines(scaled_by_graph)._replace(scales=True),
)
_SCALE = Operation("a scaling", rules.scale_problem, _SCALE_PLANS, written=("x",), relayout=False)
_FILL_PLAN = of_problem(lambda problem: fill_plan(problem.x))
_FILL = Operation("a filling", rules.fill_problem, (_FILL_PLAN,), written=("x",), relayout=False)
_TRANSFORM = Operation(
    "a transformation",
    rules.transform_problem,
    (
        of_problem(lambda problem: transform_plan(problem.x, problem.y)),
        Implementation(convert_by_graph),
        Implementation(transformed_by_graph, aligned=True, scales=False, replaces="ops"),
    ),
    any_strides=True,
    independent=every_axis,
)
