"""Graphs of public reports that the translations of cuDNN's lines were not developed with.

No translation was changed because of a row. The causes of the first rows were written down before their
messages were read. cuDNN 9.28 supports most of those, so others were added that it rejects, after messages
of the first had been read. If a translation is changed because of a row, the row belongs into
`rejected_graphs.REJECTED`. Reports that do not state a size have a plausible one.

python -m tests.heldout_graphs    # without a GPU: which messages name the cause; --verbose prints them
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cudnn_ct.graph.operations import Graph

from .rejected_graphs import Rejected, attention, attention_backward, convolution, matmul, norm

__all__ = ["HELD_OUT"]

HUB = "https://github.com"
DEVICE = Path(__file__).parent / "devices" / "h200-cudnn-9.19.json"
IMAGES, FILTERS = (8, 32, 16, 16), (64, 32, 3, 3)

HELD_OUT: dict[str, Rejected] = {
    "fp8 convolution, 8 channels for each group": Rejected(
        f"{HUB}/openxla/xla/pull/40021",
        120,
        lambda: convolution((1, 64, 32, 32), (64, 8, 3, 3), "float8_e4m3"),
        ("group", "channels"),
    ),
    "int8 convolution of one channel": Rejected(
        f"{HUB}/pytorch/pytorch/issues/152992",
        89,
        lambda: convolution((1, 1, 6, 6), (1, 1, 3, 3), "int8", "nchw", compute="int32"),
        ("NHWC", "channels", "layout"),
    ),
    "product in float64": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/issues/70",
        90,
        lambda: matmul("float64", "float64", "float64", "float64"),
        ("float64",),
    ),
    "forward, heads of 256 before Hopper": Rejected(
        f"{HUB}/pytorch/pytorch/pull/149904", 89, lambda: attention(width=256), ("head width",)
    ),
    "three spatial axes on V100": Rejected(
        f"{HUB}/zh-nj/lmdeploy-v100/issues/3",
        70,
        lambda: convolution((64, 3, 2, 16, 16), (1152, 3, 2, 16, 16), "float16", "nchw", padding=0),
        ("capability",),
    ),
    "convolution, bias and relu on V100": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/issues/116",
        70,
        lambda: convolution(IMAGES, FILTERS, bias="float16", steps=("relu_fwd",)),
        ("capability",),
    ),
    "int8 convolution on P100": Rejected(
        f"{HUB}/tensorflow/tensorflow/pull/60142",
        60,
        lambda: convolution(IMAGES, FILTERS, "int8", result="float32", compute="int32"),
        ("capability",),
    ),
    "int8 convolution in NCHW to int32": Rejected(
        f"{HUB}/apache/tvm/pull/10021",
        75,
        lambda: convolution((1, 64, 28, 28), (64, 64, 3, 3), "int8", "nchw", result="int32", compute="int32"),
        ("layout", "NHWC", "int32"),
    ),
    "convolution, bias and elu before Ampere": Rejected(
        f"{HUB}/tensorflow/tensorflow/pull/56572",
        75,
        lambda: convolution(IMAGES, FILTERS, bias="float16", steps=("elu_fwd",)),
        ("capability",),
    ),
    "convolution on GTX 1080 Ti": Rejected(
        f"{HUB}/rwth-i6/returnn/issues/1508",
        61,
        lambda: convolution((1, 1, 100, 80), (32, 1, 3, 3), "float32", "nchw"),
        ("capability",),
    ),
    "bfloat16 product on T4": Rejected(
        f"{HUB}/vllm-project/vllm/issues/1157",
        75,
        lambda: matmul("bfloat16", "bfloat16", "bfloat16"),
        ("capability",),
    ),
    "fp8 product without a transposed operand on L40S": Rejected(
        f"{HUB}/NVIDIA/CUDALibrarySamples/issues/242",
        89,
        lambda: matmul("float8_e4m3", "float8_e4m3", "bfloat16"),
        ("layout", "transposed", "float8"),
    ),
    "fp8 product without a transposed operand on Hopper": Rejected(
        f"{HUB}/NVIDIA/cutlass/issues/1376",
        90,
        lambda: matmul("float8_e4m3", "float8_e4m3", "bfloat16"),
        ("layout", "transposed", "float8"),
    ),
    "filter gradient computed in float16": Rejected(
        f"{HUB}/Oneflow-Inc/oneflow/pull/3000",
        75,
        lambda: convolution(IMAGES, FILTERS, direction="backward_filter", compute="float16"),
        ("compute type",),
    ),
    "convolution and relu in float64": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/issues/70",
        90,
        lambda: convolution(IMAGES, FILTERS, "float64", "nchw", compute="float64", steps=("relu_fwd",)),
        ("float64",),
    ),
    "attention in float64": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/issues/70",
        90,
        lambda: attention("float64"),
        ("float64", "must be float16 or bfloat16"),
    ),
    "layer norm in float64": Rejected(
        f"{HUB}/pytorch/pytorch/pull/159682", 90, lambda: norm("layer_norm", dtype="float64"), ("float64",)
    ),
    "bfloat16 convolution on T4": Rejected(
        f"{HUB}/huggingface/candle/pull/3607",
        75,
        lambda: convolution(IMAGES, FILTERS, "bfloat16"),
        ("bfloat16", "capability"),
    ),
    "fp8 product on A10": Rejected(
        f"{HUB}/tensorflow/tensorflow/pull/58720",
        86,
        lambda: matmul("float8_e4m3", "float8_e4m3", "float32", transposed=True),
        ("float8", "FP8", "capability"),
    ),
    "fp8 attention on L20": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/pull/1138",
        89,
        lambda: attention("float8_e4m3"),
        ("float8", "FP8", "capability"),
    ),
    "int8 data gradient": Rejected(
        f"{HUB}/tensorflow/tensorflow/pull/30771",
        75,
        lambda: convolution(IMAGES, FILTERS, "int8", direction="backward_data", compute="int32"),
        ("int8", "dtype"),
    ),
    "int8 filter gradient": Rejected(
        f"{HUB}/tensorflow/tensorflow/pull/30771",
        75,
        lambda: convolution(IMAGES, FILTERS, "int8", direction="backward_filter", compute="int32"),
        ("int8", "dtype"),
    ),
    "float16 images and float32 filters": Rejected(
        f"{HUB}/gungui98/Pytorch-Depthwise-Conv3d/issues/2",
        80,
        lambda: convolution((2, 2, 6, 6, 6), (4, 1, 3, 3, 3), "float16", "nchw", w_dtype="float32"),
        ("w is float32", "one dtype", "same dtype", "must be float16"),
    ),
    "8 heads of q and 3 of k": Rejected(
        f"{HUB}/NVIDIA/TensorRT-LLM/pull/18075",
        100,
        lambda: attention(kv_heads=3),
        ("number of heads", "heads of q", "multiple"),
    ),
    "fp8 attention with heads of 192": Rejected(
        f"{HUB}/NVIDIA/TensorRT-LLM/pull/18075",
        90,
        lambda: attention("float8_e4m3", width=192),
        ("head width",),
    ),
    "forward, heads of 36": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/pull/145", 90, lambda: attention(width=36), ("multiple of 8",)
    ),
    "backward, heads of 132 on Blackwell": Rejected(
        f"{HUB}/NVIDIA/cudnn-frontend/pull/145",
        100,
        lambda: attention_backward(width=132),
        ("head width", "multiple of 8"),
    ),
    "sequences of 32": Rejected(
        f"{HUB}/NVIDIA/TransformerEngine/issues/341",
        80,
        lambda: attention("float16", heads=32, kv_heads=32, rows=32, keys=32),
        ("rows", "keys", "sequence"),
    ),
}

# Features of attention without open kernels on a GPU, by the boards of cudnn-frontend: the architecture of
# each board, and for each feature the words for its cause. Graphs of `REJECTED` are left out.
BOARDS = {377: 80, 378: 90, 379: 100, 380: 103, 381: 120}
FEATURES: dict[str, tuple[Callable[[], Graph], tuple[str, ...]]] = {
    "fp8": (lambda: attention("float8_e4m3"), ("float8", "capability")),
    "heads of 512": (lambda: attention(width=512), ("head width",)),
    "packed sequences": (lambda: attention(ragged=True), ("ragged",)),
    "pages": (lambda: attention(paged=True), ("page",)),
    "dropout": (lambda: attention(dropout=0.1), ("dropout",)),
    "sink": (lambda: attention(sink="float32"), ("sink",)),
    "backward, heads of 192 and 128": (lambda: attention_backward(width=192, v_width=128), ("head width",)),
    "backward, heads of 256": (lambda: attention_backward(width=256), ("head width",)),
    "backward, heads of 512": (lambda: attention_backward(width=512), ("head width",)),
    "backward, sink": (lambda: attention_backward(sink="float32"), ("sink",)),
}
KNOWN = {(80, "fp8"), (80, "backward, heads of 192 and 128"), (80, "backward, heads of 256")}
HELD_OUT |= {
    f"{feature} on sm_{sm}": Rejected(f"{HUB}/NVIDIA/cudnn-frontend/issues/{board}", sm, graph, causes)
    for board, sm in BOARDS.items()
    for feature, (graph, causes) in FEATURES.items()
    if (sm, feature) not in KNOWN
}


def main() -> None:
    """Plan each graph for the H200's description with its compute capability, and print the share."""
    from cudnn_ct.errors import format_version
    from cudnn_ct.graph.explain import explanation_of_rejection
    from cudnn_ct.graph.offline import Planner
    from cudnn_ct.plans.base import unsupported

    from .lib.test_graph import load_stub

    load_stub()
    recorded = json.loads(DEVICE.read_text(encoding="utf-8"))
    counts = {"named": 0, "missed": 0, "supported": 0}
    for name, row in HELD_OUT.items():
        planner = Planner({**recorded, "deviceVer": row.sm * 10})
        found = explanation_of_rejection(row.graph(), planner, "graph")
        text = "" if found is None else str(unsupported("graph", [], found))
        how = "supported" if not text else "named" if any(c in text for c in row.causes) else "missed"
        counts[how] += 1
        print(f"{how:9} {name} ({row.url})")
        if "--verbose" in sys.argv and text:
            print(text)
    rejected = counts["named"] + counts["missed"]
    version = format_version(planner.library.version)
    print(
        f"cuDNN {version}: {counts['named']} of {rejected} messages name the cause; "
        f"{counts['supported']} graphs are supported"
    )
    sys.stdout.flush()
    os._exit(0)  # the destructors of the libraries may fail with a stub for a driver


if __name__ == "__main__":
    main()
