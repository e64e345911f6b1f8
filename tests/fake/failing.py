"""Every C call of every operation fails in turn, with each class of status; so does each CUDA call.

python -m tests.fake.failing             # the covering part, which CI runs
python -m tests.fake.failing --all       # every call of every row of the selftest with every status
python -m tests.fake.failing --all --write   # and put the table into docs/reliability.md

A try is a row of the selftest (operands are copied to the device, the operation runs, results come back), of
which the k-th C call fails: as the first call of its kind, or after one that prepared everything. It is found
wrong unless the exception is the one of the status with the name of the C function, or another way has given
the right result; unless the next call gives the right result; and unless, once all caches are dropped, every
native object and every byte of device memory is gone.
"""

from __future__ import annotations

import argparse
import copy
import gc
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cudnn_ct import testing
from cudnn_ct.cli import selftest_run
from cudnn_ct.cli.selftest_cases import Case, cases
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

from .cudnn import FakeCudnn
from .host import Host
from .installed import cudnn_installed, host_installed

# One of each class; memory that is short is a class of its own.
STATUSES: dict[int, type[CudnnError]] = {
    1001: NotInitializedError,
    2000: BadParamError,
    3000: NotSupportedError,
    4000: InternalError,
    4003: AllocationError,
    5000: ExecutionFailedError,
}
CUDA_CALL = 0  # in place of a status: a call of the CUDA interface layer fails
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


class Try(NamedTuple):
    """One try: the call of a row, and which of its C calls fails how."""

    row: int
    warm: bool  # after a call that prepared everything
    k: int
    function: str
    status: int


class Found(NamedTuple):
    """What came of a try."""

    operation: str
    attempt: Try
    outcome: str  # "raised", "another way", or "wrong"
    detail: str = ""


def rows() -> list[Case]:
    """The rows of the selftest but those for engines of the graph API, which the fake has not."""
    return [case for case in cases() if case.variant != "uneven padding" and case.dtype != "int8"]


class Bench:
    """The fakes, and the rows that are tried on them."""

    def __init__(self, host: Host, fake: FakeCudnn) -> None:
        self.host, self.fake = host, fake
        self.rows = rows()
        self._inputs: dict[int, Any] = {}

    def compute(self, row: int) -> str:
        """One call of a row; what is wrong with its results, empty where nothing is."""
        case = self.rows[row]
        if row not in self._inputs:
            self._inputs[row] = case.inputs()
        run = selftest_run._OWN.get(case.operation, selftest_run._against_reference)
        pairs = run(case, copy.deepcopy(self._inputs[row]))  # running statistics are written to
        wrong = [text for name, got, wanted in pairs if (text := selftest_run._unlike(name, got, wanted))]
        errors = [selftest_run._error(got, wanted) for _, got, wanted in pairs if wanted is not None]
        return "; ".join(wrong) or ("" if max(errors) <= case.tolerance else f"differs by {max(errors)}")

    def tries(self, row: int) -> Iterator[Try]:
        """Return every C and CUDA call of a row, first and second; each with status 3000."""
        testing.reset()
        gc.collect()
        for warm in (False, True):
            self.fake.calls.clear()
            self.host.calls.clear()
            trouble = self.compute(row)
            assert not trouble, f"{self.rows[row]}: {trouble}"
            for k, name in enumerate(self.fake.names(), 1):
                if returns_status(name):
                    yield Try(row, warm, k, name, 3000)
            for k, name in enumerate(self.host.calls, 1):
                yield Try(row, warm, k, name, CUDA_CALL)

    def attempt(self, one: Try) -> Found:
        """Let a call fail, and see what comes of it."""
        testing.reset()
        operation = self.rows[one.row].operation
        with warnings.catch_warnings(record=True) as said, unraisable() as ignored:
            warnings.simplefilter("always")
            outcome, detail = self._outcome(one)
            again = self._again(one.row)
            left = self._left(one)
        said = [warning for warning in said if not issubclass(warning.category, CudnnWarning)]
        for trouble in (
            again and f"the next call: {again}",
            left,
            ignored and f"raised in finalizers: {ignored}",
            said and f"warned: {said[0].message}",
        ):
            if trouble:
                outcome, detail = "wrong", f"{detail}; {trouble}" if detail else trouble
        return Found(operation, one, outcome, detail)

    def _again(self, row: int) -> str:
        try:
            return self.compute(row)
        except Exception as error:  # a cache that was poisoned may raise anything
            return f"{type(error).__name__}: {error}"

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
        except Exception as error:  # whatever it is: that is what is looked at
            return ("raised", "") if fits(error, one) else ("wrong", f"{type(error).__name__}: {error}")
        finally:
            self.fake.fail_at, self.host.fail_at = {}, 0
        return ("wrong", trouble) if trouble else ("another way", "")

    def _left(self, one: Try) -> str:
        """What outlives caches and arrays. What cuDNN refused to destroy does, and a warning says so."""
        testing.reset()
        kept = int("Destroy" in one.function and one.status != CUDA_CALL)
        if len(self.fake.objects) > kept or self.host.live:
            gc.collect()
            testing.reset()  # handles of contexts that cycles held
        objects, memory = list(self.fake.objects.values()), self.host.used()
        self.fake.objects.clear()
        if len(objects) > kept or memory:
            return f"left: {[state['kind'] for state in objects]}, {memory} bytes"
        return ""


def returns_status(name: str) -> bool:
    from cudnn_ct._bindings.functions import FUNCTIONS

    return FUNCTIONS[name].returns_status


def fits(error: Exception, one: Try) -> bool:
    """Whether an exception is the right one for a call that failed."""
    text = str(error)
    if one.status == CUDA_CALL:
        if one.function == "allocate":
            return isinstance(error, AllocationError) and bool(re.search(r"[\d,]+ bytes wanted for \w", text))
        return isinstance(error, ExecutionFailedError) and text.startswith(f"{one.function} failed")
    told = f"{one.function} returned" in text
    if (
        one.status in (2000, 3000) and told
    ):  # a refusal: no way is left, or none may begin after the first part
        return isinstance(error, STATUSES[one.status] | NotSupportedError | ExecutionFailedError)
    right = isinstance(error, STATUSES[one.status]) and error.status == one.status
    if isinstance(error, NotSupportedError) and one.function.startswith("cudnnBackend"):
        return told  # an engine cannot be made; where no other way is left, the message has why
    return told and right and error.function == one.function


@contextmanager
def unraisable() -> Iterator[list[str]]:
    """What is raised in finalizers meanwhile."""
    heard: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: heard.append(repr(told.exc_value))
    try:
        yield heard
    finally:
        sys.unraisablehook = before


@contextmanager
def no_collecting() -> Iterator[None]:
    """Collect garbage only on request, so that a call behaves the same each time.

    Objects stay frozen, because ``gc.unfreeze()`` would also unfreeze those of ``tests/conftest.py``.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- which are tried ---------------------------------------------------------------------------------------


def everything(sites: Iterable[Try], operations: list[str]) -> Iterator[Try]:
    """Each call with a status of each class."""
    for one in sites:
        for status in (CUDA_CALL,) if one.status == CUDA_CALL else STATUSES:
            yield one._replace(status=status)


def covering(sites: Iterable[Try], operations: list[str]) -> Iterator[Try]:
    """A fixed part: each C function of each operation once with each class, as first and as second call.

    Where an operation calls a function in several places, the places take turns.
    """
    places: dict[tuple[Any, ...], list[Try]] = {}
    for one in sites:
        places.setdefault((operations[one.row], one.warm, one.function, one.status == CUDA_CALL), []).append(
            one
        )
    for group in places.values():
        if group[0].status == CUDA_CALL:  # they differ by what they are for: all of one row
            yield from (one for one in group if one.row == group[0].row)
            continue
        for n, one in enumerate(everything(group[:1], operations)):
            yield group[n * 7 % len(group)]._replace(status=one.status)


def run(part: tuple[int, int], whole: bool) -> list[Found]:
    """One of several equal parts of all tries."""
    with host_installed() as host, cudnn_installed(host) as fake, no_collecting():
        bench = Bench(host, fake)
        operations = [case.operation for case in bench.rows]
        sites = [one for row in range(len(bench.rows)) for one in bench.tries(row)]
        wanted = list((everything if whole else covering)(sites, operations))
        return [bench.attempt(one) for one in wanted[part[0] :: part[1]]]


# --- what is told ------------------------------------------------------------------------------------------


def table(found: list[Found]) -> str:
    """A row for each operation, and one for all."""
    lines = [
        "| operation | calls of C | tries | raised | another way ran | CUDA calls | tries | raised | "
        "another way ran | found wrong |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for operation in [*dict.fromkeys(one.operation for one in found), ""]:
        mine = [one for one in found if operation in ("", one.operation)]
        cells: list[object] = [f"`{operation}`" if operation else "all"]
        for in_cuda in (False, True):
            part = [one for one in mine if (one.attempt.status == CUDA_CALL) == in_cuda]
            counts = Counter(one.outcome for one in part)
            places = {(one.attempt.row, one.attempt.warm, one.attempt.k) for one in part}
            cells += [f"{n:,}" for n in (len(places), len(part), counts["raised"], counts["another way"])]
        cells.append(sum(one.outcome == "wrong" for one in mine))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def put(page: str, name: str, block: str) -> str:
    """Replace what stands between the marks of a name."""
    pattern = rf"(<!-- begin: {name}[^\n]*-->\n).*?(<!-- end: {name} -->)"
    written, count = re.subn(pattern, lambda marks: f"{marks[1]}\n{block}\n\n{marks[2]}", page, flags=re.S)
    assert count == 1, f"{PAGE} has no place for {name}"
    return written


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    parts = [(n, options.jobs) for n in range(options.jobs)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        found = [one for part in pool.map(partial(run, whole=options.all), parts) for one in part]
    found.sort(key=lambda one: one.attempt)
    wrong = [one for one in found if one.outcome == "wrong"]
    for one in wrong[:50]:
        print(one)
    print(table(found))
    if options.write:
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "failing", table(found)), encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
