"""The doctor on a machine with a GPU: what it says of the driver, the GPU, and a handle of cuDNN."""

from __future__ import annotations

from cudnn_ct import doctor


def test_a_machine_that_computes_has_no_errors() -> None:
    found = doctor.diagnose(asked=doctor.Demands(gpu=True))
    errors = [each.message for each in found.findings if each.severity == doctor.Severity.ERROR]
    assert errors == []
    devices = found.details["driver"]["devices"]
    assert devices
    assert all(device["arch"] >= 75 and device["free"] for device in devices)
    assert found.details["driver"]["cuda"] >= 12000
