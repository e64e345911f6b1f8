"""The convolution of a Mamba block: a whole prompt at once, then one time step after another.

    python examples/11_mamba_conv.py

A projection gives an array (sequences, length, channels). Its transposed view is convolved in place, since
cuDNN reads adjacent channels. A decoder then computes each new step from the last elements, by operations
that need no compilation, and its results are those of the convolution of all steps. At the end the gradients
are held against finite differences. `causal_conv1d` needs cuDNN 9.22 or newer with libcudnn_ext: without it,
or without a GPU, the reference computes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import cudnn_ct as ct

SEQUENCES, CHANNELS, WIDTH = 2, 96, 4
PROMPT, STEPS = 200, 8
TOLERANCE = 1e-5  # of sums in float32, relative to the largest element


def main() -> int:
    """Run the example and return its exit status: 1 if a check fails."""
    ops, put = operations()
    rng = np.random.default_rng(0)
    projected = rng.standard_normal((SEQUENCES, PROMPT + STEPS, CHANNELS)).astype(np.float32)
    windows = (rng.standard_normal((WIDTH, CHANNELS)) / 2).astype(np.float32)
    x, w, bias = put(projected).transpose(0, 2, 1), put(windows).T, put(windows[0])

    every = host(ops.causal_conv1d(x, w, bias, activation="silu"))
    print(f"{SEQUENCES} sequences of {PROMPT + STEPS} steps, {CHANNELS} channels, windows of {WIDTH}")

    decoded = [step(ops, x[:, :, t - WIDTH + 1 : t + 1], w, bias) for t in range(PROMPT, PROMPT + STEPS)]
    difference = relative(np.concatenate(decoded, axis=2), every[:, :, PROMPT:])
    print(f"{STEPS} steps of a decoder: largest difference {difference:.1e}")

    error = gradient_error(ops, put, rng)
    print(f"gradients of x, w and bias: largest difference from finite differences {error:.1e}")
    return 0 if difference <= TOLERANCE and error <= 1e-6 else 1


def operations() -> tuple[Any, Any]:
    """Return the module that computes, and the function that gives it an array."""
    available = ct.available()
    if not available:
        print(f"not on a GPU: {available.reason}")
        return ct.reference, np.asarray
    try:
        ct.causal_conv1d(ct.zeros((1, 1, 1)), ct.zeros((1, WIDTH)))
    except ct.NotSupportedError as error:
        print(f"not on the GPU: {str(error).splitlines()[-1].strip()}")
        return ct.reference, np.asarray
    print(f"on the GPU by cuDNN {ct.version()}")
    return ct, ct.asarray


def step(ops: Any, state: Any, w: Any, bias: Any) -> np.ndarray:
    """Compute one time step from the last elements of each channel, which end with the new ones."""
    products = ops.op_tensor(state, w.reshape((1, CHANNELS, WIDTH)), op="mul")
    sums = ops.reduce(products, op="add", axis=-1, keepdims=True)
    return host(ops.activation(ops.add(sums, bias.reshape((1, CHANNELS, 1))), mode="silu"))


def gradient_error(ops: Any, put: Any, rng: np.random.Generator) -> float:
    """Return the largest difference of the slopes along random directions, in float64."""
    shapes = {"x": (2, 3, 9), "w": (3, WIDTH), "bias": (3,)}
    operands = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    dy = rng.standard_normal(shapes["x"])

    def loss(**moved: np.ndarray) -> float:
        given = (put(one) for one in (operands | moved).values())
        return float((host(ops.causal_conv1d(*given, activation="silu")) * dy).sum())

    found = ops.causal_conv1d_backward(put(dy), *map(put, operands.values()), activation="silu")
    worst = 0.0
    for (name, value), gradient in zip(operands.items(), found, strict=True):
        way = rng.standard_normal(value.shape)
        slope = (loss(**{name: value + 1e-5 * way}) - loss(**{name: value - 1e-5 * way})) / 2e-5
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
