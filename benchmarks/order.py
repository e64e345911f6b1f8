"""Compare the heuristic choice with cuDNN's own order, for drawn convolutions on tensor cores.

    python benchmarks/order.py [--seconds N] [--seed N] [--jobs N] [--json OUT]

The heuristic choice, the first engines of cuDNN's order, the first one with each number unless it is compiled
at run time, and the engines that facts prefer are timed as by autotune; several processes prepare them, one
at a time has the GPU. The table has geometric means of the time over that of the fastest, and how many take
1.6 times as long. `costs.py` fits facts to the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness import command
from harness.figures import geomean
from harness.shards import positive
from harness.timing import alone, use_lock
from short_choices import Drawn, drawn_convolutions
from short_pairs import drawn_tensor

DIRECTIONS = ("forward", "backward_data", "backward_filter")
FACTS = Path(__file__).resolve().parents[1] / "cudnn_ct" / "facts.json"
FEWEST, MOST, ELEMENTS = 2**12, 2**33, 2**24  # multiplications of a convolution, and elements of an array
READ, LISTED = 3, 60  # first engines of cuDNN's order, and those of which the first with each number is timed
SLOW = 1.6

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    options = argparse.ArgumentParser(description="compare the heuristic choice with cuDNN's order")
    options.add_argument("--seconds", type=float, default=60, help="no problem begins later")
    options.add_argument("--seed", type=int, help="default: a new one, which is printed")
    options.add_argument("--jobs", type=positive, default=8, help="processes (default: %(default)s)")
    options.add_argument("--json", type=Path, help="write the rows to this file")
    given = options.parse_args(arguments)
    seed = random.randrange(2**31) if given.seed is None else given.seed
    with tempfile.NamedTemporaryFile() as lock, multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        work = partial(rows_of, seed, given.jobs, given.seconds, Path(lock.name))
        rows = [row for found in pool.map(work, range(given.jobs)) for row in found]
    print(f"seed {seed}: {len(rows)} convolutions")
    report(rows)
    if given.json:
        given.json.write_text(json.dumps({"about": command.about(), "seed": seed, "rows": rows}) + "\n")


def rows_of(seed: int, jobs: int, seconds: float, lock: Path, job: int) -> list[Row]:
    """Return the rows of one process: every problem of a seed whose number it is to take."""
    use_lock(lock)
    end, rows = time.monotonic() + seconds, []
    for number, (direction, one) in enumerate(drawn(seed)):
        if time.monotonic() > end:
            return rows
        if number % jobs == job and (row := timed(direction, one)):
            rows.append(row)
    return rows


def drawn(seed: int) -> Iterator[tuple[str, Drawn]]:
    """Yield directions and convolutions, of which half have groups or windows of 1."""
    source = random.Random(seed)
    while True:
        if source.random() < 0.5:
            (one,) = drawn_convolutions(source.randrange(2**31), 1)
            if fits(one):
                yield source.choice(("forward", *DIRECTIONS)), one
            continue
        axes, grouped = source.choice((1, 2, 2, 2, 3)), source.random() < 0.6
        channels, filters = (round(2 ** source.uniform(0, 11)) for _ in range(2))
        groups = source.choice((2, 3, 4, 4, 8, 16, 32)) if grouped else 1
        channels = groups if grouped and source.random() < 0.25 else max(1, channels // groups) * groups
        filters = max(1, filters // groups) * groups
        batch, window = round(2 ** source.uniform(0, 8)), source.choice((1, 3, 3, 3, 5, 7)) if grouped else 1
        size, stride = round(2 ** source.uniform(0, 9 if axes < 3 else 6)), source.choice((1, 1, 2, 3, 4))
        padding, last = source.choice((0, window // 2, window // 2)), axes > 1 and source.random() < 0.5
        shapes = (batch, channels, *(size,) * axes), (filters, channels // groups, *(window,) * axes)
        one = Drawn(*shapes, padding, stride, groups, source.choice(("float32", "float16", "bfloat16")), last)
        if fits(one):
            yield source.choice(("forward", *DIRECTIONS)), one


def fits(one: Drawn) -> bool:
    """Return whether a convolution exists, and takes neither long nor much memory."""
    results = [(n + 2 * one.padding - k) // one.stride + 1 for n, k in zip(one.x[2:], one.w[2:], strict=True)]
    pixels = one.x[0] * math.prod(results)
    most = max(math.prod(one.x), pixels * one.w[0])
    return min(results) > 0 and FEWEST <= pixels * math.prod(one.w) <= MOST and most <= ELEMENTS


def timed(direction: str, one: Drawn) -> Row:
    """Return the times of the choice and of other engines, in microseconds; empty if none can be timed.

    They are timed as by autotune: as CUDA graphs, in a row and with a cold cache, of which the longer counts.
    """
    import cudnn_ct as ct
    from cudnn_ct import context
    from cudnn_ct.autotune.measurement import benchmark_rows
    from cudnn_ct.cuda import stream as streams
    from cudnn_ct.graph.candidates import engine_candidates
    from cudnn_ct.graph.offline import target_of
    from cudnn_ct.legal.rules import engine_rules
    from cudnn_ct.ops.conv.candidates import SOURCE
    from cudnn_ct.ops.conv.graph import by_name, graph_of

    x, w = (ct.asarray(drawn_tensor(shape, one.dtype)) for shape in (one.x, one.w))
    if one.channels_last:
        x, w = x.packed("nhwc"), w.packed("nhwc")
    given: Row = {"padding": one.padding, "stride": one.stride, "groups": one.groups}
    operands = (x, w)
    if direction != "forward":
        y = ct.conv(x, w, **given)
        operands = (y, w, x.shape) if direction == "backward_data" else (y, x, w.shape)
    planned = ct.conv_plan(*operands, direction=direction, algo="heuristic", **given)
    problem, chosen = planned.problem, planned.candidate
    arrays = (*operands[:2], planned(*operands[:2]))
    ctx = context.current(streams.default_stream(0))
    rules = engine_rules(problem, target_of(ctx))._replace(last=())
    offered = [
        row for row in engine_candidates(graph_of(problem), rules, ctx, ("b",), LISTED) if not row.rejected
    ]
    numbers = {row.algorithm.partition(" knobs")[0]: row for row in reversed(offered) if not row.compiled}
    named = [row for name in named_first(direction) if not (row := by_name(problem, name, ctx)).rejected]
    rows = {row.algorithm: row for row in (*named, *numbers.values(), *offered[:READ], chosen)}
    with alone(), ctx.working(ctx.stream):
        pointers = [array.pointer for array in arrays]
        found, _ = benchmark_rows(problem, list(rows.values()), SOURCE.plan, ctx, pointers, 1.0, 0.0)
    times = {row.algorithm: 1000 * row.time_ms for row in found if row.time_ms is not None}
    if not offered or not {offered[0].algorithm, chosen.algorithm} <= times.keys():
        return {}
    first = offered[0].algorithm
    return {"direction": direction, "drawn": one, "chosen": chosen.algorithm, "cudnn": first, "times": times}


def named_first(direction: str) -> list[str]:
    """Return the engines that facts prefer for a direction."""
    operation = {"forward": "conv"}.get(direction, f"conv_{direction}")
    rows = json.loads(FACTS.read_text(encoding="utf-8"))["facts"]
    mine = [row for row in rows if row["kind"] in ("first", "cost") and operation in row["operations"]]
    return [name for row in mine for name in row["order"] if name.startswith("engine ")]


def report(rows: list[Row]) -> None:
    """Print the losses of the choice and of cuDNN's order, by direction and kind."""
    kinds = defaultdict(list)
    for row in rows:
        least, times = min(row["times"].values()), row["times"]
        groups, filter_shape = Drawn(*row["drawn"]).groups, Drawn(*row["drawn"]).w
        kind = "groups" if filter_shape[1] > 1 else "depthwise"
        if groups == 1:
            kind = "windows of 1" if math.prod(filter_shape[2:]) == 1 else "other windows"
        losses = times[row["chosen"]] / least, times[row["cudnn"]] / least
        kinds[f"{row['direction']}, {kind}"].append(losses)
        kinds["all"].append(losses)
    print(f"{'':34} rows  ours, slow   cuDNN, slow")
    for kind, found in sorted(kinds.items()):
        sides = [list(one) for one in zip(*found, strict=True)]
        cells = [f"{geomean(one):5.2f} {sum(loss > SLOW for loss in one):5}" for one in sides]
        print(f"{kind:34} {len(found):4} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
