"""Compare cudnn_ct.torch with PyTorch on one GPU: host time, a fused block, and ResNet-50.

    python benchmarks/torch_door.py [--section host block resnet] [--rounds N] [--json OUT]

A row has two contenders, measured in turns. A ratio is the median over rounds of our time divided by that of
PyTorch in the same round; the times are medians in microseconds. ``host`` is the host time of an operator
and of PyTorch's own calls on operands so small that the GPU waits, without gradients and recording them.
``block`` is twelve times convolution, bias and relu, eager and under ``reduce-overhead``. ``resnet`` is the
inference of ResNet-50 in float16, channels last, under `enable()` and after `fuse()`, compared with PyTorch
eager with ``cudnn.benchmark``; it needs torchvision. The exit status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from short_pairs import gpu_time, host_time

Call = Callable[[], Any]
SECTIONS = ("host", "block", "resnet")
ROUNDS = 15
LOOP = 0.01  # seconds of a loop of calls, about
WARM = 20  # calls before the measurement: replays begin after a few calls with the same memory


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--section", nargs="+", choices=SECTIONS, default=SECTIONS)
    options.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    options.add_argument("--json", type=Path, help="write the rows to this file")
    given = options.parse_args(argv)
    if reason := no_gpu():
        print(reason)
        return 1
    import torch

    import cudnn_ct as ct

    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": ct.version(),
        "torch_cudnn": torch.backends.cudnn.version(),
    }
    print(about)
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    for section in given.section:
        for name, make, host in {"host": host_rows, "block": block_rows, "resnet": resnet_rows}[section]():
            rows.append({"section": section, "row": name, **measured(make, given.rounds, host)})
            print(line_of(rows[-1]), flush=True)
    for section, values in ratios(rows).items():
        mean = exp(statistics.fmean(map(log, values)))
        print(f"{section}: geometric mean {mean:.2f}, worst {max(values):.2f} of {len(values)} rows")
    if given.json:
        given.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1), encoding="utf-8")
    return int(any("error" in row for row in rows))


def no_gpu() -> str:
    """Return the reason why nothing can be measured, or an empty string."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed: this benchmark compares with PyTorch"
    return "" if torch.cuda.is_available() else "PyTorch does not have a GPU"


def ratios(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the ratios of each section; the host time with gradients is a section of its own."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if "ratio" in row:
            gradients = " with gradients" if row["row"].endswith(", gradients") else ""
            found.setdefault(row["section"] + gradients, []).append(row["ratio"])
    return found


def line_of(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    head = f"{row['section']:7} {row['row']:44}"
    if "error" in row:
        return f"{head} {row['error']}"
    return f"{head} {row['ratio']:6.2f} {row['ours_us']:10.1f} {row['torch_us']:10.1f} us"


# --- measurement -------------------------------------------------------------------------------------------


def measured(make: Callable[[], tuple[Call, Call]], rounds: int, host: bool) -> dict[str, Any]:
    """Make the contenders of a row, and time them in turns."""
    import torch

    try:
        ours, theirs = make()
        for call in (ours, theirs):
            for _ in range(WARM):
                call()
        torch.cuda.synchronize()
        timer = host_time if host else gpu_time
        calls = max(3, min(500, round(LOOP / (timer(theirs, 3) * 1e-6))))
        times = [(timer(ours, calls), timer(theirs, calls)) for _ in range(rounds)]
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}
    return {
        "ratio": statistics.median(one / two for one, two in times),
        "ours_us": statistics.median(one for one, _ in times),
        "torch_us": statistics.median(two for _, two in times),
    }


Row = tuple[str, Callable[[], tuple[Call, Call]], bool]


# --- host time ---------------------------------------------------------------------------------------------


def host_rows() -> Iterator[Row]:
    """Yield the rows of host time."""
    for name in host_calls():
        for gradients in (False, True):
            label = f"{name}, gradients" if gradients else name
            yield label, lambda name=name, gradients=gradients: host_pair(name, gradients), True


def host_pair(name: str, gradients: bool) -> tuple[Call, Call]:
    """Return a call of ours and of torch's, on operands that require gradients or not."""
    ours, theirs, *_ = host_calls()[name]
    operands = host_operands(name, gradients)
    return lambda: ours(*operands), lambda: theirs(*operands)


def host_operands(name: str, gradients: bool) -> list[Any]:
    """Return the operands of a call by its name, which require gradients or not."""
    import torch

    *_, shapes, dtype = host_calls()[name]
    torch.manual_seed(0)
    operands = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
    operands = [
        one.to(memory_format=torch.channels_last) if one.dim() == 4 and "attention" not in name else one
        for one in operands
    ]
    if "batch norm" in name:
        operands = [one if one.dim() == 4 else one.float() for one in operands]
    for one in operands:
        one.requires_grad_(gradients)
    return operands


def host_calls() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]], Any]]:
    """Return the calls by name: ours, torch's, the shapes of operands, and the dtype."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct.torch as ctt

    half, image, window = torch.float16, (1, 64, 8, 8), (64, 64, 3, 3)
    heads = [(2, 4, 16, 64)] * 3
    return {
        "conv": (
            lambda x, w: ctt.conv(x, w, padding=1),
            lambda x, w: F.conv2d(x, w, padding=1),
            [image, window],
            half,
        ),
        "conv + bias + relu": (
            lambda x, w, b: ctt.conv_bias_activation(x, w, b, padding=1),
            lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
            [image, window, (64,)],
            half,
        ),
        "max pooling": (lambda x: ctt.pool(x, 2), lambda x: F.max_pool2d(x, 2), [image], half),
        "softmax": (lambda x: ctt.softmax(x, 1), lambda x: F.softmax(x, 1), [(32, 100)], half),
        "batch norm, training": (
            lambda x, s, b: ctt.batch_norm(x, None, None, s, b, True),
            lambda x, s, b: F.batch_norm(x, None, None, s, b, True),
            [image, (64,), (64,)],
            half,
        ),
        "layer norm": (
            lambda x, s, b: ctt.layer_norm(x, s, b),
            lambda x, s, b: F.layer_norm(x, (256,), s, b),
            [(32, 256), (256,), (256,)],
            half,
        ),
        "rms norm": (
            lambda x, s: ctt.rms_norm(x, s),
            lambda x, s: F.rms_norm(x, (256,), s, 1e-5),
            [(32, 256), (256,)],
            half,
        ),
        "product + bias + gelu": (
            lambda a, b, c: ctt.matmul(a, b, c, activation="gelu"),
            lambda a, b, c: F.gelu(torch.addmm(c, a, b)),
            [(32, 256), (256, 256), (256,)],
            half,
        ),
        "attention": (
            lambda q, k, v: ctt.attention(q, k, v, causal=True),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            heads,
            half,
        ),
    }


# --- a fused block -----------------------------------------------------------------------------------------


def block_rows() -> Iterator[Row]:
    """Yield the rows of twelve fused convolutions: large and small images, eager and captured."""
    for size, shape in (("large", (8, 64, 56, 56)), ("small", (1, 64, 8, 8))):
        for mode in (None, "reduce-overhead"):
            label = f"12 x conv + bias + relu, {size}, {mode or 'eager'}"
            yield label, lambda shape=shape, mode=mode: block_pair(shape, mode), False


def block_pair(shape: tuple[int, ...], mode: str | None) -> tuple[Call, Call]:
    """Return the block of ours and torch's, compiled by a mode or not."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import cudnn_ct.torch as ctt

    last = {"memory_format": torch.channels_last}
    x = torch.randn(shape, device="cuda", dtype=torch.float16).to(**last)
    w = (torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.float16) / 24).to(**last)
    b = torch.randn(64, device="cuda", dtype=torch.float16)

    def ours(x: Any) -> Any:
        for _ in range(12):
            x = ctt.conv_bias_activation(x, w, b, padding=1)
        return x

    def theirs(x: Any) -> Any:
        for _ in range(12):
            x = F.relu(F.conv2d(x, w, b, padding=1))
        return x

    calls: list[Call] = []
    torch._dynamo.reset()
    for function in (ours, theirs):
        if mode:
            function = torch.compile(function, mode=mode, fullgraph=True)
        calls.append(lambda function=function: inference(function, x))
    for call in calls:
        call()
    return calls[0], calls[1]


def inference(function: Callable[[Any], Any], x: Any) -> Any:
    """Call a function without gradients."""
    import torch

    with torch.inference_mode():
        return function(x)


# --- ResNet-50 ---------------------------------------------------------------------------------------------


def resnet_rows() -> Iterator[Row]:
    """Yield the rows of ResNet-50."""
    for kind in ("enable", "fuse", "fuse, reduce-overhead"):
        for batch in (1, 8, 64):
            label = f"ResNet-50 fp16, batch {batch}, {kind}"
            yield label, lambda kind=kind, batch=batch: resnet_pair(kind, batch), False


def resnet_pair(kind: str, batch: int) -> tuple[Call, Call]:
    """Return the inference of ours and torch's; ``reduce-overhead`` is on both sides."""
    import torch
    from torchvision.models import resnet50

    import cudnn_ct.torch as ctt

    torch.manual_seed(0)
    last = {"memory_format": torch.channels_last}
    model = resnet50().cuda().half().to(**last).eval()
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.float16).to(**last)
    if kind == "enable":
        served = ctt.enable()(model.forward)
        return lambda: inference(served, x), lambda: inference(model, x)
    ours: Any = ctt.fuse(model)
    theirs: Any = model
    if kind.endswith("reduce-overhead"):
        torch._dynamo.reset()
        ours, theirs = (torch.compile(one, mode="reduce-overhead") for one in (ours, theirs))
    return lambda: inference(ours, x), lambda: inference(theirs, x)


if __name__ == "__main__":
    sys.exit(main())
