"""Drawn calls that are planned as their first run would be, for a GPU that is not there.

python -m tests.planned_calls --seed 1 --examples 100                          # operations that must compute
python -m tests.planned_calls --operations                                     # all operations
CUDNN_CT_LIBRARY=... python -m tests.planned_calls --operations pool softmax   # of a JIT set, two rows

The cuDNN is the JIT set that is loaded, which has no C call to fall back on. Rejections that docs/support.md
describes are counted by their reason. Each kind of the others is printed with its smallest call; the exit
status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Callable, Container
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import cudnn_ct as ct
from cudnn_ct._lib import load
from cudnn_ct.array_shapes import ShapeArray
from cudnn_ct.cli.offline import read_gpu
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.offline import Planner
from cudnn_ct.shapes.specs import TensorSpec
from cudnn_doctor.read.libraries import FULL
from tests.layers import LayerCase, Tensor
from tests.lib.test_graph import load_stub
from tests.op_cases import CASES
from tools.jit_operations import plan_first_runs

# Their graphs have engines for every drawn call. Elsewhere grouped convolutions, products of float64 and
# fusions of training may have none, and norms of rows have two forms, of which one is enough.
COMPLETE = (
    *("pool", "softmax", "activation", "lrn", "instance_norm", "batch_norm_training"),
    *("add", "transform", "reduce"),
)


class Calls:
    """Plans calls, and counts the reasons of the rejected ones."""

    def __init__(self, gpu: str) -> None:
        self.made, self.reasons = (
            0,
            list[str](),
        )  # the reasons of the last call; empty for its parts with a plan
        plan_first_runs(Planner(read_gpu(gpu)), self.reasons)
        self.documented = Counter[str]()
        self.rejected = Counter[tuple[str, str]]()
        self.smallest: dict[tuple[str, str], str] = {}

    def make(self, case: LayerCase) -> None:
        """Make a call on shapes, which plans it."""
        self.made += 1
        self.reasons.clear()
        try:
            with ct.record_plans(shapes_only=True):
                outs = {name: shape_of(one) for name, one in case.outs.items()}
                if case.more:
                    outs["out"] = (outs.get("out"), *map(shape_of, case.more))
                getattr(ct, case.operation)(*map(shape_of, case.operands), **case.keywords, **outs)
        except CudnnError as error:
            self.reasons.append(str(error))
        if reason := "".join(self.reasons):
            self.reject(case, reason)

    def reject(self, case: LayerCase, reason: str) -> None:
        """Count a rejected call by its operation and the last line of the reason without its numbers."""
        if known := documented(case):
            self.documented[known] += 1
            return
        key = case.operation, re.sub(r"\d+", "#", reason.strip().rpartition("\n")[2])[:150]
        self.rejected[key] += 1
        self.smallest[key] = min(self.smallest.get(key, str(case)), str(case), key=len)


def documented(case: LayerCase) -> str:
    """Return the words of docs/support.md about calls that a JIT wheel rejects; empty for other calls."""
    given, op = case.keywords, case.keywords.get("op")
    factors = [given.get(name, 1) for name in ("alpha", "alpha1", "alpha2")]
    found = {
        "float64": any(
            one is not None and one.dtype == "float64" for one in (*case.operands, *case.outs.values())
        ),
        "alpha and beta": factors != [1, 1, 1] or given.get("beta", 0) != 0,
        'op="not"': op == "not",
        "products": case.operation == "reduce" and str(op).startswith("mul"),
    }
    return next((name for name, holds in found.items() if holds), "")


def shape_of(tensor: Tensor | None) -> Any:
    """Return the shape, strides and dtype of an operand."""
    if tensor is None:
        return None
    array = tensor.array()
    return ShapeArray.of(
        TensorSpec(array.shape, tuple(step // array.itemsize for step in array.strides), tensor.dtype)
    )


def drawn(
    of_seed: int, examples: int, operations: Container[str] | None, make: Callable[[LayerCase], object]
) -> None:
    """Draw calls of each row of the case table, or of those whose first operation is named, and make them."""
    for row in CASES:
        if operations is None or row.operations[0] in operations:

            @seed(of_seed)
            @settings(
                max_examples=examples,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            @given(row.calls)
            def each(case: LayerCase) -> None:
                make(case)

            each()


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.planned_calls", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=50, help="calls of each row (default: %(default)s)")
    parser.add_argument("--operations", nargs="*", default=COMPLETE, help="first of a row; none for all")
    parser.add_argument("--gpu", default="h200")
    options = parser.parse_args()
    if load().kind == FULL:
        parser.error("CUDNN_CT_LIBRARY does not name a JIT set; legacy calls of a full one need a GPU")
    load_stub()
    warnings.simplefilter("ignore", ct.CudnnWarning)
    calls = Calls(options.gpu)
    drawn(options.seed, options.examples, options.operations or None, calls.make)
    for (operation, reason), number in calls.rejected.most_common():
        print(f"{number} of {operation}: {reason}\n  {calls.smallest[operation, reason]}")
    counts = {**calls.documented, "other reasons": calls.rejected.total()}
    reasons = ", ".join(f"{number} for {name}" for name, number in counts.items())
    print(f"seed {options.seed}: {calls.made} calls; rejected: {reasons}")
    return 1 if calls.rejected else 0


if __name__ == "__main__":
    raise SystemExit(main())
