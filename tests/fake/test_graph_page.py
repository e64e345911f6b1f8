"""Every snippet of two pages runs, one after another, on the fakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .cudnn import FakeCudnn

DOCS = Path(__file__).resolve().parents[2] / "docs"

if not DOCS.is_dir():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)


@pytest.mark.parametrize("page", [DOCS / "graph.md", DOCS / "causal-conv.md"], ids=lambda page: page.stem)
def test_snippets_of_the_page_run_and_print_what_they_say(
    fake: FakeCudnn, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    fake.engines = True
    names: dict[str, Any] = {}
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        before = "\n" * text[: match.start(1)].count("\n")  # so that errors have the line of the page
        exec(compile(before + match[1], str(page), "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        for line in re.findall(r"print\(.*\)  # (.*)", match[1]):
            assert any(one.startswith(line.partition(":")[0]) for one in printed), line
    names.clear()
