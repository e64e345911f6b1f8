"""What the README says is what .ci/run does, and its examples are Python."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CI = ROOT / ".ci" / "run"

if not (README.is_file() and CI.is_file()):
    pytest.skip("README.md and .ci/run are not beside these tests", allow_module_level=True)

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def command(name: str) -> str:
    """The one shell command under ``<!-- command: name -->``."""
    blocks = re.findall(rf"<!-- command: {name} -->\n```sh\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0]).strip()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = CI.read_text()
    (reader,) = re.findall(r"^readme_test_command\(\) \{.*\}$", script, re.MULTILINE)
    shell = ["bash", "-euc", f"{reader}\nreadme_test_command"]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == command("tests")


def test_the_commands_install_and_run() -> None:
    assert re.fullmatch(
        r'python -m pip install -e "\.\[.*examples\]" && python -m pytest -n auto', command("tests")
    )
    assert command("quickstart").endswith("&& python examples/01_quickstart.py")
    assert (ROOT / "examples" / "01_quickstart.py").is_file()


def test_ci_is_a_valid_executable_script() -> None:
    subprocess.run(["bash", "-n", str(CI)], check=True)
    assert CI.stat().st_mode & 0o111
    assert "set -euo pipefail" in CI.read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_documents_are_python(document: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        ast.parse(block)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
