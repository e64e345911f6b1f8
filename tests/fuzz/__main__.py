"""Public functions called with hostile arguments, in child processes.

python -m tests.fuzz                      # 2,000 calls on the fakes
python -m tests.fuzz --calls 20000        # as every night
python -m tests.fuzz --gpu --calls 5000   # on a GPU
python -m tests.fuzz --line "ct.conv(...)"    # one of them again, as it was printed

A call is found wrong that raises what docs/errors.md does not know, ends its process, or does not end; and so
are batches that leave device memory behind, or after which a convolution is wrong.
"""

from __future__ import annotations

import argparse
import sys

from .run import fuzz, summary


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--line", action="append", default=[], help="make this call, and no others")
    options = parser.parse_args()
    calls = 0 if options.line else options.calls
    result = fuzz(calls, options.seed, gpu=options.gpu, jobs=options.jobs, lines=options.line)
    print(summary(result))
    return bool(result.wrong)


if __name__ == "__main__":
    sys.exit(main())
