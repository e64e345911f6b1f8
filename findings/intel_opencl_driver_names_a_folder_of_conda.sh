#!/usr/bin/env bash
# After an installation of dpnp with its OpenCL driver for CPUs, there is no device: the driver's file in the wheel names a folder of conda.
#
# Expected: one device, the CPU, because the wheels of dpnp require intel-opencl-rt, the driver that runs SYCL on it, and dpnp.arange uses the default
# device. Seen with dpnp 0.20.0, dpctl 0.22.1 and intel-opencl-rt 2026.2.0 (x86-64 Linux, no other OpenCL) on 2026-11-30:
# dpctl.get_devices() is empty, and dpnp.arange raises SyclDeviceCreationError. The wheel has etc/OpenCL/vendors/intel-cpu.icd, whose
# text is a placeholder that conda replaces while it installs and pip does not, and the loader does not look into that folder either.
# OCL_ICD_FILENAMES with the path of libintelocl.so is enough. A program that falls back to NumPy without a device never uses dpnp, and no
# message names the reason.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 dpnp==0.20.0 dpctl==0.22.1 intel-opencl-rt==2026.2.0
cat >"$work/devices.py" <<'PYTHON'
import importlib.metadata
import sys
from pathlib import Path

import dpctl

names = ("dpnp", "dpctl", "intel-opencl-rt")
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in names))
driver = Path(sys.prefix, "etc/OpenCL/vendors/intel-cpu.icd").read_text().strip()
print(f"the driver file names {driver}; it exists: {Path(driver).exists()}")
print("OpenCL CPU devices:", len(dpctl.get_devices(backend="opencl", device_type="cpu")))
try:
    import dpnp

    print("arange:", dpnp.arange(3).asnumpy().tolist())
except dpctl.SyclDeviceCreationError as error:
    print("arange:", type(error).__name__)
PYTHON
plain=$(env -u OCL_ICD_FILENAMES "$work/venv/bin/python" "$work/devices.py")
named=$(OCL_ICD_FILENAMES="$work/venv/lib/libintelocl.so" "$work/venv/bin/python" "$work/devices.py")
printf 'as installed:\n%s\nwith OCL_ICD_FILENAMES:\n%s\n' "$plain" "$named"
fails() { echo "the behaviour has changed"; exit 1; }
case $plain in *conda*"exists: False"*"devices: 0"*"arange: SyclDeviceCreationError") ;; *) fails ;; esac
case $named in *conda*"exists: False"*"devices: 1"*"arange: [0, 1, 2]") ;; *) fails ;; esac
echo "as described: the driver is found only if its path is named"
