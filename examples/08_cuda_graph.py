"""Replay the network of example 2 as one CUDA graph, hold it against the calls one by one, and time both.

    python examples/08_cuda_graph.py [--epochs N] [--batch N]

Small networks wait for the host: each layer is a call. Captured once, all layers are one launch. A capture
needs a stream of its own, every array made on it beforehand, and one run before, which chooses algorithms.
Without a GPU there are no CUDA graphs: the same layers then run in NumPy, against example 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any

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
    train_digits, test_digits = digits.load(options.digits)
    batches = test_digits[0][: 2 * options.batch].reshape(2, options.batch, 1, 8, 8)

    available = ct.available()
    if not available:
        print(f"not on a GPU: {available.reason}")
        print("so there is nothing to capture; the layers run one by one, by the reference")
        network, _, accuracies = digits.train(train_digits, test_digits, options.epochs, seed=0)
        results = run(layers_of(network), batches[0])
        return told(accuracies[-1], results[-1], network.predict(batches[0]))

    from cuda.core import Device

    device = Device()
    device.set_current()
    stream = device.create_stream()
    with ct.use(stream=stream):  # so that all arrays are made on it, the weights too
        network, _, accuracies = digits.train(train_digits, test_digits, options.epochs, seed=0)
        layers, x = layers_of(network), ct.asarray(batches[0])
        results = run(layers, x)  # chooses, prepares, and makes an array for the result of each layer
        run(layers, x, results)  # the calls that will be captured
        ct.synchronize()

        builder = stream.create_graph_builder().begin_building()
        run(layers, x, results)
        graph = builder.end_building().complete()

        # The graph reads and writes where the arrays are: other images are put where x is.
        ct.transform(ct.asarray(batches[1]), out=x)
        graph.launch(stream)
        replayed = results[-1].numpy()
        one_by_one = network.predict(ct.asarray(batches[1])).numpy()

        eager = microseconds(lambda: run(layers, x, results))
        launched = microseconds(lambda: graph.launch(stream))
    print(f"cuDNN {ct.version()}: {len(layers)} layers, {options.batch} images a pass")
    print(f"one by one {eager:.1f} us a pass, as a graph {launched:.1f} us: {eager / launched:.1f} to 1")
    return told(accuracies[-1], replayed, one_by_one)


def layers_of(network: Any) -> list[Callable[..., Any]]:
    """List what `network.predict` does, each layer a function of its input that takes an ``out=``."""
    ops, w = digits.ops, network.weights
    seen1, seen2 = network.seen1.values(), network.seen2.values()
    return [
        lambda x, **out: ops.conv(x, w["w1"], padding="half", **out),
        lambda x, **out: ops.batch_norm_inference(x, w["scale1"], w["bias1"], *seen1, **out),
        lambda x, **out: ops.activation(x, mode="relu", **out),
        lambda x, **out: ops.pool(x, window=2, **out),
        lambda x, **out: ops.conv(x, w["w2"], padding="half", **out),
        lambda x, **out: ops.batch_norm_inference(x, w["scale2"], w["bias2"], *seen2, **out),
        lambda x, **out: ops.activation(x, mode="relu", **out),
        lambda x, **out: ops.pool(x, window=2, **out),
        lambda x, **out: ops.conv(x, w["w3"], **out),
        lambda x, **out: ops.add(x, w["bias3"], **out),
    ]


def run(layers: list[Callable[..., Any]], x: Any, results: list[Any] | None = None) -> list[Any]:
    """Run one layer after the other, into arrays that are there or into new ones; return their results."""
    given = results or [None] * len(layers)
    made = []
    for layer, out in zip(layers, given, strict=True):
        x = layer(x, out=out)
        made.append(x)
    return made


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
