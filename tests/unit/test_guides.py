"""README.md and the guides: their code runs as pasted, jobs of CI can be read, and pages are short."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import cudnn_ct as ct
from tests.processes import ROOT, output_of

if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)

from tests import guides

PAGES = guides.guides()
each_page = pytest.mark.parametrize("page", PAGES)

WORDS_OF_README, WORDS_OF_GUIDES = 900, 30_000
COLUMN = 84  # characters of code that the site shows without scrolling


def run(page: str, folder: Path, *options: str) -> str:
    """Run the snippets of a page in a new process; return its output."""
    return output_of(*options, "-m", "tests.guides", page, cwd=folder, CUDNN_CT_ALGO_CACHE="off")


@each_page
def test_snippets_run_as_pasted(page: str, tmp_path: Path) -> None:
    """Without a GPU on shapes, except the first snippet, which runs as it is."""
    assert int(run(page, tmp_path, "-W", "error")) > 0, "the page has no snippet"


def test_graphs_of_the_guide_need_no_cudnn_on_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_CT_LIBRARY", str(tmp_path / "missing"))
    assert int(run("docs/graph.md", tmp_path)) > 10


@pytest.mark.parametrize("page", guides.internals())
def test_snippets_of_other_pages_run_as_pasted(page: str, tmp_path: Path) -> None:
    """Without a GPU on shapes, except those that need more, which are compiled."""
    run(page, tmp_path, "-W", "error")


@pytest.mark.parametrize("page", guides.others())
def test_snippets_about_other_libraries_run_as_pasted(page: str, tmp_path: Path) -> None:
    """If the environment has the library and what that needs; elsewhere they are compiled."""
    assert {one.needs for one in guides.snippets(page)} - {""} <= guides.NEEDS.keys()
    run(page, tmp_path)


@pytest.mark.parametrize("page", [*PAGES, *guides.others()])
def test_page_opens_with_code_that_needs_no_device(page: str) -> None:
    assert guides.snippets(page)[0].needs == ("jax" if page == "docs/jax.md" else "")


def test_ci_runs_the_pages_of_jax_and_pytorch() -> None:
    """With JAX and PyTorch for CPUs, in environments of their own."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for folder, page in (("jax_door", "tests/unit/test_guides.py"), ("torch_door", "")):
        ((name, command),) = re.findall(
            rf"(door_to_\w+)\(\) \((?:\n    .*)*?\n(.* tests/{folder}.*)\n", script
        )
        assert page in command
        assert re.search(rf"^step .* {name}$", script, re.MULTILINE)


@each_page
def test_code_fits_the_column(page: str) -> None:
    lines = [line for one in guides.snippets(page) for line in one.code.splitlines()]
    assert [line for line in lines if len(line) > COLUMN] == []


INSTRUCTIONS = {"FROM", "COPY", "RUN"}  # that the Dockerfiles of the pages have


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the blocks of code in a language, each with its page."""
    pattern = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [(page, code) for page in PAGES for code in pattern.findall((ROOT / page).read_text("utf-8"))]


@pytest.mark.parametrize(("page", "code"), blocks("yaml"))
def test_jobs_of_ci_are_yaml_with_commands(page: str, code: str) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(code)
    jobs = found.get("jobs", found)
    for job in jobs.values():
        commands = job["script"] if "script" in job else [step.get("run") for step in job["steps"]]
        assert any(" doctor --format " in str(command) for command in commands)
        assert job.get("image") or job["runs-on"]


@pytest.mark.parametrize(("page", "code"), blocks("dockerfile"))
def test_dockerfiles_have_whole_instructions(page: str, code: str) -> None:
    lines = code.replace("\\\n", " ").splitlines()
    assert [line for line in lines if line.split()[0] not in INSTRUCTIONS] == []
    assert lines[0].startswith("FROM ")
    for line in lines[1:]:
        if line.startswith("RUN "):
            subprocess.run(["sh", "-n", "-c", line[4:]], check=True)


@pytest.mark.parametrize(("page", "code"), [*blocks("yaml"), *blocks("dockerfile")])
def test_jobs_of_ci_install_the_package_of_this_version_and_no_checkout(page: str, code: str) -> None:
    (series,) = re.findall(r'pip install [^"\n]*"cudnn-ct(?:\[cu12\])?~=([\d.]+)"', code)
    assert f"{ct.__version__}.".startswith(f"{series}.")
    assert "COPY" not in code


def test_linters_get_all_jobs_of_ci_and_dockerfiles(tmp_path: Path) -> None:
    """.ci/linters installs public linters for them, and .ci/run runs it."""
    output_of(ROOT / "tools" / "ci_snippets.py", tmp_path)
    kinds = {folder.name: len(list(folder.iterdir())) for folder in tmp_path.iterdir()}
    assert kinds.keys() == {"github", "gitlab", "dockerfile"}
    assert sum(kinds.values()) >= len(blocks("yaml")) + len(blocks("dockerfile"))
    for path in [*tmp_path.glob("git*/*"), *tmp_path.glob("dockerfile/*")]:
        assert "doctor" in path.read_text(encoding="utf-8")
    linters = (ROOT / ".ci" / "linters").read_text(encoding="utf-8")
    assert all(f'"$folder"/{kind}/*' in linters for kind in kinds)
    assert '.ci/linters "$work' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_and_guides_are_short() -> None:
    pages = [*PAGES, *guides.others(), "docs/pytorch.md"]
    words = {page: len((ROOT / page).read_text(encoding="utf-8").split()) for page in pages}
    assert words.pop("README.md") <= WORDS_OF_README
    assert sum(words.values()) <= WORDS_OF_GUIDES


def test_cells_of_the_theano_table_run_on_shapes() -> None:
    page = (ROOT / "docs" / "migrating-from-theano.md").read_text(encoding="utf-8")
    table = page.partition("| after: cudnn_ct.dnn |\n")[2].partition("\n\n")[0]
    cells = re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(cells) >= 13
    names: dict[str, object] = {}
    flag = ct.config.dnn.conv.algo_fwd
    with ct.record_plans(shapes_only=True):
        for one in guides.snippets("docs/migrating-from-theano.md")[:2]:
            exec(one.code, names)
        for cell in cells:
            eval(cell, names)
    ct.config.dnn.conv.algo_fwd = flag


def test_page_of_recurrent_networks_has_all_members() -> None:
    page = (ROOT / "docs" / "rnn.md").read_text(encoding="utf-8")
    members = {name for one in (ct.RNN, ct.RNNSpec, ct.RNNReserve) for name in dir(one) if name[0] != "_"}
    members -= {*dir(tuple), "arrays"}
    assert [name for name in sorted(members) if not re.search(rf"\b{name}\b", page)] == []


def test_page_of_graphs_has_no_private_names() -> None:
    page = (ROOT / "docs" / "graph.md").read_text(encoding="utf-8")
    assert re.findall(r"\b\w+\._\w+|\b\w+_fwd_\d", page) == []
