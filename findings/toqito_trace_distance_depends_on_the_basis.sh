#!/usr/bin/env bash
# The trace distance of toqito takes the absolute value of each element of a matrix in place of that of the matrix.
#
# Expected: half of the sum of the absolute eigenvalues of the difference, as the docstring has it, and one
# distance in all bases. Seen with toqito 1.1.8, SciPy 1.17.1 and NumPy 2.4.1 on Linux: the distance of the
# states 0 and + of a qubit is 0.5 in place of 0.7071, and 0.7071 after a rotation of both states by the same
# angle. helstrom_holevo of the same module, which is one half plus half of the distance, is right.
# hilbert_schmidt, too, takes another norm than its docstring names: the largest singular value, so that the
# distance of the states 0 and 1 is 1 in place of 2. Two states seem closer than their best
# measurement tells. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.1 scipy==1.17.1 cvxpy==1.9.0 PICOS==2.6.2 toqito==1.1.8
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import scipy.linalg
from toqito.state_metrics import helstrom_holevo, hilbert_schmidt, trace_distance

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("toqito", "scipy", "numpy")))


def pure(angle):
    vector = np.array([[np.cos(angle)], [np.sin(angle)]])
    return vector @ vector.T


def right(a, b):
    return scipy.linalg.svdvals(a - b).sum() / 2


quarter = np.pi / 4
generator = np.random.default_rng(0)
mixed = []
for _ in range(2):
    matrix = generator.normal(size=(4, 4)) + 1j * generator.normal(size=(4, 4))
    matrix = matrix @ matrix.conj().T
    mixed.append(matrix / np.trace(matrix).real)
cases = {
    "states 0 and +": (pure(0), pure(quarter), 0.5, 0.5),
    "the same states turned": (pure(quarter / 2), pure(-quarter / 2), np.sqrt(0.5), 0.5),
    "states 0 and 1": (pure(0), pure(2 * quarter), 1, 1),
    "mixed states of two qubits": (*mixed, 0.435851, 0.202309),
}
changed = False
for name, (a, b, distance, square) in cases.items():
    seen, bound, schmidt = (float(np.real(f(a, b))) for f in (trace_distance, helstrom_holevo, hilbert_schmidt))
    print(f"{name}: trace_distance {seen:.6f}, right {right(a, b):.6f}, 2 * helstrom_holevo - 1 {2 * bound - 1:.6f};")
    print(f"    hilbert_schmidt {schmidt:.6f}, right {np.trace((a - b) @ (a - b)).real:.6f}")
    changed |= not np.allclose([seen, schmidt], [distance, square], atol=1e-5)
    changed |= not np.isclose(seen, scipy.linalg.svdvals(np.abs(a - b)).sum() / 2)
    changed |= not np.isclose(schmidt, scipy.linalg.svdvals(a - b).max() ** 2) or not np.isclose(2 * bound - 1, right(a, b))
if changed:
    sys.exit("the behaviour has changed")
print("as described: the distance depends on the basis")
PYTHON
