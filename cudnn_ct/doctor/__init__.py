"""The package `cudnn_doctor` under its old name, with the same modules."""

import sys
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import cudnn_doctor

if TYPE_CHECKING:
    from cudnn_doctor import Diagnosis as Diagnosis
    from cudnn_doctor import Finding as Finding
    from cudnn_doctor import Requirements as Requirements
    from cudnn_doctor import Severity as Severity
    from cudnn_doctor import codes as codes
    from cudnn_doctor import diagnose as diagnose
    from cudnn_doctor import diagnose_process as diagnose_process
    from cudnn_doctor import here as here
    from cudnn_doctor import lacks_code as lacks_code
    from cudnn_doctor import verdict_lines as verdict_lines

__all__ = cudnn_doctor.__all__

if not TYPE_CHECKING:
    if sys.version_info >= (3, 8):  # older versions can run `__main__` alone, which says so
        for _found in iter_modules(cudnn_doctor.__path__):
            if not _found.ispkg and _found.name != "__main__":
                with suppress(ImportError):  # this Python may lack a module, such as ctypes
                    _module = import_module(f".{_found.name}", "cudnn_doctor")
                    sys.modules[f"{__name__}.{_found.name}"] = _module

    def __getattr__(name: str) -> Any:
        return getattr(cudnn_doctor, name)
