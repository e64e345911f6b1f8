"""Convolution and its gradients, as operations that are made once and called with arrays."""

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
    """What the operations share: an algorithm, and whether they write where ``output`` is."""

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
            raise TypeError(f"desc must be a GpuDnnConvDesc, not {type(desc).__name__}")
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
    """The forward convolution.

    Parameters
    ----------
    algo : str, optional
        Name of an algorithm or a policy. The default is the flag ``dnn.conv.algo_fwd``.
    inplace : bool
        Whether ``output`` is written; otherwise a copy of it is.
    num_groups : int
        If the description has another number of groups, one of the two is 1.
    workmem : str, optional
        Deprecated; use ``algo``.

    Raises
    ------
    TypeError
        ``inplace`` is not a bool, or ``num_groups`` not an int.
    ValueError
        Both ``algo`` and ``workmem`` are given.

    Notes
    -----
    By :func:`cudnn_ct.conv`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[1, 2, 4, 8]]]], "float32")
    >>> kerns = ct.asarray([[[[1, -1]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("valid", conv_mode="cross")
    >>> ct.dnn.GpuDnnConv(algo="none")(img, kerns, None, desc).numpy()
    array([[[[-1., -2., -4.]]]], dtype=float32)
    """

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
        """Compute ``alpha * conv(img, kern) + beta * output``.

        Parameters
        ----------
        img, kern : device arrays, as in :func:`dnn_conv`
        output : device array, shape of the result and dtype of img, or that shape, or None
            Only an array can be scaled by ``beta``, or written in place.
        desc : GpuDnnConvDesc
        alpha, beta : float, optional
            1 and 0 by default.

        Returns
        -------
        DeviceArray; with ``inplace`` output itself

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`dnn_conv`.
        """
        return self._run(img, kern, output, desc, alpha, beta)

    @staticmethod
    def get_out_shape(
        ishape: Any, kshape: Any, border_mode: Any, subsample: Any, dilation: Any = 1
    ) -> tuple[int, ...]:
        """Tell the shape of a convolution, whatever its groups are.

        Parameters
        ----------
        ishape, kshape : tuple of int
            Of the images, (N, C, *spatial), and of the filters, (K, C / groups, *window).
        border_mode, subsample, dilation
            As in :func:`dnn_conv`.

        Returns
        -------
        tuple of int, (N, K, *out)

        Raises
        ------
        TypeError
            A shape is no sequence of integers, or one of the others none of what it may be.
        ValueError
            The shapes do not fit, or an axis of the result would have no element.
        """
        return output_shape(ishape, kshape, border_mode, subsample, dilation)


class GpuDnnConv3d(GpuDnnConv):
    """The forward convolution of volumes: :class:`GpuDnnConv` with the parameters in their older order.

    Parameters
    ----------
    workmem : str, optional
        Deprecated; use ``algo``.
    inplace, algo
        As in :class:`GpuDnnConv`.

    Notes
    -----
    By :func:`cudnn_ct.conv`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img = ct.asarray([[[[[1, 2, 4, 8]]]]], "float32")
    >>> kerns = ct.asarray([[[[[1, -1]]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("valid", (1, 1, 1), (1, 1, 1), "cross")
    >>> ct.dnn.GpuDnnConv3d(algo="none")(img, kerns, None, desc).numpy().ravel()
    array([-1., -2., -4.], dtype=float32)
    """

    def __init__(self, workmem: str | None = None, inplace: bool = False, algo: Any = None) -> None:
        _Operation.__init__(self, algo, inplace, 1, workmem)


class GpuDnnConvGradW(_Operation):
    """The gradient of a convolution by its filters.

    Parameters
    ----------
    inplace, algo, num_groups, workmem
        As in :class:`GpuDnnConv`; the flag is ``dnn.conv.algo_bwd_filter``.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_filter`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img, topgrad = ct.asarray([[[[1, 2, 4, 8]]]], "float32"), ct.asarray([[[[1, 0, 1]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("valid", conv_mode="cross")
    >>> ct.dnn.GpuDnnConvGradW(algo="none")(img, topgrad, (1, 1, 1, 2), desc).numpy()
    array([[[[ 5., 10.]]]], dtype=float32)
    """

    direction = "backward_filter"

    def __init__(
        self, inplace: bool = False, algo: Any = None, num_groups: int = 1, *, workmem: str | None = None
    ) -> None:
        super().__init__(algo, inplace, num_groups, workmem)

    def __call__(
        self,
        img: Any,
        topgrad: Any,
        output: Any,
        desc: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        """Compute ``alpha * gradient + beta * output``.

        Parameters
        ----------
        img, topgrad : device arrays, as in :func:`dnn_gradweight`
        output : device array of the shape of the filters, or that shape
        desc, alpha, beta
            As in :class:`GpuDnnConv`.

        Returns
        -------
        DeviceArray; with ``inplace`` output itself

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`dnn_gradweight`.
        """
        return self._run(img, topgrad, output, desc, alpha, beta)


class GpuDnnConv3dGradW(GpuDnnConvGradW):
    """The gradient of a convolution of volumes by its filters, with the parameters in their older order.

    Parameters
    ----------
    inplace, workmem, algo
        As in :class:`GpuDnnConvGradW`.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_filter`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> img, topgrad = ct.asarray([[[[[1, 2, 4, 8]]]]], "float32"), ct.asarray([[[[[1, 0, 1]]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("valid", (1, 1, 1), (1, 1, 1), "cross")
    >>> ct.dnn.GpuDnnConv3dGradW(algo="none")(img, topgrad, (1, 1, 1, 1, 2), desc).numpy().ravel()
    array([ 5., 10.], dtype=float32)
    """

    def __init__(self, inplace: bool = False, workmem: str | None = None, algo: Any = None) -> None:
        _Operation.__init__(self, algo, inplace, 1, workmem)


class GpuDnnConvGradI(_Operation):
    """The gradient of a convolution by its images.

    Parameters
    ----------
    inplace, algo, num_groups, workmem
        As in :class:`GpuDnnConv`; the flag is ``dnn.conv.algo_bwd_data``.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_data`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> kern, topgrad = ct.asarray([[[[1, -1]]]], "float32"), ct.asarray([[[[1, 2, 4]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("valid", conv_mode="cross")
    >>> ct.dnn.GpuDnnConvGradI(algo="none")(kern, topgrad, (1, 1, 1, 4), desc).numpy()
    array([[[[ 1.,  1.,  2., -4.]]]], dtype=float32)
    """

    direction = "backward_data"

    def __init__(
        self, inplace: bool = False, algo: Any = None, num_groups: int = 1, *, workmem: str | None = None
    ) -> None:
        super().__init__(algo, inplace, num_groups, workmem)

    def __call__(
        self,
        kern: Any,
        topgrad: Any,
        output: Any,
        desc: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        """Compute ``alpha * gradient + beta * output``.

        Parameters
        ----------
        kern, topgrad : device arrays, as in :func:`dnn_gradinput`
        output : device array of the shape of the images, or that shape
        desc, alpha, beta
            As in :class:`GpuDnnConv`.

        Returns
        -------
        DeviceArray; with ``inplace`` output itself

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :func:`dnn_gradinput`.
        """
        return self._run(kern, topgrad, output, desc, alpha, beta)


class GpuDnnConv3dGradI(GpuDnnConvGradI):
    """The gradient of a convolution of volumes by its images, with the parameters in their older order.

    Parameters
    ----------
    inplace, workmem, algo
        As in :class:`GpuDnnConvGradI`.

    Notes
    -----
    By :func:`cudnn_ct.conv_backward_data`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> kern, topgrad = ct.asarray([[[[[1, -1]]]]], "float32"), ct.asarray([[[[[1, 2, 4]]]]], "float32")
    >>> desc = ct.dnn.GpuDnnConvDesc("valid", (1, 1, 1), (1, 1, 1), "cross")
    >>> ct.dnn.GpuDnnConv3dGradI(algo="none")(kern, topgrad, (1, 1, 1, 1, 4), desc).numpy().ravel()
    array([ 1.,  1.,  2., -4.], dtype=float32)
    """

    def __init__(self, inplace: bool = False, workmem: str | None = None, algo: Any = None) -> None:
        _Operation.__init__(self, algo, inplace, 1, workmem)


def _groups(own: int, described: int) -> int:
    if own != described and 1 not in (own, described):
        raise ValueError(f"the operation has {own} groups, and the description {described}")
    return described if own == 1 else own
