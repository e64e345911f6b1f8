"""Epilogue of a matrix product or a convolution: scales of float8 operands, bias, activation, amax."""

from __future__ import annotations

from typing import Any

from ..dtypes import as_dtype
from ..typing import MatmulActivation
from .checks import Outs, Specs, result_spec
from .parse import as_choice
from .specs import TensorSpec

ACTIVATIONS: tuple[MatmulActivation, ...] = (
    "identity", "relu", "gelu", "gelu_tanh", "silu", "swish", "sigmoid", "tanh",
)  # fmt: skip
FLOAT8 = ("float8_e4m3", "float8_e5m2")
HALF = ("float16", "bfloat16")
WITHOUT_AMAX = "amax is not set"  # why a result has no amax


def activation_name(activation: Any) -> MatmulActivation:
    """Return the name of an activation; None is the identity, and swish is silu."""
    if activation is None:
        return "identity"
    name: MatmulActivation = as_choice(activation, ACTIVATIONS, "activation")
    return "silu" if name == "swish" else name


def bias_dtypes(result: str) -> tuple[str, ...]:
    """Return the dtypes of a bias: the dtype of the result, half precision if that is float8, or float32."""
    return (*((result,) if result not in FLOAT8 else HALF), "float32")


def check_dtype(name: str, spec: TensorSpec, dtypes: tuple[str, ...]) -> None:
    """Raise TypeError unless a tensor has one of the dtypes."""
    if spec.dtype not in dtypes:
        expected = " or ".join(dict.fromkeys(dtypes))
        raise TypeError(f"{name} has a wrong dtype: got {spec.dtype}, expected {expected}")


def check_float8(**specs: TensorSpec) -> None:
    """Raise TypeError unless all tensors are float8."""
    for name, spec in specs.items():
        check_dtype(name, spec, FLOAT8)


def float8_result_dtype(out_dtype: Any, out: TensorSpec | None) -> str:
    """Return the dtype of the result of float8 operands: ``out_dtype``, that of ``out``, or bfloat16."""
    allowed = ("bfloat16", "float16", "float32", *FLOAT8)
    dtype = out.dtype if out is not None and out_dtype is None else as_dtype(out_dtype or "bfloat16").name
    if dtype not in allowed:
        raise TypeError(f"out_dtype is not supported: got {dtype}, expected one of {', '.join(allowed)}")
    return dtype


def scales_of(specs: Specs, *names: str) -> dict[str, Any]:
    """Return the specs of scales by name, None for those that are not given; each is one float32."""
    scales = {name: specs.get(name) for name in names}
    for name, spec in scales.items():
        if spec and (spec.dtype != "float32" or spec.size != 1):
            raise ValueError(f"{name} is not a float32 array of one element: got {spec}")
    return scales


def amax_spec(outs: Outs) -> TensorSpec | None:
    """Return the spec of amax, None if ``outs`` has only y."""
    if len(outs) < 2:
        return None
    spec = TensorSpec.packed((1,), "float32")
    return result_spec(spec.shape, spec, out=outs[1], name="amax of out")
