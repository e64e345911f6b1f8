"""Draw, judge and count: ``python -m tests.doctor_drawn --breakages 2000 --sound 500 --seed 7``."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.doctor_drawn import draw, files, judge, run, wheels


@dataclass
class Row:
    """The judgement of one drawn site."""

    label: str
    kind: str
    operations: list[str]
    verdict: judge.Verdict


def one(seed: int, label: str, root: Path, show: bool = False) -> Row:
    """Draw and judge the site of a label: a number, or ``s`` and a number for a sound site."""
    folder = root / label
    build = draw.sound if label.startswith("s") else draw.breakage
    site, done = build(seed, int(label.lstrip("s")), folder)
    kind = f"{site.layout} {site.wheel.name[-4:]} {site.wheel.version}"
    if show:
        print(f"{kind}, {[each.name for each in site.consumers]}, operations {done}, folder {site.root}")
        for key, truth in site.truths.items():
            print(f"truth: {key}: {truth.operation}, any of {sorted(truth.codes)}, names {truth.names}")
        print("environment:", site.environment, "in", site.work or site.root)
        print("$", *run.command(site))
        print(run.text(site))
    try:
        verdict = judge.judge(site)
    except Exception:  # a defect of the judge must not end a long run
        verdict = judge.Verdict(
            noticed=False, reasons=["the judge failed: " + traceback.format_exc(limit=-3)]
        )
    if not show:
        files.remove(folder)
    return Row(label, kind, done, verdict)


# Shares in percent that the answers must reach, and may not exceed.
AT_LEAST = {"noticed": 97.0, "cause": 95.0, "fix": 95.0}
AT_MOST = {"destructive": 0.0, "false_alarm": 0.5}


def missed(rows: list[Row]) -> dict[str, float]:
    """Return the questions whose answers do not reach the required shares, with their shares in percent."""
    shares = {}
    for name in (*AT_LEAST, *AT_MOST):
        values = [getattr(row.verdict, name) for row in rows]
        asked = [value for value in values if value is not None]
        shares[name] = 100 * sum(asked) / len(asked) if asked else AT_LEAST.get(name, 0.0)
    few = {name: shares[name] for name, least in AT_LEAST.items() if shares[name] < least}
    return {**few, **{name: shares[name] for name, most in AT_MOST.items() if shares[name] > most}}


def share(values: list[bool | None]) -> str:
    """The share of True among the answers to a question."""
    asked = [value for value in values if value is not None]
    return f"{sum(asked)} of {len(asked)} ({100 * sum(asked) / len(asked):.1f} %)" if asked else "-"


def report(rows: list[Row], seed: int, most: int) -> None:
    """Print the table and the first failures."""
    verdicts = [row.verdict for row in rows]
    broken = [each for each in verdicts if each.false_alarm is None]
    print(f"noticed          {share([each.noticed for each in broken])}")
    print(f"cause first      {share([each.cause for each in broken])}")
    print(f"fix right        {share([each.fix for each in broken])}")
    print(f"not carried out  {share([each.not_carried_out for each in broken])}")
    print(f"destructive      {share([each.destructive for each in broken])}")
    print(f"false alarms     {share([each.false_alarm for each in verdicts])}")
    wrong = [row for row in rows if not row.verdict.right]
    for title, keys in (
        ("operation", [name for row in wrong for name in row.operations]),
        ("layout", [row.kind.split()[0] for row in wrong]),
    ):
        print(f"failures by {title}:", dict(collections.Counter(keys).most_common()))
    for row in wrong[:most]:
        print(f"--seed {seed} --only {row.label}: {row.kind}, {'+'.join(row.operations)}")
        for reason in row.verdict.reasons:
            print(f"    {reason}")


def main() -> int:
    """Run the command; the exit code is 1 if too many answers were wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.doctor_drawn", description=__doc__)
    parser.add_argument("--breakages", type=int, default=100)
    parser.add_argument("--sound", type=int, default=25)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--failures", type=int, default=20, help="failures to print")
    parser.add_argument(
        "--only", metavar="NUMBER", help="draw this one, print the doctor's text, keep the folder"
    )
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="drawn-"))
    if options.only:
        row = one(options.seed, options.only, root, show=True)
        print(row.verdict)
        return 0 if row.verdict.right else 1
    known = ", ".join(f"{each.name[-4:]} {each.version}" for each in wheels.cudnns())
    print(f"seed {options.seed}, with {known}: other wheels give other draws", flush=True)
    labels = [str(number) for number in range(options.breakages)] + [
        f"s{number}" for number in range(options.sound)
    ]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda label: one(options.seed, label, root), labels))
    files.remove(root)
    report(rows, options.seed, options.failures)
    print(f"{len(rows)} sites in {time.perf_counter() - start:.0f} s")
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
