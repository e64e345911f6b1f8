"""Whether operations can run here."""

from __future__ import annotations

from . import _lib, array_shapes
from .cuda import stream as streams
from .errors import CudnnError, CudnnWarning


class Availability:
    """Result of :func:`available`, not constructed by users: true, or false with ``reason`` in one line."""

    __slots__ = ("reason",)

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return not self.reason

    def __repr__(self) -> str:
        return f"Availability({'yes' if self else self.reason!r})"


def available() -> Availability:
    """Return whether operations can run on the current device, without raising.

    Returns
    -------
    Availability
        True with a cuDNN whose parts and header have one version, its libcublasLt, a driver that is new
        enough and a device that this cuDNN has code for. Otherwise false, and ``reason`` is one line. The
        device is that of ``ct.use``, or the current one. True where calls run on shapes.

    Examples
    --------
    >>> operations = ct if ct.available() else ct.reference
    """
    if array_shapes.active():
        return Availability()
    try:
        _lib.version()
        library = _lib.load()
        if not streams.device_count():
            return Availability("the CUDA driver shows no device; check CUDA_VISIBLE_DEVICES")
        driver, wanted = streams.driver_version() // 1000, library.cuda_version // 1000
        if driver < wanted:
            return Availability(
                f"the driver supports CUDA {driver}, this cuDNN was built for CUDA {wanted}; "
                f"update the driver or install nvidia-cudnn-cu{driver}"
            )
        device = streams.current_stream().device
        if lacking := library.lacks_code(streams.compute_capability(device)):
            return Availability(f"device {device} is not supported: {lacking}")
        library.cudnnCreate  # noqa: B018 - binds the function, which needs libcublasLt
    except (CudnnError, CudnnWarning) as error:  # a warning if warnings are errors
        return Availability(str(error).splitlines()[0])
    return Availability()
