"""Operations: arrays on the device in, arrays on the device out; one module for each family."""

from .conv import conv, conv_output_shape

__all__ = ["conv", "conv_output_shape"]
