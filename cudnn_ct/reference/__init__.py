"""The meaning of every operation in NumPy, computed in float64 and rounded once.

Names, operands and mathematical parameters are those of the package's operations. Parameters that matter
only on a device (algorithm, precision, stream) do not exist.
"""

from importlib import import_module

from ..shapes.conv import conv_output_shape as conv_output_shape
from ..shapes.conv import conv_transpose_output_shape as conv_transpose_output_shape
from ..shapes.layers import pool_output_shape as pool_output_shape
from . import _signatures

# The functions that `defined` made, whose modules `python tools/stub.py --write` finds. Some modules have the
# name of one, which takes their place after all are imported.
globals().update(
    {
        name: value
        for module in [import_module(f".{name}", __name__) for name in _signatures.MODULES]
        for name, value in vars(module).items()
        if hasattr(value, "__signature__")
    }
)
__all__ = sorted(name for name, value in globals().items() if hasattr(value, "__signature__"))

from .graph_nodes import graph as graph  # noqa: E402  # evaluates built graphs: no operation has its name
