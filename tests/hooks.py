"""What a test must leave as it found it: hooks, modes, handlers, settings of Dynamo, children, threads, figures."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil
import torch
from torch.nn.modules import module as nn_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM)
_HOOK_TABLES = [
    name for name in dir(nn_module) if name.startswith("_global") and isinstance(getattr(nn_module, name), dict)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The state of this process that outlives a call when someone forgets to undo it."""

    module_hooks: set[tuple[str, int]]
    dispatch_modes: list[str]
    function_modes: list[str]
    loggers: set[str]
    handlers: dict[tuple[str, int], str]
    dynamo_config: dict[str, object] | None
    settings: dict[str, str]
    children: dict[int, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    figures: set[int] = field(default_factory=set)


def take_traces() -> Traces:
    """Return the state as it stands."""
    dynamo = sys.modules.get("torch._dynamo")
    pyplot = sys.modules.get("matplotlib.pyplot")
    return Traces(
        module_hooks={(name, key) for name in _HOOK_TABLES for key in getattr(nn_module, name)},
        dispatch_modes=[type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
        function_modes=[type(mode).__name__ for mode in _get_current_function_mode_stack()],
        loggers={"", *logging.root.manager.loggerDict},
        handlers=_handlers(),
        dynamo_config=None if dynamo is None else dynamo.config.get_config_copy(),
        settings={
            "default dtype": str(torch.get_default_dtype()),
            "grad mode": str(torch.is_grad_enabled()),
            "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
            **{one.name: repr(signal.getsignal(one)) for one in _SIGNALS},
        },
        children=_children(),
        threads={thread.ident or 0: thread.name for thread in threading.enumerate()},
        figures=set() if pyplot is None else set(pyplot.get_fignums()),
    )


def left_behind(before: Traces, *, patience_s: float = 5.0) -> list[str]:
    """Return a line for everything that is there now and was not `before`.

    Processes and threads that are about to end get `patience_s` seconds to do so; everything else is judged at once.
    """
    deadline = time.monotonic() + patience_s
    while True:
        now = take_traces()
        living = [f"child process {now.children[pid]}" for pid in sorted(set(now.children) - set(before.children))]
        living += [f"thread {now.threads[ident]}" for ident in sorted(set(now.threads) - set(before.threads))]
        if not living or time.monotonic() > deadline:
            break
        threading.Event().wait(0.02)
    lines = [
        f"global module hook in torch.nn.modules.module.{name}" for name, _ in now.module_hooks - before.module_hooks
    ]
    for kind, old, new in (
        ("dispatch", before.dispatch_modes, now.dispatch_modes),
        ("function", before.function_modes, now.function_modes),
    ):
        if old != new:
            lines.append(f"{kind} modes {new}, before {old}")
    lines += _added_handlers(before, now)
    lines += _changed("torch._dynamo.config.", before.dynamo_config or now.dynamo_config or {}, now.dynamo_config or {})
    lines += _changed("", before.settings, now.settings)
    lines += [f"open pyplot figure {number}" for number in sorted(now.figures - before.figures)]
    return lines + living


def _handlers() -> dict[tuple[str, int], str]:
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        (name, id(handler)): f"logging handler {type(handler).__name__} on {name or 'the root logger'}"
        for name, logger in loggers.items()
        for handler in getattr(logger, "handlers", ())
        # pytest puts its own on every logger that does not propagate, and takes it away later than we look.
        if type(handler).__module__ != "_pytest.logging"
    }


def _added_handlers(before: Traces, now: Traces) -> list[str]:
    added = set(now.handlers) - set(before.handlers)
    # A part of torch imported during the test brings its own loggers with their handlers.
    ours = [key for key in added if not (key[0].startswith("torch") and key[0] not in before.loggers)]
    return sorted(now.handlers[key] for key in ours)


def _changed(prefix: str, old: dict, new: dict) -> list[str]:
    changed = [name for name in old if name in new and old[name] != new[name]]
    return [f"{prefix}{name} is {new[name]!r}, was {old[name]!r}" for name in changed]


def _children() -> dict[int, str]:
    found: dict[int, str] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())[:100] or child.name()
        except psutil.Error:
            continue
        # Python itself keeps this one until exit, once anything used the "spawn" start method.
        if "multiprocessing.resource_tracker" not in command:
            found[child.pid] = f"{child.pid} ({command})"
    return found
