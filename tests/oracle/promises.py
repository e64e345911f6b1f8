"""The documentation's own promises: one random case for each sentence that says something about results.

python -m tests.oracle.promises --minutes 1 --jobs 8      # on a GPU
python -m tests.oracle.promises --fakes --calls 200       # without a GPU, on the fakes
python -m tests.oracle.promises --seed 7 --number 123     # one case again, as a finding prints it
python -m tests.oracle.promises --list                    # the sentences

A finding is a sentence that does not hold for a case, or whose cases are all rejected by cuDNN. The exit
status is 1 if there is a finding. `promise` has the form of a promise, the modules `promises_*` have all of
them.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import (  # noqa: F401
    promises_arrays,
    promises_copies,
    promises_elements,
    promises_layers,
    promises_products,
)
from .children import Made, begin, finished, outcome_table, parser_of, serve
from .promise import PROMISES, Draw, Promise
from .run import batches, share

__all__ = ["child", "main", "promises_of", "table"]

BATCH = 200  # cases of a child
SECONDS = 120  # for one case
MODULE = "tests.oracle.promises"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = parser_of(MODULE, __doc__, "5 of each", jobs=1)
    parser.add_argument("--fakes", action="store_true", help="on the fakes, without a GPU")
    parser.add_argument("--list", action="store_true", help="print the sentences")
    options = parser.parse_args(arguments)
    kind = "fakes" if options.fakes else "gpu"
    if options.list:
        print("\n".join(f"{one.name}\n    {one.quote}" for one in promises_of(kind)))
        return 0
    asked = begin(options, SECONDS)
    calls = 5 * len(promises_of(kind)) if options.calls is None and asked["end"] is None else options.calls
    size = BATCH if calls is None else max(1, min(BATCH, -(-calls // options.jobs)))
    chosen = batches(calls, asked["end"], size)
    if options.number is not None:
        chosen = iter([(options.number, options.number + 1)])
    text, findings = table(asked["seed"], _reports(asked, chosen, options.jobs), kind)
    print(text)
    return int(findings > 0)


def promises_of(kind: str) -> list[Promise]:
    """Return the promises that a device keeps: "gpu", or "fakes"."""
    return [one for one in PROMISES if kind == "gpu" or not one.gpu]


def _reports(asked: dict[str, Any], chosen: Iterator[tuple[int, int]], jobs: int) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []

    def work(batch: tuple[int, int], process: int) -> None:
        for report in finished(MODULE, asked | {"process": process}, *batch):
            reports.append(report)

    share(chosen, work, jobs)
    return sorted(reports, key=lambda report: report["number"])


def table(seed: int, reports: list[dict[str, Any]], kind: str) -> tuple[str, int]:
    """Return the findings and a table of the outcomes by page, and the number of findings."""
    flags = " --fakes" if kind == "fakes" else ""
    lines, counts = [], defaultdict(Counter)
    for one in reports:
        page, _, text = one["call"].partition(": ")
        counts[page][one["outcome"]] += 1
        if one["outcome"] == "finding":
            command = f"python -m {MODULE} --seed {seed} --number {one['number']}{flags}"
            lines.append(f"FINDING {text}\n    {page}\n    {one['detail']}\n    {command}")
    for text, rejected in never(reports).items():
        reason = rejected[0].get("reason", "")
        lines.append(f"FINDING {text}\n    not supported in any of {len(rejected)} cases: {reason}")
        counts[text.partition(": ")[0]]["finding"] += 1
    names = ("holds", "finding", "not supported", "out of memory")
    sentences = len({one["call"] for one in reports})
    lines += outcome_table("page", counts, f"seed {seed}: {sentences} sentences", names, width=40, column=16)
    return "\n".join(lines), sum(found["finding"] for found in counts.values())


def never(reports: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the sentences of which cuDNN supported no case, of three or more: an operation may be broken."""
    cases = defaultdict(list)
    for one in reports:
        cases[one["call"]].append(one)
    return {
        text: found
        for text, found in cases.items()
        if len(found) > 2 and all(one["outcome"] == "not supported" for one in found)
    }


# --- a child process ---------------------------------------------------------------------------------------


def child() -> None:
    """Draw the cases of a batch."""
    serve(_working)


@contextmanager
def _working(asked: dict[str, Any]) -> Iterator[Made]:
    from .determinism import on_fakes

    kind = "fakes" if asked["fakes"] else "gpu"
    promises = promises_of(kind)

    def make(number: int) -> tuple[str, Callable[[], dict[str, Any]]]:
        one = promises[number % len(promises)]

        def run() -> dict[str, Any]:
            one.check(Draw(f"promise {asked['seed']}:{number}", kind))
            return {"outcome": "holds"}

        return f"{one.page}: {one.quote}", run

    if kind == "fakes":
        with on_fakes():
            yield make
    else:
        with suppress(ImportError):
            import torch  # noqa: F401 - first, so that it finds its own libraries
        yield make


if __name__ == "__main__":
    sys.exit(main())
