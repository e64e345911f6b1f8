"""Random public calls compared with an implementation that this project did not write.

python -m tests.oracle --minutes 5 --jobs 10        # on a GPU, against PyTorch in float64
python -m tests.oracle --fakes --calls 3000         # without a GPU, on the fakes, against plain loops
python -m tests.oracle --fakes jit --only matmul    # the same without legacy calls, as with a JIT wheel
python -m tests.oracle --seed 7 --number 1234       # one call again, as a finding prints it
python -m tests.oracle --algorithms --minutes 5     # convolutions, each with every algorithm

Operands have any layout, start address, dtype and owner; calls run on any stream. A finding is a result that
differs by more than the error bound, memory that was written to and must not be, an exception where plain
operands are computed, or the end of the process. The exit status is 1 where there is a finding.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from .calls import CONVOLUTIONS
from .children import parser_of
from .draw import RECIPES
from .run import compare, summary


def main() -> int:
    parser = parser_of("tests.oracle", __doc__, "2000", jobs=1)
    parser.add_argument(
        *("--fakes",),
        nargs="?",
        const="full",
        default="",
        choices=("full", "jit"),
        help="on the fakes, without a GPU, with a set of libraries (default: full)",
    )
    parser.add_argument("--only", action="append", default=[], choices=sorted(RECIPES), metavar="OPERATION")
    parser.add_argument("--like", default="", metavar="PATTERN", help="make only calls whose text matches")
    parser.add_argument(
        "--algorithms", action="store_true", help="make convolutions with each algorithm that cuDNN has"
    )
    parser.add_argument("--rejected", action="store_true", help="and with engines known to be wrong")
    parser.add_argument("--json", type=Path, help="append the counts and findings to this file, as a line")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    calls = 2000 if options.calls is None and options.minutes is None else options.calls
    only = options.only or (list(CONVOLUTIONS) if options.algorithms and options.number is None else [])
    numbers = None if options.number is None else (options.number, options.number + 1)
    result = compare(
        seed,
        calls=calls,
        minutes=options.minutes,
        fakes=options.fakes,
        jobs=options.jobs,
        only=only,
        like=options.like,
        numbers=numbers,
        algorithms=options.algorithms,
        rejected=options.rejected,
    )
    print(summary(result))
    if options.json:
        facts = {
            "seed": seed,
            "calls": result.calls,
            "replays": result.replays,
            "outcomes": result.outcomes,
            "findings": result.findings,
        }
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
    return bool(result.findings)


if __name__ == "__main__":
    sys.exit(main())
