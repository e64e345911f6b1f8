"""Whether cuDNN can be used, and types, checks and conversions of arguments.

Operations and descriptors check those that they are created with: a row for each type of a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from cudnn_ct import _lib
from cudnn_ct import typing as types
from cudnn_ct._algorithm_names import checked_name
from cudnn_ct._config import config
from cudnn_ct.array import DeviceArray
from cudnn_ct.array_creation import as_operand
from cudnn_ct.availability import available
from cudnn_ct.cuda import stream as streams
from cudnn_ct.dtypes import as_dtype
from cudnn_ct.errors import CudnnError, LibraryLoadError, VersionMismatchError, warn_caller
from cudnn_ct.ops._operands import stream_of
from cudnn_ct.ops.tensor import transform
from cudnn_ct.plans.base import Candidate
from cudnn_ct.shapes.checks import FLOATS, as_choice, as_float, as_int
from cudnn_ct.shapes.conv import PADDINGS
from cudnn_ct.shapes.norm import check_epsilon
from cudnn_ct.shapes.specs import INT_MAX
from cudnn_ct.typing import Algo, ArrayLike, Padding, PerAxis
from cudnn_doctor.read.installation import header_version
from cudnn_doctor.read.versions import version_number

# --- whether cuDNN can be used -----------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

_DISABLED = "the flag dnn.enabled is False"


def version(raises: bool = True) -> int:
    """Return the version of cuDNN as an integer: 92700 is 9.27.0. See :func:`cudnn_ct.version`."""
    raises = checked_flag(raises, "raises")
    try:
        if config.dnn.enabled == "False":
            raise LibraryLoadError(_DISABLED)
        found = _lib.version()
    except LibraryLoadError as error:
        if not raises:
            return -1
        text = f"We can't determine the cudnn version as it is not available: {error}"
        raise RuntimeError(text) from error
    include, base = config.dnn.include_path, config.dnn.base_path  # those next to the library agree with it
    path = Path(include or Path(base or "", "include"), "cudnn_version.h")
    if include and not path.is_file():
        raise CudnnError(f"the flag dnn.include_path has no cudnn_version.h: got {include}")
    header = header_version(path) if (include or base) and path.is_file() else None
    number = header and version_number(header)
    if number not in (None, found):
        raise VersionMismatchError(
            f"Mixed dnn version. The header is version {number} while the library is version {found}. "
            f"({path})"
        )
    return found


class _Present:
    """Return whether cuDNN can be loaded, without a device. See :func:`cudnn_ct.version`."""

    msg: str | None = None

    def __call__(self) -> bool:
        if config.dnn.enabled == "no_check":
            self.msg = "not checked, because the flag dnn.enabled is no_check"
            return True
        try:
            version()
            self.msg = None
        except RuntimeError as error:
            self.msg = str(error)
        return _judged(self.msg)


class _Available:
    """Return whether cuDNN can be used on a device. See :func:`cudnn_ct.available`."""

    msg: str | None = None

    def __call__(self, context_name: int | str | None = None) -> bool:
        device = check_context(context_name)
        try:
            present = dnn_present()
        finally:
            self.msg = dnn_present.msg
        if not present or config.dnn.enabled == "no_check":
            return present
        self.msg = available().reason or None
        if self.msg is None and device is not None and device >= streams.device_count():
            self.msg = f"device {device} does not exist: the driver shows {streams.device_count()}"
        return _judged(self.msg)


dnn_present = _Present()
dnn_available = _Available()


def run(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an operation if the flag ``dnn.enabled`` allows it; raise RuntimeError if not.

    If the flag is True, cuDNN must be usable.
    """
    enabled = config.dnn.enabled
    if enabled == "False":
        raise RuntimeError(f"cuDNN is not used: {_DISABLED}")
    if enabled == "True":
        dnn_available()
    return operation(*args, **kwargs)


def checked_flag(value: object, name: str) -> bool:
    """Return a flag as a bool.

    Numbers are rejected, 0 and 1 too: in the argument order of the older module, an epsilon or a factor
    stands where the later module has a flag.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name} is not a bool: got {value!r}, expected True or False; pass parameters that only the "
            "older module has (epsilon, running_average_factor, workmem) by keyword"
        )
    return bool(value)


def check_context(name: int | str | None) -> int | None:
    """Return the number of the device that a context name contains."""
    if name is None:
        return None
    found = re.fullmatch(r"(?:dev|cuda|gpu)?(\d+)", str(name)) if isinstance(name, Integral | str) else None
    if found is None:
        raise ValueError(f"context_name is not a device: got {name!r}, expected 0, 'dev0' or 'cuda0'")
    return int(found[1])


def _judged(problem: str | None) -> bool:
    if problem is not None and config.dnn.enabled == "True":
        raise RuntimeError(f"You enabled cuDNN, but we aren't able to use it: {problem}")
    return problem is None


# --- arguments ---------------------------------------------------------------------------------------------

Sizes: TypeAlias = PerAxis | NDArray[np.integer[Any]]
"""A shape or one integer per axis; Theano's programs also pass NumPy arrays."""

Border: TypeAlias = Padding | NDArray[np.integer[Any]]
Epsilon: TypeAlias = float
Factor: TypeAlias = float

# Theano's names.
TheanoConvMode: TypeAlias = Literal["conv", "cross"]
DirectionHint: TypeAlias = Literal["bprop weights", "bprop inputs", "forward", "forward!"]
TheanoNormMode: TypeAlias = Literal["per-activation", "spatial"]
RNNInputMode: TypeAlias = Literal["linear", "skip"]
SoftmaxFormat: TypeAlias = Literal["bc01"]
TheanoReduceOp: TypeAlias = Literal["add", "mul", "minimum", "maximum", "absmax", "avg", "norm1", "norm2"]

Check = Callable[[Any, str], Any]
"""Takes a value and the name of its parameter; returns the value to keep, or raises."""


class Checked:
    """An operation or a descriptor whose arguments are checked when it is created."""

    def __post_init__(self) -> None:
        check_arguments(self)


def check_arguments(operation: Any) -> None:
    """Replace each argument of a new operation by its checked value; raise if it is not valid.

    The algorithms of an operation with a ``direction`` are those of convolutions in that direction.
    """
    for field in fields(operation):
        value = getattr(operation, field.name)
        if field.type == "Algo | None":
            checked = _algorithm(value, field.name, operation.direction)
        else:
            checked = check_of(str(field.type))(value, field.name)
        setattr(operation, field.name, checked)


def check_of(annotation: str) -> Check:
    """Return the check for the type of a field: that of its row, or for the strings of a Literal."""
    if annotation in CHECKS:
        return CHECKS[annotation]
    if annotation.endswith(" | None"):
        return _optional(check_of(annotation.removesuffix(" | None")))
    words = get_args(globals().get(annotation) or getattr(types, annotation))
    return lambda value, name: as_choice(value, words, name)


def _optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def _algorithm(algo: Any, name: str, direction: str) -> Any:
    if algo is None or isinstance(algo, Candidate):
        return algo
    text = algo if isinstance(algo, str) else getattr(algo, "name", None)
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a name or a Candidate: got {algo!r}")
    try:
        return checked_name(text, direction)
    except ValueError as error:
        raise ValueError(f"{name} is not valid for {direction}: got {text!r}, {error}") from None


def _count(value: Any, name: str, minimum: int = 1) -> int:
    number = as_int(value, name)
    if not minimum <= number <= INT_MAX:
        raise ValueError(f"{name} must be between {minimum} and {INT_MAX}: got {value!r}")
    return number


def _numbers(value: Any, name: str, minimum: int = 1) -> Any:
    """Return an int, or a sequence of an int for each axis."""
    value = integers(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _count(value, name, minimum)
    return tuple(_count(number, name, minimum) for number in value)


def _axes(value: Any, name: str) -> Any:
    value = integers(value)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else as_int(value, name)


def _border(value: Any, name: str) -> Any:
    """Return a word, an int, or for each axis an int or a pair (before, after)."""
    value = integers(value)
    if isinstance(value, str):
        return as_choice(value, PADDINGS, name)
    if not isinstance(value, Sequence):
        return _count(value, name, 0)
    return tuple(_numbers(side, name, 0) for side in value)


def _factor(value: Any, name: str) -> float:
    factor = as_float(value, name)
    if not 0 <= factor <= 1:
        raise ValueError(f"{name} must be between 0 and 1: got {value!r}")
    return factor


def _context(value: Any, name: str) -> Any:  # noqa: ARG001 - the error names the parameter
    check_context(value)
    return value


CHECKS: dict[str, Check] = {
    "bool": checked_flag,
    "int": _count,
    "int | str | None": _context,
    "Sizes": _numbers,
    "Sizes | None": _optional(_axes),
    "Border": _border,
    "Epsilon": lambda value, _: check_epsilon(value),
    "Factor": _factor,
    "DTypeLike": lambda value, name: as_choice(as_dtype(value).name, FLOATS, name),
    "DTypeLike | None": _optional(lambda value, _: as_dtype(value).name),
}


# --- conversions -------------------------------------------------------------------------------------------


def integers(value: Any) -> Any:
    """Return a NumPy array of integers as a list, or as an int if it has no axes; anything else unchanged.

    A list is a snapshot: changing the array later has no effect.
    """
    return value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" else value


def on_device(array: ArrayLike, name: str) -> DeviceArray:
    """Return an argument as a DeviceArray, without a copy."""
    return as_operand(array, name, stream_of(array, name, None))


def copied(array: ArrayLike, name: str) -> DeviceArray:
    """Return a copy of an array."""
    return run(transform, on_device(array, name))


def overwritten(target: ArrayLike, result: DeviceArray) -> DeviceArray:
    """Copy a result to an operand, for operations that cuDNN does not compute in place."""
    return run(transform, result, out=target)


def algorithm(algo: Algo | None, workmem: str | None) -> Algo | None:
    """Return the algorithm, which may be given as the deprecated ``workmem``."""
    if workmem is None:
        return algo
    warn_caller(f"workmem is deprecated; write algo={workmem!r}", DeprecationWarning)
    if algo is not None:
        raise ValueError(
            f"workmem and algo are the same argument: got {workmem!r} and {algo!r}; pass algo alone"
        )
    return workmem
