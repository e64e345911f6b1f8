#!/usr/bin/env bash
# geolib's area of the square of one degree from 179.5 degrees east to 179.5 degrees west is 4448513 km2, and 12391 km2 for the same square elsewhere.
#
# Expected: the same area, because getPreciseDistance and getCenter take the shorter way between the same points. Seen with geolib 3.3.14 on
# Node.js 20, pyproj 3.7.2 and NumPy 2.4.6: getAreaOfPolygon takes the difference of longitudes as it is, so that the polygon is the rest of the belt around the
# earth. isPointInPolygon says that the centre that getCenter gives for the corners is outside, and that Greenwich is inside. Longitudes up to
# 180.5 are right. Fiji and Chukotka lie there. No error is raised.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pyproj==3.7.2
npm install --silent --no-audit --no-fund --ignore-scripts geolib@3.3.14
cat > area.cjs <<'JAVASCRIPT'
const { readFileSync, writeFileSync } = require("node:fs");
const geolib = require("geolib");

console.log(`geolib ${JSON.parse(readFileSync("node_modules/geolib/package.json")).version}, Node.js ${process.version}`);
const rows = [[0, 1], [179, 180], [179.5, 180.5], [179.5, -179.5], [-180.5, -179.5]].map(([west, east]) => {
  const corners = [[0, west], [0, east], [1, east], [1, west]].map(([latitude, longitude]) => ({ latitude, longitude }));
  const centre = geolib.getCenter(corners);
  return {
    west,
    east,
    area: geolib.getAreaOfPolygon(corners),
    centre: [centre.longitude, centre.latitude],
    inside: geolib.isPointInPolygon(centre, corners),
    greenwich: geolib.isPointInPolygon({ latitude: 0.5, longitude: 0 }, corners),
    width: geolib.getPreciseDistance(corners[0], corners[1]),
  };
});
writeFileSync("rows.json", JSON.stringify(rows));
JAVASCRIPT
node area.cjs
"$work/venv/bin/python" - <<'PYTHON'
import json
import pathlib
import sys

import pyproj

earth = pyproj.Geod(ellps="WGS84")
changed = False
for row in json.loads(pathlib.Path("rows.json").read_text()):
    west, east = row["west"], row["east"]
    right = abs(earth.polygon_area_perimeter([west, east, east, west], [0, 0, 1, 1])[0])
    ratio = row["area"] / right
    print(f"{west} to {east} degrees: area {row['area'] / 1e6:.0f} km2, pyproj {right / 1e6:.0f} km2, width {row['width']} m", end="; ")
    print(f"centre {row['centre']} inside: {row['inside']}, Greenwich inside: {row['greenwich']}")
    crossing = (west, east) == (179.5, -179.5)
    changed |= not 0.99 < ratio / (359 if crossing else 1) < 1.02 or abs(row["width"] - 111319) > 2
    changed |= crossing and (row["inside"] or not row["greenwich"] or abs(abs(row["centre"][0]) - 180) > 1e-6)
    changed |= not crossing and row["greenwich"] and west != 0
if changed:
    sys.exit("the behaviour has changed")
print("as described: the area is that of the rest of the belt")
PYTHON
