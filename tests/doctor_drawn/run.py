"""Run the doctor on a site in a child process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.doctor_drawn.sites import Site

(PACKAGE,) = find_spec("cudnn_ct").submodule_search_locations  # type: ignore[union-attr,misc]
ROOT = Path(PACKAGE).parent
# Variables of this process that the doctor would read.
READ = ("LD_", "CUDA", "CUDNN", "CONDA", "VIRTUAL_ENV", "PYTHON", "NVIDIA", "PIP_", "CI", "NO_COLOR")


@dataclass
class Answer:
    """The doctor's exit code and report; ``report`` is empty if it printed no JSON."""

    code: int
    report: dict[str, Any]
    error: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Findings that make a difference: errors and warnings, the first one first."""
        return [each for each in self.report.get("findings", []) if each["severity"] != "note"]


Runner = Callable[[Site], Answer]


@cache
def _folder() -> TemporaryDirectory[str]:
    """A folder with the packages alone: next to an installed package there is a cuDNN."""
    folder = TemporaryDirectory()
    for name in ("cudnn_ct", "cudnn_doctor"):
        Path(folder.name, name).symlink_to(ROOT / name)
    return folder


def environment(site: Site) -> dict[str, str]:
    """The variables of the child process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(READ)}
    own = {"PYTHONDONTWRITEBYTECODE": "1", **site.environment, "PYTHONPATH": _folder().name}
    if site.linker:
        own["LD_LIBRARY_PATH"] = f"{own.get('LD_LIBRARY_PATH', '')}:{site.linker}".lstrip(":")
    return {**kept, **own}


def command(site: Site, *flags: str) -> list[str]:
    """The command line of the doctor for a site."""
    subject = [] if site.subject is None else [str(site.subject)]
    return [*site.wrap, site.python, "-m", "cudnn_doctor", "--strict", *flags, *site.flags, *subject]


def limit(memory: int | None) -> None:
    """Set the address space of the child, and let no crash write a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def ask(site: Site) -> Answer:
    """Run the doctor and read its JSON."""
    done = subprocess.run(
        command(site, "--json"), env=environment(site), cwd=site.work or site.root, timeout=300, check=False,
        capture_output=True, text=True, errors="replace", preexec_fn=lambda: limit(site.memory),
    )  # fmt: skip
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = {}
    return Answer(done.returncode, report, done.stderr[-2000:])


def text(site: Site) -> str:
    """The report for people."""
    done = subprocess.run(
        command(site), env=environment(site), cwd=site.work or site.root, timeout=300, check=False,
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    return done.stdout + done.stderr
