"""Host time of a convolution by each kind of call, by PyTorch and by nvidia-cudnn-frontend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.operands import carve
from harness.results import Record, explain
from harness.timing import host_times

import cudnn_ct as ct


def host_record() -> Record:
    """Measure the median host time per call in microseconds, with operands so small that the GPU waits."""
    import torch

    record: Record = {"section": "host", "id": "host", "times": {}, "errors": {}}
    torch.backends.cudnn.benchmark = True
    shapes = (1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 8, 8)
    x, w, y = (carve(torch.randn, shape, torch.float16, True, 1)[0] for shape in shapes)
    calls = host_calls(x, w, y)
    try:
        calls["frontend"] = frontend_call(x, w, y)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cudnn"
        record["errors"]["frontend"] = "not installed" if missing else explain(error)
    record["times"] = host_times(calls)
    return record


def host_calls(x: Any, w: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """Return one convolution as each kind of call, by name."""
    import torch

    conv, conv2d = ct.conv, torch.nn.functional.conv2d
    ours, filters, out = map(ct.asarray, (x, w, y))
    plan = ct.conv_plan(ours, filters, padding=1)
    return {
        "torch": lambda: conv2d(x, w, padding=1),
        "conv": lambda: conv(ours, filters, padding=1),
        "conv_out": lambda: conv(ours, filters, padding=1, out=out),
        "plan_out": lambda: plan(ours, filters, out=out),
    }


def frontend_call(x: Any, w: Any, y: Any) -> Callable[[], Any]:
    """Return a call that executes a graph of nvidia-cudnn-frontend on PyTorch's tensors."""
    import cudnn
    import torch

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle
    )
    image, weight = (
        graph.tensor(name=name, dim=list(t.shape), stride=list(t.stride()), data_type=half)
        for name, t in (("x", x), ("w", w))
    )
    result = graph.conv_fprop(image=image, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    result.set_output(True).set_data_type(half).set_dim(list(y.shape)).set_stride(list(y.stride()))
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    operands = {image: x, weight: w, result: y}
    return lambda: graph.execute(operands, workspace, handle=handle)
