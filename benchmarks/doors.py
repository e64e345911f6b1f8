"""Compare the doors to JAX, CuPy and cuda-python with their peers on one GPU, and check their results.

    python benchmarks/doors.py [--part convolutions lstm ...] [--rounds N] [--json OUT] [--dry]

Each part runs in a process of its own and prints a line for each row, so that a failure loses its row or its
part alone. Times are those of loops of steps in turns, on random data; a ratio is the median over rounds of
our time divided by that of the peer in the same round. The table at the end compares them with the targets.
With ``--dry``, JAX computes tiny shapes on the CPU: that tests the command, and its times mean nothing. The
exit status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from doors_checks import CHECKS, pointer
from doors_stacks import STACKS
from harness.figures import Bar

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "doors.json"
SECONDS = 75  # of a part
ROUNDS = 9

# XLA's flags with and without command buffers; the calls of this package are custom calls.
CAPTURED = (
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL "
    "--xla_gpu_graph_min_graph_size=1"
)
NOT_CAPTURED = "--xla_gpu_enable_command_buffer="
TWO_CPUS = "--xla_force_host_platform_device_count=2"

Row = dict[str, Any]


class Target(NamedTuple):
    """A line of the table: the part and the field of its rows, how their values become one, and a limit."""

    name: str
    part: str
    field: str
    limit: float
    joined: Callable[[list[float]], float] = geometric_mean


TARGETS = (
    Target("12 convolutions, autotuned, command buffers / jax.lax", "convolutions", "ratio", 0.90),
    Target("12 convolutions, default algorithms / jax.lax", "convolutions", "ratio_default", 0.90),
    Target("12 attention layers, command buffers / jax.nn", "attention", "ratio", 0.97),
    Target("4 LSTM layers, float32 / jax.experimental.rnn", "lstm", "ratio", 1.0),
    Target("4 LSTM layers, float16 / float32 there", "lstm", "ratio_half", 0.60),
    Target("handler calls per step once captured", "host", "calls", 0, max),
    Target("host time of a step / jax alone", "host", "ratio", 1.05),
    Target("host time added per call without command buffers, us", "plain", "added_us", 25, max),
    Target("check_grads: rows that fail", "rows", "bad_gradient", 0, sum),
    Target("vmap: rows that differ from a loop", "rows", "bad_vmap", 0, sum),
    Target("shard_map of vmap: rows that differ from a loop", "rows", "bad_split", 0, sum),
    Target("shard_map: largest difference from one device", "devices", "far", 5e-3, max),
    Target("sigpy: convolution tests that fail", "sigpy", "bad", 0, sum),
    Target("ct.from_pointer, us", "pointer", "ours_us", 3, max),
)

TIMED: dict[str, Callable[..., Any]] = {**STACKS, "pointer": pointer}
PARTS: dict[str, Callable[..., Any]] = {**TIMED, **CHECKS}
SHARDS = {"rows": 4}  # processes of a part, at the same time


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--part", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    options.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    options.add_argument(
        "--json", type=Path, help=f"write the rows to this file after each part, such as {RESULTS.name}"
    )
    options.add_argument("--dry", action="store_true", help="tiny shapes on the CPU")
    options.add_argument("--child", choices=tuple(PARTS), help=argparse.SUPPRESS)
    options.add_argument("--shard", default="1/1", help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        return child(given)
    started, rows = time.monotonic(), list[Row]()
    for part in given.part:
        if part in TIMED:
            rows += run(part, given)
            report(rows, given, started)
    checks = [
        (part, f"{shard + 1}/{SHARDS.get(part, 1)}")
        for part in given.part
        if part in CHECKS
        for shard in range(SHARDS.get(part, 1))
    ]
    with ThreadPoolExecutor(max(1, len(checks))) as pool:  # after the times, which they would disturb
        for found in pool.map(lambda one: run(one[0], given, one[1]), checks):
            rows += found
    print(report(rows, given, started))
    return int(any("error" in row for row in rows))


def report(rows: list[Row], given: argparse.Namespace, started: float) -> str:
    """Return the table, and write it with the rows to the file, if one is asked for."""
    bars = [bar for target in TARGETS if (bar := bar_of(target, rows, given.part))]
    about = {"device": device(), "seconds": round(time.monotonic() - started), **merged_about(rows)}
    if given.json:
        measured = [row for row in rows if "about" not in row]
        found = {"benchmark": "doors", "about": about, "bars": [bar.record for bar in bars], "rows": measured}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return "\n".join([", ".join(f"{key} {value}" for key, value in about.items()), *map(str, bars)])


def bar_of(target: Target, rows: list[Row], parts: Sequence[str]) -> Bar | None:
    """Return the line of a target, or None if its part was not asked for."""
    if target.part not in parts:
        return None
    own = [row for row in rows if row["part"] == target.part and "about" not in row]
    values = [row[target.field] for row in own if row.get(target.field) is not None]
    failed = sum("error" in row for row in own)
    detail = f"{failed} failed" if failed else ""
    return Bar(target.name, target.joined(values) if values else None, target.limit, len(values), detail)


def merged_about(rows: list[Row]) -> dict[str, Any]:
    """Return the versions that the parts found."""
    found: dict[str, Any] = {}
    for row in rows:
        found |= row.get("about", {})
    return found


def device() -> str:
    """Return the name of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no GPU"
    return done.stdout.splitlines()[0].strip()


# --- processes of parts ------------------------------------------------------------------------------------


def run(part: str, given: argparse.Namespace, shard: str = "1/1") -> list[Row]:
    """Run a part in a process of its own, print its rows and return them; a failure is a row."""
    command = [sys.executable, __file__, "--child", part, "--rounds", str(given.rounds), "--shard", shard]
    command += ["--dry"] if given.dry else []
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environment(part, given.dry), capture_output=True, text=True, check=False,
            timeout=SECONDS * (8 if given.dry else 1),
        )  # fmt: skip
        output, problem = done.stdout, done.stderr[-800:] if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        problem = f"stopped after {SECONDS} s"
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"part": ')]
    if problem:
        rows.append({"part": part, "row": f"part {shard}", "error": problem})
    lines = [line_of(row) for row in rows if "about" not in row]
    print("\n".join([f"{part} {shard}: {time.monotonic() - started:.0f} s", *lines]), flush=True)
    return rows


def environment(part: str, dry: bool) -> dict[str, str]:
    """Return the variables of a part's process.

    A part that measures times sees one GPU, the first of ``CUDA_VISIBLE_DEVICES``: with two, a step of JAX
    has more host time.
    """
    flags = TWO_CPUS if dry else {"plain": NOT_CAPTURED, **dict.fromkeys(CHECKS, "")}.get(part, CAPTURED)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    own: Mapping[str, str] = {
        "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": paths,
        "CUDNN_CT_ALGO_CACHE": "off", **({"JAX_PLATFORMS": "cpu"} if dry else {}),
        **({"CUDA_VISIBLE_DEVICES": visible[0]} if part in TIMED else {}),
    }  # fmt: skip
    return {**os.environ, **own}


def child(given: argparse.Namespace) -> int:
    """Print the rows of a part as lines of JSON."""
    shard, shards = map(int, given.shard.split("/"))
    for row in PARTS[given.child](dry=given.dry, rounds=given.rounds, shard=shard - 1, shards=shards):
        print(json.dumps({"part": given.child, **row}), flush=True)
    return 0


def line_of(row: Row) -> str:
    """Return a line on a row."""
    if "error" in row:
        return f"  {row['row']}: {row['error']}"
    values = (f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, int | float))
    return f"  {row['row']}: {', '.join(values)}"


if __name__ == "__main__":
    sys.exit(main())
