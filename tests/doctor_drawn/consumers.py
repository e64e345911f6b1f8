"""Packages that use cuDNN: the requirements of their published metadata, and the cuDNN they are built for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.doctor_drawn import files, wheels

LINUX = ' ; platform_system == "Linux" and platform_machine == "x86_64"'
LINUX_ANY = ' ; platform_system == "Linux"'
LINUX_CUDA = ' ; sys_platform == "linux" and extra == "with-cuda"'


@dataclass(frozen=True)
class Consumer:
    """One release: its Requires-Dist lines about NVIDIA's libraries.

    ``cuda`` and ``allows`` are the cuDNN that it needs, whether its metadata or only its code requires it;
    both are empty if it needs no cuDNN 9.
    """

    name: str
    version: str
    module: str
    cuda: str
    allows: str
    requires: tuple[str, ...] = ()

    def accepts(self, wheel: wheels.Wheel) -> bool:
        """Whether this package works with a cuDNN."""
        return self.cuda in ("", wheel.cuda) and wheel.version in SpecifierSet(self.allows)

    def pins(self) -> list[Requirement]:
        """Its requirements without an extra, and those of the extras of cuda-toolkit that it names."""
        lines = [Requirement(line) for line in self.requires if "extra ==" not in line]
        toolkits = [each for each in lines if each.name == "cuda-toolkit"]
        extras = {extra for each in toolkits for extra in each.extras}
        return [*lines, *(Requirement(pin) for extra, pin in wheels.TOOLKIT.items() if extra in extras)]

    def install(self, site: Path) -> None:
        """Write a module and the metadata, and those of cuda-toolkit if it requires that."""
        if any(each.name == "cuda-toolkit" for each in self.pins()):
            wheels.toolkit().install(site)
        module = f"{self.module}/__init__.py"
        files.write(site / module, b"")
        extras = set(re.findall(r"""extra == ['"]([\w-]+)""", " ".join(self.requires)))
        lines = [f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n"]
        lines += [f"Provides-Extra: {extra}\n" for extra in sorted(extras)]
        lines += [f"Requires-Dist: {line}\n" for line in self.requires]
        wheels.install_metadata(site, self.name, self.version, "".join(lines), [module])


CONSUMERS = (
    Consumer(
        "torch",
        "2.8.0",
        "torch",
        "12",
        "==9.10.2.21",
        (
            "nvidia-cuda-nvrtc-cu12==12.8.93" + LINUX,
            "nvidia-cuda-runtime-cu12==12.8.90" + LINUX,
            "nvidia-cudnn-cu12==9.10.2.21" + LINUX,
            "nvidia-cublas-cu12==12.8.4.1" + LINUX,
        ),
    ),
    Consumer(
        "torch",
        "2.11.0",
        "torch",
        "13",
        "==9.19.0.56",
        (
            "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.0.2"
            + LINUX_ANY,
            "nvidia-cudnn-cu13==9.19.0.56" + LINUX_ANY,
        ),
    ),
    Consumer(
        "torch",
        "2.12.0",
        "torch",
        "13",
        "==9.20.0.48",
        (
            "cuda-toolkit[cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.0.2"
            + LINUX_ANY,
            "nvidia-cublas<=13.1.1.3,>=13.1.0.3" + LINUX_ANY,
            "nvidia-cudnn-cu13==9.20.0.48" + LINUX_ANY,
        ),
    ),
    Consumer(
        "jax-cuda12-plugin",
        "0.8.0",
        "jax_cuda12_plugin",
        "12",
        ">=9.8,<10.0",
        (
            "nvidia-cublas-cu12>=12.1.3.1" + LINUX_CUDA,
            "nvidia-cuda-runtime-cu12>=12.1.105" + LINUX_CUDA,
            "nvidia-cudnn-cu12<10.0,>=9.8" + LINUX_CUDA,
            "nvidia-cuda-nvrtc-cu12>=12.1.55" + LINUX_CUDA,
        ),
    ),
    Consumer(
        "jax-cuda13-plugin",
        "0.8.0",
        "jax_cuda13_plugin",
        "13",
        ">=9.12.0.46,<10.0",
        (
            "nvidia-cublas>=13.0.0.19" + LINUX_CUDA,
            "nvidia-cuda-runtime>=13.0.48" + LINUX_CUDA,
            "nvidia-cudnn-cu13<10.0,>=9.12.0.46" + LINUX_CUDA,
            "nvidia-cuda-nvrtc>=13.0.48" + LINUX_CUDA,
        ),
    ),
    Consumer(
        "onnxruntime-gpu",
        "1.22.0",
        "onnxruntime",
        "12",
        ">=9,<10",
        (
            'nvidia-cuda-nvrtc-cu12~=12.0 ; extra == "cuda"',
            'nvidia-cuda-runtime-cu12~=12.0 ; extra == "cuda"',
            'nvidia-cudnn-cu12~=9.0 ; extra == "cudnn"',
        ),
    ),
    Consumer(
        "tensorflow",
        "2.19.0",
        "tensorflow",
        "12",
        ">=9.3,<10",
        (
            "nvidia-cublas-cu12 ==12.5.3.2 ; extra == 'and-cuda'",
            "nvidia-cudnn-cu12 ==9.3.0.75 ; extra == 'and-cuda'",
        ),
    ),
    Consumer("ctranslate2", "4.6.0", "ctranslate2", "12", ">=9,<10"),
    Consumer("cupy-cuda12x", "13.6.0", "cupy", "", ""),  # its wheel names libcudnn.so.8.8.1, as optional
)
