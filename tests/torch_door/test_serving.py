"""Unchanged models under ``enable()``, on the fakes."""

from __future__ import annotations

import io
import sys
import threading
import types
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import cudnn_ct as ct
import cudnn_ct.torch as ctt
from cudnn_ct import facts
from cudnn_ct.torch import blocks, kernels, replaced, serving
from tests.fake.cudnn import FakeCudnn
from tests.mixed import in_thread
from tests.torch_cases import Programs
from tests.torch_door.test_replaced import Named


class Block(nn.Module):
    """A small residual network with each kind of layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.rows = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        x = F.instance_norm(self.up(x), weight=self.norm.weight, bias=self.norm.bias)
        x = F.adaptive_avg_pool2d(F.avg_pool2d(x, 2), 1).flatten(1)
        return self.head(self.rows(x)).softmax(-1)


@pytest.fixture
def cpu(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in host memory are served."""
    torch.manual_seed(0)
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu", "meta"))


def test_an_unchanged_model_has_the_values_and_gradients_of_torch(cpu: None) -> None:
    model, x = Block(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    gradients = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    with ctt.enable() as block:
        y = model(x)
    found = torch.autograd.grad(y.square().sum(), list(model.parameters()))
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-4)
    served = {"batch_norm", "conv", "conv_transpose", "instance_norm", "layer_norm", "pool", "softmax"}
    assert set(block.report().served) == served
    assert block.report().served["pool"] == 3
    assert not block.report().left
    assert ctt.report() is block.report()


@pytest.mark.parametrize("batch_first", [True, False])
def test_self_attention_of_torch_is_served(cpu: None, batch_first: bool) -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=batch_first).half().eval()
    x = torch.randn(2, 6, 32).half()
    expected, _ = nn.MultiheadAttention.forward(
        module.float(), x.float(), x.float(), x.float(), need_weights=False
    )
    with torch.no_grad(), ctt.enable() as block:
        found, _ = module.half()(x, x, x, need_weights=False)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    assert block.report().served == {"attention": 1}
    assert found.is_contiguous()  # a residual connection adds it to x


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_attention_of_encoder_layers_is_served(
    cpu: None, serves: Any, activation: str, norm_first: bool
) -> None:
    model = nn.TransformerEncoderLayer(
        32, 4, 64, activation=activation, batch_first=True, norm_first=norm_first
    ).eval()
    nn.init.normal_(model.norm1.weight)
    nn.init.normal_(model.norm2.bias)
    x = torch.randn(2, 6, 32).half()
    with torch.no_grad():
        expected = model.float()(x.float())
        with serves() as block:
            found = model.half()(x)
            model(x, src_key_padding_mask=torch.zeros(2, 6, dtype=torch.bool))
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    assert block.report().served["attention"] == 1
    assert block.report().left["attention", "masks are not supported"] == 1


def test_attention_whose_weights_are_needed_is_left_to_torch(cpu: None, serves: Any) -> None:
    module, x = nn.MultiheadAttention(32, 4, batch_first=True).half().eval(), torch.randn(2, 6, 32).half()
    with torch.no_grad():
        expected = module(x, x, x)
        with serves() as block:
            found = module(x, x, x)
    torch.testing.assert_close(found, expected)
    assert block.report().left == {("attention", "weights are needed"): 1}


class Products(TorchDispatchMode):
    """A mode that counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__.split(".")[0] in ("mm", "addmm")
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.MultiheadAttention(32, 4), "torch.float32 is not supported"),
        (nn.MultiheadAttention(32, 4, dropout=0.5).half(), "dropout has torch's random numbers"),
        (nn.MultiheadAttention(32, 8).half(), "heads of 4"),
    ],
)
def test_attention_that_is_left_to_torch_is_not_projected_before(cpu: None, module: Any, reason: str) -> None:
    x = torch.randn(2, 6, 32, dtype=module.out_proj.weight.dtype)
    with Products() as expected:
        module(x, x, x, need_weights=False)
    with ctt.enable() as block, Products() as found:
        module(x, x, x, need_weights=False)
    assert found.count == expected.count
    assert ("attention", reason) in block.report().left


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_of_torch_are_served(cpu: None, kind: Any) -> None:
    module, x = kind(3, 4, 2, bidirectional=True, batch_first=True), torch.randn(2, 5, 3)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    expected = module(x)[0], module(packed)[0].data
    with ctt.enable() as block:
        found = module(x)[0], module(packed)[0].data
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad(one[0].sum() + one[1].sum(), list(module.parameters()))
        for one in (found, expected)
    ]
    torch.testing.assert_close(*gradients)
    group = kind.__name__.lower()
    assert block.report().served == {group: 2}
    with ctt.enable(skip=group) as block:
        module(x)
    assert not block.report().served


@pytest.mark.parametrize(
    ("call", "group", "reason"),
    [
        (lambda x: F.max_pool2d(x, 2, ceil_mode=True), "pool", "ceil_mode is not supported"),
        (lambda x: F.adaptive_avg_pool2d(x, 2), "pool", "only an average of whole images is supported"),
        (lambda x: F.layer_norm(x, (8,)), "layer_norm", "no scale"),
        (lambda x: F.batch_norm(x, None, None, training=True), "batch_norm", "no scale and bias"),
        (lambda x: F.conv2d(x[0], torch.ones(1, 4, 1, 1)), "conv", "no batch axis"),
        (lambda x: F.softmax(x, -1, dtype=torch.float64), "softmax", "dtype is given"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "attention", "torch.float32 is not supported"),
    ],
)
def test_calls_left_to_torch_have_a_reason(cpu: None, call: Any, group: str, reason: str) -> None:
    x = torch.randn(2, 4, 8, 8)
    expected = call(x)
    with ctt.enable() as block:
        torch.testing.assert_close(call(x), expected)
    assert block.report().left == {(group, reason): 1}
    assert f"{group}: 1, {reason}" in str(block.report())
    assert not block.report().served


@pytest.fixture
def tries(cpu: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls of softmax so far, each of which cuDNN rejects."""
    made: list[int] = []

    def reject(*args: Any, **keywords: Any) -> None:
        made.append(1)
        raise ctt.serving.NotSupportedError("no engine")

    monkeypatch.setattr("cudnn_ct.torch.rules.softmax", reject)
    return made


def test_a_call_that_cudnn_rejects_is_left_to_torch_and_not_tried_again(tries: list[int]) -> None:
    x = torch.randn(2, 3)
    expected = F.softmax(x, 1)
    with ctt.enable() as block:
        for _ in range(3):
            torch.testing.assert_close(F.softmax(x, 1), expected)
    assert len(tries) == 1
    assert block.report().left == {("softmax", "no engine"): 3}


SETTINGS: dict[str, Any] = {
    "nothing": lambda patch: None,
    "allow_tf32": lambda patch: patch.setattr(torch.backends.cudnn, "allow_tf32", False),
    "deterministic": lambda patch: patch.setattr(torch.backends.cudnn, "deterministic", True),
    "benchmark": lambda patch: patch.setattr(torch.backends.cudnn, "benchmark", True),
    "config": lambda patch: patch.setattr(ct.config, "workspace_limit", 12345),
    "grad mode": lambda patch: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_rejected_call_is_tried_again_with_other_settings(
    tries: list[int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    x = torch.randn(2, 3)
    with ctt.enable(), torch.enable_grad():
        F.softmax(x, 1)
        SETTINGS[name](monkeypatch)
        F.softmax(x, 1)
    assert len(tries) == (1 if name == "nothing" else 2)


def test_a_call_that_is_rejected_for_an_address_is_tried_at_others(
    cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(x: Any, *args: Any, **keywords: Any) -> Any:
        if x.data_ptr() % 16:
            raise ctt.serving.NotSupportedError("not aligned")
        return ctt.softmax(x, *args, **keywords)

    monkeypatch.setattr("cudnn_ct.torch.rules.softmax", reject)
    x = torch.randn(9)
    with ctt.enable() as block:
        F.softmax(x[1:], 0)
        F.softmax(x[:8], 0)
    assert block.report().served == {"softmax": 1}


def test_tensors_in_host_memory_are_left_to_torch() -> None:
    with ctt.enable() as block:
        F.softmax(torch.randn(2, 3), 1)
    assert block.report().left == {("softmax", "not on a CUDA device"): 1}


def test_the_innermost_block_decides(cpu: None) -> None:
    x = torch.randn(2, 3)
    with ctt.enable() as outer:
        with ctt.enable(skip=["softmax"]) as inner:
            x.softmax(1)
        x.softmax(1)
    assert not inner.report().served
    assert outer.report().served == {"softmax": 1}


def test_a_block_ends_with_an_exception_and_belongs_to_its_thread(cpu: None) -> None:
    with pytest.raises(KeyError), ctt.enable() as block:
        raise KeyError
    torch.randn(2, 3).softmax(1)
    with ctt.enable() as other:
        in_thread(lambda: torch.randn(2, 3).softmax(1))
    assert not block.report().served
    assert not other.report().served


def test_a_decorated_function_is_served_each_time(cpu: None) -> None:
    decorator = ctt.enable()

    @decorator
    def run(depth: int) -> Any:
        torch.randn(2, 3).softmax(1)
        return run(depth - 1) if depth else None

    run(1)
    run(0)
    assert decorator.report().served == {"softmax": 3}, str(decorator.report())


@pytest.fixture
def serves_all_in_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs have the operators of groups that torch.compile joins with other calls, too."""
    monkeypatch.setattr(serving, "_JOINED_BY_TORCH", ())


def test_a_model_compiled_in_a_block_has_operators_of_convolutions_only(cpu: None) -> None:
    programs = Programs()
    model, x = Block().to("meta"), torch.empty(2, 3, 8, 8, device="meta")
    with ctt.enable():
        torch.compile(model, backend=programs, fullgraph=True)(x)
    assert all(map(any, map(programs.have, ("conv", "conv_transpose"))))
    others = ("batch_norm_training", "instance_norm", "layer_norm", "pool", "softmax")
    assert not any(map(any, map(programs.have, others)))


def test_methods_of_tensors_in_python_are_compiled_in_a_block(cpu: None) -> None:
    compiled = torch.compile(lambda x: (2 * x).unflatten(-1, (2, -1)), backend="eager", fullgraph=True)
    with ctt.enable():
        assert compiled(torch.ones(3, 6)).shape == (3, 2, 3)


def test_operations_are_counted_as_without_a_block(serves: Any) -> None:
    model, x = nn.Conv2d(4, 4, 3), torch.randn(2, 4, 8, 8)
    with FlopCounterMode(display=False) as expected:
        model(x).sum().backward()
    with serves() as block:
        model(x)
        with FlopCounterMode(display=False) as found:
            model(x).sum().backward()
    assert found.get_total_flops() == expected.get_total_flops() > 0
    assert block.report().served == {"conv": 1}


class Resizing(nn.Module):
    """Layers whose results have other sizes than their operands, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.side = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 4, 1, 2)
        self.up, self.norm, self.rows = nn.ConvTranspose2d(4, 4, 2, 2), nn.BatchNorm2d(4), nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.down(x)) + self.side(x))
        x = F.max_pool2d(self.up(F.max_pool2d(x, 3, 2, 1)), 4, 3)
        x = F.avg_pool2d(F.conv2d(x, self.down.weight, padding="same"), 2, 1)
        return self.rows(F.adaptive_avg_pool2d(x, 1).flatten(1)).softmax(1)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("axes", [(0,), (2, 3), (0, 2, 3)])
def test_exported_models_have_symbolic_sizes(serves: Any, axes: tuple[int, ...], strict: bool) -> None:
    model, x, dim = Resizing().eval(), torch.randn(2, 4, 40, 48), torch.export.Dim
    limits = {0: dim("batch", min=2, max=64), 2: dim("height", min=32, max=640), 3: dim("width", min=32)}
    sizes = ({axis: limits[axis] for axis in axes},)
    with serves():
        program = torch.export.export(model, (x,), dynamic_shapes=sizes, strict=strict)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"cudnn_ct.conv_bias_activation.default", "cudnn_ct.pool.default"} <= called
    assert "aten.promote_types.default" not in called
    torch.export.save(program, io.BytesIO())
    for shape in [(2, 4, 40, 48), (5, 4, 40, 48), (2, 4, 33, 47), (3, 4, 64, 36)]:
        if all(n == m or axis in axes for axis, (n, m) in enumerate(zip(shape, x.shape, strict=True))):
            y = torch.randn(shape)
            torch.testing.assert_close(program.module()(y), model(y), rtol=1e-3, atol=1e-4)


def test_a_compiled_program_leaves_norms_pooling_and_softmax_to_torch(cpu: None) -> None:
    programs, model = Programs(), Resizing().eval()
    with torch.no_grad(), ctt.enable():
        torch.compile(model, backend=programs, fullgraph=True)(torch.randn(2, 4, 40, 48))
    assert programs.have("conv_bias_activation") == [True]
    left = ("pool", "softmax", "batch_norm_inference", "layer_norm")
    assert [name for name in left if programs.have(name) != [False]] == []


@pytest.mark.parametrize("joined", [(), serving._JOINED_BY_TORCH], ids=["all", "convolutions"])
def test_a_program_is_compiled_once_for_symbolic_sizes(
    cpu: None, monkeypatch: pytest.MonkeyPatch, joined: tuple[str, ...]
) -> None:
    monkeypatch.setattr(serving, "_JOINED_BY_TORCH", joined)
    counts, model, shapes = [], Resizing(), [(2, 4, 40, 48), (3, 4, 33, 47), (5, 4, 64, 36)]
    for block in (ctt.enable(skip=["softmax"], rebind=True), nullcontext()):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, dynamic=True)
        with block:
            for x in map(torch.randn, shapes):
                found = torch.autograd.grad(compiled(x)[:, 0].sum(), list(model.parameters()))
                counts.append(counter.frame_count)
                expected = torch.autograd.grad(model(x)[:, 0].sum(), list(model.parameters()))
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    served, plain = set(counts[:3]), set(counts[3:])  # torch 2.11 compiles its own pooling twice
    assert len(served) <= (len(plain) if joined else 1)


def test_an_unusable_file_of_facts_is_an_error_of_the_call(
    cpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    path = tmp_path / "facts.json"
    path.write_text('{"facts": [1]}')
    monkeypatch.setattr(ct.config, "facts", str(path))
    facts.forget()
    try:
        with ctt.enable(), pytest.raises(facts.FactsError, match="a fact is not an object: got int"):
            F.conv2d(torch.randn(1, 4, 5, 6), torch.randn(4, 4, 3, 2))
    finally:
        monkeypatch.undo()
        facts.forget()


def test_skip_rejects_unknown_groups() -> None:
    with pytest.raises(ValueError, match="skip has an unknown group: got 'convs'"):
        ctt.enable(skip=["convs"])


def test_enable_rejects_arguments_of_other_types() -> None:
    enable: Any = ctt.enable
    for skip in (3, None, True, b"conv"):
        with pytest.raises(
            TypeError, match=r"^skip must be the name of a group, or .*: got .*, expected of "
        ):
            enable(skip=skip)
    for skip in ([3], [["conv"]], ("conv", None)):
        with pytest.raises(TypeError, match=r"^skip must have names of groups: got .*, expected of att"):
            enable(skip=skip)
    for rebind in (3, "no", None):
        with pytest.raises(TypeError, match=r"^rebind must be True or False: got "):
            enable(rebind=rebind)
    for given in (torch.nn.ReLU(), print, "conv"):
        with pytest.raises(TypeError, match=r"^enable\(\) takes keywords only: got .*; write `with "):
            enable(given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'skips'; write skip="):
        enable(skips="conv")
    with pytest.raises(TypeError, match="function must be callable: got int"):
        enable()(3)


def test_skip_takes_any_iterable_of_names(cpu: None) -> None:
    x = torch.randn(2, 3)
    for skip in ("softmax", ["softmax"], {"softmax"}, (name for name in ["softmax"])):
        with ctt.enable(skip=skip) as block:  # type: ignore[arg-type]
            F.softmax(x, 1)
        assert not block.report().served


@pytest.mark.usefixtures("serves_all_in_programs")
def test_a_model_compiled_before_is_compiled_again_in_a_block(cpu: None) -> None:
    programs, x = Programs(), torch.empty(2, 3, 8, 8, device="meta")
    compiled = torch.compile(lambda x: F.softmax(x, 1), backend=programs, fullgraph=True)
    compiled(x)
    with ctt.enable():
        compiled(x)
    compiled(x)
    assert programs.have("softmax") == [False, True]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by make_dual
def test_forward_mode_derivatives_are_left_to_torch(cpu: None) -> None:
    x, tangent = torch.randn(3, 4), torch.randn(3, 4)
    with forward_ad.dual_level(), ctt.enable() as block:
        found = forward_ad.unpack_dual(F.softmax(forward_ad.make_dual(x, tangent), 1)).tangent
    assert block.report().left["softmax", "forward-mode derivatives"] == 1
    torch.testing.assert_close(found, torch.func.jvp(lambda one: F.softmax(one, 1), (x,), (tangent,))[1])


def test_functions_that_a_module_imported_are_served(cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("imports_softmax")
    exec("from torch.nn.functional import softmax as probabilities", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    own = module.probabilities
    with ctt.enable(rebind=True) as block:
        module.probabilities(torch.randn(2, 3), 1)
    assert block.report().served == {"softmax": 1}
    assert module.probabilities is own


class _SetsItself(types.ModuleType):
    """A module that keeps the names that it sets."""

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self).setdefault("names", []).append(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize("kind", [types.ModuleType, _SetsItself])
def test_names_that_a_module_has_deleted_or_bound_again_stay_so(
    cpu: None, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    module = kind("binds_names")
    vars(module).update(gone=F.softmax, other=F.softmax, kept=F.softmax)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for _ in range(2):
        with ctt.enable(rebind=True):
            assert module.kept is F.softmax
            assert module.kept(torch.zeros(1, 2), 1).tolist() == [[0.5, 0.5]]
        assert module.kept is F.softmax
        vars(module).pop("gone", None)
        vars(module)["other"] = len
    with ctt.enable(rebind=True):
        assert not hasattr(module, "gone")
        assert module.other is len
    assert not hasattr(module, "gone")
    assert getattr(module, "names", ["kept"])[-1] == "kept"


def test_names_of_torch_are_its_own_after_the_last_block(cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    places = (
        (F, "conv2d"),
        (torch, "conv2d"),
        (F, "softmax"),
        (torch._VF, "lstm"),
        (torch.Tensor, "softmax"),
    )
    monkeypatch.setattr(serving._replaced, "_rebound", 0)
    own = [getattr(owner, name) for owner, name in places]
    enter, leave = threading.Event(), threading.Event()

    def run() -> None:
        with ctt.enable(rebind=True):
            enter.set()
            leave.wait(20)

    thread = threading.Thread(target=run)
    thread.start()
    enter.wait(20)
    with pytest.raises(KeyError), ctt.enable(rebind=True):
        raise KeyError
    assert [getattr(owner, name) for owner, name in places] != own  # the block of the thread needs them
    assert F.softmax(torch.zeros(1, 2), 1).tolist() == [[0.5, 0.5]]
    leave.set()
    thread.join()
    assert [getattr(owner, name) for owner, name in places] == own
    assert "softmax" not in vars(torch.Tensor)


def test_methods_of_tensors_are_bound_a_limited_number_of_times(cpu: None) -> None:
    own = torch.Tensor.softmax
    made = replaced.Replaced([replaced.Pair(own, double := lambda x, axis: 2 * own(x, axis), "softmax")])
    for _ in range(replaced.MOST_REBOUND + 1):
        made.begin(None, {"softmax"})
        assert torch.Tensor.softmax is double
        made.end(None)
    assert torch.Tensor.softmax is double
    made.begin(None, {"softmax"})
    assert torch.Tensor.softmax is double
    made.end(None)
    del torch.Tensor.softmax


def test_a_name_that_was_bound_anew_in_a_block_is_kept(cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    own = F.softmax
    with ctt.enable(rebind=True):
        monkeypatch.setattr(F, "softmax", other := lambda x: x)
    assert F.softmax is other
    monkeypatch.setattr(F, "softmax", own)


def test_methods_of_tensors_are_left_to_torch_in_compiled_programs(cpu: None) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3)
    compiled = torch.compile(lambda x: x.softmax(1), backend="aot_eager", fullgraph=True)
    with ctt.enable(rebind=True) as block:
        torch.testing.assert_close(compiled(x), x.double().softmax(1).float())
    assert block.report().served == {"softmax": 1}  # the expected values


@pytest.mark.usefixtures("serves_all_in_programs")
def test_a_compiled_program_obeys_the_block_of_its_thread(cpu: None) -> None:
    programs, x = Programs(), torch.empty(2, 3, device="meta")
    compiled = torch.compile(lambda x: F.softmax(x, 1), backend=programs, fullgraph=True)
    with ctt.enable(rebind=True):
        compiled(x)
        in_thread(compiled, x)
        with ctt.enable(skip=["softmax"], rebind=True):
            compiled(x)
    for _ in range(12):  # more than torch's limit of compilations
        with ctt.enable(rebind=True):
            compiled(x)
        compiled(x)
    first, *later = programs.have("softmax")
    assert first
    assert not any(later)
    assert len(later) <= 3


def test_batch_norms_of_half_precision_are_served_in_inference(cpu: None, door: FakeCudnn) -> None:
    door.engines = True
    module, x = nn.BatchNorm2d(8).half().eval(), torch.randn(2, 8, 3, 3).half()
    with torch.no_grad():
        module.running_mean.normal_()
        module.weight.normal_()
        expected = module.float()(x.float())
        module.half()
        with ctt.enable() as block:
            found = module(x.to(memory_format=torch.channels_last))
            module(x)
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)
    assert block.report().served == {"batch_norm": 1}, str(block.report())
    assert list(block.report().left) == [
        ("batch_norm", "parameters of torch.float16 and channels that are not last")
    ]
    with ctt.enable() as block:
        module(x.to(memory_format=torch.channels_last)).sum().backward()
    assert list(block.report().left) == [("batch_norm", "gradients with parameters of torch.float16")]


def test_batch_norm_with_parameters_of_half_precision_has_gradients(cpu: None) -> None:
    module, x = nn.BatchNorm2d(8).half().eval(), torch.randn(2, 8, 3, 3).half().requires_grad_()
    y = ctt.batch_norm(x, module.running_mean, module.running_var, module.weight, module.bias)
    found = torch.autograd.grad(y.square().sum(), (x, module.weight, module.bias))
    expected = torch.autograd.grad(module.float()(x.float()).square().sum(), (x, module.weight, module.bias))
    assert [one.dtype for one in found] == [torch.float16] * 3
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), two.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("counts", [True, False])
def test_torch_owns_a_reference_to_what_it_passes_on(monkeypatch: pytest.MonkeyPatch, counts: bool) -> None:
    kept: list[Any] = []
    stash = (lambda _, passed: kept.append(passed)) if counts else (lambda *_: None)
    monkeypatch.setattr(torch._C, "_stash_obj_in_tls", stash)
    passed = blocks.Blocks()
    before = sys.getrefcount(passed)
    passed.pass_on()
    assert sys.getrefcount(passed) == before + 1


def test_blocks_that_have_ended_are_not_kept(cpu: None) -> None:
    ended: list[Any] = []
    for _ in range(3):
        with ctt.enable(rebind=True):
            ended.append(weakref.ref(blocks.thread.blocks.innermost))
    assert [one() for one in ended] == [None] * 3


@pytest.fixture(params=[False, True], ids=["mode", "rebind"])
def serves(cpu: None, request: pytest.FixtureRequest) -> Any:
    """Enter a block of each kind."""
    return lambda: ctt.enable(rebind=request.param)


@pytest.mark.parametrize("within", [True, False], ids=["in the block", "after it"])
@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.Softmax(1), nn.Conv2d(3, 3, 1), nn.MaxPool2d(2)])
def test_layers_that_a_backward_pass_computes_again(cpu: None, serves: Any, layer: Any, within: bool) -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    with serves() as block:
        y = checkpoint(lambda x: layer(2 * x).sin(), x, use_reentrant=False).sum()
        if within:
            y.backward()
    if not within:
        y.backward()
    expected = torch.autograd.grad(layer(2 * x).sin().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
    (reason,) = block.report().left
    assert reason[1] == "torch.utils.checkpoint computes it again"


def test_layers_that_a_checkpoint_without_hooks_keeps_are_served(cpu: None, serves: Any) -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    with serves() as block:
        checkpoint(lambda x: F.softmax(x, 1), x, use_reentrant=True).square().sum().backward()
    assert block.report().served["softmax"] >= 1


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace is deprecated, and warns of sizes
@pytest.mark.parametrize("training", [False, True])
def test_traced_modules_have_the_functions_of_torch(serves: Any, training: bool) -> None:
    model, x = Block().train(training), torch.randn(2, 3, 8, 8)
    with serves() as block:
        traced = torch.jit.trace(model, x, check_trace=False)
        found = traced(x)
        torch.jit.trace(model, x)
    torch.testing.assert_close(found, model(x))
    assert not [one for one in traced.inlined_graph.nodes() if "cudnn_ct" in one.kind()]
    assert {reason for _, reason in block.report().left} == {"torch.jit.trace records it"}


@pytest.mark.parametrize("mapped", [(0, None, None), (0, 0, 0)])
def test_training_batch_norms_under_vmap_have_the_results_of_torch(serves: Any, mapped: Any) -> None:
    def call(x: Any, mean: Any, var: Any) -> Any:
        return F.batch_norm(x, mean, var, torch.arange(1.0, 5), torch.ones(4), True)

    x = torch.randn(3, 2, 4, 5)
    statistics = [(torch.zeros(3, 4), torch.ones(3, 4)) if mapped[1] == 0 else (None, None) for _ in range(3)]
    expected = torch.stack(
        [call(one, *(s if s is None else s[place] for s in statistics[0])) for place, one in enumerate(x)]
    )
    with serves() as block:
        found = torch.func.vmap(call, mapped)(x, *statistics[1])
    assert not block.report().served
    of_operator = torch.func.vmap(
        lambda x, mean, var: ctt.batch_norm(x, mean, var, torch.arange(1.0, 5), torch.ones(4), True), mapped
    )(x.requires_grad_(), *statistics[2])
    for one in (found, of_operator):
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4)
    for made in statistics[1:]:
        torch.testing.assert_close(made, statistics[0], rtol=1e-3, atol=1e-4)
    weights = torch.randn(expected.shape)
    (gradient,) = torch.autograd.grad((of_operator * weights).sum(), x)
    reference = torch.stack([call(one, None, None) for one in x])
    torch.testing.assert_close(
        gradient, torch.autograd.grad((reference * weights).sum(), x)[0], rtol=1e-3, atol=1e-3
    )


def test_running_statistics_without_an_axis_of_samples_are_rejected_under_vmap(cpu: None) -> None:
    mean, var, x = torch.zeros(4), torch.ones(4), torch.randn(3, 2, 4, 5)
    with pytest.raises(ValueError, match=r"not running_(mean|var), which is updated in place"):
        torch.func.vmap(lambda x: ctt.batch_norm(x, mean, var, torch.ones(4), torch.ones(4), True))(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        lambda x: F.rms_norm(torch.full((1, 8), 1e-2).half(), (8,), torch.ones(8).half()),
        lambda x: torch.func.grad(lambda one: F.softmax(one, 1).square().sum())(x),
        lambda x: torch.func.vmap(torch.func.grad(lambda one: F.softmax(one, 0).square().sum()))(x),
        lambda x: F.softmax(x.as_subclass(Named), 1),
        lambda x: F.softmax(input=x.as_subclass(Named), dim=1),
        lambda x: torch.softmax(x, axis=1),
        lambda x: torch.softmax(x, 1, out=torch.empty(0)),
        lambda x: F.softmax(x, np.int64(1)),
        lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3), padding=np.int64(1)),
        lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3), padding="same", dilation=[2]),
        lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 3, 3), dilation=2, output_padding=1),
        lambda x: F.batch_norm(x, None, None, torch.ones(4), torch.zeros(4), True, momentum=2.0),
        lambda x: F.scaled_dot_product_attention(*(one.half() for one in (x[:1], x, x))),
        lambda x: nn.MultiheadAttention(8, 2)(*[x[0]] * 3, need_weights=False)[0].shape,
    ],
)
def test_a_call_of_any_spelling_has_the_result_of_torch(serves: Any, call: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    expected = call(x)
    with serves():
        found = call(x)
    assert type(found) is type(expected)
    if not isinstance(expected, str | torch.Size):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.softmax(x, 7),
        lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3), padding="same", stride=2),
        lambda x: F.adaptive_avg_pool2d(x, (1,)),
        lambda x: F.instance_norm(x[:, :, :1, :1], weight=torch.ones(4), bias=torch.ones(4)),
        lambda x: nn.MultiheadAttention(8, 2).half()(*[x[0].half()] * 3, need_weights=False, is_causal=True),
    ],
)
def test_a_wrong_call_has_the_error_of_torch(serves: Any, call: Any) -> None:
    x = torch.randn(2, 4, 8, 8)
    with pytest.raises((RuntimeError, ValueError, IndexError, AssertionError)) as expected:
        call(x)
    with serves(), pytest.raises(type(expected.value)) as found:
        call(x)
    assert str(found.value) == str(expected.value)


def test_a_name_that_a_program_has_bound_anew_is_not_served(
    cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ctt.enable(rebind=True):
        pass
    monkeypatch.setattr(F, "layer_norm", lambda *_: "own")
    with ctt.enable(rebind=True) as block:
        assert F.layer_norm(torch.ones(2), (2,)) == "own"
    assert F.layer_norm(torch.ones(2), (2,)) == "own"
    assert not block.report().served


def test_modules_that_are_imported_in_a_block_have_the_functions_of_torch(
    cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("imports_softmax_in_a_block")
    own = F.softmax
    with ctt.enable(rebind=True):
        exec("from torch.nn.functional import softmax", vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        assert module.softmax is not own
    assert module.softmax is own


def test_a_compiled_call_that_no_operator_serves_is_left_to_torch(serves: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: F.max_pool2d(x, 2, return_indices=True), backend="eager", fullgraph=True
    )
    x = torch.randn(2, 4, 8, 8)
    with serves():
        found = compiled(x)
    torch.testing.assert_close(found, F.max_pool2d(x, 2, return_indices=True))


def test_settings_of_single_operations_apply(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("this version of torch has no settings of operations")
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    conv, rnn = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = conv.fp32_precision, rnn.fp32_precision
    try:
        conv.fp32_precision, rnn.fp32_precision = "tf32", "ieee"
        assert kernels.settings()[:2] == (True, False)
        with ctt.enable() as block:
            nn.Conv2d(4, 4, 3)(torch.randn(2, 4, 8, 8))
            nn.LSTM(3, 4)(torch.randn(5, 2, 3))
    finally:
        conv.fp32_precision, rnn.fp32_precision = before
    assert set(block.report().served) == {"conv", "lstm"}


PIXELS, EIGHT = torch.randn(2, 4, 8, 8), torch.ones(8)
FOUR = torch.ones(4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.max_pool2d(PIXELS, 2, ceil_mode=0),
        lambda: F.max_pool2d(PIXELS, 2.0),
        lambda: F.max_pool2d(PIXELS, True),
        lambda: F.avg_pool2d(PIXELS, 2, count_include_pad=1),
        lambda: F.avg_pool2d(PIXELS, (2, 2.0)),
        lambda: F.adaptive_avg_pool2d(PIXELS, True),
        lambda: F.batch_norm(PIXELS, FOUR, FOUR, FOUR, FOUR, training=1),
        lambda: F.instance_norm(PIXELS, None, None, FOUR, FOUR, use_input_stats=1),
        lambda: F.layer_norm(PIXELS, (8.0,), EIGHT, EIGHT),
    ],
)
def test_arguments_of_another_type_are_left_to_torch(
    door: FakeCudnn, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    made = []
    for skip in (blocks.GROUPS, ()):
        with torch.no_grad(), ctt.enable(skip=list(skip)) as block:
            try:
                made.append(call().shape)
            except TypeError as error:
                made.append(str(error))
    assert made[0] == made[1]
    assert not block.report().served
