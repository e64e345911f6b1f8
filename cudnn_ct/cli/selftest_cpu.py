"""The rows of a selftest without a GPU: checks of the parts of cuDNN that need none."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import CudnnError, NotSupportedError
from ..typing import Direction
from .errors import first_line
from .options import Convolution
from .selftest_report import FAILED, OK, SKIPPED, Outcome

__all__ = ["checks"]

Check = Callable[[], str]
"""Runs a check and returns its details, or raises `CudnnError`."""


def checks(device: dict[str, Any] | None) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield the checks by name; ``device`` describes the GPU to plan for."""
    yield "cuDNN loads", lambda: _attempt("cuDNN loads", _loads)
    yield "descriptors", lambda: _attempt("descriptors", _descriptors)
    yield "output shapes", lambda: _attempt("output shapes", _shapes)
    if device is None:
        reason = "--device FILE plans for a described GPU"
        yield "planning", lambda: Outcome("planning", SKIPPED, detail=reason)
    else:
        yield "planning", lambda: _attempt("planning", lambda: _planning(device), NotSupportedError)
    yield "doctor", lambda: _attempt("doctor", _doctor)


def _attempt(
    name: str, check: Check, dispensable: type[Exception] | tuple[type[Exception], ...] = ()
) -> Outcome:
    """Run a check; errors of the type ``dispensable`` mean that this version of cuDNN need not support it."""
    begin = time.monotonic()
    try:
        row = Outcome(name, OK, detail=check())
    except dispensable as error:
        row = Outcome(name, SKIPPED, detail=first_line(error))
    except CudnnError as error:
        row = Outcome(name, FAILED, detail=first_line(error))
    except Exception as error:  # a defect in one check must not hide the other checks
        row = Outcome(name, FAILED, detail=f"{type(error).__name__}: {first_line(error)}")
    return row._replace(seconds=time.monotonic() - begin)


def _loads() -> str:
    import cudnn_ct as ct
    from cudnn_ct import _lib
    from cudnn_ct.errors import format_version

    return f"cuDNN {format_version(ct.version())} at {_lib.load().path}"


def _descriptors() -> str:
    """Create a descriptor of each kind, and read it back."""
    import cudnn_ct as ct

    specs: dict[Any, list[Any]] = {
        ct.TensorDescriptor: [
            ct.TensorSpec.packed((2, 3, 4, 5), dtype, layout)
            for dtype in ("float16", "bfloat16", "float32", "float64", "int8")
            for layout in ("nchw", "nhwc")
        ],
        ct.FilterDescriptor: [ct.FilterSpec((8, 3, 3, 3), "float16", layout) for layout in ("nchw", "nhwc")],
        ct.ConvolutionDescriptor: [ct.ConvolutionSpec((1, 2), (2, 1), (1, 3), groups=2)],
        ct.ActivationDescriptor: [ct.ActivationSpec("relu"), ct.ActivationSpec("elu", 0.5)],
        ct.PoolingDescriptor: [ct.PoolingSpec((3, 2), (1, 0), (2, 2), "max")],
        ct.CTCLossDescriptor: [ct.CTCLossSpec("softmax", "skip", 100)],
        ct.LRNDescriptor: [ct.LRNSpec(5, 1e-4, 0.75, 2.0)],
        ct.OpTensorDescriptor: [ct.OpTensorSpec("mul")],
        ct.ReduceDescriptor: [ct.ReduceSpec("add")],
    }
    count = 0
    for kind, some in specs.items():
        for spec in some:
            with kind(spec) as made:
                read = made.read()
            if read != spec:
                raise CudnnError(f"{kind.__name__}: cuDNN has {read} for {spec}")
            count += 1
    return f"{count} created and read back"


def _shapes() -> str:
    """Compare the result shapes that this package computes with cuDNN's."""
    import cudnn_ct as ct
    from cudnn_ct import _lib

    library = _lib.load()
    geometries: tuple[dict[str, Any], ...] = (
        {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)},
        {"padding": (0, 2), "stride": (2, 1), "dilation": (1, 1)},
        {"padding": (3, 3), "stride": (1, 1), "dilation": (2, 3)},
    )
    x, w = (2, 6, 17, 23), (4, 6, 3, 5)
    image = ct.TensorDescriptor.cached(ct.TensorSpec.packed(x, "float32"))
    filters = ct.FilterDescriptor.cached(ct.FilterSpec(w, "float32"))
    shape = (ctypes.c_int * 4)()
    for geometry in geometries:
        with ct.ConvolutionDescriptor(ct.ConvolutionSpec(**geometry)) as descriptor:
            library.cudnnGetConvolutionNdForwardOutputDim(descriptor, image, filters, 4, shape)
        ours = ct.conv_output_shape(x, w, **geometry)
        _agree(f"convolution of {x} with {w}, {geometry}", ours, tuple(shape))
    for window, padding, stride in (((3, 3), (1, 1), (2, 2)), ((2, 4), (0, 1), (1, 3))):
        with ct.PoolingDescriptor(ct.PoolingSpec(window, padding, stride, "max")) as descriptor:
            library.cudnnGetPoolingNdForwardOutputDim(descriptor, image, 4, shape)
        ours = ct.pool_output_shape(x, window=window, padding=padding, stride=stride)
        _agree(f"pooling of {x} with a window of {window}", ours, tuple(shape))
    return f"{len(geometries)} convolutions and 2 poolings agree with cuDNN"


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


def _agree(what: str, ours: tuple[int, ...], theirs: tuple[int, ...]) -> None:
    if ours != theirs:
        raise CudnnError(f"{what}: cuDNN returns {theirs}, this package {ours}")
