"""Record the plans of a program, and exchange compiled plans with other machines as files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Never

from .. import _lib, context
from .._cache_files import as_path, read_file, replace_file
from .._hints import corrected, known_keywords
from ..array_shapes import only_shapes
from ..cuda import stream as streams
from ..errors import CudnnError, warn_caller
from ..shapes.checks import as_bool
from . import recording
from .plan_store import PlanStore, StoredPlan, decode, encode, folder_store, plan_store, why_not_imported
from .recording import RecordedPlans

MAX_FILE = 2 << 30  # bytes


@contextmanager
@known_keywords
def record_plans(*more: Never, shapes_only: bool | None = None, **unknown: Never) -> Iterator[RecordedPlans]:
    """Record the graphs that calls in a ``with`` block plan, in all threads, and their compiled plans.

    Parameters
    ----------
    shapes_only : bool, optional
        Whether calls run on shapes: nothing is allocated, planned or computed, and arrays have no elements.
        ``numpy()`` returns zeros. By default, if no GPU can be used.

    Yields
    ------
    RecordedPlans
        ``save(path)`` writes its graphs for ``cudnn-ct compile``, and :func:`export_plans` its compiled
        plans. ``len()`` is the number of graphs; ``skipped`` has the calls on shapes that have no graph, with
        the reason.

    Raises
    ------
    NotInitializedError
        ``shapes_only`` is False, and a call in the block needs a GPU.

    Notes
    -----
    A call that this thread prepared before the block is prepared again in it; a plan or a built graph that
    was made before it is not recorded. Engines that a benchmark only tries are not recorded. Operations
    without graphs, such as pooling, are not recorded. Dropout, CTC losses, ``conv_plan``
    and training passes of recurrent networks cannot run on shapes. Calls on arrays that were all made before
    the block are computed. After the block, calls and ``numpy()`` reject an array that was made on shapes.

    Examples
    --------
    >>> with ct.record_plans() as recorded:
    ...     y = ct.softmax(ct.zeros((2, 3)))
    >>> len(recorded)
    0
    """
    if more or unknown:
        corrected(record_plans, locals())
    shapes_only = not _gpus() if shapes_only is None else as_bool(shapes_only, "shapes_only")
    made = RecordedPlans(on_shapes=shapes_only)
    with ExitStack() as block:
        if shapes_only:
            block.enter_context(only_shapes())
        else:
            for one in context.local.contexts.values():
                one.calls.clear()  # prepared calls, which are prepared again
        block.enter_context(recording.into(made))
        yield made


def export_plans(path: str | os.PathLike[str], plans: RecordedPlans | None = None) -> int:
    """Write compiled plans to a file for other machines with this GPU and cuDNN, and return their number.

    Parameters
    ----------
    path : path
        The file to write; an existing one is replaced as a whole.
    plans : RecordedPlans, optional
        The plans of a recording on a GPU. By default all plans that are on disk or imported.

    Returns
    -------
    int
        0 if there are none, such as for calls of operations without graphs. The file is empty then, and
        :func:`import_plans` returns 0 for it.

    Raises
    ------
    OSError
        The file cannot be written.
    ValueError
        The recording has graphs without compiled plans, because its calls ran on shapes.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "plans.file")
    ...     with ct.record_plans() as recorded:
    ...         y = ct.softmax(ct.zeros((2, 3)))
    ...     exported, imported = ct.export_plans(path, recorded), ct.import_plans(path)
    """
    file = as_path(path)
    if not isinstance(plans, RecordedPlans | None):
        raise TypeError(f"plans is not a recording of record_plans: got {type(plans).__name__}")
    if plans is not None and plans.on_shapes and plans.requests:
        raise ValueError(
            "plans has no compiled plans, because its calls ran on shapes; save() its graphs and compile "
            "them by cudnn-ct compile"
        )
    entries = folder_store().entries() if plans is None else list(plans.plans.values())
    replace_file(file, b"".join(map(encode, entries)))
    return sum(bool(entry.text) for entry in entries)


def import_plans(path: str | os.PathLike[str], *, verify: bool = False) -> int:
    """Read a file of compiled plans; the first calls that use them do not compile.

    A plan that was recorded on a GPU of this kind also replaces a query of the heuristics. For one that was
    compiled without a GPU they are queried: it is used only if they name its engine first.

    A plan contains machine code that runs on the GPU with the rights of this process: import only files from
    a source that you trust. The plans are used whether ``config.plan_cache`` is on or not: then they are
    also written to disk for later processes, except those to ``verify``. Otherwise they stay in this process.

    Parameters
    ----------
    path : path
        A file of :func:`export_plans` or ``cudnn-ct compile``.
    verify : bool
        Compare the first result of each plan with that of another engine, on copies of the operands. A plan
        that computes other numbers is dropped with a warning. Only plans that agree are stored.

    Returns
    -------
    int
        The number of plans for this cuDNN and these GPUs. The other plans of the file are ignored, with one
        warning.

    Raises
    ------
    ValueError
        The file has another format, or all of its plans are damaged.
    PermissionError
        The file is world-writable.
    OSError
        It cannot be read.

    Examples
    --------
    As of :func:`export_plans`.
    """
    return sum(bool(entry.text) for entry in import_to(plan_store(), path, verify=verify))


def import_to(store: PlanStore, path: str | os.PathLike[str], *, verify: bool = False) -> list[StoredPlan]:
    """Import a file as :func:`import_plans` does, into a store, and return the entries that may be used."""
    file, verify = as_path(path), as_bool(verify, "verify")
    kept: dict[str, StoredPlan] = {}
    reasons: dict[str, int] = {}
    try:
        entries = list(decode(read_file(file, MAX_FILE)))
        if entries and all(isinstance(one, str) for one in entries):
            raise ValueError(entries[0])
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not a file of compiled plans: {error}") from None
    for found in entries:
        reason = found if isinstance(found, str) else _misfit(found)
        if isinstance(found, str) or reason:
            reasons[reason] = reasons.get(reason, 0) + 1
        elif found.text or found.from_device:  # calls do not use the choices for a described device
            kept[found.key] = found
    store.import_(kept, verify=verify)
    if reasons:
        count, reason = sum(reasons.values()), max(reasons, key=lambda one: reasons[one])
        warn_caller(f"{count} of {count + len(kept)} entries in {os.fspath(path)} are ignored: {reason}")
    return [*kept.values()]


def _misfit(entry: StoredPlan) -> str:
    """Return why an entry cannot be used by this cuDNN and these GPUs; empty if it may fit."""
    build, gpus = _lib.load().build, _gpus()
    parts = entry.key.split(" | ")[:4]
    if len(parts) < 4 or parts[0] not in ("plan", "kernels", "choice", "certificate"):
        return "the entry is malformed"
    made_by, gpu = parts[-2:] if parts[0] == "choice" else parts[-3:-1]
    if made_by != build:
        return f"made for {made_by}, this is {build}"
    if gpus and gpu not in gpus.values():
        return f"made for {gpu}, this is {', '.join(dict.fromkeys(gpus.values()))}"
    return why_not_imported(entry, [device for device, name in gpus.items() if name == gpu])


def _gpus() -> dict[int, str]:
    """Return the devices of this machine with their names; none without a driver."""
    try:
        return {device: streams.device_name(device) for device in range(streams.device_count())}
    except CudnnError:
        return {}
