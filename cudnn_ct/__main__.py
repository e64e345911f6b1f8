"""``python -m cudnn_ct`` is the command ``cudnn-ct``."""

from cudnn_ct.cli import main

if __name__ == "__main__":
    main(prog_name="cudnn-ct")
