"""Record of the last test run on a GPU: the device, the outcomes, and a hash of the sources that ran.

``pytest tests/gpu --gpu-record`` writes ``tests/gpu_record.json`` through :func:`write`; with
``CUDNN_CT_REPLAY=0``, it adds the counts of a run without replays to the record of the same sources: of the
tests that replayed a call, because the others would run as before; all if it is not known which. ``python
tools/gpu_record.py --oracle-minutes N`` then compares random calls with another implementation, with a new
seed, and adds the number of calls, the seed and the findings to the record. ``--run`` does all of this, after
it has imported all files of tests, and stops at the first failure. ``--run again`` runs the tests that
failed, after a change to these tests alone. A run keeps the outcome of each test in a file next to the
record; with ``--rest``, only tests that are not there run, and the record has all runs of these sources.
``--check`` reports whether the record belongs to the present sources, and exits with 1 if it does not.
Checking needs only the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cudnn_ct"
BESIDE = ("cudnn_ct_dnn", "cudnn_doctor")  # packages of the same wheel
RECORD = ROOT / "tests" / "gpu_record.json"

COUNTS = ("passed", "failed", "skipped")
FAILURES = "failures"
DEVICE_KEYS = ("device", "driver", "cuda", "cudnn")
ORACLE_KEYS = ("oracle_calls", "oracle_replays", "oracle_seeds", "oracle_findings")
KEYS = ("date", *DEVICE_KEYS, *COUNTS, FAILURES, "without_replays", *ORACLE_KEYS, "sources")
LEAST_ORACLE_CALLS = 5_000
PARTS = ("imports", "tests", "without-replays", "oracle")
AGAIN, REST = "again", "rest"
RUN_HELP = f"make the record, or these parts of it: {', '.join(PARTS)}; or {AGAIN}: the tests that failed"
MINUTES = 2.0  # of the oracle, by default
MODE = "GPU_RECORD_MODE"  # "add": a further shard; AGAIN: the tests that failed; REST: those that did not run
NO_TESTS = 5  # pytest's exit status where none is selected
WORKSPACE_LIMIT = "4G"  # for each of many processes


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Check or extend the record of the last test run on a GPU.")
    parser.add_argument("--check", action="store_true", help="exit 1 unless these sources passed")
    parser.add_argument("--record", type=Path, default=RECORD, help="the record (default: %(default)s)")
    parser.add_argument(
        "--oracle-minutes", type=float, metavar="N", help="compare random calls for N minutes"
    )
    parser.add_argument("--run", nargs="*", choices=(*PARTS, AGAIN), metavar="PART", help=RUN_HELP)
    parser.add_argument(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="only every Nth file of tests; shards after the first add",
    )
    parser.add_argument(
        "--files", nargs="+", default=[], metavar="NAME", help="only tests/gpu/test_NAME.py, such as jit"
    )
    parser.add_argument("--rest", action="store_true", help="only tests that an interrupted run has left")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    options = parser.parse_args(arguments)
    if options.run is not None:
        if AGAIN in options.run:
            return run_again(options.record, options.jobs)
        minutes = MINUTES if options.oracle_minutes is None else options.oracle_minutes
        shard, shards = map(int, options.shard.split("/"))
        places = places_of(options.files, shard, shards)
        return run_parts(
            options.run or PARTS,
            options.record,
            minutes,
            options.jobs,
            places,
            mode=REST if options.rest else "" if shard == 1 else "add",
        )
    if options.oracle_minutes is not None:
        return add_oracle(options.record, options.oracle_minutes, options.jobs)
    good, verdict = judge(options.record)
    print(verdict)
    return 1 if options.check and not good else 0


def judge(record: Path = RECORD, package: Path = PACKAGE) -> tuple[bool, str]:
    """Return whether ``record`` is a clean run of the sources in ``package``, and a line with the reason."""
    try:
        facts = read(record)
    except FileNotFoundError:
        return False, f"no GPU record: {record} does not exist"
    except ValueError as error:
        return False, f"no GPU record: {record}: {error}"
    run = f"{facts['device']}, cuDNN {facts['cudnn']}, {facts['date']}, {summary(facts)}"
    if facts["failed"] or facts["without_replays"]["failed"]:
        return False, f"the GPU record has failures: {run}"
    if not facts["passed"]:
        return False, f"the GPU record has no test that ran: {run}"
    if not facts["without_replays"]["passed"]:
        return False, f"the GPU record has no run without replays: {run}"
    if facts["oracle_findings"]:
        return False, f"the GPU record has findings of the oracle: {run}"
    if facts["oracle_calls"] < LEAST_ORACLE_CALLS:
        return False, f"the GPU record has fewer than {LEAST_ORACLE_CALLS:,} calls of the oracle: {run}"
    if facts["sources"] != hash_sources(package):
        return False, f"the GPU record belongs to other sources than those in {package.name}/: {run}"
    return True, f"the GPU record belongs to the present sources: {run}"


def read(record: Path) -> dict[str, Any]:
    """Read a record.

    Raises
    ------
    FileNotFoundError
        The record does not exist.
    ValueError
        The record is not JSON, or lacks a key.
    """
    facts = json.loads(record.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if not isinstance(facts, dict) or key not in facts]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return dict(facts)


def write(record: Path, counts: Mapping[str, int], failures: Sequence[str], sources: str) -> None:
    """Write the record of a run that has just ended in this process, or extend it if replays are off.

    Parameters
    ----------
    record : Path
    counts : mapping with ``passed``, ``failed`` and ``skipped``
    failures : sequence of str
        The ids of the tests that failed.
    sources : str
        The result of :func:`hash_sources` at the start of the run.

    Raises
    ------
    ValueError
        Replays are off, or this is not the first shard, and the record belongs to other sources. Or other
        tests ran than those that had failed.
    """
    mode = os.environ.get(MODE, "")
    if mode not in ("", REST) or not replays_are_on():
        facts = read(record)
        if facts["sources"] != sources:
            raise ValueError(f"{record} belongs to other sources: run the tests with replays first")
        _update(facts if replays_are_on() else facts["without_replays"], counts, failures, mode)
        record.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    oracle = {"oracle_calls": 0, "oracle_replays": 0, "oracle_seeds": [], "oracle_findings": 0}
    without = {"without_replays": {**dict.fromkeys(COUNTS, 0), FAILURES: []}}
    run = {**counts, FAILURES: list(failures)}
    values = {"date": date, **device_facts(), **run, **without, **oracle, "sources": sources}
    facts = {key: values[key] for key in KEYS}
    record.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _update(found: dict[str, Any], counts: Mapping[str, int], failures: Sequence[str], mode: str) -> None:
    """Replace the counts of a part of the record, add to them, or replace those of the failures."""
    kept = {name: 0 if mode in ("", REST) else found[name] for name in COUNTS}
    known = found[FAILURES] if mode == "add" else []
    if mode == AGAIN:
        if sum(counts.values()) != found["failed"]:
            raise ValueError(f"{found['failed']} tests had failed, and {sum(counts.values())} ran again")
        kept["failed"] = 0
    found |= {name: kept[name] + counts[name] for name in COUNTS}
    found[FAILURES] = [*known, *failures]


def places_of(files: Sequence[str], shard: int, shards: int) -> list[Path]:
    """Return the files of a shard of the GPU tier, or its folder."""
    folder = ROOT / "tests" / "gpu"
    if not files and shards == 1:
        return [folder]
    found = sorted(folder.glob("test_*.py"))
    return [one for one in found if not files or one.stem.removeprefix("test_") in files][shard - 1 :: shards]


def run_parts(
    parts: Sequence[str],
    record: Path,
    minutes: float,
    jobs: int,
    places: Sequence[Path],
    *,
    mode: str = "",
) -> int:
    """Make parts of the record in their order, and return the first exit status that is not 0.

    Importing the files of tests takes seconds. A file that cannot be imported would cost the whole run. Tests
    that must be alone on the device follow in a process of their own, because every other process would wait
    for the end of all running tests, and then for this one.
    """
    tests = [*_options(record, jobs), "-m", "not nightly and not alone"]
    alone = [*_options(record, 1), "-m", "alone and not nightly"]
    shared, more = _environ(mode, jobs), _environ(mode or "add")
    off = {"CUDNN_CT_REPLAY": "0"}
    runs = {
        "imports": [(["--collect-only", "-qq"], dict(os.environ))],
        "tests": [(tests, shared), (alone, more)],
        "without-replays": [(tests, shared | off), (alone, more | off)],
    }
    for part in (one for one in PARTS if one in parts):
        print(f"--- {part}", flush=True)
        if part == "oracle":
            status = add_oracle(record, minutes, jobs)
        else:
            pytest = [sys.executable, "-m", "pytest", *map(str, places)]
            each = [
                subprocess.run([*pytest, *given], cwd=ROOT, env=env).returncode for given, env in runs[part]
            ]
            status = next((one for one in each if one not in (0, NO_TESTS)), 0)
        if status:
            print(f"{part} failed: exit status {status}")
            return status
    print(judge(record)[1])
    return 0


def run_again(record: Path, jobs: int) -> int:
    """Run the tests that failed, with replays and without, and return the first exit status that is not 0."""
    facts = read(record)
    parts: tuple[tuple[dict[str, str], list[str]], ...]
    parts = (({}, facts[FAILURES]), ({"CUDNN_CT_REPLAY": "0"}, facts["without_replays"][FAILURES]))
    for environ, tests in (one for one in parts if one[1]):
        processes = min(jobs, len(tests))
        command = [sys.executable, "-m", "pytest", *tests, *_options(record, processes)]
        status = subprocess.run(command, cwd=ROOT, env=_environ(AGAIN, processes) | environ).returncode
        if status:
            return status
    print(judge(record)[1])
    return 0


def _options(record: Path, jobs: int) -> list[str]:
    shared = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    return [f"--gpu-record={record}", "-q", "-r", "fE", *shared]


def _environ(mode: str, jobs: int = 1) -> dict[str, str]:
    """Return the variables of a run, with the threads that the BLAS of each process may use.

    A plugin of pytest may import NumPy before `tests/conftest.py` sets them. Then each process starts threads
    for all cores, which wait for one another: `numpy.convolve` of 16,384 elements took 17 times as long.
    """
    limit = os.environ.get("CUDNN_CT_WORKSPACE_LIMIT", WORKSPACE_LIMIT)
    threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    each = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), threads)
    return {**os.environ, **each, MODE: mode, "CUDNN_CT_WORKSPACE_LIMIT": limit}


def add_oracle(record: Path, minutes: float, jobs: int) -> int:
    """Run the oracle with a new seed, add its counts to the record, and return its exit status."""
    facts = read(record)
    if facts["sources"] != hash_sources():
        print(f"{record} belongs to other sources: run pytest tests/gpu --gpu-record first")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "oracle.json"
        options = ["--minutes", str(minutes), "--jobs", str(jobs), "--json", str(report)]
        status = subprocess.run([sys.executable, "-m", "tests.oracle", *options], cwd=ROOT).returncode
        result = json.loads(report.read_text(encoding="utf-8"))
    facts["oracle_calls"] += result["calls"]
    facts["oracle_replays"] += result["replays"]
    facts["oracle_seeds"].append(result["seed"])
    facts["oracle_findings"] += len(result["findings"])
    record.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return status


def replays_are_on() -> bool:
    """Return whether the tests of this process replayed calls."""
    import cudnn_ct as ct

    return ct.config.replay


def device_facts() -> dict[str, str]:
    """Return the names and versions of the device, the driver, CUDA and cuDNN."""
    from cuda.bindings import driver
    from cuda.core import Device

    from cudnn_ct import _lib

    _, cuda = driver.cuDriverGetVersion()
    return {
        "device": Device().name,
        "driver": driver_release(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "cudnn": _lib.load().version_text,
    }


def driver_release(version_file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the release of the NVIDIA kernel module, such as 580.65.06, or "unknown"."""
    try:
        words = version_file.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def hash_sources(package: Path = PACKAGE) -> str:
    """Return a SHA-256 of the names and contents of all files of the packages except caches, in order."""
    files = {
        path.relative_to(package.parent).as_posix(): path
        for folder in (package, *(package.parent / name for name in BESIDE))
        for path in folder.rglob("*")
        if _is_source(path, folder)
    }
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        # Lengths separate the files, so that moving bytes from one file to the next changes the hash.
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def summary(counts: Mapping[str, Any]) -> str:
    """Return the outcome as text, such as ``312 passed, 0 failed, 4 skipped``."""
    tests = ", ".join(f"{counts[name]} {name}" for name in COUNTS)
    if "oracle_calls" not in counts:
        return tests
    without = f"{counts['without_replays']['passed']} passed without replays"
    return f"{tests}, {without}, {counts['oracle_calls']:,} calls of the oracle"


def _is_source(path: Path, package: Path) -> bool:
    parts = path.relative_to(package).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return path.is_file() and not hidden and path.suffix not in (".pyc", ".pyo")


if __name__ == "__main__":
    sys.exit(main())
