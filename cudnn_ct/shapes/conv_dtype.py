"""Dtypes of convolutions: operands, results and accumulation."""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import as_dtype
from .checks import cast_hint
from .parse import as_choice

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
