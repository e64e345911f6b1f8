"""Spreads the processes of a test run over the GPUs of a machine: each has another first GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

__all__ = ["rotated", "use_gpu", "visible"]


def use_gpu(process: int, count: int | None = None) -> None:
    """Give this process another first GPU than the next ones have. CUDA must not be initialised yet.

    ``count`` is the number of GPUs that the process sees, by default all. Libraries such as jax make a
    context on each GPU that they see.
    """
    names = visible()
    if len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(rotated(names, process)[:count])


def rotated(names: Sequence[str], process: int) -> list[str]:
    """Return the names of GPUs from that of a process on."""
    first = process % len(names)
    return [*names[first:], *names[:first]]


def visible() -> list[str]:
    """Return the GPUs that CUDA uses; empty if nothing lists those of the machine."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return given.split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, _ in enumerate(listed.stdout.splitlines())]
