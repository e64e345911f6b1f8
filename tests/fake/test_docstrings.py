"""The examples of what needs a device, and the first page of the documentation, on the fakes."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
from tests.docstrings import all_examples, run

from .cudnn import FakeCudnn

GETTING_STARTED = Path(__file__).resolve().parents[2] / "docs" / "getting-started.md"


@pytest.mark.parametrize("test", all_examples(), ids=lambda test: test.name)
def test_docstring_example_runs_on_the_fakes(fake: FakeCudnn, test: doctest.DocTest) -> None:
    fake.engines = "attention" in test.name  # a graph, which no legacy call replaces
    run(test)


@pytest.mark.skipif(not GETTING_STARTED.is_file(), reason="docs is not beside these tests")
def test_getting_started_page_runs(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct, "available", lambda: True)
    blocks = re.findall(r"```python\n(.*?)```", GETTING_STARTED.read_text(), re.DOTALL)
    code = "".join(blocks).replace("32, 32", "6, 6").replace("range(20)", "range(3)")  # a fake is slow
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["plan"].candidate.rejected == ""
