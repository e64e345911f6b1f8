"""Facts of a release in several places agree: pyproject.toml, the recipe of conda, and the workflow."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct as ct

ROOT = Path(__file__).resolve().parents[2]

if not all((ROOT / name).exists() for name in ("pyproject.toml", "packaging", ".github", "tools")):
    pytest.skip("the files of a release are not next to these tests", allow_module_level=True)

yaml = pytest.importorskip("yaml")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text("utf-8"))
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))


def requirement(text: str) -> str:
    """Return a requirement of conda in the spelling of pip."""
    return text.replace(" ", "")


def test_version_is_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "cudnn_doctor/__init__.py"
    assert re.search(
        rf"^## {re.escape(ct.__version__)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )


def test_recipe_has_the_fields_of_the_project() -> None:
    assert RECIPE["context"]["version"] == ct.__version__
    assert RECIPE["package"]["name"] == PROJECT["name"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert [RECIPE["about"]["license_file"]] == PROJECT["license-files"]
    (entry,) = PROJECT["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [" = ".join(entry)]


def test_recipe_has_the_requirements_of_the_project() -> None:
    run = [requirement(one) for one in RECIPE["requirements"]["run"] if one != "__linux"]
    assert run == [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]
    host = [requirement(one) for one in RECIPE["requirements"]["host"] if one != "pip"]
    assert host == [f"python{PROJECT['requires-python']}", *PYPROJECT["build-system"]["requires"]]


def test_links_follow_from_the_address_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import release_metadata

    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    assert (ROOT / hook["path"]).samefile(release_metadata.__file__)
    assert release_metadata.links("") == {}
    made = release_metadata.links("https://host/owner/name/")
    assert made["Repository"] == "https://host/owner/name"
    assert all(link.startswith("https://host/owner/name") for link in made.values())
    assert RECIPE["about"]["homepage"] == hook["repository"]


def test_workflow_publishes_without_a_stored_secret() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    assert "secrets." not in text
    jobs = WORKFLOW["jobs"]
    assert any(step.get("run", "").startswith(".ci/release ") for step in jobs["build"]["steps"])
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert WORKFLOW["permissions"] == {}


def test_classifiers_name_each_python_that_tests_run_with() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    named = re.findall(
        r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE
    )
    rows = dict(re.findall(r"^\| (3\.\d+t?) \| ([^|]+) \|", page, re.MULTILINE))
    assert set(named) == {version for version, tried in rows.items() if "not tried" not in tried}
