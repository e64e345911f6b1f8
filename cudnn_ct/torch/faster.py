"""Calls under ``enable()`` that torch computes faster, which are left to it if torch is to choose by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf

from ..cuda import stream as streams
from ..cuda.stream import Stream
from .kernels import choices, traced

__all__ = ["SLOWER", "TIMED", "Resting", "is_timed", "torch_is_faster"]

SLOWER = "torch is faster"
BY_TIME = (False, False, True)  # torch is to choose the fastest algorithm, deterministic or not
TIMED = 24  # runs of a settled call before it is timed, the last of which are replays
# Groups in which torch would search for algorithms, which takes long and much memory.
SEARCHED = frozenset(("conv", "conv_transpose", "gru", "lstm", "rnn"))

CALLS, ROUNDS, SECONDS = 8, 6, 0.05  # of a measurement; two rounds may take longer

STREAK = 32  # calls of a group, one after another, that torch computes faster before the group rests
# Calls of a group that are not examined, between two that are, and blocks without its names. One more is a
# prime, so that the examined calls of a model change from step to step.
BETWEEN = 60
AWAKE = 1000  # calls that are examined in a block with the names of a resting group


def is_timed(group: str, stream: Stream) -> bool:
    """Return whether calls of a group are chosen by time, with the settings of torch, on a stream."""
    return choices() == BY_TIME and group not in SEARCHED and not streams.is_capturing(stream)


def torch_is_faster(ours: Callable[[], object], theirs: Callable[[], object], stream: Stream) -> bool:
    """Time two functions in turns, until the device has finished; the least time of each counts."""
    least, end = [inf, inf], time.perf_counter() + SECONDS
    for turn in range(ROUNDS):
        for place, call in enumerate((ours, theirs)):
            streams.wait(stream)
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            streams.wait(stream)
            least[place] = min(least[place], time.perf_counter() - begin)
        if turn and time.perf_counter() > end:
            break
    return least[1] < least[0]


class Resting:
    """The groups of a block of which torch computes all calls faster: most of them are not examined.

    Blocks without the names of such groups are counted apart for those that begin where gradients are
    recorded: calls with gradients are always served.
    """

    def __init__(self) -> None:
        self._streaks: dict[str, tuple[int, int]] = {}  # served calls before, and the calls since
        self._left: dict[str, int] = {}  # calls until the next that is examined
        self._asleep: dict[tuple[str, bool], int] = {}  # blocks until the next that binds names of a group

    def add(self, group: str, served: int, records: bool) -> None:
        """Count a call that torch computes faster; ``served`` is the number of served calls of the group."""
        before, count = self._streaks.get(group, (served, 0))
        count = count + 1 if before == served else 1
        self._streaks[group] = served, count
        if count >= STREAK:
            self._left[group] = BETWEEN
        if count >= STREAK or (group, records) in self._asleep:
            self._asleep[group, records] = BETWEEN

    def asleep(self, served: Mapping[str, int], records: bool) -> set[str]:
        """Return the groups whose names a new block need not bind: torch computes all their calls.

        In the first block after that, all calls of a group are examined, in their number at most ``AWAKE``.
        Programs that torch has compiled contain the names, and would be compiled again.
        """
        groups: set[str] = set()
        if not self._asleep or choices() != BY_TIME or traced:
            return groups
        for key, left in list(self._asleep.items()):  # other threads change it
            group, before = key[0], self._streaks[key[0]][0]
            if before != served[group]:  # another call was served
                self._asleep.pop(key, None)
            elif key[1] == records:
                self._left[group] = 0
                if left:
                    self._asleep[key] = left - 1
                    groups.add(group)
                else:
                    self._streaks[group] = before, STREAK - AWAKE
        return groups

    def has(self, group: str) -> bool:
        """Return whether a call of a group is left to torch without a look at it."""
        left = self._left.get(group)
        if not left or choices() != BY_TIME:
            return False
        self._left[group] = left - 1
        return True
