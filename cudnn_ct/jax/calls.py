"""Calls of operations as values that XLA keeps: operation, parameters, and what its arrays are.

A call is the text of an attribute, so that a compiled program that was stored runs in another process.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import cudnn_ct

from .._algorithm_names import POLICIES, SYNONYMS
from .._config import config
from ..array_shapes import ShapeArray, only_shapes
from ..gradients.formulas import Param, Row, arguments
from ..gradients.table import NETWORKS, OPERATIONS, network_results
from ..shapes.checks import (
    as_bool,
    as_float,
    as_int,
    as_ints,
    as_list,
    expect_dtype,
    expect_rank,
    expect_shape,
    one_dtype,
)
from ..shapes.ctc import check_ctc_logits
from ..shapes.sequences import as_integers
from ..shapes.specs import CHANNELS_LAST_DTYPES, TensorSpec, packed_strides
from ..typing import Layout

__all__ = ["ROWS", "SETTINGS", "Call", "call_of", "order_of", "plain", "traced_settings"]

ROWS: dict[str, Row] = {**OPERATIONS, **NETWORKS}

Params = tuple[tuple[str, Any], ...]

# The parameter with the settings at the time of tracing: a call that runs later, or elsewhere, follows them.
SETTINGS = "settings"

# Operations on images, which XLA is asked to keep in the layout that is fastest for the dtype.
IMAGES = ("conv", "pool", "batch_norm", "lrn")


class Call(NamedTuple):
    """An operation of the table, its parameters, the operands that are given, and the specs of all arrays."""

    name: str
    params: Params
    present: tuple[str, ...]
    operands: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]

    @property
    def row(self) -> Row:
        """The row of the table."""
        return ROWS[self.name]

    def keywords(self) -> dict[str, Any]:
        """Return the parameters of the public function, without the operands."""
        rank = len(self.operands[0].shape)
        return arguments(self.row, dict(self.params), {}, rank - 2)

    def selection(self) -> dict[str, Any]:
        """Return the arguments by which the public function selects an algorithm, of the settings."""
        settings, known = dict(self.params).get(SETTINGS), parameters(self.row.function)
        if settings is None or "deterministic" not in known:
            return {}
        algo, deterministic, allow_tf32 = settings
        found = {"deterministic": deterministic}
        policy = SYNONYMS.get(algo, algo)
        if policy in POLICIES or self.row.function.startswith("conv"):
            found["algo"] = policy
        if "precision" in known and self.operands[0].dtype == "float32" and not allow_tf32:
            found["precision"] = "float32"
        return found

    def text(self) -> str:
        """Return the call as text."""
        return json.dumps(self)

    @classmethod
    def read(cls, text: bytes) -> Call:
        """Return the call of a text."""
        name, params, present, *specs = json.loads(text)
        operands, results = (tuple(TensorSpec(*map(_tuples, spec)) for spec in one) for one in specs)
        return cls(name, _tuples(params), tuple(present), operands, results)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def plain(param: Param, value: Any, name: str) -> Any:
    """Return a parameter as a value of Python that can be a key and a part of a text.

    Numbers of NumPy become those of Python. Names are in lower case, in which gradients compare them.
    """
    if value is None and (param.optional or param.kind == "str"):
        return None
    if param.kind == "str":
        value = getattr(value, "name", value)  # of an enum
        return value.lower() if isinstance(value, str) else repr(value)  # which is not a valid name
    if param.kind == "ints" and (not isinstance(value := as_list(value), Sequence) or isinstance(value, str)):
        return (as_int(value, name),)
    if param.optional and param.kind == "ints":
        return tuple(None if one is None else as_int(one, name) for one in value)
    if param.kind == "padding":
        value = [one for pair in value for one in (pair if isinstance(pair, Sequence) else (pair,))]
    found = _PLAIN[param.kind](value, name)
    if found == () and param.kind == "ints":
        raise ValueError(f"{name} is empty: got {value!r}, expected at least one int")
    return found


_PLAIN: Mapping[str, Any] = {
    "int": as_int, "float": as_float, "bool": as_bool, "lengths": as_integers,
    "ints": as_ints, "padding": as_ints, "shape": as_ints,
}  # fmt: skip


def traced_settings() -> tuple[str, tuple[Any, ...]]:
    """Return the parameter with the present settings."""
    return SETTINGS, (config.algo, config.deterministic, config.allow_tf32)


@lru_cache(4096)
def call_of(name: str, params: Params, arrays: tuple[tuple[str, tuple[int, ...], str], ...]) -> Call:
    """Check the arguments of a call, and return it; arrays are operands with their shapes and dtypes.

    Raises ValueError, TypeError and NotSupportedError as the public function does.
    """
    images = name.startswith(IMAGES) and arrays[0][2] in CHANNELS_LAST_DTYPES
    specs = {one: _spec_of(shape, dtype, images) for one, shape, dtype in arrays}
    call = Call(name, params, tuple(specs), tuple(specs.values()), ())
    return call._replace(results=_results(call, specs))


def _spec_of(shape: tuple[int, ...], dtype: str, images: bool) -> TensorSpec:
    layout: Layout = "nhwc" if images and 3 <= len(shape) <= 5 else "nchw"
    return TensorSpec.packed(shape, dtype, layout)


def _results(call: Call, specs: Mapping[str, TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the results of the public function on arrays without memory."""
    row = call.row
    if call.name in NETWORKS:
        return network_results(call.name, dict(call.params), specs)
    if call.name == "ctc_loss":  # its function reads labels
        return _results_of_ctc(**specs)
    keywords = call.keywords()
    if "precision" in parameters(row.function) and specs[call.present[0]].dtype == "float32":
        keywords["precision"] = "tf32"  # the default depends on the cuDNN that is loaded; shapes do not
    operands = {one: ShapeArray.of(specs[one]) if one in specs else None for one in row.operands}
    with only_shapes(record=False):
        found = getattr(cudnn_ct, row.function)(**operands, **keywords)
    arrays = [getattr(found, one) for one in row.results] if isinstance(found, tuple) else [found]
    return tuple(array.spec for array in arrays)


def _results_of_ctc(logits: TensorSpec, labels: TensorSpec, **lengths: TensorSpec) -> tuple[TensorSpec, ...]:
    _, batch, _ = check_ctc_logits(logits.shape)
    one_dtype("ctc_loss", logits=logits.dtype)
    expect_rank(labels, "labels", 2)
    expect_shape(labels, "labels", (batch, labels.shape[1]))
    for name, spec in lengths.items():
        expect_shape(spec, name, (batch,))
    for name, spec in {"labels": labels, **lengths}.items():
        expect_dtype(spec, name, "int32", "int64", "int8", "uint8")
    return TensorSpec.packed((batch,), logits.dtype), logits


@cache
def parameters(function: str) -> frozenset[str]:
    """Return the names of the parameters of a public function; none for those of a network."""
    found = getattr(cudnn_ct, function, None)
    return frozenset(inspect.signature(found).parameters) if found else frozenset()


def order_of(spec: TensorSpec) -> tuple[int, ...] | None:
    """Return the axes of an array from the slowest to the fastest; None for C order."""
    if spec.strides == packed_strides(spec.shape):
        return None
    return tuple(sorted(range(len(spec.shape)), key=lambda axis: (-spec.strides[axis], axis)))
