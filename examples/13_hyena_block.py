"""A Hyena block: a short convolution, a gate, a window as long as the sequence, and another gate.

    python examples/13_hyena_block.py

The long windows are sums of decaying exponentials, so a recurrence with one number for each exponential
computes the same results step after step. The block by FFT is held against this recurrence. A change of the
last steps must not reach earlier results, and the gradients of the long convolution are held against finite
differences. `fft_causal_conv1d` needs cuDNN 9.26 or newer with libcudnn_ext: without it, or without a GPU,
the reference computes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import cudnn_ct as ct

SEQUENCES, CHANNELS, LENGTH, WIDTH = 2, 24, 512, 4  # the length is a power of two
EXPONENTIALS = 3
TOLERANCE = 1e-5  # of transforms in float32, relative to the largest element


def main() -> int:
    """Run the example and return its exit status: 1 if a check fails."""
    ops, put = operations()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SEQUENCES, 3 * CHANNELS, LENGTH)).astype(np.float32)
    windows = (rng.standard_normal((3 * CHANNELS, WIDTH)) / WIDTH**0.5).astype(np.float32)
    decay = rng.uniform(0.8, 0.99, (EXPONENTIALS, CHANNELS))
    size = rng.standard_normal((EXPONENTIALS, CHANNELS)) / EXPONENTIALS
    skip = rng.standard_normal(CHANNELS).astype(np.float32)
    long = (size[..., None] * decay[..., None] ** np.arange(LENGTH)).sum(0).astype(np.float32)
    print(f"{SEQUENCES} sequences of {LENGTH} steps, {CHANNELS} channels, windows of {WIDTH} and {LENGTH}")

    y = block(ops, *map(put, (x, windows, long, skip)))
    stepwise = recurrence(ops, put(x), put(windows), decay, size, skip)
    difference = relative(y, stepwise)
    print(f"recurrence with {EXPONENTIALS} numbers for each channel: largest difference {difference:.1e}")

    changed = x.copy()
    changed[:, :, LENGTH // 2 :] = 0
    before = slice(0, LENGTH // 2)
    other = block(ops, *map(put, (changed, windows, long, skip)))
    leak = float(np.abs(other[..., before] - y[..., before]).max() / np.abs(y).max())
    print(f"first half with another second half: largest difference {leak:.1e}")

    error = gradient_error(ops, put, rng)
    print(f"gradients of sequences and windows: largest difference from finite differences {error:.1e}")
    return 0 if max(difference, leak) <= TOLERANCE and error <= 1e-6 else 1


def operations() -> tuple[Any, Any]:
    """Return the module that computes, and the function that gives it an array."""
    available = ct.available()
    if not available:
        print(f"not on a GPU: {available.reason}")
        return ct.reference, np.asarray
    try:
        ct.fft_causal_conv1d(ct.zeros((1, 1, LENGTH)), ct.zeros((1, LENGTH)))
    except ct.NotSupportedError as error:
        print(f"not on the GPU: {str(error).splitlines()[-1].strip()}")
        return ct.reference, np.asarray
    print(f"on the GPU by cuDNN {ct.version()}")
    return ct, ct.asarray


def block(ops: Any, x: Any, windows: Any, long: Any, skip: Any) -> np.ndarray:
    """Compute ``gate * (conv(a * b) + skip * a * b)`` for the short convolutions gate, a and b of x."""
    gate, product = gate_and_product(ops, x, windows)
    direct = ops.op_tensor(product, skip.reshape((1, CHANNELS, 1)), op="mul")
    mixed = ops.op_tensor(ops.fft_causal_conv1d(product, long), direct, op="add")
    return host(ops.op_tensor(gate, mixed, op="mul"))


def gate_and_product(ops: Any, x: Any, windows: Any) -> tuple[Any, Any]:
    """Return the gate, and the product of the two other parts of the short convolution."""
    short = ops.causal_conv1d(x, windows)
    gate, a, b = (short[:, i * CHANNELS : (i + 1) * CHANNELS] for i in range(3))
    return gate, ops.op_tensor(a, b, op="mul")


def recurrence(
    ops: Any, x: Any, windows: Any, decay: np.ndarray, size: np.ndarray, skip: np.ndarray
) -> np.ndarray:
    """Compute the block step after step in float64, with one number for each exponential and channel."""
    gate, product = (host(one).astype(np.float64) for one in gate_and_product(ops, x, windows))
    state, steps = np.zeros((SEQUENCES, EXPONENTIALS, CHANNELS)), []
    for t in range(LENGTH):
        state = decay * state + product[:, None, :, t]
        steps.append(gate[:, :, t] * ((size * state).sum(1) + skip * product[:, :, t]))
    return np.stack(steps, axis=2)


def gradient_error(ops: Any, put: Any, rng: np.random.Generator) -> float:
    """Return the largest difference of the slopes along random directions, in float64."""
    operands = {"x": rng.standard_normal((2, 2, 256)), "w": rng.standard_normal((2, 128)) / 8}
    dy = rng.standard_normal(operands["x"].shape) / 16

    def loss(**moved: np.ndarray) -> float:
        given = (put(one) for one in (operands | moved).values())
        return float((host(ops.fft_causal_conv1d(*given)) * dy).sum())

    found = ops.fft_causal_conv1d_backward(put(dy), *map(put, operands.values()))
    worst = 0.0
    for (name, value), gradient in zip(operands.items(), found, strict=True):
        way = rng.standard_normal(value.shape)
        slope = (loss(**{name: value + 1e-4 * way}) - loss(**{name: value - 1e-4 * way})) / 2e-4
        worst = max(worst, abs(slope - float((host(gradient) * way).sum())))
    return worst


def host(array: Any) -> np.ndarray:
    """Return an array of either module in host memory."""
    return array if isinstance(array, np.ndarray) else array.numpy()


def relative(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference, relative to the largest element."""
    return float(np.abs(one - two).max() / np.abs(two).max())


if __name__ == "__main__":
    sys.exit(main())
