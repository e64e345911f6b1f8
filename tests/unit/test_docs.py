"""README.md and docs/: commands, links, names, generated tables, and the defaults on the API pages."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct
import cudnn_doctor as doctor
from cudnn_ct import dnn, reference, testing
from cudnn_ct._config import SETTINGS
from cudnn_doctor import main, report
from tests.maintainers import TOOLS, tool
from tests.processes import ROOT, run_python

PACKAGE = Path(ct.__file__).parent
DOCS, README, CI = ROOT / "docs", ROOT / "README.md", ROOT / ".ci" / "run"

if not all(path.exists() for path in (DOCS, README, CI, TOOLS)):
    pytest.skip("README.md, docs, tools and .ci are not next to these tests", allow_module_level=True)

api_pages = tool("api_pages")

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

# Pages that tools/docs_site.py creates from files outside docs.
GENERATED_PAGES = {"index.md", "contributing.md", "changes.md", "licence.md", "security.md"}

# --- the commands of README.md -----------------------------------------------------------------------------


def command(name: str) -> str:
    """Return the shell command below ``<!-- command: name -->``."""
    (block,) = re.findall(rf"<!-- command: {name} -->\n```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return str(block).strip()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (reader,) = re.findall(r"^readme_test_command\(\) \{.*\}$", CI.read_text(), re.MULTILINE)
    shell = ["bash", "-euc", f"{reader}\nreadme_test_command"]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == command("tests")
    assert re.fullmatch(
        r'python -m pip install -e "\.\[.*examples\]" && python -m pytest -n auto', command("tests")
    )


def test_ci_builds_the_docs_strictly() -> None:
    (build,) = re.findall(r"^.*\bmkdocs build .*$", CI.read_text(), re.MULTILINE)
    words = build.partition("#")[0].split()
    assert "--strict" in words
    assert not {"--quiet", "-q"} & set(words)  # quiet builds do not count warnings


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")), ids=lambda page: page.name)
def test_api_page_shows_the_members_that_it_lists(page: Path) -> None:
    """A page shows the methods that a class inherits only with an option."""
    for name, options in re.findall(r"^::: ([\w.]+)\n((?:    .*\n)*)", page.read_text(), re.MULTILINE):
        listed = re.search(r"members: \[(.*)\]", options)
        if needs_another_library(name):
            continue
        thing = pkgutil.resolve_name(name)
        if listed and inspect.isclass(thing) and "inherited_members: true" not in options:
            fields = vars(thing).get("__annotations__", {})
            assert [one for one in listed[1].split(", ") if one not in {*vars(thing), *fields}] == []


def test_quickstart_command_runs_an_example_that_exists() -> None:
    assert command("quickstart").endswith("&& python examples/01_quickstart.py")
    assert (ROOT / "examples" / "01_quickstart.py").is_file()


@pytest.mark.parametrize("script", sorted(CI.parent.iterdir()), ids=lambda path: path.name)
def test_ci_script_is_valid_and_executable(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.stat().st_mode & 0o111
    assert "pipefail" in script.read_text()


# --- what pages refer to -----------------------------------------------------------------------------------

PATH = re.compile(r"(?<![\w/.:-])(?:(?:tests|tools|benchmarks|examples|docs|cudnn_\w+)/|\.ci/)[\w./-]*\w")
DOTTED = re.compile(r"`(?:cudnn_ct\.)?(\w+(?:\.\w+)+)(?:\(\))?`")
OF_OBJECTS = ("config.", "context.", "array.", "testing.")  # also the names of variables
MODULES = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}


@each_page
def test_links_between_pages_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@each_page
def test_examples_in_pages_are_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(block)


@each_page
def test_files_that_pages_name_exist(page: Path) -> None:
    written = re.sub(
        r"<!-- begin: .*?<!-- end", "", page.read_text(), flags=re.DOTALL
    )  # records of past runs
    outputs = ("examples/output", "tests/gpu_record.json")
    named = [name for name in sorted(set(PATH.findall(written))) if not name.startswith(outputs)]
    assert [name for name in named if not exists(name)] == []


def exists(name: str) -> bool:
    root = PACKAGE.parent if name.startswith("cudnn_") else ROOT
    return (root / name).exists()


@each_page
def test_names_of_the_package_in_pages_exist(page: Path) -> None:
    text = page.read_text().partition("### Old and new public names")[0]
    for name in re.findall(r"\bct\.([A-Za-z_]\w*)", text):
        assert hasattr(ct, name), f"ct.{name}"
    for name in re.findall(r"\breference\.([a-z_]\w*)", text):
        assert name in ("rnn", "md") or hasattr(reference, name), f"reference.{name}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_modules_that_pages_name_exist(page: str) -> None:
    named = set(DOTTED.findall((ROOT / page).read_text()))
    inside = [one for one in sorted(named) if one.partition(".")[0] in MODULES and not one.endswith(".py")]
    inside = [
        one for one in inside if not needs_another_library(one) and one not in ("torch.compile", "jax.jit")
    ]
    assert [name for name in inside if not (name.startswith(OF_OBJECTS) or found(name) is not None)] == []


def needs_another_library(name: str) -> bool:
    """Return whether a name cannot be imported here, because PyTorch or JAX is not installed."""
    module = name.removeprefix("cudnn_ct.").partition(".")[0]
    return module in ("torch", "jax") and importlib.util.find_spec(module) is None


def found(name: str) -> Any:
    """Return the module or attribute that a dotted name means; None if it does not exist."""
    for full in (f"cudnn_ct.{name}", name) if name.startswith("cudnn_") else (f"cudnn_ct.{name}",):
        with contextlib.suppress(ImportError, AttributeError):
            return pkgutil.resolve_name(full)
    return None


def test_architecture_names_every_module_of_the_top_folder() -> None:
    page = (DOCS / "architecture.md").read_text()
    assert [name for name in sorted(MODULES) if name.strip("_") not in page and name != "__pycache__"] == []


def test_settings_page_has_every_setting_with_its_variable_and_default() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(name, f"CUDNN_CT_{name.upper()}", str(row.default)) for name, row in SETTINGS.items()]


def test_doctor_page_has_the_codes_every_flag_and_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    writer, page = TOOLS / "doctor_docs.py", (DOCS / "doctor.md").read_text()
    assert run_python(writer, "--check").returncode == 0, f"python {writer} writes it"
    with pytest.raises(SystemExit):
        main.main(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert flags == set(re.findall(r"^\| `(--[a-z-]+)", page, re.M))
    assert f'`"schema": {report.SCHEMA}`' in page
    assert [key for key in report.as_dict(doctor.Diagnosis("x", (), ())) if f"`{key}`" not in page] == []


def short(name: str) -> str:
    return name.removeprefix("cudnn_ct.")


# --- the API pages -----------------------------------------------------------------------------------------

OBJECTS = [tuple(name.removeprefix("cudnn_ct.") for name in pair) for pair in api_pages.objects()]


def test_menu_has_every_page_and_no_other() -> None:
    menu = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(menu) == sorted(pages | GENERATED_PAGES)


def test_api_pages_have_every_public_name_once() -> None:
    headings = [heading for _, heading in OBJECTS]
    objects = {"config": "_config.Config", "raw": "_raw.RawLibrary"}
    public = {objects.get(name, name) for name in ct.__all__} - {"dnn", "reference"}
    for module in (dnn, doctor, reference, testing):
        own = short(module.__name__)
        public |= {f"{own}.{name}" for name in module.__all__}
    of_shapes = {"conv_output_shape", "conv_transpose_output_shape", "pool_output_shape"}  # as ct.*
    public -= {f"reference.{name}" for name in of_shapes}
    assert sorted(public - set(headings)) == []
    assert len(headings) == len(set(headings))


def test_api_pages_name_no_module_in_place_of_its_function() -> None:
    assert [name for name, _ in OBJECTS if inspect.ismodule(found(name))] == []


def test_api_pages_show_the_defaults_of_signatures() -> None:
    griffe = pytest.importorskip(
        "griffe", reason="griffe, which reads docstrings for the site, is not installed"
    )
    loader = griffe.GriffeLoader(
        search_paths=[str(PACKAGE.parent)],
        docstring_parser="numpy",
        extensions=griffe.load_extensions(str(TOOLS / "docs_docstrings.py")),
    )
    packages = {name: loader.load(name) for name in ("cudnn_ct", "cudnn_ct_dnn", "cudnn_doctor")}
    loader.resolve_aliases()
    shown = [
        row
        for name, _ in OBJECTS
        if not needs_another_library(name)
        for row in defaults_on_the_site(object_of(packages, name))
    ]
    assert len(shown) > 400
    # `ops._documented` adds this parameter, which the sources do not describe.
    assert any(path.endswith("conv_backward_data") and name == "stream" for path, name, *_ in shown)
    assert [row for row in shown if row[2] != row[3]] == []


def object_of(packages: dict[str, Any], name: str) -> Any:
    """Return what griffe has read about an object; names begin in `cudnn_ct`, or with another package."""
    first, _, rest = name.partition(".")
    return packages[first][rest] if first in packages else packages["cudnn_ct"][name]


def defaults_on_the_site(thing: Any) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the path and a parameter of a function, the default that the site shows, and the real one."""
    inner = thing.members.values() if thing.is_class else ()
    for member in (thing, *(one for one in inner if one.is_function and not one.name.startswith("_"))):
        sections = member.docstring.parsed if member.docstring else ()
        rows = [row for section in sections if section.kind.value == "parameters" for row in section.value]
        for row in rows:
            function = found(short(member.path))
            names = vars(sys.modules[inspect.unwrap(function).__module__])
            shown = inspect.Parameter.empty if row.value is None else eval(str(row.value), names)
            real = inspect.signature(function).parameters[row.name.lstrip("*")]
            if real.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                yield member.path, row.name, shown, real.default


# --- the generated tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["performance_docs", "pictures", "reliability", "facts_docs"])
def test_tables_match_the_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--check"])
    monkeypatch.setattr(sys, "path", list(sys.path))  # the modules of the benchmarks have common names
    assert tool(name).main() == 0, f"run python tools/{name}.py"
