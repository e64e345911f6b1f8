"""Compare attention with PyTorch's cuDNN and flash backends on one GPU.

    python benchmarks/attention.py [--json OUT] [--only TEXT] [--seconds 540] [--algo autotune]

A row is the attention of a public model, forward or backward. GPU time is the median of loops of calls
between two events; the contenders run alternately, loop by loop. Operands rotate through more memory than the
cache holds. Host time is that of one call with an idle GPU. The error is the mean of |result - float64|,
divided by that of PyTorch's cuDNN backend. A row that fails has the reason. Rows that the JSON file has are
not measured again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attention_report import line, render
from attention_rows import Row, rows
from harness.command import about
from harness.figures import Limit
from harness.operands import free_memory
from harness.results import Record, explain, of_section, read, room_for, write_whole
from harness.timing import Contender, HostCall, host_times, lost_context, race

import cudnn_ct as ct

RESULTS = Path(__file__).parent / "results" / "attention.json"
ROTATED = 120 * 10**6  # bytes of all operands: twice the L2 cache
SLOWEST = Limit("ours", "cudnn", 1.05)
LARGEST = 2**31  # scores of which the error is computed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare attention with PyTorch.")
    parser.add_argument("--json", type=Path, default=RESULTS, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows with this text in their names")
    parser.add_argument("--seconds", type=float, default=540, help="start no row after this time")
    parser.add_argument("--algo", default="heuristic", help="'heuristic' or 'autotune'")
    parser.add_argument("--again", action="store_true", help="measure rows that the file has, too")
    options = parser.parse_args(argv)
    records = stored(options.json)
    started = time.monotonic()
    for row in rows():
        for direction in row.passes:
            name = f"{row.id} {direction} {options.algo}"
            done = name in records and not options.again
            if options.only not in name or done or time.monotonic() - started > options.seconds:
                continue
            records[name] = record = measure(name, row, direction, options.algo)
            print(line(record), flush=True)
            write_whole(options.json, "attention", [about(), *records.values()])
            if record.get("lost"):
                raise SystemExit("the CUDA context was lost; start the command again to go on")
    print(render(list(records.values())))


def measure(name: str, row: Row, direction: str, algo: str) -> Record:
    """Time one row."""
    facts = {"model": row.model, "use": row.use, "direction": direction, "held_out": row.held_out}
    record = room_for("rows", name, **facts, algo=algo)
    try:
        operands = [Operands(row) for _ in range(count_of(row))]
        calls = {"ours": ours, "cudnn": theirs("cudnn"), "flash": theirs("flash")}
        contenders = {}
        for name, make in calls.items():
            try:
                contenders[name] = Contender(make(operands, direction, algo))
            except Exception as error:
                record["errors"][name] = explain(error)
        record["deviation"] = deviations(row, operands[0], direction, contenders)
        race(record, contenders, len(operands), limit=SLOWEST)
        one = lambda: [(0,)] * 20  # noqa: E731
        host = {name: HostCall(contender.call, one) for name, contender in contenders.items()}
        record["host"] = host_times(host, 5)
    except Exception as error:
        record["errors"]["row"] = explain(error)
        record["lost"] = lost_context()
    free_memory()
    return record


# --- contenders --------------------------------------------------------------------------------------------


class Operands:
    """Tensors of one call, in (B, S, H, D) memory as models have them."""

    def __init__(self, row: Row) -> None:
        import torch

        dtype = getattr(torch, row.dtype)

        def draw(length: int, heads: int, head: int) -> Any:
            memory = torch.randn(row.batch, length, heads, head, device="cuda", dtype=dtype)
            return memory.transpose(1, 2)

        self.row = row
        self.q = draw(row.queries, row.heads, row.head)
        self.k = draw(row.keys, row.kv_heads, row.head)
        self.v = draw(row.keys, row.kv_heads, row.value_head)
        self.dy = draw(row.queries, row.heads, row.value_head)
        self.qkv = (self.q, self.k, self.v)


def count_of(row: Row) -> int:
    """Return how many sets of operands exceed the cache."""
    of_queries = row.batch * row.heads * row.queries * (row.head + row.value_head)
    of_keys = row.batch * row.kv_heads * row.keys * (row.head + row.value_head)
    return max(1, min(math.ceil(ROTATED / (2 * (2 * of_queries + of_keys))), 64))


Call = Callable[[int], Any]


def ours(operands: Sequence[Operands], direction: str, algo: str) -> Call:
    """Return our call."""
    causal = operands[0].row.causal
    if direction == "forward":
        stats = operands[0].row.use == "training"

        def forward(i: int) -> Any:
            return ct.attention(*operands[i].qkv, causal=causal, return_stats=stats, algo=algo)

        return forward
    saved = [ct.attention(*one.qkv, causal=causal, return_stats=True) for one in operands]

    def backward(i: int) -> Any:
        one, (y, stats) = operands[i], saved[i]
        return ct.attention_backward(one.dy, *one.qkv, y, stats, causal=causal, algo=algo)  # type: ignore[arg-type]

    return backward


def theirs(backend: str) -> Callable[[Sequence[Operands], str, str], Call]:
    """Return a function that makes PyTorch's call, without autograd."""

    def make(operands: Sequence[Operands], direction: str, algo: str) -> Call:  # noqa: ARG001
        import torch

        row = operands[0].row
        stats = row.use == "training"
        aten = torch.ops.aten
        if backend == "cudnn":

            def forward(i: int) -> Any:
                return aten._scaled_dot_product_cudnn_attention(
                    *operands[i].qkv, None, stats, 0.0, row.causal
                )
        else:
            if row.head != row.value_head:
                raise ValueError("the flash backend needs heads of one size")

            def forward(i: int) -> Any:
                return aten._scaled_dot_product_flash_attention(*operands[i].qkv, 0.0, row.causal)

        if direction == "forward":
            return forward
        saved = [forward(i) for i in range(len(operands))]

        def backward(i: int) -> Any:
            one, (y, stats, starts_q, starts_k, most_q, most_k, seed, offset, _) = operands[i], saved[i]
            given = (one.dy, *one.qkv, y, stats)
            lengths = (starts_q, starts_k, most_q, most_k, 0.0, row.causal)
            if backend == "cudnn":
                return aten._scaled_dot_product_cudnn_attention_backward(*given, seed, offset, None, *lengths)
            return aten._scaled_dot_product_flash_attention_backward(*given, *lengths, seed, offset)

        return backward

    return make


def deviations(
    row: Row, operands: Operands, direction: str, contenders: dict[str, Contender]
) -> dict[str, float]:
    """Return the mean errors of the first sequence and group of heads against float64."""
    import torch

    group = row.heads // row.kv_heads
    if group * row.queries * row.keys > LARGEST // 8:
        return {}
    with torch.enable_grad():
        leaves = [
            x[:1, : group if i == 0 else 1].double().requires_grad_() for i, x in enumerate(operands.qkv)
        ]
        keys, values = (x.expand(1, group, *x.shape[2:]) for x in leaves[1:])
        scores = leaves[0] @ keys.transpose(2, 3) * row.head**-0.5
        if row.causal:
            hidden = torch.ones(row.queries, row.keys, dtype=torch.bool, device="cuda").triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        y = scores.softmax(-1) @ values
        exact = [y.detach()]
        if direction == "backward":
            y.backward(operands.dy[:1, :group].double())
            exact = [leaf.grad for leaf in leaves]
    found = {}
    for name, contender in contenders.items():
        try:
            results = contender.call(0)
        except Exception:  # `race` reports it
            continue
        errors = []
        for one, right in zip(results, exact, strict=False):
            tensor = one if isinstance(one, torch.Tensor) else torch.from_dlpack(one)
            part = tensor[:1, : right.shape[1]].double()
            errors.append(float((part - right).abs().mean() / right.abs().mean()))
        found[name] = max(errors)
    return found


# --- results -----------------------------------------------------------------------------------------------


def stored(path: Path) -> dict[str, Record]:
    """Return the records of a file by name."""
    return {record["id"]: record for record in of_section(read(path), "rows")} if path.exists() else {}


if __name__ == "__main__":
    main()
