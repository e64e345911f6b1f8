"""Attributes of backend descriptors by kind, with their C types, and graphs with attributes as JSON.

The names are cuDNN's names without the prefix of their kind: ``CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT`` is
``byte_alignment`` of a ``"tensor"``. They come from the generated enums.
"""

from __future__ import annotations

import ctypes
import json
import numbers
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from .._bindings import enums, types
from .._bindings.attributes import ATTRIBUTE_TYPES
from .._bindings.enums import BackendAttributeName, BackendAttributeType, BackendDescriptorType
from ..dtypes import GRAPH_DTYPES, as_dtype
from ..shapes.specs import TensorSpec
from .operations import OPERATIONS, Graph, Node, Tensor, tensors_of_graph


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


# --- graphs as JSON ----------------------------------------------------------------------------------------


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Return a graph as JSON: its tensors by uid, its nodes, and the uids of its operands."""
    tensors = {**{one.uid: one for one in graph.operands}, **tensors_of_graph(graph)}
    ordered = [_tensor_to_json(tensors[uid]) for uid in sorted(tensors)]
    dynamic = {"dynamic": True} if graph.dynamic else {}
    return {"tensors": ordered, **_nodes_to_json(graph), **dynamic}


def graph_text(graph: Graph) -> str:
    """Return a graph as text that is the same for equal graphs: it has all shapes, strides and attributes."""
    return json.dumps(graph_to_json(graph), sort_keys=True)


def graph_from_json(found: Mapping[str, Any]) -> Graph:
    """Return the graph that :func:`graph_to_json` wrote; raise ValueError if it is malformed."""
    try:
        rows = {int(row["uid"]): row for row in found["tensors"]}
        return _graph(found, rows)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a graph: {type(error).__name__} {error}") from None


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    row: dict[str, Any] = {"uid": tensor.uid, **tensor.spec._asdict()}
    row |= {name: True for name in ("virtual", "scratch") if getattr(tensor, name)}
    given = {name: getattr(tensor, name) for name in ("value", "reordering", "same_memory_as")}
    given["ragged"] = tensor.ragged and tensor.ragged.uid
    return row | {name: value for name, value in given.items() if value is not None}


def _nodes_to_json(graph: Graph) -> dict[str, Any]:
    return {
        "nodes": [_node_to_json(one) for one in graph.nodes],
        "operands": [one.uid for one in graph.operands],
    }


def _node_to_json(one: Node) -> dict[str, Any]:
    return {"row": one.row, "attributes": {key: _to_json(value) for key, value in one.attributes.items()}}


def _to_json(value: Any) -> Any:
    for tag, (kind, encode, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: encode(value)}
    if isinstance(value, tuple | list):
        return [_to_json(element) for element in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"an attribute of a graph cannot be written as JSON: got {value!r}")


def _graph(found: Mapping[str, Any], rows: Mapping[int, Any]) -> Graph:
    return Graph(
        tuple(_node(one, rows) for one in found["nodes"]),
        tuple(_tensor(uid, rows) for uid in found["operands"]),
        bool(found.get("dynamic", False)),
    )


def _node(found: Mapping[str, Any], rows: Mapping[int, Any]) -> Node:
    if found["row"] not in OPERATIONS:
        raise ValueError(f"unknown operation in a graph: got {found['row']!r}")
    return Node(found["row"], {key: _value(value, rows) for key, value in found["attributes"].items()})


def _tensor(uid: Any, rows: Mapping[int, Any]) -> Tensor:
    row = rows[uid]
    if row["dtype"] not in GRAPH_DTYPES:
        raise ValueError(f"unknown dtype in a graph: got {row['dtype']!r}")
    shape, strides = (tuple(map(int, row[name])) for name in ("shape", "strides"))
    if len(shape) != len(strides):
        raise ValueError(f"tensor {uid} has {len(shape)} lengths and {len(strides)} strides")
    return Tensor(
        int(uid),
        TensorSpec(shape, strides, row["dtype"]),
        bool(row.get("virtual", False)),
        row.get("value"),
        _tensor(row["ragged"], rows) if "ragged" in row else None,
        row.get("reordering"),
        bool(row.get("scratch", False)),
        None if row.get("same_memory_as") is None else int(row["same_memory_as"]),
    )


def _value(value: Any, rows: Mapping[int, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_value(element, rows) for element in value)
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    return _TAGS[tag][2](content, rows)


# The types of attributes that JSON lacks, by tag: the conversion to JSON, and that back, with all tensors.
_TAGS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any, Mapping[int, Any]], Any]]] = {
    "tensor": (Tensor, lambda tensor: tensor.uid, _tensor),
    "graph": (Graph, _nodes_to_json, _graph),
    "node": (Node, _node_to_json, _node),
    "double": (AsDouble, float, lambda number, _: AsDouble(number)),
    "int32": (AsInt32, int, lambda number, _: AsInt32(number)),
    "fraction": (Fraction, lambda one: [*one.as_integer_ratio()], lambda pair, _: Fraction(*map(int, pair))),
}
