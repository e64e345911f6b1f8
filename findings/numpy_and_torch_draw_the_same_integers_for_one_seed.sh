#!/usr/bin/env bash
# np.random.seed(0) and torch.manual_seed(0) are one generator: both libraries draw the same random integers below 2, 16, 256 or 65536.
#
# Expected: independent numbers, because the libraries have different algorithms for floats, permutations and bounds, and one seed for all
# libraries is usual. Seen with torch 2.13.0 and NumPy 2.4.6 (CPU, x86-64 Linux) on 2026-11-30: both use the Mersenne twister, initialize it
# from an integer by the same formula and take the lowest bits of each 32-bit number, so that integers below a power of two are equal for
# every seed, in np.random.randint, np.random.choice of two elements, RandomState, torch.randint and random_. Integers below 10, floats,
# normal numbers and permutations differ, and so does np.random.default_rng. With labels from NumPy and a mask from PyTorch, the mask keeps
# the examples of one class. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import torch

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy")))
count = 1000
changed = False


def draw(numpy_function, torch_function, seed):
    """Return the numbers of both libraries after the same seed."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    return np.asarray(numpy_function()), torch_function().numpy()


for low, high in ((0, 2), (-8, 8), (0, 256), (0, 65536), (0, 10)):
    equal = []
    for seed in range(20):
        first, second = draw(lambda: np.random.randint(low, high, count), lambda: torch.randint(low, high, (count,)), seed)
        equal.append(np.mean(first == second))
    print(f"integers from {low} to {high - 1}: {min(equal):.0%} to {max(equal):.0%} are equal; {first[:4].tolist()} and {second[:4].tolist()}")
    changed |= min(equal) < 1 if high != 10 else max(equal) > 0.5
first, second = draw(lambda: np.random.choice([0, 1], count), lambda: torch.empty(count, dtype=torch.int64).random_(0, 2), 5)
print(f"choice and random_: {np.mean(first == second):.0%} are equal")
changed |= not np.array_equal(first, second)
pairs = {
    "uniform": (lambda: np.random.rand(count), lambda: torch.rand(count, dtype=torch.float64)),
    "normal": (lambda: np.random.randn(count), lambda: torch.randn(count, dtype=torch.float64)),
    "permutation": (lambda: np.random.permutation(count), lambda: torch.randperm(count)),
    "default_rng": (lambda: np.random.default_rng(0).integers(0, 2, count), lambda: torch.randint(0, 2, (count,))),
}
for name, functions in pairs.items():
    correlation = np.corrcoef(*draw(*functions, 0))[0, 1]
    print(f"{name}: correlation {correlation:.3f}")
    changed |= abs(correlation) > 0.2
labels, mask = draw(lambda: np.random.randint(0, 2, count), lambda: torch.randint(0, 2, (count,)).bool(), 0)
print(f"classes of {count} labels: {sorted(set(labels.tolist()))}; of those under the mask: {sorted(set(labels[mask].tolist()))}")
changed |= set(labels[mask].tolist()) != {1}
if changed:
    sys.exit("the behaviour has changed")
print("as described: the mask is the labels")
PYTHON
