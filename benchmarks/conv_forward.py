"""How long a forward convolution takes beside PyTorch's, on one GPU, in one run.

    python benchmarks/conv_forward.py [--json PATH]

Both sides get the same data, layout and TF32 setting; PyTorch times its algorithms (cudnn.benchmark),
cudnn_ct takes its default. GPU time by events around loops of calls, medians of several, over operands that
rotate through more memory than the cache holds. The ratio is ours / PyTorch's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import cudnn_ct as ct

BATCH = 64
LAYERS = (  # channels, size, filters, window, stride: layers of ResNet-50
    (3, 224, 64, 7, 2),
    (64, 56, 64, 3, 1),
    (256, 56, 64, 1, 1),
    (128, 28, 128, 3, 1),
    (512, 28, 128, 1, 1),
    (256, 14, 256, 3, 1),
    (512, 7, 512, 3, 1),
    (1024, 14, 2048, 1, 2),
)
KINDS = (
    ("float16 NHWC", torch.float16, torch.channels_last, None),
    ("bfloat16 NHWC", torch.bfloat16, torch.channels_last, None),
    ("TF32 NHWC", torch.float32, torch.channels_last, None),
    ("TF32 NCHW", torch.float32, torch.contiguous_format, None),
    ("strict float32 NCHW", torch.float32, torch.contiguous_format, "float32"),
)
CACHE = 128 * 2**20  # bytes to rotate through


def main() -> None:
    parser = argparse.ArgumentParser(description="convolution forward beside PyTorch")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here too")
    path = parser.parse_args().json
    torch.backends.cudnn.benchmark = True
    rows = [row(*kind, layer) for kind in KINDS for layer in LAYERS]
    for kind, *_ in KINDS:
        ratios = [one["ratio"] for one in rows if one["kind"] == kind]
        print(f"{kind}: geometric mean {statistics.geometric_mean(ratios):.2f}, worst {max(ratios):.2f}")
    if path:
        about = {
            "device": torch.cuda.get_device_name(),
            "cudnn": ct.version(),
            "torch": torch.__version__,
            "unit": "microseconds of GPU time per call, medians",
        }
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def row(
    kind: str, dtype: Any, memory_format: Any, precision: str | None, layer: tuple[int, ...]
) -> dict[str, Any]:
    channels, size, filters, window, stride = layer
    torch.backends.cudnn.allow_tf32 = precision is None
    x_shape, w_shape = (BATCH, channels, size, size), (filters, channels, window, window)
    geometry = {"padding": window // 2, "stride": stride}

    def random(shape: tuple[int, ...]) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=memory_format)

    w, first = random(w_shape), random(x_shape)
    several = 1 + CACHE // (first.numel() * first.element_size())
    theirs = [first, *(random(x_shape) for _ in range(several))]
    ours, filter_bank = [ct.asarray(x) for x in theirs], ct.asarray(w)
    outs = [ct.conv(x, filter_bank, precision=precision, **geometry) for x in ours]
    turn = itertools.cycle(range(len(theirs)))

    def torch_call() -> None:
        torch.nn.functional.conv2d(theirs[next(turn)], w, **geometry)

    def our_call() -> None:
        i = next(turn)
        ct.conv(ours[i], filter_bank, precision=precision, out=outs[i], **geometry)

    with torch.inference_mode():
        times = {"torch": gpu_time(torch_call), "ours": gpu_time(our_call)}
    ratio = times["ours"] / times["torch"]
    print(f"{kind:20} {layer!s:24} torch {times['torch']:7.1f}  ours {times['ours']:7.1f}  ratio {ratio:.2f}")
    return {"kind": kind, "layer": layer, **times, "ratio": ratio}


def gpu_time(call: Callable[[], None], calls: int = 20, repeats: int = 9) -> float:
    """Microseconds of GPU time per call: the median of several loops."""
    for _ in range(calls):
        call()
    loops = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        loops.append(1000 * start.elapsed_time(end) / calls)
    return statistics.median(loops)


if __name__ == "__main__":
    main()
