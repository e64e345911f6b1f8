"""Answers for sequences by NumPy: CTC by its two recursions, recurrent networks step by step and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from . import answer as read
from .answer import GATES, Arguments, Labels, Network, Operands, Values

# --- connectionist temporal classification (Graves et al. 2006) -------------------------------------------


def ctc_loss(operands: Operands, arguments: Arguments) -> Values:
    """The loss of each sequence, and the gradient by activations: probability less occupancy."""
    logits, old = operands["logits"], operands.get("out")
    probabilities = logits
    if read.named(arguments.get("normalization"), "softmax") == "softmax":
        probabilities = special.softmax(logits, -1) if logits.size else logits
    skips = read.named(arguments.get("out_of_bound"), "zero") == "skip" and old is not None
    loss, gradient = np.zeros(logits.shape[1]), np.zeros(logits.shape)
    for n, target in enumerate(read.ctc_targets(operands, arguments)):
        if target.impossible:
            loss[n] = np.inf
            if skips:
                gradient[:, n] = old[:, n]
            continue
        p = probabilities[: target.steps, n]
        loss[n], occupied = _alignments(p, target)
        gradient[: target.steps, n] = p - occupied
    return {"loss": loss, "gradient": gradient}


def _alignments(p: np.ndarray, target: Labels) -> tuple[float, np.ndarray]:
    """Return -log of the probability of labels, and that of each symbol at each step given the labels."""
    symbols = [0]  # blanks around and between labels
    for label in target.labels:
        symbols += [label, 0]
    if not target.labels:
        occupied = np.zeros(p.shape)
        occupied[:, 0] = 1
        return -float(np.log(p[:, 0]).sum()), occupied
    logs = np.log(p)[:, symbols]
    before, after = _recursion(logs, symbols), _recursion(logs[::-1, ::-1], symbols[::-1])[::-1, ::-1]
    both = before + after - logs  # each step counts once
    both = np.where(np.isneginf(logs), -np.inf, both)
    total = np.logaddexp(before[-1, -1], before[-1, -2])
    occupied = np.zeros(p.shape)
    for place, symbol in enumerate(symbols):
        occupied[:, symbol] += np.exp(both[:, place] - total)
    return -float(total), occupied


def _recursion(logs: np.ndarray, symbols: list[int]) -> np.ndarray:
    """Return the logarithm of the sum over all ways to each symbol at each step, itself included."""
    sums = np.full(logs.shape, -np.inf)
    sums[0, :2] = logs[0, :2]
    for t in range(1, len(logs)):
        for s, symbol in enumerate(symbols):
            ways = [sums[t - 1, s]]
            if s > 0:
                ways.append(sums[t - 1, s - 1])
            if s > 1 and symbol != 0 and symbol != symbols[s - 2]:
                ways.append(sums[t - 1, s - 2])
            sums[t, s] = np.logaddexp.reduce(ways) + logs[t, s]
    return sums


# --- recurrent networks: one sequence, layer, direction and step after another ----------------------------


class _Step(NamedTuple):
    """The values of one step that its gradient needs."""

    x: np.ndarray
    h: np.ndarray
    c: np.ndarray
    gates: dict[str, np.ndarray]
    states: dict[str, np.ndarray]
    raw: np.ndarray  # a new cell before it is clipped
    used: np.ndarray
    out: np.ndarray  # h before its projection


class _Layer:
    """One layer in one direction."""

    def __init__(self, network: Network, weights: dict[str, Any], where: str) -> None:
        self.network, self.where, self.weights = network, where, weights
        self.gates = GATES[network.mode]
        self.gradients = {
            name: np.zeros(np.shape(w)) for name, w in weights.items() if name.startswith(where)
        }

    def _weight(self, name: str) -> Any:
        return self.weights.get(self.where + name)

    def _product(self, letter: str, gate: str, vector: np.ndarray) -> np.ndarray:
        matrix, bias = self._weight(f"{letter}_{gate}"), self._weight(f"b{letter}_{gate}")
        product = vector if matrix is None else matrix @ vector
        return product if bias is None else product + bias

    def forward(self, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, _Step]:
        mode = self.network.mode
        inputs = {gate: self._product("W", gate, x) for gate in self.gates}
        states = {gate: self._product("R", gate, h) for gate in self.gates}
        sums = {gate: inputs[gate] + states[gate] for gate in self.gates}
        raw = used = c
        if mode == "gru":
            gates = {gate: special.expit(sums[gate]) for gate in ("reset", "update")}
            gates["new"] = np.tanh(inputs["new"] + gates["reset"] * states["new"])
            out = (1 - gates["update"]) * gates["new"] + gates["update"] * h
        elif mode == "lstm":
            gates = {gate: special.expit(sums[gate]) for gate in ("input", "forget", "output")}
            gates["cell"] = np.tanh(sums["cell"])
            raw = gates["forget"] * c + gates["input"] * gates["cell"]
            used = raw if self.network.clip is None else np.clip(raw, *self.network.clip)
            out = gates["output"] * np.tanh(used)
        else:
            gates, total = {}, sums["hidden"]
            out = np.tanh(total) if mode == "rnn_tanh" else np.where(total > 0, total, 0 * total)
        projection = self._weight("P")
        step = _Step(x, h, c, gates, states, raw, used, out)
        return out if projection is None else projection @ out, step

    def backward(
        self, step: _Step, dh: np.ndarray, dused: np.ndarray, draw: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return gradients by x, h and c of a step, and add those by the weights.

        ``dused`` is by the cell that the next step takes, ``draw`` by the cell before it is clipped.
        """
        if self._weight("P") is not None:
            self.gradients[self.where + "P"] += np.outer(dh, step.out)
            dh = self._weight("P").T @ dh
        mode, gates = self.network.mode, step.gates
        dh_before, dc_before, sums = 0 * step.h, 0 * step.c, {}
        states: dict[str, np.ndarray] = {}  # where the state's product has a gradient of its own
        if mode == "gru":
            new, update, reset = gates["new"], gates["update"], gates["reset"]
            dh_before = dh * update
            sums["new"] = dh * (1 - update) * (1 - new**2)
            sums["update"] = dh * (step.h - new) * update * (1 - update)
            sums["reset"] = sums["new"] * step.states["new"] * reset * (1 - reset)
            states["new"] = sums["new"] * reset
        elif mode == "lstm":
            i, f, g, o = (gates[name] for name in self.gates)
            tanh = np.tanh(step.used)
            dused = dused + dh * o * (1 - tanh**2)
            if self.network.clip is not None:
                low, high = self.network.clip
                dused = np.where((step.raw >= low) & (step.raw <= high), dused, 0.0)
            dc = draw + dused
            sums["input"], sums["forget"] = dc * g * i * (1 - i), dc * step.c * f * (1 - f)
            sums["cell"], sums["output"] = dc * i * (1 - g**2), dh * tanh * o * (1 - o)
            dc_before = dc * f
        else:
            sums["hidden"] = dh * ((1 - step.out**2) if mode == "rnn_tanh" else (step.out > 0))
        dx = np.zeros(step.x.shape)
        for gate, by_input in sums.items():
            by_state = states.get(gate, by_input)
            dx += self._spread("W", gate, by_input, step.x)
            dh_before = dh_before + self._spread("R", gate, by_state, step.h)
        return dx, dh_before, dc_before

    def _spread(self, letter: str, gate: str, gradient: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Add to the gradients of a matrix and its bias, and return that of the vector."""
        if self._weight(f"b{letter}_{gate}") is not None:
            self.gradients[f"{self.where}b{letter}_{gate}"] += gradient
        matrix = self._weight(f"{letter}_{gate}")
        if matrix is None:
            return gradient
        self.gradients[f"{self.where}{letter}_{gate}"] += np.outer(gradient, vector)
        return matrix.T @ gradient


def rnn(operands: Operands, arguments: Arguments) -> Values:
    """The results of a forward pass, and with dy, dhy or dcy its gradients."""
    network, weights = read.rnn_network(operands, arguments), read.rnn_weights(operands, arguments)
    x, batch = operands["x"], len(network.lengths)
    rows = network.layers * network.directions
    shapes = {"h": (rows, batch, network.output), "c": (rows, batch, network.hidden)}
    given = {"h": read.first_given(operands, "h0", "hx"), "c": read.first_given(operands, "c0", "cx")}
    start = {s: np.zeros(shapes[s]) if given[s] is None else given[s] for s in "hc"}
    incoming = {name: operands.get(name) for name in ("dy", "dhy", "dcy")}
    width = network.output * network.directions
    found = {
        "y": np.full((*x.shape[:-1], width), network.padding_value),
        "hy": np.array(start["h"], np.float64),
        "cy": np.array(start["c"], np.float64),
    }
    backwards = any(array is not None for array in incoming.values())
    gradients = {"dx": np.zeros(x.shape), "dhx": np.zeros(shapes["h"]), "dcx": np.zeros(shapes["c"])}
    gradients.update({f"dweights/{name}": np.zeros(np.shape(w)) for name, w in weights.items()})
    layers = [
        _Layer(network, weights, network.prefix(*divmod(row, network.directions))) for row in range(rows)
    ]
    for n, places in enumerate(read.places_of_steps(network)):
        outputs, steps = [np.array(x[place]) for place in places], []
        for row, layer in enumerate(layers):
            if row % network.directions == 0:
                inputs, outputs = outputs, [np.zeros(0) for _ in places]
            h, c, own = start["h"][row, n], start["c"][row, n], []
            order = list(range(len(places)))[:: -1 if row % network.directions else 1]
            for t in order:
                h, step = layer.forward(inputs[t], h, c)
                c = step.used
                own.append((t, step))
                outputs[t] = np.concatenate([outputs[t], h])
                found["cy"][row, n] = step.raw
            found["hy"][row, n] = h
            steps.append(own)
        for place, output in zip(places, outputs, strict=True):
            found["y"][place] = output
        if backwards:
            _backwards(network, layers, steps, n, places, incoming, gradients)
    if network.mode != "lstm":
        del found["cy"], gradients["dcx"]
    if not backwards:
        return found
    for layer in layers:
        gradients.update({f"dweights/{name}": array for name, array in layer.gradients.items()})
    return {**found, **gradients}


def _backwards(
    network: Network,
    layers: list[_Layer],
    steps: list[list[tuple[int, _Step]]],
    n: int,
    places: list[tuple[int, ...]],
    incoming: dict[str, Any],
    gradients: Values,
) -> None:
    """Go back through one sequence, from the last layer to the first."""
    width = network.output
    dy = incoming["dy"]
    by_output = [np.zeros(width * network.directions) if dy is None else np.array(dy[p]) for p in places]
    by_input: list[np.ndarray] = []
    for row in reversed(range(len(layers))):
        direction = row % network.directions
        if direction == network.directions - 1:
            by_input = [np.zeros(step.x.shape) for _, step in sorted(steps[row], key=lambda pair: pair[0])]
        zero = np.zeros(network.hidden)
        dh = np.zeros(width) if incoming["dhy"] is None else incoming["dhy"][row, n]
        draw = zero if incoming["dcy"] is None else incoming["dcy"][row, n]
        dused = zero
        for t, step in reversed(steps[row]):
            dh = dh + by_output[t][direction * width : (direction + 1) * width]
            dx, dh, dused = layers[row].backward(step, dh, dused, draw)
            draw = zero
            by_input[t] += dx
        gradients["dhx"][row, n] = dh
        gradients["dcx"][row, n] = dused if places else draw
        if direction == 0:
            by_output = by_input
    for place, dx in zip(places, by_output, strict=True):
        gradients["dx"][place] = dx
