"""A layer of a network in one Buffer of cuda.core: its operands and results are views of the same memory.

    python examples/12_cuda_python_memory.py

A program that manages memory itself allocates once, and places all arrays in the allocation.
`ct.from_pointer` makes an array of each place, without a copy; a convolution with bias and relu, and a
pooling, write to theirs. The results must be those of the reference, and three mistakes must be errors: an
array that ends behind the Buffer, a Buffer without a shape, and an address without a shape. Without a GPU,
the reference computes in views of one NumPy array at the same places, which shows that they do not overlap.
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

import numpy as np

import cudnn_ct as ct

DTYPE = np.dtype(np.float32)
SHAPES = {  # in the order in memory
    "x": (8, 3, 32, 32),
    "w": (16, 3, 3, 3),
    "b": (16,),
    "y": (8, 16, 32, 32),
    "pooled": (8, 16, 16, 16),
}
ALIGNMENT = 256  # of each array, in bytes
TOLERANCE = 1e-5  # of sums in float32, relative to the largest element


def main() -> int:
    """Run the example and return its exit status: 1 if a check fails."""
    offsets, size = places()
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(SHAPES[name]).astype(DTYPE) for name in ("x", "w", "b")}
    ct.config.allow_tf32 = False  # strict float32, to be compared with the reference
    available = ct.available()
    if available:
        results, rejected = on_gpu(values, offsets, size)
    else:
        print(f"not on a GPU: {available.reason}")
        results, rejected = in_numpy(values, offsets, size), 0
    rejected += errors_of({"an address without a shape": lambda: ct.asarray(2**46)})
    print(f"{len(SHAPES)} arrays in {size:,} bytes of {'one Buffer' if available else 'one NumPy array'}")

    y = ct.reference.conv_bias_activation(*values.values(), activation="relu", padding="half")
    expected = {"y": y, "pooled": ct.reference.pool(y, window=2)}
    difference = max(relative(results[name], one) for name, one in expected.items())
    print(f"largest difference from the reference {difference:.1e}")
    return 0 if difference <= TOLERANCE and rejected == (3 if available else 1) else 1


def places() -> tuple[dict[str, int], int]:
    """Return the offset of each array in bytes, and the bytes of all."""
    offsets, end = {}, 0
    for name, shape in SHAPES.items():
        offsets[name] = end
        end += -(-prod(shape) * DTYPE.itemsize // ALIGNMENT) * ALIGNMENT
    return offsets, end


def on_gpu(
    values: dict[str, np.ndarray], offsets: dict[str, int], size: int
) -> tuple[dict[str, np.ndarray], int]:
    """Compute in a Buffer; return the results and the number of mistakes that were errors."""
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer = device.memory_resource.allocate(size, stream=stream)
    start = int(buffer.handle)
    views = {
        name: ct.from_pointer(start + offset, SHAPES[name], DTYPE, owner=buffer, stream=stream)
        for name, offset in offsets.items()
    }
    for name, array in values.items():
        ct.transform(ct.asarray(array), out=views[name], stream=stream)
    compute(ct, views, stream=stream)
    print(f"on the GPU by cuDNN {ct.version()}")
    rejected = errors_of(
        {
            "an array that ends behind the Buffer": lambda: ct.from_pointer(buffer, (size,), DTYPE),
            "a Buffer without a shape": lambda: ct.asarray(buffer),
        }
    )
    return {name: array.numpy() for name, array in views.items()}, rejected


def in_numpy(values: dict[str, np.ndarray], offsets: dict[str, int], size: int) -> dict[str, np.ndarray]:
    """Compute by the reference in one NumPy array, and return its views."""
    memory = np.zeros(size, np.uint8)
    views = {name: np.ndarray(SHAPES[name], DTYPE, memory.data, offset) for name, offset in offsets.items()}
    for name, array in values.items():
        views[name][...] = array
    compute(ct.reference, views)
    return views


def compute(ops: Any, views: dict[str, Any], **keywords: Any) -> None:
    """Write the convolution and the pooling to their places."""
    x, w, b, y, pooled = views.values()
    ops.conv_bias_activation(x, w, b, activation="relu", padding="half", out=y, **keywords)
    ops.pool(y, window=2, out=pooled, **keywords)


def errors_of(mistakes: dict[str, Any]) -> int:
    """Make mistakes, print their errors, and return how many there were."""
    count = 0
    for name, call in mistakes.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            count += 1
    return count


def relative(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference, relative to the largest element."""
    return float(np.abs(one - two).max() / np.abs(two).max())


if __name__ == "__main__":
    sys.exit(main())
