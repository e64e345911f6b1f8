"""Attributes of arrays of other libraries: errors that name the attribute or the function of this package."""

from __future__ import annotations

from numbers import Number
from typing import Any, NoReturn, TypeVar

from ._foreign_names import ATTRIBUTES

Array = TypeVar("Array", bound=type)

# Methods and properties of arrays of torch, NumPy, CuPy, JAX and TensorFlow: how the same is written for x.
_ATTRIBUTES = {
    name: ours
    for ours, names in {
        "x itself, which is on the device; ct.asarray(x) copies from the host": "cuda",
        "x.numpy()": "cpu get asnumpy tobytes",
        "x.numpy().item()": "item",
        "x.numpy().tolist()": "tolist",
        "x.numpy() for the host, ct.asarray(x) for the device, or x.astype(dtype)": "to type",
        "ct.synchronize()": "block_until_ready",
        "x.astype('float16')": "half",
        "x.astype('float32')": "float",
        "x.astype('float64')": "double",
        "x.astype('bfloat16')": "bfloat16",
        "x.astype('int32')": "int",
        "x.astype('int64')": "long",
        "x.astype('bool')": "bool",
        "x.transpose(axes)": "permute swapaxes swapdims movedim moveaxis",
        "x.T": "t mT H",
        "x.reshape(shape)": "view flatten ravel squeeze unsqueeze unflatten resize resize_ expand_dims",
        "x.packed('nchw'), a copy": "contiguous",
        "x.layout, which is None for memory that is not contiguous": "is_contiguous flags",
        "x.ndim": "dim ndimension rank",
        "x.size": "numel nelement",
        "x.itemsize": "element_size",
        "x.pointer": "data_ptr data ptr",
        "x.strides, in bytes": "stride",
        "x.device": "is_cuda get_device",
        "x.copy()": "clone",
        "ct.add(ct.zeros(shape), x), which broadcasts x": "expand expand_as broadcast_to",
        "ct.transform(y, out=x)": "copy_ set assign",
        "x.fill(0)": "zero_",
        "x.fill(value)": "fill_",
        "ct.transform(y, out=x[...])": "at index_put_",
        "ct.activation(x, mode='relu', out=x)": "relu_",
        "ct.reduce(x, op='norm2')": "norm",
        "ct.op_tensor(x, op='sqrt')": "sqrt",
        "ct.add(x, y)": "add",
        "ct.add(x, y, out=x)": "add_",
        "ct.matmul(a, b)": "matmul",
        "ct.softmax(x, axis=...)": "softmax",
        "x itself: arrays record no gradients": "detach detach_",
        "the function with the suffix _backward, because arrays record no gradients": "backward grad grad_fn "
        "is_leaf requires_grad requires_grad_ retain_grad",
    }.items()
    for name in names.split()
}
# Methods with the names of functions.
_FUNCTIONS = """
    sum mean prod max amax min amin argmax argmin mul multiply sub subtract div divide pow dot mm bmm relu
    sigmoid tanh log_softmax exp log sin cos maximum minimum where
"""
_ATTRIBUTES |= {name: f"ct.{ATTRIBUTES[name]}" for name in _FUNCTIONS.split()}

# Arithmetic: the special method, its operator, and the function.
_OPERATORS = {
    "add": ("+", "ct.add(a, b)"),
    "sub": ("-", "ct.op_tensor(a, b, alpha2=-1)"),
    "mul": ("*", "ct.op_tensor(a, b, op='mul'), or ct.transform(x, alpha=...) for a number"),
    "truediv": ("/", "ct.Graph(), which has div, or ct.transform(x, alpha=1 / number) for a number"),
    "pow": ("**", "ct.Graph(), which has pow"),
    "matmul": ("@", "ct.matmul(a, b)"),
    "neg": ("-", "ct.transform(x, alpha=-1)"),
}


class _ForeignAttribute:
    """An attribute that an array does not have, as :func:`hasattr` and :func:`dir` see it.

    A ``__getattr__`` of the class would make each read of its other attributes slower.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, array: object, owner: type) -> NoReturn:
        raise AttributeError(self.text)


def with_hints(cls: Array) -> Array:
    """Let attributes and operators that other libraries' arrays have raise errors that name ours."""
    for name, hint in _ATTRIBUTES.items():
        text = f"a {cls.__name__} has no attribute {name!r}; write {hint}"
        setattr(cls, name, _ForeignAttribute(text))
    for name, (sign, hint) in _OPERATORS.items():
        method = _rejected(cls, f"a {cls.__name__} has no operator {sign}; write {hint}")
        for special in (name, f"r{name}"):
            setattr(cls, f"__{special}__", method)
    setattr(cls, "__dir__", _known_names)  # noqa: B010  # mypy rejects the assignment
    return cls


def _known_names(array: object) -> list[str]:
    """Return the names of an array for ``dir``, without those of other libraries."""
    return [name for name in object.__dir__(array) if name not in _ATTRIBUTES]


def _rejected(cls: type, text: str) -> Any:
    """Return a method that raises for arrays and numbers, and leaves other operands to their own classes."""

    def method(_: object, other: object = 0) -> object:
        if isinstance(other, (cls, Number)):
            raise TypeError(text)
        return NotImplemented

    return method
