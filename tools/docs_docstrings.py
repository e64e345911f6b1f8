"""Convert docstrings to Markdown for mkdocstrings: roles, names of pages, literal blocks, parameters.

A role becomes a link if the site has its object, and otherwise its name as code. The lines of a section that
are not indented are names and types, which the site shows as code.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from api_pages import objects

ROLE = re.compile(r":(func|class|meth|mod|data|attr):`([\w.]+)`")
LITERAL = re.compile(r" ?::$")  # Markdown shows the indented lines below as code too
PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")
SECTION = re.compile(r"^(?:Parameters|Attributes|Returns|Yields|Raises|Notes|Examples)$")
OF_TYPES = ("Parameters", "Attributes", "Returns", "Yields", "Raises")
CHOICE = re.compile(r" : \{(.*?)\}")  # the site would show the first choice as the default
WORDS = re.compile(r"(?<=\")(?:, | or )(?=\")")  # the site would show these words as a tuple
GROUP = re.compile(r"^(\w+(?:, \w+)+)( : .*)?\n((?: .*\n|\n(?= ))*)", re.MULTILINE)
PARAMETERS = re.compile(r"(?<=^Parameters\n----------\n).*?(?=^\w+\n-{4,}\n|\Z)", re.MULTILINE | re.DOTALL)
PACKAGE = "cudnn_ct"


class Docstrings(griffe.Extension):  # type: ignore[misc] # mypy does not read griffe
    """Convert the docstring of each object that griffe finds."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Show the rows of a table of methods (``abs = _of_one(...)``) as methods."""
        for name, member in list(cls.members.items()):
            if member.is_attribute and str(member.value).startswith("_of_"):
                cls.set_member(name, _method(pkgutil.resolve_name(f"{cls.path}.{name}")))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object; remove the parameters that take wrong arguments."""
        for name in ("more", "unknown"):
            if isinstance(obj, griffe.Function) and name in obj.parameters:
                del obj.parameters[name]
        if obj.is_function and any("defined" in str(one.value) for one in obj.decorators):
            signature = _method(pkgutil.resolve_name(obj.path))  # of the operation
            obj.parameters, obj.returns = signature.parameters, signature.returns
        if obj.docstring:
            obj.docstring.value = markdown(_complete(obj), obj.path)


def _method(function: Any) -> griffe.Function:
    """Return a function whose signature the sources do not have."""
    signature = inspect.signature(function)
    parameters = [
        griffe.Parameter(
            one.name,
            annotation=None if one.name == "self" else str(one.annotation),
            kind=griffe.ParameterKind(one.kind.description),
            default=None if one.default is one.empty else repr(one.default),
        )
        for one in signature.parameters.values()
    ]
    return griffe.Function(
        function.__name__,
        parameters=griffe.Parameters(*parameters),
        returns=str(signature.return_annotation),
        docstring=griffe.Docstring(function.__doc__),
    )


def _complete(obj: griffe.Object) -> str:
    """Return a docstring as ``help()`` shows it: ``ops._documented`` adds to the text in the sources."""
    if obj.is_function and any("documented" in str(one.value) for one in obj.decorators):
        return inspect.getdoc(pkgutil.resolve_name(obj.path)) or ""
    return str(obj.docstring.value)


def markdown(text: str, path: str) -> str:
    """Rewrite the docstring of the object at a path."""
    section, lines = "", []
    for line in PARAMETERS.sub(_ungrouped, text + "\n").splitlines():
        section = line if SECTION.match(line) else section
        typed = section in OF_TYPES and not line.startswith(" ")
        line = _type(line) if typed else _prose(line, path)
        lines.append(line.replace(", ", " | ") if typed and section == "Raises" else line)
    return "\n".join(lines)


def _ungrouped(section: re.Match[str]) -> str:
    """Split groups of parameters, because griffe shows the default of the first for the whole group."""
    return GROUP.sub(_one_item_each, section[0])


def _one_item_each(group: re.Match[str]) -> str:
    names, kind, description = group.groups(default="")
    return "".join(f"{name}{kind}\n{description}" for name in names.split(", "))


def _type(line: str) -> str:
    line = ROLE.sub(lambda role: role[2], line).replace("``", "")
    line = CHOICE.sub(lambda choice: " : " + choice[1].replace(", ", " | "), line)
    line = WORDS.sub(" | ", line).removesuffix(" : optional")
    return line.replace(" : array, shape (", " : array of shape (")  # the former would be a tuple too


def _prose(line: str, path: str) -> str:
    line = ROLE.sub(lambda role: _reference(role[1], role[2], path), line)
    return LITERAL.sub(":", PAGE.sub(r"[\g<0>](../\1.md)", line))


def _reference(role: str, name: str, path: str) -> str:
    for full in _candidates(role, name, path):
        owner, _, method = full.rpartition(".")
        if role == "meth" and inspect.isclass(_object(owner)) and hasattr(_object(owner), method):
            return f"[`{name}`][{on_site()[owner]}.{method}]"
        if full in on_site():
            return f"[`{name}`][{on_site()[full]}]"
    return f"`{name}`"


def _candidates(role: str, name: str, path: str) -> list[str]:
    """Return the objects that a name may refer to: in its class, its package, this package, anywhere."""
    packages = [".".join(path.split(".")[:2]), path.partition(".")[0], PACKAGE]
    owners = [path.rpartition(".")[0].rpartition(".")[2], path.rpartition(".")[2]] if role == "meth" else []
    inner = [f"{package}.{owner}.{name}" for owner in owners for package in packages]
    return [*inner, *(f"{package}.{name}" for package in packages), name]


@cache
def _object(heading: str) -> Any:
    """Return the object with a heading; None if no page has it."""
    return pkgutil.resolve_name(on_site()[heading]) if heading in on_site() else None


@cache
def on_site() -> dict[str, str]:
    """Return the objects on the pages of the API, by the name that their headings have."""
    return {heading: path for path, heading in objects()}
