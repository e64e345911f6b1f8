"""Names of algorithms: policies, Theano's names, cuDNN's own names, and engines.

This module is below the settings, which reject unknown names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

POLICIES = ("heuristic", "autotune", "online")
SYNONYMS = {  # Theano's words
    "guess_once": "heuristic",
    "guess_on_shape_change": "heuristic",
    "time_once": "autotune",
    "time_on_shape_change": "autotune",
}
RNN_ALGOS = ("standard", "persist_static", "persist_dynamic", "persist_static_small_h")


class NamedAlgorithm(NamedTuple):
    """The legacy algorithm of a name in one direction, and the data that it supports."""

    algorithm: str
    axes: tuple[int, ...] = (1, 2, 3)
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")


_FLOATS = ("float16", "bfloat16", "float32")
_SUMMABLE = (*_FLOATS, "float64", "int8")
_FLAT = (1, 2)

# The names are those of Theano's `dnn` module. What it fell back to silently is the first row of a direction.
ALGORITHMS: dict[str, dict[str, NamedAlgorithm]] = {
    "forward": {
        "none": NamedAlgorithm("implicit_gemm", dtypes=_SUMMABLE),
        "small": NamedAlgorithm("implicit_precomp_gemm", dtypes=_SUMMABLE),
        "large": NamedAlgorithm("gemm", _FLAT),
        "fft": NamedAlgorithm("fft", _FLAT, _FLOATS),
        "fft_tiling": NamedAlgorithm("fft_tiling"),
        "winograd": NamedAlgorithm("winograd", _FLAT, _FLOATS),
        "winograd_non_fused": NamedAlgorithm("winograd_nonfused", _FLAT, _FLOATS),
    },
    "backward_data": {
        "none": NamedAlgorithm("algo_0"),
        "deterministic": NamedAlgorithm("algo_1"),
        "fft": NamedAlgorithm("fft", _FLAT, _FLOATS),
        "fft_tiling": NamedAlgorithm("fft_tiling"),
        "winograd": NamedAlgorithm("winograd", _FLAT, _FLOATS),
        "winograd_non_fused": NamedAlgorithm("winograd_nonfused", _FLAT, _FLOATS),
    },
    "backward_filter": {
        "none": NamedAlgorithm("algo_0"),
        "small": NamedAlgorithm("algo_3"),
        "deterministic": NamedAlgorithm("algo_1", _FLAT),
        "fft": NamedAlgorithm("fft", _FLAT, _FLOATS),
        "fft_tiling": NamedAlgorithm("fft_tiling", _FLAT),
        "winograd_non_fused": NamedAlgorithm("winograd_nonfused", _FLAT, _FLOATS),
    },
}

PRODUCT = "product "  # before the engine of a product that computes a convolution
# As `graph.engines.Engine` prints it.
_ENGINE = re.compile(r"engine \d+(?: knobs \d+=-?\d+(?:,\d+=-?\d+)*)?", re.ASCII)
_KNOB = re.compile(r"(?<=[ ,])\w+(?==)", re.ASCII)


def checked_name(name: str, direction: str | None = None) -> str:
    """Return the name of an algorithm, of a direction if given; raise ValueError with the valid names."""
    directions = ALGORITHMS if direction is None else {direction: ALGORITHMS[direction]}
    rows = [row for names in directions.values() for row in names.items()]
    known = [*POLICIES, *SYNONYMS, *(name for name, _ in rows), *(row.algorithm for _, row in rows)]
    known += RNN_ALGOS if direction is None else ()
    if (bare := plain_name(name)) in known or _ENGINE.fullmatch(bare.removeprefix(PRODUCT)):
        return name
    valid = ", ".join(dict.fromkeys(known))
    raise ValueError(f"expected one of {valid}, or an engine such as 'engine 38 knobs 2=0'")


def is_engine(name: str) -> bool:
    """Return whether an algorithm's name is meant as that of an engine: it begins like one."""
    return name.startswith("engine ")


def is_product(name: str) -> bool:
    """Return whether an algorithm's name is meant as that of an engine of a product."""
    return name.startswith(f"{PRODUCT}engine ")


def plain_name(name: str) -> str:
    """Return a name that tables print in the form of `Engine`, or of an algorithm.

    "graph engine 4 knobs tile_size=5, edge=1" becomes "engine 4 knobs 2=5,4=1", and "legacy gemm" "gemm".
    """
    backend, _, rest = name.partition(" ")
    bare = rest if backend == ("graph" if is_engine(rest) else "legacy") else name
    with_knobs = "=" in bare and (is_engine(bare) or is_product(bare))
    return _KNOB.sub(_knob_number, bare.replace(", ", ",")) if with_knobs else bare


def with_knob_names(name: str) -> str:
    """Return the name of an algorithm with cuDNN's names of the knobs in place of their numbers."""
    return _KNOB.sub(_knob_name, name) if "=" in name else name


def _knob_number(match: re.Match[str]) -> str:
    from ._bindings.enums import BackendKnobType  # hardly ever needed

    word = match[0]
    return str(int(BackendKnobType[word.upper()])) if word.upper() in BackendKnobType.__members__ else word


def _knob_name(match: re.Match[str]) -> str:
    from ._bindings.enums import BackendKnobType

    number = int(match[0]) if match[0].isdecimal() else -1
    known = {int(knob): knob.name.lower() for knob in BackendKnobType}
    return known.get(number, match[0])
