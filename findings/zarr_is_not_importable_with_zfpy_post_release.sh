#!/usr/bin/env bash
# After an installation of zfpy 1.0.1.post0, neither numcodecs nor zarr can be imported, whether zfpy is used or not.
#
# Expected: imports that succeed, with the codec ZFPY or without it; zfpy is optional, and numcodecs names zfpy>=1.0.0 as the requirement of its
# extra. Seen with numcodecs 0.16.6, zarr 3.1.6, zfpy 1.0.1.post0 and NumPy 2.4.6: numcodecs converts each part of the version of zfpy to an
# integer while it is imported, and "post0" is none. The ValueError is not an ImportError, so that numcodecs does not skip the codec.
# pip chooses this version for "numcodecs[zfpy]", and reports no conflict. With zfpy 1.0.1 both packages can be imported. An environment in
# which another package installs zfpy loses all zarr files at once.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
imports() {
    "$work/venv/bin/python" - <<'PYTHON'
import importlib

seen = []
for name in ("zarr", "numcodecs"):
    try:
        importlib.import_module(name)
        seen.append("imported")
    except ValueError as error:
        seen.append(f"ValueError: {error}")
print("; ".join(seen))
PYTHON
}
"${pip[@]}" numpy==2.4.6 numcodecs==0.16.6 zarr==3.1.6
without=$(imports)
"${pip[@]}" zfpy==1.0.1
older=$(imports)
"${pip[@]}" zfpy==1.0.1.post0
newer=$(imports)
echo "without zfpy: $without"
echo "zfpy 1.0.1: $older"
echo "zfpy 1.0.1.post0: $newer"
message="ValueError: invalid literal for int() with base 10: 'post0'"
if [[ $without != "imported; imported" || $older != "imported; imported" || $newer != "$message; $message" ]]; then
    echo "the behaviour has changed" >&2
    exit 1
fi
echo "as described: a post-release of zfpy breaks both imports"
