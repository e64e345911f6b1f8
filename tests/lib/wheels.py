"""The installed wheel of cuDNN, and library folders of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudnn_doctor.read.find import CUDNN, CUDNN_STEPS, SearchContext, search

WHEEL = search(CUDNN, [step for step in CUDNN_STEPS if step[0] == "wheel"], SearchContext()).path
needs_cudnn = pytest.mark.skipif(WHEEL is None, reason="no cuDNN wheel is installed")
SEARCHED = ("LD_LIBRARY_PATH", "LD_PRELOAD")  # variables by which the linker may find another
# The library folders, separated by colons.
FOLDERS = [Path(folder) for folder in os.environ.get("CUDNN_CT_TEST_CUDNNS", "").split(":") if folder]
