"""Carry out the commands that the doctor prints, on the files of a drawn site and nowhere else."""

from __future__ import annotations

import csv
import os
import re
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from tests.doctor_drawn import files, wheels
from tests.doctor_drawn.sites import Site, relabel


class CommandError(Exception):
    """The command would fail."""


class DestructiveError(Exception):
    """The command would change something outside of the site."""


class UnavailableError(Exception):
    """The command installs a release that the store does not have, so its effect is unknown."""


def run(site: Site, command: str) -> None:
    """Carry out one line for a shell.

    Raises CommandError if it fails, DestructiveError if it leaves the site, and
    UnavailableError if its effect is unknown.
    """
    for words in split(command):
        if words[0] == "sudo":
            words = words[1:]
        name = words[0]
        if name == "rm":
            delete(site, words[1:])
        elif name == "chmod":
            change_mode(site, words[1:])
        elif name == "unset":
            for each in words[1:]:
                site.environment.pop(each, None)
        elif name == "export":
            for each in words[1:]:
                variable, _, value = each.partition("=")
                site.environment[variable] = value
        elif name == "ln":
            link(site, words[1:])
        elif name == "mkdir":
            for path in paths(site, words[1:]):
                path.mkdir(parents=True, exist_ok=True)
        elif words[1:2] == ["-m"] and words[2] == "pip":
            pip(site, name, words[3:])
        elif words[1:4] == ["-m", "zipfile", "-e"]:
            unpack(site, words[4], words[5])
        elif words[1:3] == ["-m", "ensurepip"]:
            pass
        elif words[:2] == ["update-alternatives", "--set"]:
            alternative(site, words[3])
        elif name == "echo" and words[2:] == [">", "/etc/ld.so.conf.d/ld.wsl.conf"] and site.wrap:
            site.former["ld.so.conf"] = words[1]
        elif name == "ldconfig" and site.wrap:
            site.linker = site.former["ld.so.conf"]
        elif name in ("apt-get", "apt"):
            raise UnavailableError(command)
        else:
            raise CommandError(f"unknown command: {command}")


def split(command: str) -> list[list[str]]:
    """The words of each command of a line that ``&&`` or ``;`` join."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in ("&&", ";"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


def inside(site: Site, word: str) -> Path:
    """The path that a word names: in an image, below its root."""
    path = Path(os.path.normpath(word))
    if not path.is_absolute():
        raise DestructiveError(f"relative path {word}")
    if path.is_relative_to(site.root):
        return path
    if site.image:
        return image_root(site) / path.relative_to("/")
    raise DestructiveError(f"{word} is outside of the site")


def image_root(site: Site) -> Path:
    """The folder that is / in the image."""
    return site.root


def paths(site: Site, words: list[str]) -> list[Path]:
    """The paths that words without options name, with their patterns expanded."""
    found: list[Path] = []
    for word in words:
        if word.startswith("-"):
            continue
        path = inside(site, word)
        if re.search(r"[*?\[]", path.name):
            found += sorted(path.parent.glob(path.name))
        else:
            found.append(path)
    return found


def delete(site: Site, words: list[str]) -> None:
    """Delete files and folders."""
    force = any(word.startswith("-") and "f" in word for word in words)
    for path in paths(site, words):
        if not force and not (path.exists() or path.is_symlink()):
            raise CommandError(f"rm: {path} does not exist")
        files.remove(path)


def link(site: Site, words: list[str]) -> None:
    """Make a symbolic link."""
    source, target = (word for word in words if not word.startswith("-"))
    path = inside(site, target)
    if any("f" in word for word in words if word.startswith("-")):
        files.remove(path)
    path.symlink_to(source)


def alternative(site: Site, header: str) -> None:
    """Select a header, and the one of its version, as the package of the headers does."""
    version = header.replace("/cudnn_v", "/cudnn_version_v")
    if not inside(site, header).exists() or not inside(site, version).exists():
        raise CommandError(f"update-alternatives: {header} is not registered")
    link = inside(site, "/etc/alternatives/cudnn_version_h")
    files.remove(link)
    link.symlink_to(version)


def change_mode(site: Site, words: list[str]) -> None:
    """Change modes by the clauses that the doctor uses: who, + or -, and r, w, x or X."""
    deep = "-R" in words
    words = [word for word in words if word != "-R"]
    clauses, targets = words[0], paths(site, ["", *words[1:]][1:])
    for top in targets:
        for path in [top, *(top.rglob("*") if deep and top.is_dir() else ())]:
            mode = stat.S_IMODE(path.stat().st_mode)
            if not path.is_dir():
                files.own(path.resolve())
            for clause in clauses.split(","):
                found = re.fullmatch(r"([ugoa]*)([+-])([rwxX]+)", clause)
                if found is None:
                    mode = int(clause, 8)
                    continue
                who, sign, what = found.groups()
                for letter in what:
                    if letter == "X" and not (path.is_dir() or mode & 0o111):
                        continue
                    bit = {"r": 4, "w": 2, "x": 1, "X": 1}[letter]
                    shifts = {"u": 6, "g": 3, "o": 0}
                    bits = 0
                    for each in "ugo" if who in ("", "a") else who:
                        bits |= bit << shifts[each]
                    mode = mode | bits if sign == "+" else mode & ~bits
            path.chmod(mode)


def pip(site: Site, python: str, words: list[str]) -> None:
    """Carry out ``pip install``, ``pip uninstall`` or ``pip download``."""
    action, options, names = words[0], [word for word in words[1:] if word.startswith("-")], []
    skip = False
    values: dict[str, str] = {}
    for number, word in enumerate(words[1:], 1):
        if skip:
            skip = False
        elif word in (
            "--dest",
            "-d",
            "--find-links",
            "-f",
            "--target",
            "-t",
            "--index-url",
            "--prefix",
            "--python",
        ):
            values[word], skip = words[number + 1], True
        elif not word.startswith("-"):
            names.append(word)
    if action == "download":
        folder = inside(site, values.get("--dest", values.get("-d", "")))
        for name in names:
            wheel = find(name)
            files.write(folder / f"{wheel.name.replace('-', '_')}-{wheel.version}-py3-none-any.whl", b"")
        return
    packages = environment(site, python, [action, *options], values)
    for name in names:
        if action == "uninstall":
            uninstall(packages, Requirement(name).name)
        elif action == "install":
            wheel = find(name)
            if "--target" not in values and "--ignore-installed" not in options:
                uninstall(packages, wheel.name)
            elif "--upgrade" in options:
                files.remove(packages / "nvidia")  # pip replaces the whole top-level folder
            install(packages, wheel)
            if "--no-deps" not in options:
                install_required(packages, wheel, Requirement(name).extras)
        else:
            raise CommandError(f"unknown action of pip: {action}")


def install_required(packages: Path, wheel: wheels.Wheel, extras: Iterable[str] = ()) -> None:
    """Install what a wheel with extras requires, and theirs, unless a right version is installed."""
    for line in re.findall(r"(?m)^Requires-Dist: (.*)$", wheel.metadata):
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        have = version_of(packages, requirement.name)
        if have is None or have not in requirement.specifier:
            required = find(line)
            uninstall(packages, required.name)
            install(packages, required)
            install_required(packages, required, requirement.extras)


def version_of(packages: Path, name: str) -> str | None:
    """The version of an installed distribution."""
    infos = sorted(packages.glob(name.replace("-", "_") + "-*.dist-info"))
    return infos[0].name[: -len(".dist-info")].rpartition("-")[2] if infos else None


def environment(site: Site, python: str, options: list[str], values: dict[str, str]) -> Path:
    """The site-packages that this pip installs into."""
    if "--target" in values:
        return inside(site, values["--target"])
    if site.packages is None:
        raise CommandError("pip has no environment here")
    if "--user" in options:
        if site.layout == "user":
            return site.packages
        raise DestructiveError("--user installs into the home folder of this user")
    if site.layout == "user" and "uninstall" in options:
        return site.packages  # pip searches the user's site-packages too
    prefix = inside(site, python).parent.parent
    if not site.packages.is_relative_to(prefix):
        raise DestructiveError(f"{python} installs into another environment")
    return site.packages


def find(name: str) -> wheels.Wheel:
    """The wheel that pip would take for a requirement."""
    requirement = Requirement(name)
    known = wheels.store().get(requirement.name, ())
    for wheel in known:
        if wheel.version in requirement.specifier:
            return wheel
    exact = [each.version for each in requirement.specifier if each.operator == "=="]
    if known and exact and "cudnn" not in requirement.name:
        return relabel(known[0], exact[0].removesuffix(".*"))
    raise UnavailableError(name)


def uninstall(packages: Path, name: str) -> None:
    """Delete the files that the RECORD of an installed distribution lists, and its metadata."""
    for info in sorted(packages.glob(name.replace("-", "_") + "-*.dist-info")):
        record = info / "RECORD"
        try:
            rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"pip cannot uninstall {name}: {error}") from error
        for row in rows:
            if row and not row[0].startswith(("/", "..")) and (packages / row[0]).exists():  # as pip
                files.remove(packages / row[0])
        if info.is_dir() and not any(info.iterdir()):
            info.rmdir()
        return


def unpack(site: Site, archive: str, folder: str) -> None:
    """Unpack downloaded wheels over a folder."""
    found = paths(site, [archive])
    if len(found) != 1:
        raise CommandError(f"{archive} names {len(found)} files")
    name, version = found[0].name.split("-")[:2]
    install(inside(site, folder), find(f"{name.replace('_', '-')}=={version}"))


def install(packages: Path, wheel: wheels.Wheel) -> None:
    """Write the files of a wheel, which fails at a link whose target does not exist."""
    info = [f"{wheel.info}/{name}" for name in ("METADATA", "WHEEL")]
    for path in (packages / each for each in (*(path for path, _ in wheel.sources), *info)):
        if path.is_symlink() and not path.exists():
            raise CommandError(f"pip cannot write {path}: it is a link to nothing")
    wheel.install(packages)
