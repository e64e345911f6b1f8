"""Teach a spatial transformer to straighten rotated digits, and save what it makes of new ones.

    python examples/04_straighten_digits.py [--steps N] [--seed N] [--output PATH]

A small network looks at a rotated digit and answers with an affine transform; the transformer samples the
image by it (Jaderberg et al. 2015). The gradient of the difference to the upright digit goes back through
the sampling into the network. A nearest-neighbour classifier, which knows upright digits only, tells what it
is worth.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

import cudnn_ct as ct

OUTPUT = Path(__file__).parent / "output" / "straightened.png"
STEPS, BATCH, RATE, MOMENTUM = 300, 64, 0.003, 0.9
ANGLE, ZOOM, SCALE = 60, 1.3, 3  # degrees at most; room for the corners; 8 x 8 pixels become 24 x 24
GOAL = 0.95  # of the straightened test digits that the classifier knows, after a whole training

available = ct.available()
ops = ct if available else ct.reference  # the same operations under the same names
put = ct.asarray if available else np.asarray  # NumPy arrays to where ops computes, and back:


def fetch(array: Any) -> np.ndarray:
    return array.numpy() if available else array


def reshape(array: Any, *shape: int) -> Any:
    """See an array in C order in another shape, without a copy."""
    if available:
        return array.view_as(ct.TensorSpec.packed(shape, array.dtype))
    return array.reshape(shape)


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if the digits are not straightened."""
    parser = argparse.ArgumentParser(description="Straighten rotated digits with a spatial transformer.")
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture (default: %(default)s)")
    options = parser.parse_args(arguments)

    where = f"on the GPU by cuDNN {ct.version()}" if available else "in NumPy by the reference"
    print(f"training {where}" + ("" if available else f", since there is {available.reason}"))

    digits, labels = load_digits(return_X_y=True)
    digits = (digits.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    split = train_test_split(digits, labels, test_size=0.25, random_state=0, stratify=labels)
    train_digits, test_digits, train_labels, test_labels = split

    rng = np.random.default_rng(options.seed)
    network = Network(rng)
    start = perf_counter()
    for step in track(range(options.steps), "training", console=Console(stderr=True)):
        batch = train_digits[rng.integers(0, len(train_digits), BATCH)]
        rate = RATE * (1 - step / options.steps)
        network.learn(rotated(batch, random_angles(rng, BATCH)), rotated(batch, np.zeros(BATCH)), rate)
    print(f"{options.steps} steps in {perf_counter() - start:.1f} s")

    x = rotated(test_digits, random_angles(rng, len(test_digits)))
    straightened = ops.spatial_transformer(x, network.transforms(x)[0])
    images = {
        "upright": fetch(rotated(test_digits, np.zeros(len(test_digits)))),
        f"rotated by up to {ANGLE}°": fetch(x),
        "straightened": fetch(straightened),
    }
    upright, before, after = images.values()
    error_before, error_after = (float(((i - upright) ** 2).mean()) for i in (before, after))
    print(f"mean squared difference to the upright ones: {error_before:.4f}, straightened {error_after:.4f}")

    known = fetch(rotated(train_digits, np.zeros(len(train_digits))))
    classifier = KNeighborsClassifier(3).fit(known.reshape(len(known), -1), train_labels)
    right = {name: classifier.score(i.reshape(len(i), -1), test_labels) for name, i in images.items()}
    for name, share in right.items():
        print(f"{share:6.1%} of {len(test_labels)} test digits are known by their nearest neighbours: {name}")

    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(images, right, f"A spatial transformer, trained {where}").savefig(options.output, dpi=120)
    print(f"saved {options.output}")
    if options.steps < STEPS:
        print(f"a short training: only the difference is checked, not that {GOAL:.0%} are known")
        return 0 if error_after < error_before else 1
    return 0 if right["straightened"] >= GOAL else 1


def random_angles(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.uniform(-1, 1, count) * np.deg2rad(ANGLE)


def rotated(digits: np.ndarray, angles: np.ndarray) -> Any:
    """Make larger images of digits, each rotated by its angle: by a spatial transformer, too."""
    cos, sin, zero = np.cos(angles) * ZOOM, np.sin(angles) * ZOOM, np.zeros(len(angles))
    theta = np.array([[cos, -sin, zero], [sin, cos, zero]]).transpose(2, 0, 1).astype(np.float32)
    return ops.spatial_transformer(put(digits), put(theta), scale_height=SCALE, scale_width=SCALE)


# How each layer's convolution is made: two halve the image, the third has a window as large as what is left.
LAYERS = {"1": {"padding": "half", "stride": 2}, "2": {"padding": "half", "stride": 2}, "3": {}, "4": {}}


class Network:
    """Two convolutions and two layers of weights for the whole image; the last gives six numbers."""

    def __init__(self, rng: np.random.Generator) -> None:
        def normal(*shape: int) -> Any:
            return put((rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32))

        def zeros(*shape: int) -> Any:
            return put(np.zeros(shape, np.float32))

        identity = np.array([1, 0, 0, 0, 1, 0], np.float32)  # to begin with, images stay as they are
        self.weights = {
            "w1": normal(8, 1, 5, 5), "b1": zeros(1, 8, 1, 1),
            "w2": normal(16, 8, 5, 5), "b2": zeros(1, 16, 1, 1),
            "w3": normal(32, 16, 6, 6), "b3": zeros(1, 32, 1, 1),
            "w4": zeros(6, 32, 1, 1), "b4": put(identity.reshape(1, 6, 1, 1)),
        }  # fmt: skip
        self.velocities = {name: zeros(*w.shape) for name, w in self.weights.items()}

    def transforms(self, x: Any) -> tuple[Any, list[Any]]:
        """Return a transform for each image, shape (N, 2, 3), and the input and output of each layer."""
        kept = []
        for i, geometry in LAYERS.items():
            sums = ops.add(ops.conv(x, self.weights["w" + i], **geometry), self.weights["b" + i])
            y = sums if i == "4" else ops.activation(sums, mode="relu")
            kept.append((x, sums, y))
            x = y
        return reshape(x, x.shape[0], 2, 3), kept

    def learn(self, x: Any, upright: Any, rate: float) -> None:
        """Make one step of gradient descent on half the squared difference, the mean over the images."""
        count = x.shape[0]
        theta, kept = self.transforms(x)
        straightened = ops.spatial_transformer(x, theta)

        # Backwards: the difference, the sampling, then the layers from the last to the first.
        difference = ops.op_tensor(straightened, upright, op="add", alpha1=1 / count, alpha2=-1 / count)
        dtheta = ops.spatial_transformer_backward(difference, x, theta).dtheta
        dy = reshape(dtheta, count, 6, 1, 1)
        gradients = {}
        for (i, geometry), (x, sums, y) in zip(reversed(LAYERS.items()), reversed(kept), strict=True):
            w = self.weights["w" + i]
            dsums = dy if i == "4" else ops.activation_backward(dy, sums, y, mode="relu")
            gradients["b" + i] = ops.reduce(dsums, axis=(0, 2, 3), keepdims=True)
            gradients["w" + i] = ops.conv_backward_filter(dsums, x, w.shape, **geometry)
            if i != "1":  # what is before the first layer is the image, which is not trained
                dy = ops.conv_backward_data(dsums, w, x.shape, **geometry)

        for name, v in self.velocities.items():  # v = 0.9 v + gradient, then w = w - rate v, in place
            ops.op_tensor(v, gradients[name], op="add", alpha1=MOMENTUM, out=v)
            ops.op_tensor(self.weights[name], v, op="add", alpha2=-rate, out=self.weights[name])


def draw(images: dict[str, np.ndarray], right: dict[str, float], title: str, columns: int = 12) -> Figure:
    """Show some digits upright, rotated and straightened, with the share that is known of all such."""
    figure = Figure(figsize=(columns, 4.2), layout="constrained")
    figure.suptitle(title)
    for part, (name, shown) in zip(figure.subfigures(len(images)), images.items(), strict=True):
        part.suptitle(f"{name}: {right[name]:.1%} known by their nearest neighbours", fontsize="medium")
        for axes, image in zip(part.subplots(1, columns), shown, strict=False):
            axes.imshow(image[0], cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
    return figure


if __name__ == "__main__":
    sys.exit(main())
