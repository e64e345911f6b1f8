"""Comparison of results within the precision of their dtype."""

from __future__ import annotations

from typing import Any

EPSILON = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-3}  # maximum relative distance of results


def tensor_of(result: Any) -> Any:
    """Return an array as a PyTorch tensor, and any other object unchanged."""
    import torch

    foreign = not isinstance(result, torch.Tensor) and hasattr(result, "__dlpack__")
    return torch.from_dlpack(result) if foreign else result


def distance(a: Any, b: Any) -> float:
    """Return the relative distance of our tensor from PyTorch's, or NaN if one of them contains NaN."""
    if a.shape != b.shape:
        raise ValueError(f"our result has shape {tuple(a.shape)}, PyTorch's {tuple(b.shape)}")
    a, b = a.float(), b.float()
    return float((a - b).norm() / b.norm().clamp(min=1e-20))
