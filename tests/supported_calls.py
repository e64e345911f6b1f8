"""Drawn calls, for which `cudnn-ct supports` and the planning of a first call must give the same answer.

python -m tests.supported_calls --seed 1 --examples 20                       # all operations
CUDNN_CT_LIBRARY=... python -m tests.supported_calls --operations pool lrn   # of a JIT set, two rows

A call is recorded on shapes, and the graphs of the recording are looked up as ``supports`` does. The same
call is then planned as its first run would be, for the same GPU that is not there: engines are compiled.
Legacy calls that need a GPU to be planned count as unknown. The exit status is 1 if the answers differ.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct.cli.compile_child import _support
from cudnn_ct.cli.offline import read_gpu
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import BadParamError, CudnnError, NotSupportedError
from cudnn_ct.graph import candidates
from cudnn_ct.graph.offline import Planner
from cudnn_ct.graph.recording import rejected
from cudnn_ct.ops import _operation
from cudnn_ct.ops._operation import CallSignature, Operation
from tests.layers import LayerCase
from tests.lib.test_graph import load_stub
from tests.op_cases import CASES
from tests.planned_calls import drawn, shape_of

NOT_ON_SHAPES = ("RNN", "ctc_loss", "dropout")


class Device(Planner):
    """A GPU that is not there, with what the selection of a plan reads of a context."""

    device, capturing = 0, False


class Answers:
    """Both answers for calls, and those that differ."""

    def __init__(self, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = Device(read_gpu(gpu))
        self.counts = Counter[str]()
        self.wrong: list[str] = []
        self._known: dict[Any, Any] = {}
        self._calls: list[tuple[Any, ...]] = []
        record = _operation._record
        monkeypatch.setattr(streams, "relax", lambda: None)  # nothing is captured without a driver
        monkeypatch.setattr(_operation, "_record", lambda *call: (self._calls.append(call), record(*call)))
        monkeypatch.setattr(candidates, "first_engine", self._once(candidates.first_engine))

    def make(self, case: LayerCase) -> None:
        """Make a call on shapes, and compare the answers."""
        self._calls.clear()
        with ct.record_plans(shapes_only=True) as recorded:
            outs = {name: shape_of(one) for name, one in case.outs.items()}
            if case.more:
                outs["out"] = (outs.get("out"), *map(shape_of, case.more))
            try:
                getattr(ct, case.operation)(*map(shape_of, case.operands), **case.keywords, **outs)
            except (CudnnError, ValueError) as error:
                self.counts["invalid"] += not isinstance(error, CudnnError)
        rows = [self._supported(request) for request in recorded.requests.values()]
        missing = [row for row in rows if not (row["engines"] or row["unknown"])]
        reasons = [*rejected(recorded.skipped).values(), *(row["reason"] for row in missing)]
        unknown = any(not row["engines"] for row in rows)
        try:
            for call in self._calls:
                self._plan(*call)
        except (NotSupportedError, BadParamError) as error:
            first_call = str(error)
        except AttributeError as error:
            if not isinstance(error.obj, Planner):
                raise
            self.counts["unknown"] += 1
            return
        else:
            first_call = ""
        self.counts["rejected" if first_call else "planned"] += 1
        if bool(reasons) != bool(first_call) and not (unknown and not reasons):
            said = "; ".join(reasons)[:400] or "yes"
            self.wrong.append(f"{case}\n  supports: {said}\n  first call: {first_call[:1200] or 'planned'}")

    def _supported(self, request: Any) -> dict[str, Any]:
        key = request.identity
        if key not in self._known:
            self._known[key] = _support(request, self.device)
        found: dict[str, Any] = self._known[key]
        return found

    def _plan(self, op: Operation, problem: Any, params: tuple[Any, ...], scaled: tuple[bool, bool]) -> None:
        signature = CallSignature((), (), params=params, scaled=scaled)
        op.selection(problem, signature)(self.device)  # type: ignore[arg-type]

    def _once(self, first_engine: Callable[..., Any]) -> Callable[..., Any]:
        """Compile each graph once."""

        def engine(request: Any, context: Any, stored: Any = None) -> Any:
            key = "first", request.identity
            if key not in self._known:
                try:
                    self._known[key] = first_engine(request, context, stored)
                except NotSupportedError as error:
                    self._known[key] = error
            if isinstance(self._known[key], NotSupportedError):
                raise self._known[key]
            return self._known[key]

        return engine


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.supported_calls", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=20, help="calls of each row (default: %(default)s)")
    parser.add_argument("--operations", nargs="*", help="first of a row; none for all")
    parser.add_argument("--gpu", default="h200")
    options = parser.parse_args()
    load_stub()
    warnings.simplefilter("ignore", ct.CudnnWarning)
    with pytest.MonkeyPatch.context() as monkeypatch:
        answers = Answers(options.gpu, monkeypatch)
        named = options.operations or [row.operations[0] for row in CASES]
        operations = [name for name in named if name not in NOT_ON_SHAPES]
        drawn(options.seed, options.examples, operations, answers.make)
    for line in answers.wrong:
        print(line)
    counts = ", ".join(f"{number} {name}" for name, number in sorted(answers.counts.items()))
    print(f"seed {options.seed}: {counts}, {len(answers.wrong)} answers differ")
    return 1 if answers.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
