"""Products of matrices, with epilogues, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..dtypes import as_dtype
from ..shapes.checks import result_slots
from ..shapes.epilogue import WITHOUT_AMAX
from ..shapes.matmul import (
    WITHOUT_DBIAS,
    MatmulGradients,
    MatmulProblem,
    ScaledMatmulResult,
    check_gradient,
    matmul_problem,
    scaled_matmul_problem,
)
from ..shapes.parse import as_float
from ..shapes.specs import TensorSpec
from ..typing import MatmulActivation
from ._cast import (
    Array,
    Float64,
    Outs,
    R,
    Result,
    deliver,
    deliver_each,
    given_out,
    packed_spec,
    present,
    required,
    summed_to,
    wide,
)
from .layers import activated


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    alpha: float = 1,
    out_dtype: DTypeLike | None = None,
    out: Array | None = None,
) -> Array:
    """Compute ``act(alpha * (a @ b) + bias + residual)``. See :func:`cudnn_ct.matmul`."""
    arrays = required(a=a, b=b) | present(bias=bias, residual=residual, b_scale=b_scale)
    outs = (None if out is None else packed_spec(given_out(out)),)
    problem = matmul_problem(_specs(arrays), outs, activation, alpha, None, out_dtype)
    values = _computed(problem, arrays)
    return deliver(values, as_dtype(problem.y.dtype).numpy, 1, 0, out)


def scaled_matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    descale_a: ArrayLike | None = None,
    descale_b: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    activation: MatmulActivation | None = None,
    amax: bool = False,
    out_dtype: DTypeLike | None = None,
    out: Outs | None = None,
) -> ScaledMatmulResult[Array]:
    """Compute a product of float8 matrices with scales. See :func:`cudnn_ct.scaled_matmul`."""
    factors = {"descale_a": descale_a, "descale_b": descale_b, "scale": scale}
    arrays = required(a=a, b=b) | present(bias=bias, residual=residual, **factors)
    slots = result_slots(out, ("y", "amax"), absent="" if amax else WITHOUT_AMAX)
    outs = tuple(None if one is None else packed_spec(given_out(one)) for one in slots)
    problem = scaled_matmul_problem(_specs(arrays), outs, activation, out_dtype)
    values = _computed(problem, arrays)
    return deliver_with_amax(ScaledMatmulResult[Array], values, problem, arrays.get("scale"), out)


def deliver_with_amax(kind: type[R], values: Float64, problem: Any, scale: Array | None, out: Any) -> R:
    """Deliver the scaled values and, if the problem has it, their largest magnitude before the scale."""
    largest = np.full(1, np.abs(values).max(initial=0))
    if scale is not None:
        values = values * wide(scale).reshape(())
    results: list[Result] = [(values, as_dtype(problem.y.dtype).numpy)]
    if problem.amax:
        results.append((largest, np.dtype(np.float32)))
    return deliver_each(kind, results, 1, 0, out, absent="" if problem.amax else WITHOUT_AMAX)


# Infinities and NaN are valid data.
@np.errstate(all="ignore")
def matmul_backward(
    dy: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    alpha: float = 1,
    bias_gradient: bool = False,
    out: Outs | None = None,
) -> MatmulGradients[Array]:
    """Compute ``alpha * dy @ b.T`` and ``alpha * a.T @ dy``. See :func:`cudnn_ct.matmul_backward`."""
    arrays = required(dy=dy, a=a, b=b)
    dtype, alpha = arrays["a"].dtype, as_float(alpha, "alpha")
    check_gradient(_specs(arrays), bias_gradient)
    left, right, gradient = (wide(arrays[name]) for name in ("a", "b", "dy"))
    if right.ndim == 1:
        right, gradient = right[:, None], gradient[..., None]
    if left.ndim == 1:
        left, gradient = left[None], np.expand_dims(gradient, -2)
    da = alpha * summed_to(gradient @ right.swapaxes(-1, -2), left.shape).reshape(arrays["a"].shape)
    db = alpha * summed_to(left.swapaxes(-1, -2) @ gradient, right.shape).reshape(arrays["b"].shape)
    results = [(da, dtype), (db, dtype)]
    if bias_gradient:
        results.append((wide(arrays["dy"]).reshape(-1, arrays["dy"].shape[-1]).sum(0), dtype))
    absent = "" if bias_gradient else WITHOUT_DBIAS
    return deliver_each(MatmulGradients[Array], results, 1, 0, out, absent=absent)


@np.errstate(all="ignore")
def _computed(problem: MatmulProblem, arrays: dict[str, Array]) -> Float64:
    """Return the result in float64, before ``scale``."""
    values = {name: wide(array) for name, array in arrays.items()}
    y = np.asarray(values["a"] @ values["b"]) * problem.alpha
    if "b_scale" in values:
        y = y * values["b_scale"].reshape(-1 if values["b_scale"].size > 1 else ())
    for name in ("descale_a", "descale_b"):
        if name in values:
            y = y * values[name].reshape(())
    for name in ("bias", "residual"):
        if name in values:
            y = y + values[name]
    return activated(y, problem.activation)


def _specs(arrays: dict[str, Array]) -> dict[str, TensorSpec]:
    return {name: packed_spec(array) for name, array in arrays.items()}
