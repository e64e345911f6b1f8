"""Compare matrix products with bias and activation with PyTorch eager on one GPU.

    python benchmarks/matmul.py --rows rows.jsonl [--part known|held-out] [--seconds 110] [--json OUT]

A row is a linear layer: x (M, K), weights (N, K), bias (N,) and an activation. Rows belong to classes by what
takes their time: the products, the weights, or the result. GPU time is the median of loops of calls between
two events; PyTorch and cudnn_ct run alternately. Every third row of a class is held out: it was not used to
choose anything. Tuning a row compiles about ten kernels, which takes seconds. Rows in the file are not
measured again, so that a stopped command resumes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import command
from harness.command import keep
from harness.comparison import EPSILON, distance, tensor_of
from harness.figures import Bar, Limit, geomean
from harness.operands import Array, Operands, operands_or_reason
from harness.results import Record, Results, of_section, room_for, write_whole
from harness.text import about_lines, failures, line_of
from harness.timing import Contender, race

import cudnn_ct as ct

LIMITS = {"compute": 1.02, "weights": 1.05, "epilogue": 0.6}
CONTENDERS = ("torch", "ct_heuristic", "ct_autotune")

# M, N and K of layers of public models, and squares, by class. Every third of a class is held out.
SHAPES = {
    "compute": (
        (4096, 4096, 4096), (8192, 4096, 4096), (4096, 11008, 4096), (4096, 4096, 11008),
        (8192, 14336, 4096), (8192, 4096, 14336), (2048, 8192, 8192), (4096, 8192, 28672),
        (16384, 5120, 5120), (4096, 13824, 5120), (8192, 3072, 12288), (2048, 12288, 12288),
        (4096, 7168, 7168), (3000, 5000, 7000),
    ),
    "weights": (
        (1, 4096, 4096), (8, 4096, 4096), (16, 8192, 8192), (16, 14336, 4096), (32, 4096, 14336),
        (1, 11008, 4096), (4, 5120, 5120), (16, 28672, 8192), (64, 8192, 8192), (8, 12288, 4096),
        (2, 7168, 7168), (32, 13824, 5120), (16, 4096, 11008),
    ),
    "epilogue": (
        (8192, 4096, 64), (16384, 3072, 64), (32768, 1024, 64), (65536, 768, 64), (8192, 8192, 64),
        (16384, 4096, 32), (50432, 768, 64), (25216, 1536, 96), (12608, 3072, 64), (100352, 384, 96),
        (200704, 192, 48), (8192, 5120, 80), (32768, 2048, 32),
    ),
}  # fmt: skip
ACTIVATIONS = ("gelu", "silu", "gelu_tanh", "relu")
HELD_OUT = 3


class Row(NamedTuple):
    """A linear layer."""

    kind: str
    m: int
    n: int
    k: int
    activation: str
    held_out: bool
    dtype: str = "bfloat16"

    @property
    def id(self) -> str:
        return f"{self.kind} {self.m} x {self.n} x {self.k} {self.activation} {self.dtype}"


def rows() -> list[Row]:
    found = []
    for kind, shapes in SHAPES.items():
        for place, shape in enumerate(shapes):
            held_out = place % HELD_OUT == 1
            dtype = "float16" if place % 5 == 4 else "bfloat16"
            found.append(Row(kind, *shape, ACTIVATIONS[place % len(ACTIVATIONS)], held_out, dtype))
    return found


# --- measurements ------------------------------------------------------------------------------------------


def row_record(row: Row) -> Record:
    record = room_for("rows", row.id, **row._asdict())
    arrays = {
        "x": Array((row.m, row.k), row.dtype),
        "w": Array((row.n, row.k), row.dtype),
        "bias": Array((row.n,), row.dtype),
        "y": Array((row.m, row.n), row.dtype, empty=True),
    }
    operands = operands_or_reason(arrays, record)
    if operands is None:
        return record
    calls = contenders(row, operands)
    wanted = eager(row, operands, 0)
    for name in CONTENDERS[1:]:
        apart = distance(tensor_of(calls[name].call(0)), wanted)
        if not apart <= EPSILON[row.dtype]:
            record["errors"][name] = f"differs from PyTorch by {apart:.1e}"
            del calls[name]
    plan = ct.last_plan()
    record["engine"] = str(plan.candidate.algorithm) if plan and plan.candidate else ""
    limit = Limit("ct_autotune", "torch", LIMITS[row.kind], bound=15)
    return race(record, calls, operands.count, limit=limit)


def contenders(row: Row, operands: Operands) -> dict[str, Contender]:
    ours, outs = operands.ours, operands.ours["y"]
    kept: list[Any] = [None] * operands.count
    weights = [w.T for w in ours["w"]]

    def theirs(i: int) -> None:
        kept[i] = eager(row, operands, i)

    def call(i: int, policy: str) -> Any:
        return ct.matmul(
            ours["x"][i],
            weights[i],
            bias=ours["bias"][i],
            activation=row.activation,
            algo=policy,
            out=outs[i],
        )

    return {
        "torch": Contender(theirs),
        "ct_heuristic": Contender(functools.partial(call, policy="heuristic")),
        "ct_autotune": Contender(functools.partial(call, policy="autotune")),
    }


def eager(row: Row, operands: Operands, i: int) -> Any:
    """Return the layer by PyTorch's linear and activation."""
    from torch.nn import functional

    theirs = operands.theirs
    y = functional.linear(theirs["x"][i], theirs["w"][i], theirs["bias"][i])
    if row.activation == "gelu_tanh":
        return functional.gelu(y, approximate="tanh")
    return getattr(functional, row.activation)(y)


# --- report ------------------------------------------------------------------------------------------------


def ratio(row: Record, name: str = "ct_autotune") -> float | None:
    return Limit(name, "torch", 0).ratio(row) if name == "ct_autotune" else _plain(row, name)


def _plain(row: Record, name: str) -> float | None:
    times = row["times"]
    return times[name] / times["torch"] if times.get(name) and times.get("torch") else None


def bars(records: list[Record]) -> list[Bar]:
    found = []
    for kind, limit in LIMITS.items():
        measured = [row for row in of_section(records, "rows") if row["kind"] == kind]
        for part in (False, True):
            ratios = [one for row in measured if row["held_out"] is part and (one := ratio(row))]
            name = f"{kind}{', held out' if part else ''}"
            worst = f"worst {max(ratios):.2f}" if ratios else ""
            found.append(Bar(f"autotuned / torch, {name}", geomean(ratios), limit, len(ratios), worst))
    return found


def render(records: list[Record]) -> str:
    lines = [*about_lines(records), f"{'row':48} {'torch':>8} {'heur.':>8} {'tuned':>8} {'ratio':>6}  engine"]
    for row in of_section(records, "rows"):
        cells = " ".join(
            f"{time:8.1f}" if (time := row["times"].get(name)) else f"{'-':>8}" for name in CONTENDERS
        )
        found = ratio(row)
        mark = " held out" if row["held_out"] else ""
        text = f"{found:6.2f}" if found else f"{'-':>6}"
        lines.append(f"{row['id']:48} {cells} {text}  {row.get('engine', '-')}{mark}")
    return "\n".join([*lines, *map(str, bars(records)), failures(records)])


def warm_up() -> None:
    import torch

    x = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16)
    ct.matmul(x, x)
    x @ x


def jobs(options: Any, results: Results) -> Iterator[Callable[[], None]]:
    chosen = [row for row in rows() if options.part in ("all", "held-out" if row.held_out else "known")]
    part, of = options.shard
    for row in chosen[:: options.every][part - 1 :: of]:
        if not results.has("rows", row.id, CONTENDERS):
            yield functools.partial(keep, results, row_record, row, line=line_of)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command.parser("compare matrix products with PyTorch")
    parser.add_argument("--part", choices=("all", "known", "held-out"), default="all")
    options = parser.parse_args(argv)
    results = Results(options.rows)
    command.carry_out(list(jobs(options, results)), results, warm_up, options)
    print(render(results.merged()))
    if options.json:
        path: Path = options.json
        write_whole(path, "matmul", results.merged(), [bar.record for bar in bars(results.merged())])


if __name__ == "__main__":
    main()
