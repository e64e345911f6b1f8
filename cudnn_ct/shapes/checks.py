"""Checks of operands and parameters: numbers, names, dtypes, shapes and axes; hints in their errors."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from .._hints import word_hint
from ..dtypes import as_dtype
from .specs import INT_MAX, Shape, TensorSpec, check_shape, nearest_layout

Name = TypeVar("Name", bound=str)


def as_list(value: Any) -> Any:
    """Return a NumPy array of integers as a list, nested for its axes; other values as they are."""
    integers = isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iu"
    return value.tolist() if integers else value


def per_axis(value: Any, axes: int, name: str, minimum: int, other: str = "") -> Shape:
    """Return ``axes`` ints of at least ``minimum`` from one or all; ``other`` values are for the error."""
    value = as_list(value)
    given = value if isinstance(value, Sequence) else (value,) * axes
    try:
        numbers = tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(f"{name} must be an int or a tuple of {axes} ints{other}: got {value!r}") from None
    if len(numbers) != axes:
        raise ValueError(f"{name} {value!r} has {len(numbers)} numbers; the window has {axes} axes")
    for n in numbers:
        if not minimum <= n <= INT_MAX:
            raise ValueError(f"{name} must be between {minimum} and {INT_MAX}: got {value!r}")
    return numbers


def as_choice(value: Any, allowed: tuple[Name, ...], name: str) -> Name:
    """Return one of ``allowed``, from its name or from an enum member of that name."""
    text = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(text, str) or text.lower() not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(allowed)}: got {value!r}{word_hint(value, allowed)}"
        )
    return text.lower()  # type: ignore[return-value]  # it is one of them


def as_bool(value: Any, name: str) -> bool:
    """Return a bool, 0, 1 or NumPy bool as a bool; reject other values, which a cache key would keep."""
    if isinstance(value, bool):
        return value
    if isinstance(value, np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} must be True or False: got {value!r}")


def as_int(value: Any, name: str) -> int:
    """Return a Python int, a NumPy integer or another index as an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int: got {value!r}") from None


def as_ints(values: Any, name: str) -> Shape:
    """Return a sequence of integers as a tuple of ints, which may be negative."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers: got {values!r}") from None


def as_float(value: Any, name: str) -> float:
    if isinstance(value, str):
        raise TypeError(f"{name} must be a number: got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a float: got a number above 1.8e308") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number: got {value!r}") from None


def as_element(value: Any, dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """Return a real number as an array of one element, cast to ``dtype``."""
    size = 1
    try:
        item = np.asarray(value)
        size = item.size
        if size == 1 and value is not None and item.dtype.kind not in "cSUmM":
            return item.reshape(1).astype(dtype)
    except OverflowError:
        raise ValueError(f"{name} is too large for {dtype}") from None
    except (TypeError, ValueError):  # NumPy cannot convert it to a number
        pass
    if size != 1:
        raise ValueError(f"{name} must be one number: got {size}")
    raise TypeError(f"{name} must be a real number: got {value!r}")


FLOATS = ("float16", "bfloat16", "float32", "float64")
_SEVERAL = (tuple, list)  # the types of `out` for all results


def one_dtype(operation: str, allowed: tuple[str, ...] = FLOATS, /, **dtypes: Any) -> str:
    """Return the name of the dtype that all named tensors share; it must be one of ``allowed``."""
    names = {tensor: as_dtype(dtype).name for tensor, dtype in dtypes.items()}
    (first, one), *others = names.items()
    for tensor, name in others:
        if name != one:
            hint = cast_hint(**{first: one, tensor: name})
            raise TypeError(
                f"{first} is {one} and {tensor} is {name}; {operation} needs one dtype for all{hint}"
            )
    if one not in allowed:
        raise TypeError(f"{operation} takes {', '.join(allowed)}, not {one}")
    return one


def same_shape(**shapes: Shape) -> Shape:
    (first, one), *others = shapes.items()
    for tensor, shape in others:
        if tuple(shape) != tuple(one):
            raise ValueError(f"{tensor} has shape {tuple(shape)}; {first} has {tuple(one)}")
    return tuple(one)


def expect_rank(spec: TensorSpec, name: str, *ranks: int) -> None:
    """Raise unless a tensor has one of these numbers of axes."""
    if len(spec.shape) not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ValueError(f"{name} has the wrong rank: got shape {spec.shape}, expected {wanted} axes")


def expect_shape(spec: TensorSpec, name: str, shape: Shape) -> None:
    if spec.shape != shape:
        raise ValueError(f"{name} has the wrong shape: got {spec.shape}, expected {shape}")


def expect_dtype(spec: TensorSpec, name: str, *dtypes: str) -> None:
    if spec.dtype not in dtypes:
        raise TypeError(f"{name} has the wrong dtype: got {spec.dtype}, expected {' or '.join(dtypes)}")


def check_images(shape: Iterable[int], name: str = "x") -> Shape:
    """Return a shape (N, C, *spatial) with 1 to 3 spatial axes as a tuple of ints."""
    dims = check_shape(shape, f"{name}_shape")
    if not 3 <= len(dims) <= 5:
        expected = f"expected (N, C, *spatial) with 1 to 3 spatial axes{batch_hint(name, dims, 3)}"
        raise ValueError(f"{name} has shape {dims}; {expected}")
    return dims


def result_spec(
    shape: Shape, *operands: TensorSpec, out: TensorSpec | None = None, name: str = "out", dtype: str = ""
) -> TensorSpec:
    """Return ``out`` if it is given and fits, else a packed spec in the `nearest_layout` of the operands."""
    dtype = dtype or operands[0].dtype
    if out is None:
        return TensorSpec.packed(shape, dtype, nearest_layout(*operands) if 3 <= len(shape) <= 5 else "nchw")
    if out.dtype != dtype:
        raise TypeError(f"{name} is {out.dtype}; the result is {dtype}")
    if out.shape != shape:
        raise ValueError(f"{name} has shape {out.shape}; the result has {shape}")
    return out


def packed_result(shape: Shape, dtype: str, out: TensorSpec | None, name: str = "out") -> TensorSpec:
    """Return ``out`` if it is given and fits, else a spec in C order, in which cuDNN writes some results."""
    return result_spec(shape, out=out or TensorSpec.packed(shape, dtype), name=name, dtype=dtype)


def result_specs(
    names: Iterable[str], outs: Iterable[TensorSpec | None], shape: Shape, like: TensorSpec, dtype: str = ""
) -> list[TensorSpec]:
    """Return the specs of further results of one shape, each by :func:`result_spec`, as many as ``outs``."""
    pairs = zip(names, outs, strict=False)
    return [result_spec(shape, like, out=out, name=f"{name} of out", dtype=dtype) for name, out in pairs]


def result_slots(out: Any, names: Sequence[str], *, absent: str = "", count: int = 1) -> tuple[Any, ...]:
    """Return the array given for each result by ``out``: one array for the first, or a tuple for all.

    ``absent`` is the reason why the last ``count`` results do not exist; their places are None, or missing.
    """
    kept = len(names) - (count if absent else 0)
    if out is None:  # most calls
        return (None,) * kept
    if not isinstance(out, _SEVERAL):
        if kept:
            return (out, *(None,) * (kept - 1))
    elif len(out) == kept:
        return tuple(out)
    return slots_of(out, {name: absent if place >= kept else "" for place, name in enumerate(names)})


def slots_of(out: Any, absent: dict[str, str]) -> tuple[Any, ...]:
    """Return the array given for each result that exists; ``absent`` has the reason for each of the others.

    A result that does not exist is None in a tuple, or left out at its end.
    """
    reasons = list(absent.values())
    outs = list(out) if isinstance(out, _SEVERAL) else [out, *[None] * (len(absent) - 1)]
    count = len(outs)
    while len(outs) < len(absent) and reasons[len(outs)]:
        outs.append(None)
    if len(outs) != len(absent):
        raise ValueError(f"out has {count} arrays; the results are {', '.join(absent)}")
    for (name, reason), given in zip(absent.items(), outs, strict=True):
        if reason and given is not None:
            raise ValueError(f"out has {name}, but {reason}")
    return tuple(given for given, reason in zip(outs, reasons, strict=True) if not reason)


def some_axes(axes: Any, rank: int, name: str) -> Shape:
    """Return an int or a sequence of ints as a tuple of distinct axes, counted from 0."""
    try:
        axes = as_list(axes)
        given = tuple(map(operator.index, axes if isinstance(axes, Sequence) else (axes,)))
    except TypeError:
        raise TypeError(f"{name} must be an int or a tuple of ints: got {axes!r}") from None
    if given and not rank:
        raise ValueError(f"{name} is out of range: got {axes!r}, but the tensor has no axes")
    for axis in given:
        if not -rank <= axis < rank:
            raise ValueError(f"{name} is out of range: got {axes!r}, expected {-rank} to {rank - 1}")
    found = tuple(axis % rank for axis in given)
    if len(set(found)) < len(found):
        raise ValueError(f"{name} contains an axis twice: got {axes!r}, expected distinct axes")
    return found


# --- hints: which usual mistake explains that operands do not fit ------------------------------------------

_LARGE_WINDOW = 11  # most windows are smaller, and most images larger


def batch_hint(name: str, shape: Shape, axes: int) -> str:
    """Return how an operand gets a batch axis if it has one axis less than ``axes``; else nothing."""
    lacks = len(shape) == axes - 1
    return f"; {name} seems to have no batch axis: pass {name}.reshape{(1, *shape)}" if lacks else ""


def image_hint(name: str, shape: Shape, channels: int) -> str:
    """Return how an operand gets a batch axis, or its channels on axis 1; empty if neither explains it."""
    if len(shape) < 3 or shape[1] == channels:
        return ""
    if shape[-1] == channels:
        order = (0, len(shape) - 1, *range(1, len(shape) - 1))
        view = f"{name}.transpose{order} (permute in torch)"
        return f"; the channels seem to be on another axis: pass {view}"
    return batch_hint(name, shape, len(shape) + 1) if shape[0] == channels else ""


def swap_hint(first: str, second: str) -> str:
    return f"; {first} and {second} seem to be swapped: {first} is the first operand"


def gradient_hint(names: tuple[str, ...], groups: object, *, x: Shape, w: Shape, y: Shape) -> str:
    """Return that two operands are swapped if shapes fit after they were; else nothing."""
    fits = isinstance(groups, int) and 1 < len(x) == len(w) == len(y) and y[1] == w[0] and _fits(x, w, groups)
    return swap_hint(*names[:2]) if fits else ""


def filter_hint(x: Shape, w: Shape, groups: int) -> str:
    """Return the correction after which filters of shape ``w`` fit ``x``; empty if none explains it."""
    # The corrections are a batch axis, axes in the order of other libraries, exchanged operands, and groups.
    if min(len(x), len(w)) < 2:
        return ""
    if len(w) != len(x):
        return batch_hint("x", x, len(w)) if x[0] == w[1] * groups else ""
    if w[1] == 1 and x[1] and w[0] % x[1] == 0:
        return f"; write groups={x[1]} for a depthwise convolution"
    axes = len(x) - 2
    as_is, last = tuple(range(axes + 2)), (0, axes + 1, *range(1, axes + 1))
    first = (axes + 1, axes, *range(axes))  # (*window, C, K), as of JAX and TensorFlow
    for x_order, w_order in ((as_is, last), (as_is, first), (last, as_is), (last, last), (last, first)):
        if _is_square(w) and not _is_square(_permuted(w, w_order)):  # windows are squares for the most part
            continue
        if _fits(_permuted(x, x_order), _permuted(w, w_order), groups):
            wrong = [pair for pair in (("x", x_order), ("w", w_order)) if pair[1] != as_is]
            views = " and ".join(f"{name}.transpose{order}" for name, order in wrong)
            if x_order == as_is and _fits(_permuted(x, last), _permuted(w, w_order), groups):  # x is a square
                views += f", and x.transpose{last} if the channels of x are on its last axis"
            return f"; the channels seem to be on another axis: pass {views} (permute in torch)"
    if _fits(w, x, groups):
        both = x[1] == w[1] * groups and max(w[2:], default=0) <= _LARGE_WINDOW
        return "; or x and w are swapped: x is the first operand" if both else swap_hint("x", "w")
    return ""


def heads_hint(q: Shape, k: Shape) -> str:
    """Return that operands are (B, S, H, D) if heads then fit, and are fewer than the keys; else nothing."""
    fits = 0 < k[2] < k[1] and q[2] % k[2] == 0
    view = "q.transpose(0, 2, 1, 3), and k and v alike (permute in torch)"
    return f"; the operands seem to be (B, S, H, D): pass {view}" if fits else ""


def _is_square(w: Shape) -> bool:
    return len(set(w[2:])) == 1 < max(w[2:])


def _permuted(shape: Shape, order: Shape) -> Shape:
    return tuple(shape[axis] for axis in order)


def _fits(x: Shape, w: Shape, groups: int) -> bool:
    return x[1] == w[1] * groups and all(n >= k for n, k in zip(x[2:], w[2:], strict=True))


def cast_hint(**dtypes: str) -> str:
    """Return how one of two operands gets the dtype of the other; empty if they are not floats."""
    # The operand in float64 is cast, because that is NumPy's default dtype.
    (first, one), (second, two) = dtypes.items()
    if not {one, two} <= {"float16", "bfloat16", "float32", "float64"}:
        return ""
    name, dtype = (first, two) if one == "float64" else (second, one)
    return f": pass {name}.astype({dtype!r})"
