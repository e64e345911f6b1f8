"""Plant faults into copies of the package, and report those that no test notices.

python -m tests.mutants                            # all of them: hours on one core
python -m tests.mutants --jobs 8                   # as every night
python -m tests.mutants --sample 40 --seed 3       # some of them
python -m tests.mutants --only 'keys .*fused'      # those whose name the pattern finds
python -m tests.mutants --list

Exit code 1: more than 5 % survive without an explanation in tests/mutants/explained.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .patterns import DOCTOR, Mutant, mutants_of_package
from .reach import Reach, files_of, measure
from .run import PACKAGE, ROOT, Outcome, copied, diff, run_all

ALLOWED = 0.05  # of all mutants may survive without an explanation
TIERS = ("tests/unit", "tests/fake", "tests/lib")
EXPLAINED = Path(__file__).with_name("explained.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    mutants = selected(mutants_of_package(PACKAGE), options.only, options.sample, options.seed)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.line:>5} {mutant.name}")
        print(_counts(mutants))
        return 0
    reach = _reach(options.map, options.tiers, options.jobs)
    outcomes = []
    for outcome in run_all(mutants, reach, options.jobs, options.seconds):
        outcomes.append(outcome)
        _tell(outcome)
    left = [outcome for outcome in outcomes if not (outcome.killer or explanation(outcome.mutant))]
    if options.json:
        options.json.write_text(json.dumps(as_json(outcomes), indent=1) + "\n")
    print(_summary(outcomes, left))
    return int(len(left) > ALLOWED * len(outcomes))


def selected(mutants: list[Mutant], only: str, sample: int, seed: int) -> list[Mutant]:
    """Choose mutants, in the order of the sources."""
    chosen = [mutant for mutant in mutants if re.search(only, mutant.name)]
    if sample and sample < len(chosen):
        places = sorted(random.Random(seed).sample(range(len(chosen)), sample))
        chosen = [chosen[place] for place in places]
    return chosen


def explanation(mutant: Mutant) -> str:
    """The reason why a mutant may survive, empty if there is none."""
    rows = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["mutant"]
    return next((row["reason"] for row in rows if re.search(row["pattern"], mutant.name)), "")


def as_json(outcomes: list[Outcome]) -> dict[str, object]:
    """Counts and survivors, for a record."""
    return {
        "mutants": len(outcomes),
        "killed": sum(bool(outcome.killer) for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "survivors": [
            {
                "file": outcome.mutant.path,
                "line": outcome.mutant.line,
                "planted": outcome.mutant.name,
                "diff": diff(outcome.mutant),
                "tests": outcome.tests,
                "reason": explanation(outcome.mutant),
            }
            for outcome in outcomes
            if not outcome.killer
        ],
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="mutants whose name this expression finds"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=120, metavar="N", help="of tests for one mutant, at most"
    )
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write counts and survivors")
    parser.add_argument("--map", type=Path, metavar="PATH", help="keep here which test reaches which line")
    parser.add_argument("--tiers", nargs="+", default=TIERS, metavar="PATH", help="tests to run")
    return parser.parse_args(arguments)


def _reach(path: Path | None, tiers: Sequence[str], jobs: int) -> Reach:
    """The map of the present sources: the one that is kept, or a new one."""
    present = hashlib.sha256(repr(tiers).encode())
    doctor = PACKAGE.with_name(DOCTOR)
    for file in sorted((*PACKAGE.rglob("*.py"), *doctor.rglob("*.py"), *ROOT.glob("tests/**/*.py"))):
        present.update(file.read_bytes())
    if path and path.is_file():
        kept, _, text = path.read_text().partition("\n")
        if kept == present.hexdigest():
            return Reach.read(text)
    print("recording which test reaches which line: one run of all tests ...", file=sys.stderr)
    reach = Reach({}, {})
    files = files_of(ROOT, tiers)
    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(_part, (files[job::jobs] for job in range(jobs))):
            reach.add(part)
    print(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s", file=sys.stderr)
    if path:
        path.write_text(f"{present.hexdigest()}\n{reach.text()}")
    return reach


def _part(files: list[str]) -> Reach:
    with copied() as root:
        return measure(root, files, 7200) if files else Reach({}, {})


def _tell(outcome: Outcome) -> None:
    mutant = outcome.mutant
    print(f"{outcome.seconds:6.1f} s  {mutant.line:>4} {mutant.name}", flush=True)
    if outcome.killer:
        print(f"          killed: {outcome.killer}", flush=True)
        return
    reason = explanation(mutant)
    print(f"          SURVIVED {outcome.tests} tests{f', explained: {reason}' if reason else ''}")
    print("".join(f"          {line}\n" for line in diff(mutant).splitlines()), end="", flush=True)


def _summary(outcomes: list[Outcome], left: list[Outcome]) -> str:
    survivors = [outcome for outcome in outcomes if not outcome.killer]
    share = len(left) / max(len(outcomes), 1)
    return (
        f"{_counts([outcome.mutant for outcome in outcomes])}\n"
        f"{len(survivors)} survived, {len(survivors) - len(left)} of them explained; "
        f"unexplained: {share:.1%} (allowed: {ALLOWED:.0%}); {sum(one.seconds for one in outcomes):.0f} s"
    )


def _counts(mutants: list[Mutant]) -> str:
    kinds = Counter(mutant.kind for mutant in mutants)
    return f"{len(mutants)} mutants: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


if __name__ == "__main__":
    sys.exit(main())
