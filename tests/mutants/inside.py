"""Pytest plugin of a run with a mutant: check that the copy is tested, and write down the first failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

KILLER = "CUDNN_CT_MUTANTS_KILLER"  # a file, for the name of the test that failed


def pytest_collection_finish(session: Any) -> None:
    import cudnn_ct

    where = Path(cudnn_ct.__file__).parent
    assert where == session.config.rootpath / "cudnn_ct", f"{where} is tested in place of the copy"


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        Path(os.environ[KILLER]).write_text(report.nodeid)
