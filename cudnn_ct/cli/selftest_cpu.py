"""The rows of a selftest without a GPU: checks of the parts of cuDNN that need none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cudnn_ct as ct

from .. import _lib
from ..errors import CudnnError, format_version
from ..typing import Direction
from .options import Convolution
from .selftest_report import FAILED, OK, SKIPPED, Outcome, outcome_of

__all__ = ["checks"]


def checks(device: dict[str, Any] | None) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield the checks by name; ``device`` describes the GPU to plan for."""
    yield "cuDNN loads", lambda: _outcome("cuDNN loads", _loads)
    yield "descriptors", lambda: _outcome("descriptors", _descriptors)
    if device is None:
        reason = "--device FILE plans for a described GPU"
        yield "planning", lambda: Outcome("planning", SKIPPED, detail=reason)
    else:
        yield "planning", lambda: _outcome("planning", lambda: _planning(device))
    yield "doctor", lambda: _outcome("doctor", _doctor)


def _outcome(name: str, check: Callable[[], str]) -> Outcome:
    """Run a check, which returns its details."""
    row = Outcome(name, FAILED)
    return outcome_of(row, lambda row: row._replace(verdict=OK, detail=check()), may_lack=name == "planning")


def _loads() -> str:
    return f"cuDNN {format_version(ct.version())} at {_lib.load().path}"


def _descriptors() -> str:
    """Create a descriptor of each kind, and read it back."""
    specs: dict[Any, Any] = {
        ct.TensorDescriptor: ct.TensorSpec.packed((2, 3, 4, 5), "float16", "nhwc"),
        ct.FilterDescriptor: ct.FilterSpec((8, 3, 3, 3), "float16", "nhwc"),
        ct.ConvolutionDescriptor: ct.ConvolutionSpec((1, 2), (2, 1), (1, 3), groups=2),
        ct.ActivationDescriptor: ct.ActivationSpec("elu", 0.5),
        ct.PoolingDescriptor: ct.PoolingSpec((3, 2), (1, 0), (2, 2), "max"),
        ct.CTCLossDescriptor: ct.CTCLossSpec("softmax", "skip", 100),
        ct.LRNDescriptor: ct.LRNSpec(5, 1e-4, 0.75, 2.0),
        ct.OpTensorDescriptor: ct.OpTensorSpec("mul"),
        ct.ReduceDescriptor: ct.ReduceSpec("add"),
    }
    for kind, spec in specs.items():
        with kind(spec) as made:
            read = made.read()
        if read != spec:
            raise CudnnError(f"{kind.__name__}: cuDNN has {read} for {spec}")
    return f"{len(specs)} created and read back"


def _planning(device: dict[str, Any]) -> str:
    """Plan a convolution in each direction; a sound cuDNN has an engine for each."""
    from .offline import plan

    directions: tuple[Direction, ...] = ("forward", "backward_data", "backward_filter")
    wanted = [
        Convolution((8, 64, 28, 28), (64, 64, 3, 3), dtype, "nhwc", direction, 1)
        for direction in directions
        for dtype in ("float16", "float32")
    ]
    found = plan(device, wanted)
    for one, rows in zip(wanted, found, strict=True):
        if all(row.rejected for row in rows):
            why = rows[0].rejected if rows else "unknown reason"
            raise CudnnError(f"no engine for {one.direction} in {one.dtype}: {why}")
    engines = sum(not row.rejected for rows in found for row in rows)
    return f"{engines} engines for {len(wanted)} convolutions on {device.get('deviceName', 'the device')}"


def _doctor() -> str:
    """Run the doctor on the cuDNN of this machine, even if it cannot be loaded."""
    from .._find import find_cudnn
    from ..doctor import diagnose
    from ..doctor.finding import Severity
    from ..doctor.report import verdict

    diagnosis = diagnose(find_cudnn().path)
    errors = [found for found in diagnosis.findings if found.severity == Severity.ERROR]
    if diagnosis.exit_code():
        raise CudnnError("; ".join(f"{found.code}: {found.message}" for found in errors))
    return verdict(diagnosis)
