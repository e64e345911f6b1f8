"""Modules with the parameters of torch's, on the fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cudnn_ct.torch import nn as ours
from tests.fake.cudnn import FakeCudnn

DOUBLE = torch.float64
CIRCULAR = {"padding": (1, 2), "padding_mode": "circular", "bias": False}
IMAGE = (2, 4, 5, 5)
# A name, our module, torch's, their arguments, and the shape of the input.
PAIRS: list[tuple[str, Any, Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("conv1d", ours.Conv1d, nn.Conv1d, (4, 6, 3), {"padding": "same"}, (2, 4, 9)),
    ("conv2d", ours.Conv2d, nn.Conv2d, (4, 6, 3), {"stride": 2, "groups": 2}, (2, 4, 7, 8)),
    ("circular", ours.Conv2d, nn.Conv2d, (4, 6, 3), CIRCULAR, (2, 4, 7, 8)),
    ("conv3d", ours.Conv3d, nn.Conv3d, (2, 3, 2), {"dilation": 2}, (1, 2, 4, 5, 4)),
    ("transposed", ours.ConvTranspose2d, nn.ConvTranspose2d, (4, 6, 3, 2, 1, 1), {}, IMAGE),
    ("fused", ours.ConvBiasActivation2d, nn.Conv2d, (4, 6, 3), {}, IMAGE),
    ("batch-norm", ours.BatchNormActivation, nn.BatchNorm2d, (4,), {}, IMAGE),
    ("layer-norm", ours.LayerNorm, nn.LayerNorm, (8,), {}, (3, 8)),
    ("rms-norm", ours.RMSNorm, nn.RMSNorm, (8,), {}, (3, 8)),
]


@pytest.mark.parametrize(
    ("name", "mine", "theirs", "args", "keywords", "shape"), PAIRS, ids=[pair[0] for pair in PAIRS]
)
def test_modules_take_the_state_of_torch_and_equal_it(
    door: FakeCudnn, name: str, mine: Any, theirs: Any, args: Any, keywords: Any, shape: tuple[int, ...]
) -> None:
    dtype = torch.float32 if name.endswith("norm") else DOUBLE
    mine, theirs = mine(*args, **keywords).to(dtype), theirs(*args, **keywords).to(dtype)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(shape, dtype=dtype)
    for training in (True, False):
        y, expected = mine.train(training)(x), theirs.train(training)(x)
        expected = expected.relu() if hasattr(mine, "activation") else expected
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_takes_the_state_of_torch_and_equals_it(door: FakeCudnn, causal: bool) -> None:
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    mine = ours.Attention(32, 4)
    mine.load_state_dict(theirs.state_dict())
    x, key = torch.randn(2, 6, 32), torch.randn(2, 6, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(6) if causal else None
    for other in (None, key):
        memory = x if other is None else other
        expected, _ = theirs(x, memory, memory, attn_mask=mask, is_causal=causal)
        found = mine.half()(x.half(), None if other is None else other.half(), causal=causal)
        torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)


def test_a_residual_is_added_before_the_activation(door: FakeCudnn) -> None:
    module, x, z = ours.ConvBiasActivation2d(4, 6, 3), torch.randn(2, 4, 5, 5), torch.randn(2, 6, 3, 3)
    expected = torch.relu(nn.functional.conv2d(x, module.weight, module.bias) + z)
    torch.testing.assert_close(module(x, z), expected, rtol=1e-4, atol=1e-5)
    norm = ours.BatchNormActivation(6)
    expected = torch.relu(nn.functional.batch_norm(z, None, None, norm.weight, norm.bias, True) + z)
    torch.testing.assert_close(norm(z, z), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ours.BatchNormActivation(4, affine=False), "affine must be True"),
        (lambda: ours.BatchNormActivation(4, momentum=None), "momentum must be a number"),
        (lambda: ours.LayerNorm(4, elementwise_affine=False)(torch.empty(2, 4)), "elementwise_affine"),
    ],
)
def test_modules_that_cudnn_lacks_are_rejected(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
