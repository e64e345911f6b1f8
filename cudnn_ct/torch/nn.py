"""Modules of PyTorch on cuDNN's operations, with the parameter names of torch's modules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .images import conv, conv_bias_activation, conv_transpose
from .norms import batch_norm, layer_norm, rms_norm
from .products import attention
from .recurrent import rnn

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Attention",
    "BatchNormActivation",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvBiasActivation1d",
    "ConvBiasActivation2d",
    "ConvBiasActivation3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "LayerNorm",
    "RMSNorm",
]


def _geometry(module: Any) -> dict[str, Any]:
    return {
        "stride": module.stride,
        "padding": module.padding,
        "dilation": module.dilation,
        "groups": module.groups,
    }


def _padded(module: Any, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return an image with the padding that is not of zeros, and the geometry of the convolution."""
    geometry = _geometry(module)
    if module.padding_mode == "zeros":
        return x, geometry
    padding = module.padding
    if isinstance(padding, str):
        raise ValueError(f"padding_mode {module.padding_mode!r} needs numbers: got padding {padding!r}")
    sides = [side for one in reversed(padding) for side in (one, one)]
    return F.pad(x, sides, mode=module.padding_mode), geometry | {"padding": 0}


class _Conv:
    """The forward pass of convolutions."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """Convolve, as :func:`cudnn_ct.torch.conv`."""
        padded, geometry = _padded(self, x)
        return conv(padded, self.weight, self.bias, **geometry)


class Conv1d(_Conv, nn.Conv1d):  # type: ignore[misc]
    """:class:`torch.nn.Conv1d` by :func:`cudnn_ct.torch.conv`."""


class Conv2d(_Conv, nn.Conv2d):  # type: ignore[misc]
    """:class:`torch.nn.Conv2d` by :func:`cudnn_ct.torch.conv`."""


class Conv3d(_Conv, nn.Conv3d):  # type: ignore[misc]
    """:class:`torch.nn.Conv3d` by :func:`cudnn_ct.torch.conv`."""


class _ConvBiasActivation:
    """A convolution with residual and activation.

    Parameters
    ----------
    activation : str
        As in :func:`cudnn_ct.torch.conv_bias_activation`.
    coefficient : float
    *args, **keywords
        As of torch's convolution.
    """

    def __init__(
        self: Any, *args: Any, activation: str = "relu", coefficient: float = 0.0, **keywords: Any
    ) -> None:
        super().__init__(*args, **keywords)
        self.activation, self.coefficient = activation, coefficient

    def forward(self: Any, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute ``act(conv(x) + residual + bias)``."""
        padded, geometry = _padded(self, x)
        active = {"activation": self.activation, "coefficient": self.coefficient}
        return conv_bias_activation(padded, self.weight, self.bias, residual, **active, **geometry)

    def extra_repr(self: Any) -> str:
        """Describe the parameters."""
        return f"{super().extra_repr()}, activation={self.activation!r}"  # type: ignore[misc]


class ConvBiasActivation1d(_ConvBiasActivation, nn.Conv1d):  # type: ignore[misc]
    """:class:`torch.nn.Conv1d` with residual and activation in the same call.

    ``activation`` and ``coefficient`` are those of :func:`cudnn_ct.torch.conv_bias_activation`. The residual
    is the second argument of a call.
    """


class ConvBiasActivation2d(_ConvBiasActivation, nn.Conv2d):  # type: ignore[misc]
    """:class:`torch.nn.Conv2d` with residual and activation, as :class:`ConvBiasActivation1d`."""


class ConvBiasActivation3d(_ConvBiasActivation, nn.Conv3d):  # type: ignore[misc]
    """:class:`torch.nn.Conv3d` with residual and activation, as :class:`ConvBiasActivation1d`."""


class _ConvTranspose:
    """The forward pass of transposed convolutions."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """Convolve transposed, as :func:`cudnn_ct.torch.conv_transpose`."""
        output_padding = {"output_padding": self.output_padding}
        return conv_transpose(x, self.weight, self.bias, **output_padding, **_geometry(self))


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):  # type: ignore[misc]
    """:class:`torch.nn.ConvTranspose1d` by :func:`cudnn_ct.torch.conv_transpose`, without ``output_size``."""


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):  # type: ignore[misc]
    """:class:`torch.nn.ConvTranspose2d` by :func:`cudnn_ct.torch.conv_transpose`, without ``output_size``."""


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):  # type: ignore[misc]
    """:class:`torch.nn.ConvTranspose3d` by :func:`cudnn_ct.torch.conv_transpose`, without ``output_size``."""


class BatchNormActivation(nn.BatchNorm2d):  # type: ignore[misc]
    """:class:`torch.nn.BatchNorm2d`, of any number of axes, with residual and relu in the same call.

    Parameters
    ----------
    num_features : int
    activation : {"relu"}, optional
    **keywords
        As of :class:`torch.nn.BatchNorm2d`. Parameters are float32 also for half precision.
    """

    def __init__(self, num_features: int, *, activation: str | None = "relu", **keywords: Any) -> None:
        super().__init__(num_features, **keywords)
        if not self.affine:
            raise ValueError("affine must be True: cuDNN needs a scale and a bias")
        if self.momentum is None:
            raise ValueError("momentum must be a number: got None; a cumulative average is not supported")
        self.activation = activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute ``act(batch_norm(x) + residual)``."""
        training = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        running = (self.running_mean, self.running_var)
        added = {"activation": self.activation, "residual": residual}
        return batch_norm(x, *running, self.weight, self.bias, training, self.momentum, self.eps, **added)


class LayerNorm(nn.LayerNorm):  # type: ignore[misc]
    """:class:`torch.nn.LayerNorm` by :func:`cudnn_ct.torch.layer_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axes."""
        if self.weight is None:
            raise ValueError("elementwise_affine must be True: cuDNN needs a scale")
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(nn.RMSNorm):  # type: ignore[misc]
    """:class:`torch.nn.RMSNorm` by :func:`cudnn_ct.torch.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        """Divide the last axes by their root mean square."""
        if self.weight is None:
            raise ValueError("elementwise_affine must be True: cuDNN needs a scale")
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return rms_norm(x, self.weight, eps=eps)


class Attention(nn.MultiheadAttention):  # type: ignore[misc]
    """Multi-head attention with the parameters of :class:`torch.nn.MultiheadAttention`, batch first.

    Parameters
    ----------
    embed_dim, num_heads : int
    bias : bool
    **keywords
        ``device`` and ``dtype``.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, bias: bool = True, **keywords: Any) -> None:
        super().__init__(embed_dim, num_heads, bias=bias, batch_first=True, **keywords)

    def forward(
        self, query: Tensor, key: Tensor | None = None, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attend from the query, shape (B, Sq, E), to the key, shape (B, Skv, E), which is also the value.

        ``key`` is the query by default. ``mask`` is the ``bias`` of :func:`cudnn_ct.torch.attention`.
        """
        width = self.embed_dim
        weights, bias = self.in_proj_weight, self.in_proj_bias
        if key is None:
            q, k, v = F.linear(query, weights, bias).chunk(3, -1)
        else:
            biases = (None, None) if bias is None else (bias[:width], bias[width:])
            q = F.linear(query, weights[:width], biases[0])
            k, v = F.linear(key, weights[width:], biases[1]).chunk(2, -1)
        q, k, v = (one.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for one in (q, k, v))
        y = attention(q, k, v, mask, causal=causal)
        projected: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return projected


class _Recurrent(nn.RNNBase):  # type: ignore[misc]
    """The forward pass of recurrent networks; torch's compiler does not trace torch's own classes."""

    def forward(self, x: Any, hx: Any = None) -> tuple[Any, Any]:
        """Run over sequences from the first states ``hx``: the output, and the states after it."""
        states = (hx,) if isinstance(hx, Tensor) else hx or ()
        if isinstance(x, PackedSequence):
            data, sizes, order, back = x
            y, last = self._run(data, [_permuted(one, order) for one in states], batch_sizes=sizes)
            return PackedSequence(y, sizes, order, back), self._last([_permuted(one, back) for one in last])
        if x.dim() == 2:
            axis = 0 if self.batch_first else 1
            y, last = self._run(x.unsqueeze(axis), [one.unsqueeze(1) for one in states])
            return y.squeeze(axis), self._last([one.squeeze(1) for one in last])
        y, last = self._run(x, states)
        return y, self._last(last)

    def _run(self, x: Tensor, states: Any, batch_sizes: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        weights = [getattr(self, name) for name in self._flat_weights_names]
        h0, c0 = (*states, None, None)[:2]
        facts: dict[str, Any] = {"bidirectional": self.bidirectional, "batch_first": self.batch_first}
        facts |= {"dropout": self.dropout, "training": self.training, "mode": self.mode.lower()}
        y, *last = rnn(x, weights, h0, c0, batch_sizes=batch_sizes, **facts)
        return y, [one for one in last if one is not None]

    def _last(self, states: list[Tensor]) -> Any:
        return tuple(states) if self.mode == "LSTM" else states[0]


def _permuted(state: Tensor, order: Tensor | None) -> Tensor:
    return state if order is None else state.index_select(1, order)


class LSTM(_Recurrent):
    """:class:`torch.nn.LSTM` by :func:`cudnn_ct.torch.rnn`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__("LSTM", *args, **keywords)


class GRU(_Recurrent):
    """:class:`torch.nn.GRU` by :func:`cudnn_ct.torch.rnn`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__("GRU", *args, **keywords)
        _without_projection(self)


class RNN(_Recurrent):
    """:class:`torch.nn.RNN` by :func:`cudnn_ct.torch.rnn`."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        *args: Any, **keywords: Any,
    ) -> None:  # fmt: skip
        sizes = (input_size, hidden_size, num_layers)
        super().__init__(f"RNN_{nonlinearity.upper()}", *sizes, *args, **keywords)
        self.nonlinearity = nonlinearity
        _without_projection(self)


def _without_projection(module: Any) -> None:
    if module.proj_size:
        raise ValueError(f"proj_size is supported by LSTM only: got {module.proj_size}")
