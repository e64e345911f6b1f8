"""The device that a graph is planned for: that of a context, or a device that is only described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cudnn_doctor.read.files import text_of

from .. import _lib, array_shapes
from .._bindings import GENERATED_FROM
from .._caches import BoundedDict
from .._lib import Library
from ..context import KERNEL_CACHES, Context
from ..cuda import stream as streams
from ..errors import LibraryNotFoundError
from ..facts import Target
from .plan import BackendDescriptor

__all__ = [
    "Planner",
    "ShapesOnly",
    "compute_capability",
    "describe_device",
    "gpu_name",
    "name_of_description",
    "target",
    "target_of",
    "target_of_device",
]

# cuDNN 9.27 rejects a description without these keys, which 9.19 does not write. The values were set by hand,
# not read from a device.
_LATER_KEYS = {"smCountOrigin": 0, "oversizedSharedMemoryPerBlock": 0, "memoryBusWidth": 6144}


class Planner:
    """Replaces a context, to plan without a device: a cuDNN and the description of a device.

    This suffices for heuristics, engines, workspace sizes and plans, with cuDNN >= 9.8. ``description`` has
    the properties of a device that :func:`describe_device` writes, as a mapping or the path of a JSON file.

    Raises
    ------
    VersionMismatchError, BadParamError
        This cuDNN is too old to plan without a device, or rejects the description.
    """

    def __init__(self, description: Mapping[str, object] | str | Path) -> None:
        given = description
        if not isinstance(given, Mapping):
            given = json.loads(text_of(given))
        self.description: dict[str, Any] = {**_LATER_KEYS, **given}
        self.library = _lib.load()
        self.kernel_caches = BoundedDict(KERNEL_CACHES)
        text = json.dumps(self.description).encode()
        self.properties = BackendDescriptor(self.library, "deviceprop", json_representation=text)

    def __repr__(self) -> str:
        return f"<Planner for {self.description.get('deviceName', 'an unnamed device')}>"


def target(context: Context | Planner, kind: str) -> dict[str, object]:
    """Return the attribute that states the device of a descriptor of a kind, and its value."""
    # Graphs and plans take a handle; heuristics, engines and plans take the properties of a device.
    if isinstance(context, Planner):
        return {} if kind == "operationgraph" else {"deviceprop": context.properties}
    return {"handle": context.handle} if kind in ("operationgraph", "execution_plan") else {}


class ShapesOnly:
    """Replaces a context where no GPU is: graphs are recorded, and nothing is planned or run."""

    device = 0

    def __init__(self, *, replaceable: bool = False) -> None:
        self.replaceable = replaceable  # whether another engine replaces a named one that is not usable

    @property
    def library(self) -> Library:
        """Return cuDNN; known defects and the graphs of attention depend on its version."""
        return _lib.load()


def compute_capability(context: Context | Planner | ShapesOnly) -> tuple[int, int]:
    """Return the architecture that a graph is planned for; (0, 0) if it is unknown."""
    if isinstance(context, ShapesOnly):
        return 0, 0
    if isinstance(context, Planner):
        return capability_of(context.description)
    return streams.compute_capability(context.device)


def target_of(context: Context | Planner | ShapesOnly | None) -> Target:
    """Return the cuDNN and the GPU of a context, for which facts are selected; None stands for all GPUs."""
    # Without a cuDNN, calls on shapes follow the facts about the version of the bindings.
    if isinstance(context, Context):  # most targets: without further calls
        capability: tuple[int, int] | None = streams.compute_capability(context.device)
    else:
        capability = None if context is None else compute_capability(context)
    try:
        library = _lib.load() if context is None else context.library
    except LibraryNotFoundError:
        if not array_shapes.active():
            raise
        return Target(GENERATED_FROM, capability=capability)
    return Target(library.version, library.kind, capability)


def target_of_device(device: int) -> Target:
    """Return the loaded cuDNN and a device of this machine, which need not have a context."""
    library = _lib.load()
    return Target(library.version, library.kind, streams.compute_capability(device))


def gpu_name(context: Context | Planner) -> str:
    """Return the name that identifies the kind of a device, as `cuda.stream.device_name` does."""
    if not isinstance(context, Planner):
        return streams.device_name(context.device)
    return name_of_description(context.description)


def capability_of(description: Mapping[str, object]) -> tuple[int, int]:
    """Return the compute capability of a described device; (0, 0) if it is unknown."""
    return divmod(int(str(description.get("deviceVer", 0))) // 10, 10)


def name_of_description(found: Mapping[str, object]) -> str:
    """Return the name that identifies the kind of a device that is described."""
    major, minor = capability_of(found)
    return f"{found.get('deviceName', '')}, {found.get('multiProcessorCount')} SMs, {major}.{minor}"


def describe_device(context: Context) -> str:
    """Return the properties of a context's device as JSON for a :class:`Planner`. Needs cuDNN >= 9.8."""
    properties = BackendDescriptor(context.library, "deviceprop", handle=context.handle)
    return str(properties.get("json_representation"))
