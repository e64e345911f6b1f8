"""Plans of recurrent networks: a pass forward and the two passes back, once all but pointers is known."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ...array import DeviceArray
from ...context import Context
from ...cuda import memory as memories
from ...cuda import stream as streams
from ...descriptors import TensorDescriptor
from ...dtypes import DTYPES
from ...errors import NotInitializedError
from ...plans.base import Candidate
from ...plans.elementwise import copy_plan, fill_plan
from ...shapes.elementwise import FillProblem
from ...shapes.rnn_params import rnn_weight_size
from ...shapes.rnn_problem import RNNDataSpec, RNNProblem
from ...shapes.sequences import RNNShapes
from ...shapes.specs import TensorSpec
from .descriptors import RNNDataDescriptor, RNNDescriptor

__all__ = ["EmptyRNNPlan", "RNNPlan", "TrainingState"]

INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
ADD = 0  # cudnnWgradMode_t: the only one that cuDNN computes


class TrainingState:
    """What a training pass forward leaves for the gradients: the plan that ran, and its reserve memory."""

    __slots__ = ("memory", "plan")

    def __init__(self) -> None:
        self.plan: Any = None
        self.memory: DeviceArray | None = None

    def room(self, plan: Any, spec: TensorSpec, context: Context) -> int:
        """The address of memory for a plan's reserve, which is made unless there is enough."""
        self.plan = plan
        nbytes = spec.size
        if not nbytes:
            return 0
        if self.memory is None or self.memory.size < nbytes:
            if context.capturing:
                raise NotInitializedError(
                    "a training pass makes its reserve, which would belong to the graph that is captured; "
                    "only passes with training=False can be captured"
                )
            self.memory = DeviceArray.new(spec, nbytes, context.stream, "the reserve of a recurrent network")
        return self.memory.pointer


class EmptySequenceStates:
    """The states of sequences without a step, which go through: cuDNN gives them what pads an output."""

    __slots__ = ("_moves",)

    def __init__(self, lengths: tuple[int, ...], layers: int, size: int, dtype: str) -> None:
        self._moves = []
        for start, stop in _runs_of_zero(lengths):
            spec = TensorSpec((layers, stop - start, size), (len(lengths) * size, size, 1), dtype)
            offset = start * size * DTYPES[dtype].itemsize
            self._moves.append((offset, copy_plan(spec, spec), fill_plan(FillProblem(spec))))

    def carry(self, context: Context, source: int, target: int) -> None:
        """Enqueue target = source for them, which is zero where there is none."""
        for offset, copy, zeros in self._moves:
            if source and target:
                copy.run(context, (source + offset, target + offset), 1.0, 0.0)
            elif target:
                zeros.run(context, (target + offset,), 0.0, 0.0)


def _runs_of_zero(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Where zeros begin and end, those side by side together."""
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
        "_forward",
        "_lengths",
        "_mode",
        "_network",
        "_passed",
        "_passed_cells",
        "_reserved",
        "_states",
        "_there",
        "_weights",
        "_x",
        "_y",
        "candidate",
        "ragged",
        "reserve",
        "workspace",
    )

    def __init__(
        self,
        problem: RNNProblem,
        candidate: Candidate,
        network: RNNDescriptor,
        lengths: tuple[int, ...],
        padding: float,
        context: Context,
    ) -> None:
        import numpy as np

        spec = problem.spec
        self.candidate = candidate
        self.ragged = problem.ragged and problem.layout != "packed"
        self._network = network
        data = RNNDataSpec(spec.dtype, problem.layout, problem.steps, problem.batch, spec.input_size, lengths)
        width = spec.output_size * spec.directions
        # What is past the ends of gradients of x is zero: the descriptor of x has the padding 0.
        self._x = RNNDataDescriptor.cached(data)
        # That of y is its own: by value -0.0 were 0.0, and NaN nothing that was seen before.
        self._y = RNNDataDescriptor(data._replace(size=width, padding=padding))
        h = (spec.pseudo_layers, problem.batch, spec.output_size)
        self._states = TensorDescriptor.cached(TensorSpec.packed(h, spec.dtype))
        c = (*h[:2], spec.hidden_size)
        self._cells = TensorDescriptor.cached(TensorSpec.packed(c, spec.dtype)) if spec.has_cells else None
        self._passed = self._passed_cells = None
        if 0 in lengths:
            self._passed = EmptySequenceStates(lengths, spec.pseudo_layers, spec.output_size, spec.dtype)
            self._passed_cells = EmptySequenceStates(
                lengths, spec.pseudo_layers, spec.hidden_size, spec.dtype
            )
        # As C has them: a call converts what it is given, one after the other.
        self._weights = ctypes.c_size_t(rnn_weight_size(spec) * DTYPES[spec.dtype].itemsize)
        self._mode = ctypes.c_int(TRAINING if problem.training else INFERENCE)
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        context.library.cudnnGetRNNTempSpaceSizes(
            context.handle, network, self._mode, self._x, ctypes.byref(workspace), ctypes.byref(reserve)
        )
        self.workspace: int = workspace.value
        self._reserved = reserve if problem.training else ctypes.c_size_t(0)
        self.reserve = TensorSpec.packed((self._reserved.value,), "uint8")
        # On the default stream, whatever the first call works on: this outlives that stream.
        home = streams.default_stream(context.device)
        self._lengths = DeviceArray.from_host(np.array(lengths, np.int32), DTYPES["int32"], "nchw", home)
        self._there = False  # for other streams than that
        self._forward = context.library.cudnnRNNForward

    def run(self, context: Context, pointers: Sequence[Any], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Enqueue the pass forward; there are no factors.

        ``pointers`` are x, the weights, h and c before, y, h and c after, each 0 where there is none; and an
        :class:`TrainingState` for training, else None.
        """
        x, weights, h0, c0, y, hy, cy, done = pointers
        reserve = 0 if done is None else done.room(self, self.reserve, context)
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
        self._pass_states(context, h0, hy, c0, cy)
        self._end(context)

    def backward_data(self, context: Context, pointers: Sequence[int], reserve: int) -> None:
        """Enqueue the gradients of x and of the first states.

        ``pointers`` are y, dy, h and c before, the weights, the gradients of h and c after; and of the
        results dx, those of h and c before.
        """
        y, dy, h0, c0, weights, dhy, dcy, dx, dh0, dc0 = pointers
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
            reserve,
        )
        self._pass_states(context, dhy, dh0, dcy, dc0)
        self._end(context)

    def backward_weights(self, context: Context, pointers: Sequence[int], reserve: int) -> None:
        """Enqueue dw += the gradient of the weights; ``pointers`` are x, h before, y and dw."""
        x, h0, y, dw = pointers
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
            reserve,
        )
        self._end(context)

    def _pass_states(self, context: Context, h: int, new_h: int, c: int, new_c: int) -> None:
        if self._passed and self._passed_cells:
            self._passed.carry(context, h, new_h)
            self._passed_cells.carry(context, c, new_c)

    def describe(self) -> str:
        """Tell what was chosen."""
        return f"chosen: {self.candidate._replace(workspace=self.workspace)}"

    def _begin(self, context: Context) -> int:
        """The address of the lengths; a captured graph keeps them, and the descriptors."""
        lengths = self._lengths
        if context.stream is not lengths.home:
            if not self._there:  # once: nobody writes them again
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

    def _end(self, context: Context) -> None:
        if self._lengths.home is not context.stream:
            self._lengths.record_use(context.stream)


class EmptyRNNPlan:
    """What is left of a network when no sequence has a step: states and their gradients pass through."""

    __slots__ = ("_nbytes", "_padding", "_x", "_y", "candidate", "ragged", "reserve", "workspace")

    def __init__(self, problem: RNNProblem, shapes: RNNShapes, padding: float) -> None:
        itemsize = DTYPES[problem.spec.dtype].itemsize
        self._x, self._y = (TensorSpec.packed(shape, problem.spec.dtype) for shape in (shapes.x, shapes.y))
        sizes = (TensorSpec.packed(shape or (0,), problem.spec.dtype).size for shape in (shapes.h, shapes.c))
        self._nbytes = tuple(size * itemsize for size in sizes)
        self._padding = padding
        self.candidate = None
        self.ragged = False
        self.reserve = TensorSpec.packed((0,), "uint8")
        self.workspace = 0

    def run(self, context: Context, pointers: Sequence[Any], alpha: float, beta: float) -> None:  # noqa: ARG002
        """Fill y with the padding, and copy the states; pointers as of :class:`RNNPlan`."""
        _, _, h0, c0, y, hy, cy, done = pointers
        if done is not None:
            done.room(self, self.reserve, context)
        self._pass(context, self._y, y, self._padding, ((h0, hy), (c0, cy)))

    def backward_data(self, context: Context, pointers: Sequence[int], _reserve: int) -> None:
        """Fill dx with zeros, and copy the gradients of the states."""
        *_, dhy, dcy, dx, dh0, dc0 = pointers
        self._pass(context, self._x, dx, 0.0, ((dhy, dh0), (dcy, dc0)))

    def backward_weights(self, *_: object) -> None:
        """Add nothing to the gradient of the weights."""

    def describe(self) -> str:
        """Tell what was chosen."""
        return "chosen: no sequence has a step, the states are only copied"

    def _pass(
        self,
        context: Context,
        spec: TensorSpec,
        written: int,
        value: float,
        states: Sequence[tuple[int, int]],
    ) -> None:
        stream = context.stream
        if spec.size:
            DeviceArray(spec, written, None, stream, stream).fill(value, stream=stream)
        for (source, target), nbytes in zip(states, self._nbytes, strict=True):
            if source and nbytes:
                memories.copy_device(target, source, nbytes, stream)
            elif nbytes:
                memories.fill(target, b"\0", nbytes, stream)
