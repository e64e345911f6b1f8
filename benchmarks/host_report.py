"""Figures of the host benchmark: the targets with their values, and the rows behind them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from harness import results
from harness.figures import Bar, geomean, quotient, ranked
from harness.results import Record, of_section
from harness.text import about_lines, failures

CONV = "conv and gradients"
LAYERS = "pool, softmax, activation, norms, reduce, add, with out="
# Contenders that ours are compared with. Our calls with `config.replay = False` end with "_off".
THEIRS = {
    "torch": "PyTorch",
    "frontend": "nvidia-cudnn-frontend",
    "torch_graph_pass": "PyTorch's CUDA graph",
    "limit": "limits of 0.3 s and 1.5 ms",
}


class Target(NamedTuple):
    """Maximum of the geometric mean of ours / theirs over the rows of a section, and of each row."""

    section: str
    title: str
    ours: str
    theirs: str
    limit: float
    row_limit: float | None = None

    @property
    def name(self) -> str:
        return f"{self.title} / {THEIRS.get(self.theirs, 'without replays')}"

    def ratio(self, row: Record) -> float | None:
        return quotient(row["times"], self.ours, self.theirs)


STYLES = {  # contenders of convolutions, with their limits
    "ours": ("our arrays", 0.55),
    "tensors": ("torch tensors", 0.75),
    "tensors_out": ("torch tensors, out=", 0.65),
}
TARGETS = (
    *(Target("conv", f"{CONV}, {title}", s, "torch", most) for s, (title, most) in STYLES.items()),
    *(
        Target("conv-rotating", f"{CONV}, {title}, 64 sets of pointers", s, "torch", most)
        for s, (title, most) in STYLES.items()
    ),
    *(
        Target("conv-fresh", f"{CONV}, {title}, new pointers in each call", s, f"{s}_off", 1.05)
        for s, (title, _) in STYLES.items()
    ),
    Target("layers", LAYERS, "ours", "torch", 0.55, 0.85),
    Target("plan", "ConvPlan, out=", "ours", "torch", 0.30),
    Target("plan", "ConvPlan, out=", "ours", "frontend", 0.35),
    Target("rnn", "LSTM and GRU, T <= 50, out=", "ours", "torch", 0.12),
    Target("network", "captured network", "ours", "torch", 0.10),
    Target("first", "first calls", "ours", "limit", 1.0, 1.0),
    Target("network", "captured network, until the GPU is done", "ours_pass", "torch_graph_pass", 1.05),
)


def write_whole(path: Path, records: list[Record]) -> None:
    """Write the records and the targets to one JSON file."""
    unit = "microseconds of host time per call, medians; ratios are ours / theirs"
    results.write_whole(path, "host", records, [bar.record for bar in bars(records)], unit)


def bars(records: list[Record], sections: Collection[str] = ()) -> list[Bar]:
    """Return the targets with the measured values, of all sections by default."""
    wanted = (target for target in TARGETS if not sections or target.section in sections)
    return [bar for target in wanted for bar in _bars(target, records)]


def rows_of(target: Target, records: list[Record]) -> list[tuple[float, Record]]:
    """Return the rows of a target with their ratios, largest ratio first."""
    return ranked(target.ratio, of_section(records, target.section))


def _bars(target: Target, records: list[Record]) -> Iterator[Bar]:
    found = rows_of(target, records)
    mean = geomean([ratio for ratio, _ in found])
    worst = f"worst {found[0][0]:.2f}: {found[0][1]['id']}" if found else _reason(target, records)
    yield Bar(target.name, mean, target.limit, len(found), worst)
    if target.row_limit is not None:
        highest = found[0][0] if found else None
        above = f"{sum(ratio > target.row_limit for ratio, _ in found)} above"
        yield Bar(f"{target.name}, the worst row", highest, target.row_limit, len(found), above)


def _reason(target: Target, records: list[Record]) -> str:
    """Return the reason why no row of a target was measured, or an empty string for none."""
    rows = [record for record in records if record["section"] == target.section]
    notes = [row.get(field, {}) for row in rows for field in ("missing", "errors")]
    reasons = (note.get(name, "") for note in notes for name in (target.ours, target.theirs))
    return next(filter(None, reasons), "")


def render(records: list[Record], sections: Collection[str] = ()) -> str:
    """Return the device and the versions, the errors, and the targets of the sections."""
    targets = "\n".join(map(str, bars(records, sections)))
    parts = ["\n".join(about_lines(records)), failures(records), targets]
    return "\n\n".join(filter(None, parts))
