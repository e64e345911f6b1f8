"""``python -m cudnn_ct.doctor`` is the command ``cudnn-ct doctor``."""

from __future__ import annotations

import sys

from .main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
