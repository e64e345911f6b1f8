"""Write cudnn-doctor.pyz: the doctor in one file, which Python 3.8 and newer can run without installation.

python tools/doctor_pyz.py [FILE]
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "cudnn_ct"
SHARED = (
    "__init__", "_bad_combinations", "_elf", "_files", "_find", "_gpus", "_installation", "_libraries",
    "_variables", "errors",
)  # fmt: skip

# Python 2.7 can parse it.
MAIN = """\
import sys

if sys.version_info < (3, 8):
    sys.exit("cudnn-doctor: Python 3.8 or newer is needed, this is %d.%d" % sys.version_info[:2])

from cudnn_ct.doctor.main import main

sys.exit(main())
"""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("cudnn-doctor.pyz"))
    build(parser.parse_args().file)


def build(file: Path, package: Path = PACKAGE) -> None:
    """Write the file; equal sources give equal bytes."""
    sources = [package / f"{name}.py" for name in SHARED] + sorted((package / "doctor").glob("*.py"))
    sources += [*sorted(package.glob("*.json")), *sorted((package / "doctor").glob("*.json"))]
    contents = {f"cudnn_ct/{path.relative_to(package)}": path.read_text("utf-8") for path in sources}
    with file.open("wb") as stream:
        stream.write(b"#!/usr/bin/env python3\n")
        # Not compressed, because Python's zlib may be broken where the doctor runs.
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, text in {"__main__.py": MAIN, **contents}.items():
                archive.writestr(zipfile.ZipInfo(name), text)
    file.chmod(0o755)


if __name__ == "__main__":
    main()
