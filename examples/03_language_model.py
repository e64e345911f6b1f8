"""Teach a recurrent network the Zen of Python, character by character, and let it write.

    python examples/03_language_model.py [--steps N] [--seed N]

A GRU reads a character and says how likely each is to be the next. The text is the one that `import this`
prints. With a GPU the network is a `ct.RNN`; without one the reference computes the same in NumPy.
"""

from __future__ import annotations

import argparse
import codecs
import io
import sys
from contextlib import redirect_stdout
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import cudnn_ct as ct
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import rnn_parameters

HIDDEN, LENGTH, BATCH = 96, 32, 16  # units; characters of a sequence; sequences of a step
STEPS, RATE, MOMENTUM, LARGEST = 200, 1.0, 0.9, 1.0  # LARGEST: the norm that a longer gradient is cut to
GOAL = 1.0  # bit for each character, for a whole training
PROMPT, CALMNESS = "Beautiful", 2.0  # what is more likely than other things is taken even more often


def why_on_cpu() -> str:
    """Return why a GPU and its cuDNN do not compute the network; empty if they do. JIT wheels have no RNN."""
    if not (found := ct.available()):
        return found.reason
    net = ct.RNN("gru", 1, 1)
    try:
        net.forward(ct.zeros((1, 1, 1)), ct.zeros((net.weight_size,)))
    except ct.NotSupportedError as error:
        return str(error).partition("\n")[0]
    return ""


reason = why_on_cpu()
available = not reason
ops = ct if available else ct.reference  # the same operations under the same names
put = ct.asarray if available else np.asarray  # NumPy arrays to where ops computes, and back:


def fetch(array: Any) -> np.ndarray:
    return array.numpy() if available else array


def reshape(array: Any, *shape: int) -> Any:
    """See an array in C order in another shape, without a copy."""
    if available:
        return array.view_as(ct.TensorSpec.packed(shape, array.dtype))
    return array.reshape(shape)


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if the network did not learn."""
    parser = argparse.ArgumentParser(description="A language model of the Zen of Python.")
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--letters", type=int, default=300, help="to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    options = parser.parse_args(arguments)

    where = f"on the GPU by cuDNN {ct.version()}" if available else "in NumPy by the reference"
    print(f"training {where}" + ("" if available else f", since there is {reason}"))

    text = zen()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(character) for character in text])
    share = np.bincount(codes) / len(codes)
    plain = float(-(share * np.log2(share)).sum())
    print(f"{len(text)} characters, {len(alphabet)} different ones: {plain:.2f} bits each by their frequency")

    rng = np.random.default_rng(options.seed)
    model = Model(len(alphabet), rng)
    start = perf_counter()
    before = model.bits(codes)
    for step in track(range(options.steps), "training", console=Console(stderr=True)):
        first = rng.integers(0, len(codes) - LENGTH, BATCH)
        places = first + np.arange(LENGTH)[:, None]  # (LENGTH, BATCH)
        model.learn(codes[places], codes[places + 1], RATE * (1 - step / options.steps))
    bits = model.bits(codes)
    seconds = perf_counter() - start
    print(f"{options.steps} steps in {seconds:.1f} s: from {before:.2f} to {bits:.2f} bits each")

    prompt = [alphabet.index(character) for character in PROMPT]
    written = model.write(prompt, options.letters, rng)
    print(f"what it writes after {PROMPT!r}:\n")
    print(PROMPT + "".join(alphabet[code] for code in written))

    if options.steps < STEPS:
        print(f"\na short training: only that the bits fell is checked, not that they are below {GOAL}")
        return 0 if bits < before else 1
    return 0 if bits < GOAL else 1


def zen() -> str:
    with redirect_stdout(io.StringIO()):  # importing it prints it
        import this
    return codecs.decode(this.s, "rot13")


class Model:
    """A GRU, and a layer of weights that turns its output into a score for each character."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size = size
        self.gru = Gru(size, rng)
        dense = rng.uniform(-1, 1, (size, HIDDEN, 1, 1)) / np.sqrt(HIDDEN)
        self.weights = {
            "gru": self.gru.w,
            "dense": put(dense.astype(np.float32)),
            "bias": put(np.zeros((1, size, 1, 1), np.float32)),
        }
        self.velocities = {name: put(np.zeros(w.shape, np.float32)) for name, w in self.weights.items()}

    def learn(self, before: np.ndarray, after: np.ndarray, rate: float) -> None:
        """Make one step of gradient descent with the characters before and after, both (LENGTH, BATCH)."""
        y, _, kept = self.gru.forward(self.one_hot(before), training=True)
        log_p = ops.softmax(self.scores(y), algo="log")  # (LENGTH * BATCH, size, 1, 1)
        target = reshape(self.one_hot(after), *log_p.shape)

        # Backwards from the mean cross entropy, whose gradient with regard to log_p is -target / after.size.
        w = self.weights
        dscores = ops.softmax_backward(target, log_p, algo="log")
        ops.scale(dscores, alpha=-1 / after.size)
        pixels = reshape(y, after.size, HIDDEN, 1, 1)
        dpixels = ops.conv_backward_data(dscores, w["dense"], pixels.shape)
        gradients = {
            "gru": self.gru.backward(kept, reshape(dpixels, *y.shape)),
            "dense": ops.conv_backward_filter(dscores, pixels, w["dense"].shape),
            "bias": ops.reduce(dscores, axis=0, keepdims=True),
        }
        norm = np.linalg.norm([float(fetch(ops.reduce(g, op="norm2"))) for g in gradients.values()])
        cut = min(1.0, LARGEST / float(norm))
        for name, v in self.velocities.items():  # in place
            ops.scale(v, alpha=MOMENTUM)
            ops.scale(gradients[name], alpha=cut)
            ops.op_tensor(v, gradients[name], op="add", out=v)
            change = ops.transform(v)  # a copy
            ops.scale(change, alpha=-rate)
            ops.op_tensor(w[name], change, op="add", out=w[name])

    def scores(self, y: Any) -> Any:
        """Apply the same weights to each step of each sequence: a convolution of images of one pixel."""
        pixels = reshape(y, y.shape[0] * y.shape[1], HIDDEN, 1, 1)
        return ops.add(ops.conv(pixels, self.weights["dense"]), self.weights["bias"])

    def bits(self, codes: np.ndarray) -> float:
        """Return how many bits a character of a text costs, on average, given those before it."""
        y, _, _ = self.gru.forward(self.one_hot(codes[:-1, None]))
        log_p = fetch(ops.softmax(self.scores(y), algo="log"))[:, :, 0, 0]
        return float(-log_p[np.arange(len(log_p)), codes[1:]].mean() / np.log(2))

    def write(self, prompt: list[int], count: int, rng: np.random.Generator) -> list[int]:
        """Draw characters one by one, each from what the network expects after all before it."""
        y, state, _ = self.gru.forward(self.one_hot(np.array(prompt)[:, None]))
        written: list[int] = []
        for _ in range(count):
            scores = fetch(self.scores(y))[-1, :, 0, 0]
            p = np.exp(CALMNESS * (scores - scores.max()))
            written.append(int(rng.choice(self.size, p=p / p.sum())))
            y, state, _ = self.gru.forward(self.one_hot(np.array(written[-1:])[:, None]), state)
        return written

    def one_hot(self, codes: np.ndarray) -> Any:
        """Return an array of shape (*codes.shape, size) with a 1 at each code."""
        return put(np.eye(self.size, dtype=np.float32)[codes])


class Gru:
    """A gated recurrent network where `ops` computes; its weights are one array."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.net = ct.RNN("gru", size, HIDDEN)
        self.shapes = [parameter.shape for parameter in rnn_parameters(self.net.spec)]
        parts = [rng.uniform(-1, 1, shape) / np.sqrt(HIDDEN) for shape in self.shapes]
        self.w = self.net.pack_params(parts) if available else self.join(parts)

    def forward(self, x: Any, h0: Any = None, training: bool = False) -> tuple[Any, Any, Any]:
        """Return the output of each step, the last state, and what the gradient needs."""
        if available:
            y, state, _, reserve = self.net.forward(x, self.w, h0, training=training)
            return y, state, reserve
        y, state, _ = rnn(x, self.split(self.w), self.net.spec, h0=h0)
        return y, state, x

    def backward(self, kept: Any, dy: Any) -> Any:
        """Return the gradient with regard to the weights."""
        if available:
            self.net.backward_data(dy, kept)  # its results are not needed, but backward_weights builds on it
            return self.net.backward_weights(kept)
        return self.join(rnn_backward(kept, self.split(self.w), self.net.spec, dy).dweights)

    def join(self, parts: Any) -> np.ndarray:
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def split(self, w: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])
        parts = np.split(w, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
