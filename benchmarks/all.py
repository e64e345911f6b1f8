"""Print the table of speed: rows from all of the package against PyTorch, in one run on one GPU.

    python benchmarks/all.py --short [--seed N] [--part operands layers ...] [--json OUT]

Rows are drawn from the seed where they are not named. Each part runs in a process of its own. The results are
compared first; then loops of calls are timed in turns, on random data. A ratio is the median over rounds: our
time divided by the other time of the same round. The exit status is 1 if a row failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median

import short_choices
import short_host
import short_layers
import short_networks
from harness.parts import Parts, Target

SLOW = 1.6  # times the fastest algorithm


def share_of_slow(values: list[float]) -> float:
    """Return the percentage of ratios above `SLOW`."""
    return 100 * sum(value > SLOW for value in values) / len(values)


def _target(
    name: str,
    part: str,
    limit: float,
    only: str = "",
    joined: Callable[[list[float]], float] = geometric_mean,
    field: str = "ratio",
) -> Target:
    return Target(name, part, field, limit, joined, only)


TARGETS = (
    _target("host time, pointers that never repeat, own arrays", "operands", 0.90, "never again, own"),
    _target("host time, pointers that never repeat, torch tensors", "operands", 1.10, "never again, torch"),
    _target("host time, 64 rotating sets, own arrays", "operands", 0.45, "64 sets, own"),
    _target("host time, 64 rotating sets, torch tensors", "operands", 0.70, "64 sets, torch"),
    _target("ten layers with out=, torch tensors", "out", 0.80),
    _target("add with out=", "out", 1.00, "add"),
    _target("softmax with out=", "out", 0.90, "softmax"),
    _target("GPT, no capture, inference, batch 1 / eager", "networks", 0.80, "inference, batch 1, eager"),
    _target("GPT, no capture, inference, batch 8 / eager", "networks", 0.80, "inference, batch 8, eager"),
    _target("GPT, no capture, training, batch 8 / eager", "networks", 0.85, "training, batch 8, eager"),
    _target("ResNet-50, no capture, float16, batch 8 / eager", "networks", 0.30, "ResNet-50, batch 8, eager"),
    _target("ResNet-50, no capture, batch 64 / eager", "networks", 0.72, "ResNet-50, batch 64, eager"),
    *(
        _target(f"captured {name} / torch's {peer}", part, limit, f"{row}, captured")
        for name, limit, row in (
            ("ResNet-50, batch 8", 0.72, "ResNet-50, batch 8"),
            ("ResNet-50, batch 64", 0.72, "ResNet-50, batch 64"),
            ("GPT inference, batch 8", 0.75, "inference, batch 8"),
            ("GPT inference, batch 1", 0.85, "inference, batch 1"),
            ("GPT training, batch 8", 0.88, "training, batch 8"),
        )
        for part, peer in (("networks", "graph"), ("compiled", "compile"))
    ),
    _target("training of recurrent networks", "recurrent", 0.85),
    _target("training of recurrent networks, worst", "recurrent", 1.05, joined=max),
    _target("product + bias + gelu / eager", "products", 0.78, "gelu / eager"),
    _target("product + bias + gelu_tanh / cublasLt", "products", 1.02, "gelu / cublasLt"),
    _target("product + bias + relu / eager", "products", 0.75, "relu / eager"),
    _target("product + bias + relu / cublasLt", "products", 1.02, "relu / cublasLt"),
    _target("product of float8 with bias / torch._scaled_mm", "products", 1.02, "float8"),
    _target("product, 1 to 128 results in turn / eager", "turns", 1.05, "results in turn"),
    _target("softmax", "layers", 0.85, "softmax"),
    _target("softmax, worst", "layers", 1.1, "softmax", max),
    _target("dropout", "layers", 1.00, "dropout"),
    _target("reduction", "layers", 1.00, "reduction"),
    _target("activation", "layers", 1.00, "activation"),
    _target("add and multiply", "layers", 1.00, "add or multiply"),
    _target("norms of 3,000 elements", "layers", 1.00, "norm"),
    _target("maxima that pass over NaN, worst", "layers", 1.5, "max without NaN", max),
    _target("worst layer", "layers", 1.5, joined=max),
    _target("heuristic / autotune, drawn convolutions", "choices", 1.06),
    _target("heuristic / autotune, worst", "choices", 2.0, joined=max),
    _target("heuristic / autotune, rows over 1.6, %", "choices", 1.0, joined=share_of_slow),
    _target("transposed convolutions of one axis, float32", "transposed", 1.05),
    _target("transposed convolutions of one axis, worst", "transposed", 1.05, joined=max),
    _target("stride = window / product of the same memory", "patches", 1.2),
    _target("first autotuned convolution, ms, median", "first", 60, "convolution", median, "ms"),
    _target("first autotuned convolution, ms, worst", "first", 500, "convolution", max, "ms"),
    _target("first autotuned product, ms", "first", 500, "product", max, "ms"),
    _target("first autotuned norm, ms", "first", 500, "norm", max, "ms"),
    _target("first autotuned network, ms", "first", 1500, "network", max, "ms"),
    _target("paged / contiguous decoding", "decoding", 1.15),
    _target("host memory after the first convolution, MiB", "memory", 300, joined=max, field="host_mib"),
    _target("device memory beyond the context, MiB", "memory", 16, joined=max, field="device_mib"),
)

PARTS = {
    "operands": short_host.operands,
    "out": short_host.layers,
    "networks": short_networks.networks,
    "compiled": short_networks.compiled,
    "recurrent": short_networks.recurrent,
    "products": short_layers.products,
    "turns": short_layers.turns,
    "layers": short_layers.layers,
    "choices": short_choices.choices,
    "transposed": short_choices.transposed,
    "patches": short_choices.patches,
    "first": short_choices.first,
    "decoding": short_layers.decoding,
    "memory": short_host.memory,
}

ALL = Parts("all", Path(__file__), PARTS, TARGETS, seconds=240)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="the rows that take six minutes: all there are")
    return ALL.main(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
