"""Plain words for the lines in which cuDNN rejects a graph, as data."""

# A line is cuDNN's own sentence, the condition that failed, or both: patterns match either, because versions
# differ. Lines of functions that pass an error on (`check_for_support()`) have no row.
# A line without a row is shown as it is.

from __future__ import annotations

from typing import NamedTuple


class Translation(NamedTuple):
    """A kind of line: what must change, in words, and the versions of cuDNN that printed the line.

    ``pattern`` is searched for in the line. ``have`` states facts of the graph, and is omitted if the graph
    lacks one; its fields, and those of ``must``, are the facts of `explain.facts_of` and named groups of the
    pattern.
    """

    must_change: str
    pattern: str
    have: str
    must: str
    seen: tuple[str, ...]


def _row(must_change: str, pattern: str, have: str, must: str, *seen: str) -> Translation:
    return Translation(must_change, pattern, have, must, seen or (OLD, NEW))


OLD, NEW = "9.19.0", "9.28.0"
FP32_COMPUTE = "the compute type must be float32, or int32 for int8 operands"
HALF = "q, k, v and o must be float16 or bfloat16"
WIDTH = "head widths are {q.shape[3]} (q, k) and {v.shape[3]} (v)"
CONV_TYPES = "x is {x.dtype}, w is {w.dtype}, y is {y.dtype}, computed in {compute}"

TRANSLATIONS = (
    # --- attention -----------------------------------------------------------------------------------------
    _row(
        "graph",
        r"only supports FP16/BF16 I/O for selected engine",
        "operands are {dtypes}",
        "this engine needs float16 or bfloat16 operands",
        NEW,
    ),
    _row("graph", r"SDPA (?:bprop )?only supports FP16/BF16", "q is {q.dtype}", HALF, NEW),
    _row(
        "graph",
        r"(?:SDPA|MHA) only supports FP32 I/O for selected engine",
        "operands are {dtypes}",
        "this engine needs float16 or bfloat16 operands",
    ),
    _row(
        "graph",
        r"MHA matmuls only support FP32 compute type",
        "the compute type is {compute}",
        "it must be float32",
    ),
    _row(
        "graph",
        r"Q and K need to have the same datatype",
        "q is {q.dtype}, k is {k.dtype}",
        "they must have one dtype",
    ),
    _row(
        "graph",
        r"K and V need to have the same datatype",
        "k is {k.dtype}, v is {v.dtype}",
        "they must have one dtype",
    ),
    _row(
        "graph", r"Sink tensor must have FLOAT data type", "sink is {sink.dtype}", "it must be float32", NEW
    ),
    _row(
        "graph",
        r"ragged \(THD\) layouts require a ragged \(packed\) Stats",
        "",
        "with ragged q, stats must be ragged too",
        NEW,
    ),
    _row(
        "graph", r"head dim <= (?P<most>\d+)", WIDTH, "the head width must be {most} at most on this GPU", NEW
    ),
    _row(
        "graph",
        r"Embedding dim per head for (?P<names>[\w, ]+?) is not less than equal to (?P<most>\d+)",
        WIDTH,
        "the head width of {names} must be {most} at most",
    ),
    _row(
        "graph",
        r"Embedding dim per head for (?P<names>[\w, ]+?) is not a multiple of (?P<of>\d+)",
        WIDTH,
        "the head width of {names} must be a multiple of {of}",
    ),
    _row(
        "graph",
        r"FP8 SDPA requires descale_Q",
        "q is {q.dtype}",
        "float8 attention needs the tensors descale_q, descale_k, descale_v, descale_s, scale_s and "
        "scale_o, or float16 operands",
    ),
    _row(
        "graph",
        r"RAGGED_OFFSET_DESC ragged dim should match dim value \+ 1",
        "",
        "ragged offsets must have the shape (batch + 1, 1, 1, 1) for the batch of their tensor: containers "
        "of pages cannot be ragged",
    ),
    _row(
        "engine",
        r"Sequence length for Q should be one if streamK",
        "",
        "the knob stream_k is for a single query row",
        NEW,
    ),
    _row(
        "engine",
        r"The matmul should either be an entrance node or occur after the softmax",
        "",
        "this engine is for attention of another form: two products with a softmax between them",
    ),
    # --- products and convolutions -------------------------------------------------------------------------
    _row(
        "graph",
        r"GEMM input/compute type mismatch",
        "a is {a.dtype}, b is {b.dtype}, the compute type is {compute}",
        FP32_COMPUTE,
        NEW,
    ),
    _row(
        "graph",
        r"!is_input_compute_type_match",
        "operands are {dtypes}, the compute type is {compute}",
        FP32_COMPUTE + ", and the operands must have one dtype",
    ),
    _row("graph", r"unsupported compute type|!is_compute_type_supported", CONV_TYPES, FP32_COMPUTE),
    _row(
        "graph",
        r"A and B tensors must have the same data type|aType != bType",
        "a is {a.dtype}, b is {b.dtype}",
        "they must have one dtype",
    ),
    _row(
        "graph",
        r"is_A_matrix_32bit_aligned",
        "a is {a.dtype}{a.shape}",
        "its rows must be multiples of 4 bytes long",
    ),
    _row(
        "graph",
        r"leading_dim_in_bits\w* % (?P<bits>\d+) != 0",
        CONV_TYPES,
        "the fastest axis of the operands must be a multiple of {bits} bits long (channels, with NHWC)",
    ),
    _row(
        "graph",
        r"getMmaShape\(",
        "operands are {dtypes}, the compute type is {compute}",
        "tensor cores of this GPU do not have this combination: change the dtype of the operands or the "
        "compute type (float32, int32 for int8)",
    ),
    _row(
        "graph",
        r"requires matching input data types for x and w",
        "x is {x.dtype}, w is {w.dtype}",
        "they must have one dtype",
        NEW,
    ),
    _row(
        "graph",
        r"config == INVALID_DATA_CONFIG|!is_supported_data_type\(conv\)|config != \w+_CONFIG"
        r"|conv\.isCompleteFP32",
        CONV_TYPES,
        "this combination of dtypes is not supported: use one dtype and the compute type float32",
    ),
    _row(
        "graph",
        r"getXDescriptorPtr\(\)->getDataType\(\)\.kern_type != CUDNN_DTYPE_FP16",
        "x is {x.dtype}",
        "x must be float16, bfloat16 or float32",
    ),
    _row(
        "graph",
        r"NHWC layout for all tensors|must be in NHWC layout|\w_layout == \"TensorNHWC\"|!is_NHWC"
        r"|!all_io_nhwc",
        "layouts are {layouts}",
        "the layout of all tensors must be NHWC",
    ),
    _row(
        "graph",
        r"does not support 3D conv",
        "x is {x.shape}",
        "the convolution must have two spatial axes",
        NEW,
    ),
    _row(
        "gpu",
        r"is_bf16 && !hardware_bfloat16_supported",
        "x is {x.dtype} and the GPU has compute capability {gpu}",
        "bfloat16 needs 8.0 or newer: use float16 or float32",
    ),
    _row(
        "gpu",
        r"QMMA kernels are only executable on specific architectures",
        "operands are {dtypes} and the GPU has compute capability {gpu}",
        "float8 needs 8.9 or newer",
    ),
    _row(
        "gpu",
        r"is_ctaTileK_supported_by_cutlass|is_knob_supported_by_xmma",
        "operands are {dtypes} and the GPU has compute capability {gpu}",
        "this engine has no kernel for these operands on this GPU",
    ),
    _row(
        "engine",
        r"matmul node output tensor does not match correct virtualness",
        "",
        "this engine needs an operation behind the product",
    ),
    _row(
        "engine",
        r"wDesc->dimA\[1\] != 1|xDesc->dimA\[1\] != yDesc->dimA\[1\]",
        "x has {x.shape[1]} channels, w is {w.shape}",
        "this engine is for depthwise convolutions: one channel for each group",
    ),
    _row(
        "engine",
        r"conv\.[ck] > specs\.[ck]_value",
        "x has {x.shape[1]} channels, w is {w.shape}",
        "this engine is for fewer channels",
    ),
    # --- norms ---------------------------------------------------------------------------------------------
    _row(
        "graph",
        r"tunable_params\.c % tunable_params\.elements_per_ldg",
        "x has {x.shape[1]} channels",
        "the number of channels must be a multiple of 8 (4 for float32)",
    ),
    _row("engine", r"tunable_params\.n != 1", "x is {x.shape}", "this engine needs a batch of one"),
    _row(
        "engine",
        r"\(mode != CUDNN_BATCH_NORM\) && \(\w+",
        "the mode is {mode}",
        "this engine has no running statistics",
    ),
    _row(
        "graph",
        r"hasProloguePwNodes\(\) \|\| matcher->hasEpiloguePwNodes",
        "the graph is {operations}",
        "the norm must be the only operation of the graph",
    ),
    _row(
        "graph",
        r"hasScale\(?\)? && \(?sizeofCudnnType",
        "x is {x.dtype}, scale is {scale.dtype}",
        "scale and bias must have the dtype of x, or a smaller one",
    ),
    _row(
        "graph",
        r"Persistent norm engines require float compute type",
        "",
        "mean and inv_variance must be float32",
        NEW,
    ),
    _row(
        "graph",
        r"fillup_num_execution_groups|matcher_casted == nullptr|check_for_fwd_norm_op_support",
        "the graph is {operations} with mode {mode}, phase {phase}",
        "this mode, phase or operation is not supported: compute it with another one",
    ),
    # --- other graphs --------------------------------------------------------------------------------------
    _row(
        "graph",
        r"\(mmaNodeCount == 0\) && !is_pointwise_fusion",
        "the graph is {operations}",
        "it must have a matmul, a convolution, a pointwise or a resample operation: other operations are "
        "not supported alone",
        NEW,
    ),
    _row("graph", r"^mmaNodeCount > 1", "the graph is {operations}", "it must have one convolution only"),
    _row(
        "graph",
        r"buildDAG\(\)",
        "the graph is {operations}",
        "this version of cuDNN does not plan it as a graph of its own: another version, or other operations "
        "that compute the same, may work",
        OLD,
    ),
    _row(
        "graph",
        r"getSizeOfDescriptor\(descriptorType",
        "the graph is {operations}",
        "this version of cuDNN does not have the operation",
        OLD,
    ),
    # --- GPUs ----------------------------------------------------------------------------------------------
    _row(
        "gpu",
        r"only Ampere or above|since Ampere architecture|is_cutlass_sm8x\(\)",
        "the GPU has compute capability {gpu}",
        "it must be 8.0 or newer",
    ),
    _row(
        "gpu",
        r"only Hopper is supported|since Hopper architecture|is_xmma_sm9x\(\)",
        "the GPU has compute capability {gpu}",
        "it must be 9.0",
    ),
    _row(
        "gpu",
        r"only Blackwell is supported|FORT_NATIVE_10X engine is only",
        "the GPU has compute capability {gpu}",
        "it must be 10.0 to 11.0",
    ),
    _row(
        "gpu",
        r"only sm12x is supported|FORT_NATIVE_12X engine is only|on sm12x is served by",
        "the GPU has compute capability {gpu}",
        "it must be 12.0",
    ),
    _row(
        "gpu",
        r"deviceVer < (?P<low>\d)(?P<minor>\d)0 \|\| deviceVer > ",
        "the GPU has compute capability {gpu}",
        "it must be {low}.{minor} or newer",
    ),
    _row("gpu", r"only Rubin is supported", "the GPU has compute capability {gpu}", "it must be 10.7", NEW),
    _row("gpu", r"is_cutlass_sm7x\(\)", "the GPU has compute capability {gpu}", "it must be 7.0 to 8.0"),
    # --- engines -------------------------------------------------------------------------------------------
    _row(
        "engine",
        r"Engine \d+ is not enabled for (?P<graph>\w+)",
        "",
        "these engines are for other kinds of graph than {graph}",
    ),
    _row(
        "unknown",
        r"runtime_cublasLtHelper\.create_cublas_handle",
        "",
        "cuBLASLt could not be asked whether it supports the graph: it needs a GPU",
    ),
    _row(
        "engine",
        r"This engine config is not supported for|tile .* too small for warp count",
        "",
        "no tile size of this engine fits the graph",
    ),
    _row(
        "engine",
        r"no search results or none implementable|core_engine\.getStatus|engine_iface->getStatus"
        r"|ConvolutionEngine::getStatus|_supported\(",
        "",
        "this engine has no kernel for the graph, and cuDNN gives no reason",
    ),
    _row("engine", r"\(CUDNN_STATUS_NOT_INITIALIZED == status\)", "", "cuDNN gives no reason"),
    _row(
        "engine",
        r"No GPC available",
        "",
        "the description of the GPU lacks a count that this engine needs",
        OLD,
    ),
    _row(
        "engine",
        r"(?:Fused|Flash) Attention graph was not given|Unsupported node in the graph"
        r"|number of nodes detected",
        "the graph is {operations}",
        "this engine is for other operations",
    ),
    _row(
        "engine",
        r"KERNEL_CFG knob must be set|the chosen engine does not support this graph pattern",
        "",
        "no choice of its knobs supports the graph",
    ),
)
