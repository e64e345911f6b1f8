"""Run the tests against other versions of cuDNN: each from its wheel, or on a GPU from a folder.

python tools/versions.py                             # every night: all of VERSIONS, the tiers unit and lib
python tools/versions.py 9.10.2 -- -q tests/lib      # one version, with arguments of pytest
python tools/versions.py --json benchmarks/results/reliability.json     # and store the figures for the page
python tools/versions.py --gpu DIR --minutes 10      # tests, oracle and facts by the cuDNN in DIR, on a GPU

Each version is installed into its own virtual environment, before the packages of this environment, which do
not change. The command needs a package index, and 2 GB below $TMPDIR. On a GPU a version has a record of its
own in tests/gpu_records, and the verdicts of `tests/facts/canary.py` next to it. A set of a few libraries has
the tests of its operations; tests of calls that it does not support are skipped, with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("9.1.0", "9.10.2", "9.19.0", "9.27.0")
RECORDS = ROOT / "tests" / "gpu_records"
# Files of tests, by the kind of libraries. A full set has all.
FILES = {
    "jit": (
        *(
            "algorithms",
            "attention",
            "conv",
            "conv_fusions",
            "dynamic_shapes",
            "graph_builder",
            "graph_kinds",
        ),
        *("graph_layouts", "graph_operations", "int8", "jit", "layers", "norm", "operations", "plans"),
        "training_fusions",
    ),
    "ext": ("b2b_causal_conv1d", "causal_conv1d", "fft_causal_conv1d", "gnn"),
}
PARTS = {"jit": ("tests", "oracle", "facts"), "ext": ("tests",)}  # it has no engines
ALL = ("imports", "tests", "without-replays", "oracle", "facts")
TIERS = ("-q", "tests/unit", "tests/lib")
# Runs in the environment of a version, so that no test runs with another version.
ASK = "import cudnn_ct; print(cudnn_ct.version())"
ASK_SET = "from cudnn_ct import _lib; print(_lib.load().version_text)"
CANNOT_PLAN = "plans for a described device from"  # in the skip reason of planning tests


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"by default {', '.join(VERSIONS)}")
    parser.add_argument("--json", help="store the figures in this file")
    parser.add_argument("--gpu", type=Path, nargs="+", metavar="DIR", help="with the cuDNN in these folders")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the oracle (default: %(default)s)")
    parser.add_argument("--part", nargs="+", choices=ALL, help="of the record (default: those of its kind)")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="only every Nth file of tests on a GPU")
    parser.add_argument("--rest", action="store_true", help="only tests that an interrupted run has left")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    options, tests = parser.parse_args(given[:cut]), given[cut + 1 :] or list(TIERS)
    if options.gpu:
        more = (options.minutes, options.jobs, options.part, options.shard, options.rest)
        return max(on_gpu(folder, *more) for folder in options.gpu)
    results = {}
    for version in options.versions or VERSIONS:
        results[version] = run(version, tests)
        if options.json:
            keep(options.json, version, results[version])
    for version, counts in results.items():
        print(f"cuDNN {version}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    return 0 if all(row["passed"] and not row["failed"] for row in results.values()) else 1


def run(version: str, tests: list[str]) -> dict[str, Any]:
    """Run tests against one version, and return the numbers of passed, failed and skipped tests."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cudnn-versions-") as folder:
        python = environment(Path(folder), version)
        environ = {name: value for name, value in os.environ.items() if name != "CUDNN_CT_LIBRARY"}
        found = subprocess.run([python, "-c", ASK], cwd=ROOT, env=environ, capture_output=True, text=True)
        major, minor, patch = map(int, version.split(".")[:3])
        if found.stdout.strip() != str(major * 10_000 + minor * 100 + patch):
            raise SystemExit(f"expected cuDNN {version}, but loaded {found.stdout}{found.stderr}")
        print(f"=== cuDNN {version}, after {time.monotonic() - begin:.0f} s", flush=True)
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *tests]
        tested = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        assert tested.stdout is not None
        lines = []
        for line in tested.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        tested.wait()
    return counts_of("".join(lines))


def on_gpu(
    folder: Path,
    minutes: float,
    jobs: int,
    parts: Sequence[str] | None = None,
    shard: str = "1/1",
    rest: bool = False,
) -> int:
    """Make the record of the cuDNN in a folder on this GPU, and return the exit status of what failed."""
    library = min(folder.rglob("libcudnn.so.9"), default=None)
    if library is None:
        raise SystemExit(f"no libcudnn.so.9 below {folder}")
    environ = {**os.environ, "CUDNN_CT_LIBRARY": str(library)}
    ask = [sys.executable, "-c", ASK_SET]
    asked = subprocess.run(ask, cwd=ROOT, env=environ, check=True, capture_output=True, text=True)
    version, _, kind = asked.stdout.strip().partition(" ")
    name, more = "-".join((version, kind)) if kind else version, ["--jobs", str(jobs)]
    wanted = parts or PARTS.get(kind, ALL)
    tested = [one for one in wanted if one != "facts"]
    RECORDS.mkdir(exist_ok=True)
    files = ["--files", *FILES[kind]] if kind in FILES else []
    record = ["tools/gpu_record.py", "--record", str(RECORDS / f"{name}.json"), *more, *files]
    facts = ["-m", "tests.facts.canary", "--json", str(RECORDS / f"{name}-facts.json"), *more]
    facts += ["--seconds", "10"]
    run = ["--oracle-minutes", str(minutes), "--shard", shard, *["--rest"] * rest, "--run", *tested]
    commands = [[*record, *run]] if tested else []
    status = 0
    for command in (*commands, *([facts] if "facts" in wanted else [])):
        print(f"=== cuDNN {name}: {' '.join(command[:2])}", flush=True)
        status = subprocess.run([sys.executable, *command], cwd=ROOT, env=environ).returncode or status
    return status


def keep(path: str, version: str, counts: dict[str, Any]) -> None:
    """Store the figures of one version."""
    sys.path.insert(0, str(ROOT / "tools"))
    from reliability import put, read

    others = read(path).get("versions", {}).get("versions", {})
    rows = {**others, version: counts}
    order = sorted(rows, key=lambda one: [int(part) for part in one.split(".")])
    put(path, "versions", {"versions": {one: rows[one] for one in order}})


def counts_of(output: str) -> dict[str, Any]:
    """Return the counts in pytest's last line, and whether planning for absent devices was tested."""
    last = output.rstrip().rpartition("\n")[2]
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for number, name in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
        counts["failed" if name == "error" else name] += int(number)
    return {**counts, "planning": "none before 9.8" if CANNOT_PLAN in output else "yes"}


def environment(folder: Path, version: str) -> Path:
    """Create an environment with one cuDNN before the packages installed here, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "behind.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    cudnn = f"nvidia-cudnn-cu12=={version}.*"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--no-compile", "--target", site, cudnn], check=True)
    return folder / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main())
