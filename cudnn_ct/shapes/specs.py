"""Values: specs of descriptors, the memory layouts of tensors, and the form of problems."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from .._hints import word_hint
from ..dtypes import DType, as_dtype
from ..typing import Activation, ConvMode, DTypeLike, Layout, OpTensorOp, ReduceOp

T = TypeVar("T")  # the arrays in a named tuple of results: of this library, of another, or of NumPy
P = TypeVar("P")  # the parameters of a layer
C = TypeVar("C", bound=type)
Shape = tuple[int, ...]

LAYOUTS: tuple[Layout, ...] = ("nchw", "nhwc")

ALIGNMENT = 16  # bytes; engines of the graph API use loads of this width
UNALIGNED = ALIGNMENT - 1  # the bits of an address that are 0 if it is aligned

CHANNELS_LAST_DTYPES = ("float16", "bfloat16", "int8")  # tensor cores are fastest with NHWC

INT_MAX = 2**31 - 1  # cuDNN's descriptors take C ints

PoolingMode = Literal[
    "max", "average_count_include_padding", "average_count_exclude_padding", "max_deterministic"
]
"""The names of `cudnnPoolingMode_t`."""

MAX_AXES = 8  # CUDNN_DIM_MAX: axes of a descriptor


class TensorSpec(NamedTuple):
    """Shape, strides (in elements, not bytes) and dtype name of a tensor.

    >>> TensorSpec.packed((8, 64, 28, 28), "float16", "nhwc")
    TensorSpec(shape=(8, 64, 28, 28), strides=(50176, 1, 1792, 64), dtype='float16')
    """

    shape: Shape
    strides: Shape
    dtype: str

    @classmethod
    def packed(
        cls, shape: Iterable[int], dtype: DTypeLike | DType = "float32", layout: Layout = "nchw"
    ) -> TensorSpec:
        """Return the spec of a contiguous tensor, in C order (``"nchw"``) or channels last (``"nhwc"``)."""
        dims = check_shape(shape)
        return cls(dims, packed_strides(dims, layout), as_dtype(dtype).name)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    @lru_cache(4096)  # noqa: B019  # read a hundred times in a first convolution, without a Python call
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts in :data:`LAYOUTS` that these strides match; empty unless the tensor is contiguous.

        The strides of axes of length 1 are ignored, because no element is reached by them. Both layouts match
        with one channel, or one pixel.
        """
        shape, strides, _ = self
        possible = LAYOUTS if 3 <= len(shape) <= 5 else LAYOUTS[:1]
        return tuple(
            [one for one in possible if equivalent_strides(shape, strides, packed_strides(shape, one))]
        )

    @property
    def layout(self) -> Layout | None:
        """The contiguous layout of these strides, or None; if both match, the one that matches exactly."""
        return (_exact_layouts(self) or self.layouts or (None,))[0]

    @property
    def extent(self) -> tuple[int, int]:
        """Range of element offsets in use: (lowest, highest + 1)."""
        if 0 in self.shape:
            return 0, 0
        low, high = 0, 1
        for n, s in zip(self.shape, self.strides, strict=True):
            if s < 0:
                low += (n - 1) * s
            else:
                high += (n - 1) * s
        return low, high

    @property
    def representable(self) -> bool:
        """Whether a descriptor accepts the strides: positive along each axis longer than 1."""
        for n, s in zip(self.shape, self.strides, strict=True):
            if s <= 0 and n > 1:
                return 0 in self.shape
        return True

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may share memory: a stride is shorter than the range of the smaller ones."""
        covered = 1
        for step, length in sorted((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1):
            if step < covered:
                return 0 not in self.shape
            covered += (length - 1) * step
        return False

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a contiguous range that starts at the first, for any order of axes."""
        expected = 1
        for step, length in sorted((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n != 1):
            if step != expected:
                return 0 in self.shape
            expected *= length
        return True

    def __str__(self) -> str:
        try:
            return f"{self.dtype}{list(self.shape)} {self.layout or f'strides {self.strides}'}"
        except (TypeError, ValueError):  # of a user's wrong spec, in the message of an error
            return repr(self)


Specs = dict[str, TensorSpec]  # of operands, by the names of parameters
Outs = tuple[TensorSpec | None, ...]  # of results; None for a new one


class FilterSpec(NamedTuple):
    """Shape (K, C / groups, window) of a convolution filter, its dtype and its memory layout."""

    shape: Shape
    dtype: str
    layout: Layout = "nchw"


class ConvolutionSpec(NamedTuple):
    """Parameters of a convolution descriptor; the padding applies to both sides of an axis.

    ``compute`` is the accumulation dtype, ``math`` cuDNN's math type in lower case.
    """

    padding: Shape
    stride: Shape
    dilation: Shape
    groups: int = 1
    mode: ConvMode = "cross_correlation"
    compute: str = "float32"
    math: str = "default"


class ActivationSpec(NamedTuple):
    """Parameters of an activation descriptor, as in :func:`cudnn_ct.activation`."""

    mode: Activation
    coefficient: float = 0.0
    propagate_nan: bool = True


class PoolingSpec(NamedTuple):
    """Parameters of a pooling descriptor; the padding applies to both sides, ``mode`` is cuDNN's name."""

    window: Shape
    padding: Shape
    stride: Shape
    mode: PoolingMode = "max"
    propagate_nan: bool = True


class LRNSpec(NamedTuple):
    """Local response normalisation over n channels: ``x / (k + alpha / n * sum of squares) ** beta``."""

    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0


class OpTensorSpec(NamedTuple):
    """Parameters of an operation on one or two tensors: "add", "mul", "min", "max", "sqrt" or "not"."""

    op: OpTensorOp
    compute: str = "float32"
    propagate_nan: bool = True


class ReduceSpec(NamedTuple):
    """Parameters of a reduction, as in :func:`cudnn_ct.reduce`, with cuDNN's name "avg" for "average".

    ``indices`` are those of extremes.
    """

    op: ReduceOp
    compute: str = "float32"
    propagate_nan: bool = True
    indices: bool = False


class CTCLossSpec(NamedTuple):
    """Parameters of a CTC loss descriptor, as in :func:`cudnn_ct.ctc_loss`."""

    normalization: Literal["none", "softmax"] = "softmax"
    out_of_bound: Literal["zero", "skip"] = "zero"
    max_label_length: int = 255
    compute: str = "float32"


class SpatialTransformerSpec(NamedTuple):
    """Parameters of a spatial transformer descriptor: (N, C, H, W) of the sampled images, and a dtype."""

    shape: Shape
    dtype: str = "float32"


def packed_strides(shape: Shape, layout: Layout = "nchw") -> Shape:
    """Return the strides, in elements, of a contiguous tensor.

    ``"nchw"`` is C order for any rank. ``"nhwc"`` needs a batch axis, a channel axis and 1 to 3 spatial axes.

    >>> packed_strides((2, 3, 4, 5), "nhwc")
    (60, 1, 15, 3)
    """
    if not isinstance(layout, str) or layout.lower() not in LAYOUTS:
        raise ValueError(
            f"layout must be one of {', '.join(LAYOUTS)}: got {layout!r}{word_hint(layout, LAYOUTS)}"
        )
    if layout.lower() == "nhwc":
        if not 3 <= len(shape) <= 5:
            raise ValueError(f"layout 'nhwc' needs a shape (N, C, 1 to 3 spatial axes): got {shape}")
        strides, step = [1], max(shape[1], 1)
        for length in shape[:1:-1]:
            strides.append(step)
            step *= max(length, 1)
        return (step, 1, *strides[:0:-1])
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def strides_in_order(shape: Shape, order: Sequence[int]) -> Shape:
    """Return the strides of a contiguous tensor whose axes lie in memory in an order, the outermost first.

    >>> strides_in_order((2, 3, 4), (1, 0, 2))
    (4, 8, 1)
    """
    strides = dict(zip(order, packed_strides(tuple(shape[axis] for axis in order)), strict=True))
    return tuple(strides[axis] for axis in range(len(shape)))


def equivalent_strides(shape: Shape, strides: Shape, others: Shape) -> bool:
    """Whether two sets of strides address the same elements of a shape."""
    for n, a, b in zip(shape, strides, others, strict=True):
        if a != b and n != 1:
            return 0 in shape
    return True


def check_shape(shape: Iterable[int], name: str = "shape") -> Shape:
    """Return ``shape`` as a tuple of ints that fit a C int."""
    try:
        dims = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers: got {shape!r}") from None
    for n in dims:
        if not 0 <= n <= INT_MAX:
            raise ValueError(f"{name} {dims}: each length must be between 0 and {INT_MAX}, got {n}")
    return dims


@lru_cache(maxsize=1024)  # a first convolution asks thirty times
def common_layouts(*specs: TensorSpec) -> tuple[Layout, ...]:
    """Return the layouts in which all tensors are contiguous."""
    common = set(LAYOUTS).intersection(*[spec.layouts for spec in specs])
    return tuple([layout for layout in LAYOUTS if layout in common])


def nearest_layout(*specs: TensorSpec) -> Layout:
    """Return the layout for a result or a contiguous copy of tensors; no other function decides it.

    The first tensor whose strides imply a layout decides. If none does, the dtype of the first tensor does:
    NHWC for half precision and int8, where it is faster, and NCHW for wider types.

    >>> nearest_layout(TensorSpec((8, 1, 28, 28), (784, 1, 28, 1), "float32"))
    'nhwc'
    """
    stated: Layout | None = next(filter(None, map(_stated_layout, specs)), None)
    return stated or ("nhwc" if specs[0].dtype in CHANNELS_LAST_DTYPES else "nchw")


def _stated_layout(spec: TensorSpec) -> Layout | None:
    """Return the layout that strides imply, or None."""
    # With one channel, or images of one pixel, only the strides of axes of length 1 distinguish the layouts.
    if not 3 <= len(spec.shape) <= 5:
        return "nchw"
    layouts = spec.layouts
    if len(layouts) == 1:
        return layouts[0]
    if layouts:
        exact = _exact_layouts(spec)
        return exact[0] if len(exact) == 1 else None
    (channels, *image), (step, *steps) = spec.shape[1:], map(abs, spec.strides[1:])
    long = [s for n, s in zip(image, steps, strict=True) if n > 1]
    least = min(long if long and channels > 1 else steps)
    return None if step in (0, least) else "nhwc" if step < least else "nchw"


def _exact_layouts(spec: TensorSpec) -> list[Layout]:
    """Return the layouts whose strides match exactly, except for the batch stride: both layouts share it."""
    return [layout for layout in spec.layouts if packed_strides(spec.shape, layout)[1:] == spec.strides[1:]]


class LayerProblem(NamedTuple, Generic[P]):
    """A layer of x, or its gradient if ``dx`` is set; tensors that it does not use are None."""

    x: TensorSpec | None
    y: TensorSpec | None
    dy: TensorSpec | None
    dx: TensorSpec | None
    name: str
    params: P

    @classmethod
    def of(cls, name: str, params: P, specs: dict[str, TensorSpec], result: TensorSpec) -> LayerProblem[P]:
        """Return the problem of a layer, or of its gradient if the operands ``specs`` include dy."""
        x, y, dy = (specs.get(operand) for operand in ("x", "y", "dy"))
        return cls(x, y, dy, result, name, params) if dy else cls(x, result, None, None, name, params)

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return tuple(spec for spec in (self.dx or self.y,) if spec)

    def __str__(self) -> str:
        return describe(f"gradient of {self.name}" if self.dx else self.name, self, "name")


def problem_class(title: str | Callable[[Any], str], results: str, *omitted: str) -> Callable[[C], C]:
    """Return a decorator of named tuples that adds ``results``, and :func:`describe` as their text.

    ``results`` are the names of fields in the order of a run; those that are None are left out. ``title`` may
    be a function of a problem; if it is empty, the class has a text of its own.
    """
    names = results.split()

    def written(self: Any) -> tuple[TensorSpec, ...]:
        return tuple([spec for name in names if (spec := getattr(self, name)) is not None])

    def text(self: Any) -> str:
        return describe(title if isinstance(title, str) else title(self), self, *omitted)

    def decorate(problem: C) -> C:
        changed: Any = problem
        changed.results = property(written)
        if title:
            changed.__str__ = text
        return problem

    return decorate


def results_of(problem: Any) -> tuple[TensorSpec, ...]:
    """Return the ``results`` of a problem, which type checkers do not see behind :func:`problem_class`."""
    results: tuple[TensorSpec, ...] = problem.results
    return results


def describe(name: str, problem: Any, *omitted: str) -> str:
    """Describe a problem for messages: its tensors and parameters, without fields that are None or empty."""
    fields = {field: value for field, value in problem._asdict().items() if field not in omitted}
    given = [f"{field} {value}" for field, value in fields.items() if value not in (None, "")]
    return f"{name}: {', '.join(given)}"
