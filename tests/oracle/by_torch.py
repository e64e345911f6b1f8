"""Answers by PyTorch in float64, on contiguous tensors and without cuDNN; gradients by autograd.

`DEVICE` is where the tensors are. PyTorch's own cuDNN calls are off: they would answer for the library under
test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.operations import each

from . import answer as read
from .answer import GATES, Arguments, Compute, Geometry, Network, Operands, Pairs, Values
from .attention_by_torch import ATTENTION
from .conv_fusions_by_torch import fusions_by_torch
from .images import of_each_image, of_one_image
from .magnitude import answers
from .neighbours_by_torch import NEIGHBOURS
from .rows_by_torch import ROWS
from .tables import defined

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Tensors = dict[str, Any]
Torch = Callable[[Tensors, Arguments], Tensors]


def _on_arrays(function: Torch) -> Compute:
    """Turn a function of tensors into one of arrays."""

    @wraps(function)
    def compute(operands: Operands, arguments: Arguments) -> Values:
        tensors = {name: None if a is None else _tensor(a) for name, a in operands.items()}
        with torch.backends.cudnn.flags(enabled=False, benchmark=False, deterministic=True, allow_tf32=False):
            found = function(tensors, arguments)
        return {name: _array(tensor) for name, tensor in found.items()}

    return compute


def _tensor(array: Any) -> torch.Tensor:
    given = np.ascontiguousarray(array)
    dtype = torch.float64 if given.dtype.kind == "f" else torch.int64
    given = given.astype(np.float64 if given.dtype.kind == "f" else np.int64)
    return torch.from_numpy(given).reshape(np.shape(array)).to(device=DEVICE, dtype=dtype)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _zeros(shape: Sequence[int]) -> torch.Tensor:
    return torch.zeros(tuple(shape), dtype=torch.float64, device=DEVICE)


def _gradient(y: torch.Tensor, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    if not x.numel() or not y.numel():
        return torch.zeros_like(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    return dx


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_()


def _pad(x: torch.Tensor, padding: Pairs, value: float = 0.0) -> torch.Tensor:
    """Pad spatial axes; PyTorch wants the last axis first."""
    flat = [n for pair in reversed(padding) for n in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


# --- convolution --------------------------------------------------------------------------------------------

_CONVS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _convolve(x: torch.Tensor, w: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    (_, stride, dilation, padding), groups, flip = read.conv_parameters(tuple(w.shape[2:]), arguments)
    axes = w.ndim - 2
    if flip:
        w = w.flip(tuple(range(2, w.ndim)))
    if not x.numel() or not w.numel():
        geometry = read.conv_parameters(tuple(w.shape[2:]), arguments).geometry
        return _zeros((x.shape[0], w.shape[0], *geometry.out(list(x.shape[2:]))))
    padded = _pad(x, padding)
    return _CONVS[axes](padded, w, None, tuple(stride), 0, tuple(dilation), groups)


def _data_gradient(
    w: torch.Tensor, dy: torch.Tensor, x_shape: Sequence[int], arguments: Arguments
) -> torch.Tensor:
    x = _leaf(_zeros(x_shape))
    if not w.numel() or not dy.numel():
        return x.detach()
    return _gradient(_convolve(x, w, arguments), x, dy)


def conv(operands: Tensors, arguments: Arguments) -> Tensors:
    return {"y": _convolve(operands["x"], operands["w"], arguments)}


def conv_backward_data(operands: Tensors, arguments: Arguments) -> Tensors:
    shape = [int(n) for n in arguments["x_shape"]]
    return {"dx": _data_gradient(operands["w"], operands["dy"], shape, arguments)}


def conv_backward_filter(operands: Tensors, arguments: Arguments) -> Tensors:
    w = _leaf(_zeros([int(n) for n in arguments["w_shape"]]))
    if not operands["x"].numel() or not operands["dy"].numel():
        return {"dw": w.detach()}
    return {"dw": _gradient(_convolve(operands["x"], w, arguments), w, operands["dy"])}


def conv_backward_bias(operands: Tensors, arguments: Arguments) -> Tensors:
    dy = operands["dy"]
    return {"db": dy.sum((0, *range(2, dy.ndim)))}


def conv_transpose(operands: Tensors, arguments: Arguments) -> Tensors:
    x, w = operands["x"], operands["w"]
    shape = read.conv_transpose_output_shape(tuple(x.shape), tuple(w.shape), arguments)
    return {"y": _data_gradient(w, x, shape, arguments)}


def conv_bias_activation(operands: Tensors, arguments: Arguments) -> Tensors:
    y = arguments.get("alpha1", 1) * _convolve(operands["x"], operands["w"], arguments)
    if operands.get("residual") is not None:
        y = y + arguments.get("alpha2", 1) * operands["residual"]
    if operands.get("bias") is not None:
        y = y + operands["bias"].reshape(1, -1, *[1] * (y.ndim - 2))
    return {"y": _act(y, *read.activation_of(arguments))}


# --- functions of single elements ---------------------------------------------------------------------------


def _act(x: torch.Tensor, mode: str, coefficient: float) -> torch.Tensor:
    if mode == "relu":
        return functional.relu(x)
    if mode == "clipped_relu":
        return functional.relu(x).clamp(max=coefficient)
    if mode == "sigmoid":
        return torch.sigmoid(x)
    if mode == "tanh":
        return torch.tanh(x)
    if mode == "elu":
        return functional.elu(x, alpha=coefficient)
    if mode == "gelu":
        return functional.gelu(x)
    return functional.silu(coefficient * x) / coefficient if mode == "swish" else x


def activation(operands: Tensors, arguments: Arguments) -> Tensors:
    x, (mode, coefficient) = operands["x"], read.activation_of(arguments, "mode")
    y = _act(x, mode, coefficient)
    if mode in ("relu", "clipped_relu") and not read.propagates(arguments):
        y = y.masked_fill(x.isnan(), 0.0)
    return {"y": y}


def activation_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    x, y, dy = operands["x"], operands["y"], operands["dy"]
    mode, coefficient = read.activation_of(arguments, "mode")
    if mode == "sigmoid":
        return {"dx": torch.ops.aten.sigmoid_backward(dy, y)}
    if mode == "tanh":
        return {"dx": torch.ops.aten.tanh_backward(dy, y)}
    if mode == "clipped_relu":  # docs/layer-calls.md: the slope at the ceiling is 1
        dx = torch.ops.aten.hardtanh_backward(dy, x, 0.0, max(0.0, coefficient))
        return {"dx": torch.where((x == coefficient) & (x > 0), dy, dx)}
    leaf = _leaf(x)
    dx = _gradient(_act(leaf, mode, coefficient), leaf, dy)
    if mode == "elu":  # docs/layer-calls.md: the slope at 0 is 1
        dx = torch.where(x == 0, dy, dx)
    return {"dx": dx}


def op_tensor(operands: Tensors, arguments: Arguments) -> Tensors:
    op, a = read.named(arguments.get("op"), "add"), arguments.get("alpha1", 1) * operands["a"]
    if op in ("not", "sqrt"):
        return {"y": 1 - a if op == "not" else torch.sqrt(a)}
    b = arguments.get("alpha2", 1) * operands["b"]
    functions = {"add": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum}
    if not read.propagates(arguments):
        functions.update(min=torch.fmin, max=torch.fmax)
    return {"y": functions[op](a, b)}


def add(operands: Tensors, arguments: Arguments) -> Tensors:
    return {"y": torch.add(operands["a"], operands["b"])}


def scale(operands: Tensors, arguments: Arguments) -> Tensors:
    """The result of ct.scale, whose alpha is its own."""
    return {"y": torch.mul(operands["x"], float(arguments["alpha"]))}


def fill(operands: Tensors, arguments: Arguments) -> Tensors:
    return {"y": torch.full_like(operands["x"], float(arguments["value"]), dtype=torch.float64)}


def transform(operands: Tensors, arguments: Arguments) -> Tensors:
    return {"y": operands["x"].to(torch.float64)}


def reduce(operands: Tensors, arguments: Arguments) -> Tensors:
    x, op = operands["x"], read.named(arguments.get("op"), "add")
    axes = read.axes_of(arguments.get("axis"), x.ndim)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    full = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    rows = x.permute((*kept, *axes)).reshape(*shape, prod(x.shape[axis] for axis in axes))
    y, places = _reduced(rows, op, read.propagates(arguments))
    found = {"y": y}
    if arguments.get("indices"):
        found["indices"] = places
    keepdims = bool(arguments.get("keepdims"))
    return {name: tensor.reshape(full if keepdims else shape) for name, tensor in found.items()}


def _reduced(rows: torch.Tensor, op: str, propagate: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Reduce the last axis."""
    if op in ("min", "max", "amax"):
        rows = rows.abs() if op == "amax" else rows
        alone = rows.isnan().all(-1)
        if not propagate:
            rows = rows.nan_to_num(
                nan=torch.inf if op == "min" else -torch.inf, posinf=torch.inf, neginf=-torch.inf
            )
        if not rows.numel():
            return _zeros(rows.shape[:-1]), _zeros(rows.shape[:-1]).long()
        y, places = torch.min(rows, -1) if op == "min" else torch.max(rows, -1)
        return y.masked_fill(alone, torch.nan), places
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "add": lambda rows: torch.sum(rows, -1),
        "average": lambda rows: torch.mean(rows, -1),
        "mul": lambda rows: torch.prod(rows, -1),
        "mul_no_zeros": lambda rows: torch.prod(rows.masked_fill(rows == 0, 1.0), -1),
        "norm1": lambda rows: torch.linalg.vector_norm(rows, 1, -1),
        "norm2": lambda rows: torch.linalg.vector_norm(rows, 2, -1),
    }
    if not rows.shape[-1] and op.startswith("norm"):
        return torch.sum(rows, -1), _zeros(rows.shape[:-1])
    return functions[op](rows), _zeros(rows.shape[:-1])


# --- pooling ------------------------------------------------------------------------------------------------

_MAXIMA = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGES = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _pooled(x: torch.Tensor, geometry: Geometry, mode: str) -> torch.Tensor:
    axes = x.ndim - 2
    window, stride = tuple(geometry.window), tuple(geometry.stride)
    if not x.numel():
        return _zeros((*x.shape[:2], *geometry.out(list(x.shape[2:]))))
    if mode == "max":
        return _MAXIMA[axes](_pad(x, geometry.padding, -torch.inf), window, stride)
    averages = _AVERAGES[axes](_pad(x, geometry.padding), window, stride)
    if mode == "average_inc_pad":
        return averages
    sums = averages * prod(window)
    if mode == "sum":
        return sums
    inside = _pad(torch.ones_like(x), geometry.padding).detach()
    return sums / (_AVERAGES[axes](inside, window, stride) * prod(window)).round()


def _for_pooling(x: torch.Tensor, mode: str, arguments: Arguments) -> torch.Tensor:
    """Replace NaN by -inf if a maximum passes over it."""
    if mode == "max" and not read.propagates(arguments):
        return x.masked_fill(x.isnan(), -torch.inf)
    return x


def pool(operands: Tensors, arguments: Arguments) -> Tensors:
    x, mode = operands["x"], read.pool_mode(arguments)
    geometry = read.pool_geometry(tuple(x.shape), arguments)
    return {"y": _pooled(_for_pooling(x, mode, arguments), geometry, mode)}


def pool_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    """Give the gradient of a maximum to the first of equal elements in C order."""
    x, mode = operands["x"], read.pool_mode(arguments)
    leaf = _leaf(_for_pooling(x, mode, arguments))
    y = _pooled(leaf, read.pool_geometry(tuple(x.shape), arguments), mode)
    return {"dx": _gradient(y, leaf, operands["dy"])}


# --- softmax ------------------------------------------------------------------------------------------------


def _rows(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """The axes of a softmax, which are adjacent, as one."""
    first, last = axes[0], axes[-1] + 1
    shape = tuple(x.shape)
    return x.reshape(prod(shape[:first]), prod(shape[first:last]), prod(shape[last:]))


def softmax(operands: Tensors, arguments: Arguments) -> Tensors:
    x = operands["x"]
    if not x.numel():
        return {"y": x}
    rows = _rows(x, read.softmax_axes(x.ndim, arguments))
    log = read.named(arguments.get("algo"), "accurate") == "log"
    return {"y": (torch.log_softmax(rows, 1) if log else torch.softmax(rows, 1)).reshape(x.shape)}


def softmax_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    if not operands["y"].numel():
        return {"dx": operands["y"]}
    shape, axes = operands["y"].shape, read.softmax_axes(operands["y"].ndim, arguments)
    y, dy = _rows(operands["y"], axes), _rows(operands["dy"], axes)
    log = read.named(arguments.get("algo"), "accurate") == "log"
    backward = torch.ops.aten._log_softmax_backward_data if log else torch.ops.aten._softmax_backward_data
    return {"dx": backward(dy, y, 1, torch.float64).reshape(shape)}


# --- batch normalisation ------------------------------------------------------------------------------------


class _Batch:
    """Samples in rows and parameters in columns, as torch's batch_norm takes (N, C)."""

    def __init__(self, x: torch.Tensor, arguments: Arguments) -> None:
        axes = read.norm_axes(x.ndim, arguments)
        self.shape, self.parameters = tuple(x.shape), read.norm_shape(tuple(x.shape), arguments)
        self.order = (*axes, *(axis for axis in range(x.ndim) if axis not in axes))
        self.size = (prod(x.shape[axis] for axis in axes), prod(self.parameters))

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(self.order).reshape(self.size).contiguous()

    def image(self, rows: torch.Tensor) -> torch.Tensor:
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return rows.reshape([self.shape[axis] for axis in self.order]).permute(back).contiguous()


def _statistics(rows: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not rows.numel():
        missing = rows.new_full(rows.shape[1:], torch.nan)
        return missing, missing, missing
    var, mean = torch.var_mean(rows, 0, correction=0)
    return mean, var, torch.rsqrt(var + epsilon)


def _normalised(rows: torch.Tensor, operands: Tensors, mean: Any, var: Any, epsilon: float) -> torch.Tensor:
    scale, bias = operands["scale"].reshape(-1), operands.get("bias")
    bias = None if bias is None else bias.reshape(-1)
    if not rows.numel():
        return rows
    if not epsilon > 0:  # which torch's batch_norm may refuse
        y = (rows - mean) * torch.rsqrt(var) * scale
        return y if bias is None else y + bias
    return functional.batch_norm(rows, mean, var, scale, bias, False, 0.0, epsilon)


def batch_norm_training(operands: Tensors, arguments: Arguments) -> Tensors:
    at, epsilon = _Batch(operands["x"], arguments), float(arguments.get("epsilon", 1e-5))
    rows = at.rows(operands["x"])
    mean, var, invstd = _statistics(rows, epsilon)
    y = at.image(_normalised(rows, operands, mean, var, epsilon))
    if operands.get("residual") is not None:
        y = y + operands["residual"]
    if arguments.get("activation") is not None:
        y = functional.relu(y)
    found = {"y": y, "mean": mean.reshape(at.parameters), "invstd": invstd.reshape(at.parameters)}
    if operands.get("running_mean") is not None:
        old = (operands["running_mean"], operands["running_var"])
        new = [tensor.clone().reshape(-1) for tensor in old]
        if rows.shape[0] > 1 and rows.numel():
            functional.batch_norm(rows, *new, None, None, True, float(arguments.get("momentum", 0.1)), 1e-5)
        for name, tensor, like in zip(("running_mean", "running_var"), new, old, strict=True):
            found[name] = tensor.reshape(like.shape)
    return found


def batch_norm_inference(operands: Tensors, arguments: Arguments) -> Tensors:
    at, epsilon = _Batch(operands["x"], arguments), float(arguments.get("epsilon", 1e-5))
    mean, var = operands["mean"].reshape(-1), operands["var"].reshape(-1)
    return {"y": at.image(_normalised(at.rows(operands["x"]), operands, mean, var, epsilon))}


def batch_norm_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    at, epsilon = _Batch(operands["x"], arguments), float(arguments.get("epsilon", 1e-5))
    rows, scale = at.rows(operands["x"]), operands["scale"]
    dz, found = operands["dy"], {}
    if arguments.get("activation") is not None:
        dz = found["dz"] = torch.ops.aten.threshold_backward(operands["dy"], operands["y"], 0.0)
    if operands.get("mean") is None:
        mean, _, invstd = _statistics(rows, epsilon)
    else:
        mean, invstd = operands["mean"].reshape(-1), operands["invstd"].reshape(-1)
    if not rows.numel():
        nothing = torch.zeros_like(scale)
        return {**found, "dx": operands["x"], "dscale": nothing, "dbias": nothing}
    dx, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
        at.rows(dz), rows, scale.reshape(-1), None, None, mean, invstd, True, epsilon, [True, True, True]
    )
    found.update(dx=at.image(dx), dscale=dscale.reshape(scale.shape), dbias=dbias.reshape(scale.shape))
    return found


def batch_norm_inference_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    at, epsilon = _Batch(operands["x"], arguments), float(arguments.get("epsilon", 1e-5))
    x, scale = _leaf(at.rows(operands["x"])), _leaf(operands["scale"])
    bias = _leaf(torch.zeros_like(scale))
    mean, var = operands["mean"].reshape(-1), operands["var"].reshape(-1)
    if not x.numel():
        nothing = torch.zeros_like(scale)
        return {"dx": operands["x"], "dscale": nothing.detach(), "dbias": nothing.detach()}
    y = _normalised(x, {"scale": scale, "bias": bias}, mean, var, epsilon)
    dx, dscale, dbias = torch.autograd.grad(y, (x, scale, bias), at.rows(operands["dy"]))
    return {"dx": at.image(dx), "dscale": dscale, "dbias": dbias}


# --- local response normalisation ---------------------------------------------------------------------------


def _sums_of_channels(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """The sum of each channel, those before and those after it."""
    padded = functional.pad(x.movedim(1, -1), (before, after))
    return padded.unfold(-1, before + after + 1, 1).sum(-1).movedim(-1, 1)


def _bases(x: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    n, before, after = read.window_of_channels(arguments)
    a, _, k = read.lrn_factors(arguments)
    return torch.add(k, _sums_of_channels(x.square(), before, after), alpha=a / n)


def lrn(operands: Tensors, arguments: Arguments) -> Tensors:
    x, (_, beta, _) = operands["x"], read.lrn_factors(arguments)
    return {"y": x / _bases(x, arguments).pow(beta) if x.numel() else x}


def lrn_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    """The formula with y as it was given: autograd would compute another one."""
    x, y, dy = (operands[name] for name in ("x", "y", "dy"))
    if not x.numel():
        return {"dx": x}
    n, before, after = read.window_of_channels(arguments)
    a, beta, _ = read.lrn_factors(arguments)
    base = _bases(x, arguments)
    through = _sums_of_channels(dy * y / base, after, before)
    return {"dx": dy / base.pow(beta) - (2 * a * beta / n) * x * through}


# --- causal convolutions ------------------------------------------------------------------------------------


def causal_conv1d(operands: Tensors, arguments: Arguments) -> Tensors:
    x, w, bias = operands["x"], operands["w"], operands.get("bias")
    if not x.numel():
        return {"y": x}
    padded = functional.pad(x, (w.shape[1] - 1, 0))
    y = functional.conv1d(padded, w[:, None], bias, groups=x.shape[1])
    return {
        "y": y if read.named(arguments.get("activation"), "identity") == "identity" else functional.silu(y)
    }


def causal_conv1d_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    names = [name for name in ("x", "w", "bias") if operands.get(name) is not None]
    leaves = {name: _leaf(operands[name]) for name in names}
    if not operands["x"].numel():
        return {f"d{name}": torch.zeros_like(operands[name]) for name in names}
    y = causal_conv1d(leaves, arguments)["y"]
    gradients = torch.autograd.grad(y, tuple(leaves.values()), operands["dy"])
    return {f"d{name}": one for name, one in zip(names, gradients, strict=True)}


def fft_causal_conv1d(operands: Tensors, arguments: Arguments) -> Tensors:
    """Direct sums for short windows, transforms in float64 for long ones."""
    x, w = operands["x"], operands["w"]
    if w.shape[1] <= 2048:
        return causal_conv1d({"x": x, "w": w.flip(1)}, {})
    points = x.shape[2] + w.shape[1]
    spectrum = torch.fft.rfft(x, points) * torch.fft.rfft(w, points)
    return {"y": torch.fft.irfft(spectrum, points)[..., : x.shape[2]]}


def fft_causal_conv1d_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    leaves = {name: _leaf(operands[name]) for name in ("x", "w")}
    if not operands["x"].numel():
        return {f"d{name}": torch.zeros_like(one) for name, one in leaves.items()}
    y = fft_causal_conv1d(leaves, arguments)["y"]
    dx, dw = torch.autograd.grad(y, tuple(leaves.values()), operands["dy"])
    return {"dx": dx, "dw": dw}


def b2b_causal_conv1d(operands: Tensors, arguments: Arguments) -> Tensors:
    x, w, bias = operands["x"], operands["w_proj"], operands["skip_bias"]
    projected = causal_conv1d({"x": x.flatten(1, 2), "w": w.flatten(0, 1)}, {})["y"]
    gate, product = projected[:, ::3], projected[:, 1::3] * projected[:, 2::3]
    mixed = causal_conv1d({"x": product, "w": operands["w_mixer"]}, {})["y"] + bias[:, None] * product
    return {"y": gate * mixed, "mixed": mixed}


def b2b_causal_conv1d_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    """The gate's gradient takes the given mixed sequences, which may be rounded."""
    names = ("x", "w_proj", "w_mixer", "skip_bias")
    leaves = {name: _leaf(operands[name]) for name in names}
    if not operands["x"].numel():
        return {f"d{name}": torch.zeros_like(operands[name]) for name in names}
    mixed = b2b_causal_conv1d(leaves, {})["mixed"]
    x, w = leaves["x"], leaves["w_proj"]
    gate = causal_conv1d({"x": x[:, :, 0], "w": w[:, 0]}, {})["y"]
    sizes = (operands["dy"] * operands["mixed"], operands["dy"] * gate.detach())
    found = torch.autograd.grad((gate, mixed), tuple(leaves.values()), sizes)
    return {f"d{name}": one for name, one in zip(names, found, strict=True)}


# --- spatial transformers -----------------------------------------------------------------------------------


def _affine(theta: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """An affine grid with align_corners=True, except that a single pixel is at -1."""
    rows, columns = (torch.linspace(-1, 1, n, dtype=torch.float64, device=DEVICE) for n in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.einsum("hwk,nik->nhwi", torch.stack([x, y, torch.ones_like(x)], -1), theta)


def affine_grid(operands: Tensors, arguments: Arguments) -> Tensors:
    height, width = (int(n) for n in arguments["shape"][-2:])
    return {"y": _affine(operands["theta"], height, width)}


def affine_grid_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    dgrid = operands["dgrid"]
    theta = _leaf(_zeros((dgrid.shape[0], 2, 3)))
    return {"dtheta": _gradient(_affine(theta, *dgrid.shape[1:3]), theta, dgrid)}


def _sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    if not x.numel() or not grid.numel():
        return _zeros((*x.shape[:2], *grid.shape[1:3]))
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def grid_sample(operands: Tensors, arguments: Arguments) -> Tensors:
    return {"y": _sample(operands["x"], operands["grid"])}


def grid_sample_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    x, grid, dy = _leaf(operands["x"]), _leaf(operands["grid"]), operands["dy"]
    if not dy.numel():
        return {"dx": torch.zeros_like(x), "dgrid": torch.zeros_like(grid)}
    dx, dgrid = torch.autograd.grad(_sample(x, grid), (x, grid), dy)
    return {"dx": dx, "dgrid": dgrid}


def spatial_transformer(operands: Tensors, arguments: Arguments) -> Tensors:
    shape = read.transformed_shape(tuple(operands["x"].shape), arguments)
    return {"y": _sample(operands["x"], _affine(operands["theta"], *shape[2:]))}


def spatial_transformer_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    x, theta, dy = _leaf(operands["x"]), _leaf(operands["theta"]), operands["dy"]
    if not dy.numel():
        return {"dx": torch.zeros_like(x), "dtheta": torch.zeros_like(theta)}
    y = _sample(x, _affine(theta, *dy.shape[2:]))
    dx, dtheta = torch.autograd.grad(y, (x, theta), dy)
    return {"dx": dx, "dtheta": dtheta}


# --- dropout, with its mask as an operand -------------------------------------------------------------------


def dropout(operands: Tensors, arguments: Arguments) -> Tensors:
    mask, factor = read.kept(operands, arguments)
    return {"y": torch.where(mask.bool(), operands["x"] * factor, 0.0)}


def dropout_backward(operands: Tensors, arguments: Arguments) -> Tensors:
    mask, factor = read.kept(operands, arguments)
    return {"dx": torch.where(mask.bool(), operands["dy"] * factor, 0.0)}


# --- connectionist temporal classification ------------------------------------------------------------------


def ctc_loss(operands: Tensors, arguments: Arguments) -> Tensors:
    """Compute one sequence after another; impossible ones do not reach torch."""
    logits, given = operands["logits"], operands.get("out")
    softmax = read.named(arguments.get("normalization"), "softmax") == "softmax"
    skips = read.named(arguments.get("out_of_bound"), "zero") == "skip" and given is not None
    loss, gradient = _zeros(logits.shape[1:2]), torch.zeros_like(logits)
    lists = {name: operands[name].cpu().numpy() for name in _TARGETS if operands.get(name) is not None}
    for n, target in enumerate(read.ctc_targets(lists, arguments)):
        if target.impossible:
            loss[n] = torch.inf
            if skips:
                gradient[:, n] = given[:, n]
            continue
        if not target.steps:
            continue
        own = _leaf(logits[: target.steps, n : n + 1])
        logs = functional.log_softmax(own, 2) if softmax else own.log()
        logs.retain_grad()
        labels = torch.tensor([target.labels], dtype=torch.int64, device=DEVICE)
        if target.labels:
            lengths = [torch.tensor([count]) for count in (target.steps, len(target.labels))]
            value = functional.ctc_loss(logs, labels, *lengths, blank=0, reduction="none")[0]
        else:
            value = -logs[:, 0, 0].sum()
        value.backward()
        loss[n] = value.detach()
        if softmax:
            gradient[: target.steps, n] = own.grad[:, 0]
        elif target.labels:  # torch's gradient by logarithms is p - q already
            by_activation = logs.grad.masked_fill(own == 0, 0.0)  # NaN there: log(0) less log(0)
            gradient[: target.steps, n] = by_activation[:, 0]
        else:
            gradient[: target.steps, n] = own.detach()[:, 0] + logs.grad[:, 0]
    return {"loss": loss, "gradient": gradient}


_TARGETS = ("labels", "label_lengths", "input_lengths")


# --- recurrent networks -------------------------------------------------------------------------------------


class _Cells:
    """The weights of a network by name, with zeros for biases that are not there."""

    def __init__(self, network: Network, weights: Tensors) -> None:
        self.network, self.weights = network, weights

    def products(self, where: str, letter: str, state: torch.Tensor) -> list[torch.Tensor]:
        """W x + bW, or R h + bR, for each gate; without a matrix x itself."""
        found = []
        for gate in GATES[self.network.mode]:
            matrix, bias = (self.weights.get(f"{where}{b}{letter}_{gate}") for b in ("", "b"))
            product = state if matrix is None else state @ matrix.T
            found.append(product if bias is None else product + bias)
        return found

    def step(self, where: str, x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
        """Return h, c as it is returned, and c as the next step takes it."""
        mode = self.network.mode
        inputs, states = self.products(where, "W", x), self.products(where, "R", h)
        if mode == "gru":
            (xr, xz, xn), (hr, hz, hn) = inputs, states
            new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            return torch.lerp(new, h, torch.sigmoid(xz + hz)), c, c
        if mode != "lstm":
            total = inputs[0] + states[0]
            return torch.relu(total) if mode == "rnn_relu" else torch.tanh(total), c, c
        i, f, g, o = (a + b for a, b in zip(inputs, states, strict=True))
        last = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        used = last if self.network.clip is None else last.clamp(*self.network.clip)
        h = torch.sigmoid(o) * torch.tanh(used)
        projection = self.weights.get(f"{where}P")
        return h if projection is None else h @ projection.T, last, used


def _run(
    network: Network, weights: Tensors, x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run a network; sequences whose end was reached keep their states."""
    places, lengths = read.places_of_steps(network), network.lengths
    cells, longest = _Cells(network, weights), max(lengths, default=0)
    rows = [torch.stack([x[p] for p in steps]) if steps else x.new_zeros(0, x.shape[-1]) for steps in places]
    hy, cy = list(h0.unbind(0)), list(c0.unbind(0))
    for layer in range(network.layers):
        outputs: list[list[list[torch.Tensor]]] = [[[] for _ in lengths] for _ in range(network.directions)]
        for direction in range(network.directions):
            index = layer * network.directions + direction
            h, last = hy[index], cy[index]
            c = last
            for t in range(longest):
                alive = [n for n, end in enumerate(lengths) if t < end]
                seen = torch.stack([rows[n][lengths[n] - 1 - t if direction else t] for n in alive])
                new = cells.step(network.prefix(layer, direction), seen, h[alive], c[alive])
                at = torch.tensor(alive, device=x.device)
                h, last, c = (old.index_copy(0, at, to) for old, to in zip((h, last, c), new, strict=True))
                for n, row in zip(alive, new[0], strict=True):
                    outputs[direction][n].append(row)
            hy[index], cy[index] = h, last
        for n, end in enumerate(lengths):
            if end:
                ahead = [torch.stack(outputs[0][n])]
                back = [torch.stack(outputs[1][n][::-1])] if network.directions == 2 else []
                rows[n] = torch.cat(ahead + back, 1)
    width = network.output * network.directions
    y = x.new_full((*x.shape[:-1], width), network.padding_value)
    flat = [
        (place, row)
        for steps, own in zip(places, rows, strict=True)
        for place, row in zip(steps, own, strict=True)
    ]
    if flat:
        index = tuple(torch.tensor(axis, device=x.device) for axis in zip(*(p for p, _ in flat), strict=True))
        y = y.index_put(index, torch.stack([row for _, row in flat]))
    return y, torch.stack(hy), torch.stack(cy)


def _rnn(operands: Operands, arguments: Arguments) -> Values:
    """The results of a forward pass, and with dy, dhy or dcy its gradients."""
    network = read.rnn_network(operands, arguments)
    weights = {name: _leaf(_tensor(array)) for name, array in read.rnn_weights(operands, arguments).items()}
    x, batch = _leaf(_tensor(operands["x"])), len(network.lengths)
    sizes = (network.output, network.hidden)
    states = []
    for names, size in zip((("h0", "hx"), ("c0", "cx")), sizes, strict=True):
        given = read.first_given(operands, *names)
        shape = (network.layers * network.directions, batch, size)
        states.append(_leaf(_zeros(shape) if given is None else _tensor(given)))
    y, hy, cy = _run(network, weights, x, *states)
    has_cells = network.mode == "lstm"
    found = {"y": y, "hy": hy, **({"cy": cy} if has_cells else {})}
    incoming = {name: operands[f"d{name}"] for name in found if operands.get(f"d{name}") is not None}
    if not incoming:
        return {name: _array(tensor) for name, tensor in found.items()}
    inputs = {"dx": x, "dhx": states[0], **({"dcx": states[1]} if has_cells else {})}
    inputs.update({f"dweights/{name}": tensor for name, tensor in weights.items()})
    # What is past the end of a sequence is not looked at, and may be NaN.
    kept_ones = [place for steps in read.places_of_steps(network) for place in steps]
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for name, array in incoming.items():
        if name == "y":
            given = np.asarray(array)
            clean = np.zeros(given.shape)
            for place in kept_ones:
                clean[place] = given[place]
            array = clean
        total = total + (found[name] * _tensor(array)).sum()
    leaves = tuple(inputs.values())
    parts = (
        torch.autograd.grad(total, leaves, allow_unused=True)
        if total.requires_grad
        else (None,) * len(leaves)
    )
    for (name, leaf), part in zip(inputs.items(), parts, strict=True):
        found[name] = torch.zeros_like(leaf) if part is None else part
    return {name: _array(tensor) for name, tensor in found.items()}


def _of_images(function: Torch) -> Torch:
    """An instance normalisation by the batch normalisation of one image."""

    def compute(operands: Tensors, arguments: Arguments) -> Tensors:
        found = function(of_one_image(operands, torch.cat), arguments)
        return of_each_image(found, tuple(operands["x"].shape), lambda values: values.sum(0))

    return compute


_FUNCTIONS: dict[str, Torch] = {
    **defined(globals()),
    "instance_norm": _of_images(batch_norm_training),
    "instance_norm_backward": _of_images(batch_norm_backward),
    **fusions_by_torch(_convolve, _act),
    **ROWS,
    **NEIGHBOURS,
    **ATTENTION,
    **each("by_torch"),
}

VALUES: dict[str, Compute] = {name: _on_arrays(function) for name, function in _FUNCTIONS.items()}
VALUES["RNN"] = _rnn

ANSWERS = answers(VALUES)
