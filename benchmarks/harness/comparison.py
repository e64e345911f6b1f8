"""Whether two results are the same, as far as their dtype can tell."""

from __future__ import annotations

from typing import Any

EPSILON = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-3}  # how far results may be apart, relatively


def tensor_of(result: Any) -> Any:
    """A result as PyTorch sees it; what is no array remains what it is."""
    import torch

    foreign = not isinstance(result, torch.Tensor) and hasattr(result, "__dlpack__")
    return torch.from_dlpack(result) if foreign else result


def distance(a: Any, b: Any) -> float:
    """How far our tensor is from PyTorch's, relatively; NaN where one holds it."""
    if a.shape != b.shape:
        raise ValueError(f"our result has shape {tuple(a.shape)}, PyTorch's {tuple(b.shape)}")
    a, b = a.float(), b.float()
    return float((a - b).norm() / b.norm().clamp(min=1e-20))
