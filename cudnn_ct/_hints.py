"""Names that other libraries use, and how the same is written with this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .errors import warn_caller

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")

UNSET: Any = object()  # the default of required parameters


def _inverted(**table: str) -> dict[str, tuple[str, ...]]:
    """Return the names here for each name of another library; ``table`` has those of others by ours."""
    return {
        name: tuple(ours for ours, names in table.items() if name in names.split())
        for name in " ".join(table.values()).split()
    }


# Keywords of torch, jax, cupy, NumPy, TensorFlow and cuDNN: names of the same argument here. The first that
# the function has is meant.
_KEYWORDS = _inverted(
    coefficient="alpha negative_slope",
    lrn_alpha="alpha",
    bias="attn_mask b beta",
    axis="axes dim dims",
    lrn_beta="beta",
    blank="blank_id",
    mode="conv_mode count_include_pad pooling_type",
    dilation="dilation_rate dilations rhs_dilation",
    dropout="dropout_p dropout_rate",
    epsilon="eps",
    groups="feature_group_count group",
    x="input lhs operand",
    a="input lhs",
    logits="input log_probs",
    causal="is_causal",
    keepdims="keepdim",
    window="kernel_size ksize local_window_size pool_size window_dimensions window_shape",
    k="key",
    lengths_kv="key_value_seq_lengths",
    w="rhs weight weights",
    b="other rhs",
    scale="gamma weight weights",
    out="output",
    x_shape="output_size",
    output_padding="output_size",
    padding="pad pads border_mode",
    projection_size="proj_size",
    q="query",
    lengths_q="query_seq_lengths",
    running_var="running_variance",
    var="running_var running_variance variance",
    mean="running_mean",
    n="size",
    shape="size",
    stride="strides window_strides subsample",
    labels="target targets",
    label_lengths="target_lengths",
    v="value",
    residual="z",
)

# Former names of parameters, by function: they have an effect, and warn.
_FORMER = {
    "batch_norm_training": {"z": "residual"},
    "conv_bias_activation": {"b": "bias", "z": "residual"},
    "conv_scale_bias_activation": {"z": "residual"},
}

# Keywords that other libraries take by position after the operands; by default the function's own, in order.
_ORDER = {
    "conv": "bias stride padding dilation groups",
    "conv_transpose": "bias stride padding output_padding groups dilation",
    **dict.fromkeys(("softmax", "reduce", "reduce_with_indices"), "axis"),
    "attention": "bias dropout causal scale",
    "grid_sample": "mode padding_mode align_corners",
    "affine_grid": "align_corners",
}
_WINDOW_OF_W = {
    "kernel_size": "the window is that of w, (K, C / groups, *window)",
    "dim": "the number of spatial axes is that of x, (N, C, *spatial)",
    "eps": "call ct.batch_norm_inference for a normalisation",
}
_AXES_OF_SCALE = dict.fromkeys(("axis", "dim", "normalized_shape"), "the axes are the last, those of scale")

# Keywords without a counterpart in the function: what to do instead, by function or for all ("").
_ADVICE: dict[str, dict[str, str]] = {
    "": {
        "benchmark": "write algo='autotune'",
        "ceil_mode": "sizes are rounded down: pass padding=((before, after), ...) for a larger result",
        "data_format": "the operands are (N, C, *spatial): ct.transform(x, layout='nhwc') has other strides",
        "device": "use the block `with ct.use(device=0):`",
        "dimension_numbers": "the operands are (N, C, *spatial) and (K, C / groups, *window)",
        "inplace": "write out=x",
        "order": "write layout='nchw' or layout='nhwc'",
        "preferred_element_type": "the result has the dtype of the operands, or that of out=",
        "requires_grad": "call the function with the suffix _backward for gradients",
        "return_indices": "call ct.reduce_with_indices",
        "training": "call ct.batch_norm_training or ct.batch_norm_inference",
    },
    "conv": {
        **_WINDOW_OF_W,
        "bias": "call ct.conv_bias_activation(x, w, bias, activation='identity')",
        "activation": "call ct.conv_bias_activation(x, w, bias, activation='relu')",
        "lhs_dilation": "call ct.conv_transpose(x, w, stride=...)",
        "padding_mode": "padding is zeros: pad x first for other modes",
    },
    "conv_bias_activation": _WINDOW_OF_W,
    "conv_transpose": {**_WINDOW_OF_W, "bias": "call ct.add(y, bias) with a bias of shape (1, K, 1, ...)"},
    "pool": {"padding_mode": "padding is ignored by 'max' and 'average_exc_pad'"},
    "reduce": {"dtype": "cast with x.astype(dtype) first", "where": "multiply by a mask first"},
    "softmax": {"dtype": "cast with x.astype(dtype) first", "temperature": "divide x by it first"},
    "attention": {"enable_gqa": "q may have a multiple of the heads of k and v"},
    "layer_norm": _AXES_OF_SCALE,
    "rms_norm": _AXES_OF_SCALE,
    "grid_sample": {
        "align_corners": "corners are aligned, as by align_corners=True",
        "padding_mode": "points outside of x are 0",
        "mode": "the interpolation is bilinear",
    },
    "affine_grid": {"align_corners": "corners are aligned, as by align_corners=True"},
    "matmul": {
        **dict.fromkeys(("transpose_a", "transpose_b", "transA", "transB"), "pass a transposed view"),
        "c": "write residual=",
    },
    "RNN": {
        "batch_first": "pass layout='batch_major' to forward",
        "bidirectional": "write direction='bidirectional'",
        "nonlinearity": "write the mode 'rnn_tanh' or 'rnn_relu'",
    },
    "dropout": {"p": "write ct.DropoutState(p), which is the second argument"},
    "ctc_loss": {
        "reduction": "the result has one loss per sequence",
        "zero_infinity": "write out_of_bound='zero'",
    },
}

# Public names of torch.nn.functional, jax.lax, jax.nn, cupy and NumPy.
_ATTRIBUTES = {
    name: ours
    for ours, names in {
        "conv(x, w)": "conv1d conv2d conv3d convolution convolve conv_general_dilated Conv1d Conv2d Conv3d",
        "conv_transpose(x, w)": "conv_transpose1d conv_transpose2d conv_transpose3d",
        "activation(x, mode='relu')": "relu",
        "activation(x, mode='sigmoid')": "sigmoid",
        "activation(x, mode='tanh')": "tanh",
        "activation(x, mode='elu')": "elu",
        "activation(x, mode='swish')": "silu swish",
        "activation(x, mode='clipped_relu')": "relu6 clipped_relu",
        "pool(x, window=..., mode='max')": "max_pool1d max_pool2d max_pool3d max_pool maxpool MaxPool2d",
        "pool(x, window=..., mode='average')": "avg_pool1d avg_pool2d avg_pool3d avg_pool avgpool AvgPool2d",
        "softmax(x, algo='log')": "log_softmax",
        "batch_norm_training or batch_norm_inference": "batch_norm batch_normalization batchnorm BatchNorm2d",
        "attention(q, k, v)": "scaled_dot_product_attention dot_product_attention sdpa",
        "matmul(x, w.T, bias=b)": "linear Linear",
        "lrn(x)": "local_response_norm",
        "matmul(a, b)": "dot mm bmm gemm einsum dot_general",
        "reduce(x, op='add')": "sum",
        "reduce(x, op='average')": "mean",
        "reduce(x, op='mul')": "prod",
        "reduce(x, op='max')": "max amax",
        "reduce(x, op='min')": "min amin",
        "reduce_with_indices(x, op=..., axis=...)": "argmax argmin",
        "asarray(x), and x.numpy() for the host": "tensor as_tensor from_dlpack from_numpy asnumpy randn",
        "full(shape, 1)": "ones full_like",
        "op_tensor(a, b, op='mul')": "multiply mul",
        "Graph(), which has more activations": "gelu softplus",
        "RNN('lstm', input_size, hidden_size)": "LSTM lstm",
        "RNN('gru', input_size, hidden_size)": "GRU gru",
        "layer_norm(x, scale, bias)": "LayerNorm",
        "rms_norm(x, scale)": "RMSNorm",
        "conv and other functions; modules for PyTorch are in cudnn_ct.torch.nn": "nn",
        "grid_sample(x, grid)": "interpolate resize",
        "config": "backends",
        "version()": "cudnn_version",
        "available()": "is_available",
        "DeviceArray": "Tensor ndarray",
        "conv_backward_data and others for gradients: calls record none": "no_grad grad value_and_grad",
        "capture": "compile jit",
    }.items()
    for name in names.split()
}

# Words of other libraries for values: the words here, of which the allowed one is meant.
_WORDS = _inverted(
    average="avg mean",
    add="sum",
    mul="prod product",
    norm1="l1",
    norm2="l2",
    nhwc="channels_last channels_last_3d ndhwc nwc",
    nchw="channels_first contiguous_format ncdhw ncw",
    identity="linear",
    float32="fp32 highest",
    log="log_softmax",
    rnn_tanh="tanh",
    rnn_relu="relu",
)

_DTYPES = _inverted(
    **{"float16": "fp16 half", "float32": "fp32 tf32 float", "float64": "fp64 double", "bfloat16": "bf16"},
    **{"float8_e4m3": "e4m3 fp8_e4m3 float8_e4m3fn", "float8_e5m2": "e5m2 fp8_e5m2"},
    **{"int8": "s8", "int32": "int", "int64": "long"},
)


def known_keywords(function: Function) -> Function:
    """Let a function see wrong, superfluous and missing arguments, for which it calls :func:`corrected`.

    Required parameters get the default ``UNSET``: otherwise Python reports a missing argument before the
    function sees the keyword that was meant for it. The signature has no ``*more`` and ``**unknown``.
    """
    import inspect

    signature = inspect.signature(function)
    accepted = [one for one in signature.parameters.values() if one.name not in ("more", "unknown")]
    if len(accepted) == len(signature.parameters):
        return function
    function.__signature__ = signature.replace(parameters=accepted)  # type: ignore[attr-defined]
    known = {one.name: UNSET if one.default is one.empty else one.default for one in accepted}
    named = {one.name: known.pop(one.name) for one in accepted if one.kind is one.KEYWORD_ONLY}
    function.__defaults__, function.__kwdefaults__ = tuple(known.values()), named
    return function


def corrected(function: Callable[..., Result], given: Mapping[str, Any]) -> Result:
    """Call a function by the present names of its parameters, or raise a TypeError.

    ``given`` are its local variables. The error has the right spelling of a keyword, or missing arguments.
    """
    known, former = dict(given), _FORMER.get(function.__name__.removesuffix("_plan"), {})
    if more := known.pop("more", ()):
        raise _by_position(function, len(more))
    for name, value in known.pop("unknown").items():
        new = former.get(name)
        if new is None or not (known[new] is UNSET or known[new] is None):
            raise _unknown_keyword(function, name)
        warn_caller(f"{function.__name__}({name}=) is deprecated; write {new}=", DeprecationWarning)
        known[new] = value
    if given["unknown"]:
        return function(**known)
    missing = [repr(name) for name, value in given.items() if value is UNSET]
    name = _name(function)
    raise TypeError(f"{name}() missing required argument{'s' * (len(missing) > 1)}: {', '.join(missing)}")


def _name(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _by_position(function: Callable[..., Any], more: int) -> TypeError:
    """Return the error for ``more`` arguments by position than the function has, with their keywords."""
    import inspect  # only for an error

    name, parameters = _name(function), inspect.signature(function).parameters
    kinds = {one.name: one.kind for one in parameters.values() if one.name != "self"}
    keywords = [one for one, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    meant = _ORDER[name].split() if name in _ORDER else keywords
    advice = "; ".join(_advice(name, keyword, list(kinds)) for keyword in meant[:more])
    taken = len(kinds) - len(keywords)
    return TypeError(f"{name}() got {taken + more} positional arguments, expected {taken}; {advice}")


def _unknown_keyword(function: Callable[..., Any], keyword: str) -> TypeError:
    import inspect  # only for an error

    name = _name(function)
    advice = _advice(name, keyword, list(inspect.signature(function).parameters))
    return TypeError(f"{name}() got an unexpected keyword argument {keyword!r}; {advice}")


def _advice(name: str, keyword: str, accepted: list[str]) -> str:
    """Return how a keyword of another library is written for the function of this name."""
    import difflib  # only for an error

    advice = _ADVICE.get(name, {}).get(keyword)
    meant = next((one for one in (keyword, *_KEYWORDS.get(keyword, ())) if one in accepted), None)
    if advice is None and meant is None:
        advice = _ADVICE[""].get(keyword)
    if advice is None:
        close = [meant] if meant else difflib.get_close_matches(keyword, accepted, 1, 0.7)
        advice = f"write {close[0]}=" if close else f"expected one of {', '.join(accepted)}"
    return advice


def attribute_hint(name: str, public: Iterable[str]) -> str:
    """Return how a name of another library, or a misspelt one, is written; empty if nothing is close."""
    if name.startswith("_"):
        return ""
    if f" {name} " in " torch jax cupy ":  # packages that a program imports itself
        return f"; write import cudnn_ct.{name}"
    import difflib  # only for an error

    close = difflib.get_close_matches(name, public, 1, 0.75)
    meant = _ATTRIBUTES.get(name) or (close[0] if close else "")
    return f"; write ct.{meant}" if meant else ""


def word_hint(word: object, allowed: Iterable[str]) -> str:
    """Return which of the allowed words means a word of another library, or is close to it; else nothing."""
    if not isinstance(word, str):
        return ""
    known = list(allowed)
    meant = [one for one in _WORDS.get(word.lower(), ()) if one in known]
    if word.lower().startswith("same") and "half" in known:
        return "; use 'half' for odd windows, which is the same at stride 1"
    if not meant and word.lower() in _ATTRIBUTES:  # a function of its own
        return f"; write ct.{_ATTRIBUTES[word.lower()]}"
    import difflib  # only for an error

    close = meant or difflib.get_close_matches(word.lower(), known, 1, 0.75)
    return f"; write {close[0]!r}" if close else ""


def dtype_hint(dtype: object, names: Iterable[str]) -> str:
    """Return the name of a dtype of another library, such as ``torch.float16``; else nothing."""
    text = str(getattr(dtype, "__name__", None) or dtype).rpartition(".")[2].lower()
    known = list(names)
    meant = [one for one in (text, *_DTYPES.get(text, ())) if one in known]
    return f"; write {meant[0]!r}" if meant else ""
