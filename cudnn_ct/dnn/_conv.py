"""What the functions and operations of convolutions share: the description of one, and the call of one."""

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

# What Theano's words mean here.
MODES = {"conv": "convolution", "cross": "cross_correlation"}


class Direction(NamedTuple):
    """One direction: the operation, what its operands are called here, and the flag with its algorithm."""

    operation: str
    names: tuple[str, str]
    flag: str


DIRECTIONS = {
    "forward": Direction("conv", ("img", "kerns"), "algo_fwd"),
    "backward_filter": Direction("conv_backward_filter", ("img", "topgrad"), "algo_bwd_filter"),
    "backward_data": Direction("conv_backward_data", ("kerns", "topgrad"), "algo_bwd_data"),
}


class GpuDnnConvDesc:
    """How a convolution moves its filters: what the operations below take as ``desc``.

    Parameters
    ----------
    border_mode, subsample, dilation, conv_mode, precision, num_groups
        As in :func:`dnn_conv`.

    Raises
    ------
    ValueError
        ``conv_mode`` is none.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 2, 4, 8]]]], "float32")
    >>> kerns = ct.asarray([[[[1, -1]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("full", conv_mode="cross")
    >>> ct.dnn.GpuDnnConv()(img, kerns, (1, 1, 1, 5), desc).shape
    (1, 1, 1, 5)
    """

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
        """Return the description itself: the shape of the filters is known when it is used."""
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
    """One call of an operation of the package."""
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
    """Shape of a convolution, whatever its groups are."""
    images, filters = check_shape(ishape, "ishape"), check_shape(kshape, "kshape")
    if len(images) == len(filters) > 1:  # else they are refused
        images = (images[0], filters[1], *images[2:])
    padding, stride, dilation = map(integers, (border_mode, subsample, dilation))
    return conv_output_shape(images, filters, padding=padding, stride=stride, dilation=dilation)


def algorithm(algo: Any, workmem: str | None) -> Any:
    """The algorithm that is named, be it by the older parameter."""
    if workmem is None:
        return algo
    text = f"workmem is deprecated; write algo={workmem!r}"
    warn_caller(text, DeprecationWarning)
    if algo is not None:
        raise ValueError(f"workmem={workmem!r} and algo={algo!r} mean the same; give algo alone")
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
    """Refuse what volumes cannot use; of other algorithms the operation knows which there are."""
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
