"""Models with folded convolutions: their graphs, and their values on the fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cudnn_ct.torch as ctt
from cudnn_ct.torch.nn import ConvBiasActivation2d
from tests.fake.cudnn import FakeCudnn


class Residual(nn.Module):
    """A basic block of a residual network with a projection, as torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return self.relu(y)


class Others(nn.Module):
    """Convolutions that must not, or may partly, be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.shared = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm, self.shift = nn.BatchNorm2d(4), nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.twice(x))
        y = y + torch.sigmoid(y)  # two uses
        y = torch.relu(self.shared(y) + self.shift)  # the parameter is broadcast
        return self.shared(y)


def prepared(model: nn.Module) -> nn.Module:
    """Return a model whose batch norms have statistics."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


@torch.no_grad()
def test_a_residual_block_becomes_three_convolutions(door: FakeCudnn) -> None:
    model = prepared(Residual())
    names = set(model.state_dict())
    fused = ctt.fuse(model)
    calls = [node for node in fused.graph.nodes if node.op not in ("placeholder", "output")]
    modules = [fused.get_submodule(node.target) for node in calls]
    assert all(type(module) is ConvBiasActivation2d for module in modules)
    assert sorted((node.target, fused.get_submodule(node.target).activation) for node in calls) == [
        ("conv1", "relu"),
        ("conv2", "relu"),
        ("down.0", "identity"),
    ]
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)
    assert set(model.state_dict()) == names
    assert type(model.conv1) is nn.Conv2d


@torch.no_grad()
def test_values_with_other_uses_are_kept(door: FakeCudnn) -> None:
    model = prepared(Others())
    fused = ctt.fuse(model)
    assert type(fused.twice) is ConvBiasActivation2d
    assert fused.twice.activation == "identity"
    assert type(fused.shared) is nn.Conv2d
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


def test_channels_last_weights_stay_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.SiLU()).half().to(memory_format=torch.channels_last).eval()
    fused = ctt.fuse(model)
    (conv,) = (one for one in fused.modules() if isinstance(one, ConvBiasActivation2d))
    assert conv.activation == "silu"
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert conv.weight.dtype == torch.float16


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_objects_that_cannot_be_traced_are_rejected() -> None:
    fuse: Any = ctt.fuse
    model = nn.Sequential(nn.Conv2d(1, 1, 1)).eval()
    for wrong, name in ((3, "int"), (nn.Conv2d, "type"), ([model], "list")):
        with pytest.raises(TypeError, match=f"model is not a torch.nn.Module: got {name}"):
            fuse(wrong)
    for compiled in (torch.compile(model), torch.jit.script(model)):
        with pytest.raises(TypeError, match=r"^model cannot be traced: got .*; call fuse\(\) first"):
            fuse(compiled)


def test_a_model_in_training_mode_is_rejected() -> None:
    with pytest.raises(ValueError, match="model is in training mode"):
        ctt.fuse(nn.Conv2d(1, 1, 1))
