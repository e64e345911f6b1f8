"""Processes of their own: for imports, broken installations and commands, and to keep this one as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cudnn_ct

ROOT = Path(__file__).resolve().parents[1]
# The package under test, which may be installed elsewhere, and the tests.
PATHS = (str(Path(cudnn_ct.__file__).parents[1]), str(ROOT))
PYTHONPATH = os.pathsep.join(filter(None, [*PATHS, os.environ.get("PYTHONPATH", "")]))

Done = subprocess.CompletedProcess[str]


def environment(without: tuple[str, ...] = (), **more: object) -> dict[str, str]:
    """Return the environment of this process with changes, in which a child finds the same package."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return kept | {"PYTHONPATH": PYTHONPATH} | {name: str(value) for name, value in more.items()}


def run_python(
    *words: object,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 300,
    without: tuple[str, ...] = (),
    **more: object,
) -> Done:
    """Run Python with arguments, and with variables of the environment by name."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment(without, **more),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_command(*words: object, **how: Any) -> Done:
    """Run ``cudnn-ct`` with arguments."""
    return run_python("-m", "cudnn_ct", *words, **how)


def output_of(*words: object, **how: Any) -> str:
    """Run Python; return its output, after checking that it succeeded."""
    done = run_python(*words, **how)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr[-4000:]}"
    return done.stdout


def answer_of(code: str, *options: object, **how: Any) -> Any:
    """Run code; return the last JSON value that it printed."""
    return json.loads(output_of(*options, "-c", code, **how).splitlines()[-1])
