#!/usr/bin/env bash
# CommPy's raised cosine filters of an odd length are half a sample late, and have no sample at their peak.
#
# Expected: a symmetric filter with its peak on the middle sample, as texts on filters of linear phase have it
# for an odd length; N is the length in samples, and the docstring says nothing of even and odd. Seen with
# CommPy 0.8.0, SciPy 1.17.1 and NumPy 2.4.1 on Linux: the time of sample n is (n - N / 2) / Fs in place of
# (n - (N - 1) / 2) / Fs. rcosfilter of 65 samples for 4 samples per symbol is 0.97 in place of 1 in the
# middle, and lets 13 percent of a symbol into its neighbours, for which it should be 0. The two root
# filters of a sender and a receiver delay by 65 samples in place of 64, and a receiver that counts on N - 1
# has 31 percent. The Gaussian filter is shifted, too. Filters of an even length are longer by one sample
# before the peak than after it, and right otherwise. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
    numpy==2.4.1 scipy==1.17.1 sympy==1.14.0 matplotlib==3.10.8 scikit-commpy==0.8.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
from commpy.filters import gaussianfilter, rcosfilter, rrcosfilter

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("scikit-commpy", "scipy", "numpy")))
rate, alpha = 4, 0.35


def raised_cosine(t):
    return np.sinc(t) * np.cos(np.pi * alpha * t) / (1 - (2 * alpha * t) ** 2)


def leak(h, middle):
    return max(abs(h[middle + k * rate] / h[middle]) for k in (-3, -2, -1, 1, 2, 3))


changed = False
for count in (64, 65, 101, 102):
    times, own = rcosfilter(count, alpha, 1, rate)
    middle = count // 2
    right = raised_cosine((np.arange(count) - middle) / rate)
    roots = rrcosfilter(count, alpha, 1, rate)[1]
    gauss = gaussianfilter(count, 0.5, 1, rate)[1]
    pair = np.convolve(roots, roots)
    print(f"{count} samples: nearest time to 0 {np.abs(times).min():.4f}, middle {own[middle]:.4f}, leak {leak(own, middle):.4f},", end=" ")
    print(f"right {leak(right, middle):.4f};")
    print(f"    two root filters: leak {leak(pair, count - 1):.4f} with delay {count - 1}, {leak(pair, count):.4f} with delay {count}", end="; ")
    print(f"Gaussian about its middle {np.round(gauss[middle - 1 : middle + 2], 3).tolist()}")
    changed |= not np.allclose(own, raised_cosine((np.arange(count) - count / 2) / rate), atol=1e-9)
    changed |= leak(right, middle) > 1e-9 or leak(pair, count) > 0.01
    odd = count % 2 == 1
    changed |= odd != (leak(own, middle) > 0.1) or odd and leak(pair, count - 1) < 0.1 or odd != (own[middle] < 0.99)
    changed |= odd == np.isclose(gauss[middle - 1], gauss[middle + 1]) or odd != np.isclose(gauss[middle], gauss[middle + 1])
if changed:
    sys.exit("the behaviour has changed")
print("as described: no sample is at the peak")
PYTHON
