"""Calls that a JIT wheel computes by graphs, for tests on the fakes and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct.cli.selftest import attempt
from cudnn_ct.cli.selftest_cases import cases

__all__ = ["BY_GRAPHS", "OTHERS", "failures"]

# Operations of the selftest that are legacy calls with the full wheel.
BY_GRAPHS = (
    *(
        "pool",
        "pool_backward",
        "softmax",
        "softmax_backward",
        "lrn",
        "lrn_backward",
        "scale",
        "clear_padding",
    ),
    *("batch_norm_training", "batch_norm_inference", "batch_norm_backward", "batch_norm_inference_backward"),
    *("instance_norm", "instance_norm_backward", "reduce", "reduce_with_indices", "conv_backward_bias"),
    *("matmul_backward", "activation_backward"),
)


def failures(operation: str) -> list[str]:
    rows = [attempt(case) for case in cases() if case.operation == operation and case.dtype != "float64"]
    assert rows
    return [f"{row.operation} {row.dtype} {row.layout}: {row.detail}" for row in rows if row.verdict != "ok"]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def with_nan(*shape: int) -> np.ndarray:
    x = random(*shape)
    x[0, -1], x[1, 2] = np.nan, np.inf
    return x


ROWS, IMAGES = random(6, 10), random(3, 4, 6, 5)
DISTINCT = (np.arange(60).reshape(6, 10) * 37 % 61).astype(np.float32)
ONES = np.ones((4, 10), np.float32)
ONE_CHANNEL = IMAGES[:, :1].copy()
EVEN = {"n": 4, "lrn_alpha": 0.5}
# Calls on shapes that the selftest lacks: single elements, sums of other axes, windows of other geometry.
OTHERS: dict[str, Any] = {
    "copy into a view": lambda ops, put: ops.transform(put(ROWS)[::-1, 2:], strides=(24, 2)),
    "sums into a view": lambda ops, put: ops.pool(put(IMAGES)[:, ::2], window=2),
    "sum with a row of channels": lambda ops, put: ops.add(put(IMAGES), put(IMAGES[:1, :, :1, :1])),
    "least of two with NaN": lambda ops, put: ops.op_tensor(put(with_nan(6, 10)), put(ROWS), op="min"),
    "uneven convolution": lambda ops, put: ops.conv(put(IMAGES), put(IMAGES), padding=((3, 4), (2, 4))),
    "activation of a view": lambda ops, put: ops.activation(put(ROWS)[:, 1:]),
    "gradient of elu of infinity": lambda ops, put: ops.activation_backward(
        put(np.ones((6, 10), np.float32)),
        put(with_nan(6, 10)),
        put(ct.reference.activation(with_nan(6, 10), mode="elu", coefficient=0.5)),
        mode="elu",
        coefficient=0.5,
    ),
    "softmax of columns": lambda ops, put: ops.softmax(put(ROWS), axis=0),
    "softmax of matrices": lambda ops, put: ops.softmax(put(IMAGES), axis=2),
    "softmax of all": lambda ops, put: ops.softmax(put(ROWS), axis=(0, 1)),
    "softmax of one": lambda ops, put: ops.softmax(put(random(6, 1))),
    "softmax of infinity": lambda ops, put: ops.softmax(put(with_nan(6, 10))),
    "sum of all": lambda ops, put: ops.reduce(put(ROWS)),
    "sum of half precision": lambda ops, put: ops.reduce(put(ROWS.astype(np.float16))),
    "sum of channels": lambda ops, put: ops.reduce(put(IMAGES), axis=(0, 2, 3)),
    "largest of channels": lambda ops, put: ops.reduce(put(IMAGES), op="amax", axis=(0, 2, 3)),
    "norm of channels": lambda ops, put: ops.reduce(put(IMAGES), op="norm2", axis=(0, 2, 3)),
    "mean of channels": lambda ops, put: ops.reduce(put(IMAGES), op="average", axis=(0, 2, 3), keepdims=True),
    "norm1 of matrices": lambda ops, put: ops.reduce(put(random(3, 8, 4)), op="norm1", axis=1),
    "largest of infinities": lambda ops, put: ops.reduce(put(ROWS - np.inf), op="max", axis=1),
    "least of NaN": lambda ops, put: ops.reduce(put(with_nan(6, 10)), op="min", axis=1),
    "place of NaN": lambda ops, put: ops.reduce_with_indices(put(with_nan(6, 10)), op="max", axis=1),
    "place in columns": lambda ops, put: ops.reduce_with_indices(put(DISTINCT), op="min", axis=0),
    "place in all": lambda ops, put: ops.reduce_with_indices(put(DISTINCT), op="max"),
    "one channel": lambda ops, put: ops.batch_norm_training(
        put(random(4, 1, 3, 5)), put(ONES[0, :1]), put(ONES[1, :1])
    ),
    "one sample": lambda ops, put: ops.batch_norm_inference(put(ROWS[:1]), *map(put, ONES)),
    "gradient with relu": lambda ops, put: ops.batch_norm_backward(
        *map(put, (IMAGES, IMAGES[::-1].copy(), ONES[:, 0].copy())),
        activation="relu",
        y=put(np.abs(IMAGES)),
    ),
    "residual": lambda ops, put: ops.batch_norm_training(
        put(IMAGES), *map(put, ONES[:2, :4].copy()), residual=put(IMAGES), activation="relu"
    ),
    "pooling of a line": lambda ops, put: ops.pool(put(random(2, 3, 9)), window=3, stride=2, padding=1),
    "pooling of a volume": lambda ops, put: ops.pool(put(random(2, 2, 4, 4, 4)), window=2, mode="sum"),
    "pooling of images": lambda ops, put: ops.pool(put(random(1, 2, 12, 12)), window="global"),
    "uneven padding": lambda ops, put: ops.pool(
        put(IMAGES), window=3, padding=((0, 1), (2, 1)), mode="average"
    ),
    "even window of channels": lambda ops, put: ops.lrn(put(IMAGES), **EVEN),
    "gradient of it": lambda ops, put: ops.lrn_backward(
        *map(put, (IMAGES, IMAGES, ct.reference.lrn(IMAGES, **EVEN))), **EVEN
    ),
    "one channel normalised": lambda ops, put: ops.lrn(put(ONE_CHANNEL), **EVEN),
    "gradient of that": lambda ops, put: ops.lrn_backward(
        *map(put, (ONE_CHANNEL, ONE_CHANNEL, ct.reference.lrn(ONE_CHANNEL, **EVEN))), **EVEN
    ),
    "sum without propagation of NaN": lambda ops, put: ops.op_tensor(
        put(with_nan(6, 10)), put(ROWS), propagate_nan=False
    ),
    "sigmoid without it": lambda ops, put: ops.activation(put(ROWS), mode="sigmoid", propagate_nan=False),
}
