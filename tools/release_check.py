"""Check the files of a release: python tools/release_check.py WHEEL SDIST.

The wheel has the files of both packages in the checkout and no others, and the sdist has what its tests need.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "mkdocs.yml",
    "tests/conftest.py",
    "docs/install.md",
)


def main() -> None:
    """Run the command."""
    wheel, sdist = sys.argv[1:]
    wrong = [*wrong_in_wheel(wheel), *wrong_in_sdist(sdist)]
    sys.exit("\n".join(wrong) or 0)


def wrong_in_wheel(path: str) -> list[str]:
    """Return what a wheel lacks or has too much, compared with the files that git tracks."""
    with zipfile.ZipFile(path) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "cudnn_ct", "cudnn_ct_dnn", "cudnn_doctor"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    missing, extra = sorted(set(tracked) - inside), sorted(inside - set(tracked))
    return [f"the wheel lacks {name}" for name in missing] + [f"the wheel has {name}" for name in extra]


def wrong_in_sdist(path: str) -> list[str]:
    """Return which of the files that tests and packagers need an sdist lacks."""
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    return [f"the sdist lacks {name}" for name in NEEDED if name not in inside]


if __name__ == "__main__":
    main()
