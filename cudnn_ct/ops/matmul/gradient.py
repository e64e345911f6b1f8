"""The gradients of a product of matrices: two products, and sums over broadcast axes."""

from __future__ import annotations

from math import prod
from typing import Any, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...cuda.stream import Stream
from ...shapes.checks import result_slots
from ...shapes.matmul import WITHOUT_DBIAS, MatmulGradients, check_gradient, matmul_shape
from ...shapes.parse import as_bool
from ...shapes.specs import TensorSpec
from ...shapes.views import reshape_view
from ...typing import Algo, ArrayLike, OutLike, Precision, StreamLike
from .._documented import documented
from .._operands import results_of_calls, stream_of
from ..reduce.reduce import reduce
from ..tensor import transform
from .matmul import matmul

_RESULTS = ("out", "db of out", "dbias of out")


@documented(matmul)
def matmul_backward(
    dy: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *more: Never,
    alpha: float = 1,
    bias_gradient: bool = False,
    precision: Precision | None = None,
    algo: Algo | None = None,
    deterministic: bool | None = None,
    workspace_limit: int | None = None,
    out: OutLike | None = None,
    stream: StreamLike | None = None,
    **unknown: Never,
) -> MatmulGradients[DeviceArray]:
    """Compute the gradients of ``alpha * (a @ b) + bias``.

    With the last two axes transposed by T, and sums over the axes that an operand was broadcast along ::

        da = alpha * dy @ b.T        db = alpha * a.T @ dy        dbias = sum(dy)

    The gradient of an activation is computed before, by :func:`activation_backward`; that of a residual is
    dy.

    Parameters
    ----------
    dy : device array, shape of ``a @ b`` and dtype of a
    a : device array, shape (..., M, K), float16 | bfloat16 | float32 | float64
    b : device array, shape (..., K, N), dtype of a

    Returns
    -------
    MatmulGradients
        ``da`` and ``db``, DeviceArrays with the shapes of a and b; ``dbias``, of shape (N,), or None. All
        have the dtype of a.

    Notes
    -----
    Two calls of :func:`matmul` (``cudnnBackendExecute``), and calls of :func:`reduce` for sums over batch
    axes and for dbias. Partial results in half precision are float32. Products of int8 and float8 have no
    gradient.

    Sums by a graph may differ in their last bits from run to run; with ``deterministic``, only sums are used
    whose bits were measured to be the same.

    Examples
    --------
    >>> a, b = ct.asarray([[1, 2], [3, 4]], "float32"), ct.asarray([[1], [10]], "float32")
    >>> dy = ct.asarray([[1], [2]], "float32")
    >>> ct.matmul_backward(dy, a, b).db.numpy()
    array([[ 7.],
           [10.]], dtype=float32)
    """
    if more or unknown or dy is UNSET or a is UNSET or b is UNSET:
        return corrected(matmul_backward, locals())
    with_bias = as_bool(bias_gradient, "bias_gradient")
    slots = result_slots(out, MatmulGradients._fields, absent="" if with_bias else WITHOUT_DBIAS)
    where = stream_of(dy, "dy", stream, (a, b, *slots))
    given = {"dy": dy, "a": a, "b": b}
    arrays = {name: as_operand(array, name, where) for name, array in given.items()}
    specs = {name: array.spec for name, array in arrays.items()}
    check_gradient(specs, with_bias)
    shapes = (specs["a"].shape, specs["b"].shape, specs["dy"].shape[-1:])[: len(slots)]
    dtype = specs["a"].dtype
    expected = {name: TensorSpec.packed(shape, dtype) for name, shape in zip(_RESULTS, shapes, strict=False)}
    outs = results_of_calls(slots, expected, list(arrays.values()), where)
    keywords = {
        "alpha": alpha,
        "precision": precision,
        "algo": algo,
        "deterministic": deterministic,
        "workspace_limit": workspace_limit,
        "stream": where,
    }
    gradient, left, right = arrays.values()
    if right.ndim == 1:  # views with the axes that vectors lack
        right, gradient = right[:, None], gradient[..., None]
    if left.ndim == 1:
        left, gradient = left[None], gradient[..., None, :]
    da = _product(gradient, right.transpose(_swapped(right)), arrays["a"], outs[0], keywords)
    db = _product(left.transpose(_swapped(left)), gradient, arrays["b"], outs[1], keywords)
    if not with_bias:
        return MatmulGradients(da, db, None)
    batch = tuple(range(arrays["dy"].ndim - 1))
    target = None if len(outs) < 3 else outs[2]
    if not batch:
        return MatmulGradients(da, db, transform(arrays["dy"], out=target, stream=where))
    dbias = reduce(arrays["dy"], axis=batch, deterministic=deterministic, out=target, stream=where)
    return MatmulGradients(da, db, dbias)


def _swapped(array: DeviceArray) -> tuple[int, ...]:
    """Return the axes of an array with the last two swapped."""
    *batch, rows, columns = range(array.ndim)
    return (*batch, columns, rows)


def _product(
    left: DeviceArray,
    right: DeviceArray,
    operand: DeviceArray,
    out: DeviceArray | None,
    keywords: dict[str, Any],
) -> DeviceArray:
    """Return the product as the gradient of an operand, summed over the axes that it was broadcast along."""
    stream: Stream = keywords["stream"]
    same: bool | None = keywords["deterministic"]
    if operand.ndim <= 2 and left.ndim >= 3 and left.shape[:-2] == right.shape[:-2]:
        tall = left.transpose(_swapped(left))
        rows, columns = _flat(tall), _flat(right)
        if rows and columns:  # a sum over the batch is one product: the batch axes merge with the rows
            left, right = tall.view_as(rows).T, right.view_as(columns)
    full = matmul_shape(left.shape, right.shape)
    shape = operand.shape if operand.ndim > 1 else full[-2:]
    own = (*(1,) * (len(full) - len(shape)), *shape)
    summed = tuple(axis for axis, (n, kept) in enumerate(zip(full, own, strict=True)) if n != kept)
    if not summed:
        target = None if out is None else _viewed(out, full)
        result = matmul(left, right, out=target, **keywords)
        return out if out is not None else _viewed(result, operand.shape)
    half = operand.spec.dtype in ("float16", "bfloat16")
    partial = matmul(left, right, out_dtype="float32" if half else None, **keywords)
    target = None if out is None or half else _viewed(out, own)
    result = reduce(partial, axis=summed, keepdims=True, deterministic=same, out=target, stream=stream)
    if half:
        target = None if out is None else _viewed(out, own)
        result = transform(result, dtype=operand.spec.dtype, out=target, stream=stream)
    return out if out is not None else _viewed(result, operand.shape)


def _flat(array: DeviceArray) -> TensorSpec | None:
    """Return the spec of a view of two axes, or None if there is none."""
    return reshape_view(array.spec, (prod(array.shape[:-1]), array.shape[-1]))


def _viewed(array: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
    """Return a view with axes of length 1 added or removed."""
    spec = reshape_view(array.spec, shape)
    assert spec is not None
    return array if spec == array.spec else array.view_as(spec)
