"""Drawn calls whose graphs are planned for a GPU that is not there, by the cuDNN that is loaded.

python -m tests.planned_calls --seed 1 --examples 100                          # operations that must compute
python -m tests.planned_calls --operations                                     # all operations
CUDNN_CT_LIBRARY=... python -m tests.planned_calls --operations pool softmax   # of a JIT set, two rows

A set of a few libraries has no C call to fall back on: a graph without an engine is a call that it rejects.
Each kind of rejection is printed with its smallest call; the exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import cudnn_ct as ct
from cudnn_ct.array_shapes import ShapeArray
from cudnn_ct.cli.offline import read_gpu
from cudnn_ct.errors import CudnnError
from cudnn_ct.graph.compile import compile_request
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.recording import PlanRequest
from cudnn_ct.shapes.specs import TensorSpec
from tests.layers import LayerCase, Tensor
from tests.lib.test_graph import load_stub
from tests.op_cases import CASES

# Their graphs have engines for every drawn call. Elsewhere grouped convolutions, products of float64 and
# fusions of training may have none, and norms of rows have two forms, of which one is enough.
COMPLETE = (
    *("pool", "softmax", "activation", "lrn", "instance_norm", "batch_norm_training"),
    *("add", "transform", "reduce"),
)


class Calls:
    """Plans calls, and counts the reasons of the rejected ones."""

    def __init__(self, gpu: str) -> None:
        self.planner, self.made = Planner(read_gpu(gpu)), 0
        self.reasons: dict[str, str] = {}  # by graph; empty if it has an engine
        self.rejected = Counter[tuple[str, str]]()
        self.smallest: dict[tuple[str, str], str] = {}

    def make(self, case: LayerCase) -> None:
        """Make a call on shapes, and plan its graphs."""
        self.made += 1
        try:
            with ct.record_plans(shapes_only=True) as recorded:
                outs = {name: shape_of(one) for name, one in case.outs.items()}
                if case.more:
                    outs["out"] = (outs.get("out"), *map(shape_of, case.more))
                getattr(ct, case.operation)(*map(shape_of, case.operands), **case.keywords, **outs)
        except CudnnError as error:
            self.reject(case, str(error))
            return
        for request in recorded.requests.values():
            if reason := self.reason(request):
                self.reject(case, reason)

    def reason(self, request: PlanRequest) -> str:
        """Return why a graph has no plan; empty if it has one."""
        graph = str(request.graph)
        if graph not in self.reasons:
            self.reasons[graph] = ""
            try:
                compile_request(request, self.planner)
            except CudnnError as error:
                self.reasons[graph] = str(error)
        return self.reasons[graph]

    def reject(self, case: LayerCase, reason: str) -> None:
        """Count a rejected call by its operation and the reason without its numbers."""
        key = case.operation, re.sub(r"\d+", "#", reason.partition("\n")[0])[:150]
        self.rejected[key] += 1
        self.smallest[key] = min(self.smallest.get(key, str(case)), str(case), key=len)


def shape_of(tensor: Tensor | None) -> Any:
    """Return the shape, strides and dtype of an operand."""
    if tensor is None:
        return None
    array = tensor.array()
    return ShapeArray.of(
        TensorSpec(array.shape, tuple(step // array.itemsize for step in array.strides), tensor.dtype)
    )


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.planned_calls", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=50, help="calls of each row (default: %(default)s)")
    parser.add_argument("--operations", nargs="*", default=COMPLETE, help="first of a row; none for all")
    parser.add_argument("--gpu", default="h200")
    options = parser.parse_args()
    load_stub()
    warnings.simplefilter("ignore", ct.CudnnWarning)
    calls = Calls(options.gpu)
    for row in CASES:
        if options.operations and row.operations[0] not in options.operations:
            continue

        @seed(options.seed)
        @settings(
            max_examples=options.examples,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(row.calls)
        def each(case: LayerCase) -> None:
            calls.make(case)

        each()
    for (operation, reason), number in calls.rejected.most_common():
        print(f"{number} of {operation}: {reason}\n  {calls.smallest[operation, reason]}")
    counts = f"{calls.made} calls, {len(calls.reasons)} graphs, {calls.rejected.total()} rejected"
    print(f"seed {options.seed}: {counts}")
    return 1 if calls.rejected else 0


if __name__ == "__main__":
    raise SystemExit(main())
