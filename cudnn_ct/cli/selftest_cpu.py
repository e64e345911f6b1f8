"""The rows of a selftest without a GPU: checks of the parts of cuDNN that need none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cudnn_ct as ct

from .. import _lib
from .._find import find_cudnn
from ..doctor import diagnose
from ..doctor.finding import Severity
from ..doctor.report import verdict
from ..errors import CudnnError
from .selftest_report import FAILED, OK, Outcome, outcome_of


def checks() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield the checks by name."""
    for name, check in {"cuDNN loads": _loads, "descriptors": _descriptors, "doctor": _doctor}.items():
        yield name, partial(outcome_of, Outcome(name, FAILED), partial(_passed, check), may_lack=False)


def _passed(check: Callable[[], str], row: Outcome) -> Outcome:
    """Run a check, which returns its details."""
    return row._replace(verdict=OK, detail=check())


def _loads() -> str:
    ct.version()  # raises for a header of another version
    return f"cuDNN {_lib.load().version_text} at {_lib.load().path}"


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


def _doctor() -> str:
    """Run the doctor on the cuDNN of this machine, even if it cannot be loaded."""
    diagnosis = diagnose(find_cudnn().path)
    errors = [found for found in diagnosis.findings if found.severity == Severity.ERROR]
    if diagnosis.exit_code():
        raise CudnnError("; ".join(f"{found.code}: {found.message}" for found in errors))
    return verdict(diagnosis)
