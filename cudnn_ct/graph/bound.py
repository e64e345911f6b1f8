"""Compiled kernels that hold numbers of the GPU which compiled them, and are stored for that GPU alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..context import Context
from ..cuda import device as devices
from ..facts import Fact, Target, facts, ignores
from .offline import Planner, target_of, target_of_device
from .plan_file import StoredPlan
from .plan_store import PlanStore

UNIT = "unit"  # the UUID of that GPU, among the facts of an entry


def marked(entry: StoredPlan, context: Context | Planner) -> StoredPlan | str:
    """Return an entry for the store; if its kernels are bound to the GPU, with that GPU and the key of it.

    Returns the reason if they are, and were compiled for a GPU that is only described.
    """
    if isinstance(context, Context) and _fact(entry.text, target_of(context)):
        facts_of = {**entry.facts, UNIT: devices.device_uuid(context.device)}
        entry = entry._replace(key=_own_key(entry.key, context), facts=facts_of)
    return why_elsewhere(entry.text, entry.facts, context) or entry


def key_here(store: PlanStore, key: str, context: Context | Planner) -> str:
    """Return the key of the entry for this GPU alone if there is one, else that for all GPUs of its kind."""
    # Machines may share a folder: with one entry, each of their GPUs would drop that of the others.
    if isinstance(context, Context) and facts("stored", "all", target_of(context)):
        own = _own_key(key, context)
        if store.get(own) is not None:
            return own
    return key


def _own_key(key: str, context: Context) -> str:
    end = f" | {UNIT} {devices.device_uuid(context.device)}"
    return key if key.endswith(end) else key + end


def why_elsewhere(text: bytes, facts_of: Mapping[str, Any], context: Context | Planner) -> str:
    """Return why kernels in cuDNN's JSON must not be used on a GPU; empty if they may be."""
    device = context.device if isinstance(context, Context) else None
    reason = _reason(text, facts_of, target_of(context), device)
    return reason and f"its kernels must be compiled on the GPU that runs them: {reason}"


def why_not_imported(entry: StoredPlan, devices_of_kind: Iterable[int]) -> str:
    """Return why no device may use the kernels of an entry; empty if one may, or if there is none."""
    reasons = [
        _reason(entry.text, entry.facts, target_of_device(device), device) for device in devices_of_kind
    ]
    return f"compiled elsewhere: {reasons[0]}" if reasons and all(reasons) else ""


def _reason(text: bytes, facts_of: Mapping[str, Any], target: Target, device: int | None) -> str:
    fact = _fact(text, target)
    if fact is None or (device is not None and facts_of.get(UNIT) == devices.device_uuid(device)):
        return ""
    return fact.reason


def _fact(text: bytes, target: Target) -> Fact | None:
    for fact in facts("stored", "all", target):
        if fact.row["kernels"].encode() in text and not ignores(fact.name):
            return fact
    return None
