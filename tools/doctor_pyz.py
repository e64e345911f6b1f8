"""Write cudnn-doctor.pyz: the doctor in one file, which Python 3.8 and newer can run without installation.

python tools/doctor_pyz.py [FILE]
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cudnn_doctor", "cudnn_doctor/read")
FACTS = "cudnn_ct/facts.json"

# Python 2.7 can parse it.
MAIN = """\
import sys

if sys.version_info < (3, 8):
    sys.exit("cudnn-doctor: Python 3.8 or newer is needed, this is %d.%d" % sys.version_info[:2])

from cudnn_doctor.main import main

sys.exit(main())
"""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("cudnn-doctor.pyz"))
    build(parser.parse_args().file)


def build(file: Path, root: Path = ROOT) -> None:
    """Write the file from the sources below a folder; equal sources give equal bytes."""
    found = [path for name in FOLDERS for kind in ("*.py", "*.json") for path in (root / name).glob(kind)]
    sources = [*sorted(found), root / FACTS]
    contents = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sources}
    with file.open("wb") as stream:
        stream.write(b"#!/usr/bin/env python3\n")
        # Not compressed, because Python's zlib may be broken where the doctor runs.
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for name, text in {"__main__.py": MAIN, **contents}.items():
                archive.writestr(zipfile.ZipInfo(name), text)
    file.chmod(0o755)


if __name__ == "__main__":
    main()
