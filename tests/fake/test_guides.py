"""The guides with snippets that need a GPU, on the fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

import cudnn_ct as ct

from .cudnn import FakeCudnn

if not (Path(__file__).resolve().parents[2] / "mkdocs.yml").is_file():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)

from tests import guides

PAGES = [page for page in guides.guides() if any(one.needs == "a GPU" for one in guides.snippets(page))]


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run_on_the_fakes(
    page: str, fake: FakeCudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.engines = True
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ct.config, "algo_cache", str(tmp_path))
    assert guides.run(page, {"torch"}, on_shapes=False)
