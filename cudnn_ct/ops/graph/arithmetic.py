"""Pointwise operations: the methods of :class:`cudnn_ct.Graph` for all modes, by their mathematical names.

Operands broadcast as in NumPy. Numbers are passed by value.
"""

from __future__ import annotations

from numbers import Integral

from ...errors import NotSupportedError
from ...shapes.parse import as_bool, as_float, as_int
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


# --- activations -------------------------------------------------------------------------------------------


class ActivationMethods(GraphBuilder):
    """Activations, element by element, and their gradients from the operand x of the activation."""

    def relu(
        self,
        x: Operand,
        *,
        lower: float = 0.0,
        upper: float | None = None,
        slope: float = 0.0,
        name: str | None = None,
    ) -> GraphTensor:
        """Return ``min(x, upper)`` where x > lower, and ``lower + slope * (x - lower)`` elsewhere.

        Raises NotSupportedError if ``slope`` exceeds 1: cuDNN computes ``max(x, slope * x)``.
        """
        parameters = _relu(lower, upper, slope)
        if (parameters["relu_lower_clip_slope"] or 0) > 1:
            raise NotSupportedError(
                f"slope is not supported: got {slope}, expected at most 1, because cuDNN computes "
                "max(x, slope * x); use minimum(x, x * slope)"
            )
        return self._activation("relu_fwd", x, name, **parameters)

    def tanh(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the hyperbolic tangent of x."""
        return self._activation("tanh_fwd", x, name)

    def sigmoid(self, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return ``1 / (1 + exp(-x))``."""
        return self._activation("sigmoid_fwd", x, name)

    def elu(self, x: Operand, *, alpha: float = 1.0, name: str | None = None) -> GraphTensor:
        """Return x where it is positive, and ``alpha * (exp(x) - 1)`` elsewhere."""
        return self._activation("elu_fwd", x, name, elu_alpha=as_float(alpha, "alpha"))

    def gelu(self, x: Operand, *, approximate: bool = False, name: str | None = None) -> GraphTensor:
        """Return ``x * Phi(x)``; ``approximate`` computes the normal distribution Phi by tanh."""
        by_tanh = as_bool(approximate, "approximate")
        return self._activation("gelu_approx_tanh_fwd" if by_tanh else "gelu_fwd", x, name)

    def softplus(self, x: Operand, *, beta: float = 1.0, name: str | None = None) -> GraphTensor:
        """Return ``log(1 + exp(beta * x)) / beta``."""
        return self._activation("softplus_fwd", x, name, softplus_beta=as_float(beta, "beta"))

    def swish(self, x: Operand, *, beta: float = 1.0, name: str | None = None) -> GraphTensor:
        """Return ``x * sigmoid(beta * x)``; with beta 1 also called SiLU."""
        return self._activation("swish_fwd", x, name, swish_beta=as_float(beta, "beta"))

    def relu_backward(
        self,
        dy: Operand,
        x: Operand,
        *,
        lower: float = 0.0,
        upper: float | None = None,
        slope: float = 0.0,
        name: str | None = None,
    ) -> GraphTensor:
        """Return the gradient of :meth:`relu` at x, times dy: dy where lower < x < upper.

        It is ``slope * dy`` where x <= lower, and 0 where x >= upper; PyTorch's clamp has dy at x == upper.
        """
        return self._gradient("relu_bwd", dy, x, name, **_relu(lower, upper, slope))

    def tanh_backward(self, dy: Operand, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the gradient of :meth:`tanh` at x, times dy."""
        return self._gradient("tanh_bwd", dy, x, name)

    def sigmoid_backward(self, dy: Operand, x: Operand, *, name: str | None = None) -> GraphTensor:
        """Return the gradient of :meth:`sigmoid` at x, times dy."""
        return self._gradient("sigmoid_bwd", dy, x, name)

    def elu_backward(
        self, dy: Operand, x: Operand, *, alpha: float = 1.0, name: str | None = None
    ) -> GraphTensor:
        """Return the gradient of :meth:`elu` at x, times dy."""
        return self._gradient("elu_bwd", dy, x, name, elu_alpha=as_float(alpha, "alpha"))

    def gelu_backward(
        self, dy: Operand, x: Operand, *, approximate: bool = False, name: str | None = None
    ) -> GraphTensor:
        """Return the gradient of :meth:`gelu` at x, times dy."""
        by_tanh = as_bool(approximate, "approximate")
        return self._gradient("gelu_approx_tanh_bwd" if by_tanh else "gelu_bwd", dy, x, name)

    def softplus_backward(
        self, dy: Operand, x: Operand, *, beta: float = 1.0, name: str | None = None
    ) -> GraphTensor:
        """Return the gradient of :meth:`softplus` at x, times dy."""
        return self._gradient("softplus_bwd", dy, x, name, softplus_beta=as_float(beta, "beta"))

    def swish_backward(
        self, dy: Operand, x: Operand, *, beta: float = 1.0, name: str | None = None
    ) -> GraphTensor:
        """Return the gradient of :meth:`swish` at x, times dy."""
        return self._gradient("swish_bwd", dy, x, name, swish_beta=as_float(beta, "beta"))

    def _activation(self, mode: str, x: Operand, name: str | None, **parameters: float | None) -> GraphTensor:
        return self._apply("pointwise", {"x": x}, name, mode=mode, **parameters)["y"]

    def _gradient(
        self, mode: str, dy: Operand, x: Operand, name: str | None, **parameters: float | None
    ) -> GraphTensor:
        return self._apply("pointwise_backward", {"dy": dy, "x": x}, name, mode=mode, **parameters)["dx"]


def _relu(lower: float, upper: float | None, slope: float) -> dict[str, float | None]:
    """Return the attributes of a relu; those with cuDNN's default values are not set."""
    return {
        "relu_lower_clip": as_float(lower, "lower") or None,
        "relu_upper_clip": None if upper is None else as_float(upper, "upper"),
        "relu_lower_clip_slope": as_float(slope, "slope") or None,
    }
