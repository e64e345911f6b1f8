"""What of the fake cuDNN computes recurrent networks: one sequence after the other, one vector at a time.

Weights are read where ``cudnnGetRNNWeightParams`` says they are. The reserve holds the number of a pass and
its uses so far; what the pass remembers is kept beside it.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from cudnn_ct._bindings.enums import RNNAlgo
from cudnn_ct.dtypes import DTYPES

from .host import view

BAD_PARAM, NOT_SUPPORTED = 2000, 3000
WORKSPACE, RESERVE = 192, 128  # bytes
UNPACKED, PACKED, BATCH_MAJOR = range(3)
RELU, TANH, LSTM, GRU = range(4)
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
INPUT_BIAS, STATE_BIAS = (1, 2), (2, 3)  # bias modes that have one

_BY_CODE = {row.code: row for row in DTYPES.values()}


class Recurrent:
    """A part of the fake: it reads descriptors and memory through the rest of it."""

    # --- descriptors ---

    def cudnnCreateRNNDescriptor(self: Any, out: Any) -> None:
        self._create(out, "network", clip=None, built=0)

    def cudnnDestroyRNNDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnCreateRNNDataDescriptor(self: Any, out: Any) -> None:
        self._create(out, "sequences")

    def cudnnDestroyRNNDataDescriptor(self: Any, pointer: Any) -> None:
        self._destroy(pointer)

    def cudnnSetRNNDescriptor_v8(self: Any, network: Any, *arguments: Any) -> int:
        names = (
            "algo cell bias directions skip dtype compute math inputs hidden projected layers dropout flags"
        )
        state = dict(zip(names.split(), arguments, strict=True))
        state["dtype"] = _BY_CODE[state["dtype"]]
        state["directions"] += 1
        persistent = state["algo"] != RNNAlgo.STANDARD
        if state["skip"] and state["inputs"] != state["hidden"]:
            return BAD_PARAM
        if persistent and (state["bias"] != 2 or state["projected"] != state["hidden"]):
            return NOT_SUPPORTED
        if state["dtype"].name == "float64" and state["algo"] in (1, 3):
            return NOT_SUPPORTED
        if state["dropout"]:
            state["random"] = self._get(state["dropout"], "dropout")
        self._get(network, "network").update(state)
        return 0

    def cudnnRNNSetClip_v9(self: Any, network: Any, mode: int, low: float, high: float) -> None:
        self._get(network, "network")["clip"] = (low, high) if mode else None

    def cudnnSetRNNDataDescriptor(
        self: Any, data: Any, code: int, layout: int, steps: int, batch: int, size: int, given: Any, fill: int
    ) -> int:
        lengths, dtype = tuple(given[:batch]), _BY_CODE[code]
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
        size[0] = state["dtype"].itemsize * sum(prod(shape) for _, shape in _places(state).values())

    def cudnnGetRNNWeightParams(
        self: Any,
        handle: Any,
        network: Any,
        pseudo_layer: int,
        size: int,
        base: int,
        number: int,
        matrix: Any,
        matrix_at: Any,
        bias: Any,
        bias_at: Any,
    ) -> None:
        state = self._get(network, "network")
        for kind, tensor, out in (("matrix", matrix, matrix_at), ("bias", bias, bias_at)):
            place = _places(state).get((pseudo_layer, number, kind))
            moved = self.moved.get(RNNAlgo(state["algo"]).name, 0)
            out[0] = None if place is None else base + place[0] * state["dtype"].itemsize + moved
            if place is not None:
                shape = (1, *place[1], *[1] * (kind == "bias"))
                self._get(tensor, "tensor").update(shape=shape, dtype=state["dtype"])

    # --- passes ---

    def cudnnRNNForward(self: Any, handle: Any, network: Any, mode: int, *arguments: Any) -> int:
        lengths, x, x_at, y, y_at, h, h0_at, hy_at, c, c0_at, cy_at, *rest = arguments
        weights_size, weights, workspace_size, workspace, reserve_size, reserve = rest
        state = self._begin(handle, network, lengths, x, y, h, c, workspace, workspace_size)
        if state is None:
            return BAD_PARAM
        if state["algo"] == RNNAlgo.PERSIST_DYNAMIC and state["built"] != len(state["lengths"]):
            return 0  # as cuDNN: it says SUCCESS and writes nothing
        self.host.clock += self.costs.get(RNNAlgo(state["algo"]).name, 1.0)
        run = _Run(state, self._weights(state, weights, weights_size))
        h0, hy = self._state_of(h, h0_at), self._state_of(h, hy_at)
        c0, cy = self._state_of(c, c0_at), self._state_of(c, cy_at)
        source, target = self._sequences(x, x_at), self._sequences(y, y_at)
        run.masks = self._masks(state) if mode and state["layers"] > 1 else None
        for b, length in enumerate(state["lengths"]):
            xs = [source[t, b].astype(np.float64) for t in range(length)]
            before = [None if s is None else s[:, b].astype(np.float64) for s in (h0, c0)]
            ys, last_h, last_c = run.forward(b, xs, *before)
            for t, value in enumerate(ys):
                target[t, b] = value.astype(state["dtype"].numpy)
            for last, into in ((last_h, hy), (last_c, cy)):
                if into is not None:  # of a sequence without a step, cuDNN writes what pads the output
                    value = np.array(last) if length else np.float64(self._get(y, "sequences")["padding"])
                    into[:, b] = value.astype(state["dtype"].numpy)
        self._pad(y, y_at)
        if mode:
            run.held = _held(state, x=source, y=target, h0=h0)
            assert reserve_size == RESERVE
            self.passes.append(run)
            self._marks(reserve)[:] = (len(self.passes), 1)
        return 0

    def cudnnRNNBackwardData_v8(self: Any, handle: Any, network: Any, *arguments: Any) -> int:
        lengths, y, y_at, dy_at, x, dx_at, h, h0_at, dhy_at, dh0_at, c, c0_at, dcy_at, dc0_at, *rest = (
            arguments
        )
        weights_size, weights, workspace_size, workspace, reserve_size, reserve = rest
        state = self._begin(handle, network, lengths, x, y, h, c, workspace, workspace_size)
        if state is None:
            return BAD_PARAM
        run = self._remembered(reserve, reserve_size, 1)
        self._sequences(y, y_at)
        self._state_of(h, h0_at)
        self._state_of(c, c0_at)
        self._weights(state, weights, weights_size)
        dys, dx = self._sequences(y, dy_at), self._sequences(x, dx_at)
        dhy, dh0 = self._state_of(h, dhy_at), self._state_of(h, dh0_at)
        dcy, dc0 = self._state_of(c, dcy_at), self._state_of(c, dc0_at)
        numpy = state["dtype"].numpy
        for b, length in enumerate(state["lengths"]):
            given = [dys[t, b].astype(np.float64) for t in range(length)]
            after = [None if s is None else s[:, b].astype(np.float64) for s in (dhy, dcy)]
            dxs, first_h, first_c = run.backward(b, given, *after)
            for t, value in enumerate(dxs):
                dx[t, b] = value.astype(numpy)
            for first, into in ((first_h, dh0), (first_c, dc0)):
                if into is not None:
                    into[:, b] = (np.array(first) if length else np.float64(np.nan)).astype(numpy)
        return 0

    def cudnnRNNBackwardWeights_v8(self: Any, handle: Any, network: Any, add: int, *arguments: Any) -> int:
        lengths, x, x_at, h, h0_at, y, y_at, weights_size, dw, *rest = arguments
        workspace_size, workspace, reserve_size, reserve = rest
        if add != 0:
            return NOT_SUPPORTED  # only adding is computed
        state = self._begin(handle, network, lengths, x, y, h, None, workspace, workspace_size)
        if state is None:
            return BAD_PARAM
        run = self._remembered(reserve, reserve_size, 2)
        read = {"x": self._sequences(x, x_at), "y": self._sequences(y, y_at), "h0": self._state_of(h, h0_at)}
        for name, now in _held(state, **read).items():
            assert now == run.held[name], f"{name} is no longer what it was in the forward pass"
        for place, into in self._weights(state, dw, weights_size).items():
            into[...] = (into.astype(np.float64) + run.gradients[place]).astype(state["dtype"].numpy)
        return 0

    # --- memory ---

    def _begin(
        self: Any,
        handle: Any,
        network: Any,
        lengths: int,
        x: Any,
        y: Any,
        h: Any,
        c: Any,
        room: Any,
        size: int,
    ) -> dict[str, Any] | None:
        """The network with the lengths of its data; None for what cuDNN refuses."""
        assert self._get(handle, "handle")["device"] == self.host.device, "a handle of another device"
        state, data, out = self._get(network, "network"), self._get(x, "sequences"), self._get(y, "sequences")
        batch = len(data["lengths"])
        told = view(self.host, lengths, (batch,), (1,), np.dtype(np.int32))
        assert tuple(told) == data["lengths"] == out["lengths"]
        if data["layout"] != PACKED and not state["flags"] & 1:
            return None
        states = (state["layers"] * state["directions"], batch)
        if self._get(h, "tensor")["shape"] != (*states, state["projected"]):
            return None
        if c and self._get(c, "tensor")["shape"] != (*states, state["hidden"]):
            return None
        if data["size"] != state["inputs"] or out["size"] != state["projected"] * state["directions"]:
            return None
        needed = self.workspaces.get(RNNAlgo(state["algo"]).name, WORKSPACE)
        if size < needed:
            return None
        if needed:
            view(self.host, room or 0, (size,), (1,), np.dtype(np.uint8))[:] = 0xEE
        return {**state, "lengths": data["lengths"]}

    def _weights(self: Any, state: dict[str, Any], at: int, size: int) -> dict[Any, np.ndarray]:
        itemsize, places = state["dtype"].itemsize, _places(state)
        assert not at % 16, "kernels may load several weights at once"
        assert size == itemsize * sum(prod(shape) for _, shape in places.values())
        return {
            place: view(self.host, at + start * itemsize, shape, _steps(shape), state["dtype"].numpy)
            for place, (start, shape) in places.items()
        }

    def _sequences(self: Any, descriptor: Any, at: int) -> Any:
        """Data as something that is indexed by step and sequence."""
        assert not at % 16, "kernels may load several elements at once"
        data = self._get(descriptor, "sequences")
        lengths, steps, size, numpy = data["lengths"], data["steps"], data["size"], data["dtype"].numpy
        batch = len(lengths)
        if data["layout"] == PACKED:
            rows = view(self.host, at, (sum(lengths), size), (size, 1), numpy)
            return _Packed(rows, lengths)
        strides = (size, steps * size, 1) if data["layout"] == BATCH_MAJOR else (batch * size, size, 1)
        return view(self.host, at, (steps, batch, size), strides, numpy)

    def _pad(self: Any, descriptor: Any, at: int) -> None:
        data = self._get(descriptor, "sequences")
        if data["layout"] != PACKED:
            target = self._sequences(descriptor, at)
            for b, length in enumerate(data["lengths"]):
                target[length:, b] = data["padding"]

    def _state_of(self: Any, descriptor: Any, at: int | None) -> np.ndarray | None:
        assert not at or not at % 16, "kernels may load several elements at once"
        return self._memory(descriptor, "tensor", at) if at and descriptor else None

    def _masks(self: Any, state: dict[str, Any]) -> np.ndarray | None:
        """What the output of each layer but the last is multiplied by."""
        dropout = state.get("random")
        if not dropout or not dropout["probability"]:
            return None
        seed = self._state(dropout["states"])
        rng = np.random.default_rng([int(seed[0]), int(seed[1])])
        seed[1] += 1
        shape = (state["layers"] - 1, max(state["lengths"]), len(state["lengths"]))
        width = state["directions"] * state["projected"]
        return (rng.random((*shape, width)) >= dropout["probability"]) / (1 - dropout["probability"])

    def _marks(self: Any, reserve: int) -> np.ndarray:
        self.host.check(reserve, RESERVE)
        return view(self.host, reserve, (2,), (1,), np.dtype(np.uint64))

    def _remembered(self: Any, reserve: int, size: int, use: int) -> Any:
        assert size == RESERVE
        marks = self._marks(reserve)
        assert marks[1] == use, f"a reserve at its use {marks[1]} where it should be at {use}"
        marks[1] += 1
        return self.passes[int(marks[0]) - 1]


class _Packed:
    """Rows in which the first step of each sequence comes first."""

    def __init__(self, rows: np.ndarray, lengths: tuple[int, ...]) -> None:
        self.rows = rows
        order = [(t, b) for t in range(max(lengths)) for b, length in enumerate(lengths) if t < length]
        self.places = {place: row for row, place in enumerate(order)}

    def __getitem__(self, place: tuple[int, int]) -> np.ndarray:
        row: np.ndarray = self.rows[self.places[place]]
        return row

    def __setitem__(self, place: tuple[int, int], value: np.ndarray) -> None:
        self.rows[self.places[place]] = value


def _places(state: dict[str, Any]) -> dict[tuple[int, int, str], tuple[int, tuple[int, ...]]]:
    """Where each parameter begins, in elements, and its shape: all matrices, then all biases."""
    gates, hidden, out = GATES[state["cell"]], state["hidden"], state["projected"]
    shapes: dict[str, dict[tuple[int, int, str], tuple[int, ...]]] = {"matrix": {}, "bias": {}}
    for p in range(state["layers"] * state["directions"]):
        first = p < state["directions"]
        width = state["inputs"] if first else out * state["directions"]
        for i in range(2 * gates):
            if not (i < gates and first and state["skip"]):
                shapes["matrix"][p, i, "matrix"] = (hidden, width if i < gates else out)
            if state["bias"] in (INPUT_BIAS if i < gates else STATE_BIAS):
                shapes["bias"][p, i, "bias"] = (hidden,)
        if out != hidden:
            shapes["matrix"][p, 8, "matrix"] = (out, hidden)
    found, start = {}, 0
    for rows in shapes.values():
        for place, shape in rows.items():
            found[place] = (start, shape)
            start += prod(shape)
    return found


def _held(state: dict[str, Any], *, x: Any, y: Any, h0: np.ndarray | None) -> dict[str, list[bytes]]:
    """What operands of a pass hold, as far as it is looked at."""
    steps = [(t, b) for b, length in enumerate(state["lengths"]) for t in range(length)]
    found = {name: [array[place].tobytes() for place in steps] for name, array in (("x", x), ("y", y))}
    return {**found, "h0": [] if h0 is None else [h0.tobytes()]}


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _sigmoid(v: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * v))


class _Run:
    """One pass: what it read, what it must remember, and the gradients of its parameters so far."""

    def __init__(self, state: dict[str, Any], weights: dict[Any, np.ndarray]) -> None:
        self.cell, self.gates = state["cell"], GATES[state["cell"]]
        self.layers, self.directions = state["layers"], state["directions"]
        self.hidden, self.out, self.clip = state["hidden"], state["projected"], state["clip"]
        self.w = {place: array.astype(np.float64) for place, array in weights.items()}
        self.gradients = {place: np.zeros(array.shape) for place, array in self.w.items()}
        self.masks: np.ndarray | None = None
        self.held: dict[str, list[bytes]] = {}
        self.saved: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def forward(self, b: int, xs: list[Any], h0: Any, c0: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """One sequence through all layers."""
        last_h, last_c = [], []
        for layer in range(self.layers):
            if layer and self.masks is not None:
                xs = [x * self.masks[layer - 1, t, b] for t, x in enumerate(xs)]
            outs: list[list[Any]] = [[] for _ in xs]
            for direction in range(self.directions):
                p = layer * self.directions + direction
                h = np.zeros(self.out) if h0 is None else h0[p]
                c = np.zeros(self.hidden) if c0 is None else c0[p]
                steps, hs = self.saved.setdefault((p, b), []), {}
                for t in range(len(xs))[:: -1 if direction else 1]:
                    step = self.step(p, xs[t], h, c)
                    steps.append({**step, "t": t})
                    h, c = step["h_new"], step["c_new"]
                    hs[t] = h
                for t in hs:
                    outs[t].append(hs[t])
                last_h.append(h)
                last_c.append(c)
            xs = [np.concatenate(parts) for parts in outs]
        return xs, last_h, last_c

    def affine(self, p: int, i: int, v: np.ndarray) -> np.ndarray:
        matrix, bias = self.w.get((p, i, "matrix")), self.w.get((p, i, "bias"))
        product = v if matrix is None else matrix @ v
        return product if bias is None else product + bias

    def step(self, p: int, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> dict[str, Any]:
        n = self.gates
        a = [self.affine(p, i, x) for i in range(n)]
        q = [self.affine(p, n + i, h) for i in range(n)]
        step: dict[str, Any] = {"x": x, "h": h, "c": c, "q": q}
        if self.cell == RELU:
            new = np.maximum(a[0] + q[0], 0)
            step["passes"] = a[0] + q[0] >= 0
        elif self.cell == TANH:
            new = np.tanh(a[0] + q[0])
        elif self.cell == LSTM:
            i, f, o = (_sigmoid(a[k] + q[k]) for k in (0, 1, 3))
            g = np.tanh(a[2] + q[2])
            step.update(c=self.clipped(c), inside=self.clipped(c) == c)
            c = f * step["c"] + i * g  # unclipped for the last state; clipped where it is used
            new = o * np.tanh(self.clipped(c))
            step.update(i=i, f=f, g=g, o=o, passes=self.clipped(c) == c)
        else:
            r, z = _sigmoid(a[0] + q[0]), _sigmoid(a[1] + q[1])
            n_ = np.tanh(a[2] + r * q[2])
            new = n_ + z * (h - n_)
            step.update(r=r, z=z, n=n_)
        projection = self.w.get((p, 8, "matrix"))
        return {**step, "new": new, "c_new": c, "h_new": new if projection is None else projection @ new}

    def clipped(self, c: np.ndarray) -> np.ndarray:
        return c if self.clip is None else np.minimum(np.maximum(c, self.clip[0]), self.clip[1])

    def backward(self, b: int, dys: list[Any], dhy: Any, dcy: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """One sequence back, from its outputs to its input."""
        count = self.layers * self.directions
        first_h, first_c = [np.zeros(self.out)] * count, [np.zeros(self.hidden)] * count
        for layer in reversed(range(self.layers)):
            dxs = [0.0 for _ in dys]
            for direction in range(self.directions):
                p = layer * self.directions + direction
                dh = np.zeros(self.out) if dhy is None else dhy[p]
                dc = np.zeros(self.hidden) if dcy is None else dcy[p]
                for step in reversed(self.saved[p, b]):
                    t = step["t"]
                    dh = dh + dys[t][direction * self.out : (direction + 1) * self.out]
                    dx, dh, dc = self.step_back(p, step, dh, dc)
                    dxs[t] = dxs[t] + dx
                first_h[p], first_c[p] = dh, dc
            if layer and self.masks is not None:
                dxs = [dx * self.masks[layer - 1, t, b] for t, dx in enumerate(dxs)]
            dys = dxs
        return dys, first_h, first_c

    def step_back(self, p: int, s: dict[str, Any], dh: Any, dc: Any) -> tuple[Any, Any, Any]:
        projection = self.w.get((p, 8, "matrix"))
        if projection is not None:
            self.gradients[p, 8, "matrix"] += np.outer(dh, s["new"])
            dh = projection.T @ dh
        past: Any = 0.0
        if self.cell == RELU:
            da = dq = [dh * s["passes"]]
        elif self.cell == TANH:
            da = dq = [dh * (1 - s["new"] ** 2)]
        elif self.cell == LSTM:
            i, f, g, o = (s[k] for k in "ifgo")
            t = np.tanh(self.clipped(s["c_new"]))
            dc = dc + dh * o * (1 - t**2) * s["passes"]
            da = dq = [
                dc * g * i * (1 - i),
                dc * s["c"] * f * (1 - f),
                dc * i * (1 - g**2),
                dh * t * o * (1 - o),
            ]
            dc = dc * f * s["inside"]
        else:
            r, z, n = s["r"], s["z"], s["n"]
            past = dh * z
            dn = dh * (1 - z) * (1 - n**2)
            dr = dn * s["q"][2] * r * (1 - r)
            dz = dh * (s["h"] - n) * z * (1 - z)
            da, dq = [dr, dz, dn], [dr, dz, dn * r]
        return self.back(p, 0, da, s["x"]), past + self.back(p, self.gates, dq, s["h"]), dc

    def back(self, p: int, first: int, d: list[Any], v: np.ndarray) -> Any:
        """Add to the gradients of some gates' parameters; the gradient of the vector that they multiply."""
        total: Any = 0.0
        for k, one in enumerate(d):
            matrix = self.w.get((p, first + k, "matrix"))
            if matrix is not None:
                self.gradients[p, first + k, "matrix"] += np.outer(one, v)
            if (p, first + k, "bias") in self.w:
                self.gradients[p, first + k, "bias"] += one
            total = total + (one if matrix is None else matrix.T @ one)
        return total
