"""Fit the costs of engines to the rows of `order.py`, and print them as rows of facts.

    python benchmarks/costs.py ROWS [--gpu CAPABILITY]

ROWS is a file of `order.py`. The costs are non-negative least squares of relative times. A fifth of the rows
at a time is left out of a fit, and chosen for with its costs: the figures on the standard error are of these
choices and of those that were timed, over the fastest times.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness.figures import geomean
from order import DIRECTIONS
from scipy.optimize import nnls
from short_choices import Drawn

from cudnn_ct.legal.conditions import conditions_of
from cudnn_ct.legal.costs import TERMS, Costs, faster_engines, terms_of
from cudnn_ct.legal.subjects import Convolution
from cudnn_ct.shapes.conv import ConvProblem, conv_problem
from cudnn_ct.shapes.specs import TensorSpec

UNALIGNED = "channels of groups that are not multiples of 8"
"""Others are fast on tensor cores, and few are drawn: costs would be those of copies that they lack."""
is_unaligned = conditions_of("convolutions")[UNALIGNED]
ORDERS = {
    "forward": ("engine 0", "engine 3 knobs 11=2", "engine 28 knobs 2=4,3=0", "engine 70 knobs 2=12,18=0"),
    "backward_data": ("engine 0",),
    "backward_filter": ("engine 0", "engine 1 knobs 2=6,3=0"),
}
"""Engines that are fast where others wait, or have large windows: 3 multiplies Fourier transforms."""
LARGEST = 2**32  # multiplications: few of the drawn have more
FEWEST = 15  # rows for an engine
AGAIN = 4  # fits, each with the weights of the one before
FOLDS = 5  # parts of the rows, each left out of a fit

Timed = tuple[ConvProblem, dict[str, Any]]
"""A convolution, and its row of `order.py`."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description="fit the costs of engines")
    options.add_argument("rows", type=Path)
    options.add_argument("--gpu", default="9.0", help="the compute capability (default: %(default)s)")
    given = options.parse_args(arguments)
    file = json.loads(given.rows.read_text(encoding="utf-8"))
    timed = [(problem_of(row), row) for row in file["rows"]]
    facts = list(facts_of(timed, file["about"], given.gpu))
    print(json.dumps({"facts": facts}, indent=1))


def problem_of(row: dict[str, Any]) -> ConvProblem:
    """Return the convolution of a row."""
    one = Drawn(*row["drawn"])
    layout = "nhwc" if one.channels_last else "nchw"
    x, w = (TensorSpec.packed(tuple(shape), one.dtype, layout) for shape in (one.x, one.w))
    given = {"padding": one.padding, "stride": one.stride, "groups": one.groups}
    forward = conv_problem("forward", x, w, **given)
    return forward._replace(direction=row["direction"])


def facts_of(timed: Sequence[Timed], about: dict[str, Any], gpu: str) -> Iterator[dict[str, Any]]:
    """Yield a row of facts for each direction that has enough convolutions."""
    major, minor = map(int, gpu.split("."))
    for direction in DIRECTIONS:
        mine = [one for one in timed if one[0].direction == direction and is_unaligned(Convolution(one[0]))]
        costs = fitted(mine, ORDERS[direction])
        if not (order := [engine for engine in ORDERS[direction] if engine in costs]):
            continue
        report(direction, mine, order)
        operation = "conv" if direction == "forward" else f"conv_{direction}"
        yield {
            "name": f"{operation}-costs".replace("_", "-"),
            "kind": "cost",
            "operations": [operation],
            "when": ["sums in float32", UNALIGNED],
            "sizes": {"tensor_cores": True, "fused": False, "max_multiplications": LARGEST},
            "order": order,
            "costs": costs,
            "libraries": "full",
            "arch": {"from": gpu, "before": f"{major}.{minor + 1}"},
            "effect": "slow",
            "message": "cuDNN's order of engines is poor for small convolutions and for groups",
            "found": {"cudnn": about["cudnn"], "gpu": about["device"]},
        }


def fitted(timed: Sequence[Timed], order: Sequence[str]) -> Costs:
    """Return the costs of engines: of each number, and of each name of an order apart."""
    rows = defaultdict(list)
    for problem, row in timed:
        terms = list(terms_of(problem).values())
        for name, microseconds in row["times"].items():
            rows[name if name in order else name.partition(" knobs")[0]].append((terms, microseconds))
    return {name: costs_of(found) for name, found in sorted(rows.items()) if len(found) >= FEWEST}


def costs_of(rows: Sequence[tuple[list[float], float]]) -> dict[str, float]:
    """Return the microseconds of each term of an engine."""
    relative = np.array([np.array(terms) / microseconds for terms, microseconds in rows])
    weights = np.ones(len(rows))
    for _ in range(AGAIN):
        found, _ = nnls(relative * weights[:, None], weights)
        weights = 1 / np.maximum(relative @ found, 0.3)  # about the error of the logarithm
    return {term: float(f"{one:.3g}") for term, one in zip(TERMS, found, strict=True) if one > 1e-9}


def report(name: str, timed: Sequence[Timed], order: list[str]) -> None:
    """Print what choices took next to the fastest engines: those that were timed, and those by costs."""
    before, after = [], []
    for fold in range(FOLDS):
        costs = fitted([one for place, one in enumerate(timed) if place % FOLDS != fold], order)
        for problem, row in timed[fold::FOLDS]:
            times = row["times"]
            offered = [engine for engine in order if engine in times and engine in costs]
            faster = faster_engines(problem, costs, offered, row["cudnn"])
            least = min(times.values())
            before.append(times[row["chosen"]] / least)
            after.append(times[(faster or [row["cudnn"]])[0]] / least)
    print(f"{name}: {len(timed)} rows, {geomean(before):.3f}, {geomean(after):.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
