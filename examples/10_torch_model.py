"""Train an unchanged model of PyTorch by cuDNN's operators, and compare it with PyTorch alone.

    python examples/10_torch_model.py [--epochs N]

A small residual network learns handwritten digits. `cudnn_ct.torch.enable()` serves its convolutions, norms
and pooling, in both directions; the model and the training do not change. `cudnn_ct.torch.fuse()` then folds
the trained network for inference. It ends with 1 if results differ from those of PyTorch. It needs PyTorch
and a GPU.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from typing import Any

import cudnn_ct as ct

BATCH = 64
TOLERANCE = 1e-3  # of the largest score; after training, of which rounding is a part


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if results differ."""
    parser = argparse.ArgumentParser(description="Train an unchanged model of PyTorch.")
    parser.add_argument("--epochs", type=int, default=10, help="at least 2 (default: %(default)s)")
    options = parser.parse_args(arguments)
    if reason := not_here():
        print(reason)
        return 0
    import torch

    import cudnn_ct.torch

    torch.backends.cudnn.allow_tf32 = False  # rounding is compared
    train, test = digits()
    block = cudnn_ct.torch.enable()
    losses = {}
    for name, context in (("PyTorch", nullcontext()), ("cudnn_ct", block)):
        model = network()
        with context:
            optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
            losses[name] = [epoch(model, optimizer, *train) for _ in range(options.epochs)]
        right, (start, *_, end) = accuracy(model.eval(), *test), losses[name]
        print(f"{name}: loss {start:.3f} to {end:.3f}, right: {right:.1f}% of {len(test[1])} digits")
    print(block.report())

    with torch.inference_mode():
        scores, fused = model(test[0]), cudnn_ct.torch.fuse(model)(test[0])
    difference = float((fused - scores).abs().max() / scores.abs().max())
    print(f"cuDNN {ct.version()}: folded for inference, the scores differ by {difference:.1e}")
    first = abs(losses["PyTorch"][0] - losses["cudnn_ct"][0]) / losses["PyTorch"][0]
    return int(difference > TOLERANCE or first > 0.05)


def not_here() -> str:
    """Return the reason why the example cannot run here, or an empty string."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed ({error})"
    available = ct.available()
    if not available:
        return f"not on a GPU: {available.reason}"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} has no CUDA"


def network() -> Any:
    """Return the network, with the same initial weights each time."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norm1(self.conv1(x)))
            return self.relu(self.norm2(self.conv2(y)) + x)

    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), Residual(32), nn.MaxPool2d(2), Residual(32)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()


def digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return images and labels on the GPU, for training and for the test."""
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32, device="cuda").reshape(-1, 1, 8, 8)
    y = torch.tensor(labels, device="cuda")
    return (x[:1347], y[:1347]), (x[1347:], y[1347:])


def epoch(model: Any, optimizer: Any, x: Any, labels: Any) -> float:
    """Train for one epoch, and return the mean loss."""
    from torch.nn import functional

    losses = []
    for images, wanted in zip(x.split(BATCH), labels.split(BATCH), strict=True):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model.train()(images), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def accuracy(model: Any, x: Any, labels: Any) -> float:
    """Return the percentage of images that a model recognises."""
    import torch

    with torch.inference_mode():
        return 100 * float((model(x).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    sys.exit(main())
