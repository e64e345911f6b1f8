"""What a graph is planned for: the device of a context's handle, or a device that is only described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from .. import _lib
from ..cuda import device as devices
from ..errors import NotInitializedError
from .backend import BackendDescriptor

__all__ = ["Planner", "compute_capability", "target"]

# cuDNN 9.27 refuses a description that lacks these, and what 9.19 writes does. The values are ones that cuDNN
# accepts; they were set by hand, not read from a device.
_LATER_KEYS = {"smCountOrigin": 0, "oversizedSharedMemoryPerBlock": 0, "memoryBusWidth": 6144}


class Planner:
    """Stands where a context stands, for planning without the device: a cuDNN, and a device's description.

    Heuristics, engines, workspace sizes and plans need no more than that. Needs cuDNN >= 9.8.

    Parameters
    ----------
    description : mapping, or path of a JSON file
        What cuDNN writes as the properties of a device; see :func:`describe_device`.

    Raises
    ------
    VersionMismatchError, BadParamError
        This cuDNN is too old to plan without a device, or refuses the description.

    Examples
    --------
    ::

        planner = Planner("tests/devices/h200-cudnn-9.19.json")
        graph.candidates(problem, planner)
    """

    def __init__(self, description: Mapping[str, Any] | str | Path) -> None:
        given = description if isinstance(description, Mapping) else _read(description)
        self.description = {**_LATER_KEYS, **given}
        self.library = _lib.load()
        text = json.dumps(self.description).encode()
        self.properties = BackendDescriptor(self.library, "deviceprop", json_representation=text)

    @property
    def handle(self) -> NoReturn:
        """There is none: a plan made here can be looked at, and runs nowhere."""
        raise NotInitializedError(f"{self!r} only plans; running needs the device itself")

    def __repr__(self) -> str:
        return f"<Planner for {self.description.get('deviceName', 'an unnamed device')}>"


def _read(path: str | Path) -> dict[str, Any]:
    return dict(json.loads(Path(path).read_text(encoding="utf-8")))


def target(context: Any, kind: str) -> dict[str, Any]:
    """Which attribute tells a descriptor of a kind what it is for, and its value.

    A handle goes into graphs and plans; the properties of a device go into heuristics, engines and plans.
    """
    if isinstance(context, Planner):
        return {} if kind == "operationgraph" else {"deviceprop": context.properties}
    return {"handle": context.handle} if kind in ("operationgraph", "execution_plan") else {}


def compute_capability(context: Any) -> tuple[int, int]:
    """The architecture that a graph is planned for; (0, 0) if a described device does not say."""
    if isinstance(context, Planner):
        major, minor = divmod(context.description.get("deviceVer", 0), 100)
        return major, minor // 10
    return devices.compute_capability(context.device)


def describe_device(context: Any) -> str:
    """Write the properties of a context's device as JSON, for a :class:`Planner` elsewhere. cuDNN >= 9.8."""
    properties = BackendDescriptor(context.library, "deviceprop", handle=context.handle)
    return str(properties.get("json_representation"))
