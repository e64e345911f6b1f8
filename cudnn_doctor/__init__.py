"""Diagnose a cuDNN installation; needs only the standard library, and imports nothing of cudnn_ct.

``diagnose(path)`` examines a cuDNN on disk, ``diagnose_process(pid)`` and ``here()`` the libraries that a
process has loaded; each returns a `Diagnosis`. ``verdict_lines(path)`` returns a line for each defect.
The command is ``cudnn-ct doctor`` or ``python -m cudnn_doctor``. The loader of cudnn_ct reads files with
the modules of ``read``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import Requirements as Requirements
    from .checks import lacks_code as lacks_code
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import diagnose as diagnose
    from .diagnosis import verdict_lines as verdict_lines
    from .finding import Finding as Finding
    from .finding import Severity as Severity
    from .finding import codes as codes
    from .process import diagnose_process as diagnose_process
    from .process import here as here

__version__ = "0.1.0"  # of cudnn_ct too, which is in the same wheel

# The loader of `cudnn_ct` imports `read`, and one or two of the other modules only after a failure.
_NAMES = {
    "checks": ("Requirements", "lacks_code"),
    "diagnosis": ("Diagnosis", "diagnose", "verdict_lines"),
    "finding": ("Finding", "Severity", "codes"),
    "process": ("diagnose_process", "here"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
