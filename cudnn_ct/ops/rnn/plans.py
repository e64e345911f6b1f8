"""Plans of recurrent networks, with one C call for each step, and the descriptors that they need."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ..._bindings import enums
from ...context import Context
from ...descriptors import Descriptor, Setter, TensorDescriptor, choice, dtype, integer, ints, members
from ...dtypes import DTYPES
from ...plans.base import Candidate, Plan
from ...plans.elementwise import copy_plan, fill_plan
from ...plans.program import NO_STEP, FunctionPlan, Step, chained, element_bytes
from ...plans.wrappers import on_copies, zero_or_scale
from ...shapes.rnn import RNN_ALGOS, RNNSpec, rnn_weight_size
from ...shapes.sequences import RNNDataSpec, RNNStep
from ...shapes.specs import TensorSpec
from .._implementations import plan_for_sequences
from .._state import DeviceNumbers

INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
ADD = 0  # cudnnWgradMode_t: the only one that cuDNN computes


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


def step_plan(step: RNNStep, algorithm: RNNAlgorithm | None) -> Plan:
    """Return a plan of one step; operands that have gaps or are misaligned are copied.

    ``algorithm`` is None if no sequence has a time step: what is left is padding, and states to pass on.
    """
    given = dict((*step.operands, *step.written))
    specs = {name: TensorSpec.packed(spec.shape, spec.dtype) for name, spec in given.items()}
    values, temporaries = _values_before(step, algorithm), []
    if algorithm is not None and step.name == "backward_data" and "dy" not in specs:  # cuDNN requires it
        specs["dy"], values["dy"] = TensorSpec.packed(step.shapes.y, step.problem.spec.dtype), 0.0
        temporaries.append(specs["dy"])
    names = list(specs)
    filled = {name: value for name, value in values.items() if specs[name].size}
    steps = [Step(fill_plan(specs[name], value), (names.index(name),)) for name, value in filled.items()]
    if algorithm is not None:
        steps.append(Step(_step_call(step.name, names, algorithm), tuple(range(len(names)))))
    steps += _passed_states(step, specs)
    plan: Plan = zero_or_scale(TensorSpec.packed((0,), "float32"))  # without a batch
    if steps:
        plan = chained(temporaries, steps, NO_STEP) if len(steps) > 1 else steps[0].plan
    moves = [
        (spec, None if not spec.size or "nchw" in spec.layouts else specs[name])
        for name, spec in given.items()
    ]
    if step.aligned and not any(copy for _, copy in moves):
        return plan
    copying = on_copies(plan, moves, len(step.written), step.updated, align=True)
    # Calls with and without copies share decisions, so the limit applies to the workspace of the algorithm.
    copying.workspace = plan.workspace
    return copying


def _values_before(step: RNNStep, algorithm: RNNAlgorithm | None) -> dict[str, float]:
    """Return the values of results that cuDNN adds to, or that it does not write everywhere."""
    values = {} if step.updated else {"dw": 0.0}
    if algorithm is None:
        values["y"] = step.padding
    if algorithm is None or (step.problem.ragged and step.problem.layout != "packed"):
        values["dx"] = 0.0
    return {name: values[name] for name, _ in step.written if name in values}


def _passed_states(step: RNNStep, specs: dict[str, TensorSpec]) -> list[Step]:
    """Pass on the states of sequences without a time step: cuDNN writes the padding value there."""
    empty, names = [place for place, length in enumerate(step.lengths) if not length], list(specs)
    steps = []
    for source, target in CALLS[step.name].states if empty else ():
        if target not in specs:
            continue
        spec, at = specs[target], names.index(target)
        if source in specs:
            copies = plan_for_sequences(empty, copy_plan, spec, spec)
            steps.append(Step(copies, (names.index(source), at)))
        else:
            zeros = plan_for_sequences(empty, lambda part: fill_plan(part, 0.0), spec)
            steps.append(Step(zeros, (at,)))
    return steps


class RNNAlgorithm:
    """One algorithm of a network for sequences of given lengths, which the three steps share.

    The lengths are in the descriptors and in device memory: before cuDNN 8.9.1 kernels read the latter, and
    the header still asks for it.
    """

    __slots__ = ("candidate", "constants", "lengths", "reserve", "training", "workspace")

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
        self.training = problem.training
        self.lengths = DeviceNumbers(context.device, step.lengths, "lengths of sequences")
        self.constants = {
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


def _step_call(name: str, names: list[str], algorithm: RNNAlgorithm) -> FunctionPlan:
    """Return the C call of one step, for pointers with the given names; a pointer without a name is null."""
    call = CALLS[name]
    known = [*names, *algorithm.constants, "handle", "lengths", "workspace", "reserve", "missing"]
    places = [known.index(name if name in known else "missing") for name in call.arguments.split()]
    in_order, constants = itemgetter(*places), tuple(algorithm.constants.values())
    nbytes = algorithm.workspace

    # The calls have no factors.
    def run(context: Context, pointers: Sequence[int], *_: float) -> None:
        reserve = context.state.reserve_for(algorithm, context) if algorithm.training else 0
        workspace = context.workspace(nbytes)
        lengths = algorithm.lengths.on(context, algorithm)  # a captured graph keeps the descriptors too
        varying = (context.handle, lengths.pointer, workspace, reserve, 0)
        getattr(context.library, call.function)(*in_order((*pointers, *constants, *varying)))
        algorithm.lengths.keep_until_done(context.stream)

    return FunctionPlan(str(algorithm.candidate._replace(workspace=nbytes)), run, nbytes)


PADDED_IO_ENABLED = 1  # CUDNN_RNN_PADDED_IO_ENABLED, without which cuDNN takes packed data only

_NETWORK: Setter[RNNSpec] = Setter(
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
_SEQUENCES: Setter[RNNDataSpec] = Setter(
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
        self.padded, self.dropout = padded, dropout
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
        held = element_bytes(spec.dtype, spec.padding)  # the descriptor copies it
        padding = ctypes.byref(ctypes.create_string_buffer(held, len(held)))
        _SEQUENCES.set(library, self, ints(spec.lengths, "lengths"), padding)
