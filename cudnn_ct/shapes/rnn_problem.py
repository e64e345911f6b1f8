"""A call of a recurrent network as a value, for which an algorithm is selected."""

from __future__ import annotations

from typing import NamedTuple

from .rnn import RNN_ALGOS, RNNSpec
from .sequences import RNNShapes
from .specs import Shape, TensorSpec


class RNNDataSpec(NamedTuple):
    """Sequences in memory, as cuDNN's descriptor has them."""

    dtype: str
    layout: str
    steps: int  # the longest that a sequence may be
    batch: int
    size: int
    lengths: Shape
    padding: float = 0.0  # what an output is past the end of a sequence


class RNNProblem(NamedTuple):
    """A network and how much it is given; lengths only as far as an algorithm depends on them."""

    spec: RNNSpec  # its algorithm is unused
    layout: str  # the one of the data descriptor
    steps: int
    batch: int
    ragged: bool  # whether a sequence has fewer than all steps
    training: bool

    def __str__(self) -> str:
        ragged = " of different lengths" if self.ragged else ""
        purpose = "training" if self.training else "inference"
        return (
            f"{self.spec}: {self.batch} sequences{ragged}, {self.steps} steps, "
            f"{self.layout.replace('_', ' ')}, {purpose}"
        )


class RNNStep(NamedTuple):
    """One step of a network on given sequences: a forward pass, or a gradient with regard to data or weights.

    ``operands`` and ``written`` are the tensors of a run, in the order of its pointers.
    """

    name: str
    problem: RNNProblem
    shapes: RNNShapes
    lengths: Shape
    padding: float
    operands: tuple[tuple[str, TensorSpec], ...] = ()
    written: tuple[tuple[str, TensorSpec], ...] = ()
    updated: int = 0  # the last ones of those written are read as well
    aligned: bool = True  # whether all pointers are

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The tensors that are written."""
        return tuple(spec for _, spec in self.written)

    def __str__(self) -> str:
        return f"{self.name} of {self.problem}"


def rnn_problem(
    spec: RNNSpec, layout: str, steps: int, batch: int, lengths: Shape, training: bool
) -> RNNProblem:
    """Return the problem of a call; full sequences count as packed, which is the same memory."""
    ragged = any(length != steps for length in lengths)
    if not ragged and (layout == "sequence_major" or 1 in (steps, batch)):
        layout = "packed"  # the same memory, which cuDNN need not rearrange
    return RNNProblem(spec._replace(algo="standard"), layout, steps, batch, ragged, training)


def guessed_algos(problem: RNNProblem) -> tuple[str, ...]:
    """Return the algorithms, the one that is probably the fastest first.

    A rule read off 60 networks on an H200 with cuDNN 9.19. Persistent kernels keep the weights of a layer on
    the chip. Where these fit, they take a half to a tenth of the time in float16, and in float32 for a single
    sequence; where they do not, up to a hundred times as long. In bfloat16 all algorithms take the same time.
    """
    spec = problem.spec
    plain, weights = len(spec.gates) == 1, len(spec.gates) * spec.hidden_size**2
    first: list[str] = []
    if spec.dtype in ("float16", "float32"):
        if plain and spec.hidden_size <= 256:
            first.append("persist_static_small_h")
        if weights <= 2**22 and (spec.dtype == "float16" or problem.batch == 1):
            first.append("persist_static")
    return tuple(dict.fromkeys((*first, "standard", *RNN_ALGOS)))


def unfit_algo(problem: RNNProblem, algo: str) -> str:
    """Return why an algorithm does not fit a problem, or "". cuDNN rejects others itself."""
    return f"{algo} has no projection" if problem.spec.projection_size and algo != "standard" else ""
