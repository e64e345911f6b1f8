"""Compiled kernels of dynamic graphs in the store of compiled plans, for later processes.

A plan is stored for one size; the kernels of a dynamic graph serve all sizes. Versions of cuDNN that do not
count the kernels of a cache accept their JSON, too, and compile again, so that nothing is stored for them.
"""

from __future__ import annotations

from typing import Any

from ..context import Context
from ..errors import CudnnError
from .backend import BackendDescriptor
from .offline import Planner, gpu_name
from .plan_file import StoredPlan
from .plan_store import plan_store

PREFIX = "kernels"
UNKNOWN = 2**62  # kernels, of a cuDNN that does not count them


class KernelCache(BackendDescriptor):
    """Compiled kernels that dynamic graphs share which differ only in sizes.

    ``first`` is the name of the engine that the heuristics returned for the last size they were queried for,
    and its notes; ``stored`` is how many kernels the store has.
    """

    __slots__ = ("first", "key", "stored")

    def __init__(self, graph: BackendDescriptor, key: str, kernels: bytes | None = None) -> None:
        super().__init__(
            graph.library, "kernel_cache", operation_graph=graph, json_representation=kernels or None
        )
        self.first: tuple[str, tuple[str, ...]] | None = None
        self.key, self.stored = key, 0

    def entry(self, facts: dict[str, Any]) -> StoredPlan | None:
        """Return the kernels for the store; None if it has all of them, or this cuDNN does not count them."""
        try:
            count = self.one("entry_count") if self.stored < UNKNOWN else 0
            text = self.get("json_representation").encode() if count > self.stored else b""
        except CudnnError:  # it is not asked again
            count, text = UNKNOWN, b""
        self.stored = max(self.stored, count)
        return StoredPlan(self.key, {**facts, "first": self.first}, text) if text else None


def kernel_cache(graph: BackendDescriptor, topology: str, context: Context | Planner) -> KernelCache:
    """Return the kernels for dynamic graphs of a topology: of this thread, of the store, or none yet."""
    found: KernelCache | None = context.kernel_caches.get(topology)
    if found is None:
        key = f"{PREFIX} | cuDNN {context.library.version_text} | {gpu_name(context)} | {topology}"
        found = context.kernel_caches[topology] = _stored(graph, key) or KernelCache(graph, key)
    return found


def _stored(graph: BackendDescriptor, key: str) -> KernelCache | None:
    store = plan_store()
    entry = store.get(key)
    if entry is None:
        return None
    try:
        cache = KernelCache(graph, key, entry.text)
        cache.stored = cache.one("entry_count")
        first = entry.facts["first"]
        cache.first = first and (str(first[0]), tuple(map(str, first[1])))
    except (CudnnError, LookupError, TypeError) as error:
        reason, _, _ = str(error).partition("\n")
        store.discard(key, f"its kernels cannot be used: {type(error).__name__} {reason}")
        return None
    return cache
