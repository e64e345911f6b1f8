#!/usr/bin/env bash
# Turf's standard deviational ellipse of four points along a line has a major semi-axis of 0.04 and a minor semi-axis of 1.58.
#
# Expected: the major axis is the longer one, as the word says and as the square root of twice the largest eigenvalue of the covariance is. Seen with Turf
# 7.4.0 on Node.js 20 and NumPy 2.4.6, for lines in all directions: the two are swapped, while the angle, clockwise from north, and the polygon that is
# returned are those of the longer one. Elongation, the ratio of both, which tells a street from a crowd, becomes its inverse. No
# error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6
npm install --silent --no-audit --no-fund --ignore-scripts @turf/turf@7.4.0
cat > ellipse.mjs <<'JAVASCRIPT'
import { readFileSync, writeFileSync } from "node:fs";
import * as turf from "@turf/turf";

console.log(`Turf ${JSON.parse(readFileSync("node_modules/@turf/turf/package.json")).version}, Node.js ${process.version}`);
const clouds = [
  [[0, 0], [1, 0], [2, 0], [3, 0.1]],
  [[0, 0], [0, 1], [0, 2], [0.1, 3]],
  [[0, 0], [1, 1], [2, 2], [3, 3.1]],
  [[0, 0], [10, 1], [20, -1], [30, 0]],
];
const rows = clouds.map((points) => {
  const ellipse = turf.standardDeviationalEllipse(turf.points(points));
  const { semiMajorAxis, semiMinorAxis, angle } = ellipse.properties.standardDeviationalEllipse;
  return { points, semiMajorAxis, semiMinorAxis, angle, polygon: ellipse.geometry.coordinates[0] };
});
writeFileSync("rows.json", JSON.stringify(rows));
JAVASCRIPT
node ellipse.mjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import sys

import numpy as np

changed = False
for row in json.loads(pathlib.Path("rows.json").read_text()):
    points = np.array(row["points"])
    values, vectors = np.linalg.eigh(np.cov(points.T, bias=True))
    short, long = np.sqrt(2 * values)
    direction = np.degrees(np.arctan2(vectors[0, 1], vectors[1, 1])) % 180
    outline = np.array(row["polygon"]) - points.mean(0)
    extent = np.linalg.norm(outline, axis=1)
    print(f"{row['points']}: semiMajorAxis {row['semiMajorAxis']:.4f}, semiMinorAxis {row['semiMinorAxis']:.4f}, angle {row['angle']:.2f}", end="; ")
    print(f"by eigenvalues {long:.4f} and {short:.4f} at {direction:.2f} degrees; polygon from {extent.min():.4f} to {extent.max():.4f}")
    changed |= not np.isclose(row["semiMinorAxis"], long, rtol=1e-2) or not np.isclose(row["semiMajorAxis"], short, rtol=2e-2)
    changed |= abs((row["angle"] - direction + 90) % 180 - 90) > 0.1
if changed:
    sys.exit("the behaviour has changed")
print("as described: the names of the axes are swapped")
PYTHON
