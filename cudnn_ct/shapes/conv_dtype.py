"""The dtypes of convolutions: of what is read, of what is written, and of the sums."""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import as_dtype
from .parse import as_choice

CONV_DTYPES = ("float16", "bfloat16", "float32", "float64")
SUMS_OF_BYTES = ("int32", "float32")  # what a forward convolution of int8 may be written as


def conv_dtypes(direction: str) -> tuple[str, ...]:
    """The dtypes that operands may have: cuDNN sums products of int8 in the forward direction alone.

    ``direction`` is a direction of a convolution, or ``"fused"`` or ``"backward_bias"``.
    """
    return (*CONV_DTYPES, "int8") if direction == "forward" else CONV_DTYPES


def check_conv_dtypes(direction: str, dtypes: Mapping[str, str]) -> None:
    """Raise TypeError unless operands, by their names, have one dtype, and the direction takes it."""
    (first, one), *others = dtypes.items()
    for second, two in others:
        if one != two:
            raise TypeError(f"{first} is {one} and {second} is {two}; a convolution needs one dtype for both")
    allowed = conv_dtypes(direction)
    if one not in allowed:
        what = {"forward": "a convolution", "fused": "a fused convolution"}
        name = what.get(direction, "a gradient of a convolution")
        raise TypeError(f"{name} takes {', '.join(allowed)}, not {one}")


def conv_result_dtype(dtype: str, out: str | None = None, scaled: str = "") -> str:
    """The dtype of a convolution's result: that of its operands; of int8 int32, or float32 where out is that.

    Parameters
    ----------
    dtype : str
        That of the operands.
    out : str, optional
        That of what the result is written to.
    scaled : str
        The factor that there is: "alpha", "beta" or none. Integers are not scaled.

    Raises
    ------
    TypeError
        Sums of int8 are not written as the dtype of ``out``.
    ValueError
        There is a factor, and the result is int32.

    Examples
    --------
    >>> conv_result_dtype("int8"), conv_result_dtype("int8", "float32"), conv_result_dtype("float16")
    ('int32', 'float32', 'float16')
    """
    if dtype != "int8":
        return dtype
    result = SUMS_OF_BYTES[0] if out is None else out
    if result not in SUMS_OF_BYTES:
        raise TypeError(f"out is {out}; sums of int8 are written as {' or '.join(SUMS_OF_BYTES)}")
    if scaled and result == "int32":
        raise ValueError(f"{scaled} is a factor of floats; sums of int8 have one where out is float32")
    return result


def resolve_precision(precision: str | None, dtype: str, allow_tf32: bool) -> tuple[str, bool]:
    """Say for data of ``dtype`` which dtype to accumulate in, and whether tensor cores may round products.

    ``None`` is ``"as_input_f32"``. Half types may always use tensor cores, whose products of halves are
    exact, unless ``"float32"`` asks for plain IEEE arithmetic. Products of int8 are summed in int32.
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
