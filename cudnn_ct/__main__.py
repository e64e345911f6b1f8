"""``python -m cudnn_ct`` is the command ``cudnn-ct``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. The doctor comes before anything is imported that may be broken here."""
    if sys.argv[1:2] == ["doctor"]:
        from cudnn_doctor.main import main as doctor

        sys.exit(doctor(sys.argv[2:]))
    try:
        from cudnn_ct.cli import main as command
    except ImportError as error:
        sys.exit(f"cudnn-ct: {error}, and only `doctor` does without: python -m pip install cudnn-ct")
    command(prog_name="cudnn-ct")


if __name__ == "__main__":
    main()
