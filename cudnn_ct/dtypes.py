"""Tables of supported dtypes: name, cuDNN code, item size and NumPy type."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ._hints import dtype_hint

if TYPE_CHECKING:
    import numpy as np


class DType(NamedTuple):
    """One element type: its names in NumPy or ml_dtypes, cuDNN's ``cudnnDataType_t``, bytes per element."""

    name: str
    code: int
    itemsize: int
    accumulate: str  # the default accumulation dtype for products
    numpy_name: str  # in ml_dtypes, if NumPy lacks the type

    @property
    @cache  # noqa: B019  # rows are few; the cache is read without a Python call
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; ml_dtypes is imported only if NumPy lacks the type."""
        import numpy as np

        try:
            return np.dtype(self.numpy_name)
        except TypeError:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy_name))
            return found


# The codes are values of cudnnDataType_t; a test compares them with the generated enum.
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("float32", 0, 4, "float32", "float32"),
        DType("float64", 1, 8, "float64", "float64"),
        DType("float16", 2, 2, "float32", "float16"),
        DType("bfloat16", 9, 2, "float32", "bfloat16"),
        DType("float8_e4m3", 12, 1, "float32", "float8_e4m3fn"),
        DType("float8_e5m2", 13, 1, "float32", "float8_e5m2"),
        DType("int8", 3, 1, "int32", "int8"),
        DType("uint8", 6, 1, "int32", "uint8"),
        DType("int32", 4, 4, "int32", "int32"),
        DType("int64", 10, 8, "int64", "int64"),
        DType("bool", 11, 1, "bool", "bool"),
    )
}

# Dtypes of tensors in graphs. No array has one that is not in `DTYPES`. Two elements of 4 bits share a byte,
# so their item size is 0.
GRAPH_DTYPES: dict[str, DType] = DTYPES | {
    row.name: row
    for row in (
        DType("float8_e8m0", 15, 1, "float32", "float8_e8m0fnu"),
        DType("float4_e2m1", 16, 0, "float32", "float4_e2m1fn"),
        DType("int4", 17, 0, "int32", "int4"),
        DType("uint4", 18, 0, "int32", "uint4"),
        DType("uint32", 19, 4, "int64", "uint32"),
        DType("byte_bool", 22, 1, "bool", "bool"),
    )
}

_NAMES = DTYPES | {row.numpy_name: row for row in DTYPES.values()}


def as_dtype(dtype: Any) -> DType:
    """Return the table row of a dtype, given by name, NumPy dtype or scalar type.

    Parameters
    ----------
    dtype : str, dtype or scalar type of NumPy, ml_dtypes or JAX, dtype of PyTorch, or DType
        Strings have their NumPy meaning: ``"half"`` is float16, ``"float"`` and ``"f8"`` are float64.

    Raises
    ------
    TypeError
        cuDNN does not support the type; the message lists the supported ones.

    Examples
    --------
    >>> as_dtype("half").name
    'float16'
    """
    try:
        return _look_up(dtype)
    except (KeyError, TypeError):
        known, hint = ", ".join(DTYPES), dtype_hint(dtype, DTYPES)
        raise TypeError(f"cuDNN has no dtype {_name(dtype)}; it has {known}{hint}") from None


@lru_cache(maxsize=256)  # reading the name of a NumPy dtype takes a microsecond
def _look_up(dtype: Any) -> DType:
    return dtype if isinstance(dtype, DType) else _NAMES[_name(dtype)]


def _name(dtype: Any) -> str:
    import numpy as np

    if not isinstance(dtype, str | type | np.dtype):  # NumPy reads None, and any object with a dtype
        module, _, name = str(dtype).rpartition(".")  # such as torch.float16
        return name if module == type(dtype).__module__ else repr(dtype)
    if isinstance(dtype, str) and dtype in _NAMES:
        return dtype
    try:
        return str(np.dtype(dtype).name)
    except (TypeError, ValueError):  # ValueError: NumPy cannot encode surrogates
        return dtype if isinstance(dtype, str) else repr(dtype)
