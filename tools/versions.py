"""Runs the tests that need no GPU against other versions of cuDNN, each from its wheel.

python tools/versions.py                           # all of VERSIONS, the tiers unit and lib: half an hour
python tools/versions.py 9.10.2 -- -q tests/lib    # one of them, and what pytest is to run

Each version is put into a virtual environment of its own, in front of what is installed here: nothing here
changes. It needs a package index, and 2 GB below $TMPDIR, which should be on the file system of the wheels.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("9.1.0", "9.10.2", "9.19.0", "9.27.0")
TIERS = ("-q", "tests/unit", "tests/lib")
# Asked in the environment of a version, so that no test runs against another one unnoticed.
ASK = "import cudnn_ct; print(cudnn_ct.version())"


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"by default {', '.join(VERSIONS)}")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    options, tests = parser.parse_args(given[:cut]), given[cut + 1 :] or list(TIERS)
    results = {version: run(version, tests) for version in options.versions or VERSIONS}
    for version, line in results.items():
        print(f"cuDNN {version}: {line or 'failed'}")
    return 0 if all(results.values()) else 1


def run(version: str, tests: list[str]) -> str:
    """Run tests against one version; return pytest's last line, empty where it failed."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cudnn-versions-") as folder:
        python = environment(Path(folder), version)
        environ = {name: value for name, value in os.environ.items() if name != "CUDNN_CT_LIBRARY"}
        found = subprocess.run([python, "-c", ASK], cwd=ROOT, env=environ, capture_output=True, text=True)
        major, minor, patch = map(int, version.split(".")[:3])
        if found.stdout.strip() != str(major * 10_000 + minor * 100 + patch):
            print(f"cuDNN {version} is not what is loaded: {found.stdout}{found.stderr}")
            return ""
        print(f"=== cuDNN {version}, after {time.monotonic() - begin:.0f} s", flush=True)
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *tests]
        tested = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        last = ""
        assert tested.stdout is not None
        for line in tested.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
        return last if tested.wait() == 0 else ""


def environment(folder: Path, version: str) -> Path:
    """Make a virtual environment with one cuDNN, and behind it all that is installed here; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "behind.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    cudnn = f"nvidia-cudnn-cu12=={version}.*"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--no-compile", "--target", site, cudnn], check=True)
    return folder / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main())
