"""cudnn_ct inside PyTorch, as a function with a gradient, and on arrays of CuPy and JAX.

    python examples/07_other_libraries.py [torch] [cupy] [jax]

A convolution on arrays of each library, used where they are, compared with PyTorch's own or with the
reference. A library that is not there, or sees no GPU, is passed over, and that is said. Tensors of PyTorch
in host memory go through the reference: gradients are checked with and without a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import numpy as np

import cudnn_ct as ct

GEOMETRY = {"padding": "half", "stride": 2}
TOLERANCE = 1e-5

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes most of the memory for itself


def main(arguments: list[str] | None = None) -> int:
    """Run the example and return its exit status: 1 if a result differs."""
    parser = argparse.ArgumentParser(description="cudnn_ct on arrays of other libraries.")
    parser.add_argument("libraries", nargs="*", help="torch, cupy, jax (default: all)")
    libraries = parser.parse_args(arguments).libraries or list(PARTS)

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 9, 8), (4, 3, 3, 3)))
    ct.config.allow_tf32 = False  # strict float32, to be held against the reference
    good, compared = True, 0
    for name in libraries:
        try:
            difference = PARTS[name](x, w)
        except ImportError as error:
            print(f"{name}: not installed ({error})")
        except NoGpuError as error:
            print(f"{name}: {error}")
        else:
            print(f"{name}: largest difference {difference:.1e}, relative to the largest element")
            good, compared = good and difference <= TOLERANCE, compared + 1
    if not compared:
        print("nothing was compared: no library of these can compute here")
    available = ct.available()  # asked last: a cuDNN that PyTorch brings is then the one that is used
    print(f"on the GPU by cuDNN {ct.version()}" if available else f"not on a GPU: {available.reason}")
    return 0 if good else 1


class NoGpuError(Exception):
    """A library is there, and has nothing that cuDNN could compute on."""


# --- PyTorch -----------------------------------------------------------------------------------------------


def with_torch(x: np.ndarray, w: np.ndarray) -> float:
    """Make a differentiable function of our operations, and check its gradients by finite differences."""
    import torch

    def call(name: str, *operands: Any, **keywords: Any) -> torch.Tensor:
        """Call an operation on tensors in place: on CUDA by cuDNN, in host memory by the reference."""
        if operands[0].is_cuda:
            return torch.from_dlpack(getattr(ct, name)(*operands, **keywords))
        host = [a.numpy() if isinstance(a, torch.Tensor) else a for a in operands]
        return torch.from_numpy(getattr(ct.reference, name)(*host, **keywords))

    class Convolution(torch.autograd.Function):
        """``Convolution.apply(x, w, geometry)``, where geometry has the keywords of ``ct.conv``."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, geometry: dict[str, Any]) -> torch.Tensor:
            x, w = x.detach(), w.detach()
            ctx.save_for_backward(x, w)
            ctx.geometry = geometry
            return call("conv", x, w, **geometry)

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
            x, w = ctx.saved_tensors
            dy = dy.contiguous()  # that of a sum is one number, seen as many by strides of 0
            dx = dw = None
            if ctx.needs_input_grad[0]:
                dx = call("conv_backward_data", dy, w, x.shape, **ctx.geometry)
            if ctx.needs_input_grad[1]:
                dw = call("conv_backward_filter", dy, x, w.shape, **ctx.geometry)
            return dx, dw, None

    on_gpu = bool(ct.available()) and torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    print(f"torch: {torch.__version__}, tensors on {torch.cuda.get_device_name() if on_gpu else 'the CPU'}")
    ct.config.deterministic = True  # the same bits each time, or differences are not finite ones

    leaves = [torch.tensor(a, dtype=torch.float64, device=device, requires_grad=True) for a in (x, w)]
    torch.autograd.gradcheck(Convolution.apply, (*leaves, GEOMETRY))  # raises where they differ
    print("torch: both gradients are those of finite differences (torch.autograd.gradcheck, float64)")

    ours = [torch.tensor(a, device=device, requires_grad=True) for a in (x, w)]
    differences = []
    for theirs, mine in zip(
        both_passes(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1, stride=2), leaves),
        both_passes(lambda x, w: Convolution.apply(x, w, GEOMETRY), ours),
        strict=True,
    ):
        differences.append(far(mine.cpu().numpy(), theirs.cpu().numpy()))
    return max(differences)


def both_passes(function: Any, leaves: list[Any]) -> list[Any]:
    """Return the result of a function of tensors, and the gradients of the sum of its squares."""
    y = function(*leaves)
    (y * y).sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves)]


# --- CuPy --------------------------------------------------------------------------------------------------


def with_cupy(x: np.ndarray, w: np.ndarray) -> float:
    """Write to an array of CuPy, and see one of ours as CuPy's."""
    import cupy

    if not cupy.cuda.is_available() or not ct.available():
        raise NoGpuError("there is no GPU for it")
    wanted = ct.reference.conv(x, w, **GEOMETRY)
    x_cupy, w_cupy, out = cupy.asarray(x), cupy.asarray(w), cupy.empty(wanted.shape, cupy.float32)
    ct.conv(x_cupy, w_cupy, **GEOMETRY, out=out)
    y = cupy.asarray(ct.conv(x_cupy, w_cupy, **GEOMETRY))  # shares the memory of the result
    print(f"cupy: {cupy.__version__}, written in place, and taken without a copy")
    return max(far(cupy.asnumpy(array), wanted) for array in (out, y))


# --- JAX ---------------------------------------------------------------------------------------------------


def with_jax(x: np.ndarray, w: np.ndarray) -> float:
    """Take arrays of JAX, and hand one back. They cannot be written to, so they are never an ``out=``."""
    import jax

    if jax.default_backend() != "gpu" or not ct.available():
        raise NoGpuError(f"{jax.__version__} computes on {jax.default_backend()} here, cuDNN on GPUs alone")
    y = jax.numpy.from_dlpack(ct.conv(jax.numpy.asarray(x), jax.numpy.asarray(w), **GEOMETRY))
    doubled = jax.jit(lambda a: 2 * a)(y)
    print(f"jax: {jax.__version__}, arrays taken and given without a copy")
    return far(np.asarray(doubled) / 2, ct.reference.conv(x, w, **GEOMETRY))


PARTS = {"torch": with_torch, "cupy": with_cupy, "jax": with_jax}


def far(ours: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference relative to the largest element."""
    return float(np.abs(ours - wanted).max() / np.abs(wanted).max())


if __name__ == "__main__":
    sys.exit(main())
