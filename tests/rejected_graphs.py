"""Graphs that cuDNN rejects, as public reports describe them: each with its address, GPU and the cause."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

from cudnn_ct.graph.operations import Graph, Tensor, node
from cudnn_ct.shapes.conv import ROLES, conv_output_shape
from cudnn_ct.shapes.specs import Shape, packed_strides
from cudnn_ct.typing import Layout
from tests.graph_kinds.draft import Draft

__all__ = ["REJECTED", "Rejected"]


class Rejected(NamedTuple):
    """One configuration: where it was reported, the architecture of its GPU, and words for the cause.

    A message names the cause if it has one of these words.
    """

    url: str
    sm: int
    graph: Callable[[], Graph]
    causes: tuple[str, ...]


class Tensors(Draft):
    """A graph in the making, whose tensors have strides or a layout."""

    def tensor(self, shape: Shape, dtype: str, strides: Layout | Shape | None = None, **facts: Any) -> Tensor:
        return super().tensor(
            shape, dtype, packed_strides(shape, strides) if isinstance(strides, str) else strides, **facts
        )

    __call__ = tensor

    def named(self, make: Callable[..., Tensor], names: str, *spec: Any) -> dict[str, Tensor]:
        """Make a tensor for each attribute."""
        return {name: make(*spec) for name in names.split()}


def attention(
    dtype: str = "bfloat16",
    *,
    heads: int = 8,
    kv_heads: int = 8,
    rows: int = 256,
    keys: int = 256,
    width: int = 64,
    v_width: int = 0,
    result: str = "",
    ragged: bool = False,
    paged: bool = False,
    lengths: bool = True,
    sink: str = "",
    dropout: float = 0.0,
    k_dtype: str = "",
    stats: str = "",
    layout: Layout = "nchw",
) -> Graph:
    """One SDPA node; ``stats`` is the dtype of the statistics, if they are a result."""
    draft, batch, one = Tensors(), 2, (1, 1, 1, 1)
    offsets = [draft.input((batch + 1, 1, 1, 1), "int64") if ragged else None for _ in range(2)]
    q = draft.input((batch, heads, rows, width), dtype, layout, ragged=offsets[0])
    blocks, length = (64, 64) if paged else (batch, keys)
    k = draft.input((blocks, kv_heads, length, width), k_dtype or dtype, layout, ragged=offsets[1])
    v = draft.input((blocks, kv_heads, length, v_width or width), dtype, layout, ragged=offsets[1])
    more: dict[str, Any] = {}
    if lengths and (ragged or paged):
        more |= draft.named(draft.input, "seq_len_qdesc seq_len_kvdesc", (batch, 1, 1, 1), "int32")
    if paged:
        tables = "page_table_kdesc page_table_vdesc"
        more |= draft.named(draft.input, tables, (batch, 1, keys // 64, 1), "int32")
    if dropout:
        more |= draft.named(draft.input, "dropout_seed_desc dropout_offset_desc", one, "int64")
    if sink:
        more["sink_desc"] = draft.input((1, heads, 1, 1), sink)
    if dtype.startswith("float8"):
        scales = "descale_qdesc descale_kdesc descale_vdesc descale_sdesc scale_sdesc scale_odesc"
        more |= draft.named(draft.input, scales, one, "float32")
    if dropout:
        more["dropout_probability"] = dropout
    o = draft.result((batch, heads, rows, v_width or width), result or dtype, layout, ragged=offsets[0])
    if dtype.startswith("float8"):
        more |= draft.named(draft.result, "amax_sdesc amax_odesc", one, "float32")
    if stats:
        more["statsdesc"] = draft.result((batch, heads, rows, 1), stats)
    scale = draft.value(1 / sqrt(width))
    draft.add("sdpa_forward", qdesc=q, kdesc=k, vdesc=v, odesc=o, scaledesc=scale, **more)
    return draft.graph()


def attention_backward(
    dtype: str = "bfloat16",
    *,
    width: int = 64,
    v_width: int = 0,
    rows: int = 256,
    sink: str = "",
    ragged: bool = False,
) -> Graph:
    """One node for the gradients of attention; ``sink`` is the dtype of the sinks, if there are any."""
    tensor = Tensors()
    more: dict[str, Any] = {}
    offsets = tensor((3, 1, 1, 1), "int64") if ragged else None
    first = (offsets,) if offsets else ()
    if ragged:
        more = {name: tensor((2, 1, 1, 1), "int32") for name in ("seq_len_qdesc", "seq_len_kvdesc")}
    if sink:
        more = {name: tensor((1, 8, 1, 1), sink) for name in ("sink_desc", "dsink_desc")}
    wide, narrow = (2, 8, rows, width), (2, 8, rows, v_width or width)
    q, k, v, o, do = (tensor(shape, dtype, ragged=offsets) for shape in (wide, wide, narrow, narrow, narrow))
    rest = tensor((2, 8, rows, 1), "float32")
    dq, dk, dv = (tensor(shape, dtype, ragged=offsets) for shape in (wide, wide, narrow))
    names = ("qdesc", "kdesc", "vdesc", "odesc", "doddesc", "statsdesc", "dqdesc", "dkdesc", "dvdesc")
    operands = (q, k, v, o, do, rest, dq, dk, dv)
    scale = tensor.value(1 / sqrt(width))
    one = node("sdpa_backward", scaledesc=scale, **dict(zip(names, operands, strict=True)), **more)
    return Graph((one,), (*first, *operands, *more.values()))


def composed_attention(
    dtype: str = "bfloat16", *, width: int = 64, rows: int = 256, compute: str = "float32"
) -> Graph:
    """Attention as single operations: product, scale, softmax, product."""
    draft, shape = Tensors(), (2, 8, rows, width)
    q, v, o = (draft.tensor(shape, dtype) for _ in range(3))
    k = draft.tensor((2, 8, width, rows), dtype, (8 * rows * width, rows * width, 1, width))

    def pointwise(mode: str, x: Tensor, b: Tensor | None = None, kept: str = "float32") -> Tensor:
        return draft.pointwise(mode, x, b, dtype=kept, compute=compute)

    def reduction(operator: str, x: Tensor) -> Tensor:
        y = draft.virtual((2, 8, rows, 1))
        draft.add("reduction", operator=operator, comp_type=compute, xdesc=x, ydesc=y)
        return y

    score = draft.matmul(q, k, draft.virtual((2, 8, rows, rows)), compute)
    score = pointwise("mul", score, draft.value(1 / sqrt(width)))
    largest = reduction("max", score)
    powers = pointwise("exp", pointwise("sub", score, largest))
    total = reduction("add", powers)
    pointwise("add", largest, pointwise("log", total))
    draft.matmul(pointwise("div", powers, total, dtype), v, o, compute)
    return Graph(tuple(draft.nodes), (q, k, v, o))


def convolution(
    x: Shape,
    w: Shape,
    dtype: str = "float16",
    layout: Layout = "nhwc",
    *,
    direction: str = "forward",
    result: str = "",
    compute: str = "float32",
    w_dtype: str = "",
    w_layout: Layout | None = None,
    y_layout: Layout | None = None,
    padding: int = 1,
    stride: int = 1,
    steps: tuple[str, ...] = (),
    bias: str = "",
) -> Graph:
    """A convolution, with a bias of a dtype and pointwise operations behind it."""
    tensor, axes = Tensors(), len(x) - 2
    y = conv_output_shape(x, w, padding=padding, stride=stride, dilation=1, groups=x[1] // w[1])
    roles = ROLES[direction]
    specs = {
        "x": tensor(x, dtype, layout),
        "w": tensor(w, w_dtype or dtype, w_layout or layout),
        "y": tensor(y, dtype, y_layout or layout),
    }
    last = roles.operands[-1]
    if result:
        specs[last] = specs[last]._replace(spec=specs[last].spec._replace(dtype=result))
    steps = ("add", *steps) if bias else steps
    between = [tensor(y, "float32", y_layout or layout, virtual=True) for _ in steps]
    outputs = [*between, specs[last]]
    named = dict(zip(roles.operands, roles.names, strict=True))
    ends: dict[str, Any] = {named[name]: one for name, one in specs.items()} | {named[last]: outputs[0]}
    nodes = [
        node(
            f"conv_{direction}",
            **ends,
            alpha=1.0,
            beta=0.0,
            comp_type=compute,
            conv_mode="cross_correlation",
            spatial_dims=axes,
            pre_paddings=[padding] * axes,
            post_paddings=[padding] * axes,
            filter_strides=[stride] * axes,
            dilations=[1] * axes,
        )
    ]
    inputs = [specs[name] for name in roles.operands[:-1]]
    for mode, read, written in zip(steps, outputs, outputs[1:], strict=False):
        more = {}
        if mode == "add":
            more["bdesc"] = tensor((1, w[0], *(1,) * axes), bias or dtype, layout)
            inputs.append(more["bdesc"])
        nodes.append(node("pointwise", mode=mode, math_prec=compute, xdesc=read, ydesc=written, **more))
    return Graph(tuple(nodes), (*inputs, specs[last]))


def matmul(
    a: str, b: str, c: str, compute: str = "float32", *, sizes: tuple[int, int, int] = (256, 128, 64),
    epilogue: str = "", transposed: bool = False,
) -> Graph:  # fmt: skip
    """A product of matrices of these dtypes."""
    tensor, (rows, inner, columns) = Tensors(), sizes
    x = tensor((1, rows, inner), a)
    strides = (inner * columns, 1, inner) if transposed else (inner * columns, columns, 1)
    y, z = tensor((1, inner, columns), b, strides), tensor((1, rows, columns), c)
    if not epilogue:
        return Graph((node("matmul", comp_type=compute, adesc=x, bdesc=y, cdesc=z),), (x, y, z))
    between = tensor((1, rows, columns), compute, virtual=True)
    first = node("matmul", comp_type=compute, adesc=x, bdesc=y, cdesc=between)
    second = node("pointwise", mode=epilogue, math_prec=compute, xdesc=between, ydesc=z)
    return Graph((first, second), (x, y, z))


def norm(
    mode: str,
    x: Shape = (512, 1024, 1, 1),
    dtype: str = "bfloat16",
    layout: Layout = "nchw",
    *,
    weights: str = "float32",
    statistics: str = "float32",
    phase: str = "training",
    activation: str = "",
) -> Graph:
    """A normalisation with scale and bias; mean and inverse deviation are results of training."""
    tensor, rank = Tensors(), len(x)
    weight = (1, x[1], *x[2:]) if mode in ("layer_norm", "rms_norm") else (1, x[1], *(1,) * (rank - 2))
    row = {"batch_norm": (1, x[1]), "instance_norm": x[:2]}.get(mode, (x[0], 1))
    row = (*row, *(1,) * (rank - 2))
    source, scale, bias = tensor(x, dtype, layout), tensor(weight, weights), tensor(weight, weights)
    y = tensor(x, dtype, layout)
    more: dict[str, Any] = {}
    if phase == "training" or mode == "batch_norm":
        more = {name: tensor(row, statistics) for name in ("mean_desc", "inv_variance_desc")}
    results = list(more.values()) if phase == "training" else []
    inputs = [source, scale, bias, *([] if phase == "training" else more.values())]
    if mode == "batch_norm" and phase == "training":
        for name in ("input_running_mean_desc", "input_running_var_desc"):
            more[name] = tensor(row, statistics)
            inputs.append(more[name])
        for name in ("output_running_mean_desc", "output_running_var_desc"):
            more[name] = tensor(row, statistics)
            results.append(more[name])
        more["exp_avg_factor_desc"] = tensor.value(0.1, rank=rank)
    written = tensor(x, "float32", layout, virtual=True) if activation else y
    if mode != "batch_norm" or phase == "training":
        more["epsilon_desc"] = tensor.value(1e-5, rank=rank)
    nodes = [
        node(
            "norm_forward", mode=mode, phase=phase, xdesc=source, scale_desc=scale, bias_desc=bias,
            ydesc=written, **more,
        )
    ]  # fmt: skip
    if activation:
        nodes.append(node("pointwise", mode=activation, math_prec="float32", xdesc=written, ydesc=y))
    return Graph(tuple(nodes), (*inputs, y, *results))


def transposed_copy() -> Graph:
    tensor = Tensors()
    x, y = tensor((2, 2, 3), "float32"), tensor((2, 2, 3), "float32", (6, 1, 2))
    return Graph((node("pointwise", mode="identity", math_prec="float32", xdesc=x, ydesc=y),), (x, y))


def two_convolutions() -> Graph:
    first = convolution((1, 1, 64, 64), (1, 1, 3, 3), "float32", padding=0)
    second = convolution((1, 1, 62, 62), (1, 1, 3, 3), "float32", padding=0)
    x, w, y = first.operands
    between = y._replace(virtual=True)
    other, last = (one._replace(uid=one.uid + 10) for one in second.operands[1:])
    nodes = (
        first.nodes[0]._replace(attributes={**first.nodes[0].attributes, "y": between}),
        second.nodes[0]._replace(
            attributes={**second.nodes[0].attributes, "x": between, "w": other, "y": last}
        ),
    )
    return Graph(nodes, (x, w, other, last))


def part() -> Graph:
    tensor = Tensors()
    x, y = tensor((2, 8, 16, 16), "float32"), tensor((2, 8, 8, 16), "float32", (2048, 256, 16, 1))
    one = node(
        "slice",
        xdesc=x,
        ydesc=y,
        start_indices=(0, 0, 0, 0),
        limit_indices=(2, 8, 8, 16),
        strides=(1, 1, 1, 1),
    )
    return Graph((one,), (x, y))


FE = "https://github.com/NVIDIA/cudnn-frontend/issues"
TE = "https://github.com/NVIDIA/TransformerEngine/issues"
TORCH = "https://github.com/pytorch/pytorch"
JAX = "https://github.com/jax-ml/jax"
REJECTED: dict[str, Rejected] = {
    # heads of attention
    "backward, heads of 192 and 128": Rejected(
        f"{TE}/1591", 80, lambda: attention_backward("float16", width=192, v_width=128), ("head width",)
    ),
    "backward, heads of 256": Rejected(
        f"{TE}/1115", 80, lambda: attention_backward(width=256), ("head width",)
    ),
    "backward, heads of 128 and 144": Rejected(
        f"{TORCH}/issues/129579", 80, lambda: attention_backward(width=128, v_width=144), ("head width",)
    ),
    "backward, heads of 256 in PyTorch": Rejected(
        f"{TORCH}/pull/130494", 89, lambda: attention_backward("float16", width=256), ("head width",)
    ),
    "backward, heads of 256 in JAX": Rejected(
        f"{JAX}/pull/24607", 86, lambda: attention_backward(width=256), ("head width",)
    ),
    "backward, heads of 256 in Keras": Rejected(
        "https://github.com/keras-team/keras/pull/21333",
        80,
        lambda: attention_backward("bfloat16", width=256, rows=512),
        ("head width",),
    ),
    "backward, latent heads in JAX": Rejected(
        f"{JAX}/pull/28872", 86, lambda: attention_backward(width=192, v_width=128), ("head width",)
    ),
    "backward, heads of 192": Rejected(
        f"{FE}/242", 103, lambda: attention_backward(width=192), ("head width",)
    ),
    "backward, heads of 256 on sm_80": Rejected(
        f"{FE}/874", 80, lambda: attention_backward("float16", width=256, rows=128), ("head width",)
    ),
    "forward, heads of 100": Rejected(
        f"{FE}/874", 80, lambda: attention(width=100), ("head width", "multiple of 8")
    ),
    # GPUs
    "attention on T4": Rejected(f"{FE}/120", 75, lambda: attention("float16"), ("must be 8.0 or newer",)),
    "composed attention on T4": Rejected(
        f"{FE}/120", 75, lambda: composed_attention("float16"), ("must be 8.0 or newer",)
    ),
    "attention on Turing": Rejected(
        "https://github.com/karpathy/llm.c/issues/761",
        75,
        lambda: attention(stats="float32"),
        ("must be 8.0 or newer",),
    ),
    "backward attention on Turing": Rejected(
        "https://github.com/karpathy/llm.c/issues/761", 75, attention_backward, ("must be 8.0 or newer",)
    ),
    "float32 product on V100": Rejected(
        f"{FE}/39", 70, lambda: matmul("float32", "float32", "float32"), ("must be 8.0 or newer",)
    ),
    "fused batch norm on Jetson Nano": Rejected(
        "https://github.com/sony/nnabla-ext-cuda/pull/262",
        53,
        lambda: norm("batch_norm", (16, 64, 28, 28), "float16", "nhwc", activation="relu_fwd"),
        ("capability",),
    ),
    # dtypes
    "attention in float32": Rejected(
        f"{FE}/424", 90, lambda: attention("float32", rows=512, keys=512), ("must be float16 or bfloat16",)
    ),
    "backward attention in float32": Rejected(
        f"{FE}/424", 90, lambda: attention_backward("float32", rows=512), ("must be float16 or bfloat16",)
    ),
    "fp8 attention on A100": Rejected(
        f"{TORCH}/pull/182919", 80, lambda: attention("float8_e4m3"), ("float8", "capability")
    ),
    "fp8 attention with bf16 results": Rejected(
        "https://github.com/vllm-project/vllm/pull/45251",
        90,
        lambda: attention("float8_e4m3", result="bfloat16"),
        ("F16 output",),
    ),
    "fp8 convolution on V100": Rejected(
        "https://github.com/openxla/xla/pull/45534",
        70,
        lambda: convolution((1, 16, 16, 16), (64, 16, 3, 3), "float8_e4m3"),
        ("float8",),
    ),
    "fp8 convolution on A100": Rejected(
        f"{FE}/131",
        80,
        lambda: convolution((1, 16, 16, 16), (64, 16, 3, 3), "float8_e4m3", padding=0),
        ("float8",),
    ),
    "fp4 convolution": Rejected(
        f"{FE}/499", 120, lambda: convolution((1, 64, 32, 32), (64, 64, 3, 3), "float4_e2m1"), ("float4",)
    ),
    "float32 convolution computed in float16": Rejected(
        "https://github.com/NVIDIA/caffe/issues/514",
        90,
        lambda: convolution((8, 64, 28, 28), (64, 64, 3, 3), "float32", "nchw", compute="float16"),
        ("compute type",),
    ),
    "gradient in float64 computed in float32": Rejected(
        "https://github.com/Theano/Theano/issues/5555",
        90,
        lambda: convolution(
            (7, 64, 24, 32), (3, 64, 1, 1), "float64", "nchw", direction="backward_data", padding=0
        ),
        ("computed in float32",),
    ),
    "forward in float64 computed in float32": Rejected(
        "https://github.com/Theano/Theano/issues/5649",
        90,
        lambda: convolution((7, 64, 24, 32), (3, 64, 1, 1), "float64", "nchw", padding=0),
        ("computed in float32",),
    ),
    "int8 to int32, fused": Rejected(
        f"{FE}/31",
        80,
        lambda: convolution(
            (8, 64, 28, 28),
            (64, 64, 3, 3),
            "int8",
            "nchw",
            compute="int32",
            bias="float32",
            steps=("relu_fwd",),
        ),
        ("layout", "NHWC", "dtype"),
    ),
    "product of int8 and float32 result": Rejected(
        "https://github.com/apache/tvm/pull/9898",
        75,
        lambda: matmul("int8", "int8", "int32", "int32"),
        ("capability",),
    ),
    "backward, half sinks": Rejected(
        "https://github.com/ml-explore/mlx/pull/3118",
        90,
        lambda: attention_backward(sink="bfloat16"),
        ("sink",),
    ),
    "fp4 convolution of 1x1": Rejected(
        f"{FE}/499",
        120,
        lambda: convolution((1, 64, 32, 32), (64, 64, 1, 1), "float4_e2m1", padding=0),
        ("float4",),
    ),
    "backward, packed sequences on A100": Rejected(
        f"{JAX}/pull/28872", 80, lambda: attention_backward(ragged=True), ("ragged",)
    ),
    "backward, packed latent heads": Rejected(
        f"{TE}/2285",
        100,
        lambda: attention_backward(width=192, v_width=128, ragged=True),
        ("ragged", "head width"),
    ),
    "fp8 product on A100": Rejected(
        "https://github.com/openxla/xla/pull/12243",
        80,
        lambda: matmul("float8_e4m3", "float8_e4m3", "bfloat16", transposed=True),
        ("float8",),
    ),
    # layouts and sizes
    "convolution and relu in float32": Rejected(
        f"{FE}/104",
        75,
        lambda: convolution(
            (256, 3, 224, 224), (32, 3, 5, 5), "float32", "nchw", padding=0, steps=("relu_fwd",)
        ),
        ("NHWC",),
    ),
    "gradient and relu in float32": Rejected(
        f"{FE}/40",
        75,
        lambda: convolution(
            (8, 64, 28, 28), (64, 64, 3, 3), "float32", "nchw", direction="backward_data", steps=("relu_fwd",)
        ),
        ("NHWC",),
    ),
    "copy to other strides": Rejected(f"{FE}/119", 80, transposed_copy, ("layout",)),
    "batch norm of 35 channels": Rejected(
        f"{FE}/133", 89, lambda: norm("batch_norm", (160, 35, 48, 24), "float16"), ("35 channels",)
    ),
    "batch norm of 6 channels": Rejected(
        "https://github.com/tensorflow/tensorflow/pull/50914",
        80,
        lambda: norm("batch_norm", (16, 6, 28, 28), "float16", "nhwc"),
        ("6 channels",),
    ),
    "batch norm and relu in NCHW": Rejected(
        "https://github.com/sony/nnabla/pull/1023",
        75,
        lambda: norm("batch_norm", (16, 66, 28, 28), "float16", activation="relu_fwd"),
        ("channel", "layout"),
    ),
    "pages and packed sequences": Rejected(
        f"{FE}/132", 90, lambda: attention(ragged=True, paged=True), ("ragged",)
    ),
    # operations
    "two convolutions": Rejected(f"{FE}/104", 80, two_convolutions, ("one convolution only",)),
    "batch norm inference": Rejected(
        f"{FE}/133",
        89,
        lambda: norm("batch_norm", (16, 64, 48, 24), "float16", "nhwc", phase="inference"),
        ("phase inference",),
    ),
    "layer norm and relu": Rejected(
        f"{FE}/88",
        80,
        lambda: norm("layer_norm", dtype="float16", activation="relu_fwd"),
        ("only operation", "is norm_forward, pointwise"),
    ),
    "slice alone": Rejected(f"{FE}/172", 86, part, ("slice",)),
}
