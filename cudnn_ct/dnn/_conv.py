"""The convolution descriptor, and the call of a convolution or of its gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._config import config
from ..array import DeviceArray
from ..autotune.request import ALGORITHMS
from ..errors import warn_caller
from ..shapes.conv import conv_output_shape
from ..shapes.parse import as_choice, as_int
from ..shapes.specs import check_shape
from .arguments import integers
from .arrays import on_device
from .availability import ops

__all__ = ["DIRECTIONS", "GpuDnnConvDesc", "algorithm", "compute", "output_shape"]

# Theano's names of the modes, and ours.
MODES = {"conv": "convolution", "cross": "cross_correlation"}


class Direction(NamedTuple):
    """One direction: the operation, Theano's names of its operands in our order, and the algorithm's flag."""

    operation: str
    names: tuple[str, str]
    flag: str


DIRECTIONS = {
    "forward": Direction("conv", ("img", "kerns"), "algo_fwd"),
    "backward_filter": Direction("conv_backward_filter", ("topgrad", "img"), "algo_bwd_filter"),
    "backward_data": Direction("conv_backward_data", ("topgrad", "kerns"), "algo_bwd_data"),
}


class GpuDnnConvDesc:
    """Geometry, mode, precision and groups of a convolution. See :func:`cudnn_ct.conv`."""

    def __init__(
        self,
        border_mode: Any,
        subsample: Any = (1, 1),
        dilation: Any = (1, 1),
        conv_mode: str = "conv",
        precision: str = "float32",
        num_groups: int = 1,
    ) -> None:
        self.border_mode, self.subsample = integers(border_mode), integers(subsample)
        self.dilation = integers(dilation)
        self.conv_mode, self.precision = as_choice(conv_mode, tuple(MODES), "conv_mode"), precision
        self.num_groups = as_int(num_groups, "num_groups")

    def __call__(self, kern_shape: Any = None) -> GpuDnnConvDesc:  # noqa: ARG002 - as Theano's is called
        """Return the descriptor itself: the shape of the filters is not needed."""
        return self

    def __repr__(self) -> str:
        return f"GpuDnnConvDesc({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def compute(
    direction: str,
    first: Any,
    second: Any,
    shape: Any,
    desc: GpuDnnConvDesc,
    algo: Any,
    groups: int | None = None,
    **scaled: Any,
) -> Any:
    """Call the function of the package for a direction."""
    row = DIRECTIONS[direction]
    first, second = on_device(first, row.names[0]), on_device(second, row.names[1])
    algo = getattr(config.dnn.conv, row.flag) if algo is None else algo
    _check_precision(desc.precision, first, direction != "forward")
    _check_algo(algo, direction, first.ndim)
    geometry = {
        "padding": desc.border_mode,
        "stride": desc.subsample,
        "dilation": desc.dilation,
        "groups": desc.num_groups if groups is None else groups,
        "mode": MODES[desc.conv_mode],
    }
    shape = integers(shape)
    shapes = () if direction == "forward" else (shape,)
    if direction == "forward":
        _check_output(shape, first.shape, second.shape, geometry)
    operation = getattr(ops(), row.operation)
    return operation(first, second, *shapes, **geometry, algo=algo, precision=desc.precision, **scaled)


def output_shape(
    ishape: Any, kshape: Any, border_mode: Any, subsample: Any, dilation: Any = 1
) -> tuple[int, ...]:
    """Return the shape of a convolution for any number of groups."""
    images, filters = check_shape(ishape, "ishape"), check_shape(kshape, "kshape")
    if len(images) == len(filters) > 1:  # else conv_output_shape rejects them
        images = (images[0], filters[1], *images[2:])
    padding, stride, dilation = map(integers, (border_mode, subsample, dilation))
    return conv_output_shape(images, filters, padding=padding, stride=stride, dilation=dilation)


def algorithm(algo: Any, workmem: str | None) -> Any:
    """Return the algorithm, which may be given as the deprecated ``workmem``."""
    if workmem is None:
        return algo
    text = f"workmem is deprecated; write algo={workmem!r}"
    warn_caller(text, DeprecationWarning)
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


def _check_algo(algo: Any, direction: str, axes: int) -> None:
    """Reject an algorithm that does not support volumes; ``cudnn_ct`` checks all other algorithms."""
    names = [name for rows in ALGORITHMS.values() for name in rows]
    row = ALGORITHMS[direction].get(algo) if isinstance(algo, str) else None
    if axes == 5 and isinstance(algo, str) and algo in names and (row is None or 3 not in row.axes):
        raise ValueError(f"convolution algo {algo} can't be used for 3d convolutions")


def _check_output(given: Any, img: Any, kern: Any, geometry: dict[str, Any]) -> None:
    if given is None:
        return
    expected = conv_output_shape(img, kern, **geometry)
    if tuple(given) != expected:
        raise ValueError(
            f"impossible convolution output dim: expected {expected} but received {tuple(given)}"
        )
