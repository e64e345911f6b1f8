"""Descriptions of GPUs for planning without them: recorded ones, and ones derived from public sources.

``gpus.json`` of `cudnn_doctor.read` has four tables. ``recorded`` has descriptions that cuDNN wrote on the
device, ``derived`` the properties of other GPUs, each with its source; ``capabilities`` the limits of their
compute capability; ``assumed`` the remaining keys. No derived one was ever compared with one of cuDNN.
"""

from __future__ import annotations

from typing import Any

from cudnn_doctor.read.gpus import table

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
