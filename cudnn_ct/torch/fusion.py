"""Models for inference whose convolutions have batch norm, residual and activation folded in, by torch.fx."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from .nn import ConvBiasActivation1d, ConvBiasActivation2d, ConvBiasActivation3d

__all__ = ["fuse"]

_CONVOLUTIONS = {
    nn.Conv1d: ConvBiasActivation1d,
    nn.Conv2d: ConvBiasActivation2d,
    nn.Conv3d: ConvBiasActivation3d,
}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")

# Activations by their module, function or method.
_ACTIVATIONS: dict[Any, str] = {
    **dict.fromkeys((nn.ReLU, F.relu, torch.relu, torch.relu_, "relu", "relu_"), "relu"),
    **dict.fromkeys((nn.SiLU, F.silu), "silu"),
    **dict.fromkeys((nn.Sigmoid, torch.sigmoid, "sigmoid"), "sigmoid"),
    **dict.fromkeys((nn.Tanh, torch.tanh, "tanh"), "tanh"),
    **dict.fromkeys((nn.GELU, F.gelu), "gelu"),
}


def fuse(model: nn.Module) -> fx.GraphModule:
    """Return a copy of an inference model with fused convolutions.

    A batch norm that follows a convolution becomes a part of its weights and bias. A residual that is added
    before an activation (relu, silu, sigmoid, tanh, gelu), and the activation are computed in the same call,
    if nothing else uses the values between. A residual has the shape of the result: it is the result of a
    module, an activation or an addition, or an input of the model.

    Parameters
    ----------
    model : torch.nn.Module in evaluation mode
        It is traced by :func:`torch.fx.symbolic_trace`, and does not change.

    Returns
    -------
    torch.fx.GraphModule
        With modules of :class:`cudnn_ct.torch.nn.ConvBiasActivation2d`.

    Raises
    ------
    TypeError
        The model is not a module, or was compiled or scripted, which cannot be traced.
    ValueError
        The model is in training mode.

    Notes
    -----
    Other modules are those of torch, which :func:`enable` serves. The fused model has no gradient for the
    folded statistics: fuse a trained model.

    Examples
    --------
    >>> fused = cudnn_ct.torch.fuse(model.eval())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is not a torch.nn.Module: got {type(model).__name__}")
    if hasattr(model, "_orig_mod") or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model cannot be traced: got {type(model).__name__}, expected the module that was compiled; "
            "call fuse() first, then compile its result"
        )
    if model.training:
        raise ValueError(
            "model is in training mode, whose batch norms have other statistics; call model.eval()"
        )
    traced = fx.symbolic_trace(model)
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and type(modules[node.target]) in _CONVOLUTIONS:
            _fuse_from(traced, modules, node)
    traced.delete_all_unused_submodules()
    traced.graph.lint()
    traced.recompile()
    return traced


def _fuse_from(traced: fx.GraphModule, modules: dict[str, nn.Module], node: fx.Node) -> None:
    """Fold the operations that follow a convolution into it."""
    conv: Any = modules[node.target]
    if conv.padding_mode != "zeros" or _is_shared(traced, node):
        return
    weight, bias = conv.weight, conv.bias
    last, residual, activation = node, None, "identity"
    norm = _only_user(last)
    if norm is not None and norm.op == "call_module" and _has_statistics(modules[norm.target]):
        batch_norm: Any = modules[norm.target]
        statistics = (batch_norm.running_mean, batch_norm.running_var, batch_norm.eps)
        weight, bias = fuse_conv_bn_weights(weight, bias, *statistics, batch_norm.weight, batch_norm.bias)
        last = norm
    addition = _only_user(last)
    if addition is not None and _is_addition(addition) and _is_whole(addition, last, modules):
        (residual,) = [one for one in addition.args if one is not last]
        last = addition
    after = _only_user(last)
    if after is not None and (found := _activation_of(after, modules)) is not None:
        activation, last = found, after
    elif last is addition:  # the addition of a bias and a residual alone is not faster
        last, residual = addition.args[0] if addition.args[0] is not residual else addition.args[1], None
    if last is node:
        return
    _replace(traced, modules, node, last, residual, _module_of(conv, weight, bias, activation))


def _replace(
    traced: fx.GraphModule,
    modules: dict[str, nn.Module],
    node: fx.Node,
    last: fx.Node,
    residual: fx.Node | None,
    module: nn.Module,
) -> None:
    """Put a module in the place of the nodes from a convolution to the last one that it computes."""
    traced.set_submodule(node.target, module)
    modules[node.target] = module
    with traced.graph.inserting_before(last):
        operands = (node.args[0],) if residual is None else (node.args[0], residual)
        fused = traced.graph.call_module(node.target, operands)
    last.replace_all_uses_with(fused)
    while last is not node:
        before = next(one for one in last.all_input_nodes if one is not residual)
        traced.graph.erase_node(last)
        last = before
    traced.graph.erase_node(node)


def _module_of(conv: Any, weight: Any, bias: Any, activation: str) -> nn.Module:
    """Return the fused module with the geometry of a convolution, and its parameters."""
    kind = _CONVOLUTIONS[type(conv)]
    geometry = {
        "stride": conv.stride,
        "padding": conv.padding,
        "dilation": conv.dilation,
        "groups": conv.groups,
    }
    sizes = (conv.in_channels, conv.out_channels, conv.kernel_size)
    module: Any = kind(*sizes, **geometry, bias=False, device="meta", activation=activation)
    layout = torch.channels_last if _is_channels_last(conv.weight) else torch.contiguous_format
    wanted = conv.weight.requires_grad
    module.weight = nn.Parameter(weight.detach().clone(memory_format=layout), wanted)
    module.bias = None if bias is None else nn.Parameter(bias.detach().to(weight.dtype).clone(), wanted)
    return module.eval()


def _is_channels_last(weight: torch.Tensor) -> bool:
    return weight.dim() == 4 and bool(weight.is_contiguous(memory_format=torch.channels_last))


# --- what follows a node -----------------------------------------------------------------------------------


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_shared(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a module is called at several places."""
    calls = [one for one in traced.graph.nodes if one.op == "call_module" and one.target == node.target]
    return len(calls) > 1


def _has_statistics(module: Any) -> bool:
    return isinstance(module, _NORMS) and module.running_mean is not None


def _is_addition(node: fx.Node) -> bool:
    """Return whether a node adds two values of the graph."""
    if node.op not in ("call_function", "call_method") or node.target not in _ADDITIONS or node.kwargs:
        return False
    return (
        len(node.args) == 2 and len({*node.args}) == 2 and all(isinstance(one, fx.Node) for one in node.args)
    )


def _is_whole(addition: fx.Node, last: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Return whether a value is a residual, and not one that the addition may broadcast."""
    (residual,) = [one for one in addition.args if one is not last]
    if residual.op in ("call_module", "placeholder"):
        return True
    return _is_addition(residual) or _activation_of(residual, modules) is not None


def _activation_of(node: fx.Node, modules: dict[str, nn.Module]) -> str | None:
    """Return the name of the activation that a node computes, or None."""
    if node.op == "call_module":
        module: Any = modules[node.target]
        name = _ACTIVATIONS.get(type(module))
        plain = name != "gelu" or module.approximate == "none"
        return name if plain else None
    if node.op not in ("call_function", "call_method") or len(node.args) != 1:
        return None
    if node.kwargs and {*node.kwargs} - {"inplace"}:
        return None
    return _ACTIVATIONS.get(node.target)
