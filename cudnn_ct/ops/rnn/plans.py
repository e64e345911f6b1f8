"""Plans of recurrent networks: the forward pass and both gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from ...array import DeviceArray
from ...context import Context
from ...cuda import memory as memories
from ...cuda import stream as streams
from ...descriptors import TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotInitializedError
from ...plans.base import Candidate, Plan
from ...plans.elementwise import copy_plan, fill_plan
from ...plans.workspace import nbytes_of
from ...plans.wrappers import RelayoutPlan
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_problem import RNNDataSpec, RNNStep
from ...shapes.specs import TensorSpec
from .descriptors import RNNDataDescriptor, RNNDescriptor

__all__ = ["EmptyRNNPlan", "RNNPlan", "step_plan"]

INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
ADD = 0  # cudnnWgradMode_t: the only one that cuDNN computes


STEPS = {
    "forward": ("x", "w", "h0", "c0", "y", "hy", "cy"),
    "backward_data": ("y", "dy", "h0", "c0", "w", "dhy", "dcy", "dx", "dh0", "dc0"),
    "backward_weights": ("x", "h0", "y", "dw"),
}


def step_plan(step: RNNStep, network: RNNPlan | EmptyRNNPlan) -> Plan:
    """Return a plan of one step; operands that have gaps or are misaligned are copied."""
    plan = StepPlan(step, network)
    moves = [_contiguous(spec) for _, spec in (*step.operands, *step.written)]
    if step.aligned and not any(copy for _, copy in moves):
        return plan
    copying = RelayoutPlan(plan, moves, len(step.written), step.updated, align=True)
    # Calls with and without copies share decisions, so the limit applies to the workspace of the algorithm.
    copying.workspace = plan.workspace
    return copying


def _contiguous(spec: TensorSpec) -> tuple[TensorSpec, TensorSpec | None]:
    is_contiguous = not spec.size or "nchw" in spec.layouts
    return spec, None if is_contiguous else TensorSpec.packed(spec.shape, spec.dtype)


class StepPlan:
    """One step of a network: its method gets the pointers of a run, 0 for those that are missing."""

    __slots__ = ("_arguments", "_method", "_network", "_zeroed", "workspace")

    def __init__(self, step: RNNStep, network: RNNPlan | EmptyRNNPlan) -> None:
        names = [name for name, _ in (*step.operands, *step.written)]
        places = [names.index(name) if name in names else -1 for name in STEPS[step.name]]
        self._arguments = itemgetter(*places)
        self._network = network
        self._method = getattr(network, step.name)
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
        self._method(context, *self._arguments((*pointers, 0)))

    def describe(self) -> str:
        """Return what was chosen."""
        return self._network.describe()


class EmptySequenceStates:
    """States of sequences without a time step, which pass through: cuDNN writes the padding value there."""

    __slots__ = ("_moves",)

    def __init__(self, step: RNNStep) -> None:
        self._moves = []
        spec, batch = step.problem.spec, len(step.lengths)
        for cells, size in enumerate((spec.output_size, spec.hidden_size)):
            for start, stop in _runs_of_zero(step.lengths):
                part = TensorSpec(
                    (spec.pseudo_layers, stop - start, size), (batch * size, size, 1), spec.dtype
                )
                offset = start * size * DTYPES[spec.dtype].itemsize
                self._moves.append((cells, offset, copy_plan(part, part), fill_plan(part, 0.0)))

    def carry(self, context: Context, *states: tuple[int, int]) -> None:
        """Enqueue target = source for h, then for c, or target = 0 if there is no source."""
        for cells, offset, copy, zeros in self._moves:
            source, target = states[cells]
            if source and target:
                copy.run(context, (source + offset, target + offset), 1.0, 0.0)
            elif target:
                zeros.run(context, (target + offset,), 1.0, 0.0)


def _runs_of_zero(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the start and end of each run of zeros."""
    places = range(len(lengths))
    groups = groupby(places, key=lambda place: lengths[place] == 0)
    runs = [list(run) for empty, run in groups if empty]
    return [(run[0], run[-1] + 1) for run in runs]


class RNNPlan:
    """One algorithm of a network for sequences of given lengths: each pass is one C call.

    The lengths are told twice, to descriptors and in device memory: before cuDNN 8.9.1 kernels read the
    latter, and the header still asks for it.
    """

    __slots__ = (
        "_cells",
        "_dy",
        "_empty",
        "_forward",
        "_lengths",
        "_mode",
        "_network",
        "_reserve",
        "_reserved",
        "_states",
        "_there",
        "_training",
        "_weights",
        "_x",
        "_y",
        "candidate",
        "workspace",
    )

    def __init__(self, step: RNNStep, candidate: Candidate, network: RNNDescriptor, context: Context) -> None:
        import numpy as np

        problem, lengths = step.problem, step.lengths
        spec = problem.spec
        self.candidate = candidate
        self._network = network
        data = RNNDataSpec(spec.dtype, problem.layout, problem.steps, problem.batch, spec.input_size, lengths)
        width = spec.output_size * spec.directions
        # What is past the ends of gradients of x is zero: the descriptor of x has the padding 0.
        self._x = RNNDataDescriptor.cached(data)
        self._dy = TensorSpec.packed(step.shapes.y, spec.dtype)
        # That of y is its own: by value -0.0 were 0.0, and NaN nothing that was seen before.
        self._y = RNNDataDescriptor(data._replace(size=width, padding=step.padding))
        h = (spec.pseudo_layers, problem.batch, spec.output_size)
        self._states = TensorDescriptor.cached(TensorSpec.packed(h, spec.dtype))
        c = (*h[:2], spec.hidden_size)
        self._cells = TensorDescriptor.cached(TensorSpec.packed(c, spec.dtype)) if spec.has_cells else None
        self._empty = EmptySequenceStates(step) if 0 in lengths else None
        # As C has them: a call converts what it is given, one after the other.
        self._weights = ctypes.c_size_t(rnn_weight_size(spec) * DTYPES[spec.dtype].itemsize)
        self._mode = ctypes.c_int(TRAINING if problem.training else INFERENCE)
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        context.library.cudnnGetRNNTempSpaceSizes(
            context.handle, network, self._mode, self._x, ctypes.byref(workspace), ctypes.byref(reserve)
        )
        self.workspace: int = workspace.value
        self._training = problem.training
        self._reserved = reserve if problem.training else ctypes.c_size_t(0)
        self._reserve = TensorSpec.packed((self._reserved.value,), "uint8")
        # On the default stream, whatever the first call works on: this outlives that stream.
        home = streams.default_stream(context.device)
        self._lengths = DeviceArray.from_host(np.array(lengths, np.int32), DTYPES["int32"], "nchw", home)
        self._there = False  # for other streams than that
        self._forward = context.library.cudnnRNNForward

    def forward(
        self, context: Context, x: int, weights: int, h0: int, c0: int, y: int, hy: int, cy: int
    ) -> None:
        """Enqueue the forward pass."""
        reserve = context.state.reserve(self, self._reserve, context) if self._training else 0
        nbytes = self.workspace
        workspace = context.workspace(nbytes)
        lengths = self._begin(context)
        self._forward(
            context.handle,
            self._network,
            self._mode,
            lengths,
            self._x,
            x,
            self._y,
            y,
            self._states,
            h0,
            hy,
            self._cells,
            c0,
            cy,
            self._weights,
            weights,
            nbytes,
            workspace,
            self._reserved,
            reserve,
        )
        self._end(context, (h0, hy), (c0, cy))

    def backward_data(
        self,
        context: Context,
        y: int,
        dy: int,
        h0: int,
        c0: int,
        weights: int,
        dhy: int,
        dcy: int,
        dx: int,
        dh0: int,
        dc0: int,
    ) -> None:
        """Enqueue the gradients of x and of the first states."""
        zeros = None
        if not dy:  # cuDNN requires one
            zeros = DeviceArray.new(self._dy, nbytes_of(self._dy), context.stream, "a gradient of zeros")
            memories.fill(zeros.pointer, b"\0", nbytes_of(self._dy), context.stream)
            dy = zeros.pointer
        workspace = context.workspace(self.workspace)
        lengths = self._begin(context)
        context.library.cudnnRNNBackwardData_v8(
            context.handle,
            self._network,
            lengths,
            self._y,
            y,
            dy,
            self._x,
            dx,
            self._states,
            h0,
            dhy,
            dh0,
            self._cells,
            c0,
            dcy,
            dc0,
            self._weights,
            weights,
            self.workspace,
            workspace,
            self._reserved,
            _reserve_of(context),
        )
        self._end(context, (dhy, dh0), (dcy, dc0))

    def backward_weights(self, context: Context, x: int, h0: int, y: int, dw: int) -> None:
        """Enqueue dw += the gradient of the weights."""
        workspace = context.workspace(self.workspace)
        lengths = self._begin(context)
        context.library.cudnnRNNBackwardWeights_v8(
            context.handle,
            self._network,
            ADD,
            lengths,
            self._x,
            x,
            self._states,
            h0,
            self._y,
            y,
            self._weights,
            dw,
            self.workspace,
            workspace,
            self._reserved,
            _reserve_of(context),
        )
        self._end(context)

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"chosen: {self.candidate._replace(workspace=self.workspace)}"

    def _begin(self, context: Context) -> int:
        """The address of the lengths; a captured graph keeps them, and the descriptors."""
        lengths = self._lengths
        if context.stream is not lengths.home:
            if not self._there:  # once: they are not written again
                if context.capturing:
                    raise NotInitializedError(
                        f"a pass of a recurrent network is captured on {context.stream}, and the lengths of "
                        "its sequences are on their way on another stream: make the same call once on this "
                        "stream before capturing it"
                    )
                streams.synchronize(lengths.writer)
                self._there = True
            if context.capturing:
                context.pin(self)
        return lengths.pointer

    def _end(self, context: Context, *states: tuple[int, int]) -> None:
        if self._empty and states:
            self._empty.carry(context, *states)
        if self._lengths.home is not context.stream:
            self._lengths.record_use(context.stream)


def _reserve_of(context: Context) -> int:
    memory = context.state.memory
    return 0 if memory is None else int(memory.pointer)


class EmptyRNNPlan:
    """The steps of a network if no sequence has a time step: states and their gradients pass through."""

    __slots__ = ("_padding", "_states", "_training", "_y", "workspace")

    def __init__(self, step: RNNStep) -> None:
        self._y = TensorSpec.packed(step.shapes.y, step.problem.spec.dtype)
        self._padding = step.padding
        self._states = EmptySequenceStates(step)
        self._training = step.problem.training
        self.workspace = 0

    def forward(self, context: Context, _x: int, _w: int, h0: int, c0: int, y: int, hy: int, cy: int) -> None:
        """Fill y with the padding value, and copy the states."""
        if self._training:
            context.state.plan = self
        if self._y.size:
            stream = context.stream
            DeviceArray(self._y, y, None, stream, stream).fill(self._padding, stream=stream)
        self._states.carry(context, (h0, hy), (c0, cy))

    def backward_data(self, context: Context, *pointers: int) -> None:
        """Copy the gradients of the states."""
        *_, dhy, dcy, _, dh0, dc0 = pointers
        self._states.carry(context, (dhy, dh0), (dcy, dc0))

    def backward_weights(self, *_: object) -> None:
        """Add nothing to the gradient of the weights."""

    def describe(self) -> str:
        """Return what was chosen."""
        return "chosen: no sequence has a time step, the states are only copied"
