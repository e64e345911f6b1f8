"""Read a cuDNN on disk without opening it; needs only the standard library, and runs with Python 3.8."""

__version__ = "0.1.0"  # of cudnn_ct too, which is in the same wheel
