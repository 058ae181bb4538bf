"""Importing either package patches nothing, touches no device, starts nothing and reads no environment."""

from __future__ import annotations

import json

import pytest

from tests.contracts.imports import ROOT
from tests.contracts.processes import import_all, run_python

# Watches a fresh process while `{action}` runs, and prints what it saw as JSON.
_WATCH = """
import json, logging, os, sys, types
import torch, torch.nn.functional, torch._dynamo
from torch.nn.modules import module as nn_module

ROOT = {root!r}
SPACES = {{
    "torch": torch, "Tensor": torch.Tensor, "Module": torch.nn.Module, "functional": torch.nn.functional,
    "ops.aten": torch.ops.aten, "nn.modules.module": nn_module, "torch._C": torch._C,
}}

def names():
    # A lazily loaded submodule becomes an attribute of its package; that is not a patch.
    return {{
        (space, name): id(value) for space, holder in SPACES.items() for name, value in vars(holder).items()
        if not isinstance(value, types.ModuleType) and not name.startswith("__")
    }}

def handlers():
    loggers = {{"": logging.root, **logging.root.manager.loggerDict}}
    return {{(name, id(one)) for name, logger in loggers.items() for one in getattr(logger, "handlers", ())}}

seen = []
watching = False

def audit(event, args):
    if not watching:
        return
    if event in ("subprocess.Popen", "os.system", "os.fork", "os.exec", "socket.connect", "os.putenv", "os.unsetenv"):
        seen.append(event)
    if event == "open" and str(args[0]).startswith("/dev/") and str(args[0]) != "/dev/null":
        seen.append("open " + str(args[0]))

sys.addaudithook(audit)
read = type(os.environ).__getitem__

def watched_read(self, key):
    frame = sys._getframe(1)
    while frame and os.path.basename(frame.f_code.co_filename) in ("os.py", "<frozen os>", "<frozen _collections_abc>"):
        frame = frame.f_back
    if watching and frame and frame.f_code.co_filename.startswith((ROOT + "/port/", ROOT + "/workbench/", "<string>")):
        seen.append(f"environment {{key}} read in {{frame.f_code.co_filename}}:{{frame.f_lineno}}")
    return read(self, key)

type(os.environ).__getitem__ = watched_read
before = names(), handlers(), torch._C._get_privateuse1_backend_name(), torch.get_default_dtype()
watching = True
{action}
watching = False
after = names(), handlers(), torch._C._get_privateuse1_backend_name(), torch.get_default_dtype()
patched = sorted(
    f"{{space}}.{{name}}" for (space, name), value in after[0].items()
    # The namespace of operators fills as operators are looked up.
    if before[0].get((space, name), None if space != "ops.aten" else value) != value
)
seen += ["patched " + name for name in patched]
seen += ["handler on " + (name or "root") for name, _ in after[1] - before[1] if not name.startswith("torch")]
seen += [f"{{old}} became {{new}}" for old, new in zip(before[2:], after[2:]) if old != new]
print(json.dumps(seen))
"""


def watch(action: str) -> list[str]:
    done = run_python(_WATCH.format(root=str(ROOT), action=action))
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", ["port", "workbench"])
def test_importing_does_nothing_else(package: str) -> None:
    assert watch(import_all(package)) == []


@pytest.mark.parametrize(
    ("action", "named"),
    [
        ("torch.Tensor.size = lambda self: 0", "patched Tensor.size"),
        ("torch.fancy = 1", "patched torch.fancy"),
        ("logging.getLogger('mine').addHandler(logging.NullHandler())", "handler on mine"),
        ("os.environ.get('HOME')", "environment HOME"),
        ("open('/dev/zero').close()", "open /dev/zero"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("torch.set_default_dtype(torch.float64)", "torch.float32 became torch.float64"),
        ("torch.utils.rename_privateuse1_backend('elsewhere')", "privateuseone became elsewhere"),
    ],
)
def test_each_effect_is_seen(action: str, named: str) -> None:
    assert any(named in line for line in watch(action))
