"""Measure what an installation downloads, what it takes on disk, and how long it and its first picture take.

python tools/install_sizes.py            # each set of libraries, in an environment of its own: minutes
python tools/install_sizes.py smallest

The downloads are counted as files, so that a cache of pip does not matter; the time depends on the network.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GB = 1e9

# The arguments of the installations, one after another.
SETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "smallest": ((f"{ROOT}[examples]",), ("--no-deps", "nvidia-cudnn-jit-cu12")),
    "jit-cu12": ((f"{ROOT}[jit-cu12,examples]",),),
    "jit-cu13": ((f"{ROOT}[jit-cu13,examples]",),),
    "cu12": ((f"{ROOT}[cu12,examples]",),),
}


def main() -> int:
    """Print a row for each set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sets", nargs="*", default=[], metavar="SET", help=f"of {', '.join(SETS)}; default: all"
    )
    chosen = parser.parse_args().sets or list(SETS)
    unknown = sorted(set(chosen) - set(SETS))
    if unknown:
        parser.error(f"unknown set: got {unknown[0]!r}, expected one of {', '.join(SETS)}")
    print(f"{'set':10}{'download':>12}{'disk':>10}{'time':>8}")
    for name in chosen:
        download, disk, seconds = measured(SETS[name])
        print(f"{name:10}{download / GB:9.2f} GB{disk / GB:7.2f} GB{seconds:6.0f} s", flush=True)
    return 0


def measured(installations: tuple[tuple[str, ...], ...]) -> tuple[int, int, float]:
    """Return the bytes that a set downloads and takes on disk, and the seconds until the picture is there."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, environment = Path(folder, "wheels"), Path(folder, "environment")
        start = time.monotonic()
        run(sys.executable, "-m", "venv", str(environment))
        python = str(environment / "bin" / "python")
        before = size_of(environment)
        for arguments in installations:
            run(python, "-m", "pip", "wheel", "-q", "-w", str(wheels), *arguments)
            named = [argument.replace(str(ROOT), "cudnn-ct") for argument in arguments]
            run(python, "-m", "pip", "install", "-q", "--no-index", "-f", str(wheels), *named)
        run(python, str(ROOT / "examples" / "01_quickstart.py"), cwd=folder)
        return size_of(wheels), size_of(environment) - before, time.monotonic() - start


def run(*command: str, cwd: str | None = None) -> None:
    """Run a command, without its output unless it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() or file.is_symlink())


if __name__ == "__main__":
    sys.exit(main())
