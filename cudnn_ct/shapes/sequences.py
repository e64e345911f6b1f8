"""Sequences of different lengths, and calls of recurrent networks on them as values."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Generic, NamedTuple

from .checks import as_choice
from .rnn import RNN_ALGOS, RNNSpec
from .specs import Shape, T, TensorSpec, check_shape

# (T, B, size) with all sequences of T steps; (B, T, size) likewise; (sum of lengths, size): the first step of
# each sequence that has one, then the second, and so on.
RNN_LAYOUTS = ("sequence_major", "batch_major", "packed")
_SYNONYMS = {
    "seq_major_unpacked": "sequence_major",
    "batch_major_unpacked": "batch_major",
    "seq_major_packed": "packed",
}  # cuDNN's names


class RNNResult(NamedTuple, Generic[T]):
    """Result of ``reference.rnn``: the output, and the states after each sequence's last step.

    ``cy`` is None for a mode without cells.
    """

    y: T
    hy: T
    cy: T | None


class RNNGradients(NamedTuple, Generic[T]):
    """Result of ``reference.rnn_backward``: gradients of the input, the first states and each parameter.

    ``dc0`` is None for a mode without cells; ``dweights`` are in the order of ``rnn_parameters``.
    """

    dx: T
    dh0: T
    dc0: T | None
    dweights: tuple[T, ...]


class RNNShapes(NamedTuple):
    """Shapes of input and output, and of the states before and after; ``c`` is None without cells."""

    x: Shape
    y: Shape
    h: Shape
    c: Shape | None


def rnn_layout(layout: Any) -> str:
    """Return the name in :data:`RNN_LAYOUTS` of a layout, which may have cuDNN's name."""
    name = as_choice(layout, (*RNN_LAYOUTS, *_SYNONYMS), "layout")
    return _SYNONYMS.get(name, name)


def as_integers(values: Iterable[int], name: str = "lengths") -> Shape:
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise TypeError(f"{name} must be integers, not {values!r}") from None


def check_lengths(values: Iterable[int], steps: int | None, batch: int, name: str = "lengths") -> Shape:
    """Return a number for each sequence, from 0 to the number of steps if that is given, or raise."""
    found = as_integers(values, name)
    if len(found) != batch:
        raise ValueError(f"{name} has {len(found)} numbers; the batch has {batch} sequences")
    for sequence, n in enumerate(found):
        if n < 0 or (steps is not None and n > steps):
            limit = "at least 0" if steps is None else f"between 0 and the {steps} steps"
            raise ValueError(f"{name} of sequence {sequence} is {n}; it must be {limit}")
    return found


def rnn_shapes(spec: RNNSpec, leading: Shape, batch: int) -> RNNShapes:
    """Return the shapes for data with some leading axes, which has a batch of sequences.

    >>> from cudnn_ct.shapes.rnn import rnn_spec
    >>> rnn_shapes(rnn_spec("lstm", 5, 4, 3, direction="bidirectional"), (7, 2), 2)
    RNNShapes(x=(7, 2, 5), y=(7, 2, 8), h=(6, 2, 4), c=(6, 2, 4))
    """
    return RNNShapes(
        (*leading, spec.input_size),
        (*leading, spec.output_size * spec.directions),
        (spec.pseudo_layers, batch, spec.output_size),
        (spec.pseudo_layers, batch, spec.hidden_size) if spec.has_cells else None,
    )


def packed_for_cudnn(lengths: Iterable[int]) -> bool:
    """Return whether cuDNN takes packed data of these lengths: the longest first, and none without a step."""
    found = tuple(lengths)
    return all(a >= b for a, b in pairwise(found)) and min(found, default=0) > 0


def check_rnn_operands(
    spec: RNNSpec,
    x_shape: Iterable[int],
    h0_shape: Iterable[int] | None = None,
    c0_shape: Iterable[int] | None = None,
    lengths: Iterable[int] | None = None,
    layout: Any = "sequence_major",
) -> tuple[RNNShapes, Shape]:
    """Raise unless input, first states and lengths fit a network; return all shapes and the lengths."""
    x, layout = check_shape(x_shape, "x_shape"), rnn_layout(layout)
    axes = {"sequence_major": "(T, B, ", "batch_major": "(B, T, ", "packed": "(sum of lengths, "}[layout]
    if len(x) != axes.count(",") + 1 or x[-1] != spec.input_size:
        raise ValueError(f"x has shape {x}; {layout.replace('_', ' ')} data needs {axes}{spec.input_size})")
    if layout == "packed":
        if lengths is None:
            raise ValueError(f"packed data needs lengths, one for each sequence: x has shape {x}")
        given = as_integers(lengths)
        found = check_lengths(given, None, len(given))
        if sum(found) != x[0]:
            raise ValueError(f"x has {x[0]} packed rows; lengths {found} add up to {sum(found)}")
        batch = len(found)
    else:
        steps, batch = x[:2] if layout == "sequence_major" else x[1::-1]
        found = (steps,) * batch if lengths is None else check_lengths(lengths, steps, batch)
    shapes = rnn_shapes(spec, x[:-1], batch)
    check_states(spec, shapes, h0=h0_shape, c0=c0_shape)
    return shapes, found


def check_states(spec: RNNSpec, shapes: RNNShapes, **states: Iterable[int] | None) -> None:
    """Raise unless each state given, whose name has an h or a c in it, has the shape that it needs."""
    for name, given in states.items():
        if given is None:
            continue
        is_cell = "c" in name
        wanted = shapes.c if is_cell else shapes.h
        if wanted is None:
            raise ValueError(f"{name} is given, but mode={spec.mode!r} has no cells; only 'lstm' has")
        if tuple(given) != wanted:
            size = "hidden_size" if is_cell or not spec.projection_size else "projection_size"
            raise ValueError(
                f"{name} has shape {tuple(given)}; this network needs {wanted}: "
                f"(layers x directions, batch, {size})"
            )


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
    """A forward pass of a network on given sequences, or a gradient with regard to data or weights."""

    name: str
    problem: RNNProblem
    shapes: RNNShapes
    lengths: Shape
    padding: float
    # The tensors of a run, in the order of its pointers.
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
    """Return the algorithms, the one that is probably the fastest first."""
    # A rule read off 60 networks on an H200 with cuDNN 9.19. Persistent kernels keep the weights of a layer
    # on the chip. Where these fit, they take a half to a tenth of the time in float16, and in float32 for a
    # single sequence, or up to 16 of small networks without gates; where they do not, up to a hundred times
    # as long. In bfloat16 all algorithms take the same time.
    spec = problem.spec
    plain, weights = len(spec.gates) == 1, len(spec.gates) * spec.hidden_size**2
    first: list[str] = []
    if spec.dtype in ("float16", "float32"):
        if plain and spec.hidden_size <= 256:
            first.append("persist_static_small_h")
        small = plain and spec.hidden_size <= 384 and problem.batch <= 16
        if weights <= 2**22 and (spec.dtype == "float16" or problem.batch == 1 or small):
            first.append("persist_static")
    return tuple(dict.fromkeys((*first, "standard", *RNN_ALGOS)))


def unfit_algo(problem: RNNProblem, algo: str) -> str:
    """Return why an algorithm does not fit a problem, or "". cuDNN rejects others itself."""
    return f"{algo} has no projection" if problem.spec.projection_size and algo != "standard" else ""
