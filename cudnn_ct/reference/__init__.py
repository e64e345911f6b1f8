"""What every operation means, in NumPy: no device, no library, float64 inside, written to be read.

The names are those of :mod:`cudnn_ct.ops`, with the same arrays and mathematical parameters, in the same
order and with the same defaults; what only matters on a device (algorithm, precision, stream) is left out.
"""

from ..problem import conv_output_shape
from .conv import conv

__all__ = ["conv", "conv_output_shape"]
