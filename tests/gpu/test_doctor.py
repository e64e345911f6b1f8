"""The doctor on a machine with a GPU: findings about the driver, the GPU, and a cuDNN handle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct
import cudnn_doctor as doctor
from cudnn_ct import _lib
from cudnn_doctor import main


def test_diagnose_finds_no_errors_on_a_working_machine() -> None:
    found = doctor.diagnose(asked=doctor.Requirements(gpu=True))
    errors = [each.message for each in found.findings if each.severity == doctor.Severity.ERROR]
    assert errors == []
    devices = found.details["driver"]["devices"]
    assert devices
    assert all(device["arch"] >= 75 and device["free"] for device in devices)
    assert found.details["driver"]["cuda"] >= 12000


def test_doctor_passes_when_a_gpu_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main(["--require-driver", "--require-gpu", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == told["exit_code"] == 0
    assert told["tiers"] == dict.fromkeys(("static", "child", "driver"), "done")
    assert not {"no-driver", "no-gpu", "create-failed"} & {each["code"] for each in told["findings"]}
    assert told["details"]["child"]["libcuda"] == "driver"


def test_here_finds_no_errors_in_a_working_process() -> None:
    x = ct.asarray(np.ones((1, 2, 3, 3), np.float32))
    ct.conv(x, ct.asarray(np.ones((1, 2, 1, 1), np.float32))).numpy()
    for found in (doctor.here(), doctor.diagnose_process(os.getpid())):
        assert not [each.message for each in found.findings if each.severity == doctor.Severity.ERROR]
        assert found.sets[0].folder == str(Path(_lib.load().path).parent)
