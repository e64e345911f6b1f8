"""Train a GPT by cuDNN's operators on several GPUs, with PyTorch's DistributedDataParallel or FSDP.

    torchrun --nproc-per-node 2 examples/14_distributed_gpt.py [--shard] [--steps N]
    python examples/14_distributed_gpt.py       # on one GPU

Each GPU trains on its share of a batch, and PyTorch adds the gradients. Products, softmax and layer norms are
operators of `cudnn_ct.torch`, in float32. The first process of a machine makes the plans, which the others
then find on disk. The losses do not depend on the number of GPUs but for rounding. A process that fails ends
all: torchrun names it. It needs PyTorch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import cudnn_ct as ct

WARM = 10  # steps before the time is taken


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if the network did not learn."""
    parser = argparse.ArgumentParser(description="A GPT on several GPUs.")
    parser.add_argument("--shard", action="store_true", help="shard parameters (FSDP)")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write losses and the number of tokens in a second")
    options = parser.parse_args(arguments)
    if reason := not_here():
        print(reason)
        return 0
    import torch
    from torch import distributed

    rank, local, count = (int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.cuda.set_device(local)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # rounding is compared
    if count:
        distributed.init_process_group("nccl", device_id=torch.device("cuda", local))
    try:
        found = train(options, rank, max(count, 1))
    finally:
        if count:
            distributed.destroy_process_group()
    start, end = (fmean(part) for part in (found["losses"][:10], found["losses"][-10:]))
    if rank == 0:
        kind = "FSDP" if options.shard else "DDP"
        about = f"cuDNN {ct.version()}, {max(count, 1)} GPU{'s' * (count > 1)}{f', {kind}' * bool(count)}"
        print(f"{about}: loss {start:.3f} to {end:.3f}, {found['tokens']:,.0f} tokens in a second")
        if options.json:
            options.json.write_text(json.dumps(found))
    return int(end >= start)


SIZES = {"steps": 100, "batch": 16, "length": 128, "width": 256, "heads": 4, "layers": 4}


def not_here() -> str:
    """Return the reason why the example cannot run here, or an empty string."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed ({error})"
    available = ct.available()
    if not available:
        return f"not on a GPU: {available.reason}"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} has no CUDA"


def train(options: argparse.Namespace, rank: int, count: int) -> dict[str, Any]:
    """Train, and return the losses of the whole batch and the number of tokens in a second."""
    import torch
    from torch import distributed

    codes = letters().cuda()
    torch.manual_seed(0)
    model = network(options)
    share = options.batch // count
    if share * count != options.batch:
        raise SystemExit(f"--batch must be a multiple of the number of GPUs: got {options.batch} and {count}")
    with first_of_machine(count):  # it makes the plans of the operators, and stores them
        loss_of(model, codes[: share * (options.length + 1)].view(share, -1)).backward()
    model.zero_grad()
    parallel = in_parallel(model, shard=options.shard) if count > 1 else model
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-3)
    random = torch.Generator().manual_seed(1)
    losses, start = [], 0.0
    for step in range(options.steps):
        if step == min(WARM, options.steps - 1):
            torch.cuda.synchronize()
            start = perf_counter()
        places = torch.randint(len(codes) - options.length - 1, (options.batch,), generator=random)
        own = places[rank * share : (rank + 1) * share].tolist()
        loss = loss_of(parallel, torch.stack([codes[n : n + options.length + 1] for n in own]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses)
    torch.cuda.synchronize()
    seconds = perf_counter() - start
    if count > 1:
        distributed.all_reduce(mean, distributed.ReduceOp.AVG)
    timed = options.steps - min(WARM, options.steps - 1)
    return {"losses": mean.tolist(), "tokens": timed * options.batch * options.length / seconds}


@contextmanager
def first_of_machine(count: int) -> Iterator[None]:
    """Let the first process of each machine run the block before the others."""
    from torch import distributed

    first = not int(os.environ.get("LOCAL_RANK", 0))
    if count > 1 and not first:
        distributed.barrier()
    yield
    if count > 1 and first:
        distributed.barrier()


def in_parallel(model: Any, *, shard: bool) -> Any:
    """Return the model with gradients that are averaged over the GPUs, and parameters in shards if asked."""
    from torch.nn.parallel import DistributedDataParallel

    if not shard:
        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def loss_of(model: Any, tokens: Any) -> Any:
    from torch.nn import functional

    scores = model(tokens[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def letters() -> Any:
    """Return the text of Python's help as numbers."""
    import pydoc_data.topics as topics

    import torch

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.tensor(list(text.encode("ascii", "replace")))


def network(options: argparse.Namespace) -> Any:
    """Return a transformer with causal attention; its products, norms and softmax are those of cuDNN."""
    import torch
    from torch import nn

    import cudnn_ct.torch as ctt

    class Linear(nn.Linear):
        def forward(self, x: Any, activation: str | None = None) -> Any:
            y = ctt.matmul(x.flatten(0, -2), self.weight.t(), self.bias, activation=activation)
            return y.view(*x.shape[:-1], -1)

    class LayerNorm(nn.LayerNorm):
        def forward(self, x: Any) -> Any:
            return ctt.layer_norm(x, self.weight, self.bias, eps=self.eps)

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
            self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
            self.up, self.down = Linear(width, 4 * width), Linear(4 * width, width)

        def forward(self, x: Any, mask: Any) -> Any:
            batch, length, width = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
            q, k, v = (part.contiguous() for part in parts.permute(2, 0, 3, 1, 4))
            scores = ctt.matmul(q, k.transpose(-1, -2), alpha=(width // self.heads) ** -0.5)
            y = ctt.matmul(ctt.softmax(scores + mask), v)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(self.up(self.norm2(x), "relu"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letter = nn.Embedding(128, options.width)
            self.place = nn.Embedding(options.length, options.width)
            blocks = [Block(options.width, options.heads) for _ in range(options.layers)]
            self.blocks, self.norm = nn.ModuleList(blocks), LayerNorm(options.width)
            self.scores = Linear(options.width, 128)
            hidden = torch.full((options.length, options.length), float("-inf")).triu(1)
            self.register_buffer("mask", hidden)

        def forward(self, tokens: Any) -> Any:
            x = self.letter(tokens) + self.place.weight
            for block in self.blocks:
                x = block(x, self.mask)
            return self.scores(self.norm(x))

    return Gpt().cuda()


if __name__ == "__main__":
    sys.exit(main())
