"""Modules with the parameters of torch's, on the fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cudnn_ct.errors import NotSupportedError
from cudnn_ct.torch import nn as ours
from cudnn_ct.torch import recurrent
from tests.fake.cudnn import FakeCudnn
from tests.torch_cases import flat

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


def test_attention_of_float32_refuses_gradients_before_it_computes(door: FakeCudnn) -> None:
    module, x = ours.Attention(32, 4), torch.randn(2, 6, 32)
    with torch.no_grad():
        assert module(x).dtype is torch.float32
    before = len(door.calls)
    with pytest.raises(NotSupportedError, match="to half precision, or use "):
        module(x)
    assert len(door.calls) == before


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


# Our module, torch's, and their keywords.
NETWORKS: list[tuple[Any, Any, dict[str, Any]]] = [
    (ours.LSTM, nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    (ours.LSTM, nn.LSTM, {"batch_first": True, "bias": False}),
    (ours.GRU, nn.GRU, {"num_layers": 2, "dropout": 0.5}),
    (ours.RNN, nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
]


@pytest.mark.parametrize(("mine", "theirs", "keywords"), NETWORKS, ids=lambda one: str(one))
def test_recurrent_networks_take_the_state_of_torch_and_equal_it(
    door: FakeCudnn, mine: Any, theirs: Any, keywords: dict[str, Any]
) -> None:
    theirs = theirs(3, 4, **keywords).double().eval()
    mine = mine(3, 4, **keywords).double().eval()
    mine.load_state_dict(theirs.state_dict())
    assert list(mine.state_dict()) == list(theirs.state_dict())
    sequences = [torch.randn(steps, 3, dtype=DOUBLE) for steps in (2, 4, 3)]
    packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    with torch.no_grad():
        _, first = theirs(torch.randn(3, 3, 3, dtype=DOUBLE))
    for operands in (
        (torch.randn(3, 3, 3, dtype=DOUBLE),),
        (torch.randn(3, 3, 3, dtype=DOUBLE), first),
        (torch.randn(4, 3, dtype=DOUBLE),),
        (packed, first),
    ):
        found, expected = mine(*operands), theirs(*operands)
        torch.testing.assert_close(flat(found), flat(expected))
        gradients = [
            torch.autograd.grad(flat(one).square().sum(), list(module.parameters()))
            for one, module in ((found, mine), (expected, theirs))
        ]
        torch.testing.assert_close(*gradients)
    y, state = mine(packed)
    assert torch.equal(y.unsorted_indices, packed.unsorted_indices)
    assert isinstance(state, tuple) == isinstance(first, tuple)


def test_dropout_of_a_network_is_between_its_layers_in_training(door: FakeCudnn) -> None:
    module = ours.LSTM(3, 4, 2, dropout=1.0).double()
    zeros = ours.LSTM(4, 4).double()
    zeros.load_state_dict(
        {name[:-1] + "0": one for name, one in module.state_dict().items() if name[-1] == "1"}
    )
    x = torch.randn(5, 2, 3, dtype=DOUBLE)
    y, (h, _) = module(x)
    torch.testing.assert_close(y, zeros(torch.zeros(5, 2, 4, dtype=DOUBLE))[0])
    assert h.shape == (2, 2, 4)
    assert not torch.allclose(module.eval()(x)[0], y)


def test_recurrent_networks_are_compiled_and_exported_without_graph_breaks() -> None:
    torch._dynamo.reset()
    module = ours.LSTM(3, 4, 2, bidirectional=True, dropout=0.5, device="meta")
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    y, (h, _) = compiled(torch.empty(5, 2, 3, device="meta"))
    (y.sum() + h.sum()).backward()
    assert module.weight_hh_l1.grad.shape == module.weight_hh_l1.shape
    axes = ({0: torch.export.Dim("steps"), 1: torch.export.Dim("batch")},)
    program = torch.export.export(ours.GRU(3, 4).eval(), (torch.empty(5, 2, 3),), dynamic_shapes=axes)
    names = program.graph_signature.user_outputs
    shapes = [node.meta["val"].shape for node in program.graph.nodes if node.name in names]
    assert [[isinstance(size, torch.SymInt) for size in shape] for shape in shapes] == [
        [True, True, False],
        [False, True, False],
    ]


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="torch is older than the tag")
def test_gradients_of_networks_are_not_captured_by_the_compiler_of_torch() -> None:
    operators = [
        getattr(torch.ops.cudnn_ct, f"{name}{end}").default
        for name in ("lstm", "rnn")
        for end in ("", "_backward")
    ]
    assert [torch.Tag.cudagraph_unsafe in one.tags for one in operators] == [False, True] * 2


def test_a_projection_is_for_lstm_only() -> None:
    with pytest.raises(ValueError, match="proj_size is supported by LSTM only: got 2"):
        ours.GRU(3, 4, proj_size=2)


def test_weights_that_lie_one_behind_another_are_not_copied(
    door: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "only_kernel", lambda parts: not torch.is_grad_enabled())
    module = ours.GRU(3, 4, 2).double()
    parts = sorted(module.parameters(), key=lambda one: one.dim() == 1)
    joined = torch.cat([one.detach().flatten() for one in parts])
    x = torch.randn(5, 2, 3, dtype=DOUBLE)
    expected = module(x)[0]
    views = joined.split([one.numel() for one in parts])
    for one, view in zip(parts, views, strict=True):
        one.data = view.view_as(one)
    assert recurrent._joined(parts).data_ptr() != joined.data_ptr()
    with torch.no_grad():
        assert recurrent._joined(parts).data_ptr() == joined.data_ptr()
        torch.testing.assert_close(module(x)[0], expected)
        assert recurrent._joined(parts[::-1]).data_ptr() != joined.data_ptr()
        assert recurrent._joined([joined[-2:], joined.new_ones(3)]).shape == (5,)
