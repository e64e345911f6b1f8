#!/usr/bin/env bash
# ml-matrix's solution by SVD of two equations with three unknowns is [NaN, NaN, NaN], and so are the linear dependencies of four vectors in a plane.
#
# Expected: the shortest solution, [-1/18, 1/9, 5/18], as from pseudoInverse of the same library, which uses the same decomposition, and as for singular square
# matrices. Seen with ml-matrix 6.15.1 on Node.js 20 and NumPy 2.4.6: for more columns than rows the decomposition has singular values that are 0,
# and its solve divides by them, 0 / 0. linearDependencies solves such systems, and is right for at most one vector more than
# dimensions. The number of elements is right. Only advice to enable autoTranspose, which solve does not offer, is printed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6
npm install --silent --no-audit --no-fund --ignore-scripts ml-matrix@6.15.1
cat > solve.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from "node:fs";
import { Matrix, linearDependencies, pseudoInverse, solve } from "ml-matrix";

console.log(`ml-matrix ${JSON.parse(readFileSync("node_modules/ml-matrix/package.json")).version}, Node.js ${process.version}`);
const systems = [
  [[[1, 2, 3], [4, 5, 6]], [1, 2]],
  [[[1, 1]], [2]],
  [[[1, 2], [2, 4]], [1, 2]],
  [[[1, 2], [3, 4], [5, 6]], [1, 2, 4]],
];
const rows = systems.map(([a, b]) => {
  const right = Matrix.columnVector(b);
  const solution = solve(new Matrix(a), right, true).to1DArray();
  return { a, b, solution, inverse: pseudoInverse(new Matrix(a)).mmul(right).to1DArray() };
});
const three = linearDependencies(new Matrix([[1, 0], [0, 1], [1, 1]])).to2DArray();
const four = linearDependencies(new Matrix([[1, 0], [0, 1], [1, 1], [2, 1]])).to2DArray();
writeFileSync("rows.json", JSON.stringify({ rows, three, four }));
JAVASCRIPT
node solve.mjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import sys

import numpy as np

results = json.loads(pathlib.Path("rows.json").read_text())
changed = False
for row in results["rows"]:
    a, b = np.array(row["a"], float), np.array(row["b"], float)
    right = np.linalg.lstsq(a, b)[0]
    seen = np.array(row["solution"], float)  # null in JSON is NaN
    print(f"{a.tolist()} x = {b.tolist()}: solve {seen.round(6).tolist()}", end=", ")
    print(f"pseudoInverse {np.round(row['inverse'], 6).tolist()}, NumPy {right.round(6).tolist()}")
    wide = a.shape[1] > a.shape[0]
    changed |= len(seen) != len(right) or not np.allclose(row["inverse"], right, atol=1e-9)
    changed |= not (np.isnan(seen).all() if wide else np.allclose(seen, right, atol=1e-9))
three, four = np.array(results["three"], float), np.array(results["four"], float)
print(f"dependencies of three vectors {three.round(6).tolist()}, of four {four.tolist()}")
changed |= not np.allclose(three, [[0, -1, 1], [-1, 0, 1], [1, 1, 0]]) or not np.isnan(four[~np.eye(4, dtype=bool)]).all()
if changed:
    sys.exit("the behaviour has changed")
print("as described: solutions of wide systems are not numbers")
PYTHON
