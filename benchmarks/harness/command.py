"""A benchmark as a command that may be stopped at any time, and resumes.

Its work is a list of jobs, most of them calls of `keep`: each measures a record and stores it.
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

from .results import Record, Results, explain, merged, read
from .shards import positive, shard_of
from .text import line_of
from .timing import lost_context


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "--rows", type=Path, help="append measured rows to this file, and skip the rows in it"
    )
    options.add_argument("--json", type=Path, help="write the whole result here at the end")
    options.add_argument("--every", type=positive, default=1, metavar="N", help="take each n-th row")
    options.add_argument("--shard", type=shard_of, default=(1, 1), metavar="K/N", help="the k-th of n parts")
    options.add_argument("--seconds", type=float, help="begin nothing new after so many seconds")
    return options


def carry_out(
    jobs: Sequence[Callable[[], None]],
    results: Results,
    warm_up: Callable[[], object],
    seconds: float | None = None,
) -> None:
    """Do the jobs one after another, until the time is up."""
    began = time.monotonic()
    print(f"{len(jobs)} to measure, {len(results.records)} records are there already", flush=True)
    if jobs:
        prepare(warm_up)
        results.add(about())
    for done, job in enumerate(jobs):
        if seconds is not None and time.monotonic() > began + seconds:
            print(f"stopped after {seconds:g} s, {len(jobs) - done} left: run the same command again")
            break
        job()


def keep(
    results: Results,
    measure: Callable[..., Record],
    *arguments: Any,
    line: Callable[[Record], str] = line_of,
) -> None:
    """Measure a record, store it and print a line. A record that fails is left for the next run."""
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
        sys.exit(f"the GPU's context is lost ({record['lost']}); the same command goes on after that row")


def report(
    description: str,
    render: Callable[[list[Record]], str],
    write_whole: Callable[[Path, list[Record]], None],
) -> None:
    """Run the command that merges files of rows, prints their report, and writes them as one file."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("rows", nargs="+", type=Path, help="files of rows, merged")
    options.add_argument("--json", type=Path, help="write everything as one file here")
    arguments = options.parse_args()
    records = merged(record for path in arguments.rows for record in read(path))
    print(render(records))
    if arguments.json:
        write_whole(arguments.json, records)


def prepare(warm_up: Callable[[], object]) -> None:
    """Do what happens only once: load libraries, create contexts and the first plan of every contender."""
    ct.config.algo_cache = "off"  # tuned algorithms are measured, not loaded
    warm_up()
    gc.collect()
    gc.freeze()
    gc.disable()  # no sweep during a loop; one after each record


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
