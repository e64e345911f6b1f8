"""Train the GPT of example 14 on 1, 2 and 4 GPUs of one machine, and compare losses and throughput.

    python benchmarks/distributed.py [--json OUT]

One global batch gives the same losses on each number of GPUs but for rounding; the largest relative
difference is a row, for copies (DDP) and shards (FSDP) of the parameters. With a fixed batch for each GPU,
the other row is the throughput of one GPU times n, divided by that of n GPUs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.figures import Bar

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "14_distributed_gpt.py"
COUNTS = (1, 2, 4)
SMALL = {"steps": 100, "batch": 16}
LARGE = {"steps": 40, "length": 512, "width": 768, "heads": 12, "layers": 6}
BATCH = 8  # for each GPU
FAR, SLOW = 1e-3, 1 / 0.93


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a run failed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", type=Path, help="write the result to this file")
    given = options.parse_args(arguments)
    name, gpus = devices()
    rows = [row for count in COUNTS if count <= gpus for row in rows_of(count)]
    bars = bars_of(rows)
    print(f"{gpus} x {name}", *bars, sep="\n")
    if given.json:
        records = [bar.record for bar in bars]
        found = {"benchmark": "distributed", "about": {"device": name}, "bars": records, "rows": rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any("error" in row for row in rows))


def devices() -> tuple[str, int]:
    """Return the name and the number of the GPUs."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return names[0].strip(), len(names)


def rows_of(count: int) -> list[dict[str, Any]]:
    """Return the runs on a number of GPUs."""
    kinds = [("DDP", []), ("FSDP", ["--shard"])] if count > 1 else [("one", [])]
    rows = [{"row": f"losses, {kind}", "gpus": count, **run(count, SMALL, more)} for kind, more in kinds]
    large = LARGE | {"batch": BATCH * count}
    return [*rows, {"row": "throughput", "gpus": count, **run(count, large, [])}]


def run(count: int, sizes: dict[str, int], more: list[str]) -> dict[str, Any]:
    """Run the example, and return what it found, or the end of its errors."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable, *launch * (count > 1), str(EXAMPLE), *more]
    command += [f"--{name}={value}" for name, value in sizes.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        done = subprocess.run([*command, f"--json={path}"], capture_output=True, text=True, check=False)
        print(done.stdout, end="", flush=True)
        if done.returncode or not path.exists():
            return {"error": (done.stderr or done.stdout)[-800:]}
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def bars_of(rows: list[dict[str, Any]]) -> list[Bar]:
    """Return the targets; what failed counts as not measured."""
    measured = [row for row in rows if "error" not in row]
    losses = [row for row in measured if row["row"].startswith("losses")]
    one = next((row["losses"] for row in losses if row["gpus"] == 1), [])
    far = [
        max(abs(mine - theirs) / theirs for mine, theirs in zip(row["losses"], one, strict=True))
        for row in losses
        if one and row["gpus"] > 1
    ]
    tokens = {row["gpus"]: row["tokens"] for row in measured if row["row"] == "throughput"}
    slow = [tokens[1] * count / rate for count, rate in tokens.items() if count > 1 and 1 in tokens]
    failed = len(rows) - len(measured)
    detail = f"{failed} failed" if failed else ""
    return [
        Bar("losses in float32, n GPUs / one, relative", max(far, default=None), FAR, len(far), detail),
        Bar("throughput of n x one / n GPUs", max(slow, default=None), SLOW, len(slow), detail),
    ]


if __name__ == "__main__":
    sys.exit(main())
