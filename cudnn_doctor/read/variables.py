"""Names of the environment variables that the package reads, and the names that are meant by unknown ones.

The doctor imports this module too: it has no imports beyond the standard library, and runs with Python 3.8.
"""

from __future__ import annotations

from collections.abc import Iterable

PREFIX = "CUDNN_CT_"

# The settings of `_config`.
SETTINGS = (
    "library", "allow_tf32", "algo", "deterministic", "workspace_limit", "autotune_max_engines",
    "online_seconds", "allow_runtime_compilation", "dynamic_shapes", "certify", "certify_seconds",
    "algo_cache", "facts", "plan_cache", "replay", "debug_sync",
)  # fmt: skip

# The flags of `dnn.flags`.
FLAGS = (
    "dnn.enabled", "dnn.conv.algo_fwd", "dnn.conv.algo_bwd_filter", "dnn.conv.algo_bwd_data",
    "dnn.conv.precision", "dnn.library_path", "dnn.include_path", "dnn.base_path",
)  # fmt: skip

# Flags of older versions of Theano, with those that replace them.
REMOVED = {
    "dnn.conv.workmem": ("dnn.conv.algo_fwd",),
    "dnn.conv.workmem_bwd": ("dnn.conv.algo_bwd_filter", "dnn.conv.algo_bwd_data"),
    "dnn.conv.algo_bwd": ("dnn.conv.algo_bwd_filter", "dnn.conv.algo_bwd_data"),
    "dnn.bin_path": ("dnn.library_path",),
}

# Variables of the tests and benchmarks.
_OF_TESTS = (
    "hypothesis_profile", "mutants_killer", "mutants_reach", "reliability", "test_cudnns", "test_headers",
    "test_validators", "test_windows",
)  # fmt: skip


def variable_of(name: str) -> str:
    """Return the environment variable of a setting or a flag."""
    return PREFIX + name.upper().replace(".", "_")


def unknown_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the variables that begin like those of the package but are not read, and the nearest ones."""
    known = set(map(variable_of, SETTINGS + FLAGS + _OF_TESTS))
    stem = PREFIX.replace("_", "")
    unknown = (name for name in names if name.upper().replace("_", "").startswith(stem))
    return {name: _nearest(name) for name in sorted(set(unknown) - known)}


def _nearest(variable: str) -> str:
    """Return the variable that replaces a removed one, has all of its words, or has the most similar name."""
    from difflib import get_close_matches  # hardly ever needed

    instead = {variable_of(flag): variable_of(flags[0]) for flag, flags in REMOVED.items()}
    name = variable.upper()
    if name in instead:
        return instead[name]
    valid = list(map(variable_of, SETTINGS + FLAGS))
    words = set(name.split("_"))
    whole = [each for each in valid if words <= set(each.split("_"))]
    return (whole or get_close_matches(name, valid, 1, cutoff=0))[0]
