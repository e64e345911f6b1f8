"""Ways to break an environment of tests/doctor_environments.py, and set-ups that are sound.

tests/unit/test_doctor_repair.py runs the commands of every fix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudnn_doctor import Diagnosis
from cudnn_doctor.checks import Requirements
from tests.doctor_environments import (
    BLAS12,
    CT2,
    CT2_OLD,
    CU11,
    CU12,
    CUDA11,
    CUDA12,
    CUDA13,
    CUDART12,
    CUDART13,
    FLOW,
    FLOW_OLD,
    IN_ENVIRONMENTS,
    IN_PLACE,
    JAX,
    JAX_13,
    JAX_NEW,
    JAX_USER,
    JIT,
    JIT_OLD,
    LAYOUTS,
    LIB,
    NEW,
    NVRTC11,
    NVRTC12,
    NVRTC13,
    OLD,
    ORT,
    ORT_OLD,
    OTHER,
    OTHER_OLD,
    TOOLKIT,
    TORCH,
    TORCH_13,
    TORCH_LIB,
    TORCH_NEW,
    TORCH_TOOLKIT,
    Environment,
)  # fmt: skip


@dataclass(frozen=True)
class Breakage:
    """One way to break an environment, and the code of the finding that names the cause."""

    name: str
    code: str
    damage: str  # a shell script, which runs in the site-packages
    labels: tuple[str, ...] = (NEW, *CUDA12)
    asked: Requirements = field(default_factory=Requirements)
    layouts: tuple[str, ...] = ()  # empty for all
    manual: bool = False  # commands cannot repair it


def _in_lib(script: str) -> str:
    return f"cd {LIB}; {script}"


def _of_image(name: str, code: str, script: str, manual: bool = False) -> Breakage:
    return Breakage(name, code, script, layouts=("image", "aarch64"), manual=manual)


_MOVE_TORCH = (
    "cd ../../..; rm -f lib64; d=lib64/python3/site-packages; mkdir -p $d; mv lib/python*/*/torch* $d"
)
_STALE = f"mkdir {OLD}.dist-info; echo {LIB}/libcudnn.so.9,,7 > {OLD}.dist-info/RECORD"
_RENAME = 'for f in {}*.dist-info; do mv "$f" "~${{f#?}}"; done'  # as pip does before it deletes it
_TORCH_AGAIN = f"cp -r {TORCH}.dist-info {TORCH_NEW}.dist-info; rm {TORCH_NEW}.dist-info/RECORD"
_STRAY = "libcudnn_engines_tensor_ir.so.9"
_OLDER = (OLD, *CUDA12)
_BOTH = (OLD, OTHER, *CUDA12, *CUDA13)
_LOST = f"rm -r {CU12}*; cd {LIB}; for f in *; do mv $f $f.27.0; done; "
_DLLS = (
    "cd nvidia/cudnn; mkdir bin; for f in lib/*.so.9; do n=${f#lib/lib}; mv $f bin/${n%.so.9}64_9.dll; done; "
    f"cd ../..; sed -i 's,cudnn/lib/lib\\(.*\\).so.9,cudnn/bin/\\164_9.dll,' {CU12}*/RECORD"
)
# Files that are links: to objects with the names of their hashes, and to one folder for each wheel.
_OBJECTS = (
    "for f in $(find nvidia -name '*.so*'); do h=$(echo $f | cksum | cut -d' ' -f1); mkdir -p $STORE/$h; "
    "mv $f $STORE/$h/$h; ln -s $STORE/$h/$h $f; done; "
)
_REPOSITORIES = (
    "for f in $(find nvidia -name '*.so*'); do d=$STORE/$(echo $f | cut -d/ -f2)/site-packages/${f%/*}; "
    "mkdir -p $d; mv $f $d; ln -s $d/${f##*/} $f; done; "
)
_FOLDERS = (
    "for f in nvidia/*; do d=$STORE/${f#nvidia/}/site-packages/nvidia; mkdir -p $d; mv $f $d; "
    "ln -s $d/${f##*/} $f; done; "
)
_CUBLAS_DLL = (
    "mkdir nvidia/cublas/bin; mv nvidia/cublas/lib/lib* nvidia/cublas/bin/cublasLt64_12.dll; "
    "sed -i 's,cublas/lib.*.so.12,cublas/bin/cublasLt64_12.dll,' nvidia_cublas*/RECORD"
)
_EXTRAS = (TORCH_TOOLKIT, TOOLKIT)

BREAKAGES = (
    # Two owners, and stale metadata.
    Breakage("wheels for CUDA 12 and 13", "two-owners", "", _BOTH, layouts=IN_ENVIRONMENTS),
    Breakage(
        "the same, laid in the other order",
        "two-owners",
        "",
        (OTHER, OLD, *CUDA12, *CUDA13),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage("both, and torch pins CUDA 12", "two-owners", "", (*_BOTH, TORCH), layouts=IN_ENVIRONMENTS),
    Breakage("both, and torch pins CUDA 13", "two-owners", "", (*_BOTH, TORCH_13), layouts=IN_ENVIRONMENTS),
    Breakage(
        "both, and one RECORD is unreadable",
        "broken-record",
        f"echo x > {OTHER}.dist-info/RECORD",
        _BOTH,
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage("metadata of the version before", "stale-metadata", "", (NEW, *_OLDER)),
    Breakage("metadata of the version after", "stale-metadata", "", (OLD, NEW, *CUDA12)),
    Breakage("metadata without files", "stale-metadata", _STALE),
    Breakage("an interrupted upgrade", "stale-metadata", _RENAME.format(CU12)),
    Breakage("an interrupted downgrade", "stale-metadata", _RENAME.format(OLD), (NEW, *_OLDER)),
    # Files of the set.
    *(
        Breakage(f"{part or 'libcudnn'} is gone", "missing-library", _in_lib(f"rm libcudnn{part}.so.9"))
        for part in (
            "",
            "_graph",
            "_ops",
            "_cnn",
            "_adv",
            "_ext",
            "_heuristic",
            "_engines_precompiled",
            "_engines_runtime_compiled",
            "_engines_tensor_ir",
        )
    ),
    Breakage("all libraries are gone", "missing-library", f"rm -r {LIB}"),
    Breakage("its folder is gone", "missing-library", "rm -r nvidia/cudnn"),
    Breakage("all of nvidia is gone", "missing-library", "rm -r nvidia"),
    Breakage("ops is empty", "damaged-library", _in_lib(": > libcudnn_ops.so.9")),
    Breakage(
        "graph is cut",
        "damaged-library",
        _in_lib("head -c 300 libcudnn_graph.so.9 > x; mv x libcudnn_graph.so.9"),
    ),
    Breakage(
        "libcudnn has its header alone",
        "damaged-library",
        _in_lib("head -c 64 libcudnn.so.9 > x; mv x libcudnn.so.9"),
    ),
    Breakage("cnn is a web page", "damaged-library", _in_lib("echo '<html>' > libcudnn_cnn.so.9")),
    Breakage(
        "adv is a Git LFS pointer",
        "damaged-library",
        _in_lib("echo version https://git-lfs > libcudnn_adv.so.9"),
    ),
    Breakage("ext is a folder", "damaged-library", _in_lib("rm libcudnn_ext.so.9; mkdir libcudnn_ext.so.9")),
    Breakage(
        "heuristic is a pipe",
        "damaged-library",
        _in_lib("rm libcudnn_heuristic.so.9; mkfifo libcudnn_heuristic.so.9"),
        layouts=("venv", "odd name", "image"),
    ),
    Breakage("adv is a dangling link", "broken-link", _in_lib("ln -sf gone libcudnn_adv.so.9")),
    Breakage(
        "cnn is a link to itself",
        "broken-link",
        _in_lib("rm libcudnn_cnn.so.9; ln -s libcudnn_cnn.so.9 libcudnn_cnn.so.9"),
    ),
    Breakage(
        "ops is for another processor",
        "foreign-machine",
        _in_lib(r"printf '\3\0' | dd of=libcudnn_ops.so.9 bs=1 seek=18 conv=notrunc"),
    ),
    Breakage(
        "ops is 32-bit",
        "foreign-machine",
        _in_lib(r"printf '\1' | dd of=libcudnn_ops.so.9 bs=1 seek=4 conv=notrunc"),
    ),
    Breakage("cnn has the name of ops", "wrong-library", _in_lib("cp libcudnn_cnn.so.9 libcudnn_ops.so.9")),
    Breakage("ops of another version", "mixed-versions", _in_lib("cp $other/libcudnn_ops.so.9 .")),
    Breakage("graph of another version", "mixed-versions", _in_lib("cp $other/libcudnn_graph.so.9 .")),
    Breakage(
        "adv and ops of another version",
        "mixed-versions",
        _in_lib("cp $other/libcudnn_adv.so.9 $other/libcudnn_ops.so.9 ."),
    ),
    Breakage(
        "a part with the version in its name",
        "missing-library",
        _in_lib("mv libcudnn_ops.so.9 libcudnn_ops.so.9.1.0"),
    ),
    Breakage("a byte after the end", "altered-file", _in_lib("echo >> libcudnn_ext.so.9")),
    Breakage(
        "a header of another version", "header-mismatch", f"sed -i s/27/26/ {LIB}/../include/cudnn_version.h"
    ),
    Breakage("a header is gone", "missing-file", f"rm {LIB}/../include/cudnn_version.h"),
    # Leftovers, alone and together with defects that a reinstallation repairs.
    Breakage("a leftover engine", "stray-library", _in_lib(f"cp $newer/{_STRAY} ."), _OLDER),
    Breakage(
        "a leftover engine, and ops is gone",
        "stray-library",
        _in_lib(f"cp $newer/{_STRAY} .; rm libcudnn_ops.so.9"),
        _OLDER,
    ),
    Breakage("an unowned library", "unowned-library", _in_lib("cp libcudnn_ext.so.9 libcudnn_extra.so.9")),
    Breakage(
        "an unowned library, and adv is empty",
        "unowned-library",
        _in_lib("cp libcudnn_ext.so.9 libcudnn_extra.so.9; : > libcudnn_adv.so.9"),
    ),
    Breakage("two files of cnn", "two-files", _in_lib("cp libcudnn_ext.so.9 libcudnn_cnn.so.9.99.0")),
    # Metadata.
    Breakage("RECORD is garbage", "broken-record", f"echo > {NEW}.dist-info/RECORD"),
    Breakage("RECORD is gone", "broken-record", f"rm {NEW}.dist-info/RECORD"),
    Breakage(
        "no metadata, and ops is gone",
        "missing-library",
        f"rm -r {NEW}.dist-info {LIB}/libcudnn_ops.so.9",
        manual=True,
    ),
    Breakage(
        "no metadata but that of torch, and ops is gone",
        "missing-library",
        f"rm -r {OLD}.dist-info {LIB}/libcudnn_ops.so.9",
        (OLD, TORCH, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    # Access.
    Breakage("only its owner can read ops", "private-file", _in_lib("chmod 600 libcudnn_ops.so.9")),
    Breakage("only its owner can enter the folder", "private-file", f"chmod 700 {LIB}"),
    Breakage("any user can write adv", "world-writable", _in_lib("chmod o+w libcudnn_adv.so.9")),
    Breakage("any user can write the folder", "world-writable", f"chmod o+w {LIB}"),
    Breakage("any user can write all files", "world-writable", _in_lib("chmod o+w *")),
    # Requirements and consumers.
    Breakage(
        "torch pins an older version", "consumer-mismatch", "", (NEW, TORCH, *CUDA12), layouts=IN_ENVIRONMENTS
    ),
    Breakage(
        "torch pins a newer version",
        "consumer-mismatch",
        "",
        (*_OLDER, TORCH_NEW, CUDART12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch pins another CUDA", "consumer-mismatch", "", (OTHER, TORCH, *CUDA13), layouts=IN_ENVIRONMENTS
    ),
    Breakage("torch pins CUDA 13", "consumer-mismatch", "", (*_OLDER, TORCH_13), layouts=IN_ENVIRONMENTS),
    Breakage(
        "torch pins a version, and ops is gone",
        "missing-library",
        _in_lib("rm libcudnn_ops.so.9"),
        (NEW, TORCH, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "a newer version is required",
        "unexpected-version",
        "",
        _OLDER,
        Requirements(minimum=(9, 20)),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "an older version is required",
        "unexpected-version",
        "",
        asked=Requirements(maximum=(9, 20)),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "another CUDA is required",
        "unexpected-cuda",
        "",
        asked=Requirements(cuda=13),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch excludes the required version",
        "unexpected-version",
        "",
        (*_OLDER, TORCH),
        Requirements(minimum=(9, 28)),
        manual=True,
    ),
    Breakage(
        "torch excludes the required CUDA",
        "unexpected-cuda",
        "",
        (*_OLDER, TORCH),
        Requirements(cuda=13),
        manual=True,
    ),
    # Companion libraries.
    Breakage("no libcublasLt", "missing-cublaslt", "", (NEW, NVRTC12)),
    Breakage("no libcublasLt, and torch pins it", "missing-cublaslt", "", (OLD, TORCH, NVRTC12)),
    Breakage("libcublasLt is gone", "missing-cublaslt", "rm nvidia/cublas/lib/*"),
    Breakage("libcublasLt is empty", "damaged-library", ": > nvidia/cublas/lib/libcublasLt.so.12"),
    Breakage(
        "libcublasLt is cut",
        "damaged-library",
        "cd nvidia/cublas/lib; head -c 99 libcublasLt.so.12 > x; mv x libcublasLt.so.12",
    ),
    Breakage(
        "libcublasLt is a dangling link", "broken-link", "ln -sf gone nvidia/cublas/lib/libcublasLt.so.12"
    ),
    Breakage("no libnvrtc", "missing-nvrtc", "", (OLD, BLAS12)),
    Breakage("libnvrtc is empty", "damaged-library", ": > nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
    Breakage("no builtins of libnvrtc", "missing-nvrtc", "rm nvidia/cuda_nvrtc/lib/*builtins*", _OLDER),
    Breakage(
        "builtins of another version",
        "missing-nvrtc",
        "cd nvidia/cuda_nvrtc/lib; mv *builtins* libnvrtc-builtins.so.12.4",
        _OLDER,
    ),
    Breakage("torch needs libcudart", "missing-cudart", "", (NEW, TORCH_NEW, *CUDA12)),
    Breakage(
        "libcudart is empty",
        "damaged-library",
        ": > nvidia/cuda_runtime/lib/libcudart.so.12",
        (NEW, TORCH_NEW, CUDART12, *CUDA12),
    ),
    Breakage("no libcublasLt for CUDA 13", "missing-cublaslt", "", (OTHER, NVRTC13)),
    Breakage(
        "no libnvrtc for CUDA 13", "missing-nvrtc", "rm nvidia/cu13/lib/libnvrtc*", (OTHER_OLD, *CUDA13)
    ),
    Breakage("all libraries are gone, and no libcublasLt", "missing-library", f"rm {LIB}/*", (NEW, NVRTC12)),
    Breakage(
        "all parts are empty, and no libcublasLt",
        "damaged-library",
        _in_lib("for f in *; do : > $f; done"),
        (OTHER, NVRTC13),
    ),
    # Links.
    *(
        Breakage(f"{link} is a dangling link", "broken-link", f"rm -r {link}; ln -s /gone/{link} {link}")
        for link in (LIB, "nvidia/cudnn", "nvidia")
    ),
    Breakage(
        "its folder is a link in a circle", "broken-link", f"rm -r {LIB}; ln -s lib {LIB}; ln -sfn lib {LIB}"
    ),
    *(
        Breakage(
            f"{name} is a link to another version",
            "wrong-library",
            f"cd {folder}; sed s/{name}/{other}/ {name} > x.so; ln -sf x.so {name}",
            labels,
        )
        for name, other, folder, labels in (
            ("libcublasLt.so.12", "libcublasLt.so.13", "nvidia/cublas/lib", (NEW, *CUDA12)),
            ("libcublasLt.so.13", "libcublasLt.so.12", "nvidia/cu13/lib", (OTHER, *CUDA13)),
            ("libnvrtc.so.12", "libnvrtc.so.11", "nvidia/cuda_nvrtc/lib", _OLDER),
            (
                "libcudart.so.12",
                "libcudart.so.13",
                "nvidia/cuda_runtime/lib",
                (NEW, TORCH_NEW, CUDART12, *CUDA12),
            ),
        )
    ),
    Breakage(
        "ops is a link to the file of an older version",
        "wrong-link",
        _LOST + "for f in *; do ln -s $f ${f%.27.0}; done; "
        "cp $other/libcudnn_ops.so.9 libcudnn_ops.so.9.10.2; ln -sf libcudnn_ops.so.9.10.2 libcudnn_ops.so.9",
        layouts=IN_PLACE,
    ),
    *(
        Breakage(
            f"files with the full version and {words}", "lost-link", _LOST + script, labels, layouts=IN_PLACE
        )
        for words, script, labels in (
            ("no link", "", (NEW, *CUDA12)),
            ("the short link", "ln -s libcudnn.so.9.27.0 libcudnn.so", (NEW, *CUDA12)),
            ("links of the parts", "for f in libcudnn_*; do ln -s $f ${f%.27.0}; done", (NEW, *CUDA12)),
            ("one file of all versions", "for f in *; do ln -s $f ${f%.9.27.0}; done", (NEW, *CUDA12)),
        )
    ),
    Breakage(
        "a wheel whose links are lost",
        "missing-library",
        _in_lib("for f in *; do mv $f $f.27.0; done"),
    ),
    *(
        Breakage(f"{words}, and {what}", code, script + damage, layouts=("venv", "odd name"))
        for words, script in (
            ("links to objects", _OBJECTS),
            ("links to one folder for each wheel", _REPOSITORIES),
        )
        for what, code, damage in (
            ("ops is gone", "missing-library", f"rm {LIB}/libcudnn_ops.so.9"),
            ("the target of ops is gone", "broken-link", f"rm $(readlink -f {LIB}/libcudnn_ops.so.9)"),
            ("libcublasLt is gone", "missing-cublaslt", "rm nvidia/cublas/lib/*"),
        )
    ),
    # The wheel for Windows.
    *(
        Breakage(f"the wheel for Windows{words}", "foreign-machine", script, labels, layouts=IN_ENVIRONMENTS)
        for words, script, labels in (
            ("", _DLLS, (NEW, *CUDA12)),
            (" with torch", _DLLS, (OLD, TORCH, *CUDA12)),
            (
                " with names in capitals",
                f"{_DLLS}; cd nvidia/cudnn/bin; mv cudnn64_9.dll CUDNN64_9.DLL",
                (NEW, *CUDA12),
            ),
            (" of all packages", f"{_DLLS}; {_CUBLAS_DLL}", (NEW, *CUDA12)),
        )
    ),
    # Requirements by an extra of another package.
    Breakage(  # this machine may have the library
        "torch needs libcudart by an extra",
        "missing-cudart",
        "",
        (OTHER, *_EXTRAS, *CUDA13),
        layouts=("image", "aarch64"),
    ),
    Breakage(
        "libcudart for CUDA 13 is gone",
        "missing-cudart",
        "rm nvidia/cu13/lib/libcudart.so.13",
        (OTHER, *_EXTRAS, CUDART13, *CUDA13),
        layouts=("image", "aarch64"),
    ),
    Breakage(
        "torch pins libcublasLt by an extra",
        "missing-cublaslt",
        "",
        (OTHER, *_EXTRAS, CUDART13, NVRTC13),
    ),
    Breakage(
        "torch pins all of CUDA by an extra, and it is gone",
        "missing-cublaslt",
        "rm -r nvidia/cu13",
        (OTHER, *_EXTRAS, CUDART13, *CUDA13),
    ),
    Breakage(
        "torch pins libcudart by an extra, and ops is gone",
        "missing-library",
        _in_lib("rm libcudnn_ops.so.9"),
        (OTHER, *_EXTRAS, *CUDA13),
    ),
    # The C library and other libraries of an image.
    _of_image(
        "no glibc, but musl", "no-glibc", "rm $IMAGE/libc.so.6; : > $IMAGE/../ld-musl-x86_64.so.1", True
    ),
    _of_image("glibc 2.17", "old-glibc", "sed -i 's/2\\.[23][67]/2.17/g' $IMAGE/libc.so.6", True),
    _of_image("glibc 2.26", "old-glibc", "sed -i 's/2\\.[23][67]/2.26/g' $IMAGE/libc.so.6", True),
    _of_image("no libz", "missing-system-library", "rm $IMAGE/libz.so.1"),
    _of_image("libz is a dangling link", "broken-link", "ln -sf gone $IMAGE/libz.so.1"),
    _of_image("libz is empty", "damaged-library", ": > $IMAGE/libz.so.1"),
    _of_image("libz is cut", "damaged-library", "cd $IMAGE; head -c 99 libz.so.1 > x; mv x libz.so.1"),
    _of_image("libz is a web page", "damaged-library", "echo '<html>' > $IMAGE/libz.so.1"),
    _of_image(
        "libz is too old", "old-system-library", "sed -i 's/ZLIB_1.2.0/ZLIB_0.2.0/' $IMAGE/libz.so.1", True
    ),
    _of_image("no libstdc++", "missing-system-library", "rm $IMAGE/libstdc++.so.6"),
    _of_image("libstdc++ is empty", "damaged-library", ": > $IMAGE/libstdc++.so.6"),
    _of_image(
        "libstdc++ is too old", "old-system-library", "sed -i s/_3.4.22/_3.4.19/ $IMAGE/libstdc++.so.6", True
    ),
    _of_image(
        "no libz and no libstdc++", "missing-system-library", "rm $IMAGE/libz.so.1 $IMAGE/libstdc++.so.6"
    ),
    _of_image(
        "no libz and no apt-get",
        "missing-system-library",
        "rm $IMAGE/libz.so.1 $IMAGE/../../bin/apt-get",
        True,
    ),
    _of_image(
        "no libz, and ops is gone", "missing-system-library", f"rm $IMAGE/libz.so.1 {LIB}/libcudnn_ops.so.9"
    ),
    # Other wheels: runtime compilation, CUDA 11, PyTorch with its own copy, renamed copies.
    Breakage(
        "graph of the JIT wheel is gone",
        "missing-library",
        "rm nvidia/cudnn_jit/lib/libcudnn_graph.so.9",
        (JIT, *CUDA12),
    ),
    Breakage(
        "engines of the JIT wheel are gone",
        "missing-library",
        "rm nvidia/cudnn_jit/lib/*engines*",
        (JIT, *CUDA12),
    ),
    Breakage(
        "libcudnn of the JIT wheel is empty",
        "damaged-library",
        ": > nvidia/cudnn_jit/lib/libcudnn.so.9",
        (JIT, *CUDA12),
    ),
    Breakage(
        "the JIT wheel needs libnvrtc", "missing-nvrtc", "rm nvidia/cuda_nvrtc/lib/*", (JIT_OLD, *CUDA12)
    ),
    Breakage("ops for CUDA 11 is gone", "missing-library", _in_lib("rm libcudnn_ops.so.9"), (CU11, *CUDA11)),
    Breakage("no libcublasLt for CUDA 11", "missing-cublaslt", "", (CU11, NVRTC11)),
    Breakage("no libnvrtc for CUDA 11", "missing-nvrtc", "rm nvidia/cuda_nvrtc/lib/*", (CU11, *CUDA11)),
    Breakage("wheels for CUDA 11 and 12", "two-owners", "", (CU11, NEW, *CUDA12), layouts=IN_ENVIRONMENTS),
    Breakage(
        "ops in torch/lib is gone",
        "missing-library",
        "rm torch/lib/libcudnn_ops.so.9",
        (TORCH_LIB, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "adv in torch/lib is empty",
        "damaged-library",
        ": > torch/lib/libcudnn_adv.so.9",
        (TORCH_LIB, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "ops in torch/lib has another version",
        "mixed-versions",
        "cp $newer/libcudnn_ops.so.9 torch/lib",
        (TORCH_LIB, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "a renamed copy is empty",
        "damaged-library",
        ": > $(echo ctranslate2.libs/*)",
        (NEW, CT2, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "a renamed copy is cut",
        "damaged-library",
        "cd ctranslate2.libs; head -c 99 lib* > x; mv x lib*",
        (NEW, CT2, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    # Consumers.
    Breakage(
        "JAX needs a newer version", "consumer-mismatch", "", (*_OLDER, JAX_NEW), layouts=IN_ENVIRONMENTS
    ),
    Breakage(
        "JAX needs a newer version, and graph is gone",
        "missing-library",
        _in_lib("rm libcudnn_graph.so.9"),
        (*_OLDER, JAX_NEW),
        layouts=IN_ENVIRONMENTS,
    ),
    *(
        Breakage(
            f"{name} for CUDA 12 with the cuDNN for CUDA 13",
            "consumer-mismatch",
            "",
            (OTHER, label, *CUDA13),
            layouts=IN_ENVIRONMENTS,
        )
        for name, label in (("JAX", JAX), ("onnxruntime", ORT), ("ctranslate2", CT2), ("tensorflow", FLOW))
    ),
    Breakage(
        "JAX for CUDA 13 with the cuDNN for CUDA 12",
        "consumer-mismatch",
        "",
        (NEW, JAX_13, *CUDA12),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "wheels for CUDA 12 and 13, and onnxruntime needs one",
        "two-owners",
        "",
        (*_BOTH, ORT),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch and onnxruntime need different CUDAs",
        "consumer-mismatch",
        "",
        (OTHER, TORCH_13, ORT, *CUDA13),
        manual=True,
    ),
    Breakage(
        "torch and onnxruntime with the cuDNNs of both",
        "two-owners",
        "",
        (OTHER, NEW, TORCH_13, ORT, *CUDA12, *CUDA13),
        manual=True,
    ),
    Breakage(
        "torch and ctranslate2 with the cuDNNs of both, and the older one last",
        "two-owners",
        "",
        (OTHER, OLD, TORCH_13, CT2, *CUDA12, *CUDA13),
        manual=True,
    ),
    Breakage(
        "JAX for both CUDAs",
        "consumer-mismatch",
        "",
        (NEW, JAX, JAX_13, *CUDA12, *CUDA13),
        manual=True,
    ),
    Breakage(
        "an extra of JAX needs a newer version",
        "consumer-mismatch",
        f"rm -r {JAX}.dist-info; cp -r {JAX_NEW}.dist-info x; mv x {JAX_NEW}.dist-info",
        (*_OLDER, JAX, JAX_NEW, JAX_USER),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch 2.11 and onnxruntime exclude each other, and libcublasLt is gone",
        "missing-cublaslt",
        "rm -r nvidia/cu13/lib/libcublasLt* nvidia_cublas*",
        (OTHER, *_EXTRAS, CUDART13, *CUDA13, ORT),
        manual=True,
    ),
    Breakage(
        "libcublasLt and the metadata of cuda-toolkit are gone",
        "missing-cublaslt",
        "rm -r nvidia/cu13/lib/libcublasLt* nvidia_cublas*",
        (OTHER, TORCH_TOOLKIT, CUDART13, *CUDA13),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch 2.11 over cuDNN for CUDA 12, without cuda-toolkit",
        "consumer-mismatch",
        "",
        (NEW, *CUDA12, TORCH_TOOLKIT),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage(
        "torch and JAX exclude each other", "consumer-mismatch", "", (*_OLDER, TORCH, JAX_NEW), manual=True
    ),
    Breakage(
        "onnxruntime needs cuDNN 8", "consumer-mismatch", "", (NEW, ORT_OLD, *CUDA12), layouts=IN_ENVIRONMENTS
    ),
    Breakage(
        "tensorflow needs cuDNN 8", "consumer-mismatch", "", (NEW, FLOW_OLD, *CUDA12), layouts=IN_ENVIRONMENTS
    ),
    Breakage(
        "ctranslate2 needs cuDNN 8", "consumer-mismatch", "", (NEW, CT2_OLD, *CUDA12), layouts=IN_ENVIRONMENTS
    ),
    Breakage(
        "torch in lib64 pins an older version",
        "consumer-mismatch",
        _MOVE_TORCH,
        (NEW, TORCH, *CUDA12),
        layouts=("venv", "odd name"),
    ),
    Breakage(
        "two wheels, all libraries are gone, and torch pins one",
        "missing-library",
        f"rm {LIB}/*",
        (*_BOTH, TORCH),
        layouts=IN_ENVIRONMENTS,
    ),
    Breakage("only headers are left", "missing-library", f"rm {LIB}/*"),
    # More of the files.
    Breakage("all parts are empty", "damaged-library", _in_lib("for f in libcudnn_*; do : > $f; done")),
    Breakage(
        "all libraries are links to nothing", "broken-link", _in_lib("for f in *; do ln -sf gone $f; done")
    ),
    Breakage(
        "libcudnn is a linker script",
        "damaged-library",
        _in_lib("echo 'INPUT(libcudnn.so.9.27)' > libcudnn.so.9"),
    ),
    Breakage("graph is zeros", "damaged-library", _in_lib("head -c 4000 /dev/zero > libcudnn_graph.so.9")),
    Breakage("ext is a random file", "damaged-library", _in_lib("seq 999 > libcudnn_ext.so.9")),
    Breakage(
        "a link in a circle, and ops is gone",
        "broken-link",
        _in_lib("rm libcudnn_ops.so.9; ln -sf b libcudnn_adv.so.9; ln -s libcudnn_adv.so.9 b; rm -f x"),
    ),
    Breakage(
        "the libraries of another version lie over it",
        "stale-metadata",
        f"cp $other/* {LIB}; mkdir {OLD}.dist-info; echo {LIB}/libcudnn.so.9,,7 > {OLD}.dist-info/RECORD",
    ),
    Breakage("only its owner can read all files", "private-file", _in_lib("chmod 600 *")),
    Breakage(
        "libcublasLt is a web page", "damaged-library", "echo '<html>' > nvidia/cublas/lib/libcublasLt.so.12"
    ),
    Breakage(
        "libcublasLt is for another processor",
        "foreign-machine",
        r"printf '\3\0' | dd of=nvidia/cublas/lib/libcublasLt.so.12 bs=1 seek=18 conv=notrunc",
    ),
    Breakage(
        "libnvrtc is cut",
        "damaged-library",
        "cd nvidia/cuda_nvrtc/lib; head -c 99 libnvrtc.so.12 > x; mv x libnvrtc.so.12",
    ),
    Breakage("builtins are empty", "damaged-library", ": > nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9"),
    Breakage("no library of CUDA", "missing-cublaslt", "rm -r nvidia/cublas nvidia/cuda_nvrtc"),
    Breakage(
        "no library of CUDA, and ops is gone",
        "missing-library",
        f"rm -r nvidia/cublas nvidia/cuda_nvrtc {LIB}/libcudnn_ops.so.9",
    ),
    # Environments without pip, as uv creates them.
    Breakage(
        "no pip, and ops is gone", "missing-library", _in_lib("rm libcudnn_ops.so.9"), layouts=("no pip",)
    ),
    Breakage("no pip, and no libcublasLt", "missing-cublaslt", "", (NEW, NVRTC12), layouts=("no pip",)),
)


@dataclass(frozen=True)
class Sound:
    """A set-up in which nothing is wrong."""

    name: str
    script: str = ""
    labels: tuple[str, ...] = (NEW, *CUDA12)
    asked: Requirements = field(default_factory=Requirements)
    layouts: tuple[str, ...] = LAYOUTS


_INFO = (
    f"mv {NEW}.dist-info $STORE/cudnn/site-packages; "
    f"ln -s $STORE/cudnn/site-packages/{NEW}.dist-info {NEW}.dist-info"
)
_LINKS = "for f in *; do cp $f $f.27.0; done; ln -s libcudnn.so.9 libcudnn.so"
_ON_WINDOWS = "Requires-Dist: nvidia-cudnn-cu12==9.1; sys_platform == 'win32'"

_OTHER_TORCH = "d=../../../../other/lib/python3/site-packages; mkdir -p $d; mv torch* $d"

SOUND = (
    Sound("as installed"),
    Sound("an older version", labels=_OLDER),
    Sound("for CUDA 13", labels=(OTHER, *CUDA13)),
    Sound("libraries of both CUDAs", labels=(NEW, *CUDA12, *CUDA13)),
    Sound("with torch", labels=(OLD, TORCH, *CUDA12)),
    Sound("with a newer torch", labels=(NEW, TORCH_NEW, CUDART12, *CUDA12)),
    Sound("with torch for CUDA 13", labels=(OTHER, TORCH_13, *CUDA13)),
    Sound("two metadata folders of torch", _TORCH_AGAIN, (OLD, TORCH, *CUDA12)),
    Sound("names with the full version", _in_lib(_LINKS)),
    Sound("a link with the short name", _in_lib("ln -s libcudnn.so.9 libcudnn.so")),
    Sound(
        "libraries that are links", f"mkdir $STORE; mv {LIB}/* $STORE; ln -s $STORE/* {LIB}", layouts=IN_PLACE
    ),
    Sound("links to objects", _OBJECTS, layouts=IN_PLACE),
    Sound("links to one folder for each wheel", _REPOSITORIES, layouts=IN_PLACE),
    Sound("links to folders, one for each wheel", _FOLDERS, layouts=IN_PLACE),
    Sound(
        "links to folders with metadata",
        _FOLDERS + "for d in $STORE/*; do mkdir $d/site-packages/x-1.dist-info; done",
        (NEW, TORCH_NEW, CUDART12, *CUDA12),
        layouts=IN_PLACE,
    ),
    Sound("links to folders and metadata", _FOLDERS + _INFO, layouts=IN_PLACE),
    Sound("links to folders for CUDA 13", _FOLDERS, (OTHER, *CUDA13), layouts=IN_PLACE),
    Sound("its folder is a link", f"mv {LIB} $STORE; ln -s $STORE {LIB}", layouts=IN_PLACE),
    Sound("without metadata", f"rm -r {NEW}.dist-info"),
    Sound("without a header", f"rm -r {NEW}.dist-info nvidia/cudnn/include"),
    Sound("metadata without hashes and sizes", f"sed -i 's/,[0-9]*$/,/' {NEW}.dist-info/RECORD"),
    Sound("a metadata of another tool", f"mkdir {CU12}.egg-info x.dist-info; echo > x.dist-info/RECORD"),
    Sound(
        "a damaged METADATA",
        r"mkdir y-1.dist-info; printf '\377\0Requires-Dist: nvidia-cudnn-cu12==' > y-1.dist-info/METADATA",
    ),
    Sound(
        "a requirement that does not apply",
        f'mkdir z-1.dist-info; echo "{_ON_WINDOWS}" > z-1.dist-info/METADATA',
    ),
    Sound("other libraries next to it", _in_lib("cp libcudnn_ops.so.9 libother.so; : > notes.txt")),
    Sound(
        "an unneeded libcudart that is damaged",
        "mkdir -p nvidia/cuda_runtime/lib; : > nvidia/cuda_runtime/lib/libcudart.so.12",
    ),
    Sound("requirements that are met", asked=Requirements(minimum=(9, 20), maximum=(9, 27), cuda=12)),
    Sound("the JIT wheel", labels=(JIT, *CUDA12)),
    Sound("for CUDA 11", labels=(CU11, *CUDA11)),
    Sound("torch with its own copy", labels=(TORCH_LIB, *CUDA12)),
    Sound("a renamed copy", labels=(NEW, CT2, *CUDA12)),
    Sound("with JAX", labels=(NEW, JAX, *CUDA12)),
    Sound("with onnxruntime", labels=(NEW, ORT, *CUDA12)),
    Sound("with tensorflow", labels=(NEW, FLOW, *CUDA12)),
    Sound("with JAX for CUDA 13", labels=(OTHER, JAX_13, *CUDA13)),
    Sound("torch that names CUDA by extras", labels=(OTHER, *_EXTRAS, CUDART13, *CUDA13)),
    Sound("extras that no package requires", labels=(OTHER, TOOLKIT, *CUDA13)),
    Sound("extras of a package that is not installed", labels=(OTHER, TORCH_TOOLKIT, *CUDA13)),
    Sound("an extra of JAX", labels=(NEW, JAX_NEW, JAX_USER, *CUDA12)),
    Sound("with all of them", labels=(NEW, JAX, JAX_NEW, ORT, FLOW, CT2, TORCH_NEW, CUDART12, *CUDA12)),
    Sound(
        "metadata of torch that pip left",
        f"mv {TORCH}.dist-info '~orch-2.9.0.dist-info'",
        (NEW, TORCH, *CUDA12),
    ),
    Sound("an older JAX next to a newer one", labels=(NEW, JAX, JAX_NEW, *CUDA12)),
    Sound("read-only files", "chmod -R a-w nvidia; chmod -R u+w nvidia"),
    Sound("files with all rights to execute", f"chmod 755 {LIB}/*"),
    Sound("a RECORD with lines of Windows", f"sed -i 's/$/\\r/' {NEW}.dist-info/RECORD"),
    Sound("hard links to a cache", f"mkdir $STORE; cp -l {LIB}/* $STORE", layouts=IN_PLACE),
    Sound("a static library", f": > {LIB}/libcudnn_static.a; : > {LIB}/libcudnn_static_v9.a"),
    Sound(
        "modules of Python", "touch nvidia/__init__.py nvidia/cudnn/__init__.py nvidia/cudnn/lib/__init__.py"
    ),
    Sound("a newer glibc", "sed -i s/2.36/2.99/ $IMAGE/libc.so.6", layouts=("image", "aarch64")),
    Sound(
        "a libz without versions",
        "cp nvidia/cublas/lib/lib* $IMAGE/libz.so.1",
        layouts=("image", "aarch64"),
    ),
    Sound("no C library in an unpacked layer", "rm $IMAGE/libc.so.6", layouts=("image", "aarch64")),
    Sound(
        "links inside an image",
        "cd $IMAGE; mv libz.so.1 libz.so.1.2; ln -s /usr/lib/${PWD##*/}/libz.so.1.2 libz.so.1",
        layouts=("image", "aarch64"),
    ),
    Sound(
        "torch for another CUDA in another environment",
        _OTHER_TORCH,
        (NEW, TORCH, *CUDA12),
        layouts=("venv", "odd name", "image"),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """The result of the doctor for a breakage, and of its commands."""

    codes: frozenset[str]  # of errors and warnings
    commands: int
    destroyed: bool = False  # whether the commands made it worse without a network
    left: frozenset[tuple[str, str]] = frozenset()  # errors and warnings after the commands
    words: str = ""  # of the commands
    lost: frozenset[str] = frozenset()  # packages that the commands removed and that another one requires

    def is_right(self, case: Breakage) -> bool:
        """Return whether the cause was named, and commands repaired it and removed nothing required."""
        named = case.code in self.codes and case.manual == (not self.commands)
        return named and not self.destroyed and not self.left and not self.lost


def attempt(
    case: Breakage, layout: str, folder: Path, wheels: Path, tried: set[tuple[str, ...]] | None = None
) -> Outcome:
    """Break an environment, run the doctor, and run its commands without and with packages to download.

    Commands without packages run only if commands of their form are not in ``tried``, and are added to it.
    Commands of a form that was tried are run by a process that has already imported pip.
    """
    environment = Environment(folder, wheels, case.labels, layout)
    files = environment.wheels / "files"
    names = f"other={files / OLD}/lib; newer={files / NEW}/lib\n"
    if environment.run(names + case.damage):
        raise AssertionError(environment.output)
    before = environment.diagnose(case.asked)
    codes, commands = frozenset(code for code, _ in wrong(before)), "\n".join(before.commands)
    if not commands:
        return Outcome(codes, 0)
    form, destroyed, unmet = form_of(before.commands), False, environment.unmet()
    new = tried is None or form not in tried
    if new:
        failed = environment.run(commands, index=False)
        destroyed = bool(failed) and not wrong(environment.diagnose(case.asked)) <= wrong(before)
    if tried is not None:
        tried.add(form)
    failed = environment.run(commands, fast=not new)
    left = wrong(environment.diagnose(case.asked)) | ({("failed", commands)} if failed else frozenset())
    lost = frozenset(environment.unmet() - unmet)
    return Outcome(codes, len(before.commands), destroyed, left, environment.output, lost)


def form_of(commands: Sequence[str]) -> tuple[str, ...]:
    """Return commands without their paths and the names and versions of packages, each form once."""
    words = [
        " ".join(word for word in command.split() if not re.search(r"[/~]|==|cu1|torch|nvidia", word))
        for command in commands
    ]
    return tuple(dict.fromkeys(words))


def wrong(diagnosis: Diagnosis) -> frozenset[tuple[str, str]]:
    """Return codes and messages of errors and warnings."""
    return frozenset((each.code, each.message) for each in diagnosis.findings if each.severity.word != "note")
