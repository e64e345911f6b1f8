"""Workload of the RNN benchmark: networks and batches that cover all pairs of parameter values.

A row is a network, a batch and a computation: a forward pass, or a training step with gradients. This module
needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from harness.operands import Array
from harness.shards import select


class Kind(NamedTuple):
    """Dtype, and the precision that both sides use."""

    name: str
    title: str
    dtype: str
    precision: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fp16", "fp16", "float16", "as_input_f32"),
        Kind("bf16", "bf16", "bfloat16", "as_input_f32"),
        Kind("tf32", "float32 as TF32", "float32", "tf32"),  # PyTorch's default
    )
}
MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
PASSES = ("forward", "training")
SECTIONS = ("padded", "packed")

HIDDEN = (256, 512, 1024, 1536, 2048)
BATCHES = (1, 16, 32, 64, 128)
STEPS = (25, 50, 150)


class Row(NamedTuple):
    """Network, batch and computation, which PyTorch and cudnn_ct run. Input and hidden sizes are equal."""

    mode: str
    hidden: int
    layers: int
    directions: int
    batch: int
    steps: int
    kind: Kind
    work: str
    packed: bool = False

    @property
    def id(self) -> str:
        """The key of the row in files of results."""
        network = f"{self.mode} {self.hidden} x{self.layers}{' bidirectional' * (self.directions == 2)}"
        batch = f"batch {self.batch} steps {self.steps}{' packed' * self.packed}"
        return f"{network} | {batch} | {self.kind.name} | {self.work}"

    @property
    def section(self) -> str:
        """Section of the row: "padded" if all sequences have the same length, otherwise "packed"."""
        return "packed" if self.packed else "padded"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each sequence, longest first. Packed lengths fall evenly from all steps to a quarter."""
        if not self.packed:
            return (self.steps,) * self.batch
        least, most = max(1, self.steps // 4), self.steps
        return tuple(most - (most - least) * i // max(self.batch - 1, 1) for i in range(self.batch))

    @property
    def arrays(self) -> dict[str, Array]:
        """Operands by role. ``dy`` is the gradient of the output."""
        outputs = self.hidden * self.directions
        lead = (sum(self.lengths),) if self.packed else (self.steps, self.batch)
        arrays = {"x": Array((*lead, self.hidden), self.kind.dtype)}
        if self.work == "training":
            arrays["dy"] = Array((*lead, outputs), self.kind.dtype)
        return arrays


def rows(
    *,
    sections: Iterable[str] = SECTIONS,
    modes: Iterable[str] = MODES,
    kinds: Iterable[str] = tuple(KINDS),
    every: int = 1,
    shard: tuple[int, int] = (1, 1),
) -> list[Row]:
    """Return the selected rows in the order of `harness.shards.select`."""
    sections, modes, kinds = set(sections), set(modes), set(kinds)
    found = [
        row
        for row in (*_padded(), *_packed())
        if row.section in sections and row.mode in modes and row.kind.name in kinds
    ]
    return select(found, every=every, shard=shard)


# Common modes come more often, and bidirectional networks are rare.
_CYCLE = ("lstm", "gru", "lstm", "rnn_tanh", "lstm", "gru", "rnn_relu")
_SHAPES = ((1, 1), (2, 1), (1, 1), (1, 2), (2, 1))  # layers and directions


def _padded() -> Iterator[Row]:
    """Yield every hidden size with every batch and computation. The other parameters cycle.

    Every pair of values of two parameters occurs in a row.
    """
    kinds = tuple(KINDS)
    for i, j, p in product(range(len(HIDDEN)), range(len(BATCHES)), range(len(PASSES))):
        layers, directions = _SHAPES[(i + 2 * j + 3 * p) % len(_SHAPES)]
        yield Row(
            _CYCLE[(2 * i + 3 * j + p) % len(_CYCLE)],
            HIDDEN[i],
            layers,
            directions,
            BATCHES[j],
            STEPS[(i + j + 2 * p) % len(STEPS)],
            KINDS[kinds[(i + 2 * j + p) % len(kinds)]],
            PASSES[p],
        )


def _packed() -> Iterator[Row]:
    """Yield batches of sequences of many lengths."""
    for mode, hidden, batch, steps, kind, work in (
        ("lstm", 512, 32, 50, "fp16", "forward"),
        ("lstm", 1024, 64, 150, "fp16", "forward"),
        ("gru", 256, 128, 50, "bf16", "forward"),
        ("rnn_tanh", 1024, 32, 25, "tf32", "forward"),
        ("gru", 512, 16, 150, "tf32", "forward"),
        ("lstm", 512, 64, 50, "fp16", "training"),
        ("lstm", 2048, 32, 25, "bf16", "training"),
        ("gru", 1024, 32, 50, "fp16", "training"),
        ("lstm", 256, 16, 150, "tf32", "training"),
        ("rnn_relu", 512, 128, 25, "tf32", "training"),
    ):
        yield Row(mode, hidden, 1, 1, batch, steps, KINDS[kind], work, packed=True)
