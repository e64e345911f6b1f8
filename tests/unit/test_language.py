"""Words that readers cannot look up are absent from sources, tests and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cudnn_ct

ROOT = Path(__file__).parents[2]
PACKAGE = Path(cudnn_ct.__file__).parent  # not below ROOT in a wheel
ROOTS = ("tests", "docs", "examples", "benchmarks", "tools", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")

WORDS = ("seam", "dice", "ruler", "hopeless", "gapless", "anew", "quickest")
WORDS += ("half types", "pass forward", "as they lie")
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b".replace(" ", r"\s+"), re.IGNORECASE)


def test_sources_have_no_private_words() -> None:
    found = private_words()
    assert not found, "replace these words; the terms of the CUDA, cuDNN and PyTorch documentation are known"


@pytest.mark.parametrize("text", ["the quickest engine", "Half types", "a pass\n    forward", "# the dice."])
def test_pattern_finds_private_words(text: str) -> None:
    assert PATTERN.search(text)


@pytest.mark.parametrize("text", ["indices", "half precision", "seamless", "forward pass"])
def test_pattern_ignores_other_words(text: str) -> None:
    assert not PATTERN.search(text)


def private_words() -> dict[str, list[str]]:
    """Return the private words of each file that has any, by its path."""
    found = {str(path): PATTERN.findall(path.read_text("utf-8")) for path in files()}
    return {name: words for name, words in found.items() if words}


def files() -> list[Path]:
    packages = [PACKAGE.with_name(name) for name in ("cudnn_ct", "cudnn_ct_dnn", "cudnn_doctor")]
    paths = [*packages, *(ROOT / name for name in ROOTS)]
    inner = [file for path in paths for suffix in ("py", "md") for file in path.rglob(f"*.{suffix}")]
    texts = [*inner, *(path for path in paths if path.is_file())]
    return [path for path in texts if path.name != Path(__file__).name]
