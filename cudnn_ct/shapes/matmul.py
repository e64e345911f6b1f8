"""Products of matrices: their problems, and the shapes and dtypes that they accept."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import Any, Generic, NamedTuple

from ..dtypes import as_dtype
from ..typing import MatmulActivation
from . import arithmetic
from .checks import FLOATS, as_float, cast_hint, one_dtype, packed_result, swap_hint
from .specs import Outs, Shape, Specs, T, TensorSpec, problem_class

WITHOUT_DBIAS = "bias_gradient is not set"  # why a gradient has no dbias


class ScaledMatmulResult(NamedTuple, Generic[T]):
    """Result of a product of float8 matrices, and its largest magnitude before ``scale``; None without it."""

    y: T
    amax: T | None


class MatmulGradients(NamedTuple, Generic[T]):
    """Gradients of the operands of a product, and of its bias."""

    da: T
    db: T
    dbias: T | None


@problem_class("matrix product", "y amax")
class MatmulProblem(NamedTuple):
    """``y = act(alpha * (a @ b) + bias + residual)``, with the scales of quantised operands."""

    a: TensorSpec
    b: TensorSpec
    bias: TensorSpec | None
    residual: TensorSpec | None
    b_scale: TensorSpec | None  # of the columns of int8 weights
    descale_a: TensorSpec | None  # of the product, as ``descale_b``
    descale_b: TensorSpec | None
    scale: TensorSpec | None  # of the result
    y: TensorSpec
    amax: TensorSpec | None  # the largest magnitude before ``scale``
    activation: MatmulActivation = "identity"
    alpha: float = 1.0
    compute: str = "float32"
    tensor_cores: bool = True  # allows products of lower precision than ``compute``
    aligned: bool = True

    @property
    def has_epilogue(self) -> bool:
        """Whether the result differs from the product."""
        added = (
            self.bias,
            self.residual,
            self.b_scale,
            self.descale_a,
            self.descale_b,
            self.scale,
            self.amax,
        )
        return any(added) or self.activation != "identity" or self.alpha != 1

    @property
    def terms(self) -> int:
        """Number of products that an element of the result is the sum of."""
        return self.a.shape[-1]


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape of ``a @ b`` by the rules of ``numpy.matmul``.

    >>> matmul_shape((5, 1, 2, 3), (4, 3, 7))
    (5, 4, 2, 7)
    >>> matmul_shape((3,), (3, 7))
    (7,)
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ValueError(f"{name} has no axes: a product of matrices takes at least one")
    terms, others = a[-1], b[-2] if len(b) > 1 else b[0]
    if terms != others:
        axis = "axis -2" if len(b) > 1 else "axis 0"
        swapped = swap_hint("a", "b") if b[-1:] == a[-2:-1] else ""
        raise ValueError(
            f"b has a wrong shape: got {b}, expected {terms} elements along {axis}, as a of shape {a} has "
            f"along its last axis{'; pass a transposed view, as b.T' if b[-1] == terms else swapped}"
        )
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return (*_broadcast(a[:-2], b[:-2]), *rows, *columns)


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    found = []
    for one, two in pairs:
        if one != two and 1 not in (one, two):
            raise ValueError(f"batch axes do not match: a has {a}, b has {b}; they are equal, or 1")
        found.append(two if one == 1 else one)
    return tuple(found)


def matmul_problem(
    specs: Specs,
    outs: Outs,
    activation: Any,
    alpha: Any,
    precision: Any,
    out_dtype: Any,
    *,
    allow_tf32: bool = True,
    aligned: bool = True,
) -> MatmulProblem:
    """Validate a product of a and b, with an optional bias, residual and b_scale; ``outs`` has y."""
    a, b, bias, residual, b_scale = (specs.get(n) for n in ("a", "b", "bias", "residual", "b_scale"))
    assert a is not None
    assert b is not None
    (out,) = outs
    compute, tensor_cores = _arithmetic(a.dtype, b.dtype, b_scale, precision, allow_tf32)
    dtype = _result_dtype(a.dtype, out_dtype, out)
    y = packed_result(matmul_shape(a.shape, b.shape), dtype, out)
    name, factor = arithmetic.activation_name(activation), as_float(alpha, "alpha")
    problem = MatmulProblem(
        a, b, bias, residual, b_scale, None, None, None, y, None, name, factor, compute, tensor_cores, aligned
    )
    _check_epilogue(problem)
    if compute == "int32" and problem.has_epilogue:
        raise ValueError(
            "sums of int8 are written as int32: bias, residual, activation and alpha need floats"
        )
    return problem


def scaled_matmul_problem(
    specs: Specs, outs: Outs, activation: Any, out_dtype: Any, *, aligned: bool = True
) -> MatmulProblem:
    """Validate a product of float8 matrices with scales; ``outs`` are y and, if it is computed, amax."""
    a, b = specs["a"], specs["b"]
    arithmetic.check_float8(a=a, b=b)
    dtype = arithmetic.float8_result_dtype(out_dtype, outs[0])
    y = packed_result(matmul_shape(a.shape, b.shape), dtype, outs[0])
    problem = MatmulProblem(
        a,
        b,
        specs.get("bias"),
        specs.get("residual"),
        None,
        **arithmetic.scales_of(specs, "descale_a", "descale_b", "scale"),
        y=y,
        amax=arithmetic.amax_spec(outs),
        activation=arithmetic.activation_name(activation),
        aligned=aligned,
    )
    _check_epilogue(problem)
    return problem


@lru_cache(256)
def check_gradient(dy: TensorSpec, a: TensorSpec, b: TensorSpec, with_bias: bool) -> None:
    """Raise unless dy, a and b belong to one product, whose operands have a gradient."""
    if a.dtype == "int8" or a.dtype in arithmetic.FLOAT8:
        raise TypeError(f"products of {a.dtype} have no gradient; got a {a}")
    one_dtype("the gradient of a product", a=a.dtype, b=b.dtype, dy=dy.dtype)
    shape = matmul_shape(a.shape, b.shape)
    if dy.shape != shape:
        raise ValueError(f"dy has a wrong shape: got {dy.shape}, expected {shape}, the shape of a @ b")
    if with_bias and len(b.shape) < 2:
        raise ValueError(f"a product with b of shape {b.shape} has no columns, so it has no bias")


def _arithmetic(
    a: str, b: str, b_scale: TensorSpec | None, precision: Any, allow_tf32: bool
) -> tuple[str, bool]:
    """Return the dtype of the sums, and whether products may use tensor cores."""
    if b == "int8" and a in arithmetic.HALF:
        if b_scale is None:
            raise ValueError(f"b is int8 and a is {a}: pass b_scale, the factor of the weights' columns")
        b = a
    elif b_scale is not None:
        raise ValueError(f"b_scale is for int8 weights and a half precision a: got a {a} and b {b}")
    if a in arithmetic.FLOAT8 or b in arithmetic.FLOAT8:
        raise TypeError(f"a is {a} and b is {b}: products of float8 are ct.scaled_matmul")
    if a != b:
        raise TypeError(
            f"a is {a} and b is {b}; a product needs one dtype, or a half precision a and int8 b"
            f"{cast_hint(a=a, b=b)}"
        )
    one_dtype("a product of matrices", (*FLOATS, "int8"), a=a)
    return arithmetic.resolve_precision(precision, a, allow_tf32)


def _result_dtype(a: str, out_dtype: Any, out: TensorSpec | None) -> str:
    allowed = {"int8": ("int32",), "float32": ("float32",), "float64": ("float64",)}.get(a, (a, "float32"))
    dtype = allowed[0]
    if out_dtype is not None:
        dtype = as_dtype(out_dtype).name
    elif out is not None:
        dtype = out.dtype
    if dtype not in allowed:
        name = "out" if out_dtype is None else "out_dtype"
        raise TypeError(f"{name} is {dtype}; the result of a product of {a} is {' or '.join(allowed)}")
    return dtype


def _check_epilogue(problem: MatmulProblem) -> None:
    y, columns = problem.y, problem.b.shape[1:][-1:]
    if not isfinite(problem.alpha):
        raise ValueError(f"alpha is not finite: got {problem.alpha}")
    if problem.bias:
        if not columns or problem.bias.shape != columns:
            expected = columns or "none, as b has one axis"
            raise ValueError(f"bias has a wrong shape: got {problem.bias.shape}, expected {expected}")
        arithmetic.check_dtype("bias", problem.bias, arithmetic.bias_dtypes(y.dtype))
    if problem.residual:
        if problem.residual.shape != y.shape:
            got = problem.residual.shape
            raise ValueError(f"residual has a wrong shape: got {got}, expected that of the result, {y.shape}")
        arithmetic.check_dtype("residual", problem.residual, (y.dtype,))
    if problem.b_scale:
        if problem.b_scale.shape not in (columns, (1,), ()):
            raise ValueError(
                f"b_scale has a wrong shape: got {problem.b_scale.shape}, expected {columns} or (1,)"
            )
        arithmetic.check_dtype("b_scale", problem.b_scale, ("float32",))
