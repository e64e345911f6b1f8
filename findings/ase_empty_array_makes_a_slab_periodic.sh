#!/usr/bin/env bash
# A file of ASE with an empty array in its info loses the periodicity: a slab, periodic along two axes, is read as a crystal.
#
# Expected: Atoms.info and Atoms.pbc as written, as for an empty list, which returns as an empty array. Seen with ase 3.29.0 and NumPy 2.4.6 on 2026-11-30:
# the extended XYZ writer writes "m= pbc="T T F"" for an empty array named m, and the reader takes the text behind the sign as the value of m: info is
# {'m': 'pbc=T T F'}, and pbc is the default for files with a cell, periodic along all axes. The entry that follows the array is lost in the same way
# if the array is not last. No warning is given. Models of atoms are trained on such files; an atom then has neighbours across the vacuum,
# if the vacuum is narrower than the cutoff.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps ase==3.29.0
WORK="$work" "$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import os
import sys

import ase.io
import numpy as np

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ase", "numpy")))
path = os.path.join(os.environ["WORK"], "slab.xyz")
same = True
cases = {
    "no entry": ({}, [True, True, False], {}),
    "an empty list": ({"m": []}, [True, True, False], {"m": []}),
    "an array of two": ({"m": np.array([1.5, 2.5])}, [True, True, False], {"m": [1.5, 2.5]}),
    "an empty array": ({"m": np.zeros(0)}, [True, True, True], {"m": "pbc=T T F"}),
    "an empty array before a number": ({"m": np.zeros(0), "n": 7}, [True, True, False], {"m": "n=7"}),
}
for name, (info, pbc, expected) in cases.items():
    slab = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 1]], cell=[5, 5, 9], pbc=[True, True, False], info=info)
    ase.io.write(path, slab, format="extxyz")
    read = ase.io.read(path)
    seen = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in read.info.items()}
    print(f"{name}: pbc {read.pbc.tolist()}, info {seen}")
    same &= read.pbc.tolist() == pbc and seen == expected
if not same:
    sys.exit("the behaviour has changed")
print("as described: an empty array swallows the next entry")
PYTHON
