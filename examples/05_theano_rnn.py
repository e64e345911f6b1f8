"""Theano's example of a recurrent network on cuDNN, line for line, with `cudnn_ct.dnn` for its module.

    python examples/05_theano_rnn.py

The names, the sizes and their order are those of Theano's documentation. What was symbolic there runs at
once here: arrays stand where variables stood, and the gradient is a method. All results are held against the
NumPy reference. Without a GPU the reference computes alone.
"""

from __future__ import annotations

import sys

import numpy as np

import cudnn_ct as ct
from cudnn_ct import dnn
from cudnn_ct.reference.rnn import rnn, rnn_backward
from cudnn_ct.shapes.rnn import rnn_parameters

TOLERANCE = 1e-5  # of sums in float32, relative to the largest element
STEP = 1e-4  # down the gradient, to see whether it is one


def main() -> int:
    """Run the example and return its exit status: 1 if a check fails."""
    # Strict float32, so that the comparison at the end can be strict. By default TF32 may be used.
    ct.config.allow_tf32 = False

    dtype = "float32"
    input_dim = 32
    hidden_dim = 16
    batch_size = 2
    depth = 3
    timesteps = 5

    # Theano: three symbolic tensors, T.tensor3("X") and so on. Here they have contents.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((timesteps, batch_size, input_dim)).astype(dtype)  # noqa: N806 - Theano's names
    Y = rng.standard_normal((timesteps, batch_size, hidden_dim)).astype(dtype)  # noqa: N806
    h0 = rng.standard_normal((depth, batch_size, hidden_dim)).astype(dtype)

    rnnb = dnn.RNNBlock(dtype, hidden_dim, depth, "gru")

    psize = rnnb.get_param_size([batch_size, input_dim])
    print(f"a GRU of {depth} layers with {hidden_dim} units, of inputs of {input_dim}: {psize} parameters")

    # What the reference makes of it. It takes each parameter by itself: they are drawn here, for both.
    spec = rnnb.network(input_dim).spec
    values = [(rng.standard_normal(row.shape) / 4).astype(dtype) for row in rnn_parameters(spec)]
    wanted = rnn(X, values, spec, h0=h0)
    dy = 2 * (wanted.y - Y)  # the gradient of the cost, the sum of the squared differences
    gradients = rnn_backward(X, values, spec, dy, h0=h0)
    cost = float(np.square(wanted.y - Y).sum())
    print(f"the reference: y {wanted.y.shape}, hy {wanted.hy.shape}, cost {cost:.4f}")

    # Whether its gradient is one: a small step down should lower the cost by the step times its square.
    lower = [w - np.float32(STEP) * dw for w, dw in zip(values, gradients.dweights, strict=True)]
    fell = cost - float(np.square(rnn(X, lower, spec, h0=h0).y - Y).sum())
    expected = STEP * sum(float(np.square(dw).sum()) for dw in gradients.dweights)
    print(f"a step down the gradient lowers the cost by {fell:.4f}; it should be {expected:.4f}")
    if abs(fell / expected - 1) > 0.01:
        return 1

    available = ct.available()
    if not available:
        print(f"not on a GPU, so that is all: {available.reason}")
        return 0

    # Theano: a shared variable of zeros, whose layers can be seen one by one; they are written to here. A
    # matrix has shape (in, out), so that x @ W is meant; in the reference it is (out, in).
    params_cudnn = ct.zeros((psize,), dtype)
    left = iter(values)
    for layer in range(depth):
        parts = rnnb.split_params(params_cudnn, layer, [batch_size, input_dim])
        print(f"layer {layer}: {len(parts)} parts, the first of shapes {parts[0].shape} and {parts[1].shape}")
        for part in parts:
            ct.transform(ct.asarray(next(left).T), out=part)

    x, hx, mode = ct.asarray(X), ct.asarray(h0), rnnb.rnn_mode
    y, hy = rnnb.apply(params_cudnn, x, hx)

    # Theano: theano.grad of a cost. Here the gradient of the cost with regard to y is passed on by hand.
    dy = ct.op_tensor(y, ct.asarray(Y), op="add", alpha1=2, alpha2=-2)
    reserve, *_ = dnn.GpuDnnRNNOp(mode, "unidirectional")(rnnb.desc, params_cudnn, x, hx)
    inputs = dnn.GpuDnnRNNGradInputs(mode, grad_h=False, grad_c=False)
    reserve, dx, dh0 = inputs(rnnb.desc, x, y, dy, None, None, params_cudnn, hx, None, reserve)
    dw = dnn.GpuDnnRNNGradWeights()(rnnb.desc, x, hx, y, reserve, params_cudnn)

    pairs = [(y, wanted.y), (hy, wanted.hy), (dx, gradients.dx), (dh0, gradients.dh0)]
    left = iter(gradients.dweights)
    for layer in range(depth):
        pairs += [(p, next(left).T) for p in rnnb.split_params(dw, layer, [batch_size, input_dim])]
    print(f"cuDNN {ct.version()}: y {y.shape}, hy {hy.shape}, cost {np.square(y.numpy() - Y).sum():.4f}")
    far = max(float(np.abs(ours.numpy() - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)
    print(f"largest difference of y, hy and all gradients, relative to the largest elements: {far:.1e}")
    return 0 if far <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
