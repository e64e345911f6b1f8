"""Read cuDNN's public headers: the declarations, and the ``@since`` of the comments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycparser import c_ast, c_parser

# C type -> ctypes expression. The reader adds the types that the headers define.
BUILTIN = {
    "char": "c_char",
    "int": "c_int",
    "unsigned": "c_uint",
    "unsigned long long": "c_ulonglong",
    "float": "c_float",
    "double": "c_double",
}
# C type -> ctypes expression, for types from headers that are not read.
FOREIGN = {
    "size_t": "c_size_t",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "cudaStream_t": "c_void_p",
    "cudaGraph_t": "c_void_p",
    "libraryPropertyType": "c_int",
}


class BindingsError(Exception):
    """Mismatch between the headers, the annotations and the generator."""


@dataclass
class Enum:
    """C enum: the values of its members by their C names."""

    c_name: str
    values: dict[str, int]
    prefix: str = ""
    names: dict[str, str] = field(default_factory=dict)  # C name -> Python name

    @property
    def name(self) -> str:
        return self.c_name.removeprefix("cudnn").removesuffix("_t")


@dataclass
class Function:
    """C prototype, with its types as ctypes expressions."""

    name: str
    header: str
    restype: str
    args: dict[str, str]
    returns_status: bool


@dataclass
class Api:
    """Declarations in the public headers of one cuDNN."""

    enums: list[Enum] = field(default_factory=list)
    types: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> kind and parts, in C's order
    functions: list[Function] = field(default_factory=list)
    constants: dict[str, int | float] = field(default_factory=dict)
    since: dict[str, str] = field(default_factory=dict)  # symbol -> version in its comment
    deprecated: set[str] = field(default_factory=set)

    @property
    def version(self) -> int:
        return int(self.constants["CUDNN_VERSION"])

    @property
    def values(self) -> dict[str, int]:
        return {c_name: value for enum in self.enums for c_name, value in enum.values.items()}


def read_api(include: Path, notes: dict[str, Any]) -> Api:
    """Parse the headers that cudnn.h includes, in its order."""
    if not (include / "cudnn.h").is_file():
        raise BindingsError(f"{include} has no cudnn.h")
    api, code = (
        Api(),
        [f"typedef int {name};" for name in FOREIGN],
    )  # the parser only needs the names of types
    for header in re.findall(r'#include "(\w+\.h)"', (include / "cudnn.h").read_text()):
        text = (include / header).read_text()
        read_comments(text, api)
        code += [f'#line 1 "{header}"', preprocess(text)]
    try:
        Reader(api, notes).visit(c_parser.CParser().parse("\n".join(code)))
    except c_parser.ParseError as error:
        raise BindingsError(f"{include}: {error}") from error
    return api


def read_comments(text: str, api: Api) -> None:
    """Record facts outside the grammar: the first version with a symbol, and whether it is deprecated."""
    text = re.sub(r"/\*(?!\*).*?\*/|//[^\n]*", " ", text, flags=re.S)  # leaves /** ... */
    after = re.finditer(r"\b(?P<name>CUDNN_\w+)\b[^,/{}]*,?[ \t]*/\*\*<(?P<doc>.*?)\*/", text, re.S)
    doc = r"/\*\*(?!<)(?P<doc>(?:(?!\*/).)*)\*/\s*"
    before_enum = re.finditer(doc + r"typedef\s+enum\s*\{[^}]*\}\s*(?P<name>\w+)", text, re.S)
    before_function = re.finditer(doc + r"[\w\s*]*?\bCUDNNWINAPI\s+(?P<name>\w+)\(", text, re.S)
    for match in (*after, *before_enum, *before_function):
        if found := re.search(r"@since\s+(?:cuDNN\s+)?(\S+)", match["doc"]):
            api.since[match["name"]] = found[1]
    api.deprecated |= set(re.findall(r"\bCUDNN_DEPRECATED\s+[\w\s*]*?CUDNNWINAPI\s+(\w+)", text))
    api.deprecated |= set(re.findall(r"\b(CUDNN_\w+)\s+CUDNN_DEPRECATED_ENUM\b", text))


def preprocess(text: str) -> str:
    """Return plain C for the parser: no comments, no directives, and numeric macros as enums."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r"^#define[ \t]+CUDNN_DEPRECATED.*$", "", text, flags=re.M)
    text = re.sub(r"^#define[ \t]+(CUDNN_\w+)[ \t]+(\S.*)$", r"enum { \1 = \2 };", text, flags=re.M)
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.M)
    text = re.sub(r"\b(CUDNN_DEPRECATED|CUDNN_DEPRECATED_ENUM|CUDNNWINAPI)\b", "", text)
    text, blocks = re.subn(r'extern "C" \{', "", text)
    return text.rstrip().removesuffix("}") if blocks else text


class Reader(c_ast.NodeVisitor):  # type: ignore[misc]  # pycparser has no types
    """Visitor of the declarations in the headers, which fills an Api."""

    def __init__(self, api: Api, notes: dict[str, Any]) -> None:
        self.api, self.notes = api, notes
        self.ctypes = BUILTIN | FOREIGN
        self.numbers: dict[str, int | float] = {}

    def visit_Typedef(self, node: Any) -> None:  # noqa: N802 - pycparser calls it
        if node.name in FOREIGN:
            return
        kind, parts = self.classify(node)
        self.ctypes[node.name] = {"enum": "c_int", "void": "c_void_p"}.get(kind, node.name)
        if kind == "enum":
            self.api.enums.append(Enum(node.name, self.enumerate(node.type.type)))
        elif kind != "void":
            self.api.types[node.name] = (kind, *parts)

    def classify(self, node: Any) -> tuple[str, Iterable[str]]:
        """Return the kind and the parts of a typedef: opaque struct, fields, or result and arguments."""
        match node.type:
            case c_ast.TypeDecl(type=c_ast.Enum()):
                return "enum", ()
            case c_ast.TypeDecl(type=c_ast.Struct(decls=None)):
                return "opaque", ()
            case c_ast.TypeDecl(type=c_ast.Struct() | c_ast.Union() as record):
                return type(record).__name__, [f'("{f.name}", {self.ctype(f.type)})' for f in record.decls]
            case c_ast.PtrDecl(type=c_ast.TypeDecl(type=c_ast.Struct(decls=None, name=struct))):
                return "handle", (struct,)
            case c_ast.PtrDecl(type=c_ast.TypeDecl(type=c_ast.IdentifierType(names=["void"]))):
                opaque = node.name.removesuffix("_t")
                return ("handle", (opaque,)) if node.name in self.notes["handles"] else ("void", ())
            case c_ast.PtrDecl(type=c_ast.FuncDecl() as function):
                parts = (self.ctype(function.type), *self.arguments(function).values())
                # ctypes passes a c_char_p as bytes up to the first NUL, and cuDNN separates lines by NUL.
                return "callback", ["Message" if part == "c_char_p" else part for part in parts]
        raise BindingsError(f"typedef {node.name}: the generator does not support this kind of typedef")

    def visit_Decl(self, node: Any) -> None:  # noqa: N802
        if isinstance(node.type, c_ast.FuncDecl):
            self.add_function(node)
        elif isinstance(node.type, c_ast.Enum):
            self.api.constants |= self.enumerate(node.type)

    def add_function(self, node: Any) -> None:
        args = self.arguments(node.type)
        for name in self.notes["device"].get(node.name, ()):
            if name not in args:
                raise BindingsError(f"[device] {node.name} has no argument {name}")
            args[name] = "c_void_p"
        result = node.type.type
        status = isinstance(result, c_ast.TypeDecl) and result.type.names == ["cudnnStatus_t"]
        header = node.coord.file
        self.api.functions.append(Function(node.name, header, self.ctype(result), args, status))

    def arguments(self, function: Any) -> dict[str, str]:
        params = function.args.params if function.args else []
        args = {param.name: self.ctype(param.type, argument=True) for param in params}
        return {} if args == {None: "None"} else args  # f(void)

    def ctype(self, node: Any, argument: bool = False) -> str:
        """Return the ctypes expression of a C type. An array as an argument is a pointer."""
        match node:
            case c_ast.TypeDecl(type=c_ast.IdentifierType(names=["void"])):
                return "None"
            case c_ast.TypeDecl(type=c_ast.IdentifierType(names=names)):
                if (name := " ".join(names)) in self.ctypes:
                    return self.ctypes[name]
            case c_ast.ArrayDecl() if not argument:
                return f"{self.ctype(node.type)} * {self.number(node.dim)}"
            case c_ast.PtrDecl(type=c_ast.TypeDecl(type=c_ast.IdentifierType(names=["void"]))):
                return "c_void_p"
            case c_ast.PtrDecl(
                type=c_ast.TypeDecl(quals=["const"], type=c_ast.IdentifierType(names=["char"]))
            ):
                return "c_char_p"
            case c_ast.PtrDecl() | c_ast.ArrayDecl():
                return f"POINTER({self.ctype(node.type)})"
        raise BindingsError(f"{node.coord}: the generator does not support this type")

    def enumerate(self, node: Any) -> dict[str, Any]:
        values: dict[str, int | float] = {}
        following: int | float = 0
        for item in node.values.enumerators:
            values[item.name] = self.numbers[item.name] = self.number(item.value) if item.value else following
            following = values[item.name] + 1
        return values

    def number(self, node: Any) -> Any:
        """Evaluate a constant expression."""
        match node:
            case c_ast.Constant(type="double" | "float"):
                return float(node.value.rstrip("fF"))
            case c_ast.Constant():
                return int(node.value.rstrip("uUlL"), 0)
            case c_ast.ID():
                return self.numbers[node.name]
            case c_ast.UnaryOp(op="-"):
                return -self.number(node.expr)
            case c_ast.BinaryOp(op="+"):
                return self.number(node.left) + self.number(node.right)
            case c_ast.BinaryOp(op="*"):
                return self.number(node.left) * self.number(node.right)
            case c_ast.BinaryOp(op="<<"):
                return self.number(node.left) << self.number(node.right)
        raise BindingsError(f"{node.coord}: the generator does not support this expression")
