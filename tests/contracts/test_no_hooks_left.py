"""The law that nothing stays installed can fail: each kind of trace is planted once and must be named."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch._dynamo
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.hooks import left_behind, take_traces


@contextmanager
def module_hook() -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    yield
    handle.remove()


@contextmanager
def logging_handler() -> Iterator[None]:
    handler = logging.NullHandler()
    logging.getLogger("torch").addHandler(handler)
    yield
    logging.getLogger("torch").removeHandler(handler)


@contextmanager
def dynamo_setting() -> Iterator[None]:
    with torch._dynamo.config.patch(recompile_limit=3):
        yield


@contextmanager
def child_process() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield
    child.communicate(b"\n")


@contextmanager
def thread() -> Iterator[None]:
    end = threading.Event()
    worker = threading.Thread(target=end.wait, name="forgotten")
    worker.start()
    yield
    end.set()
    worker.join()


@contextmanager
def signal_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (module_hook, "global module hook"),
        (TorchDispatchMode, "dispatch modes"),
        (TorchFunctionMode, "function modes"),
        (logging_handler, "logging handler NullHandler on torch"),
        (dynamo_setting, "torch._dynamo.config.recompile_limit"),
        (child_process, "child process"),
        (thread, "thread forgotten"),
        (signal_handler, "SIGTERM"),
        (torch.no_grad, "grad mode"),
    ],
)
def test_each_kind_of_trace_is_seen(plant: Callable, named: str) -> None:
    before = take_traces()
    with plant():
        left = left_behind(before, patience_s=0.0)
    assert [line for line in left if named in line], left


def test_a_clean_run_leaves_nothing() -> None:
    before = take_traces()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert left_behind(before) == []
