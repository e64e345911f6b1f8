"""Convolution and its gradients as operations: created once, then called with arrays."""

from __future__ import annotations

from typing import Any

from .._config import config
from ..shapes.parse import as_int
from ._conv import DIRECTIONS, GpuDnnConvDesc, algorithm, compute, output_shape
from .arguments import checked_flag, integers
from .arrays import copied, on_device

__all__ = [
    "GpuDnnConv",
    "GpuDnnConv3d",
    "GpuDnnConv3dGradI",
    "GpuDnnConv3dGradW",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
]


class _Operation:
    """Base of the operations: the algorithm, ``inplace`` and the number of groups."""

    direction = "forward"

    def __init__(self, algo: Any, inplace: bool, num_groups: int, workmem: Any) -> None:
        algo = algorithm(algo, workmem)
        self.algo = getattr(config.dnn.conv, DIRECTIONS[self.direction].flag) if algo is None else algo
        self.inplace, self.num_groups = checked_flag(inplace, "inplace"), as_int(num_groups, "num_groups")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )

    def _run(self, first: Any, second: Any, output: Any, desc: Any, alpha: Any, beta: Any) -> Any:
        if not isinstance(desc, GpuDnnConvDesc):
            raise TypeError(f"desc is not a GpuDnnConvDesc: got {type(desc).__name__}")
        beta = 0 if beta is None else beta
        output = integers(output)
        is_shape = output is None or isinstance(output, tuple | list)
        out = None
        if (self.inplace or beta) and not is_shape:
            out = output if self.inplace else copied(output, "output")
        shape = output if is_shape else on_device(output, "output").shape
        scaled = {"alpha": 1 if alpha is None else alpha, "beta": beta, "out": out}
        groups = _groups(self.num_groups, desc.num_groups)
        return compute(self.direction, first, second, shape, desc, self.algo, groups, **scaled)


class GpuDnnConv(_Operation):
    """Convolution. See :func:`cudnn_ct.conv`."""

    def __init__(
        self, algo: Any = None, inplace: bool = False, num_groups: int = 1, *, workmem: str | None = None
    ) -> None:
        super().__init__(algo, inplace, num_groups, workmem)

    def __call__(
        self,
        img: Any,
        kern: Any,
        output: Any,
        desc: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        """Return ``alpha * conv(img, kern) + beta * output``."""
        return self._run(img, kern, output, desc, alpha, beta)

    @staticmethod
    def get_out_shape(
        ishape: Any, kshape: Any, border_mode: Any, subsample: Any, dilation: Any = 1
    ) -> tuple[int, ...]:
        """Return the shape of a convolution. See :func:`cudnn_ct.conv_output_shape`."""
        return output_shape(ishape, kshape, border_mode, subsample, dilation)


class GpuDnnConv3d(GpuDnnConv):
    """Convolution of volumes, with the parameters in the older order. See :func:`cudnn_ct.conv`."""

    def __init__(self, workmem: str | None = None, inplace: bool = False, algo: Any = None) -> None:
        _Operation.__init__(self, algo, inplace, 1, workmem)


class _Gradient(_Operation):
    """Base of the gradients."""

    def __init__(
        self, inplace: bool = False, algo: Any = None, num_groups: int = 1, *, workmem: str | None = None
    ) -> None:
        super().__init__(algo, inplace, num_groups, workmem)


class _Gradient3d(_Gradient):
    """Base of the gradients of volumes, which have the parameters of the older module in its order."""

    def __init__(self, inplace: bool = False, workmem: str | None = None, algo: Any = None) -> None:
        _Operation.__init__(self, algo, inplace, 1, workmem)


class GpuDnnConvGradW(_Gradient):
    """Gradient of a convolution with respect to the filters. See :func:`cudnn_ct.conv_backward_filter`."""

    direction = "backward_filter"

    def __call__(
        self,
        img: Any,
        topgrad: Any,
        output: Any,
        desc: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        """Return ``alpha * gradient + beta * output``."""
        return self._run(topgrad, img, output, desc, alpha, beta)


class GpuDnnConv3dGradW(_Gradient3d, GpuDnnConvGradW):
    """``GpuDnnConvGradW`` of volumes, in the older order. See :func:`cudnn_ct.conv_backward_filter`."""


class GpuDnnConvGradI(_Gradient):
    """Gradient of a convolution with respect to the images. See :func:`cudnn_ct.conv_backward_data`."""

    direction = "backward_data"

    def __call__(
        self,
        kern: Any,
        topgrad: Any,
        output: Any,
        desc: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        """Return ``alpha * gradient + beta * output``."""
        return self._run(topgrad, kern, output, desc, alpha, beta)


class GpuDnnConv3dGradI(_Gradient3d, GpuDnnConvGradI):
    """``GpuDnnConvGradI`` of volumes, in the older order. See :func:`cudnn_ct.conv_backward_data`."""


def _groups(own: int, described: int) -> int:
    if own != described and 1 not in (own, described):
        raise ValueError(f"num_groups does not match desc: got {own}, expected 1 or {described}")
    return described if own == 1 else own
