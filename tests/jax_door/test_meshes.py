"""Functions of `cudnn_ct.jax` on arrays that are split over four devices of the CPU, without `shard_map`."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax")

from tests.jax_door.test_functions import on_devices  # noqa: E402

PROGRAM = """
import json, numpy as np, jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from cudnn_ct import jax as ctj
rng = np.random.default_rng(0)
x = rng.standard_normal((8, 4, 6, 6)).astype("float32")
w = rng.standard_normal((4, 4, 3, 3)).astype("float32")
sequences = rng.standard_normal((5, 4, 3)).astype("float32")
ones = np.ones(4, "float32")

def loss(x, w):
    y = ctj.conv_bias_activation(x, w, ones, activation="tanh")
    y = ctj.batch_norm_training(y, ones, ones)[0]
    return (ctj.group_norm(y, ones, ones, groups=2) ** 3).sum()

def many(x, w):  # the gradient is a loop
    return (jax.vmap(lambda x: ctj.conv(x[None], w))(x) ** 2).sum()

def network(x, w):
    return ctj.rnn(x, w.ravel()[:54], mode="gru", hidden_size=3, bias="no_bias").y.sum()

def mean(x, w):
    return ctj.softmax(x).sum() + jax.vmap(lambda x: ctj.pool(x[None], 2, mode="sum"))(x).sum()

far = {}
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    for name, function, first in (
        ("loss", loss, x), ("many", many, x), ("network", network, sequences), ("mean", mean, x)
    ):
        both = jax.value_and_grad(function, (0, 1))
        expected = jax.tree.leaves(both(first, w))
        for axis in range(2):
            if first.shape[axis] % 4:
                continue
            with jax.set_mesh(mesh):
                pairs = ((first, P(*(None,) * axis, "d")), (w, P()))
                split = [jax.device_put(one, NamedSharding(mesh, axes)) for one, axes in pairs]
                found = jax.tree.leaves(jax.jit(both)(*split))
            far[f"{name} {kind} {axis}"] = max(
                float(abs(np.asarray(a) - b).max() / max(abs(b).max(), 1e-3))
                for a, b in zip(found, map(np.asarray, expected))
            )
print(json.dumps({"devices": len(jax.devices()), "far": far}))
"""


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this jax has no jax.set_mesh")
def test_arrays_that_are_split_have_the_values_and_gradients_of_whole_ones() -> None:
    far = on_devices(PROGRAM, 4)
    assert len(far) == 14
    assert {name: value for name, value in far.items() if value > 1e-4} == {}
