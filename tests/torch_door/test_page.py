"""The snippets of docs/pytorch.md, and those of other pages with PyTorch: its CPU build, and the fakes."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

import cudnn_ct as ct
from cudnn_ct.torch import serving
from tests import guides
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


def of_torch(page: str) -> list[str]:
    """Return the snippets of another page that need PyTorch."""
    return [one.code for one in guides.snippets(page) if one.needs == "torch"]


@pytest.mark.parametrize("page", [*filter(of_torch, [*guides.guides(), *guides.internals()])])
def test_names_of_torch_in_snippets_of_other_pages_exist(page: str) -> None:
    """These snippets need a GPU, where they run."""
    for code in of_torch(page):
        compile(code, page, "exec")
        for name in re.findall(r"\btorch((?:\.[a-zA-Z]\w*)+)", code):
            attrgetter(name[1:])(torch)


def test_snippet_of_the_readme_has_the_result_of_torch(door: FakeCudnn) -> None:
    (code,) = of_torch("README.md")
    y = "torch.from_dlpack(ct.conv(x, w, padding=1))"
    assert y in code
    code = code.replace(y, "torch.from_numpy(ct.conv(x, w, padding=1).numpy())").replace(".cuda()", "")
    exec(compile(code, "README.md", "exec"), {"ct": ct})


def test_snippet_of_recurrent_networks_moves_weights_from_and_to_torch(door: FakeCudnn) -> None:
    (code,) = of_torch("docs/rnn.md")
    names = {"rnn": ct.RNN("lstm", 32, 16, 3, direction="bidirectional")}
    exec(compile(code, "docs/rnn.md", "exec"), names)
