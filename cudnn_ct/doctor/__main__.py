"""``python -m cudnn_ct.doctor`` is the command ``cudnn-ct doctor``."""

from cudnn_doctor.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
