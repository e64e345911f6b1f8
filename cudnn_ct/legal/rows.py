"""The families of operations, and the fields and names that rows of facts about them may have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from enum import IntEnum
from typing import Any

from .._algorithm_names import RNN_ALGOS
from .._bindings import enums
from ..graph.engines import HEURISTICS, Engine
from ..graph.layouts import NATIVE
from .costs import why_not_costs
from .sizes import why_not_sizes

_OF_FAMILY = {
    "convolutions": ("conv", "conv_backward_data", "conv_backward_filter"),
    "attention": ("attention", "attention_backward"),
    "norms": (
        *("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"),
        *("ada_layer_norm", "ada_layer_norm_backward", "norm_of_parameters_last"),
        *("instance_norm", "instance_norm_backward", "batch_norm", "batch_norm_backward"),
    ),
    "products": ("matmul",),
    "networks": ("rnn",),
    "poolings": ("resample",),
    "graphs": ("graph", "moe_grouped_matmul"),
    "native graphs": (NATIVE,),
    "nodes": ("convolution",),
    "everything": ("all",),
}
FAMILIES = {name: family for family, names in _OF_FAMILY.items() for name in names}
"""The operations that facts can be about, each with the family of its conditions."""


def why_unknown(row: Mapping[str, Any], conditions_of: Callable[[str], Collection[str]]) -> str:
    """Return what in a row its operations do not know or read; empty for nothing.

    ``conditions_of`` returns the names of the conditions of a family.
    """
    kind, operations, when = row["kind"], row["operations"], row["when"]
    readers = _READERS.get(kind, _READERS_OF_OTHERS)
    if not operations or not readers >= set(operations):
        expected = ", ".join(name for name in FAMILIES if name in readers)
        strange = [name for name in operations if name not in readers]
        return f"operations are unknown to the kind {kind}: got {strange}, expected some of {expected}"
    for operation in operations:
        known = conditions_of(FAMILIES[operation])
        if unknown := [name for name in when if name not in known]:
            from difflib import get_close_matches  # only for an error

            close = ", ".join(map(repr, get_close_matches(unknown[0], known, 5, 0))) or "[]"
            expected = f"expected one of {operation}, such as {close}"
            return f"when has an unknown condition: got {unknown[0]!r}, {expected}"
    if not set(HEURISTICS) > set(modes := row.get("modes", ())):
        return f"modes are wrong: got {modes}, expected some but not all of {', '.join(HEURISTICS)}"
    families = {FAMILIES[operation] for operation in operations}
    if row.get("sizes") and families != {"convolutions"}:
        return f"sizes are conditions of convolutions only: got operations {operations}"
    if "native graphs" in families and len(when) != 1:
        return f"when is wrong for {NATIVE}: got {when}, expected one condition"
    return (
        why_not_sizes(row.get("sizes", {}))
        or _why_not_order(kind, families, row.get("order", []))
        or why_not_costs(row.get("costs", {}), row.get("order", []))
        or _why_not_names(row)
    )


def _why_not_names(row: Mapping[str, Any]) -> str:
    """Return which algorithms or notes an operation of a row does not have, or lacks; empty for none."""
    notes = {*_names(enums.BackendNumericalNote), *_names(enums.BackendBehaviorNote)}
    for operation in row["operations"]:
        known = {"algorithms": {*notes, *_names(_LEGACY.get(operation, ()))}}
        known |= {"with_notes": notes, "without_notes": notes}
        if operation == "rnn" and row["kind"] == "engine":
            known = {"algorithms": {*RNN_ALGOS}}
            if others := [name for name in row if name in _OF_ENGINES]:
                return f"networks have no engines: got {others[0]}, expected algorithms alone"
            if "algorithms" not in row:
                return "the fact lacks algorithms, which the operation rnn needs: networks have no engines"
        for field, names in known.items():
            if unknown := [name for name in row.get(field, ()) if name not in names]:
                expected = f"expected some of {', '.join(sorted(names))}"
                return f"{field} has a name that {operation} does not know: got {unknown[0]!r}, {expected}"
    return ""


_OF_ENGINES = ("engines", "engines_except", "knobs", "min_slices", "with_notes", "without_notes")
_LEGACY = {
    "conv": enums.ConvolutionFwdAlgo,
    "conv_backward_data": enums.ConvolutionBwdDataAlgo,
    "conv_backward_filter": enums.ConvolutionBwdFilterAlgo,
}


def _names(names: Iterable[IntEnum]) -> Iterator[str]:
    return (one.name.lower() for one in names if one.name not in ("COUNT", "TYPE_COUNT"))


def _why_not_order(kind: str, families: Set[str], order: Sequence[str]) -> str:
    """Return which name is not that of an engine or algorithm that a kind can order; empty if none is."""
    if kind == "first" and "convolutions" in families and len(order) > 1:
        return f"order is too long for convolutions: got {order}, expected one name"
    others = [_ALGORITHMS[family] for family in families] if kind == "first" else []
    for name in order:
        if not others or not all(re.fullmatch(other, name, re.ASCII) for other in others):
            try:
                knobs = Engine.parse(name).knobs
            except ValueError as error:
                return f"order has an unknown name: {error}{''.join(f', or {one[:10]}' for one in others)}"
            if kind == "last" and knobs:
                return f"order has knobs, which the kind last does not read: got {name!r}, expected no knobs"
    return ""


# The operations that read rows of a kind.
_RANKED = {*_OF_FAMILY["convolutions"], "matmul"}
_READERS: dict[str, Set[str]] = {
    **{"first": _RANKED, "also": {*_RANKED, *_OF_FAMILY["norms"][:7]}, "first_choice": {"attention"}},
    "cost": {*_OF_FAMILY["convolutions"]},
    **{"modes": {"convolution"}, "stored": {"all"}, "inform": FAMILIES.keys()},
    **{"engine": FAMILIES.keys() - {"convolution", NATIVE}, "reject": FAMILIES.keys() - {"convolution"}},
}
_READERS_OF_OTHERS = FAMILIES.keys() - {"convolution", NATIVE, "rnn"}
# Algorithms beside engines that the kind ``first`` ranks.
_ALGORITHMS = {"convolutions": "product|unfused", "products": r"cublaslt \d{1,4}( config [\d.]+:[0-9a-f.]+)?"}
