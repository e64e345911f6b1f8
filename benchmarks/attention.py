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
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attention_rows import Row, rows
from harness.figures import Limit
from harness.operands import free_memory
from harness.results import Record, explain
from harness.timing import Contender, HostCall, host_times, lost_context, race

import cudnn_ct as ct

RESULTS = Path(__file__).parent / "results" / "attention.json"
ROTATED = 120 * 10**6  # bytes of all operands: twice the L2 cache
SLOWEST = Limit("ours", "cudnn", 1.05)
TARGETS = {
    "cudnn": {"training": 1.0, "prefill": 1.0, "decode": 1.0},
    "flash": {"training": 0.75, "prefill": 0.75, "decode": 0.95},
}
LARGEST = 2**31  # scores of which the error is computed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare attention with PyTorch.")
    parser.add_argument("--json", type=Path, default=RESULTS, help="default: %(default)s")
    parser.add_argument("--only", default="", help="rows with this text in their names")
    parser.add_argument("--seconds", type=float, default=540, help="start no row after this time")
    parser.add_argument("--algo", default="heuristic", help="'heuristic' or 'autotune'")
    parser.add_argument("--again", action="store_true", help="measure rows that the file has, too")
    options = parser.parse_args(argv)
    records = read(options.json)
    started = time.monotonic()
    for row in rows():
        for direction in row.passes:
            name = f"{row.id} {direction} {options.algo}"
            done = name in records and not options.again
            if options.only not in name or done or time.monotonic() - started > options.seconds:
                continue
            records[name] = record = measure(row, direction, options.algo)
            print(line(name, record), flush=True)
            write(options.json, records)
            if record.get("lost"):
                raise SystemExit("the CUDA context was lost; start the command again to go on")
    print(render(records.values()))


def measure(row: Row, direction: str, algo: str) -> Record:
    """Time one row."""
    record: Record = {
        "model": row.model, "use": row.use, "direction": direction, "held_out": row.held_out, "algo": algo,
        "times": {}, "errors": {}, "first_ms": {},
    }  # fmt: skip
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


def read(path: Path) -> dict[str, Record]:
    """Return the records of a file by name."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}


def write(path: Path, records: dict[str, Record]) -> None:
    """Write the records, and what they were measured on."""
    import torch

    about = {
        "device": torch.cuda.get_device_name(), "cudnn": ct.version(), "torch": torch.__version__,
        "torch_cudnn": torch.backends.cudnn.version(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, "rows": records}, indent=1) + "\n", encoding="utf-8")


def line(name: str, record: Record) -> str:
    """Return the times of a row, its error and its host time."""
    times = " ".join(f"{who} {record['times'].get(who, math.nan):8.1f}" for who in ("ours", "cudnn", "flash"))
    errors = "".join(f"; {who}: {why.splitlines()[0][:60]}" for who, why in record["errors"].items())
    error = ratio(record.get("deviation", {}), "cudnn")
    host = record.get("host", {}).get("ours", math.nan)
    return f"{name[:74]:74} {times} error {error or math.nan:5.2f} host {host:5.1f}{errors}"


def ratio(numbers: dict[str, float], other: str) -> float | None:
    """Return our number over that of another contender."""
    return numbers["ours"] / numbers[other] if numbers.get(other) and numbers.get("ours") else None


def mean(numbers: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def render(records: Iterable[Record]) -> str:
    """Return the table of geometric means, for all rows and for those held out."""
    records = [record for record in records if record["times"]]
    lines = ["", "ours / theirs, GPU time: geometric mean (held out), worst, rows; target"]
    for other, targets in TARGETS.items():
        for use, target in targets.items():
            for direction in ("forward", "backward"):
                chosen = [r for r in records if r["use"] == use and r["direction"] == direction]
                pairs = [(value, r["held_out"]) for r in chosen if (value := ratio(r["times"], other))]
                if pairs:
                    values = [value for value, _ in pairs]
                    unseen = mean(value for value, held_out in pairs if held_out)
                    lines.append(
                        f"  {use:8} {direction:8} / {other:5}: {mean(values):.3f} ({unseen:.3f}), worst "
                        f"{max(values):.2f}, {len(values)} rows; at most {target}"
                    )
    errors = [value for r in records if (value := ratio(r.get("deviation", {}), "cudnn"))]
    host = [r["host"] for r in records if "ours" in r.get("host", {}) and "cudnn" in r.get("host", {})]
    if errors:
        lines.append(f"  error / cudnn: {mean(errors):.3f}, worst {max(errors):.2f}; at most 1.1")
    if host:
        lines.append(f"  host time / cudnn: {mean(ratio(one, 'cudnn') or math.nan for one in host):.2f}")
    failed = [
        f"{who}: {why.splitlines()[0]}" for r in records for who, why in r["errors"].items() if who == "ours"
    ]
    return "\n".join([*lines, *(f"  failed: {reason}" for reason in failed)])


if __name__ == "__main__":
    main()
