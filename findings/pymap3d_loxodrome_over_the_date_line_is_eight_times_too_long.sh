#!/usr/bin/env bash
# pymap3d's loxodrome from 170 degrees east to 170 degrees west at the latitude 10 is 17542 km to the west; along the parallel to the east it is 2193 km.
#
# Expected: the shorter way, as from Matlab's distance with "rh", which the documentation names, and as for 170 to 190 degrees. Seen with pymap3d 3.2.0, pyproj 3.7.2
# and NumPy 2.4.6 on Linux: loxodrome_inverse does not bring the difference of longitudes into half a turn, so that all lines over the Pacific are the
# long way, and the one between 179 and -179 degrees goes around the world. Half a turn along a parallel has the length 0. pymap3d's
# vdist, for the shortest line, is right over the date line. No warning is given.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 pyproj==3.7.2 pymap3d==3.2.0
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import math
import sys

import pyproj
from pymap3d.lox import loxodrome_inverse
from pymap3d.vincenty import vdist

print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pymap3d", "pyproj", "numpy")))
earth = pyproj.Geod(ellps="WGS84")


def mercator(latitude):
    """Return the isometric latitude on the ellipsoid."""
    e, sine = math.sqrt(earth.es), math.sin(math.radians(latitude))
    return math.atanh(sine) - e * math.atanh(e * sine)


def loxodrome(lat1, lon1, lat2, lon2):
    """Return length and azimuth of the shorter loxodrome, summed from short geodesics for oblique ones."""
    turn = math.radians((lon2 - lon1 + 180) % 360 - 180)
    if lat1 == lat2:
        sine = math.sin(math.radians(lat1))
        return abs(turn) * earth.a * math.cos(math.radians(lat1)) / math.sqrt(1 - earth.es * sine**2), 90 if turn > 0 else 270
    azimuth = math.atan2(turn, mercator(lat2) - mercator(lat1))
    meridian = earth.inv(0, lat1, 0, lat2)[2]
    return meridian / abs(math.cos(azimuth)), math.degrees(azimuth) % 360


changed = False
rows = (
    ((10, 170, 10, 190), (2192787, 90)),
    ((10, 170, 10, -170), (17542298, 270)),
    ((0.5, 179, 1, -179), (39850000, 270.1)),
    ((35, 140, 37, -122), (23621454, 270.5)),
    ((40, -80, 65, -148), (5248666, 302)),
    ((45, 0, 45, 180), (0, 90)),
)
for points, (described, azimuth) in rows:
    seen = [float(number) for number in loxodrome_inverse(*points)]
    right = loxodrome(*points)
    shortest = float(vdist(*points)[0])
    print(f"{points}: {seen[0]:.0f} m at {seen[1]:.1f} degrees; shorter loxodrome {right[0]:.0f} m at {right[1]:.1f}; shortest line {shortest:.0f} m")
    changed |= abs(seen[0] - described) > 10000 or abs(seen[1] - azimuth) > 0.2
    changed |= points[0] == 40 and abs(seen[0] - right[0]) > 10 or shortest > right[0] + 1
if changed:
    sys.exit("the behaviour has changed")
print("as described: the difference of longitudes is not reduced")
PYTHON
