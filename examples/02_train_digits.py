"""Train a small convolutional network on handwritten digits, with every gradient written out.

    python examples/02_train_digits.py [--epochs N] [--seed N] [--output PATH]

Convolution, batch normalisation, pooling, dropout and softmax; stochastic gradient descent with momentum.
With a GPU all of it happens there; without one the same lines run on NumPy arrays, through the reference.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import cudnn_ct as ct

OUTPUT = Path(__file__).parent / "output" / "training.png"
EPOCHS, BATCH, RATE, MOMENTUM, DROPPED = 20, 64, 0.05, 0.9, 0.25
GOAL = 0.98  # of the test digits, for a whole training

available = ct.available()
ops = ct if available else ct.reference  # the same operations under the same names
put = ct.asarray if available else np.asarray  # NumPy arrays to where ops computes, and back:


def fetch(array: Any) -> np.ndarray:
    return array.numpy() if available else array


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if the network did not learn."""
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="default: %(default)s")
    parser.add_argument("--digits", type=int, help="train on so many only (default: all 1347)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture (default: %(default)s)")
    options = parser.parse_args(arguments)

    where = f"on the GPU by cuDNN {ct.version()}" if available else "in NumPy by the reference"
    print(f"training {where}" + ("" if available else f", since there is {available.reason}"))

    train_digits, test_digits = load(options.digits)
    start = perf_counter()
    _, losses, accuracies = train(train_digits, test_digits, options.epochs, options.seed)
    seconds = perf_counter() - start

    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    print(f"{len(losses)} steps in {seconds:.1f} s; the loss fell from {first:.2f} to {last:.2f}")
    print(f"right: {accuracies[-1]:.2%} of {len(test_digits[0])} digits that it was not trained on")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(losses, accuracies, f"Handwritten digits, trained {where}").savefig(options.output, dpi=120)
    print(f"saved {options.output}")

    if options.epochs < EPOCHS or options.digits:
        print(f"a short training: only the loss is checked, not that {GOAL:.0%} are right")
        return 0 if last < first else 1
    return 0 if accuracies[-1] >= GOAL else 1


def load(count: int | None = None) -> tuple[Any, Any]:
    """Return (images, labels) to train with, and a quarter of all to test with. Images are (N, 1, 8, 8)."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    split = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = split
    return (train_images[:count], train_labels[:count]), (test_images, test_labels)


def train(train_digits: Any, test_digits: Any, epochs: int, seed: int) -> tuple[Network, list, list]:
    """Return a network, the loss of each step, and what share of the test digits each epoch got right."""
    rng = np.random.default_rng(seed)
    network = Network(rng)
    velocities = {name: put(np.zeros(w.shape, np.float32)) for name, w in network.weights.items()}
    images, labels = train_digits
    steps = len(images) // BATCH
    losses, accuracies = [], []
    for epoch in track(range(epochs), "training", console=Console(stderr=True)):
        shuffled = rng.permutation(len(images))
        batches = [shuffled[i * BATCH : (i + 1) * BATCH] for i in range(steps)]
        waiting = []  # losses on the device: fetching one waits for it, so all are fetched after the epoch
        for step, batch in enumerate(batches, epoch * steps):
            loss, gradients = network.loss_and_gradients(put(images[batch]), put(one_hot(labels[batch])))
            waiting.append(loss)
            rate = RATE * (1 - step / (epochs * steps))
            for name, w in network.weights.items():  # v = 0.9 v + gradient, then w = w - rate v, in place
                v = velocities[name]
                ops.scale(v, alpha=MOMENTUM)
                ops.op_tensor(v, gradients[name], op="add", out=v)
                change = ops.transform(v)  # a copy
                ops.scale(change, alpha=-rate)
                ops.op_tensor(w, change, op="add", out=w)
        losses += [float(fetch(loss)) for loss in waiting]
        guesses = fetch(network.predict(put(test_digits[0])))[:, :, 0, 0].argmax(axis=1)
        accuracies.append(float((guesses == test_digits[1]).mean()))
    return network, losses, accuracies


def one_hot(labels: np.ndarray) -> np.ndarray:
    """Return an array of shape (N, 10, 1, 1) with a 1 at each label."""
    return np.eye(10, dtype=np.float32)[labels][:, :, None, None]


class Network:
    """Twice convolution, batch normalisation, relu and pooling; dropout; then one score for each digit."""

    def __init__(self, rng: np.random.Generator) -> None:
        def normal(*shape: int) -> Any:
            return put((rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32))

        def constant(value: float, channels: int) -> Any:
            return put(np.full((1, channels, 1, 1), value, np.float32))

        self.weights = {
            "w1": normal(32, 1, 3, 3), "scale1": constant(1, 32), "bias1": constant(0, 32),
            "w2": normal(64, 32, 3, 3), "scale2": constant(1, 64), "bias2": constant(0, 64),
            "w3": normal(10, 64, 2, 2), "bias3": constant(0, 10),
        }  # fmt: skip
        # What batch normalisation has seen of its inputs; updated in place while training, used to predict.
        self.seen1 = {"running_mean": constant(0, 32), "running_var": constant(1, 32)}
        self.seen2 = {"running_mean": constant(0, 64), "running_var": constant(1, 64)}
        self.dropout = Dropout(DROPPED, rng)

    def loss_and_gradients(self, x: Any, target: Any) -> tuple[Any, dict[str, Any]]:
        """Return the mean cross entropy of a batch, and its gradient with regard to each of the weights."""
        w, part = self.weights, -1 / x.shape[0]

        c1 = ops.conv(x, w["w1"], padding="half")  # (N, 32, 8, 8)
        norm1 = ops.batch_norm_training(c1, w["scale1"], w["bias1"], **self.seen1)
        r1 = ops.activation(norm1.y, mode="relu")
        p1 = ops.pool(r1, window=2)  # (N, 32, 4, 4)
        c2 = ops.conv(p1, w["w2"], padding="half")
        norm2 = ops.batch_norm_training(c2, w["scale2"], w["bias2"], **self.seen2)
        r2 = ops.activation(norm2.y, mode="relu")
        p2 = ops.pool(r2, window=2)  # (N, 64, 2, 2)
        d, mask = self.dropout.forward(p2)
        scores = ops.add(ops.conv(d, w["w3"]), w["bias3"])  # (N, 10, 1, 1): windows as large as the images
        log_p = ops.softmax(scores, algo="log")
        loss = ops.reduce(ops.op_tensor(log_p, target, op="mul"))
        ops.scale(loss, alpha=part)

        # The same backwards, each line the gradient of one above. That of the loss is part * target.
        g = {}
        dscores = ops.softmax_backward(target, log_p, algo="log")
        ops.scale(dscores, alpha=part)
        g["bias3"] = ops.reduce(dscores, axis=0, keepdims=True)
        g["w3"] = ops.conv_backward_filter(dscores, d, w["w3"].shape)
        dd = ops.conv_backward_data(dscores, w["w3"], d.shape)
        dp2 = self.dropout.backward(dd, mask)
        dr2 = ops.pool_backward(dp2, r2, p2, window=2)
        dnorm2 = ops.activation_backward(dr2, norm2.y, r2, mode="relu")
        dc2, g["scale2"], g["bias2"], _ = ops.batch_norm_backward(
            dnorm2, c2, w["scale2"], norm2.mean, norm2.invstd
        )
        g["w2"] = ops.conv_backward_filter(dc2, p1, w["w2"].shape, padding="half")
        dp1 = ops.conv_backward_data(dc2, w["w2"], p1.shape, padding="half")
        dr1 = ops.pool_backward(dp1, r1, p1, window=2)
        dnorm1 = ops.activation_backward(dr1, norm1.y, r1, mode="relu")
        dc1, g["scale1"], g["bias1"], _ = ops.batch_norm_backward(
            dnorm1, c1, w["scale1"], norm1.mean, norm1.invstd
        )
        g["w1"] = ops.conv_backward_filter(dc1, x, w["w1"].shape, padding="half")
        return loss, g

    def predict(self, x: Any) -> Any:
        """Return a score for each image and digit, shape (N, 10, 1, 1): nothing is dropped or learnt."""
        w = self.weights
        for i, seen in (("1", self.seen1), ("2", self.seen2)):
            c = ops.conv(x, w["w" + i], padding="half")
            n = ops.batch_norm_inference(c, w["scale" + i], w["bias" + i], *seen.values())
            x = ops.pool(ops.activation(n, mode="relu"), window=2)
        return ops.add(ops.conv(x, w["w3"]), w["bias3"])


class Dropout:
    """Dropout where `ops` computes: cuDNN draws random numbers on a GPU, NumPy draws them elsewhere.

    NumPy also draws them for cuDNN's JIT wheel, which has no dropout.
    """

    def __init__(self, probability: float, rng: np.random.Generator) -> None:
        self.probability, self.rng = probability, rng
        self.state, seed = None, int(rng.integers(2**32)) if available else 0
        with suppress(ct.NotSupportedError):
            self.state = ct.DropoutState(probability, seed=seed) if available else None

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Return x with elements dropped and the others made larger, and what the gradient needs."""
        if self.state is not None:
            return ct.dropout(x, self.state)
        kept = self.rng.random(x.shape) >= self.probability
        mask = put((kept / (1 - self.probability)).astype(x.dtype))
        return ops.op_tensor(x, mask, op="mul"), mask

    def backward(self, dy: Any, mask: Any) -> Any:
        if self.state is not None:
            return ct.dropout_backward(dy, mask, self.state)
        return ops.op_tensor(dy, mask, op="mul")


def draw(losses: list[float], accuracies: list[float], title: str) -> Figure:
    """Plot the loss of each step, and the share of test digits that is right after each epoch."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    left.plot(losses, color="0.75", label="each step")
    window = min(20, len(losses))
    mean = np.convolve(losses, np.ones(window) / window, "valid")
    left.plot(np.arange(len(mean)) + window - 1, mean, color="C0", label=f"mean of {window} steps")
    left.set(xlabel="step", ylabel="cross entropy (nats)", yscale="log", title="Loss in training")
    left.legend()
    right.plot(np.arange(1, len(accuracies) + 1), np.array(accuracies) * 100, "o-", color="C0", markersize=4)
    right.axhline(GOAL * 100, color="C3", linestyle="--", label=f"goal: {GOAL:.0%}")
    right.set(xlabel="epoch", ylabel="right, %", title=f"Test digits: {accuracies[-1]:.2%} right at the end")
    right.legend(loc="lower right")
    right.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    sys.exit(main())
