"""Batch normalisation by graphs alone, for a cuDNN that has no legacy calls."""

from __future__ import annotations

from ...context import Context
from ...plans.base import Plan, tensors_of
from ...shapes.norm import NormGradient, NormInference, NormTraining, norm_parameter_shape, norm_samples
from ...shapes.specs import TensorSpec
from .._formulas import Formulas, Matrix, Term, matrix_of, pointwise, total

_DATA = {"x", "y", "z", "dx", "dy", "dz"}


class _Norm:
    """The tensors of a problem as terms by name, and the formulas of its results."""

    def __init__(
        self, problem: NormTraining | NormInference | NormGradient, matrix: Matrix, context: Context
    ) -> None:
        self._specs = tensors_of(problem)
        self._names = list(self._specs)
        self.formulas = Formulas(matrix, len(self._names), context)
        first = len(self._names) - len(problem.results)
        given = self._names[:first] + [name for name in self._names if name.startswith("running_")]
        self.terms = {
            name: self.formulas.tensor(
                self._names.index(name), self._specs[name].dtype, vector=name not in _DATA
            )
            for name in given
        }
        self.share = 1 / norm_samples(problem.x.shape, problem.mode)

    def store(self, name: str, term: Term) -> Term:
        """Compute a result."""
        return self.formulas.store(term, self._names.index(name), self._specs[name].dtype)


def _norm(problem: NormTraining | NormInference | NormGradient, context: Context) -> _Norm | None:
    shape = norm_parameter_shape(problem.x.shape, problem.mode)
    data: list[TensorSpec] = []
    parameters: list[TensorSpec] = []
    for name, spec in tensors_of(problem).items():
        whole = spec
        if spec.shape != shape and name not in _DATA:  # (C,)
            whole = TensorSpec(shape, spec.strides * len(shape), spec.dtype)
        (data if name in _DATA else parameters).append(whole)
    matrix = matrix_of(data, parameters)
    # Matrices one behind another would have sums of each.
    return None if matrix is None or matrix.number > 1 else _Norm(problem, matrix, context)


def training_by_formulas(problem: NormTraining, context: Context) -> Plan | None:
    """Return a plan of a training step: the mean, the variance, the result and the running statistics."""
    norm = _norm(problem, context)
    if norm is None:
        return None
    x, share = norm.terms["x"], norm.share
    mean = norm.store("mean", total(x) * share)
    difference = x - mean
    variance = total(difference * difference) * share
    inverse = norm.store("invstd", pointwise("rsqrt", variance + problem.epsilon))
    y = difference * inverse * norm.terms["scale"] + norm.terms["bias"]
    y = y + norm.terms["z"] if problem.z else y
    norm.store("y", pointwise("relu_fwd", y) if problem.activation else y)
    if problem.running_mean:
        weight, unbiased = problem.momentum, 1 / (1 - share)
        for name, value in (("running_mean", mean * weight), ("running_var", variance * (weight * unbiased))):
            norm.store(name, norm.terms[name] * (1 - weight) + value)
    return norm.formulas.program()


def inference_by_formulas(problem: NormInference, context: Context) -> Plan | None:
    """Return a plan of a normalisation by given statistics."""
    norm = _norm(problem, context)
    if norm is None:
        return None
    x, scale, bias, mean, var = (norm.terms[name] for name in ("x", "scale", "bias", "mean", "var"))
    norm.store("y", (x - mean) * (pointwise("rsqrt", var + problem.epsilon) * scale) + bias)
    return norm.formulas.program()


def gradient_by_formulas(problem: NormGradient, context: Context) -> Plan | None:
    """Return a plan of the gradients, with the statistics of x if they are not given."""
    norm = _norm(problem, context)
    if norm is None:
        return None
    x, dz, share = norm.terms["x"], norm.terms["dy"], norm.share
    if problem.activation:
        dz = norm.store("dz", pointwise("relu_bwd", norm.terms["y"], dz))
    mean = norm.terms.get("mean") or total(x) * share
    difference = x - mean
    inverse = norm.terms.get("invstd")
    if inverse is None:
        inverse = pointwise("rsqrt", total(difference * difference) * share + problem.epsilon)
    normal = difference * inverse
    dbias = norm.store("dbias", total(dz))
    dscale = norm.store("dscale", total(dz * normal))
    norm.store("dx", (dz - dbias * share - normal * (dscale * share)) * (inverse * norm.terms["scale"]))
    return norm.formulas.program()
