"""The Python that owns a site-packages, and the commands of its pip."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cudnn_doctor import pip

# Site-packages and other files of an image, its Python, its flags, and whether pip must be installed.
LAYOUTS = [
    (
        "opt/venv/lib/python3.12/site-packages",
        "opt/venv/bin/python3.12",
        "/opt/venv/bin/python3.12",
        "",
        False,
    ),
    ("opt/venv/lib64/python3.12/site-packages", "opt/venv/bin/python", "/opt/venv/bin/python", "", False),
    ("usr/local/lib/python3.8/site-packages", "usr/local/bin/python3", "/usr/local/bin/python3", "", False),
    ("opt/conda/lib/python3.10/site-packages", "opt/conda/bin/python", "/opt/conda/bin/python", "", False),
    ("usr/lib/python3/dist-packages", "usr/bin/python3", "/usr/bin/python3", "", False),
    (
        "usr/local/lib/python3.11/dist-packages",
        "usr/bin/python3.11 usr/lib/python3.11/EXTERNALLY-MANAGED",
        "/usr/bin/python3.11",
        " --break-system-packages",
        False,
    ),
    (
        "usr/local/lib/python3.10/dist-packages",
        "usr/local/bin/python3.10",
        "/usr/local/bin/python3.10",
        "",
        False,
    ),
    (
        "home/me/.local/lib/python3.11/site-packages",
        "usr/bin/python3.11 usr/lib/python3.11/EXTERNALLY-MANAGED",
        "/usr/bin/python3.11",
        " --user --break-system-packages",
        False,
    ),
    (
        "home/me/.local/lib/python3.9/site-packages",
        "usr/local/bin/python3.9",
        "/usr/local/bin/python3.9",
        " --user",
        False,
    ),
    ("venv/lib/python3.13/site-packages", "venv/bin/python3 venv/pyvenv.cfg", "/venv/bin/python3", "", True),
    (
        "venv/lib/python3.13t/site-packages",
        "venv/bin/python3.13 venv/pyvenv.cfg",
        "/venv/bin/python3.13",
        "",
        True,
    ),
    (
        "venv/lib/python3.13/site-packages",
        "venv/bin/python3 venv/pyvenv.cfg venv/lib/python3.13/site-packages/pip/__init__.py",
        "/venv/bin/python3",
        "",
        False,
    ),
]


def image(root: Path, site: str, files: str) -> str:
    for name in files.split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / site).mkdir(parents=True, exist_ok=True)
    return str(root / site)


@pytest.mark.parametrize(("site", "files", "python", "flags", "absent"), LAYOUTS)
def test_pip_belongs_to_the_python_of_the_site_packages(
    tmp_path: Path, site: str, files: str, python: str, flags: str, absent: bool
) -> None:
    found = pip.of(image(tmp_path, site, files), str(tmp_path))
    assert (found.python, found.flags, found.absent, found.loose) == (python, flags, absent, False)
    start = (f"{python} -m ensurepip",) if absent else ()
    assert found.install("x==1", keep=True) == (
        *start,
        f"{python} -m pip install{flags} --force-reinstall --no-deps x==1",
    )
    assert found.upgrade("x")[-1] == f"{python} -m pip install{flags} --upgrade x"
    uninstall = found.replace("x==1", packages=["y"])[2 + absent - 1]
    assert uninstall == f"{python} -m pip uninstall{flags.replace(' --user', '')} -y y"


@pytest.mark.parametrize("site", ["srv/libraries", "opt/venv/lib/python3.12/site-packages"])
def test_a_folder_without_a_python_gets_unpacked_wheels(tmp_path: Path, site: str) -> None:
    found = pip.of(image(tmp_path, site, ""), str(tmp_path))
    assert found.loose
    store = f"/{site}/.cudnn-doctor"
    assert found.install("x==1") == (
        f"python3 -m pip download --no-deps --dest {store} x==1",
        f"python3 -m zipfile -e {store}/*.whl /{site}",
        f"rm -rf {store}",
    )
    assert found.upgrade("x") == ()
    assert pip.of(str(tmp_path / site)).python == sys.executable


def test_a_python_that_shares_the_pip_of_the_system_needs_none(tmp_path: Path) -> None:
    site = image(tmp_path, "v/lib/python3.12/site-packages", "v/bin/python3 v/pyvenv.cfg")
    for shared in (False, True):
        (tmp_path / "v/pyvenv.cfg").write_text(f"include-system-site-packages = {str(shared).lower()}\n")
        assert pip.of(site, str(tmp_path)).absent is not shared


def test_replace_downloads_before_it_deletes(tmp_path: Path) -> None:
    found = pip.of(image(tmp_path, "v/lib/python3.12/site-packages", "v/bin/python3"), str(tmp_path))
    commands = found.replace("x<2", ["/a b", "/c/lib*.so"], ["y", "z"])
    words = [command.split()[3 if " -m " in command else 0] for command in commands]
    assert words == ["download", "rm", "uninstall", "install", "rm", "install"]
    assert commands[1] == "rm -rf '/a b' /c/lib*.so"
    assert commands[5] == "/v/bin/python3 -m pip install 'x<2'"
