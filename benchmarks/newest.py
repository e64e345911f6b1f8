"""Print the table of small and new cuDNNs: what they take, which operations they compute, and how fast.

    python benchmarks/newest.py --part install doctor --json OUT             # with pip, without a GPU
    python benchmarks/newest.py --part conv caches ... --json OUT --add      # on a GPU, in the same file

CUDNN_JIT names libcudnn.so.9 of the JIT wheel, and CUDNN_EXT that of a folder with libcudnn_ext; the
cuDNN of this environment is the older one. Each part runs in a process of its own. The exit status is 1 if a
row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from harness.parts import ROOT, Parts, Row, Target

JIT, EXT = "CUDNN_JIT", "CUDNN_EXT"
GB = 1e9
RUNS = 5  # of a command whose time counts

TARGETS = (
    *(
        Target(f"first command of README, {name}, {what}", "install", field, limit, max, name)
        for name, limits in (("smallest", (0.25, 0.6, 40)), ("jit-cu13", (0.75, 1.4, 70)))
        for (what, field), limit in zip(
            (("download, GB", "download_gb"), ("disk, GB", "disk_gb"), ("time, s", "seconds")),
            limits,
            strict=True,
        )
    ),
    Target("doctor and info with a JIT wheel alone: wrong answers", "doctor", "wrong", 0, sum),
    Target("doctor and info with a JIT wheel alone, s", "doctor", "seconds", 0.5, max),
    Target("convolutions, 9.27 JIT / 9.19, forward", "conv", "ratio", 0.88, only="forward"),
    Target("convolutions, 9.27 JIT / 9.19, data", "conv", "ratio", 0.92, only="backward_data"),
    Target("convolutions, 9.27 JIT / 9.19, filter", "conv", "ratio", 0.97, only="backward_filter"),
    Target(
        "selftest with the JIT wheel: operations that need another library, of 54",
        "selftest",
        "lacking",
        27,
        sum,
    ),
    Target("causal_conv1d forward / eager", "causal", "forward_eager", 0.35),
    Target("causal_conv1d backward / eager", "causal", "backward_eager", 0.50),
    Target("causal_conv1d forward / torch.compile", "causal", "forward_compiled", 1.00),
    Target("causal_conv1d forward / a copy of x", "causal", "forward_copy", 2.0),
    Target("second process, first product of a new shape, ms", "caches", "ms", 100, max),
    Target("findings of the oracle on 9.27 JIT", "oracle", "findings", 0, sum),
)


# --- without a GPU -----------------------------------------------------------------------------------------


def install(**_: Any) -> Iterator[Row]:
    """Yield the download, the disk space and the time of sets of libraries, until a picture is there."""
    sys.path.insert(0, str(ROOT / "tools"))
    import install_sizes

    for name in ("smallest", "jit-cu12", "jit-cu13"):
        download, disk, seconds = install_sizes.measured(install_sizes.SETS[name])
        yield {"row": name, "download_gb": download / GB, "disk_gb": disk / GB, "seconds": seconds}


def doctor(**_: Any) -> Iterator[Row]:
    """Yield whether the doctor and ``info`` know a JIT wheel that is alone, and how long they take."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        subprocess.run([*pip, "nvidia-cudnn-jit-cu12"], check=True)
        (library,) = Path(folder).rglob("libcudnn.so.9")
        environ = {**os.environ, "CUDNN_CT_LIBRARY": str(library)}
        for command, words in (("doctor", "sound"), ("info", "jit")):
            taken, output = [], ""
            for _run in range(RUNS):
                started = time.perf_counter()
                called = [sys.executable, "-m", "cudnn_ct", command]
                done = subprocess.run(
                    called, env=environ, cwd=ROOT, capture_output=True, text=True, check=False
                )
                taken.append(time.perf_counter() - started)
                output = done.stdout
            yield {"row": command, "seconds": median(taken), "wrong": int(words not in output.lower())}


# --- on a GPU ----------------------------------------------------------------------------------------------


def output_of(script: str, *arguments: str, library: str = "") -> Any:
    """Run a command that writes JSON to the path of its last argument, and return what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        environ = {**os.environ, **({"CUDNN_CT_LIBRARY": library} if library else {})}
        command = [sys.executable, *script.split(), *arguments, "--json", str(file)]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        if not file.exists():
            raise SystemExit(done.stdout[-400:] + done.stderr[-800:])
        return json.loads(file.read_text(encoding="utf-8"))


def conv(*, seed: int, **_: Any) -> Iterator[Row]:
    """Yield autotuned convolutions of float16 by the JIT wheel, divided by those of this environment."""
    limits = ("--seed", str(seed), "--seconds", "200", "--jobs", "6")
    for row in output_of("benchmarks/conv_versions.py", os.environ[JIT], *limits)["rows"]:
        name = f"{row['direction']} {row['number']}"
        if "error" in row:
            yield {"row": name, "error": row["error"]}
        else:
            yield {"row": name, "ratio": row["new_us"] / row["old_us"]}


def selftest(**_: Any) -> Iterator[Row]:
    """Yield how many operations compute with the JIT wheel, and how many need another library."""
    command = [sys.executable, "-m", "cudnn_ct", "selftest", "--json"]
    environ = {**os.environ, "CUDNN_CT_LIBRARY": os.environ[JIT]}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    rows = json.loads(done.stdout)["rows"]
    names = {row["name"].partition(" (")[0] for row in rows}
    computing = len({row["name"].partition(" (")[0] for row in rows if row["verdict"] == "ok"})
    wrong = sum(row["verdict"] == "failed" and "needs libcudnn" not in row["detail"] for row in rows)
    yield {
        "row": "operations",
        "computing": computing,
        "lacking": len(names) - computing,
        **({"error": f"{wrong} rows are wrong"} if wrong else {}),
    }


def causal(**_: Any) -> Iterator[Row]:
    """Yield causal convolutions of Mamba layers against PyTorch."""
    for row in output_of("benchmarks/causal_conv.py", "--library", os.environ[EXT]):
        yield {
            "row": str(tuple(row["shape"])),
            "forward_eager": row["forward"] / row["eager"],
            "backward_eager": row["backward"] / row["eager backward"],
            "forward_compiled": row["forward"] / row["compiled"],
            "forward_copy": row["forward"] / row["copy"],
        }


PRODUCT = """
import json, sys, time
import numpy as np
import cudnn_ct as ct
rows, columns = map(int, sys.argv[1:])
ones = lambda *shape: ct.asarray(np.ones(shape, np.float32), "float16")
a, b = ones(rows, columns), ones(columns, 64)
ct.synchronize()
begin = time.perf_counter()
ct.matmul(a, b).numpy()
print(json.dumps({"ms": 1e3 * (time.perf_counter() - begin)}))
"""


def caches(**_: Any) -> Iterator[Row]:
    """Yield the first product of a process, of shapes that an earlier process did not have."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "CUDNN_CT_LIBRARY": os.environ[JIT], "CUDNN_CT_ALGO_CACHE": folder}
        environ["CUDNN_CT_DYNAMIC_SHAPES"] = "1"
        for place, rows in enumerate((128, 192, 320, 448)):
            command = [sys.executable, "-c", PRODUCT, str(rows), "256"]
            done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            yield {"row": f"process {place}", **(found if place else {"first_ms": found["ms"]})}


def oracle(**_: Any) -> Iterator[Row]:
    """Yield the findings of random calls on the JIT wheel."""
    jobs = str(os.cpu_count() or 1)
    found = output_of("-m tests.oracle", "--minutes", "2", "--jobs", jobs, library=os.environ[JIT])
    yield {"row": f"seed {found['seed']}", "calls": found["calls"], "findings": len(found["findings"])}


PARTS = {
    "install": install,
    "doctor": doctor,
    "conv": conv,
    "selftest": selftest,
    "causal": causal,
    "caches": caches,
    "oracle": oracle,
}
NEWEST = Parts("newest", Path(__file__), PARTS, TARGETS, seconds=400)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return NEWEST.main(argparse.ArgumentParser(description=__doc__.splitlines()[0]), arguments)


if __name__ == "__main__":
    sys.exit(main())
