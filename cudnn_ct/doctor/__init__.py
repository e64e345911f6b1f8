"""Finds out what is wrong with a cuDNN installation, with the standard library alone.

``diagnose(path)`` examines a cuDNN on disk, ``diagnose_process(pid)`` and ``here()`` what a process has
loaded; each answers with a `Diagnosis`. ``verdict_lines(path)`` says in a few lines what is wrong with one.
The command is ``cudnn-ct doctor``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import diagnose as diagnose
    from .diagnosis import verdict_lines as verdict_lines
    from .finding import Finding as Finding
    from .finding import Severity as Severity
    from .finding import codes as codes
    from .process import diagnose_process as diagnose_process
    from .process import here as here
    from .requirements import Demands as Demands
    from .requirements import lacks_code as lacks_code

# `_lib` imports this package only after a failure, and then needs one or two of the modules.
_MODULE_OF = {
    "Demands": "requirements",
    "Diagnosis": "diagnosis",
    "Finding": "finding",
    "Severity": "finding",
    "codes": "finding",
    "diagnose": "diagnosis",
    "diagnose_process": "process",
    "here": "process",
    "lacks_code": "requirements",
    "verdict_lines": "diagnosis",
}

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
