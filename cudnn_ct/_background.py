"""Imports in a background thread while CUDA starts.

The driver takes 0.1 to 0.2 s to initialize and to create its first context, and runs no Python meanwhile. The
first operation of a process needs the modules below, whose imports take half of this time.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from importlib import import_module

MODULES = ("_bindings.functions", "_bindings.enums", "ops.conv.conv")  # with their own imports: most modules
_thread: threading.Thread | None = None  # that imports; None before it starts, and after it has finished


def begin() -> None:
    """Start to import the modules, if some of them are missing."""
    global _thread
    missing = [name for name in MODULES if f"{__package__}.{name}" not in sys.modules]
    if missing and _thread is None:
        thread = threading.Thread(target=_import, args=(missing,), name="cudnn_ct imports", daemon=True)
        with suppress(RuntimeError):  # no thread can be started: the modules are imported at their first use
            thread.start()
            _thread = thread


def finish(timeout: float | None = None) -> None:
    """Wait until the imports are complete, for at most ``timeout`` seconds.

    Callers wait before they import these modules themselves, and before a fork.
    """
    global _thread
    thread = _thread
    if thread is not None and thread is not threading.current_thread():
        thread.join(timeout)
        _thread = None


def _import(names: list[str]) -> None:
    with suppress(Exception):  # the first use of the module raises it again
        for name in names:
            import_module(f".{name}", __package__)
