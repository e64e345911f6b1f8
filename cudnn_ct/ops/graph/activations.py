"""Activations and their gradients: methods of :class:`cudnn_ct.Graph`."""

from __future__ import annotations

from ...errors import NotSupportedError
from ...shapes.parse import as_bool, as_float
from .builder import GraphBuilder
from .tensors import GraphTensor, Operand


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
