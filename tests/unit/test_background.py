"""Imports in a background thread while CUDA starts: complete with the first context, and silent."""

from __future__ import annotations

import threading

import pytest

from cudnn_ct.cuda import driver
from tests.processes import run_python

FIRST_USE = """
import sys
from tests.unit.cuda_driver import install
install()
from cudnn_ct.cuda import driver
from cudnn_ct.cuda import stream
names = ["cudnn_ct." + name for name in driver.MODULES]
assert not any(name in sys.modules for name in names)
stream.set_device(0)
print(all(name in sys.modules for name in names), driver._import_thread)
"""


def test_first_context_of_a_process_comes_with_the_imports() -> None:
    done = run_python("-W", "error", "-c", FIRST_USE, timeout=90)
    assert (done.stdout, done.stderr) == ("True None\n", "")


def test_begin_starts_no_thread_when_the_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MODULES", ("errors",))
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    driver.begin_imports()
    driver.finish_imports()


@pytest.mark.parametrize("failure", ["import", "thread"])
def test_failure_is_left_to_the_first_use_of_the_module(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(driver, "MODULES", ("a_module_that_does_not_exist",))
    if failure == "thread":
        monkeypatch.setattr(threading.Thread, "start", start)
    driver.begin_imports()
    assert (driver._import_thread is None) == (failure == "thread")
    driver.finish_imports()
    assert driver._import_thread is None
