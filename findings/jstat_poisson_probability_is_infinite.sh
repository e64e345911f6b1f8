#!/usr/bin/env bash
# jStat's probability of 160 events of a Poisson process with 100 on average is infinite, also summed up to 160; that of 200 with 200 is NaN.
#
# Expected: 8e-9 and 0.99999999, and 0.028, as from SciPy, and as for up to 154 events with the mean 100. Seen with jStat 1.9.6 on Node.js 20 and SciPy
# 1.17.1: the density divides a power of the mean by a factorial, and the power overflows from 155 events with the mean 100 and from 134 with 200, the
# factorial at 171. The binomial distribution of a million trials, which is nearly the same, is NaN. A comparison of such a p-value with 0.05 is false,
# as if nothing were unusual. No error is raised. Counts of photons, of requests and of reads of genes have such means.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1
npm install --silent --no-audit --no-fund --ignore-scripts jstat@1.9.6
cat > poisson.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from "node:fs";
import module from "jstat";

const { jStat } = module;
console.log(`jStat ${JSON.parse(readFileSync("node_modules/jstat/package.json")).version}, Node.js ${process.version}`);
const pairs = [[154, 100], [155, 100], [160, 100], [133, 200], [134, 200], [200, 200], [3, 2]];
const rows = pairs.map(([k, mean]) => [k, mean, jStat.poisson.pdf(k, mean), jStat.poisson.cdf(k, mean), jStat.binomial.pdf(k, 1e6, mean / 1e6)]);
writeFileSync("rows.json", JSON.stringify(rows.map((row) => row.map(String))));
JAVASCRIPT
node poisson.mjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import math
import pathlib
import sys

import scipy.stats

described = {(155, 100): math.inf, (160, 100): math.inf, (134, 200): math.inf, (200, 200): math.nan}
changed = False
for row in json.loads(pathlib.Path("rows.json").read_text()):
    k, mean, density, total, binomial = (float("inf" if each == "Infinity" else each) for each in row)
    right, sum_ = float(scipy.stats.poisson.pmf(k, mean)), float(scipy.stats.poisson.cdf(k, mean))
    print(f"{k:.0f} events, mean {mean:.0f}: pdf {density:.4g} ({right:.4g}), cdf {total:.8g} ({sum_:.8g}); binomial.pdf {binomial:.4g}")
    changed |= k > 3 and not math.isnan(binomial)
    if (expected := described.get((k, mean))) is None:
        changed |= not (math.isclose(density, right, rel_tol=1e-6) and math.isclose(total, sum_, rel_tol=1e-6))
    else:
        changed |= str(density) != str(expected) or str(total) != str(expected)
if changed:
    sys.exit("the behaviour has changed")
print("as described: powers and factorials overflow")
PYTHON
