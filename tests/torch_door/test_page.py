"""Every snippet of docs/pytorch.md runs, one after another, on the fakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cudnn_ct.torch import serving
from tests.fake.cudnn import FakeCudnn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"

if not PAGE.is_file():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)


def test_first_snippet_of_the_page_needs_no_device() -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    exec(compile(first, str(PAGE), "exec"), {})


def test_snippets_of_the_page_run(
    door: FakeCudnn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        before = "\n" * text[: match.start(1)].count("\n")  # so that errors have the line of the page
        exec(compile(before + match[1].replace('"cuda"', '"cpu"'), str(PAGE), "exec"), names)
    assert "served  conv: 1\n" in capsys.readouterr().out
    torch._dynamo.reset()
