"""Descriptions of GPUs for planning without them: recorded ones, and ones derived from public sources.

``_gpus.json`` has four tables. ``recorded`` has descriptions that cuDNN wrote on the device. ``derived`` has
the properties of other GPUs, each with its source; ``capabilities`` the limits of their compute capability;
``assumed`` the remaining keys. A derived description was never compared with one that cuDNN wrote.
"""

from __future__ import annotations

from typing import Any

from .._gpus import table

DERIVED_NOTE = "described from public sources, not recorded on a device"


def is_derived(name: object) -> bool:
    """Return whether a name belongs to a description that was not recorded on a device."""
    return name in table()["derived"]


def description_of(name: str) -> dict[str, Any]:
    """Return the description of a GPU by its name, for a `graph.offline.Planner`."""
    tables = table()
    if not is_derived(name):
        return dict(tables["recorded"][name]["values"])
    row, limits = tables["derived"][name], tables["capabilities"]
    own = {"deviceName": row["deviceName"], "deviceVer": row["deviceVer"], **row["values"]}
    return {**tables["assumed"]["values"], **limits["all"], **limits[str(row["deviceVer"])], **own}
