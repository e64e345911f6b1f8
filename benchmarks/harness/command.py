"""Command line of a benchmark, which can be stopped at any time and resumed.

The work is a list of jobs. Most jobs are calls of `keep`, which measures a record and stores it.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cudnn_ct as ct

from . import timing
from .results import Record, Results, explain, merged, read
from .shards import positive, shard_of
from .text import line_of
from .timing import lost_context


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "--rows", type=Path, help="append measured rows to this file, and skip rows that it has"
    )
    options.add_argument("--json", type=Path, help="write the whole result to this file at the end")
    options.add_argument("--every", type=positive, default=1, metavar="N", help="measure every N-th row")
    options.add_argument("--shard", type=shard_of, default=(1, 1), metavar="K/N", help="measure part K of N")
    options.add_argument("--seconds", type=float, help="start no job after this many seconds")
    options.add_argument(
        "--lock",
        type=Path,
        help="measure only while this file is locked, so that shards "
        "can run at the same time: their host work overlaps, their measurements do not",
    )
    return options


def carry_out(
    jobs: Sequence[Callable[[], None]],
    results: Results,
    warm_up: Callable[[], object],
    options: argparse.Namespace,
) -> None:
    """Run the jobs one after another, until the time limit; ``options`` come from :func:`parser`."""
    began, seconds = time.monotonic(), options.seconds
    timing.use_lock(options.lock)
    print(f"{len(jobs)} jobs to run, {len(results.records)} records stored by earlier runs", flush=True)
    if jobs:
        prepare(warm_up)
        results.add(about())
    for done, job in enumerate(jobs):
        if seconds is not None and time.monotonic() > began + seconds:
            print(f"stopped after {seconds:g} s, {len(jobs) - done} jobs left; repeat the command to resume")
            break
        job()


def keep(
    results: Results,
    measure: Callable[..., Record],
    *arguments: Any,
    line: Callable[[Record], str] = line_of,
) -> None:
    """Measure a record, store it and print a line. The next run repeats a measurement that failed."""
    try:
        record = measure(*arguments)
    except Exception as error:
        print(f"{measure.__name__} of {arguments[:1]} failed: {explain(error)}", flush=True)
        if lost_context():
            raise
        return
    results.add(record)
    print(line(record), flush=True)
    gc.collect()
    if record.get("lost"):
        sys.exit(f"the CUDA context is lost ({record['lost']}); repeat the command to resume after this row")


def report(
    description: str,
    render: Callable[[list[Record]], str],
    write_whole: Callable[[Path, list[Record]], None],
) -> None:
    """Run the command that merges files of rows, prints their report, and writes them as one file."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("rows", nargs="+", type=Path, help="files of rows to merge")
    options.add_argument("--json", type=Path, help="write the merged rows to this file")
    arguments = options.parse_args()
    records = merged(record for path in arguments.rows for record in read(path))
    print(render(records))
    if arguments.json:
        write_whole(arguments.json, records)


def prepare(warm_up: Callable[[], object]) -> None:
    """Load libraries, create contexts and the first plan of every contender, and disable the collector."""
    ct.config.algo_cache = "off"  # tuned algorithms are measured, not loaded
    warm_up()
    gc.collect()
    gc.freeze()
    gc.disable()  # `keep` collects after each record instead of during a loop


def about() -> Record:
    """Return the device, the versions and the date."""
    import torch

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {
        **{"section": "about", "id": now, "date": now},
        **{"device": torch.cuda.get_device_name(), "driver": _driver(), "torch": torch.__version__},
        **{"cudnn of torch": torch.backends.cudnn.version(), "cudnn": ct.version()},
        "cudnn_ct": ct.__version__,
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip()
