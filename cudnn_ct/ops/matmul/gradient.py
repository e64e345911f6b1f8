"""The gradients of a product of matrices: two products, and sums over broadcast axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, Never

from ..._hints import UNSET, corrected
from ...array import DeviceArray
from ...array_creation import as_operand
from ...shapes.checks import as_bool, result_slots
from ...shapes.matmul import WITHOUT_DBIAS, MatmulGradients, check_gradient, matmul_shape
from ...shapes.specs import Shape, TensorSpec
from ...shapes.views import reshape_view, transpose_view
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
    dy, a, b = (as_operand(x, name, where) for x, name in ((dy, "dy"), (a, "a"), (b, "b")))
    check_gradient(dy.spec, a.spec, b.spec, with_bias)
    outs: Sequence[DeviceArray | None] = slots
    if any(out is not None for out in slots):
        shapes = zip(_RESULTS, (a.shape, b.shape, dy.shape[-1:])[: len(slots)], strict=False)
        expected = {name: TensorSpec.packed(shape, a.spec.dtype) for name, shape in shapes}
        outs = results_of_calls(slots, expected, (dy, a, b), where)
    own: dict[str, Any] = {"precision": precision, "algo": algo, "workspace_limit": workspace_limit}
    common: dict[str, Any] = {"deterministic": deterministic, "stream": where}
    product = partial(matmul, alpha=alpha, **own, **common)
    gradient, left, right = dy, a, b
    if right.ndim == 1:  # views with the axes that vectors lack
        right, gradient = right[:, None], gradient[..., None]
    if left.ndim == 1:
        left, gradient = left[None], gradient[..., None, :]
    da = _product(gradient, right.transpose(_swapped(right.ndim)), a, outs[0], product)
    db = _product(left.transpose(_swapped(left.ndim)), gradient, b, outs[1], product)
    if not with_bias:
        return MatmulGradients(da, db, None)
    if batch := tuple(range(dy.ndim - 1)):
        return MatmulGradients(da, db, reduce(dy, axis=batch, out=outs[2], **common))
    return MatmulGradients(da, db, transform(dy, out=outs[2], stream=where))


def _swapped(ndim: int) -> tuple[int, ...]:
    return (*range(ndim - 2), ndim - 1, ndim - 2)


@lru_cache(256)
def _sums(
    left: TensorSpec, right: TensorSpec, operand: Shape
) -> tuple[tuple[TensorSpec, TensorSpec] | None, Shape, Shape, Shape]:
    """Return views whose product sums over the batch or None, and the sums over the axes of the product.

    These are its shape, that of the operand with as many axes, and the axes along which it was broadcast.
    """
    views = None
    if len(operand) <= 2 and len(left.shape) >= 3 and left.shape[:-2] == right.shape[:-2]:
        rows, columns = _flat(transpose_view(left, _swapped(len(left.shape)))), _flat(right)
        if rows and columns:  # a sum over the batch is one product: the batch axes merge with the rows
            left, right = views = transpose_view(rows, ()), columns
    full = matmul_shape(left.shape, right.shape)
    shape = operand if len(operand) > 1 else full[-2:]
    own = (*(1,) * (len(full) - len(shape)), *shape)
    return views, full, own, tuple([axis for axis, n in enumerate(full) if n != own[axis]])


def _flat(spec: TensorSpec) -> TensorSpec | None:
    """Return the spec of a view of two axes, or None if there is none."""
    return reshape_view(spec, (prod(spec.shape[:-1]), spec.shape[-1]))


def _product(
    left: DeviceArray,
    right: DeviceArray,
    operand: DeviceArray,
    out: DeviceArray | None,
    product: partial[DeviceArray],
) -> DeviceArray:
    """Return the product as the gradient of an operand, summed over the axes that it was broadcast along."""
    views, full, own, summed = _sums(left.spec, right.spec, operand.spec.shape)
    if views:
        left, right = left.view_as(views[0]), right.view_as(views[1])
    if not summed:
        target = None if out is None else _viewed(out, full)
        result = product(left, right, out=target)
        return out if out is not None else _viewed(result, operand.spec.shape)
    half, stream = operand.spec.dtype in ("float16", "bfloat16"), product.keywords["stream"]
    more = {"deterministic": product.keywords["deterministic"], "stream": stream}
    partial = product(left, right, out_dtype="float32" if half else None)
    target = None if out is None or half else _viewed(out, own)
    result = reduce(partial, axis=summed, keepdims=True, out=target, **more)
    if half:
        target = None if out is None else _viewed(out, own)
        result = transform(result, dtype=operand.spec.dtype, out=target, stream=stream)
    return out if out is not None else _viewed(result, operand.spec.shape)


def _viewed(array: DeviceArray, shape: Shape) -> DeviceArray:
    """Return a view with axes of length 1 added or removed."""
    return array if array.spec.shape == shape else array.reshape(shape)
