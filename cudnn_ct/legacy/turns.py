"""Several calls for one result: once one of them has written, no other way may start anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import BadParamError, CudnnError, ExecutionFailedError, NotSupportedError

__all__ = ["in_turn", "too_late"]


def too_late(error: CudnnError) -> ExecutionFailedError:
    """What a refusal is once earlier calls have changed a result: no other way may start anew."""
    return ExecutionFailedError(
        f"{error}\nearlier calls of the same operation have changed its results, so no other way was tried",
        status=error.status,
        function=error.function,
        detail=error.detail,
    )


def in_turn(calls: Iterable[Callable[[], object]]) -> None:
    """Make several calls for one result. After the first, a refusal lets no other way begin again."""
    for i, call in enumerate(calls):
        try:
            call()
        except (NotSupportedError, BadParamError) as error:
            if not i:
                raise
            raise too_late(error) from error
