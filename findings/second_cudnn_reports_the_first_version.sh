#!/usr/bin/env bash
# Two cuDNN libraries of different versions, opened by their full paths in one process, report one version.
#
# Expected: each libcudnn.so.9 reports the version of its own folder. Seen with the wheels nvidia-cudnn-jit-cu12 9.20.0.48 and
# 9.27.0.42 (x86-64 Linux, no GPU): the second one reports the version of the first, because the graph library that holds the answer
# is already loaded under the same SONAME. The order decides which version both report.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" --target "$work/old" nvidia-cudnn-jit-cu12==9.20.0.48
"${pip[@]}" --target "$work/new" nvidia-cudnn-jit-cu12==9.27.0.42
cat >"$work/versions.py" <<'PYTHON'
import ctypes
import sys

for folder in sys.argv[1:]:
    library = ctypes.CDLL(f"{folder}/nvidia/cudnn_jit/lib/libcudnn.so.9")
    library.cudnnGetVersion.restype = ctypes.c_size_t
    print(library.cudnnGetVersion())
PYTHON
run() { "$work/venv/bin/python" "$work/versions.py" "$@" | xargs; }
alone_old=$(run "$work/old") alone_new=$(run "$work/new")
old_first=$(run "$work/old" "$work/new") new_first=$(run "$work/new" "$work/old")
printf 'alone: %s and %s\nold, then new: %s\nnew, then old: %s\n' "$alone_old" "$alone_new" "$old_first" "$new_first"
[ "$alone_old" = 92000 ] && [ "$alone_new" = 92700 ] || { echo "the libraries have other versions"; exit 1; }
[ "$old_first" = "92000 92000" ] && [ "$new_first" = "92700 92700" ] || { echo "the behaviour has changed"; exit 1; }
echo "as described: the second library reports the version of the first"
