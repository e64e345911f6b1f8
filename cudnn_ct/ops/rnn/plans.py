"""Plans of recurrent networks, with one C call for each step, and the descriptors that they need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from math import copysign
from operator import itemgetter
from typing import Any, NamedTuple

from ..._bindings import enums
from ...array import DeviceArray
from ...context import Context
from ...cuda import memory as memories
from ...descriptors import (
    Descriptor,
    Setter,
    TensorDescriptor,
    choice,
    dtype,
    integer,
    ints,
    members,
)
from ...dtypes import DTYPES
from ...plans.base import Candidate, Plan
from ...plans.chain import ChainPlan, Step
from ...plans.elementwise import copy_plan, fill_plan
from ...plans.workspace import nbytes_of
from ...plans.wrappers import RelayoutPlan
from ...shapes.rnn import RNN_ALGOS, RNNSpec
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_problem import RNNDataSpec, RNNStep
from ...shapes.specs import TensorSpec
from .._sequences import DeviceInts, plan_for_sequences

__all__ = ["EmptyRNNPlan", "RNNDataDescriptor", "RNNDescriptor", "RNNPlan", "step_plan"]

INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
ADD = 0  # cudnnWgradMode_t: the only one that cuDNN computes

Enqueue = Callable[[Context, Sequence[int]], None]


class _Call(NamedTuple):
    """A C function, the names of its arguments, and for h and c the state before and the state after."""

    function: str
    arguments: str
    states: tuple[tuple[str, str], ...] = ()


_MEMORY = "workspace_size workspace reserve_size reserve"
CALLS = {
    "forward": _Call(
        "cudnnRNNForward",
        "handle network mode lengths x_desc x y_desc y h_desc h0 hy c_desc c0 cy weight_size w " + _MEMORY,
        (("h0", "hy"), ("c0", "cy")),
    ),
    "backward_data": _Call(
        "cudnnRNNBackwardData_v8",
        "handle network lengths y_desc y dy x_desc dx h_desc h0 dhy dh0 c_desc c0 dcy dc0 weight_size w "
        + _MEMORY,
        (("dhy", "dh0"), ("dcy", "dc0")),
    ),
    "backward_weights": _Call(
        "cudnnRNNBackwardWeights_v8",
        "handle network add lengths x_desc x h_desc h0 y_desc y weight_size dw " + _MEMORY,
    ),
}


def step_plan(step: RNNStep, network: RNNPlan | EmptyRNNPlan) -> Plan:
    """Return a plan of one step; operands that have gaps or are misaligned are copied."""
    specs = dict((*step.operands, *step.written))
    steps = [Step(StepPlan(step, network), tuple(range(len(specs)))), *_empty_sequences(step, list(specs))]
    plan = ChainPlan((), steps, scaled=0) if len(steps) > 1 else steps[0].plan
    moves = [_contiguous(spec) for spec in specs.values()]
    if step.aligned and not any(copy for _, copy in moves):
        return plan
    copying = RelayoutPlan(plan, moves, len(step.written), step.updated, align=True)
    # Calls with and without copies share decisions, so the limit applies to the workspace of the algorithm.
    copying.workspace = plan.workspace
    return copying


def _contiguous(spec: TensorSpec) -> tuple[TensorSpec, TensorSpec | None]:
    is_contiguous = not spec.size or "nchw" in spec.layouts
    return spec, None if is_contiguous else TensorSpec.packed(spec.shape, spec.dtype)


def _empty_sequences(step: RNNStep, names: list[str]) -> list[Step]:
    """Pass on the states of sequences without a time step: cuDNN writes the padding value there."""
    empty = [place for place, length in enumerate(step.lengths) if not length]
    steps = []
    for source, target in CALLS[step.name].states if empty else ():
        if target not in names:
            continue
        spec, at = dict(step.written)[target], names.index(target)
        if source in names:
            copies = plan_for_sequences(empty, copy_plan, spec, spec)
            steps.append(Step(copies, (names.index(source), at)))
        else:
            zeros = plan_for_sequences(empty, lambda part: fill_plan(part, 0.0), spec)
            steps.append(Step(zeros, (at,)))
    return steps


class StepPlan:
    """One step of a network; the pointers of a run are those of the operands and results that it has."""

    __slots__ = ("_enqueue", "_network", "_zeroed", "workspace")

    def __init__(self, step: RNNStep, network: RNNPlan | EmptyRNNPlan) -> None:
        names = [name for name, _ in (*step.operands, *step.written)]
        self._network = network
        self._enqueue = network.bind(step, names)
        self.workspace = network.workspace
        # cuDNN adds to gradients of weights, and leaves those of padding as they are.
        is_zeroed = {"dw": not step.updated, "dx": step.problem.ragged and step.problem.layout != "packed"}
        self._zeroed = [
            (names.index(name), nbytes_of(spec)) for name, spec in step.written if is_zeroed.get(name)
        ]

    # The steps have no factors.
    def run(self, context: Context, pointers: Sequence[int], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the step."""
        for place, nbytes in self._zeroed:
            memories.fill(pointers[place], b"\0", nbytes, context.stream)
        self._enqueue(context, pointers)

    def describe(self) -> str:
        """Return a description of the plan."""
        return self._network.describe()


class RNNPlan:
    """One algorithm of a network for sequences of given lengths.

    The lengths are in the descriptors and in device memory: before cuDNN 8.9.1 kernels read the latter, and
    the header still asks for it.
    """

    __slots__ = (
        "_constants",
        "_dy",
        "_lengths",
        "_library",
        "_training",
        "candidate",
        "reserve",
        "workspace",
    )

    def __init__(self, step: RNNStep, candidate: Candidate, network: RNNDescriptor, context: Context) -> None:
        problem, spec = step.problem, step.problem.spec
        # The descriptor of x has the padding 0, which cuDNN writes to dx past the ends of sequences.
        x = RNNDataSpec(
            spec.dtype, problem.layout, problem.steps, problem.batch, spec.input_size, step.lengths
        )
        width = spec.output_size * spec.directions
        h, c = (
            TensorDescriptor.cached(TensorSpec.packed((spec.pseudo_layers, problem.batch, size), spec.dtype))
            for size in (spec.output_size, spec.hidden_size)
        )
        x_desc, mode = RNNDataDescriptor.cached(x), TRAINING if problem.training else INFERENCE
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        context.library.cudnnGetRNNTempSpaceSizes(
            context.handle, network, mode, x_desc, ctypes.byref(workspace), ctypes.byref(reserve)
        )
        self.candidate = candidate
        self.workspace: int = workspace.value
        self.reserve = TensorSpec.packed((reserve.value if problem.training else 0,), "uint8")
        self._training = problem.training
        self._dy = TensorSpec.packed(step.shapes.y, spec.dtype)
        self._lengths = DeviceInts(context.device, step.lengths, "lengths of sequences")
        self._library = context.library
        self._constants = {
            "network": network,
            "mode": ctypes.c_int(mode),
            "add": ctypes.c_int(ADD),
            "x_desc": x_desc,
            # Not a cached descriptor: as keys -0.0 equals 0.0, and NaN equals nothing.
            "y_desc": RNNDataDescriptor(x._replace(size=width, padding=step.padding)),
            "h_desc": h,
            "c_desc": c if spec.has_cells else None,
            # As C numbers, because a call converts each int that it gets.
            "weight_size": ctypes.c_size_t(rnn_weight_size(spec) * DTYPES[spec.dtype].itemsize),
            "workspace_size": workspace,
            "reserve_size": ctypes.c_size_t(self.reserve.size),
        }

    def bind(self, step: RNNStep, names: list[str]) -> Enqueue:
        """Return the C call of a step for pointers with these names; a pointer without a name is null."""
        call = CALLS[step.name]
        ordered = [*names, *self._constants, "handle", "lengths", "workspace", "reserve", "dy", "missing"]
        places = [ordered.index(name if name in ordered else "missing") for name in call.arguments.split()]
        in_order, constants = itemgetter(*places), tuple(self._constants.values())
        function = getattr(self._library, call.function)
        needs_dy = step.name == "backward_data" and "dy" not in names  # cuDNN requires it

        def enqueue(context: Context, pointers: Sequence[int]) -> None:
            dy = self._zeros(context) if needs_dy else None
            reserve = context.state.reserve_for(self, context) if self._training else 0
            workspace = context.workspace(self.workspace)
            lengths = self._lengths.on(context, self)  # a captured graph keeps the descriptors too
            varying = (context.handle, lengths.pointer, workspace, reserve, dy.pointer if dy else 0, 0)
            function(*in_order((*pointers, *constants, *varying)))
            self._lengths.keep_until_done(context.stream)

        return enqueue

    def _zeros(self, context: Context) -> DeviceArray:
        nbytes = nbytes_of(self._dy)
        zeros = DeviceArray.new(self._dy, nbytes, context.stream, "a gradient of zeros")
        memories.fill(zeros.pointer, b"\0", nbytes, context.stream)
        return zeros

    def describe(self) -> str:
        """Return a description of the plan."""
        return f"chosen: {self.candidate._replace(workspace=self.workspace)}"


class EmptyRNNPlan:
    """A network if no sequence has a time step: all that remains is to pass on the states."""

    workspace = 0
    reserve = TensorSpec.packed((0,), "uint8")

    def bind(self, step: RNNStep, names: list[str]) -> Enqueue:
        """Return a function that fills y with the padding value; gradients have nothing to compute."""
        if step.name != "forward":
            return lambda *_: None
        spec = TensorSpec.packed(step.shapes.y, step.problem.spec.dtype)
        return partial(self._fill, step, spec, names.index("y"))

    def _fill(
        self, step: RNNStep, spec: TensorSpec, place: int, context: Context, pointers: Sequence[int]
    ) -> None:
        stream = context.stream
        if step.problem.training:
            context.state.reserve_for(self, context)
        if spec.size:
            DeviceArray(spec, pointers[place], None, stream, stream).fill(step.padding, stream=stream)

    def describe(self) -> str:
        """Return a description of the plan."""
        return "chosen: no sequence has a time step, the states are only copied"


PADDED_IO_ENABLED = 1  # CUDNN_RNN_PADDED_IO_ENABLED, without which cuDNN takes packed data only

_NETWORK = Setter(
    "cudnnSetRNNDescriptor_v8",
    choice("algo", members(enums.RNNAlgo, *RNN_ALGOS)),
    choice("mode", members(enums.RNNMode)),
    choice("bias", members(enums.RNNBiasMode)),
    choice("direction", members(enums.DirectionMode)),
    choice("input_mode", members(enums.RNNInputMode, without="_input")),
    dtype("dtype"),
    dtype("compute"),
    choice("math", members(enums.MathType, without="_math")),
    integer("input_size"),
    integer("hidden_size"),
    integer("output_size"),  # cuDNN requires the hidden size here if the network has no projection
    integer("num_layers"),
)
_SEQUENCES = Setter(
    "cudnnSetRNNDataDescriptor",
    dtype("dtype"),
    choice(
        "layout",
        {
            "sequence_major": enums.RNNDataLayout.SEQ_MAJOR_UNPACKED,
            "batch_major": enums.RNNDataLayout.BATCH_MAJOR_UNPACKED,
            "packed": enums.RNNDataLayout.SEQ_MAJOR_PACKED,
        },
    ),
    integer("steps"),
    integer("batch"),
    integer("size"),
)


class RNNDescriptor(Descriptor[RNNSpec]):
    """``cudnnRNNDescriptor_t`` of an :class:`RNNSpec`, which keeps ``dropout`` alive."""

    __slots__ = ("dropout", "padded")
    readable = False

    def __init__(self, spec: RNNSpec, *, padded: bool = True, dropout: Any = None) -> None:
        self.padded = padded
        self.dropout = dropout
        super().__init__(spec)

    def _set(self, library: Any) -> None:
        _NETWORK.set(library, self, self.dropout, PADDED_IO_ENABLED if self.padded else 0)
        if self.spec.clip is not None:
            library.cudnnRNNSetClip_v9(self, enums.RNNClipMode.MINMAX, *self.spec.clip)


class RNNDataDescriptor(Descriptor[RNNDataSpec]):
    """``cudnnRNNDataDescriptor_t`` of an :class:`RNNDataSpec`, by ``cudnnSetRNNDataDescriptor``."""

    __slots__ = ()
    readable = False

    def _set(self, library: Any) -> None:
        spec = self.spec
        if len(spec.lengths) != spec.batch:  # C would read past the end
            raise ValueError(f"there are {len(spec.lengths)} lengths; the batch has {spec.batch} sequences")
        _SEQUENCES.set(library, self, ints(spec.lengths, "lengths"), _element(spec.dtype, spec.padding))


def _element(dtype: str, value: float) -> Any:
    """Return a pointer to a number of a dtype, which the descriptor copies."""
    if value == 0 and copysign(1, value) > 0:
        return ctypes.byref((ctypes.c_char * 8)())
    import numpy as np

    with np.errstate(all="ignore"):
        held = np.asarray(value).astype(DTYPES[dtype].numpy).tobytes()
    return ctypes.byref(ctypes.create_string_buffer(held, len(held)))
