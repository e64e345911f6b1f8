"""Replay the network of example 2 as one CUDA graph, hold it against the calls one by one, and time both.

    python examples/08_cuda_graph.py [--epochs N] [--batch N]

Small networks wait for the host: each layer is a call. `ct.capture` records the calls of a function, and all
layers are one launch. Without a GPU there are no CUDA graphs: one line says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from time import perf_counter

import numpy as np

import cudnn_ct as ct

digits = import_module("02_train_digits")  # its data, its network and how that is trained

ROUNDS = 500  # passes that are timed
TOLERANCE = 1e-6  # the same kernels on the same numbers should give the same bits


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if graph and calls differ."""
    parser = argparse.ArgumentParser(description="Replay a network as one CUDA graph.")
    parser.add_argument("--epochs", type=int, default=5, help="to train before (default: %(default)s)")
    parser.add_argument("--digits", type=int, help="train on so many only (default: all 1347)")
    parser.add_argument("--batch", type=int, default=16, help="images of a pass (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not (available := ct.available()):
        print(f"not on a GPU: {available.reason}")
        print("a CUDA graph needs a GPU, so nothing was recorded and nothing is compared")
        return 0

    train_digits, test_digits = digits.load(options.digits)
    network, _, accuracies = digits.train(train_digits, test_digits, options.epochs, seed=0)
    batches = test_digits[0][: 2 * options.batch].reshape(2, options.batch, 1, 8, 8)

    predict = ct.capture(network.predict)
    x, other = map(ct.asarray, batches)
    predict(x)  # computes, and records the graph
    replayed = predict(other).numpy()  # copies the images to where the graph reads them, and launches it
    one_by_one = network.predict(other).numpy()

    eager = microseconds(lambda: network.predict(x))
    launched = microseconds(lambda: predict(x))
    print(f"cuDNN {ct.version()}: {options.batch} images a pass; {predict.describe()}")
    print(f"one by one {eager:.1f} us a pass, as a graph {launched:.1f} us: {eager / launched:.1f} to 1")
    predict.close()
    return told(accuracies[-1], replayed, one_by_one)


def microseconds(work: Callable[[], object]) -> float:
    """Return how long one of many passes takes, from the first call until the last is over."""
    ct.synchronize()
    start = perf_counter()
    for _ in range(ROUNDS):
        work()
    ct.synchronize()
    return (perf_counter() - start) / ROUNDS * 1e6


def told(accuracy: float, result: np.ndarray, wanted: np.ndarray) -> int:
    difference = float(np.abs(result - wanted).max() / np.abs(wanted).max())
    same = "bit by bit" if np.array_equal(result, wanted) else f"within {difference:.1e}"
    print(f"the scores are those of example 2, {same}; it has {accuracy:.1%} of the test digits right")
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
