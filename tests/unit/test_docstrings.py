"""Docstrings and signatures of public names: sections, examples without a device, the reference, types."""

from __future__ import annotations

import doctest
import inspect
import re
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import descriptors, dnn, reference, testing
from cudnn_ct.descriptors import Descriptor
from cudnn_ct.graph import candidates, offline
from cudnn_ct.ops.conv import graph
from tests.docstrings import all_examples, run

SECTIONS = re.compile(r"^([A-Z][a-z]+)\n-{4,}\n(.*?)(?=^[A-Z][a-z]+\n-{4,}\n|\Z)", re.MULTILINE | re.DOTALL)

# Public because public functions return them; the docstrings of these functions have the examples.
RETURNED = {
    "Availability",
    "BuiltGraph",
    "CapturedFunction",
    "ConvPlan",
    "GraphTensor",
    "LibraryFile",
    "LibraryInfo",
    "RNNReserve",
    "Stream",
}

NAMED = {f"ct.{name}": getattr(ct, name) for name in ct.__all__ if not inspect.ismodule(getattr(ct, name))}
NAMED |= {f"testing.{name}": getattr(testing, name) for name in testing.__all__}

FUNCTIONS = {name: value for name, value in NAMED.items() if inspect.isfunction(value)}
FUNCTIONS |= {
    f"ct.RNN.{name}": value
    for name, value in vars(ct.RNN).items()
    if inspect.isfunction(value) and not name.startswith("_") and len(inspect.signature(value).parameters) > 1
}
COMPUTING = {
    name: value
    for name, value in FUNCTIONS.items()
    if value.__module__.startswith("cudnn_ct.ops.") and not name.startswith("ct.RNN.")
}
COMPUTING |= {
    f"ct.RNN.{name}": getattr(ct.RNN, name) for name in ("forward", "backward_data", "backward_weights")
}
del COMPUTING["ct.batch_norm_overflow_detected"]


def sections(thing: Any) -> dict[str, str]:
    """Return the sections of a docstring by their titles."""
    return dict(SECTIONS.findall(inspect.getdoc(thing) or ""))


def described(text: str) -> list[str]:
    """Return the names that a section of parameters describes."""
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return [name.strip() for line in lines for name in line.partition(" : ")[0].split(",")]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_docstring_has_a_sentence_and_an_example(name: str) -> None:
    thing = NAMED[name]
    text = (type(thing) if name in ("ct.config", "ct.raw") else thing).__doc__ or ""
    assert re.match(r"\S.*\.(\n|\Z)", text)
    if inspect.isclass(thing) and issubclass(thing, Exception | tuple):
        assert len(text.split()) > 4  # errors and results have the examples of the functions that make them
        return
    owner = Descriptor if inspect.isclass(thing) and issubclass(thing, Descriptor) else thing
    assert name[3:] in RETURNED or re.search(r">>>|As of :func:`", sections(owner).get("Examples", ""))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_docstring_describes_parameters_results_and_errors(name: str) -> None:
    function, found = FUNCTIONS[name], sections(FUNCTIONS[name])
    signature = inspect.signature(function)
    taken = set(signature.parameters) - {"self"}
    assert sorted(described(found.get("Parameters", ""))) == sorted(taken)
    assert signature.return_annotation in ("None", None) or {"Returns", "Yields"} & set(found)
    assert "Raises" in found or not taken


def test_docstring_has_the_error_of_beta_only_with_that_parameter() -> None:
    named = {name for name, one in NAMED.items() if "``beta`` is given" in (one.__doc__ or "")}
    assert named == {name for name, one in FUNCTIONS.items() if "beta" in inspect.signature(one).parameters}


@pytest.mark.parametrize("name", sorted(COMPUTING))
def test_docstring_names_functions_of_cudnn_and_reports_determinism(name: str) -> None:
    notes = " ".join(sections(COMPUTING[name])["Notes"].split())
    assert re.search(r"``cudnn\w+", notes) or name == "ct.conv_algorithms"
    assert "from run to run" in notes


@pytest.mark.parametrize("name", sorted(dnn.__all__))
def test_dnn_docstring_is_one_line_with_a_link(name: str) -> None:
    text = inspect.getdoc(getattr(dnn, name)) or ""
    link = re.fullmatch(r".+\. See :(?:func|class|meth):`cudnn_ct\.([\w.]+)`\.", text)
    assert link, text
    assert attrgetter(link[1])(ct)


# --- examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", all_examples(device=False), ids=lambda test: test.name)
def test_example_runs_without_a_device(test: doctest.DocTest) -> None:
    run(test, names=test.globs)


def test_only_plain_convolutions_describe_legacy_algorithms() -> None:
    named = {name for name in ct.__all__ if '"winograd"' in (getattr(ct, name).__doc__ or "")}
    plain = {"conv", "conv_backward_data", "conv_backward_filter", "conv_plan", "conv_transpose"}
    assert named == {*plain, "conv_bias_activation", "conv_bias_activation_plan"}


# --- signatures of the reference and of public names -------------------------------------------------------


ON_A_DEVICE = {"algo", "precision", "deterministic", "workspace_limit", "strict", "stream"}

# Operations, and the public functions of shapes.
OPERATIONS = ("cudnn_ct.ops.", "cudnn_ct.shapes.")

# Parameters of such names that change the result: a softmax or its logarithm.
OF_MATHEMATICS = {("softmax", "algo"), ("softmax_backward", "algo")}

# The state of random numbers on a device, and the mask of dropout that a reference takes instead.
RANDOM = {"seed", "offset", "kept"}

# Operations without a mathematical definition: they select, prepare or query, or draw random numbers.
WITHOUT_REFERENCE = {
    *("batch_norm_overflow_detected", "conv_algorithms", "conv_bias_activation_plan", "conv_plan"),
    *("dropout", "dropout_backward"),
}


# The modules on the API pages.
MODULES = (ct, dnn, reference, testing, descriptors, candidates, offline, graph)


def public(module: ModuleType) -> set[str]:
    return set(getattr(module, "__all__", ("Descriptor", "Setter")))


def is_operation(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith(OPERATIONS)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults, in order."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_reference_has_every_operation_and_no_other() -> None:
    functions = {name for name in public(ct) if is_operation(getattr(ct, name))}
    assert public(reference) == functions - WITHOUT_REFERENCE


@pytest.mark.parametrize("name", sorted(public(reference)))
def test_reference_has_the_signature_of_its_operation(name: str) -> None:
    ours = parameters(getattr(ct, name))
    mathematical = [row for row in ours if row[0] not in ON_A_DEVICE or (name, row[0]) in OF_MATHEMATICS]
    drawn = [row for row in mathematical if row[0] not in RANDOM]
    assert [row for row in parameters(getattr(reference, name)) if row[0] not in RANDOM] == drawn


def annotations(value: Any) -> list[str]:
    """Return the annotations of a function, or of all methods and properties of a class or an object."""
    kind = value if inspect.isclass(value) else type(value)
    own = [vars(base) for base in kind.__mro__ if base.__module__.startswith("cudnn_ct.")]
    members = [one for row in own for name, one in row.items() if not re.match("_[^_]", name)]
    functions = [value, *(getattr(one, "fget", getattr(one, "__func__", one)) for one in members)]
    return [str(one) for f in functions if inspect.isfunction(f) for one in f.__annotations__.values()]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_signatures_have_types_other_than_any(module: ModuleType) -> None:
    names = public(module) - {"raw"}  # whose attributes are functions, enums and types
    found = {name: " ".join(annotations(getattr(module, name))) for name in names}
    # NumPy writes an array of any dtype like this.
    assert not [n for n, types in found.items() if "Any" in re.sub(r"(NDArray|np.dtype)\[Any]", "", types)]


@pytest.mark.parametrize("name", sorted(public(reference)))
def test_reference_docstring_names_its_operation(name: str) -> None:
    if not name.endswith("_output_shape"):  # the same function as in the package
        text = inspect.getdoc(getattr(reference, name)) or ""
        assert text.splitlines()[0].endswith(f"See :func:`cudnn_ct.{name}`.")
