"""Compare whole networks of PyTorch with the operators of `cudnn_ct.torch`, on one GPU.

    python benchmarks/torch_networks.py [--part host enabled fused autotuned training ...] [--json OUT]

``enabled`` is the inference of unchanged models under `enable(rebind=True)`, compared with eager and
cudnn.benchmark.
``fused`` is that after `fuse()`, both under ``reduce-overhead``; ``autotuned`` compares it with
``max-autotune``, which takes PyTorch minutes to compile.
``training`` is a step with gradients of all weights, compiled inside `enable(rebind=True)`, compared with
eager and with ``reduce-overhead``. ``start`` is the time of a process until its first step. The results are
compared first; then loops are timed in turns on random data. The exit status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from harness.parts import Parts, Row, Target
from short_pairs import Pair, measured, rows_of

HALF = "float16"
IMAGE = 224
GPT_WIDTH, GPT_HEADS, GPT_LAYERS, GPT_TOKENS = 768, 12, 12, 1024

TARGETS = (
    Target("host time of an operator / torch", "host", "ratio", 0.95, only="inference"),
    Target("host time of an operator / torch, worst", "host", "ratio", 1.20, max, "inference"),
    Target("the same, recording gradients", "host", "ratio", 1.30, only="recorded"),
    Target("the same, recording gradients, worst", "host", "ratio", 1.60, max, "recorded"),
    Target("enable(rebind=True) / eager, ResNet-50, batch 1 and 8", "enabled", "ratio", 0.90, only="small"),
    Target("enable(rebind=True) / eager, ResNet-50, batch 64, ViT-B", "enabled", "ratio", 1.00, only="other"),
    Target("fuse() / reduce-overhead, on both sides", "fused", "ratio", 0.85),
    Target("fuse() with reduce-overhead / max-autotune", "autotuned", "ratio", 0.95),
    Target("training step / eager", "training", "ratio", 0.80, only="eager"),
    Target("training step / reduce-overhead", "training", "ratio", 0.97, only="reduce-overhead"),
    Target("first step of a process, plans cached / torch.compile", "start", "ratio", 0.20),
    Target("peak memory of a training step / eager", "memory", "ratio", 1.00, max),
)


# --- models ------------------------------------------------------------------------------------------------


def resnet(dtype: str = HALF) -> tuple[Any, tuple[int, ...]]:
    """Return ResNet-50 and the shape of an image."""
    from torchvision.models import resnet50

    return placed(resnet50(), dtype), (3, IMAGE, IMAGE)


def vit(dtype: str = HALF) -> tuple[Any, tuple[int, ...]]:
    """Return ViT-B/16 and the shape of an image."""
    from torch import nn
    from torchvision.models import vit_b_16

    model = vit_b_16()
    nn.init.normal_(model.heads.head.weight, std=0.1)  # a new head is zero, as all results would be
    return placed(model, dtype), (3, IMAGE, IMAGE)


def unet(dtype: str = HALF, width: int = 64) -> tuple[Any, tuple[int, ...]]:
    """Return a U-Net of four levels with batch norms, and the shape of an image."""
    import torch
    from torch import nn

    def twice(inputs: int, outputs: int) -> Any:
        def one(inputs: int) -> list[Any]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

        return nn.Sequential(*one(inputs), *one(outputs))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [width * 2**level for level in range(4)]
            self.down = nn.ModuleList(map(twice, (3, *sizes[:-1]), sizes))
            self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in sizes[-2::-1])
            self.joined = nn.ModuleList(twice(2 * n, n) for n in sizes[-2::-1])
            self.head, self.pool = nn.Conv2d(width, 2, 1), nn.MaxPool2d(2)

        def forward(self, x: Any) -> Any:
            kept = []
            for level, block in enumerate(self.down):
                x = block(x if level == 0 else self.pool(x))
                kept.append(x)
            for up, block, left in zip(self.up, self.joined, kept[-2::-1], strict=True):
                x = block(torch.cat([left, up(x)], 1))
            return self.head(x)

    return placed(UNet(), dtype), (3, 256, 256)


def gpt(dtype: str = HALF) -> tuple[Any, tuple[int, ...]]:
    """Return the layers of a GPT, and the shape of a sequence of vectors."""
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = GPT_WIDTH
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            heads = self.qkv(self.before(x)).unflatten(-1, (3, GPT_HEADS, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
            x = x + self.mix(y)
            return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))

    return placed(nn.Sequential(*(Layer() for _ in range(GPT_LAYERS))), dtype), (GPT_TOKENS, GPT_WIDTH)


def placed(model: Any, dtype: str) -> Any:
    """Return a model on the device, channels last, for inference."""
    import torch

    return model.cuda().to(getattr(torch, dtype)).to(memory_format=torch.channels_last).eval()


MODELS: dict[str, Callable[..., tuple[Any, tuple[int, ...]]]] = {
    "ResNet-50": resnet,
    "ViT-B": vit,
    "U-Net": unet,
    "GPT": gpt,
}


def input_of(shape: tuple[int, ...], batch: int, dtype: str = HALF) -> Any:
    """Return random images, channels last, or sequences."""
    import torch

    x = torch.randn(batch, *shape, device="cuda").to(getattr(torch, dtype))
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


# --- inference ---------------------------------------------------------------------------------------------


def host(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the host time of operators, without gradients and recording them."""
    import torch
    import torch_door

    for name in torch_door.host_calls():
        for gradients in (False, True):
            label = f"{name}, {'recorded' if gradients else 'inference'}"
            try:
                pair = torch_door.host_pair(name, gradients)
                with torch.inference_mode(False):
                    row = torch_door.measured(lambda p=pair: p, rounds, True)
                    given = torch_door.host_operands(name, gradients)
                    least = partial(empty_operator(len(given)), *given)
                    floor = torch_door.measured(lambda p=(least, pair[1]): p, rounds, True)
                    yield {"row": label, **row, "floor": floor["ratio"]}
            except Exception as error:
                yield {"row": label, "error": f"{type(error).__name__}: {error}"[:200]}


@cache
def empty_operator(count: int) -> Callable[..., Any]:
    """Return an operator of ``count`` tensors with a gradient, which only allocates a result."""
    import torch

    library, name = torch.library.Library("cudnn_ct_floor", "FRAGMENT"), f"empty{count}"
    library.define(f"{name}({', '.join(f'Tensor x{place}' for place in range(count))}) -> Tensor")
    library.impl(name, lambda *given: torch.empty_like(given[0]), "CUDA")
    torch.library.register_autograd(
        f"cudnn_ct_floor::{name}",
        lambda _, dy: (dy,) * count,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),  # noqa: ARG005
        lib=library,
    )
    kept.append(library)  # an operator is gone with its library
    return getattr(torch.ops.cudnn_ct_floor, name).default


kept: list[Any] = []

ENABLED = (
    ("ResNet-50", 1, "small"),
    ("ResNet-50", 8, "small"),
    ("ResNet-50", 64, "other"),
    ("ViT-B", 1, "other"),
    ("ViT-B", 8, "other"),
    ("ViT-B", 64, "other"),
)


def enabled(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield the inference of unchanged models under `enable(rebind=True)`."""
    pairs = {f"{name}, batch {batch} ({kind})": partial(served, name, batch) for name, batch, kind in ENABLED}
    yield from rows_of(pairs, rounds)


def served(name: str, batch: int) -> Pair:
    import torch

    import cudnn_ct.torch as ctt

    torch.backends.cudnn.benchmark = True
    model, shape = MODELS[name]()
    x = input_of(shape, batch)
    under = ctt.enable(rebind=True)(model.forward)
    return Pair(lambda: under(x), lambda: model(x), near=5e-2)


FUSED = (("ResNet-50", 8), ("U-Net", 4))


def fused(*, rounds: int, row: str = "", **_: Any) -> Iterator[Row]:
    """Yield the inference of models after `fuse()`, under ``reduce-overhead``."""
    pairs = fused_pairs("reduce-overhead")
    if not row:
        compile_ahead("fused", pairs)
    yield from rows_of({one: pairs[one] for one in ([row] if row else pairs)}, rounds)


def autotuned(*, rounds: int, **_: Any) -> Iterator[Row]:
    """Yield that against ``max-autotune``, which times kernels, so that one model compiles at a time."""
    yield from rows_of(fused_pairs("max-autotune"), rounds)


def fused_pairs(mode: str) -> dict[str, Callable[[], Pair]]:
    return {f"{name}, batch {batch}": partial(compiled, name, batch, mode) for name, batch in FUSED}


AHEAD = """
import sys
sys.path.insert(0, sys.argv[1])
import torch_networks
list(torch_networks.PARTS[sys.argv[2]](rounds=1, row=sys.argv[3]))
"""


def compile_ahead(part: str, rows: Iterable[str]) -> None:
    """Compile rows in processes at the same time; PyTorch keeps the kernels on disk."""
    command = [sys.executable, "-c", AHEAD, str(Path(__file__).parent), part]
    running = [subprocess.Popen([*command, one], stdout=subprocess.DEVNULL) for one in rows]
    for process in running:
        process.wait()


def compiled(name: str, batch: int, mode: str) -> Pair:
    import torch

    import cudnn_ct.torch as ctt

    torch.backends.cudnn.benchmark = True
    torch._dynamo.reset()
    model, shape = MODELS[name]()
    x = input_of(shape, batch)
    ours = torch.compile(ctt.fuse(model), mode="reduce-overhead")
    theirs = torch.compile(model, mode=mode)
    return Pair(lambda: ours(x), lambda: theirs(x), near=5e-2)


# --- training ----------------------------------------------------------------------------------------------

STEPS = (("ResNet-50", 32), ("U-Net", 4), ("GPT", 4))


def training(*, rounds: int, row: str = "", **_: Any) -> Iterator[Row]:
    """Yield training steps of models with weights of float32 under autocast."""
    import torch

    steps = {
        f"{name}, batch {batch} / {mode}": (name, batch, mode)
        for name, batch in STEPS
        for mode in ("reduce-overhead", "eager")
    }
    if not row:
        compile_ahead("training", [one for one in steps if "eager" not in one])
    for one in [row] if row else steps:
        try:
            with torch.inference_mode(False):
                yield {"row": one} | timed_steps(*steps[one], rounds)
        except Exception as error:
            yield {"row": one, "error": f"{type(error).__name__}: {error}".partition("\n")[0][:200]}


def timed_steps(name: str, batch: int, mode: str, rounds: int) -> Row:
    """Time a step of both sides in turns."""
    import torch

    import cudnn_ct.torch as ctt

    torch._dynamo.reset()
    ours, theirs = step_of(name, batch, "reduce-overhead"), step_of(name, batch, mode)

    def under() -> Any:
        with ctt.enable(rebind=True):  # a mode would see each gradient that is set to None
            return ours()

    with torch.enable_grad():
        for call in (under, theirs):
            for _ in range(4):
                call()
        pair = Pair(under, theirs, near=1e-2)  # losses of equal weights, which no step changes
        return measured(pair, min(rounds, 5))


def step_of(name: str, batch: int, mode: str) -> Callable[[], Any]:
    """Return a step that computes the gradients of all weights, and the loss."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model, shape = MODELS[name]("float32")
    model.train()
    x, weights = input_of(shape, batch, "float32"), list(model.parameters())
    forward = model if mode == "eager" else torch.compile(model, mode=mode)

    def step() -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            for weight in weights:
                weight.grad = None
            with torch.autocast("cuda", torch.float16):
                loss = forward(x).float().square().mean()
            loss.backward()
            return loss.detach().clone()

    return step


def memory(**_: Any) -> Iterator[Row]:
    """Yield the peak memory of a training step under `enable()`, divided by that of eager."""
    import torch

    import cudnn_ct.torch as ctt

    for name, batch in STEPS:
        peaks = []
        for served in (True, False):
            step = step_of(name, batch, "eager")
            peaks.append(peak_of(ctt.enable()(step) if served else step))
            torch.cuda.empty_cache()
        yield {"row": f"{name}, batch {batch}", "ratio": peaks[0] / peaks[1]}


def peak_of(step: Callable[[], Any]) -> int:
    """Return the largest number of bytes that are allocated in a third step."""
    import torch

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


# --- start of a process ------------------------------------------------------------------------------------

START = """
import json, sys, time
begin = time.perf_counter()
import torch
sys.path.insert(0, sys.argv[2])
import torch_networks
model, shape = torch_networks.resnet()
x = torch_networks.input_of(shape, 8)
if sys.argv[1] == "ours":
    import cudnn_ct.torch as ctt
    model = ctt.fuse(model)
elif sys.argv[1] == "torch":
    model = torch.compile(model, mode="reduce-overhead")
with torch.inference_mode():
    model(x)
    torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - begin))
"""


def start(**_: Any) -> Iterator[Row]:
    """Yield the time to the first step of a process with stored plans, over torch.compile without a cache.

    The floor is that of eager PyTorch: imports, the model and CUDA's start.
    """
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "CUDNN_CT_ALGO_CACHE": f"{folder}/ours",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        }
        times = []
        for side in ("ours", "ours", "torch", "eager"):
            command = [sys.executable, "-c", START, side, str(Path(__file__).parent)]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            times.append(json.loads(done.stdout.splitlines()[-1]))
        yield {
            "row": "ResNet-50, batch 8",
            "ratio": times[1] / times[2],
            "ours_s": times[1],
            "theirs_s": times[2],
            "floor": times[3] / times[2],
        }


PARTS = {
    "host": host,
    "enabled": enabled,
    "fused": fused,
    "autotuned": autotuned,
    "training": training,
    "start": start,
    "memory": memory,
}
NETWORKS = Parts("torch_networks", Path(__file__), PARTS, TARGETS, seconds=420, rounds=7)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return NETWORKS.main(argparse.ArgumentParser(description=__doc__.splitlines()[0]), arguments)


if __name__ == "__main__":
    sys.exit(main())
