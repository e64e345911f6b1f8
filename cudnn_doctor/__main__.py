"""``python -m cudnn_doctor`` is the command ``cudnn-ct doctor``."""

# Older versions of Python must be able to parse this file.

import gc
import sys

if sys.version_info < (3, 8):
    sys.exit("cudnn-ct doctor: Python 3.8 or newer is needed, this is %d.%d" % sys.version_info[:2])

if __name__ == "__main__":
    gc.disable()  # the process ends at once, and collections took 7 % of its time

from .main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
