"""Every snippet of docs/graph.md runs, one after another, on the fakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .cudnn import FakeCudnn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graph.md"

if not PAGE.is_file():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)


def test_snippets_of_the_page_run_and_print_what_they_say(
    fake: FakeCudnn, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.engines = True
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        before = "\n" * text[: match.start(1)].count("\n")  # so that errors have the line of the page
        exec(compile(before + match[1], str(PAGE), "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        for line in re.findall(r"print\(.*\)  # (.*)", match[1]):
            assert any(one.startswith(line.partition(":")[0]) for one in printed), line
    names.clear()
