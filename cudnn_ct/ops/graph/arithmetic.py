"""Pointwise operations: the methods of :class:`cudnn_ct.Graph` for all modes, by their mathematical names.

Operands broadcast as in NumPy. Numbers are passed by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from types import MappingProxyType
from typing import Protocol, TypeVar, cast

from ..._hints import methods_of
from ...errors import NotSupportedError
from ...shapes.checks import as_bool, as_float, as_int
from .builder import GraphBuilder
from .tensors import GraphTensor, Operand


class OfOne(Protocol):
    def __call__(self, x: Operand, *, name: str | None = None) -> GraphTensor: ...


class OfTwo(Protocol):
    def __call__(self, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor: ...


def _of_one(title: str, doc: str, mode: str = "") -> OfOne:
    """Return the method of a mode with one operand; the mode is its title by default."""

    def method(self: PointwiseMethods, x: Operand, *, name: str | None = None) -> GraphTensor:
        return self._pointwise(mode or title, name, x=x)

    return _titled(cast("OfOne", method), title, doc)


def _of_two(title: str, doc: str, mode: str = "") -> OfTwo:
    def method(self: PointwiseMethods, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        return self._pointwise(mode or title, name, x=x, b=b)

    return _titled(cast("OfTwo", method), title, doc)


Method = TypeVar("Method", bound=Callable[..., GraphTensor])


def _titled(method: Method, title: str, doc: str) -> Method:
    method.__name__, method.__qualname__, method.__doc__ = title, f"PointwiseMethods.{title}", doc
    return method


@methods_of("Graph")
class PointwiseMethods(GraphBuilder):
    """Arithmetic, comparisons, logic and activations, element by element.

    The gradient of an activation takes its operand x.
    """

    def _pointwise(
        self,
        mode: str,
        name: str | None,
        parameters: Mapping[str, float | None] = MappingProxyType({}),
        **operands: Operand | None,
    ) -> GraphTensor:
        tensors = [one for one in operands.values() if isinstance(one, GraphTensor)]
        if tensors and all(one.dtype == "int32" for one in tensors):  # indices: whole numbers stay whole
            for role, one in operands.items():
                if isinstance(one, Integral) and not isinstance(one, bool):
                    operands[role] = self.constant(one, "int32")
        return self._apply("pointwise", operands, name, mode=mode, **parameters)["y"]

    abs = _of_one("abs", "Return the absolute value of x.")
    ceil = _of_one("ceil", "Return x rounded up.")
    cos = _of_one("cos", "Return the cosine of x.")
    erf = _of_one("erf", "Return the error function of x.")
    exp = _of_one("exp", "Return e to the power of x.")
    floor = _of_one("floor", "Return x rounded down.")
    log = _of_one("log", "Return the natural logarithm of x.")
    neg = _of_one("neg", "Return -x.")
    reciprocal = _of_one("reciprocal", "Return 1 / x.")
    rsqrt = _of_one("rsqrt", "Return 1 / sqrt(x).")
    sin = _of_one("sin", "Return the sine of x.")
    sqrt = _of_one("sqrt", "Return the square root of x.")
    tan = _of_one("tan", "Return the tangent of x.")
    logical_not = _of_one("logical_not", "Return whether x is 0.")
    identity = _of_one("identity", "Return x; as an output it may have another dtype or other strides.")
    add = _of_two("add", "Return x + b.")
    add_square = _of_two("add_square", "Return x + b * b.")
    atan2 = _of_two("atan2", "Return the angle of the point (b, x).")
    div = _of_two("div", "Return x / b.")
    floor_mod = _of_two("floor_mod", "Return the remainder of x / b, with the sign of b.")
    maximum = _of_two("maximum", "Return the larger of x and b.", "max")
    minimum = _of_two("minimum", "Return the smaller of x and b.", "min")
    mod = _of_two("mod", "Return the remainder of x / b, with the sign of x.")
    mul = _of_two("mul", "Return x * b.")
    pow = _of_two("pow", "Return x to the power of b.")
    sub = _of_two("sub", "Return x - b.")
    equal = _of_two("equal", "Return whether x equals b.", "cmp_eq")
    not_equal = _of_two("not_equal", "Return whether x differs from b.", "cmp_neq")
    greater = _of_two("greater", "Return whether x > b.", "cmp_gt")
    greater_equal = _of_two("greater_equal", "Return whether x >= b.", "cmp_ge")
    less = _of_two("less", "Return whether x < b.", "cmp_lt")
    less_equal = _of_two("less_equal", "Return whether x <= b.", "cmp_le")
    logical_and = _of_two("logical_and", "Return whether x and b are not 0.")
    logical_or = _of_two("logical_or", "Return whether x or b is not 0.")

    def select(self, condition: Operand, x: Operand, b: Operand, *, name: str | None = None) -> GraphTensor:
        """Return x where the condition holds, and b elsewhere."""
        return self._pointwise("binary_select", name, x=x, b=b, t=condition)

    def gen_index(self, x: GraphTensor, axis: int, *, name: str | None = None) -> GraphTensor:
        """Return the index of each element of x along an axis, as int32."""
        return self._apply("pointwise", {"x": x}, name, mode="gen_index", axis=as_int(axis, "axis"))["y"]

    # --- activations and their gradients ---

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
        return self._pointwise("relu_fwd", name, parameters, x=x)

    tanh = _of_one("tanh", "Return the hyperbolic tangent of x.", "tanh_fwd")
    sigmoid = _of_one("sigmoid", "Return ``1 / (1 + exp(-x))``.", "sigmoid_fwd")

    def elu(self, x: Operand, *, alpha: float = 1.0, name: str | None = None) -> GraphTensor:
        """Return x where it is positive, and ``alpha * (exp(x) - 1)`` elsewhere."""
        return self._pointwise("elu_fwd", name, {"elu_alpha": as_float(alpha, "alpha")}, x=x)

    def gelu(self, x: Operand, *, approximate: bool = False, name: str | None = None) -> GraphTensor:
        """Return ``x * Phi(x)``; ``approximate`` computes the normal distribution Phi by tanh."""
        by_tanh = as_bool(approximate, "approximate")
        return self._pointwise("gelu_approx_tanh_fwd" if by_tanh else "gelu_fwd", name, x=x)

    def softplus(self, x: Operand, *, beta: float = 1.0, name: str | None = None) -> GraphTensor:
        """Return ``log(1 + exp(beta * x)) / beta``."""
        return self._pointwise("softplus_fwd", name, {"softplus_beta": as_float(beta, "beta")}, x=x)

    def swish(self, x: Operand, *, beta: float = 1.0, name: str | None = None) -> GraphTensor:
        """Return ``x * sigmoid(beta * x)``; with beta 1 also called SiLU."""
        return self._pointwise("swish_fwd", name, {"swish_beta": as_float(beta, "beta")}, x=x)

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
