"""Each C call of every operation fails, with a status of each class; so does each CUDA call.

python -m tests.fake.failing             # the covering part, which CI runs
python -m tests.fake.failing --all       # every call of every row of the selftest with every status
python -m tests.fake.failing --json benchmarks/results/reliability.json    # and keep the counts for the page

A try is a row of the selftest (operands are copied to the device, the operation runs, results come back), of
which the k-th C call fails: in the first call of its kind, or after one that prepared everything. It is found
wrong unless the exception is the one of the status with the name of the C function, or another implementation
has given the right result; unless the next call gives the right result; and unless every native object and
every byte of device memory is freed once all caches are dropped.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from cudnn_ct import testing
from cudnn_ct._bindings.functions import FUNCTIONS
from cudnn_ct.cli import selftest
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.errors import (
    AllocationError,
    BadParamError,
    CudnnError,
    CudnnWarning,
    ExecutionFailedError,
    InternalError,
    NotInitializedError,
    NotSupportedError,
)
from tests.mixed import no_collecting
from tests.unit.cuda_driver import FALLIBLE

from .cudnn import FakeCudnn
from .host import Host
from .installed import cudnn_installed, host_installed

# One of each class; memory that runs out is a class of its own.
STATUSES: dict[int, type[CudnnError]] = {
    1001: NotInitializedError,
    2000: BadParamError,
    3000: NotSupportedError,
    4000: InternalError,
    4003: AllocationError,
    5000: ExecutionFailedError,
}
CUDA_CALL = 0  # instead of a status: a call of the CUDA interface layer fails


class Try(NamedTuple):
    """One try: the call of a row, and the C call that fails, with its status."""

    row: int
    warm: bool  # after a call that prepared everything
    k: int
    function: str
    status: int


class Found(NamedTuple):
    """The outcome of a try."""

    operation: str
    attempt: Try
    outcome: str  # "raised", "another way", or "wrong"
    detail: str = ""


class Bench:
    """The fakes, and the rows that are tried on them: all of the selftest but int8 and uneven padding."""

    def __init__(self, host: Host, fake: FakeCudnn) -> None:
        self.host, self.fake = host, fake
        self.rows = [case for case in cases() if case.variant != "uneven padding" and case.dtype != "int8"]

    def compute(self, row: int) -> str:
        """Make one call of a row; return the problem with its results, empty if they are right."""
        case = self.rows[row]
        run = selftest._OWN.get(case.operation, selftest._against_reference)
        for name, got, wanted in run(case, case.inputs()):
            if text := selftest._unlike(name, got, wanted):
                return text
            if wanted is not None and (error := selftest._error(got, wanted)) > case.tolerance:
                return f"{name} differs by {error}"
        return ""

    def tries(self, row: int) -> Iterator[Try]:
        """Yield every C and CUDA call of a row, in a first and in a second call; C calls with status 3000."""
        testing.reset()
        gc.collect()
        for warm in (False, True):
            self.fake.calls.clear()
            self.host.calls.clear()
            trouble = self.compute(row)
            assert not trouble, f"{self.rows[row]}: {trouble}"
            for k, name in enumerate(self.fake.names(), 1):
                if FUNCTIONS[name].returns_status:
                    yield Try(row, warm, k, name, 3000)
            for k, name in enumerate(self.host.calls, 1):
                if name in FALLIBLE:
                    yield Try(row, warm, k, name, CUDA_CALL)

    def attempt(self, one: Try) -> Found:
        """Let a call fail, and judge the outcome."""
        testing.reset()
        with warnings.catch_warnings(record=True) as warned, unraisable() as ignored:
            warnings.simplefilter("always")
            outcome, detail = self._outcome(one)
            again = self._again(one.row)
            left = self._left(one)
        others = [str(row.message) for row in warned if not issubclass(row.category, CudnnWarning)]
        details = [
            detail,
            again and f"the next call: {again}",
            left,
            ignored and f"raised in finalizers: {ignored}",
            others and f"warned: {others[0]}",
        ]
        wrong = outcome == "wrong" or any(details[1:])
        text = "; ".join(str(row) for row in details if row)
        return Found(self.rows[one.row].operation, one, "wrong" if wrong else outcome, text)

    def _outcome(self, one: Try) -> tuple[str, str]:
        if one.warm:
            self.compute(one.row)
        self.fake.calls.clear()
        self.host.calls.clear()
        if one.status == CUDA_CALL:
            self.host.fail_at = one.k
        else:
            self.fake.fail_at = {one.k: one.status}
        try:
            trouble = self.compute(one.row)
        except Exception as error:
            return ("raised", "") if fits(error, one) else ("wrong", f"{type(error).__name__}: {error}")
        finally:
            self.fake.fail_at, self.host.fail_at = {}, 0
        return ("wrong", trouble) if trouble else ("another way", "")

    def _again(self, row: int) -> str:
        try:
            return self.compute(row)
        except Exception as error:  # a cache with a wrong entry may raise anything
            return f"{type(error).__name__}: {error}"

    def _left(self, one: Try) -> str:
        """Return the objects and memory that outlive caches and arrays.

        An object that cuDNN failed to destroy does, and a warning says so.
        """
        testing.reset()
        kept = int("Destroy" in one.function and one.status != CUDA_CALL)
        if len(self.fake.objects) > kept or self.host.live:
            gc.collect()
            testing.reset()  # handles of contexts in cycles
        objects, memory = list(self.fake.objects.values()), self.host.used()
        self.fake.objects.clear()
        if len(objects) > kept or memory:
            return f"left: {[state['kind'] for state in objects]}, {memory} bytes"
        return ""


def fits(error: Exception, one: Try) -> bool:
    """Return whether an exception is right for a call that failed."""
    text = str(error)
    if one.status == CUDA_CALL:
        if one.function == "cuMemAllocFromPoolAsync":
            return isinstance(error, AllocationError) and bool(re.search(r"[\d,]+ bytes wanted for \w", text))
        return isinstance(error, ExecutionFailedError) and "CUDA_ERROR_ILLEGAL_ADDRESS" in text
    if f"{one.function} returned" not in text:
        return False
    if one.status in (2000, 3000):  # rejected, and either no implementation is left or a part has run
        return isinstance(error, STATUSES[one.status] | NotSupportedError | ExecutionFailedError)
    if isinstance(error, NotSupportedError) and one.function.startswith("cudnnBackend"):
        return True  # no engine can be made, and no other implementation exists
    kind = STATUSES[one.status]
    return isinstance(error, kind) and (error.status, error.function) == (one.status, one.function)


@contextmanager
def unraisable() -> Iterator[list[str]]:
    """Collect the exceptions of finalizers."""
    raised: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda report: raised.append(repr(report.exc_value))
    try:
        yield raised
    finally:
        sys.unraisablehook = before


# --- the tries ---------------------------------------------------------------------------------------------


def everything(sites: Iterable[Try]) -> Iterator[Try]:
    """Yield each call with a status of each class."""
    for one in sites:
        for status in (CUDA_CALL,) if one.status == CUDA_CALL else STATUSES:
            yield one._replace(status=status)


def covering(sites: Iterable[Try], operations: list[str]) -> Iterator[Try]:
    """Yield a fixed part: each C function of each operation with each class, in a first and a second call.

    If an operation calls a function in several places, the places take turns.
    """
    places: dict[tuple[Any, ...], list[Try]] = {}
    for one in sites:
        place = operations[one.row], one.warm, one.function, one.status == CUDA_CALL
        places.setdefault(place, []).append(one)
    for group in places.values():
        if group[0].status == CUDA_CALL:  # their purposes differ: all calls of one row
            yield from (one for one in group if one.row == group[0].row)
            continue
        for n, one in enumerate(everything(group[:1])):
            yield group[n * 7 % len(group)]._replace(status=one.status)


def run(part: tuple[int, int], whole: bool, rows: int = 1) -> list[Found]:
    """Make one of several equal parts of all tries, of every row or of every ``rows``-th one."""
    with host_installed() as host, cudnn_installed(host) as fake, no_collecting():
        bench = Bench(host, fake)
        sites = [one for row in range(0, len(bench.rows), rows) for one in bench.tries(row)]
        wanted = everything(sites) if whole else covering(sites, [case.operation for case in bench.rows])
        attempts = list(wanted)[part[0] :: part[1]]
        testing.reset()
        gc.collect()
        gc.freeze()  # each attempt collects garbage: exclude the thousands of sites
        return [bench.attempt(one) for one in attempts]


def cells(found: list[Found]) -> str:
    """Return a row of the page: the figures of C calls, of CUDA calls, and the tries that are wrong."""
    figures = []
    for in_cuda in (False, True):
        part = [one for one in found if (one.attempt.status == CUDA_CALL) == in_cuda]
        outcomes = Counter(one.outcome for one in part)
        places = {(one.attempt.row, one.attempt.warm, one.attempt.k) for one in part}
        figures += [len(places), len(part), outcomes["raised"], outcomes["another way"]]
    figures.append(sum(one.outcome == "wrong" for one in found))
    return " | ".join(f"{figure:,}" for figure in figures)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", help="the file of figures to put these into")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    parts = [(n, options.jobs) for n in range(options.jobs)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        found = [one for part in pool.map(partial(run, whole=options.all), parts) for one in part]
    found.sort(key=lambda one: one.attempt)
    wrong = [one for one in found if one.outcome == "wrong"]
    for one in wrong[:50]:
        print(one)
    names = dict.fromkeys(one.operation for one in found)
    rows = {name: cells([one for one in found if one.operation == name]) for name in names}
    rows["all"] = cells(found)
    for name, row in rows.items():
        print(f"{name}: {row}")
    if options.json:
        from tools.reliability import put

        put(options.json, "failing", {"rows": rows})
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
