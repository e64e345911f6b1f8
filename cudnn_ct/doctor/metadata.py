"""Read the requirements in the METADATA of installed packages, also those of extras of other packages."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from .. import _files
from .repair import TOOLKIT, meets

_HEAD = 256 << 10  # characters: the fields of METADATA precede a long description
_FEW_REQUIREMENTS = 200
_WHEEL = r"nvidia[-_.](?:cudnn[-_.]cu\d+|(?:cublas|cuda[-_.]nvrtc|cuda[-_.]runtime)(?:[-_.]cu\d+)?)"
# The wheels of cuDNN and CUDA, and packages with extras, which may require such wheels.
_REQUIRES = re.compile(
    rf"^Requires-Dist:[ \t]*(?:({_WHEEL})(?![\w.-])|([\w.-]+)(?=[ \t]*\[))[ \t]*(?:\[([^\]\n]{{0,500}})\])?"
    r"[ \t]*\(?([^;)\n]{0,200})\)?[ \t]*(?:;(.*))?$",
    re.M | re.I | re.A,
)
_COMPARISON = re.compile(r"""(\w+|'[^']*'|"[^"]*")\s*(not in|in|[<>=!~]=?=?)\s*(\w+|'[^']*'|"[^"]*")""")


class Packages:
    """The packages of a site-packages, by their canonical names."""

    def __init__(self, folders: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._folders, self._environment = folders, environment
        self._texts: dict[str, str] = {}

    def wheels(self, name: str, extras: Sequence[str] = ("",)) -> Iterator[tuple[str, str]]:
        """Yield the wheels that a package with some extras requires, and their versions.

        A requirement such as ``cuda-toolkit[cublas]`` is replaced by those of the extra, if the package is
        installed. Without that version of cuda-toolkit it is yielded itself: only its extras have versions.
        """
        todo = [(name, extra) for extra in extras]
        seen = set(todo)
        while todo:
            name, extra = todo.pop()
            for wheel, package, others, versions in requirements(self._text(name), self._environment, extra):
                if wheel:
                    yield wheel, versions
                elif package == TOOLKIT and not self._has(package, versions):
                    yield f"{package}[{','.join(others)}]", versions
                elif package in self._folders:
                    new = [(package, other) for other in others if (package, other) not in seen]
                    todo += new
                    seen.update(new)

    def wheels_of_extra(self, name: str, extra: str) -> list[tuple[str, str]]:
        """List the wheels that a package requires only with an extra."""
        always = set(self.wheels(name))
        return [each for each in self.wheels(name, (extra,)) if each not in always]

    def _has(self, name: str, versions: str) -> bool:
        label = os.path.basename(self._folders.get(name, "")).rpartition(".dist-info")[0]
        return bool(label) and meets(label.partition("-")[2], versions)

    def _text(self, name: str) -> str:
        if name not in self._texts:
            try:
                self._texts[name] = _files.text_of(os.path.join(self._folders[name], "METADATA"))
            except OSError:
                self._texts[name] = ""
        return self._texts[name]


def canonical(name: str) -> str:
    """Return the name of a package or of an extra as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def requirements(
    metadata: str, environment: Mapping[str, str], extra: str = ""
) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield the requirements with one extra: a wheel or another package, its extras, its versions.

    Other packages without extras are left out: they are installed, and read on their own.
    """
    head = metadata[:_HEAD].partition("\n\n")[0]
    for wheel, package, inner, versions, marker in _REQUIRES.findall(head)[:_FEW_REQUIREMENTS]:
        if not marker or _applies(marker, {**environment, "extra": extra}):
            extras = tuple(canonical(each) for each in inner.split(",") if each.strip())
            yield canonical(wheel), canonical(package), extras, versions.replace(" ", "")


def _applies(marker: str, environment: Mapping[str, str]) -> bool:
    """Evaluate the marker of a requirement; one that cannot be read does not apply."""

    def holds(left: str, symbol: str, right: str) -> bool:
        is_extra = "extra" in (left, right)
        left, right = (environment.get(word, word.strip("'\"")) for word in (left, right))
        if is_extra:
            left, right = canonical(left), canonical(right)
        if "in" in symbol:
            return (left in right) == (symbol == "in")
        return meets(left, symbol + right) if left[:1].isdigit() else (left == right) == (symbol == "==")

    def truth(node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(truth, node.values))
        return isinstance(node, ast.Constant) and node.value is True

    text = _COMPARISON.sub(lambda each: str(holds(*each.groups())), marker[:1000])
    try:
        return truth(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
