"""Calls by PyTorch and by cudnn_ct: affine grids, grid sampling and local response normalisation."""

from __future__ import annotations

from typing import Any

from harness.operands import Array, Operands
from harness.timing import Call
from layers_pair import Pair, Tensors
from layers_workload import Row

import cudnn_ct as ct

BILINEAR, ZEROS = 0, 0  # PyTorch's values of interpolation_mode and padding_mode
CORNERS = True  # align_corners: -1 and 1 are the centres of the outer pixels
LOOSE = 5  # half precision rounds coordinates by hundredths of a pixel, and each kernel differently

RESPONSE = {"n": 5, "lrn_alpha": 1e-4, "lrn_beta": 0.75, "k": 2.0}  # AlexNet's


def grid_sample(row: Row) -> Pair:
    arrays = {"x": row.array(), "grid": _grid(row), "out": row.array(empty=True)}

    def theirs(operands: Operands) -> Call:
        import torch

        xs, grids, sample = operands.theirs["x"], operands.theirs["grid"], torch.grid_sampler
        return lambda i: sample(xs[i], grids[i], BILINEAR, ZEROS, CORNERS)

    def ours(operands: Operands) -> Call:
        xs, grids, outs = (operands.ours[role] for role in arrays)
        sample = ct.grid_sample
        return lambda i: sample(xs[i], grids[i], out=outs[i])

    return Pair(arrays, theirs, ours, _make_grids, tolerance=LOOSE)


def grid_sample_backward(row: Row) -> Pair:
    arrays = {
        **{"x": row.array(), "grid": _grid(row), "dy": row.array()},
        **{"out": row.array(empty=True), "made": _grid(row, empty=True)},
    }

    def ours(operands: Operands) -> Call:
        xs, grids, dys, outs, _ = (operands.ours[role] for role in arrays)
        backward = ct.grid_sample_backward
        return lambda i: backward(dys[i], xs[i], grids[i], out=outs[i])

    return Pair(arrays, _torch_sample_gradient, ours, _make_grids, tolerance=LOOSE)


def _torch_sample_gradient(operands: Operands) -> Call:
    """Return the gradient by the implementation that PyTorch's autograd records for these operands."""
    import torch

    xs, grids, dys = (operands.theirs[role] for role in ("x", "grid", "dy"))
    with torch.inference_mode(False), torch.enable_grad():
        leaf = xs[0].detach().requires_grad_()
        node = torch.grid_sampler(leaf, grids[0], BILINEAR, ZEROS, CORNERS).grad_fn.name()
    if node.startswith("Cudnn"):
        cudnn = torch.ops.aten.cudnn_grid_sampler_backward.default
        return lambda i: cudnn(xs[i], grids[i], dys[i])
    native = torch.ops.aten.grid_sampler_2d_backward.default
    return lambda i: native(dys[i], xs[i], grids[i], BILINEAR, ZEROS, CORNERS, [True, True])


def affine_grid(row: Row) -> Pair:
    arrays = {"theta": _theta(row), "made": _grid(row, empty=True)}
    shape = list(row.layer.x)

    def theirs(operands: Operands) -> Call:
        import torch

        thetas, generate = operands.theirs["theta"], torch.affine_grid_generator
        return lambda i: generate(thetas[i], shape, CORNERS)

    def ours(operands: Operands) -> Call:
        thetas, generate, result = operands.ours["theta"], ct.affine_grid, row.layer.x
        return lambda i: generate(thetas[i], result)

    return Pair(arrays, theirs, ours, tolerance=2)


def affine_grid_backward(row: Row) -> Pair:
    arrays = {"dgrid": _grid(row), "made": _theta(row, empty=True)}
    shape = list(row.layer.x)

    def theirs(operands: Operands) -> Call:
        import torch

        dgrids, backward = operands.theirs["dgrid"], torch.ops.aten.affine_grid_generator_backward.default
        return lambda i: backward(dgrids[i], shape, CORNERS)

    def ours(operands: Operands) -> Call:
        dgrids, backward = operands.ours["dgrid"], ct.affine_grid_backward
        return lambda i: backward(dgrids[i])

    return Pair(arrays, theirs, ours, tolerance=2)


def _grid(row: Row, *, empty: bool = False) -> Array:
    batch, _, height, width = row.layer.x
    return Array((batch, height, width, 2), row.kind.dtype, empty=empty)


def _theta(row: Row, *, empty: bool = False) -> Array:
    return Array((row.layer.x[0], 2, 3), row.kind.dtype, empty=empty)


def _make_grids(tensors: Tensors) -> None:
    """Fill grids with transforms that rotate, scale and shift images a little, also beyond their edges.

    The points are moved to the middle between pixels, so that a rounding error does not change their pixels.
    """
    import torch

    x = tensors["x"][0]
    same = torch.tensor([[1.0, 0, 0], [0, 1, 0]], device=x.device)
    per_pixel = 2 / (torch.tensor([x.shape[3], x.shape[2]], device=x.device) - 1)
    for grid in tensors["grid"]:
        theta = same + 0.1 * torch.randn(len(x), 2, 3, device=x.device)
        places = torch.affine_grid_generator(theta, list(x.shape), CORNERS)
        grid.copy_((((places + 1) / per_pixel).floor() + 0.5) * per_pixel - 1)


# --- local response normalisation, which PyTorch composes of six operations --------------------------------


def lrn(row: Row) -> Pair:
    arrays = {"x": row.array(), "out": row.array(empty=True)}

    def theirs(operands: Operands) -> Call:
        xs = operands.theirs["x"]
        return lambda i: _torch_response(xs[i])

    def ours(operands: Operands) -> Call:
        xs, outs, normalise = operands.ours["x"], operands.ours["out"], ct.lrn
        return lambda i: normalise(xs[i], out=outs[i], **RESPONSE)

    return Pair(arrays, theirs, ours)


def lrn_backward(row: Row) -> Pair:
    """Return the pair of `lrn_backward`. PyTorch differentiates its composition by autograd."""
    arrays = {"x": row.array(), "y": row.array(), "dy": row.array(), "out": row.array(empty=True)}

    def prepare(tensors: Tensors) -> None:
        for x, y in zip(tensors["x"], tensors["y"], strict=True):
            y.copy_(_torch_response(x))

    def theirs(operands: Operands) -> Call:
        import torch

        dys = operands.theirs["dy"]
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in operands.theirs["x"]]
            results = [_torch_response(leaf) for leaf in leaves]

        def backward(i: int) -> Any:
            with torch.inference_mode(False):
                return torch.autograd.grad(results[i], leaves[i], dys[i], retain_graph=True)

        return backward

    def ours(operands: Operands) -> Call:
        xs, ys, dys, outs = (operands.ours[role] for role in arrays)
        backward = ct.lrn_backward
        return lambda i: backward(dys[i], xs[i], ys[i], out=outs[i], **RESPONSE)

    return Pair(arrays, theirs, ours, prepare, spare=("y",))


def _torch_response(x: Any) -> Any:
    from torch.nn.functional import local_response_norm

    return local_response_norm(x, RESPONSE["n"], RESPONSE["lrn_alpha"], RESPONSE["lrn_beta"], RESPONSE["k"])
