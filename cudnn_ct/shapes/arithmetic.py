"""Arithmetic of products and convolutions: dtypes, accumulation, and scales, bias and activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ..dtypes import as_dtype
from ..typing import MatmulActivation
from .checks import as_choice, cast_hint, result_spec
from .specs import Outs, Specs, TensorSpec

CONV_DTYPES = ("float16", "bfloat16", "float32", "float64")
INT8_RESULTS = ("int32", "float32")  # result dtypes of a forward convolution of int8


def conv_dtypes(direction: str) -> tuple[str, ...]:
    """Return the dtypes of operands that a direction supports; int8 is for forward only.

    ``direction`` is a direction of a convolution, or ``"fused"`` or ``"backward_bias"``.
    """
    return (*CONV_DTYPES, "int8") if direction == "forward" else CONV_DTYPES


def check_conv_dtypes(direction: str, dtypes: Mapping[str, str]) -> None:
    """Raise TypeError unless the named operands have one dtype, and the direction supports it."""
    (first, one), *others = dtypes.items()
    for second, two in others:
        if one != two:
            hint = cast_hint(**{first: one, second: two})
            raise TypeError(
                f"{first} is {one} and {second} is {two}; a convolution needs one dtype for both{hint}"
            )
    allowed = conv_dtypes(direction)
    if one not in allowed:
        what = {"forward": "a convolution", "fused": "a fused convolution"}
        name = what.get(direction, "a gradient of a convolution")
        hint = (
            "; convolutions of float8 are ct.scaled_conv"
            if direction in what and one.startswith("float8")
            else ""
        )
        raise TypeError(f"{name} takes {', '.join(allowed)}, not {one}{hint}")


def conv_result_dtype(dtype: str, out: str | None = None, scaled: str = "") -> str:
    """Return the dtype of a convolution's result: the operands' dtype; for int8, int32 or the float32 of out.

    ``scaled`` is "alpha" or "beta" if that factor differs from its default, which int32 results do not
    support.

    >>> conv_result_dtype("int8"), conv_result_dtype("int8", "float32"), conv_result_dtype("float16")
    ('int32', 'float32', 'float16')
    """
    if dtype != "int8":
        return dtype
    result = INT8_RESULTS[0] if out is None else out
    if result not in INT8_RESULTS:
        raise TypeError(f"out is {out}; sums of int8 are written as {' or '.join(INT8_RESULTS)}")
    if scaled and result == "int32":
        raise ValueError(
            f"{scaled} is not supported for int32 results; pass a float32 out to scale int8 sums"
        )
    return result


def resolve_precision(precision: str | None, dtype: str, allow_tf32: bool) -> tuple[str, bool]:
    """Return the accumulation dtype for data of ``dtype``, and whether products may use tensor cores.

    ``None`` is ``"as_input_f32"``. Half precision may always use tensor cores, which multiply halves exactly,
    unless ``"float32"`` asks for plain IEEE arithmetic. Products of int8 are summed in int32.
    """
    half = dtype in ("float16", "bfloat16")
    wide = as_dtype(dtype).accumulate
    rows = {
        "as_input_f32": (wide, half or (dtype == "float32" and allow_tf32)),
        "as_input": (dtype, half or (dtype == "float32" and allow_tf32)),
        "float32": ("float32", False),
        "tf32": ("float32", True),
        "float16": ("float16", True),
        "float64": ("float64", False),
    }
    allowed = {
        "as_input_f32": conv_dtypes("forward"),
        "tf32": ("float32",),
        "float16": ("float16",),
        "float32": ("float16", "bfloat16", "float32"),
    }
    name = as_choice("as_input_f32" if precision is None else precision, tuple(rows), "precision")
    fitting = allowed.get(name, CONV_DTYPES)
    if dtype not in fitting:
        raise ValueError(f"precision={name!r} is for {' or '.join(fitting)} data, not {dtype}")
    return rows[name]


ACTIVATIONS: tuple[MatmulActivation, ...] = get_args(MatmulActivation)
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
    if spec.dtype not in dtypes:
        expected = " or ".join(dict.fromkeys(dtypes))
        raise TypeError(f"{name} has a wrong dtype: got {spec.dtype}, expected {expected}")


def check_float8(**specs: TensorSpec) -> None:
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
