"""The convolution descriptor, and the call of a convolution or of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._config import config
from ..array import DeviceArray
from ..errors import warn_caller
from ..ops.conv.conv import conv, conv_backward_data, conv_backward_filter
from ..shapes.conv import conv_output_shape
from ..shapes.parse import as_choice, as_int
from ..typing import Algo, ArrayLike, Precision
from .arguments import Border, Sizes, integers, on_device
from .availability import run

# Theano's names of the modes, and ours.
MODES = {"conv": "convolution", "cross": "cross_correlation"}


class Direction(NamedTuple):
    """One direction: the operation, Theano's names of its operands in our order, and the algorithm's flag."""

    operation: Callable[..., DeviceArray]
    names: tuple[str, str]
    flag: str


DIRECTIONS = {
    "forward": Direction(conv, ("img", "kerns"), "algo_fwd"),
    "backward_filter": Direction(conv_backward_filter, ("topgrad", "img"), "algo_bwd_filter"),
    "backward_data": Direction(conv_backward_data, ("topgrad", "kerns"), "algo_bwd_data"),
}


@dataclass(eq=False)
class GpuDnnConvDesc:
    """Geometry, mode, precision and groups of a convolution. See :func:`cudnn_ct.conv`."""

    border_mode: Border
    subsample: Sizes = (1, 1)
    dilation: Sizes = (1, 1)
    conv_mode: str = "conv"
    precision: Precision = "float32"
    num_groups: int = 1

    def __post_init__(self) -> None:
        self.border_mode, self.subsample = integers(self.border_mode), integers(self.subsample)
        self.dilation = integers(self.dilation)
        self.conv_mode = as_choice(self.conv_mode, tuple(MODES), "conv_mode")
        self.num_groups = as_int(self.num_groups, "num_groups")

    def __call__(self, kern_shape: Sizes | None = None) -> GpuDnnConvDesc:  # noqa: ARG002 - as in Theano
        """Return the descriptor itself: the shape of the filters is not needed."""
        return self


def compute(
    direction: str,
    first: ArrayLike,
    second: ArrayLike,
    shape: Sizes | None,
    desc: GpuDnnConvDesc,
    algo: Algo | None,
    groups: int | None = None,
    **scaled: Any,
) -> DeviceArray:
    """Call the function of the package for a direction; ``shape`` is that of the result."""
    row = DIRECTIONS[direction]
    first, second = on_device(first, row.names[0]), on_device(second, row.names[1])
    _check_precision(desc.precision, first, direction != "forward")
    geometry: dict[str, Any] = {
        "padding": desc.border_mode,
        "stride": desc.subsample,
        "dilation": desc.dilation,
        "groups": desc.num_groups if groups is None else groups,
        "mode": MODES[desc.conv_mode],
    }
    shape = integers(shape)
    if direction == "forward" and shape is not None:
        expected = conv_output_shape(first.shape, second.shape, **geometry)
        if tuple(shape) != expected:  # type: ignore[arg-type]  # an int is not a shape, and raises TypeError
            raise ValueError(f"impossible convolution output dim: expected {expected} but received {shape}")
    shapes = () if direction == "forward" else (shape,)
    algo = default_algorithm(direction) if algo is None else algo
    settings = {"algo": algo, "precision": desc.precision, **scaled}
    return run(row.operation, first, second, *shapes, **geometry, **settings)


def default_algorithm(direction: str) -> Algo:
    """Return the flag for the algorithm of a direction."""
    algo: Algo = getattr(config.dnn.conv, DIRECTIONS[direction].flag)
    return algo


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


def _check_precision(precision: str, array: DeviceArray, is_gradient: bool) -> None:
    dtype = array.spec.dtype
    if "float" not in dtype:
        raise TypeError(f"cuDNN convolution only works on real numbers, not {dtype}")
    if is_gradient and (precision == "float16" or (precision == "as_input" and dtype == "float16")):
        raise TypeError(
            "Float16 precision is disabled for cuDNN backward convolutions due to computation errors."
        )
