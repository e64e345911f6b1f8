"""Write the generated parts of docs/doctor.md: the table of codes, and the matrix of the last full run.

python tools/doctor_docs.py            # the table of codes, from cudnn_doctor/findings.json
python tools/doctor_docs.py --check    # exit 1 if the table is out of date
python tools/doctor_docs.py --matrix   # break every cuDNN in CUDNN_CT_TEST_CUDNNS, and the installed one
python tools/doctor_docs.py --environments # break environments with small wheels, and run all commands
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "doctor.md"
sys.path.insert(0, str(ROOT))

from cudnn_doctor.finding import codes  # noqa: E402


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--environments", action="store_true")
    parser.add_argument("--folder", help="folder for the copies, on the file system of the wheels")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    written = put(page, "codes", code_table())
    if options.check:
        return 0 if written == page else 1
    if options.matrix:
        written = put(written, "matrix", matrix(options.folder))
    if options.environments:
        written = put(written, "environments", environments())
    PAGE.write_text(written, encoding="utf-8")
    return 0


def put(page: str, name: str, block: str) -> str:
    """Replace the text between the marks of a name."""
    pattern = rf"(<!-- begin: {name}[^\n]*-->\n).*?(<!-- end: {name} -->)"
    written, count = re.subn(
        pattern, lambda marks: f"{marks[1]}\n{block}\n\n{marks[2]}", page, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{PAGE} does not have one pair of marks for {name}")
    return written


def code_table() -> str:
    """Return a table with one row for each code."""
    rows = ["| code | severity | cause | fix |", "|---|---|---|---|"]
    for code in codes().values():
        cells = (f"`{code.name}`", code.severity.word, code.cause, code.fix)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(rows)


def matrix(folder: str | None) -> str:
    """Break every cuDNN in every way, and return a table of the detected defects."""
    from tests import doctor_cases as cases  # only this option needs the tests
    from tests.doctor_sites import Site, examine
    from tests.lib.test_doctor import SOURCES

    results: dict[str, list[tuple[str, bool, bool, str]]] = {}
    alarms, seconds = [], []
    for source in SOURCES:
        with _scratch(folder) as place:
            start = time.monotonic()
            answer = examine(Site(place, source).target)
            seconds.append(time.monotonic() - start)
            if answer.codes() or answer.exit_code:
                alarms.append(f"{source}: {', '.join(sorted(answer.codes()))}")
    runs: list[tuple[Any, ...]] = [
        (case, source) for source in SOURCES for case in cases.CASES if case.where(source)
    ]
    runs += [
        (case, source, other)
        for source, other in cases.pairs(SOURCES)
        for case in cases.MIXES
        if case.where(source, other)
    ]
    for case, *parts in runs:
        with _scratch(folder) as place:
            answer = cases.run(case, place, *parts)
        noticed, named = answer.exit_code in (1, 3), cases.named(case, answer)
        got = ", ".join(sorted(answer.codes() & case.codes)) or ", ".join(sorted(answer.codes()))
        results.setdefault(case.name, []).append((str(parts[0]), noticed, named, got))
        print("ok  " if named else "MISS", case.name, *parts, got, flush=True)
    return "\n".join(_lines(results, [str(source) for source in SOURCES], alarms, statistics.median(seconds)))


def environments() -> str:
    """Break every environment, run the commands of the doctor, and return a table."""
    from tests import doctor_breakages as cases  # only this option needs the tests
    from tests.doctor_environments import LAYOUTS, Environment, make_wheels

    rows, runs, noticed, named, destroyed, repairs, repaired = [], 0, 0, 0, 0, 0, 0
    with _scratch(None) as place:
        wheels = make_wheels(place / "wheels")

        def attempt(case: cases.Breakage, layout: str) -> cases.Outcome:
            with _scratch(str(place)) as folder:
                return cases.attempt(case, layout, folder / "e", wheels)

        pool = ThreadPoolExecutor(os.cpu_count())
        tried = {
            case: [pool.submit(attempt, case, layout) for layout in case.layouts or LAYOUTS]
            for case in cases.BREAKAGES
        }
        for case, futures in tried.items():
            outcomes = [future.result() for future in futures]
            good = [case.code in each.codes for each in outcomes]
            fixed = [not each.left for each in outcomes if each.commands]
            runs, noticed = runs + len(good), noticed + sum(bool(each.codes) for each in outcomes)
            named, destroyed = named + sum(good), destroyed + sum(each.destroyed for each in outcomes)
            repairs, repaired = repairs + len(fixed), repaired + sum(fixed)
            shown = f"{sum(fixed)} of {len(fixed)}" if fixed else "by hand"
            rows.append(f"| {case.name} | {len(good)} | {sum(good)} | `{case.code}` | {shown} |")
            print(rows[-1], flush=True)
        alarms, sound = [], [(case, layout) for case in cases.SOUND for layout in case.layouts]
        for setup, layout in sound:
            with _scratch(str(place)) as folder:
                environment = Environment(folder / "e", wheels, setup.labels, layout)
                environment.run(setup.script)
                alarms += [setup.name] if cases.wrong(environment.diagnose(setup.asked)) else []
    head = (
        f"{runs} broken environments, of {len(rows)} kinds in {len(LAYOUTS)} layouts: {noticed} noticed, "
        f"{named} ({100 * named / runs:.1f} %) with the right cause. Commands repaired {repaired} of "
        f"{repairs} at once, and destroyed {destroyed}. {len(sound)} sound environments, of "
        f"{len(cases.SOUND)} kinds: "
        f"{len(alarms)} false alarms."
    )
    titles = ["| broken how | tried in | cause named | code | repaired |", "|---|---|---|---|---|"]
    return "\n".join([head, "", *titles, *rows])


def _lines(
    results: dict[str, list[tuple[str, bool, bool, str]]],
    sources: list[str],
    alarms: list[str],
    seconds: float,
) -> list[str]:
    rows = [row for group in results.values() for row in group]
    noticed, named = sum(row[1] for row in rows), sum(row[2] for row in rows)
    lines = [
        f"cuDNN {', '.join(sources)}: {len(rows)} broken installations, of {len(results)} kinds; "
        f"{noticed} noticed, {named} ({100 * named / len(rows):.1f} %) with the right cause. "
        f"{len(sources)} untouched ones: {len(alarms)} false alarms, {seconds:.1f} s each (median).",
        "",
        "| broken how | tried on | cause named | codes given |",
        "|---|---|---|---|",
    ]
    lines[2:2] = [f"False alarm: {alarm}" for alarm in alarms]
    for name, group in results.items():
        given = dict.fromkeys(code for _, _, _, got in group for code in got.split(", ") if code)
        shown = ", ".join(f"`{code}`" for code in given) or "none"
        lines.append(f"| {name} | {len(group)} | {sum(row[2] for row in group)} | {shown} |")
    return lines


@contextmanager
def _scratch(parent: str | None) -> Iterator[Path]:
    """Create a folder for one run."""
    prefix = "cudnn-ct-matrix-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
