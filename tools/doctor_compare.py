"""Compare the doctor with other checks on the matrix of broken installations, in a table of docs/doctor.md.

CUDNN_CT_TEST_CUDNNS=FOLDER python tools/doctor_compare.py

An installation is noticed if a check fails, is killed, or prints something else than for a sound one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import doctor_cases as cases
from tests.doctor_sites import Site, Source, examine
from tests.lib.test_doctor import SOURCES

sys.path.insert(0, str(Path(__file__).resolve().parent))
from doctor_docs import PAGE, _scratch, put

VERSION = """
import ctypes, sys
print(ctypes.CDLL(sys.argv[1]).cudnnGetVersion())
"""
PATHFINDER = """
import sys
sys.path[:0] = sys.argv[1:]
from cuda.pathfinder import load_nvidia_dynamic_lib
print(load_nvidia_dynamic_lib("cudnn").abs_path)
"""
COLLECT_ENV = "ldconfig -p | grep libcudnn || true"


def main() -> None:
    """Run the command."""
    source, *others = SOURCES
    runs: list[tuple[cases.Case, tuple[Source, ...]]] = [
        (case, (source,)) for case in cases.CASES if case.where(source)
    ]
    runs += [(case, (source, other)) for other in others for case in cases.MIXES if case.where(source, other)]
    sound = {name: _with_site(check, source) for name, check in CHECKS.items()}
    noticed = dict.fromkeys([*CHECKS, DOCTOR], 0)
    named = 0
    for case, (mine, *rest) in runs:
        with _scratch(None) as folder:
            site = Site(folder, mine)
            case.damage(site, *rest)
            for name, check in CHECKS.items():
                noticed[name] += check(site) != sound[name]
            answer = examine(site.target, site.arguments, site.environ, site.prelude)
            noticed[DOCTOR] += answer.exit_code != 0
            named += cases.named(case, answer)
            print(case.name, *rest, noticed, flush=True)
    kinds = len({case.name for case, _ in runs})
    rows = [f"| {name} | {noticed[name]} | {CAUSES[name]} |" for name in CHECKS]
    rows.append(f"| {DOCTOR} | {noticed[DOCTOR]} | {named} |")
    head = f"{len(runs)} broken installations of cuDNN {source}, of {kinds} kinds:"
    titles = ["| check | noticed | cause named |", "|---|---|---|"]
    block = "\n".join([head, "", *titles, *rows])
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "comparison", block), encoding="utf-8")


DOCTOR = "`cudnn-ct doctor`"


def pip_check(site: Site) -> str:
    """Run ``pip check`` on the metadata of the site-packages."""
    import pip

    alone = site.root.parent / "pip"  # the packages of this environment are not those of the site
    info = alone / f"nvidia_cublas_cu{site.source.set.cuda}-99.dist-info"
    info.mkdir(parents=True)
    name = f"nvidia-cublas-cu{site.source.set.cuda}"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99\n")
    (alone / "pip").symlink_to(Path(pip.__file__).parent)
    code = f"import sys; sys.path += [{str(site.root)!r}, {str(alone)!r}]\n"
    code += "from pip._internal.cli.main import main; sys.exit(main(['check']))"
    return _run([sys.executable, "-I", "-S", "-c", code], site)


def ldd(site: Site) -> str:
    """Run ``ldd libcudnn.so.9``; addresses are left out."""
    return re.sub(r"0x[0-9a-f]+", "", _run(["ldd", str(_shim(site))], site))


def get_version(site: Site) -> str:
    """Open libcudnn and call cudnnGetVersion, as the CUDA plugin of JAX does."""
    return _run([sys.executable, "-c", VERSION, str(_shim(site))], site)


def pathfinder(site: Site) -> str:
    """Let cuda-pathfinder find and open cuDNN."""
    import cuda.pathfinder

    alone, environment = site.root.parent / "pathfinder/cuda", site.root.parent / "environment"
    alone.mkdir(parents=True)
    (alone / "pathfinder").symlink_to(Path(cuda.pathfinder.__file__).parent)
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/*/site-packages")
    packages.rmdir()
    packages.symlink_to(site.root)
    return _run([str(environment / "bin/python"), "-I", "-c", PATHFINDER, str(alone.parent)], site)


def collect_env(site: Site) -> str:
    """List the linker's cache, as torch's collect_env does."""
    return _run(["sh", "-c", COLLECT_ENV], site)


CHECKS: dict[str, Callable[[Site], str]] = {
    "`pip check`": pip_check,
    "`ldd libcudnn.so.9`": ldd,
    "opening libcudnn and calling `cudnnGetVersion`, as JAX does": get_version,
    "cuda-pathfinder": pathfinder,
    "the list of `ldconfig -p`, as torch's collect_env prints": collect_env,
}
CAUSES = {
    "`pip check`": "only unmet requirements",
    "`ldd libcudnn.so.9`": "only missing system libraries",
    "opening libcudnn and calling `cudnnGetVersion`, as JAX does": "no: a status or a killed process",
    "cuda-pathfinder": "only a missing or rejected libcudnn",
    "the list of `ldconfig -p`, as torch's collect_env prints": "no",
}


def _shim(site: Site) -> Path:
    own = site.target / "libcudnn.so.9"
    return own if own.is_symlink() else site.file("")


def _run(command: list[str], site: Site) -> str:
    environ = {**os.environ, **site.environ}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "hung"
    words = f"{done.returncode} {done.stdout}{done.stderr.strip().rpartition(chr(10))[2]}"
    return words.replace(str(site.root.parent), "")


def _with_site(check: Callable[[Site], str], source: Source) -> str:
    with _scratch(None) as folder:
        return check(Site(folder, source))


if __name__ == "__main__":
    main()
