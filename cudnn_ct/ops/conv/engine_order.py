"""Engines that the heuristic choice tries first or last, because cuDNN's order is poor for a problem.

The rules are data, in engine_order.toml. Their conditions are sizes that matter to a kernel: the number of
products per sum, and the number of result tiles to distribute over multiprocessors.
"""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Iterator
from functools import cache
from math import ceil, prod
from pathlib import Path
from typing import Any

from ...shapes.conv import ConvProblem
from ...shapes.fused import FusedConv
from .errata import channels_first

__all__ = ["measured_here", "prefer_winograd", "preference", "ranked_too_high"]

TILE = 128  # rows and columns of the result tiles of the larger kernels
THIN = 32  # with fewer channels, transforms and wide tiles do not pay off


def _sizes(problem: Any) -> dict[str, Any]:
    """Return the facts on which the choice of a kernel depends; conditions of rules name them."""
    core = problem.core
    (batch, channels, *image), (filters, thick, *window) = core.x.shape, core.w.shape
    result = core.y.shape[2:]
    inputs, outputs = batch * prod(image), batch * prod(result)  # pixels
    strided, dense, thinner = max(core.stride) > 1, core.groups == 1, min(channels, filters)
    plain, point = not strided and max(core.dilation) == 1, prod(window) == 1
    return {
        "direction": core.direction,
        "precision": "tf32" if core.tensor_cores and core.x.dtype == "float32" else core.compute,
        "fused": isinstance(problem, FusedConv),
        "channels_last": bool(core.common_layouts) and not channels_first(core),
        "axes": len(window),
        "point": point,
        "flat_point": point and len(window) == 2,
        "plain": plain,
        "strided": strided,
        "square3": window == [3, 3] and plain and dense and thinner >= THIN,  # suits Winograd
        "groups": core.groups,
        "dense": dense,
        "grouped": not dense and thick > 1,
        "depthwise": not dense and thick == 1,
        "thick": thick,  # channels per group
        "thinner": thinner,
        "products": channels * filters,
        "taps": channels * filters * prod(window),
        "image": prod(image),  # pixels per image of x
        "result": prod(result),  # pixels per image of y
        "inputs": inputs,
        "outputs": outputs,
        "tiles_in": ceil(inputs / TILE) * ceil(channels / TILE),  # of a result with the size of x
        "tiles_out": ceil(outputs / TILE) * ceil(filters / TILE),
    }


def preference(problem: ConvProblem) -> str:
    """Return the engine to try first for a problem; empty if cuDNN's order is kept."""
    operands = (problem.x, problem.w, problem.y)
    if not all(spec.dtype == problem.compute and "nchw" in spec.layouts for spec in operands):
        return ""
    return next((str(rule["engine"]) for rule in _matching("first", problem)), "")


def measured_here(capability: tuple[int, int]) -> bool:
    """Return whether preferences hold on a GPU: another one has other tiles and multiprocessors."""
    return bool(list(capability) == _rules()["measured_on"]["compute_capability"])


def ranked_too_high(problem: Any) -> frozenset[int]:
    """Return the engines to try last for a problem."""
    return frozenset(engine for rule in _matching("last", problem) for engine in rule["engines"])


def prefer_winograd(problem: Any) -> bool:
    """Whether FFT and Winograd engines, which need fewer products, are faster than cuDNN ranks them."""
    core = problem.core
    return isinstance(problem, FusedConv) and core.compute == "float32" and not core.tensor_cores


def _matching(kind: str, problem: Any) -> Iterator[dict[str, Any]]:
    """Yield the rules of a kind whose conditions hold for a problem."""
    sizes = _sizes(problem)
    for rule in _rules()[kind]:
        conditions = {name: value for name, value in rule.items() if name not in ("engine", "engines")}
        if all(_holds(sizes, name, value) for name, value in conditions.items()):
            yield rule


def _holds(sizes: dict[str, Any], condition: str, value: Any) -> bool:
    prefix, _, name = condition.partition("_")
    compare = {"min": operator.ge, "max": operator.le}.get(prefix)
    return bool(compare(sizes[name], value) if compare else sizes[condition] == value)


@cache
def _rules() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
