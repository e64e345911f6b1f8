"""Which usual mistake explains that shapes or dtypes do not fit each other."""

from __future__ import annotations

Axes = tuple[int, ...]

_LARGE_WINDOW = 11  # most windows are smaller, and most images larger


def batch_hint(name: str, shape: Axes, axes: int) -> str:
    """Return how an operand gets a batch axis if it has one axis less than ``axes``; else nothing."""
    lacks = len(shape) == axes - 1
    return f"; {name} seems to have no batch axis: pass {name}.reshape{(1, *shape)}" if lacks else ""


def image_hint(name: str, shape: Axes, channels: int) -> str:
    """Return how an operand gets a batch axis, or its channels on axis 1; empty if neither explains it."""
    if len(shape) < 3 or shape[1] == channels:
        return ""
    if shape[-1] == channels:
        order = (0, len(shape) - 1, *range(1, len(shape) - 1))
        view = f"{name}.transpose{order} (permute in torch)"
        return f"; the channels seem to be on another axis: pass {view}"
    return batch_hint(name, shape, len(shape) + 1) if shape[0] == channels else ""


def swap_hint(first: str, second: str) -> str:
    """Return that two operands are swapped."""
    return f"; {first} and {second} seem to be swapped: {first} is the first operand"


def gradient_hint(names: tuple[str, ...], groups: object, *, x: Axes, w: Axes, y: Axes) -> str:
    """Return that two operands are swapped if shapes fit after they were; else nothing."""
    fits = isinstance(groups, int) and 1 < len(x) == len(w) == len(y) and y[1] == w[0] and _fits(x, w, groups)
    return swap_hint(*names[:2]) if fits else ""


def filter_hint(x: Axes, w: Axes, groups: int) -> str:
    """Return the correction after which filters of shape ``w`` fit ``x``; empty if none explains it.

    The corrections are a batch axis, axes in the order of other libraries, exchanged operands, and groups.
    """
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


def heads_hint(q: Axes, k: Axes) -> str:
    """Return that operands are (B, S, H, D) if heads then fit, and are fewer than the keys; else nothing."""
    fits = 0 < k[2] < k[1] and q[2] % k[2] == 0
    view = "q.transpose(0, 2, 1, 3), and k and v alike (permute in torch)"
    return f"; the operands seem to be (B, S, H, D): pass {view}" if fits else ""


def _is_square(w: Axes) -> bool:
    return len(set(w[2:])) == 1 < max(w[2:])


def _permuted(shape: Axes, order: Axes) -> Axes:
    return tuple(shape[axis] for axis in order)


def _fits(x: Axes, w: Axes, groups: int) -> bool:
    return x[1] == w[1] * groups and all(n >= k for n, k in zip(x[2:], w[2:], strict=True))


def cast_hint(**dtypes: str) -> str:
    """Return how one of two operands gets the dtype of the other; empty if they are not floats.

    The operand in float64 is cast, because that is NumPy's default dtype.
    """
    (first, one), (second, two) = dtypes.items()
    if not {one, two} <= {"float16", "bfloat16", "float32", "float64"}:
        return ""
    name, dtype = (first, two) if one == "float64" else (second, one)
    return f": pass {name}.astype({dtype!r})"
