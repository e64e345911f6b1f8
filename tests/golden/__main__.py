"""The command line of the golden files."""

from __future__ import annotations

import argparse
import difflib
import sys

from . import answers, calls


def main(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("--write", action="store_true", help="write the present answers")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw other calls, and write their answers")
    options = parser.parse_args(arguments)
    if options.draw is not None:
        calls.write(calls.drawn(options.draw))
    now = answers.answers()
    if options.write or options.draw is not None:
        answers.FILE.write_text(now)
        return 0
    before = answers.FILE.read_text()
    sys.stdout.writelines(
        difflib.unified_diff(before.splitlines(True), now.splitlines(True), "golden", "now", n=0)
    )
    return int(now != before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
