"""Recurrent networks of the fake cuDNN, by the reference.

The reserve holds the number of a pass and its uses so far; the operands of the pass are kept in Python.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnn_ct._bindings.enums import RNNAlgo
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import (
    RNN_BIASES,
    RNN_DIRECTIONS,
    RNN_INPUT_MODES,
    RNN_MODES,
    RNNSpec,
    rnn_parameters,
    rnn_weight_size,
)

from .host import BAD_PARAM, BY_CODE, NOT_SUPPORTED, view
from .pointwise import descriptor

WORKSPACE, RESERVE = 192, 128  # bytes
PACKED, BATCH_MAJOR = 1, 2
DOUBLE_BIAS = 2


class Recurrent:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    # --- descriptors ---

    cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor = descriptor("network", built=0)
    cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor = descriptor("sequences")

    def cudnnSetRNNDescriptor_v8(self: Any, network: Any, *arguments: Any) -> int:
        algo, mode, bias, direction, skip, code, _, _, inputs, hidden, out, layers, dropout, flags = arguments
        dtype = BY_CODE[code]
        if skip and inputs != hidden:
            return BAD_PARAM
        if algo != RNNAlgo.STANDARD and (bias != DOUBLE_BIAS or out != hidden):
            return NOT_SUPPORTED
        if dtype.name == "float64" and algo in (RNNAlgo.PERSIST_STATIC, RNNAlgo.PERSIST_STATIC_SMALL_H):
            return NOT_SUPPORTED
        spec = RNNSpec(
            *(RNN_MODES[mode], inputs, hidden, layers, RNN_DIRECTIONS[direction], RNN_INPUT_MODES[skip]),
            *(tuple(RNN_BIASES)[bias], out if out != hidden else 0, 0.0),
            *("float64", "float64", "default", "standard", None),
        )
        random = self._get(dropout, "dropout") if dropout else None
        self._get(network, "network").update(spec=spec, algo=algo, dtype=dtype, flags=flags, random=random)
        return 0

    def cudnnRNNSetClip_v9(self: Any, network: Any, mode: int, low: float, high: float) -> None:
        state = self._get(network, "network")
        state["spec"] = state["spec"]._replace(clip=(low, high) if mode else None)

    def cudnnSetRNNDataDescriptor(
        self: Any, data: Any, code: int, layout: int, steps: int, batch: int, size: int, given: Any, fill: int
    ) -> int:
        lengths, dtype = tuple(given[:batch]), BY_CODE[code]
        if steps < 1 or batch < 1 or not all(0 <= length <= steps for length in lengths):
            return BAD_PARAM
        sorted_ = all(a >= b for a, b in pairwise(lengths))
        if layout == PACKED and not (lengths[0] == steps and sorted_ and lengths[-1]):
            return BAD_PARAM
        padding = np.frombuffer(ctypes.string_at(fill, dtype.itemsize), dtype.numpy)[0]
        self._get(data, "sequences").update(
            dtype=dtype, layout=layout, steps=steps, size=size, lengths=lengths, padding=padding
        )
        return 0

    def cudnnBuildRNNDynamic(self: Any, handle: Any, network: Any, batch: int) -> int:
        self._get(handle, "handle")
        state = self._get(network, "network")
        if state["algo"] != RNNAlgo.PERSIST_DYNAMIC:
            return BAD_PARAM
        state["built"] = batch
        return 0

    # --- sizes and places ---

    def cudnnGetRNNTempSpaceSizes(
        self: Any, handle: Any, network: Any, mode: int, x: Any, workspace: Any, reserve: Any
    ) -> int:
        self._get(handle, "handle")
        self._get(x, "sequences")
        name = RNNAlgo(self._get(network, "network")["algo"]).name
        if name in self.refused:
            return NOT_SUPPORTED
        workspace[0], reserve[0] = self.workspaces.get(name, WORKSPACE), RESERVE if mode else 0
        return 0

    def cudnnGetRNNWeightSpaceSize(self: Any, handle: Any, network: Any, size: Any) -> None:
        state = self._get(network, "network")
        size[0] = state["dtype"].itemsize * rnn_weight_size(state["spec"])

    def cudnnGetRNNWeightParams(
        self: Any, handle: Any, network: Any, pseudo_layer: int, size: int, base: int, number: int, *rest: Any
    ) -> None:
        _, matrix_at, _, bias_at = rest
        state = self._get(network, "network")
        moved = self.moved.get(RNNAlgo(state["algo"]).name, 0)
        matrix_at[0] = bias_at[0] = None
        for row in rnn_parameters(state["spec"]):
            if (row.pseudo_layer, row.lin_layer_id) == (pseudo_layer, number):
                out = matrix_at if row.kind == "matrix" else bias_at
                out[0] = base + row.offset * state["dtype"].itemsize + moved

    # --- passes ---

    def cudnnRNNForward(self: Any, handle: Any, network: Any, mode: int, *arguments: Any) -> int:
        lengths, x, x_at, y, y_at, h, h0_at, hy_at, c, c0_at, cy_at, *rest = arguments
        weights_size, weights, workspace_size, workspace, reserve_size, reserve = rest
        state = self._begin(handle, network, lengths, (x, y, h, c), workspace, workspace_size)
        if state is None:
            return BAD_PARAM
        if state["algo"] == RNNAlgo.PERSIST_DYNAMIC and state["built"] != len(state["lengths"]):
            return 0  # as cuDNN: it returns SUCCESS and writes nothing
        self.host.clock += self.costs.get(RNNAlgo(state["algo"]).name, 1.0)
        options = {"lengths": state["lengths"], "masks": self._masks(state) if mode else None}
        options |= {"h0": self._state_of(h, h0_at), "c0": self._state_of(c, c0_at)}
        operands = self._sequences(x, x_at), self._weights(state, weights, weights_size), state["spec"]
        padding = self._get(y, "sequences")["padding"]
        found = rnn(*operands, **options, padding=padding)
        self._write_sequences(y, y_at, found.y)
        self._write_state(h, hy_at, found.hy, state["lengths"], padding)
        self._write_state(c, cy_at, found.cy, state["lengths"], padding)
        if mode:
            held = {"x": operands[0], "y": self._sequences(y, y_at), "h0": options["h0"]}
            assert reserve_size == RESERVE
            self.passes.append(SimpleNamespace(operands=operands, options=options, held=held))
            self._marks(reserve)[:] = (len(self.passes), 1)
        return 0

    def cudnnRNNBackwardData_v8(self: Any, handle: Any, network: Any, *arguments: Any) -> int:
        lengths, y, y_at, dy_at, x, dx_at, h, h0_at, dhy_at, dh0_at, c, c0_at, dcy_at, dc0_at, *rest = (
            arguments
        )
        weights_size, weights, workspace_size, workspace, reserve_size, reserve = rest
        state = self._begin(handle, network, lengths, (x, y, h, c), workspace, workspace_size)
        if state is None:
            return BAD_PARAM
        run = self._remembered(reserve, reserve_size, 1)
        self._sequences(y, y_at)
        self._state_of(h, h0_at)
        self._state_of(c, c0_at)
        self._weights(state, weights, weights_size)
        after = {"dhy": self._state_of(h, dhy_at), "dcy": self._state_of(c, dcy_at)}
        run.gradients = rnn_backward(*run.operands, self._sequences(y, dy_at), **after, **run.options)
        self._write_sequences(x, dx_at, run.gradients.dx, pad=False)
        self._write_state(h, dh0_at, run.gradients.dh0, state["lengths"], np.nan)
        self._write_state(c, dc0_at, run.gradients.dc0, state["lengths"], np.nan)
        return 0

    def cudnnRNNBackwardWeights_v8(self: Any, handle: Any, network: Any, add: int, *arguments: Any) -> int:
        lengths, x, x_at, h, h0_at, y, y_at, weights_size, dw, *rest = arguments
        workspace_size, workspace, reserve_size, reserve = rest
        if add != 0:
            return NOT_SUPPORTED  # only adding is computed
        state = self._begin(handle, network, lengths, (x, y, h, None), workspace, workspace_size)
        if state is None:
            return BAD_PARAM
        run = self._remembered(reserve, reserve_size, 2)
        read = {"x": self._sequences(x, x_at), "y": self._sequences(y, y_at), "h0": self._state_of(h, h0_at)}
        for name, now in read.items():
            message = f"{name} was changed after the forward pass"
            assert np.array_equal(np.float64(now), np.float64(run.held[name]), equal_nan=True), message
        flat, old = self._flat(state, dw, weights_size), self._weights(state, dw, weights_size)
        rows = zip(rnn_parameters(state["spec"]), old, run.gradients.dweights, strict=True)
        for row, before, gradient in rows:
            row.view(flat)[...] = (before + gradient).astype(flat.dtype)
        return 0

    # --- memory ---

    def _begin(
        self: Any,
        handle: Any,
        network: Any,
        lengths: int,
        descriptors: tuple[Any, Any, Any, Any],
        room: Any,
        size: int,
    ) -> dict[str, Any] | None:
        """Return the network with the lengths of its data; None for what cuDNN rejects."""
        assert self._get(handle, "handle")["device"] == self.host.device, "a handle of another device"
        x, y, h, c = descriptors
        state, data, out = self._get(network, "network"), self._get(x, "sequences"), self._get(y, "sequences")
        batch, spec = len(data["lengths"]), state["spec"]
        told = view(self.host, lengths, (batch,), (1,), np.dtype(np.int32))
        assert tuple(told) == data["lengths"] == out["lengths"]
        if data["layout"] != PACKED and not state["flags"] & 1:
            return None
        for described, length in ((h, spec.output_size), (c, spec.hidden_size)):
            wanted = (spec.pseudo_layers, batch, length)
            if described and self._get(described, "tensor")["shape"] != wanted:
                return None
        if data["size"] != spec.input_size or out["size"] != spec.output_size * spec.directions:
            return None
        needed = self.workspaces.get(RNNAlgo(state["algo"]).name, WORKSPACE)
        if size < needed:
            return None
        if needed:
            view(self.host, room or 0, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        return {**state, "lengths": data["lengths"], "steps": data["steps"]}

    def _flat(self: Any, state: dict[str, Any], at: int, size: int) -> np.ndarray:
        assert not at % 16, "kernels may load several weights at once"
        items = rnn_weight_size(state["spec"])
        assert size == state["dtype"].itemsize * items
        array: np.ndarray = view(self.host, at, (items,), (1,), state["dtype"].numpy)
        return array

    def _weights(self: Any, state: dict[str, Any], at: int, size: int) -> list[np.ndarray]:
        flat = self._flat(state, at, size).astype(np.float64)
        return [row.view(flat) for row in rnn_parameters(state["spec"])]

    def _in_memory(self: Any, descriptor: Any, at: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        """Return data as rows of one step of one sequence, and the steps and sequences of the rows."""
        assert not at % 16, "kernels may load several elements at once"
        data = self._get(descriptor, "sequences")
        lengths, size = data["lengths"], data["size"]
        steps, batch = data["steps"], len(lengths)
        if data["layout"] == PACKED:
            steps = range(max(lengths, default=0))
            places = [(step, row) for step in steps for row, length in enumerate(lengths) if step < length]
        elif data["layout"] == BATCH_MAJOR:
            places = [(t, b) for b in range(batch) for t in range(steps)]
        else:
            places = [(t, b) for t in range(steps) for b in range(batch)]
        return view(self.host, at, (len(places), size), (size, 1), data["dtype"].numpy), list(places)

    def _sequences(self: Any, descriptor: Any, at: int) -> np.ndarray:
        """Return data of shape (T, B, size), with zeros past the ends."""
        data, (rows, places) = self._get(descriptor, "sequences"), self._in_memory(descriptor, at)
        array = np.zeros((data["steps"], len(data["lengths"]), data["size"]))
        for row, (t, b) in zip(rows, places, strict=True):
            if t < data["lengths"][b]:
                array[t, b] = row
        return array

    def _write_sequences(self: Any, descriptor: Any, at: int, array: np.ndarray, *, pad: bool = True) -> None:
        data, (rows, places) = self._get(descriptor, "sequences"), self._in_memory(descriptor, at)
        for row, (t, b) in zip(rows, places, strict=True):
            if pad or t < data["lengths"][b]:
                row[...] = array[t, b]

    def _state_of(self: Any, descriptor: Any, at: int | None) -> np.ndarray | None:
        assert not at or not at % 16, "kernels may load several elements at once"
        return self._memory(descriptor, "tensor", at).astype(np.float64) if at and descriptor else None

    def _write_state(self: Any, descriptor: Any, at: int, state: Any, lengths: Any, padding: float) -> None:
        """Write a state; as in cuDNN, those of sequences without a step are wrong."""
        if at and descriptor:
            into = self._memory(descriptor, "tensor", at)
            into[...] = state
            into[:, np.array(lengths) == 0] = padding

    def _masks(self: Any, state: dict[str, Any]) -> np.ndarray | None:
        """Return the factors of the outputs of each layer but the last."""
        dropout, spec = state["random"], state["spec"]
        if not dropout or not dropout["probability"] or spec.num_layers == 1:
            return None
        seed = self._state(dropout["states"])
        rng = np.random.default_rng([int(seed[0]), int(seed[1])])
        seed[1] += 1
        width = spec.directions * spec.output_size
        shape = (spec.num_layers - 1, state["steps"], len(state["lengths"]), width)
        masks: np.ndarray = (rng.random(shape) >= dropout["probability"]) / (1 - dropout["probability"])
        return masks

    def _marks(self: Any, reserve: int) -> np.ndarray:
        self.host.check(reserve, RESERVE)
        return view(self.host, reserve, (2,), (1,), np.dtype(np.uint64))

    def _remembered(self: Any, reserve: int, size: int, use: int) -> Any:
        assert size == RESERVE
        marks = self._marks(reserve)
        assert marks[1] == use, f"a reserve at its use {marks[1]} where it should be at {use}"
        marks[1] += 1
        return self.passes[int(marks[0]) - 1]
