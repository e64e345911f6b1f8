"""Certificates of engines in the store of compiled plans, whose files and exports they share.

A certificate says that the results of an engine for a structure of graphs agreed with a second opinion, that
they were wrong, or how many results 20 equal runs had. It holds for one build of cuDNN and one GPU.
``shipped.txt`` has those of training fusions of common networks; ``tools/certificates.py`` makes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from math import gcd
from typing import Any, NamedTuple, Self

from cudnn_doctor.read import files as _files

from .._caches import BoundedDict
from ..autotune.benchmark import ScratchResults
from ..context import Context
from ..cuda import memory as memories
from ..dtypes import GRAPH_DTYPES
from ..errors import NotInitializedError
from ..graph import recording
from ..graph.offline import gpu_name
from ..graph.operations import Graph, Node, Tensor, tensors_of_graph
from ..graph.plan_store import DEVICE, StoredPlan, folder_store, plan_store
from ..plans.base import Plan, tensors_of
from ..shapes.specs import ALIGNMENT, TensorSpec

PREFIX = "certificate"
SHIPPED = "cudnn_ct/certify/shipped.txt"
MAX_KNOWN = 16_384


class Certificate(NamedTuple):
    """Knowledge about an engine for a structure: one of `_VERDICTS`, and how it was found."""

    verdict: str
    finding: str

    @classmethod
    def of_entry(cls, entry: StoredPlan) -> Self | None:
        """Return the certificate in an entry of the store; None if the entry is malformed."""
        found = entry.facts.get("certificate")
        if not isinstance(found, dict):
            return None
        verdict, finding = found.get("verdict"), found.get("finding")
        if verdict not in _VERDICTS or not isinstance(finding, str):
            return None
        return cls(verdict, finding)


_VERDICTS = ("right", "wrong", "deterministic", "varies")
_known = BoundedDict(MAX_KNOWN)  # by key


def certificate_key(context: Context, engine: str, about: str) -> str:
    """Return all that a certificate depends on, as text: ``about`` is a structure or a problem."""
    return f"{PREFIX} | {context.library.build} | {gpu_name(context)} | {engine} | {about}"


def find(key: str) -> Certificate | None:
    """Return the certificate for a key: of this process, an imported file, the folder, or this package; None
    if none exists."""
    known: Certificate | None = _known.get(key)
    if known is not None:
        return known
    entry = plan_store().get(key) or folder_store().get(key)
    found = Certificate.of_entry(entry) if entry is not None else None
    if entry is None and digest(key) in _shipped():
        found = Certificate("right", "it agreed when it was tested for this package")
    if found is not None:  # a missing one may still be imported
        _known[key] = found
    return found


def digest(key: str) -> str:
    """Return the text that stands for a key in the certificates of the package."""
    return sha256(key.encode()).hexdigest()[:16]


@cache
def _shipped() -> frozenset[str]:
    """Return the digests of the keys of certificates that the package has."""
    return frozenset(_files.resource(SHIPPED).splitlines())


def keep(key: str, certificate: Certificate, **more: Any) -> None:
    """Keep a certificate for this process and for later ones; ``more`` are facts for a report, as JSON."""
    _known[key] = certificate
    entry = StoredPlan(key, {"certificate": {**certificate._asdict(), **more}, "origin": DEVICE})
    recording.note_entry(entry)
    folder_store().put(entry)


def forget() -> None:
    """Drop what this process knows, so that the folder is read again."""
    _known.clear()


def wrong_engines() -> list[dict[str, Any]]:
    """Return the facts about engines that computed wrong results on this machine, for a report."""
    found = []
    for entry in folder_store().entries():
        certificate = Certificate.of_entry(entry) if entry.key.startswith(f"{PREFIX} | ") else None
        if certificate is not None and certificate.verdict == "wrong":
            _, library, gpu, engine, structure = entry.key.split(" | ", 4)
            given = {"cudnn": library.removeprefix("cuDNN "), "gpu": gpu, "engine": engine}
            found.append({**given, "structure": structure, **entry.facts["certificate"]})
    return found


# --- structure ---------------------------------------------------------------------------------------------

TILE = 64  # elements; lengths with the same common divisor with it are in one class
OCTAVES = 2  # lengths from one power of 4 to the next are in one class


def structure_of(graph: Graph) -> str:
    """Return the structure of a graph as text: all of it that decides whether an engine computes it right."""
    # Wrong results of engines depend on kinds of nodes, dtypes, layouts, and on whether lengths are odd,
    # multiples of vectors and tiles, or large. Graphs with the same structure share a certificate. Values of
    # float constants are left out, except for their class: 0, 1, negative, infinite or another one.
    tensors = tensors_of_graph(graph)
    number = {uid: place for place, uid in enumerate(tensors)}
    rows = [_tensor(tensor, number) for tensor in tensors.values()]
    dynamic = " dynamic" if graph.dynamic else ""
    return f"{_plain(graph.nodes, number)} of {', '.join(rows)}{dynamic}"


def _plain(value: Any, number: dict[int, int]) -> str:
    """Return an attribute as text, with tensors by their numbers."""
    if isinstance(value, Tensor):
        return f"t{number[value.uid]}"
    if isinstance(value, Node):
        given = ", ".join(f"{name}={_plain(one, number)}" for name, one in value.attributes.items())
        return f"{value.row}({given})"
    if isinstance(value, Graph):
        return _plain(value.nodes, number)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_plain(one, number) for one in value)}]"
    return repr(value)


def _tensor(tensor: Tensor, number: dict[int, int]) -> str:
    facts = [tensor.spec.dtype]
    if tensor.value is not None:
        return f"{tensor.spec.dtype} {_kind_of_value(tensor.value)}"
    facts += ["virtual"] if tensor.virtual else []
    facts += ["scratch"] if tensor.scratch else []
    facts += [f"as t{number.get(tensor.same_memory_as, '?')}"] if tensor.same_memory_as else []
    facts += [f"ragged by {_plain(tensor.ragged, number)}"] if tensor.ragged is not None else []
    facts += [tensor.reordering] if tensor.reordering else []
    return f"{' '.join(facts)} {_layout(tensor.spec)}"


def _layout(spec: TensorSpec) -> str:
    """Return the class of each length, the order of the axes in memory, gaps, and aligned strides."""
    shape, strides, dtype = spec
    lengths = "x".join(map(_length, shape))
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    order = "".join(str(axis) for axis in sorted(axes, key=lambda axis: (-strides[axis], axis)))
    itemsize = GRAPH_DTYPES[dtype].itemsize or 1
    aligned = [gcd(strides[axis] * itemsize, ALIGNMENT) for axis in axes if strides[axis] != 1]
    gaps = "" if spec.is_dense else " with gaps"
    return f"{lengths} order {order or '-'} steps {min(aligned, default=ALIGNMENT)}{gaps}"


def _length(length: int) -> str:
    """Return the class of a length: its magnitude, and its common divisor with a tile."""
    return str(length) if length < 2 else f"{(length.bit_length() - 1) // OCTAVES}d{gcd(length, TILE)}"


def _kind_of_value(value: float) -> str:
    if value in (0, 1):
        return str(int(value))
    if value in (float("inf"), float("-inf")):
        return "infinite"
    return "negative" if value < 0 else "positive"


# --- whether the bits of results vary ----------------------------------------------------------------------

# Engines that add by atomic operations do not always say so. A plan is run on random operands of its own:
# sums of equal or of small whole numbers have the same bits in any order.
RUNS = 20
# In half precision, the rounding of a result hides most differences of its sum: about one element of this
# number has other bits in another run. More runs replace elements, as far as they take this time.
HIDDEN = {"float16": 20_000, "bfloat16": 160_000, "float8_e4m3": 160_000, "float8_e5m2": 160_000}
MAX_RUNS = 2_000
BEFORE = 4  # at most so many runs follow one another without waiting
SECONDS = 0.5
SEED = 20_011
PERIOD = 1_000_003  # elements after which random numbers repeat: a prime, so that rows differ
INTEGERS = ("int32", "int64", "bool")  # lengths, offsets or indices: random ones might be out of bounds


def why_varying(problem: Any, engine: str, plan: Plan, context: Context) -> str:
    """Return why a plan is not deterministic for a problem; empty if it is, or cannot be measured.

    The certificate of this or an earlier process is used if one exists. Otherwise the plan is run 20 times,
    and the host waits for the results; NotInitializedError is raised if the stream is captured.
    """
    specs = list(getattr(problem, "in_order", tensors_of(problem).values()))
    results = len(problem.results)
    if any(spec.dtype in INTEGERS for spec in specs[: len(specs) - results]):
        return ""
    key = certificate_key(context, engine, f"bits of {type(problem).__name__} {problem!r}")
    if (known := find(key)) is None:
        if context.capturing:
            raise NotInitializedError(
                f"whether {engine} is deterministic is to be measured in a call that is captured: make the "
                "same call once before capturing it"
            )
        count, runs = _count_results(problem, specs, results, plan, context)
        verdict = "deterministic" if count == 1 else "varies"
        known = Certificate(verdict, f"{count} different results in {runs} runs")
        keep(key, known)
    return "" if known.verdict == "deterministic" else f"not deterministic: {known.finding}"


def _count_results(
    problem: Any, specs: Sequence[TensorSpec], results: int, plan: Plan, context: Context
) -> tuple[int, int]:
    """Run a plan on random operands until its results differ; return the number of results, and of runs."""
    stream = context.stream
    operands = [
        _random_operand(spec, seed, stream) for seed, spec in enumerate(specs[: -results or None], SEED)
    ]
    try:
        scratch = ScratchResults(problem, [*(start for _, start in operands), *[0] * results], stream)
        found, runs = set[bytes](), 0
        # So many runs should show a difference in one of the results.
        needed = max(HIDDEN.get(spec.dtype, 0) * 3 // max(spec.size, 1) for spec in problem.results)
        wanted, end = max(RUNS, min(needed, MAX_RUNS)), time.monotonic() + SECONDS
        while runs < RUNS or (len(found) == 1 and runs < wanted and time.monotonic() < end):
            # A kernel alone on the device may always take its blocks in one order: others run just before it.
            def run(times: int = 1 + runs % BEFORE) -> None:
                for _ in range(times):
                    plan.run(context, scratch.pointers, 1.0, 0.0)

            contents = scratch.computed_by(run)
            found.add(sha256(b"".join(content.tobytes() for content in contents)).digest())
            runs += 1
        return len(found), runs
    finally:
        context.drop_workspace()


def _random_operand(spec: TensorSpec, seed: int, stream: Any) -> tuple[Any, int]:
    """Return memory with random numbers for a tensor, and the address of its first element."""
    import numpy as np

    low, high = spec.extent
    dtype = GRAPH_DTYPES[spec.dtype].numpy
    numbers = np.random.default_rng(seed).standard_normal(min(high - low, PERIOD), np.float32)
    with np.errstate(all="ignore"):
        content = np.resize(numbers, high - low).astype(dtype)
    buffer = memories.allocate(max(content.nbytes, 1), stream, "a random operand")
    memories.copy_from_host(buffer.handle, content, stream)
    return buffer, buffer.handle - low * content.itemsize
