"""Write the table of docs/special-values.md: what operations make of NaN, infinities and large numbers.

python tools/special_values.py --measure   # on a GPU: compute all rows by the loaded cuDNN, and keep them
python tools/special_values.py             # write the page from benchmarks/results/special_values.json
python tools/special_values.py --check     # exit 1 if the page is out of date

Each row is an operation and its operands, computed by a graph of that operation alone or by a call, and the
result of NumPy. The page lists the rows in which a version differs, and counts the others. A version that was
measured before keeps its results until it is measured again; CUDNN_CT_LIBRARY names another cuDNN.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "special-values.md"
RESULTS = ROOT / "benchmarks" / "results" / "special_values.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from performance_docs import put  # noqa: E402

NAN, INF = float("nan"), float("inf")
ANY = (NAN, INF, -INF, 0.0, -0.0, 100.0, -100.0)
COLUMNS = 16  # of a matrix whose first elements are the operands

Values = tuple[float, ...]
Function = Callable[..., Any]


class Row(NamedTuple):
    """An operation, the operands of each case, and functions that compute all cases here and in NumPy.

    ``dtype`` is that of the result; operands are float32.
    """

    name: str
    cases: tuple[Values, ...]
    compute: Function
    expected: Function
    dtype: str = "float32"


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if options.measure:
        found |= measured()
        RESULTS.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    written = put(page, "special-values", table(found), str(PAGE))
    if options.check:
        return 0 if written == page else 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


# --- computing ---------------------------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """Return the results of all rows by the loaded cuDNN, under its version; None where it has no engine."""
    import cudnn_ct as ct
    from cudnn_ct import _lib

    found: dict[str, list[str] | None] = {}
    for row in rows():
        try:
            found[row.name] = texts(row.compute(row.cases), row)
        except ct.NotSupportedError:
            found[row.name] = None
    return {_lib.load().version_text: found}


def texts(values: Any, row: Row) -> list[str]:
    """Return the results of the cases as short texts."""
    numbers = np.asarray(values, np.float64).ravel()[: len(row.cases)]
    return [text(float(number)) for number in numbers]


def text(number: float) -> str:
    """Return a number with six digits; infinities and NaN have no sign but that of -inf."""
    if np.isnan(number):
        return "NaN"
    return f"{number:.6g}" if np.isfinite(number) else ("inf" if number > 0 else "-inf")


def expected_of(row: Row) -> list[str]:
    """Return the results of NumPy as texts."""
    operands = [np.array(column, np.float32) for column in zip(*row.cases, strict=True)]
    with np.errstate(all="ignore"):
        return texts(row.expected(*operands), row)


def rows() -> Iterator[Row]:
    """Yield the rows of all operations."""
    yield from conversions()
    yield from elementwise()
    yield from gradients()
    yield from binary()
    yield from reductions()
    yield from calls()


def matrix(numbers: Sequence[float]) -> Any:
    """Return a float32 matrix on the device that begins with these numbers; the others are 1."""
    import cudnn_ct as ct

    filled = np.ones((4, COLUMNS), np.float32)
    filled.reshape(-1)[: len(numbers)] = numbers
    return ct.asarray(filled)


def by_graph(build: Function, dtype: str = "float32") -> Function:
    """Return a function that computes cases, each of one or two numbers, by a graph of one operation."""

    def compute(cases: tuple[Values, ...]) -> Any:
        import cudnn_ct as ct

        graph = ct.Graph()
        operands = [matrix(column) for column in zip(*cases, strict=True)]
        inputs = [graph.input((4, COLUMNS)) for _ in operands]
        return graph.build(build(graph, *inputs).output(dtype=dtype))(*operands).numpy()

    return compute


def each(*numbers: float) -> tuple[Values, ...]:
    """Return cases of one operand."""
    return tuple((number,) for number in numbers)


# --- operations --------------------------------------------------------------------------------------------

BEYOND = {
    "float16": (65504.0, 65519.0, 65520.0, 1e6, -1e6, 6e-8, 2e-8, NAN, INF, -INF),
    "bfloat16": (3.38e38, 3.39e38, 3.4e38, -3.4e38, NAN, INF, -INF),
    "float8_e4m3": (448.0, 463.0, 464.0, 465.0, 480.0, 1e6, -1e6, 2e-3, 1e-3, 9e-4, NAN, INF, -INF),
    "float8_e5m2": (57344.0, 61439.0, 61440.0, 65536.0, 70000.0, 3.4e38, 1e-5, 7e-6, NAN, INF, -INF),
    "int8": (127.0, 127.4, 127.5, 128.0, 300.0, -129.0, 0.5, 1.5, 2.5, -0.5, NAN, INF, -INF),
    "uint8": (255.0, 255.5, 256.0, 300.0, -1.0, -300.0, 0.5, 1.5, 2.5, NAN, INF, -INF),
    "int32": (2.5, 3.5, 2.0**31, -(2.0**31), 3e9, -3e9, 1e20, NAN, INF, -INF),
}


def conversions() -> Iterator[Row]:
    """Yield conversions of float32; those to integers are compared with a rounding to even that saturates."""
    for dtype, numbers in BEYOND.items():
        build = by_graph(lambda graph, x: graph.identity(x), dtype)
        yield Row(f"float32 to {dtype}", each(*numbers), build, converter(dtype), dtype)


def converter(dtype: str) -> Function:
    """Return the conversion of NumPy, or of a rounding that saturates."""
    from cudnn_ct.dtypes import as_dtype

    kind = as_dtype(dtype).numpy
    if "float" in dtype:
        return lambda x: x.astype(kind).astype(np.float64)
    limits = np.iinfo(kind)
    return lambda x: np.clip(np.rint(np.nan_to_num(np.float64(x), nan=0.0)), limits.min, limits.max)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.float64(x)))


def erf(x: Any) -> Any:
    from math import erf as one

    return np.array([one(number) for number in np.asarray(x, np.float64)])


def elementwise() -> Iterator[Row]:
    """Yield operations of one operand."""
    functions: dict[str, tuple[Function, Function]] = {
        "relu": (lambda g, x: g.relu(x), lambda x: np.maximum(x, 0)),
        "relu, upper=6": (lambda g, x: g.relu(x, upper=6.0), lambda x: np.clip(x, 0, 6)),
        "relu, slope=0.1": (lambda g, x: g.relu(x, slope=0.1), lambda x: np.where(x < 0, 0.1 * x, x)),
        "elu": (lambda g, x: g.elu(x), lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
        "swish": (lambda g, x: g.swish(x), lambda x: np.float64(x) * sigmoid(x)),
        "gelu": (lambda g, x: g.gelu(x), lambda x: x / 2 * (1 + erf(x / 2**0.5))),
        "gelu, approximate": (
            lambda g, x: g.gelu(x, approximate=True),
            lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * np.float64(x) ** 3))),
        ),
        "softplus": (lambda g, x: g.softplus(x), lambda x: np.logaddexp(0, np.float64(x))),
        "sigmoid": (lambda g, x: g.sigmoid(x), sigmoid),
        "erf": (lambda g, x: g.erf(x), erf),
    }
    for name in ("tanh", "abs", "exp", "log", "sqrt", "floor", "ceil", "sin", "cos"):
        functions[name] = (lambda g, x, name=name: getattr(g, name)(x)), getattr(np, name)
    functions["neg"] = (lambda g, x: g.neg(x)), np.negative
    functions["reciprocal"] = (lambda g, x: g.reciprocal(x)), lambda x: 1 / x
    functions["rsqrt"] = (lambda g, x: g.rsqrt(x)), lambda x: 1 / np.sqrt(x)
    for name, (build, expected) in functions.items():
        yield Row(name, each(*ANY), by_graph(build), expected)


SLOPES: dict[str, Function] = {
    "relu": lambda x: np.where(x <= 0, 0.0, 1.0),
    "tanh": lambda x: 1 - np.tanh(np.float64(x)) ** 2,
    "sigmoid": lambda x: sigmoid(x) * (1 - sigmoid(x)),
    "elu": lambda x: np.where(x > 0, 1, np.exp(np.minimum(np.float64(x), 0))),
    "swish": lambda x: sigmoid(x) * (1 + np.float64(x) * (1 - sigmoid(x))),
}


def gradients() -> Iterator[Row]:
    """Yield the slopes of activations, by gradients of ones: of relu 1 at NaN, as in PyTorch."""
    for name, slope in SLOPES.items():

        def build(g: Any, x: Any, name: str = name) -> Any:
            return getattr(g, f"{name}_backward")(g.input(x.shape), x)

        def compute(cases: tuple[Values, ...], build: Function = build) -> Any:
            import cudnn_ct as ct

            graph, x = ct.Graph(), matrix([case[0] for case in cases])
            built = graph.build(build(graph, graph.input(x.shape)).output(dtype="float32"))
            return built(x, ct.full(x.shape, 1, "float32")).numpy()

        def call(cases: tuple[Values, ...], name: str = name) -> Any:
            import cudnn_ct as ct

            x = matrix([case[0] for case in cases])
            keywords: dict[str, Any] = {"mode": name, "coefficient": 1.0}
            y = ct.activation(x, **keywords)
            return ct.activation_backward(ct.full(x.shape, 1, "float32"), x, y, **keywords).numpy()

        yield Row(f"slope of {name}", each(*ANY), compute, slope)
        yield Row(f"ct.activation_backward {name}", each(*ANY), call, slope)


def binary() -> Iterator[Row]:
    """Yield operations of two operands."""
    extremes = ((NAN, 1.0), (1.0, NAN), (NAN, NAN), (INF, NAN), (INF, -INF))
    compared = ((NAN, NAN), (NAN, 1.0), (1.0, NAN), (INF, INF), (0.0, -0.0))
    functions = {
        "maximum": (extremes, np.maximum),
        "minimum": (extremes, np.minimum),
        "add": (((INF, -INF), (NAN, 1.0), (3e38, 3e38)), np.add),
        "mul": (((0.0, INF), (0.0, NAN), (1e30, 1e30), (1e-30, 1e-30)), np.multiply),
        "div": (((1.0, 0.0), (-1.0, 0.0), (0.0, 0.0), (INF, INF), (1.0, INF)), np.divide),
        "pow": (((0.0, 0.0), (NAN, 0.0), (1.0, NAN), (-8.0, 1 / 3), (-2.0, 3.0), (0.0, -1.0)), np.power),
        "mod": (((5.0, 0.0), (-5.0, 3.0), (5.0, -3.0), (5.0, INF)), np.fmod),
        **{name: (compared, getattr(np, name)) for name in ("equal", "not_equal", "less", "greater_equal")},
    }
    for name, (cases, expected) in functions.items():
        build = by_graph(lambda g, x, b, name=name: getattr(g, name)(x, b))
        yield Row(name, cases, build, expected)


ROWS = ((NAN, 1.0), (NAN, NAN), (-INF, -INF), (INF, INF), (INF, -INF), (NAN, INF))


def in_rows(compute: Function) -> Function:
    """Return a function that computes cases, each of which is a row of two numbers, which repeat."""

    def computed(cases: tuple[Values, ...]) -> Any:
        import cudnn_ct as ct

        return compute(ct, ct.asarray(np.tile(np.array(cases, np.float32), (1, COLUMNS // 2))))

    return computed


def reductions() -> Iterator[Row]:
    """Yield reductions of rows by graphs and by calls, and softmax."""

    def graph_of(op: str) -> Function:
        def compute(ct: Any, x: Any) -> Any:
            graph = ct.Graph()
            return graph.build(graph.reduce(graph.input(x.shape), op, 1))(x).numpy()

        return compute

    functions: dict[str, Function] = {
        "max": np.maximum,
        "min": np.minimum,
        "amax": lambda a, b: np.maximum(abs(a), abs(b)),
    }
    for op, expected in functions.items():
        yield Row(f"reduction {op}", ROWS, in_rows(graph_of(op)), expected)
        call = in_rows(lambda ct, x, op=op: ct.reduce(x, op=op, axis=1).numpy())
        yield Row(f"ct.reduce {op}", ROWS, call, expected)
    first = in_rows(lambda ct, x: ct.softmax(x).numpy()[:, 0])
    yield Row("ct.softmax, first element", ROWS, first, lambda a, b: softmax(a, b))


def softmax(a: Any, b: Any) -> Any:
    powers = [np.exp(one - np.maximum(a, b)) for one in (a, b)]
    return powers[0] / (sum(powers) * (COLUMNS // 2))


def calls() -> Iterator[Row]:
    """Yield calls of the package on one operand."""

    def call(name: str, **keywords: Any) -> Function:
        def compute(cases: tuple[Values, ...]) -> Any:
            import cudnn_ct as ct

            return getattr(ct, name)(matrix([case[0] for case in cases]), **keywords).numpy()

        return compute

    functions: dict[str, Function] = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": sigmoid,
        "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        "swish": lambda x: np.float64(x) * sigmoid(x),
    }
    more = {"elu": {"coefficient": 1.0}}
    for mode, expected in functions.items():
        yield Row(
            f"ct.activation {mode}", each(*ANY), call("activation", mode=mode, **more.get(mode, {})), expected
        )


# --- page --------------------------------------------------------------------------------------------------


def table(found: dict[str, Any]) -> str:
    """Return the table of the page: the cases in which a version differs from NumPy."""
    versions = list(found)
    lines = [
        f"| operation | operands | NumPy | {' | '.join(f'cuDNN {version}' for version in versions)} |",
        f"|---|---|---|{'---|' * len(versions)}",
    ]
    equal, missing = dict.fromkeys(versions, 0), {version: list[str]() for version in versions}
    for row in rows():
        wanted = expected_of(row)
        for place, case in enumerate(row.cases):
            got = {version: found[version].get(row.name) for version in versions}
            cells = {version: "-" if one is None else one[place] for version, one in got.items()}
            for version in versions:
                equal[version] += alike(cells[version], wanted[place])
            if any(cell != "-" and not alike(cell, wanted[place]) for cell in cells.values()):
                operands = ", ".join(text(float(np.float32(number))) for number in case)
                lines.append(f"| {row.name} | {operands} | {wanted[place]} | {' | '.join(cells.values())} |")
        for version in versions:
            if found[version].get(row.name, ()) is None:
                missing[version].append(row.name)
    lines.append("")
    for version in versions:
        without = f"; no engine for {', '.join(missing[version])}" if missing[version] else ""
        lines.append(f"With cuDNN {version}, {equal[version]} other cases are equal{without}.")
    return "\n".join(lines)


def alike(cell: str, wanted: str) -> bool:
    """Return whether two texts are the same special value, or numbers that differ by rounding."""
    if cell == wanted:
        return True
    if cell == "-" or "NaN" in (cell, wanted):
        return False
    got, value = float(cell), float(wanted)
    return bool(np.isfinite(got) and np.isfinite(value) and abs(got - value) <= 1e-5 * abs(value) + 1e-37)


if __name__ == "__main__":
    sys.exit(main())
