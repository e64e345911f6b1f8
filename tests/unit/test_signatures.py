"""`reference` has the names of `ops`, with the same parameters except those that concern only a device."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, reference

ON_A_DEVICE = {"algo", "precision", "deterministic", "workspace_limit", "strict", "stream"}

# Operations, and the public functions of shapes.
OPERATIONS = ("cudnn_ct.ops.", "cudnn_ct.shapes.")

# Parameters of such names that change the result: a softmax or its logarithm.
OF_MATHEMATICS = {("softmax", "algo"), ("softmax_backward", "algo")}

# Operations without a mathematical definition: they select, prepare or query, or draw random numbers.
WITHOUT_REFERENCE = {
    *("batch_norm_overflow_detected", "conv_algorithms", "conv_bias_activation_plan", "conv_plan"),
    *("dropout", "dropout_backward"),
}


def public(module: ModuleType) -> set[str]:
    return set(module.__all__)


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
    assert parameters(getattr(reference, name)) == mathematical


def annotations(value: Any) -> list[str]:
    """Return the annotations of a function, or of the constructor and public methods of a class."""
    if inspect.isclass(value):
        methods = (one for name, one in vars(value).items() if name[0] != "_" or name == "__call__")
        functions = [value, *filter(inspect.isfunction, methods)]
    else:
        functions = [value]
    signatures = [inspect.signature(function) for function in functions]
    parameters = [one.annotation for signature in signatures for one in signature.parameters.values()]
    return [str(one) for one in (*parameters, *(signature.return_annotation for signature in signatures))]


@pytest.mark.parametrize("module", [dnn, reference], ids=lambda module: module.__name__)
def test_public_signatures_have_types_other_than_any(module: ModuleType) -> None:
    found = {name: annotations(getattr(module, name)) for name in public(module)}
    assert not [name for name, types in found.items() if any("Any" in one for one in types)]


@pytest.mark.parametrize("name", sorted(public(reference)))
def test_reference_docstring_names_its_operation(name: str) -> None:
    if not name.endswith("_output_shape"):  # the same function as in the package
        text = inspect.getdoc(getattr(reference, name)) or ""
        assert text.splitlines()[0].endswith(f"See :func:`cudnn_ct.{name}`.")
