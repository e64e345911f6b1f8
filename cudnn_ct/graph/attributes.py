"""Attributes of backend descriptors: the attributes of each kind of descriptor, and their C types.

The names are cuDNN's names without the prefix of their kind: ``CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT`` is
``byte_alignment`` of a ``"tensor"``. They come from the generated enums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from .._bindings import enums, types
from .._bindings.attributes import ATTRIBUTE_TYPES
from .._bindings.enums import BackendAttributeName, BackendAttributeType, BackendDescriptorType
from ..dtypes import GRAPH_DTYPES, as_dtype


class Attribute(NamedTuple):
    """One attribute: its code, and the type of its elements in C and in Python."""

    code: int
    type: Element


class DescriptorType(NamedTuple):
    """One kind of backend descriptor, with its attributes by their short names."""

    name: str
    code: int
    attributes: dict[str, Attribute]

    def attribute(self, name: str) -> Attribute:
        """Return an attribute by its name. Raises AttributeError, with the existing names."""
        try:
            return self.attributes[name]
        except KeyError:
            raise AttributeError(
                f"a backend descriptor of kind {self.name!r} has no attribute {name!r}; "
                f"it has {', '.join(sorted(self.attributes))}"
            ) from None


@cache
def kind(name: str) -> DescriptorType:
    """Return a kind of descriptor by its name in C, in lower case and without ``_DESCRIPTOR``."""
    codes = _codes()
    if name not in codes:
        raise ValueError(f"unknown backend descriptor: got {name!r}, expected one of {', '.join(codes)}")
    return DescriptorType(name, codes[name], _attributes_of(name))


class AsDouble(float):
    """A number that is set as DOUBLE if the attribute also takes FLOAT: the scaling of float64."""

    set_as = "DOUBLE"


class AsInt32(int):
    """A number that is set as INT32 although the attribute takes FLOAT: the scaling of integer sums.

    cuDNN stores the four bytes unchanged, and engines that write int32 read them as an integer.
    """

    set_as = "INT32"


class Element(NamedTuple):
    """A type of attributes: its code, the C type, and the conversions to C and back."""

    code: int
    ctype: Any
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


# --- attributes of a kind ---------------------------------------------------------------------------------

# Prefixes of attributes that differ from the name of their kind.
_PREFIXES = {
    "operation_convolution_backward_data": "OPERATION_CONVOLUTION_BWD_DATA_",
    "operation_convolution_backward_filter": "OPERATION_CONVOLUTION_BWD_FILTER_",
    "operation_gen_stats": "OPERATION_GENSTATS_",
    "operation_bn_finalize_statistics": "OPERATION_BN_FINALIZE_",
    "operation_norm_forward": "OPERATION_NORM_FWD_",
    "operation_norm_backward": "OPERATION_NORM_BWD_",
}

# Prefixes of the few attributes that differ from the other attributes of their kind.
_RARE_PREFIXES = {"OPERATION_CONTRACT_BAND_": "operation_contract_band_matrix"}


@cache
def _codes() -> dict[str, int]:
    members = BackendDescriptorType.__members__
    return {name.removesuffix("_DESCRIPTOR").lower(): int(member) for name, member in members.items()}


@cache
def _prefixes() -> dict[str, str]:
    """Return the kind of the attributes that begin with a prefix."""
    return _RARE_PREFIXES | {_PREFIXES.get(name, f"{name}_".upper()): name for name in _codes()}


def _attributes_of(kind: str) -> dict[str, Attribute]:
    """Return the attributes of one kind: a process uses a few kinds, and all of them take 15 ms."""
    found = {}
    for prefix in (one for one, name in _prefixes().items() if name == kind):
        longer = tuple(one for one in _prefixes() if one != prefix and one.startswith(prefix))
        for name, member in BackendAttributeName.__members__.items():
            # ..._MATMUL_BWD_ also begins with ..._MATMUL_.
            if name.startswith(prefix) and not name.startswith(longer):
                short = name.removeprefix(prefix).lower()
                found[short] = Attribute(int(member), element(ATTRIBUTE_TYPES[name]))
    return found


# --- types in C and in Python -----------------------------------------------------------------------------

# Enums whose names do not follow from the names of their attribute types.
_ENUMS: dict[str, Any] = {
    "ATTRIB_NAME": enums.BackendAttributeName,
    "GENSTATS_MODE": enums.GenStatsMode,
    "NAN_PROPOGATION": enums.NanPropagation,
    "OPERATIONGRAPH_MODE": enums.BackendOperationGraphMode,
    "REDUCTION_OPERATOR_TYPE": enums.ReduceTensorOp,
    "TENSOR_REORDERING_MODE": enums.BackendTensorReordering,
}

_PLAIN: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "INT64": (ctypes.c_int64, int),
    "INT32": (ctypes.c_int32, int),
    "BOOLEAN": (ctypes.c_bool, bool),
    "FLOAT": (ctypes.c_float, float),
    "DOUBLE": (ctypes.c_double, float),
    "VOID_PTR": (ctypes.c_void_p, lambda pointer: pointer or 0),
    "CHAR": (ctypes.c_char, bytes),  # set and read as a whole
}

_POINTERS = {"HANDLE": types.cudnnHandle_t, "BACKEND_DESCRIPTOR": types.cudnnBackendDescriptor_t}

_DTYPE_NAMES = {row.code: row.name for row in GRAPH_DTYPES.values()}


@cache
def element(name: str) -> Element:
    """Return the type of a name of ``cudnnBackendAttributeType_t``."""
    code = int(BackendAttributeType[name])
    if name in _PLAIN:
        ctype, convert = _PLAIN[name]
        return Element(code, ctype, convert, convert)
    if name in _POINTERS:
        return Element(code, _POINTERS[name], attrgetter("_as_parameter_"), lambda pointer: pointer)
    if name == "FRACTION":
        fraction = types.cudnnFraction_t
        return Element(
            code,
            fraction,
            lambda value: fraction(value.numerator, value.denominator),
            lambda value: Fraction(value.numerator, value.denominator),
        )
    if name == "DATA_TYPE":
        return Element(
            code,
            ctypes.c_int,
            lambda dtype: (
                dtype if isinstance(dtype, int) else (GRAPH_DTYPES.get(dtype) or as_dtype(dtype)).code
            ),
            lambda value: _DTYPE_NAMES.get(value, value),
        )
    camel = name.title().replace("_", "")  # BackendHeurMode is that of HEUR_MODE, PaddingMode of PADDING_MODE
    enum = _ENUMS.get(name) or getattr(enums, f"Backend{camel}", None) or getattr(enums, camel)
    names = {member.lower(): int(number) for member, number in enum.__members__.items()}
    members = {number: member for member, number in reversed(names.items())}  # the first of several names
    return Element(
        code,
        ctypes.c_int,
        lambda value: _number(enum.__name__, names, value),
        lambda value: members.get(value, str(value)),  # only a newer cuDNN names it
    )


def _number(enum: str, names: dict[str, int], value: Any) -> int:
    """Return the number of an enum's member, from the number or the name in any case."""
    if not isinstance(value, str):
        return int(value)
    found = names.get(value)
    if found is None:
        found = names.get(value.lower())
    if found is None:
        raise ValueError(f"unknown {enum}: got {value!r}, expected one of {', '.join(names)}")
    return found
