"""Names that other libraries use, and how the same is written with this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

__all__ = ["attribute_hint", "dtype_hint", "known_keywords", "unknown_keyword", "word_hint"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Keywords of torch, jax, cupy, NumPy, TensorFlow and cuDNN: names of the same argument here. The first that
# the function has is meant.
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "alpha": ("coefficient", "lrn_alpha"),
    "attn_mask": ("bias",),
    "axes": ("axis",),
    "b": ("bias",),
    "beta": ("bias", "lrn_beta"),
    "bias": ("b",),
    "blank_id": ("blank",),
    "conv_mode": ("mode",),
    "count_include_pad": ("mode",),
    "dilations": ("dilation",),
    "dilation_rate": ("dilation",),
    "dim": ("axis",),
    "dims": ("axis",),
    "dropout_p": ("dropout",),
    "dropout_rate": ("dropout",),
    "eps": ("epsilon",),
    "feature_group_count": ("groups",),
    "gamma": ("scale",),
    "group": ("groups",),
    "input": ("x", "a", "logits"),
    "is_causal": ("causal",),
    "keepdim": ("keepdims",),
    "kernel_size": ("window",),
    "ksize": ("window",),
    "key": ("k",),
    "key_value_seq_lengths": ("lengths_kv",),
    "lhs": ("x", "a"),
    "local_window_size": ("window",),
    "negative_slope": ("coefficient",),
    "operand": ("x",),
    "other": ("b",),
    "output": ("out",),
    "output_size": ("x_shape", "output_padding"),
    "pad": ("padding",),
    "pads": ("padding",),
    "pool_size": ("window",),
    "pooling_type": ("mode",),
    "proj_size": ("projection_size",),
    "query": ("q",),
    "query_seq_lengths": ("lengths_q",),
    "residual": ("z",),
    "rhs": ("w", "b"),
    "rhs_dilation": ("dilation",),
    "running_variance": ("running_var",),
    "size": ("n", "shape"),
    "strides": ("stride",),
    "target": ("labels",),
    "target_lengths": ("label_lengths",),
    "targets": ("labels",),
    "value": ("v",),
    "variance": ("var",),
    "weight": ("w", "scale"),
    "weights": ("w", "scale"),
    "window_dimensions": ("window",),
    "window_shape": ("window",),
    "window_strides": ("stride",),
    "z": ("residual",),
}

# Keywords without a counterpart in the function: what to do instead, by function or for all ("").
_ADVICE: dict[str, dict[str, str]] = {
    "": {
        "benchmark": "write algo='autotune'",
        "ceil_mode": "sizes are rounded down: pass padding=((before, after), ...) for a larger result",
        "data_format": "the operands are (N, C, *spatial); strides are the layout, as of "
        "ct.transform(x, layout='nhwc')",
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
        "bias": "call ct.conv_bias_activation(x, w, bias, activation='identity')",
        "activation": "call ct.conv_bias_activation(x, w, bias, activation='relu')",
        "lhs_dilation": "call ct.conv_transpose(x, w, stride=...)",
        "padding_mode": "padding is zeros: pad x first for other modes",
    },
    "conv_transpose": {"bias": "call ct.add(y, bias) with a bias of shape (1, K, 1, ...)"},
    "pool": {"padding_mode": "padding is ignored by 'max' and 'average_exc_pad'"},
    "reduce": {"dtype": "cast with x.astype(dtype) first", "where": "multiply by a mask first"},
    "softmax": {"dtype": "cast with x.astype(dtype) first", "temperature": "divide x by it first"},
    "attention": {
        "enable_gqa": "q may have a multiple of the heads of k and v",
    },
    "layer_norm": {"normalized_shape": "the axes are those of scale, the last ones of x"},
    "grid_sample": {
        "align_corners": "corners are aligned, as by align_corners=True",
        "padding_mode": "points outside of x are 0",
        "mode": "the interpolation is bilinear",
    },
    "affine_grid": {"align_corners": "corners are aligned, as by align_corners=True"},
    "matmul": {
        "transpose_a": "pass a transposed view",
        "transpose_b": "pass a transposed view",
        "transA": "pass a transposed view",
        "transB": "pass a transposed view",
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
_ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "convolution", "convolve", "conv_general_dilated"), "conv(x, w)"
    ),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), "conv_transpose(x, w)"),
    **{
        name: f"activation(x, mode={mode!r})"
        for name, mode in (
            ("relu", "relu"),
            ("sigmoid", "sigmoid"),
            ("tanh", "tanh"),
            ("elu", "elu"),
            ("silu", "swish"),
            ("swish", "swish"),
            ("relu6", "clipped_relu"),
            ("clipped_relu", "clipped_relu"),
        )
    },
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d", "max_pool"), "pool(x, window=..., mode='max')"
    ),
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool"), "pool(x, window=..., mode='average')"
    ),
    "log_softmax": "softmax(x, algo='log')",
    **dict.fromkeys(("batch_norm", "batch_normalization"), "batch_norm_training or batch_norm_inference"),
    **dict.fromkeys(("scaled_dot_product_attention", "dot_product_attention", "sdpa"), "attention(q, k, v)"),
    "linear": "matmul(x, w.T, bias=b)",
    "local_response_norm": "lrn(x)",
    **dict.fromkeys(("dot", "mm", "bmm", "gemm", "einsum", "dot_general"), "matmul(a, b)"),
    **{
        name: f"reduce(x, op={op!r})"
        for name, op in (
            ("sum", "add"),
            ("mean", "avg"),
            ("prod", "mul"),
            ("max", "max"),
            ("min", "min"),
            ("amax", "max"),
            ("amin", "min"),
        )
    },
    **dict.fromkeys(("argmax", "argmin"), "reduce_with_indices(x, op=..., axis=...)"),
    **dict.fromkeys(
        ("tensor", "as_tensor", "from_dlpack", "from_numpy", "asnumpy"),
        "asarray(x), and x.numpy() for the host",
    ),
    **dict.fromkeys(("ones", "full_like"), "full(shape, 1)"),
    "multiply": "op_tensor(a, b, op='mul')",
    "mul": "op_tensor(a, b, op='mul')",
    **dict.fromkeys(("gelu", "softplus"), "Graph(), which has more activations"),
    **dict.fromkeys(("LSTM", "GRU", "lstm", "gru"), "RNN('lstm', input_size, hidden_size)"),
    "backends": "config",
    "cudnn_version": "version()",
    "is_available": "available()",
    "Tensor": "DeviceArray",
    "ndarray": "DeviceArray",
    **dict.fromkeys(("no_grad", "grad", "value_and_grad"), "the functions with the suffix _backward"),
    "compile": "capture",
    "jit": "capture",
}

# Words of other libraries for values: the words here, of which the allowed one is meant.
_WORDS: dict[str, tuple[str, ...]] = {
    "avg": ("average",),
    "mean": ("avg", "average"),
    "sum": ("add",),
    "prod": ("mul",),
    "product": ("mul",),
    "l1": ("norm1",),
    "l2": ("norm2",),
    "channels_last": ("nhwc",),
    "channels_last_3d": ("nhwc",),
    "ndhwc": ("nhwc",),
    "nwc": ("nhwc",),
    "channels_first": ("nchw",),
    "contiguous_format": ("nchw",),
    "ncdhw": ("nchw",),
    "ncw": ("nchw",),
    "linear": ("identity",),
    "fp32": ("float32",),
    "highest": ("float32",),
    "log_softmax": ("log",),
    "tanh": ("rnn_tanh",),
    "relu": ("rnn_relu",),
}

_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "e4m3": "float8_e4m3",
    "e5m2": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "s8": "int8",
    "tf32": "float32",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "float8_e4m3fn": "float8_e4m3",
}


def known_keywords(function: Function) -> Function:
    """Hide the parameter ``**unknown`` of a function from its signature; it only collects mistakes."""
    import inspect

    signature = inspect.signature(function)
    accepted = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=accepted)  # type: ignore[attr-defined]
    return function


def unknown_keyword(function: Callable[..., Any], unknown: Mapping[str, object]) -> TypeError:
    """Return the error for keywords that a function does not have, with the spelling that it has."""
    import difflib  # only for an error
    import inspect

    keyword, accepted = next(iter(unknown)), inspect.signature(function).parameters
    name = function.__qualname__.removesuffix(".__init__")
    advice = _ADVICE.get(name, {}).get(keyword)
    meant = next((one for one in _KEYWORDS.get(keyword, ()) if one in accepted), None)
    if advice is None and meant is None:
        advice = _ADVICE[""].get(keyword)
    if advice is None:
        close = [meant] if meant else difflib.get_close_matches(keyword, accepted, 1)
        advice = f"write {close[0]}=" if close else f"expected one of {', '.join(accepted)}"
    return TypeError(f"{name}() got an unexpected keyword argument {keyword!r}; {advice}")


def attribute_hint(name: str, public: Iterable[str]) -> str:
    """Return how a name of another library, or a misspelt one, is written; empty if nothing is close."""
    if name.startswith("_"):
        return ""
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
    meant = text if text in known else _DTYPES.get(text)
    return f"; write {meant!r}" if meant in known else ""
