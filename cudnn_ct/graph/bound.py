"""Compiled kernels that hold numbers of the GPU which compiled them, and are stored for that GPU alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..context import Context
from ..cuda import device as devices
from ..facts import Fact, facts, ignores
from .offline import Planner, target_of
from .plan_file import StoredPlan

UNIT = "unit"  # the UUID of that GPU, among the facts of an entry


def marked(entry: StoredPlan, context: Context | Planner) -> StoredPlan | str:
    """Return an entry for the store, with the GPU of its kernels if they are bound to it.

    Returns the reason if they are, and were compiled for a GPU that is only described.
    """
    if isinstance(context, Context) and _fact(entry.text, context):
        entry = entry._replace(facts={**entry.facts, UNIT: devices.device_uuid(context.device)})
    return why_elsewhere(entry.text, entry.facts, context) or entry


def why_elsewhere(text: bytes, facts_of: Mapping[str, Any], context: Context | Planner) -> str:
    """Return why kernels in cuDNN's JSON must not be used on a GPU; empty if they may be."""
    fact = _fact(text, context)
    if fact is None:
        return ""
    if isinstance(context, Context) and facts_of.get(UNIT) == devices.device_uuid(context.device):
        return ""
    return f"its kernels must be compiled on the GPU that runs them: {fact.reason}"


def _fact(text: bytes, context: Context | Planner) -> Fact | None:
    for fact in facts("stored", "all", target_of(context)):
        if fact.row["kernels"].encode() in text and not ignores(fact.name):
            return fact
    return None
