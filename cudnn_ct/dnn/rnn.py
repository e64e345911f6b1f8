"""Recurrent networks."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..array import DeviceArray
from ..context import BoundedDict
from ..ops.rnn.reserve import RNNReserve
from ..ops.rnn.rnn import RNN
from ..ops.rnn.weights import as_index
from ..shapes.parse import as_choice, as_int
from ..shapes.rnn import RNN_DIRECTIONS, RNN_MODES
from ..shapes.specs import TensorSpec, check_shape
from .arguments import checked_flag
from .arrays import on_device
from .availability import check_context, ops

__all__ = ["GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights", "GpuDnnRNNOp", "RNNBlock"]

NETWORKS = 64  # sizes of the input for which a block keeps a network


class RNNGradients(NamedTuple):
    """Gradients of :class:`RNNBlock`; ``dcx`` is None for modes without cells."""

    dw: Any
    dx: Any
    dhx: Any
    dcx: Any


class RNNBlock:
    """A recurrent network; its weights are an array apart.

    Parameters
    ----------
    dtype : float16 | bfloat16 | float32 | float64
        Of data, states and weights.
    hidden_size, num_layers : int, at least 1
    rnn_mode : {"rnn_relu", "rnn_tanh", "lstm", "gru"}
    input_mode : {"linear", "skip"}
        Whether the first layer multiplies its input by a matrix, or takes it as it is.
    direction_mode : {"unidirectional", "bidirectional"}
    context_name : int or str, optional
        A device; the arrays say which one is used.

    Raises
    ------
    ValueError
        ``context_name`` names no device, or a mode is none. What else does not fit shows when the size of
        the input is known.

    Notes
    -----
    The standard algorithm, two biases, no dropout.

    By :class:`cudnn_ct.RNN`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> block = ct.dnn.RNNBlock("float32", 8, 2, "gru")
    >>> w = ct.zeros(block.get_param_size([3, 4]))  # a batch of 3, an input of 4
    >>> x, hx = ct.full((5, 3, 4), 1), ct.zeros((2, 3, 8))
    >>> y, hy = block.apply(w, x, hx)
    >>> y.shape, hy.shape
    ((5, 3, 8), (2, 3, 8))
    >>> dw, dx, dhx, _ = block.gradients(w, x, hx, dy=y)
    """

    def __init__(
        self,
        dtype: Any,
        hidden_size: int,
        num_layers: int,
        rnn_mode: str,
        input_mode: str = "linear",
        direction_mode: str = "unidirectional",
        context_name: Any = None,
    ) -> None:
        check_context(context_name)
        self.dtype, self.hidden_size, self.num_layers = dtype, hidden_size, num_layers
        self.rnn_mode, self.direction_mode = _rnn_mode(rnn_mode), _direction_mode(direction_mode)
        self.input_mode = input_mode
        self.context_name = context_name
        self._networks = BoundedDict(NETWORKS)

    @property
    def desc(self) -> RNNBlock:
        """What the operations below take as ``desc``: the network itself."""
        return self

    def get_param_size(self, input_size: Any) -> int:
        """Tell how many items all weights have.

        Parameters
        ----------
        input_size : (int, int)
            Of the batch, and of the input.

        Returns
        -------
        int

        Raises
        ------
        TypeError, ValueError
            A parameter of the network, or ``input_size``, does not fit.
        """
        return self.network(_of_input(input_size)).weight_size

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[DeviceArray | None]:
        """See the weights of one layer: views that can be written, without a copy.

        Parameters
        ----------
        w : device array, shape (size,), as :meth:`get_param_size` has it, dtype of the network
        layer : int
            A layer has two of these numbers if the network is bidirectional: 2 * layer + direction.
        input_size : (int, int)
            Of the batch, and of the input.

        Returns
        -------
        list of DeviceArray
            A matrix and a bias for each gate, first those of the input, then the recurrent ones: 4 for
            rnn_relu and rnn_tanh; 12 for gru (reset, update, new memory); 16 for lstm (input, forget, new
            memory, output). A matrix has shape (in, hidden_size), so that ``x @ matrix`` is meant, in Fortran
            order. None is in the place of a matrix that skip input has not.

        Raises
        ------
        TypeError, ValueError
            There is no such layer, or w is not of the network.
        """
        network = self.network(_of_input(input_size))
        place = divmod(as_index(network.spec.pseudo_layers, layer, "layer"), network.spec.directions)
        parts: list[DeviceArray | None] = []
        for view in network.split_params(w, *place).values():
            if view.ndim == 1 and len(parts) % 2 == 0:  # a bias, and no matrix before it
                parts.append(None)
            parts.append(_transposed(view) if view.ndim == 2 else view)
        return parts

    def apply(self, w: Any, x: Any, hx: Any, cx: Any = None) -> list[Any]:
        """Run the network over sequences.

        Parameters
        ----------
        w : device array, shape (size,), as :meth:`get_param_size` has it
        x : device array, shape (T, B, input)
        hx : device array, shape (num_layers * directions, B, hidden_size)
            The states before the first step.
        cx : device array, as hx
            The cells before the first step; "lstm" only, which needs them.

        Returns
        -------
        list of DeviceArray
            ``y``, shape (T, B, hidden_size * directions), ``hy``, and for "lstm" ``cy``, as hx.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :meth:`cudnn_ct.RNN.forward`; ValueError also where cells are missing.
        """
        return _forward(self, w, x, hx, cx, training=False)[1:]

    def gradients(
        self, w: Any, x: Any, hx: Any, cx: Any = None, dy: Any = None, dhy: Any = None, dcy: Any = None
    ) -> RNNGradients:
        """Compute the gradients of :meth:`apply`, after a pass forward for them.

        Parameters
        ----------
        w, x, hx, cx
            Those of :meth:`apply`.
        dy, dhy, dcy : device arrays, as y, hy and cy, optional
            Gradients that are missing are zero.

        Returns
        -------
        RNNGradients
            With regard to w, x, hx and cx.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :meth:`apply`.

        Notes
        -----
        :class:`GpuDnnRNNOp`, :class:`GpuDnnRNNGradInputs` and :class:`GpuDnnRNNGradWeights` in turn.
        """
        network = _network(self, x)
        reserve = _forward(self, w, x, hx, cx, training=True)[0]
        dx, dhx, dcx = network.backward_data(reserve, dy, dhy, dcy)
        return RNNGradients(network.backward_weights(reserve), dx, dhx, dcx)

    def network(self, input_size: int) -> RNN:
        """The network for an input of a size.

        Parameters
        ----------
        input_size : int

        Returns
        -------
        cudnn_ct.RNN

        Raises
        ------
        TypeError, ValueError
            A parameter of the network does not fit.
        """
        input_size = as_int(input_size, "input_size")
        found: RNN | None = self._networks.get(input_size)
        if found is None:
            found = self._networks[input_size] = ops().RNN(
                self.rnn_mode,
                input_size,
                self.hidden_size,
                self.num_layers,
                direction=self.direction_mode,
                input_mode=self.input_mode,
                dtype=self.dtype,
                algo="standard",
                seed=4242,
            )
        return found


class GpuDnnRNNOp:
    """A pass forward that remembers what the gradients need.

    Parameters
    ----------
    rnn_mode, direction_mode : str
        Those of the network.

    Raises
    ------
    ValueError
        A mode is none.

    Notes
    -----
    By :meth:`cudnn_ct.RNN.forward`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> block = ct.dnn.RNNBlock("float32", 8, 2, "gru")
    >>> w = ct.zeros(block.get_param_size([3, 4]))  # a batch of 3, an input of 4
    >>> x, hx = ct.full((5, 3, 4), 1), ct.zeros((2, 3, 8))
    >>> forward = ct.dnn.GpuDnnRNNOp("gru", "unidirectional")
    >>> reserve, y, hy = forward(block.desc, w, x, hx, None)
    >>> y.shape, hy.shape
    ((5, 3, 8), (2, 3, 8))
    """

    def __init__(self, rnn_mode: str, direction_mode: str) -> None:
        self.rnn_mode, self.direction_mode = _rnn_mode(rnn_mode), _direction_mode(direction_mode)

    def __call__(self, desc: RNNBlock, w: Any, x: Any, hx: Any, cx: Any = None) -> list[Any]:
        """Run a network over sequences.

        Parameters
        ----------
        desc : RNNBlock
            The network, or its ``desc``.
        w, x, hx, cx
            As in :meth:`RNNBlock.apply`.

        Returns
        -------
        list
            The reserve, a :class:`cudnn_ct.RNNReserve`, and what :meth:`RNNBlock.apply` gives.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :meth:`RNNBlock.apply`; ValueError also where the network is of another mode.
        """
        _check_modes(desc, rnn_mode=self.rnn_mode, direction_mode=self.direction_mode)
        return _forward(desc, w, x, hx, cx, training=True)


class GpuDnnRNNGradInputs:
    """The gradients of a pass with regard to its input and first states.

    Parameters
    ----------
    rnn_mode : str
        That of the network.
    grad_h, grad_c : bool
        Whether there are gradients with regard to the last states and cells.

    Raises
    ------
    TypeError
        A flag is not a bool.
    ValueError
        ``rnn_mode`` is none.

    Notes
    -----
    By :meth:`cudnn_ct.RNN.backward_data`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> block = ct.dnn.RNNBlock("float32", 8, 2, "gru")
    >>> w = ct.zeros(block.get_param_size([3, 4]))  # a batch of 3, an input of 4
    >>> x, hx = ct.full((5, 3, 4), 1), ct.zeros((2, 3, 8))
    >>> forward = ct.dnn.GpuDnnRNNOp("gru", "unidirectional")
    >>> reserve, y, hy = forward(block.desc, w, x, hx, None)
    >>> backward = ct.dnn.GpuDnnRNNGradInputs("gru", grad_h=False, grad_c=False)
    >>> reserve, dx, dhx = backward(block.desc, x, y, y, None, None, w, hx, None, reserve)
    >>> dx.shape, dhx.shape
    ((5, 3, 4), (2, 3, 8))
    """

    def __init__(self, rnn_mode: str, grad_h: bool, grad_c: bool) -> None:
        self.rnn_mode = _rnn_mode(rnn_mode)
        self.grad_h, self.grad_c = checked_flag(grad_h, "grad_h"), checked_flag(grad_c, "grad_c")

    def __call__(
        self,
        desc: RNNBlock,
        x: Any,
        y: Any,  # noqa: ARG002 - the reserve knows it
        dy: Any,
        dhy: Any,
        dcy: Any,
        w: Any,  # noqa: ARG002
        hx: Any,  # noqa: ARG002
        cx: Any,  # noqa: ARG002
        reserve: RNNReserve,
    ) -> list[Any]:
        """Compute the gradients.

        Parameters
        ----------
        desc : RNNBlock
        x, y, w, hx, cx
            Operands and results of the pass. The reserve knows them, and its own count.
        dy, dhy, dcy : device arrays, as y, hy and cy, or None for zeros
        reserve : RNNReserve
            What :class:`GpuDnnRNNOp` gave first. It serves once.

        Returns
        -------
        list
            The reserve, for :class:`GpuDnnRNNGradWeights`; gradients as x, as hx, and for "lstm" as cx.

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :meth:`cudnn_ct.RNN.backward_data`.
        """
        _check_modes(desc, rnn_mode=self.rnn_mode)
        network = _network(desc, x)
        dhy, dcy = dhy if self.grad_h else None, dcy if self.grad_c else None
        dx, dhx, dcx = network.backward_data(reserve, dy, dhy, dcy)
        return [reserve, dx, dhx, *([] if dcx is None else [dcx])]


class GpuDnnRNNGradWeights:
    """The gradient of a pass with regard to the weights.

    Notes
    -----
    By :meth:`cudnn_ct.RNN.backward_weights`, whose notes have cuDNN's functions and determinism.

    Examples
    --------
    >>> block = ct.dnn.RNNBlock("float32", 8, 2, "gru")
    >>> w = ct.zeros(block.get_param_size([3, 4]))  # a batch of 3, an input of 4
    >>> x, hx = ct.full((5, 3, 4), 1), ct.zeros((2, 3, 8))
    >>> forward = ct.dnn.GpuDnnRNNOp("gru", "unidirectional")
    >>> reserve, y, hy = forward(block.desc, w, x, hx, None)
    >>> backward = ct.dnn.GpuDnnRNNGradInputs("gru", grad_h=False, grad_c=False)
    >>> reserve, dx, dhx = backward(block.desc, x, y, y, None, None, w, hx, None, reserve)
    >>> ct.dnn.GpuDnnRNNGradWeights()(block.desc, x, hx, y, reserve, w).shape == w.shape
    True
    """

    def __call__(
        self,
        desc: RNNBlock,
        x: Any,
        hx: Any,  # noqa: ARG002 - the reserve knows it
        y: Any,  # noqa: ARG002
        reserve: RNNReserve,
        w: Any,  # noqa: ARG002
    ) -> Any:
        """Compute the gradient.

        Parameters
        ----------
        desc : RNNBlock
        x, hx, y, w
            Operands and results of the pass. The reserve knows them, and its own count.
        reserve : RNNReserve
            What :class:`GpuDnnRNNGradInputs` gave first.

        Returns
        -------
        DeviceArray, shape of w

        Raises
        ------
        TypeError, ValueError, NotSupportedError, AllocationError
            As in :meth:`cudnn_ct.RNN.backward_weights`.
        """
        _check_modes(desc)
        return _network(desc, x).backward_weights(reserve)


def _forward(block: RNNBlock, w: Any, x: Any, hx: Any, cx: Any, training: bool) -> list[Any]:
    if block.rnn_mode == "lstm" and cx is None:
        raise ValueError("an lstm needs cx, the cells before the first step")
    y, hy, cy, reserve = _network(block, x).forward(x, w, hx, cx, training=training)
    return [reserve, y, hy, *([] if cy is None else [cy])]


def _network(block: RNNBlock, x: Any) -> RNN:
    """The network for an input."""
    shape = on_device(x, "x").shape
    if len(shape) != 3:
        raise ValueError(f"x has shape {shape}; expected (T, B, input)")
    return block.network(shape[2])


def _of_input(input_size: Any) -> int:
    sizes = check_shape(input_size, "input_size")
    if len(sizes) != 2:
        raise ValueError(f"input_size has the sizes {sizes}; expected those of the batch and of the input")
    return sizes[1]


def _rnn_mode(mode: Any) -> str:
    return as_choice(mode, RNN_MODES, "rnn_mode")


def _direction_mode(mode: Any) -> str:
    return as_choice(mode, RNN_DIRECTIONS, "direction_mode")


def _check_modes(desc: Any, **modes: str) -> None:
    if not isinstance(desc, RNNBlock):
        raise TypeError(f"desc must be an RNNBlock, not {type(desc).__name__}")
    for name, mode in modes.items():
        if getattr(desc, name) != mode:
            raise ValueError(f"{name} is {mode!r}; that of the network is {getattr(desc, name)!r}")


def _transposed(view: DeviceArray) -> DeviceArray:
    shape, strides, dtype = view.spec
    return view.view_as(TensorSpec(shape[::-1], strides[::-1], dtype))
