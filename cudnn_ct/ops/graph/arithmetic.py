"""Pointwise operations: the methods of :class:`cudnn_ct.Graph` for all modes, by their mathematical names.

Operands broadcast as in NumPy. Numbers are passed by value.
"""

from __future__ import annotations

from numbers import Integral

from ...shapes.parse import as_int
from .builder import GraphBuilder
from .tensors import GraphTensor, Operand


class ArithmeticMethods(GraphBuilder):
    """Arithmetic, comparisons and logic, element by element."""

    def _pointwise(self, mode: str, name: str | None, **operands: Operand | None) -> GraphTensor:
        tensors = [one for one in operands.values() if isinstance(one, GraphTensor)]
        if tensors and all(one.dtype == "int32" for one in tensors):  # indices: whole numbers stay whole
            for role, one in operands.items():
                if isinstance(one, Integral) and not isinstance(one, bool):
                    operands[role] = self.constant(one, "int32")
        return self._apply("pointwise", operands, name, mode=mode)["y"]

    def abs(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the absolute value of x."""
        return self._pointwise("abs", name, x=x)

    def ceil(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x rounded up."""
        return self._pointwise("ceil", name, x=x)

    def cos(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the cosine of x."""
        return self._pointwise("cos", name, x=x)

    def erf(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the error function of x."""
        return self._pointwise("erf", name, x=x)

    def exp(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return e to the power of x."""
        return self._pointwise("exp", name, x=x)

    def floor(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x rounded down."""
        return self._pointwise("floor", name, x=x)

    def log(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the natural logarithm of x."""
        return self._pointwise("log", name, x=x)

    def neg(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return -x."""
        return self._pointwise("neg", name, x=x)

    def reciprocal(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return 1 / x."""
        return self._pointwise("reciprocal", name, x=x)

    def rsqrt(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return 1 / sqrt(x)."""
        return self._pointwise("rsqrt", name, x=x)

    def sin(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the sine of x."""
        return self._pointwise("sin", name, x=x)

    def sqrt(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the square root of x."""
        return self._pointwise("sqrt", name, x=x)

    def tan(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the tangent of x."""
        return self._pointwise("tan", name, x=x)

    def logical_not(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x is 0."""
        return self._pointwise("logical_not", name, x=x)

    def identity(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x; as an output it may have another dtype or other strides."""
        return self._pointwise("identity", name, x=x)

    def add(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x + b."""
        return self._pointwise("add", name, x=x, b=b)

    def add_square(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x + b * b."""
        return self._pointwise("add_square", name, x=x, b=b)

    def atan2(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the angle of the point (b, x)."""
        return self._pointwise("atan2", name, x=x, b=b)

    def div(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x / b."""
        return self._pointwise("div", name, x=x, b=b)

    def floor_mod(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the remainder of x / b, with the sign of b."""
        return self._pointwise("floor_mod", name, x=x, b=b)

    def maximum(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the larger of x and b."""
        return self._pointwise("max", name, x=x, b=b)

    def minimum(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the smaller of x and b."""
        return self._pointwise("min", name, x=x, b=b)

    def mod(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the remainder of x / b, with the sign of x."""
        return self._pointwise("mod", name, x=x, b=b)

    def mul(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x * b."""
        return self._pointwise("mul", name, x=x, b=b)

    def pow(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x to the power of b."""
        return self._pointwise("pow", name, x=x, b=b)

    def sub(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x - b."""
        return self._pointwise("sub", name, x=x, b=b)

    def equal(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x equals b."""
        return self._pointwise("cmp_eq", name, x=x, b=b)

    def not_equal(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x differs from b."""
        return self._pointwise("cmp_neq", name, x=x, b=b)

    def greater(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x > b."""
        return self._pointwise("cmp_gt", name, x=x, b=b)

    def greater_equal(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x >= b."""
        return self._pointwise("cmp_ge", name, x=x, b=b)

    def less(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x < b."""
        return self._pointwise("cmp_lt", name, x=x, b=b)

    def less_equal(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x <= b."""
        return self._pointwise("cmp_le", name, x=x, b=b)

    def logical_and(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x and b are not 0."""
        return self._pointwise("logical_and", name, x=x, b=b)

    def logical_or(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return whether x or b is not 0."""
        return self._pointwise("logical_or", name, x=x, b=b)

    def select(self, condition: Operand, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x where the condition holds, and b elsewhere."""
        return self._pointwise("binary_select", name, x=x, b=b, t=condition)

    def gen_index(self, x: GraphTensor, axis: int, *, name: str | None = None) -> GraphTensor:
        """Return the index of each element of x along an axis, as int32."""
        return self._apply("pointwise", {"x": x}, name, mode="gen_index", axis=as_int(axis, "axis"))["y"]
