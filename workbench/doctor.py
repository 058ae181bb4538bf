"""What this machine can run, what stands in the way, and what to do about it.

Answers rest on trials where a trial is harmless, else on metadata: the Neuron software is never imported here, since it
would take cores and set variables. Each line says whether it is measured, documented or inferred.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator

from workbench.doctor_report import DoctorReport, Line, PlacementLine
from workbench.installed import Installed, look_up, version_numbers
from workbench.machine import Machine, look_at_machine
from workbench.neuron_discovery import hardware_lines, hardware_obstacles, look_at_neuron
from workbench.neuron_timing import timing_lines
from workbench.neuron_variables import PREFIXES, describe, nearest
from workbench.placement_trial import Trial, try_placements
from workbench.plan import DeviceName
from workbench.settings import find_program, initial_variables, variables
from workbench.units import bytes_text

Progress = Callable[[str], None]

PLACEMENTS: tuple[DeviceName, ...] = ("host", "dry", "virtual", "neuron")

_NEURON_PYTHON = ((3, 12), (3, 14))
"""Python versions torch-neuronx 2.14 is built for, first and last (documented, release notes of Neuron 2.33)."""

_LOW_MEMORY = 2 * 1024**3
_LIBRARIES = (
    ("numpy", "numpy", "needed to run anything"),
    ("safetensors", "safetensors", "needed to run anything"),
    ("tokenizers", "tokenizers", "needed for prompts"),
    ("matplotlib", "matplotlib", "needed for plots; tables and text work without it"),
    ("ipywidgets", "ipywidgets", "needed for the stepper widget"),
    ("jupyterlab", "jupyterlab", "needed to open the notebooks"),
)


def examine(*, progress: Progress | None = None) -> DoctorReport:
    """Return what this machine can run; takes some seconds, since placements are tried in a child process.

    Args:
        progress: told in a line what is going on.
    """
    if progress is not None:
        progress("trying the placements in a process of its own")
    torch, neuron = look_up("torch", "torch"), look_up("torch-neuronx", "torch_neuronx")
    sight, machine, found = look_at_neuron(), look_at_machine(), variables(PREFIXES)
    software = neuron_obstacles(neuron, look_up("neuronx-cc", "neuronxcc"), sys.version_info[:2])
    obstacles = [*hardware_obstacles(sight, found), *software]
    # With an obstacle the device is not tried: a trial would take cores, and could only fail.
    tried: list[DeviceName] = [name for name in PLACEMENTS if name != "neuron" or not obstacles]
    trials = try_placements(tried)
    placements = [_placement(trials[name], neuron) for name in PLACEMENTS if name in trials]
    if obstacles:
        placements.append(_blocked(obstacles))
    return DoctorReport(
        placements=tuple(placements),
        lines=(
            *_machine_lines(machine),
            *_software_lines(torch),
            *_neuron_lines(neuron),
            *hardware_lines(sight, found),
            *variable_lines(found),
            *timing_lines(initial_variables(PREFIXES), found, is_imported="torch_neuronx" in sys.modules),
        ),
    )


def neuron_obstacles(
    torch_neuronx: Installed, neuronx_cc: Installed, python: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    """Give what of the software stands in the way of the placement `neuron`, with what to do."""
    registry = "install it from the AWS Neuron package registry, not from the public one"
    words = {
        "absent": ("torch-neuronx is not installed", registry),
        "placeholder": (
            f"torch-neuronx {torch_neuronx.version} is a placeholder wheel",
            f"uninstall it and {registry}",
        ),
        "xla": (
            f"torch-neuronx {torch_neuronx.version} is the torch-xla one",
            "install 2.14 in an environment of its own",
        ),
        "unnamed": (f"torch_neuronx at {torch_neuronx.place} belongs to no installed package", registry),
    }
    if torch_neuronx.kind in words:
        yield words[torch_neuronx.kind]
    if neuronx_cc.kind != "installed":
        yield f"neuronx-cc is {neuronx_cc.kind}", registry
    first, last = _NEURON_PYTHON
    if not first <= python <= last:
        yield (
            f"Python {'.'.join(map(str, python))}; torch-neuronx 2.14 is built for {first[0]}.{first[1]} to "
            f"{last[0]}.{last[1]} (documented)",
            "make the environment with one of these",
        )


def _blocked(obstacles: list[tuple[str, str]]) -> PlacementLine:
    return PlacementLine(
        name="neuron",
        able=False,
        found="not tried: " + "; ".join(found for found, _ in obstacles),
        advice="; ".join(dict.fromkeys(advice for _, advice in obstacles)),
        basis="measured",
    )


def _placement(trial: Trial, neuron: Installed) -> PlacementLine:
    advice = ""
    if not trial.able:
        advice = "use a placement that is able"
        if trial.placement == "dry" and neuron.kind == "placeholder":
            advice = "uninstall torch-neuronx: it is a placeholder wheel and does nothing but keep the name"
        elif trial.placement == "host":
            advice = "repair the installation of torch: `pip install --force-reinstall torch==2.13.0`"
    return PlacementLine(name=trial.placement, able=trial.able, found=trial.words, advice=advice, basis="measured")


def _machine_lines(machine: Machine) -> Iterator[Line]:
    text = f"{bytes_text(machine.available_bytes)} available of {bytes_text(machine.memory_bytes)}"
    if machine.memory_limit_bytes is not None:
        text += f"; this container may take {bytes_text(machine.memory_limit_bytes)}"
    low = machine.available_bytes < _LOW_MEMORY
    advice = "step larger checkpoints with residency='stream' (one step's weights at a time)" if low else ""
    yield Line(topic="Machine", name="memory", state="note" if low else "ok", found=text, advice=advice)
    text = f"{machine.usable_cores} of {machine.cores} usable by this process"
    yield Line(topic="Machine", name="cores", state="ok", found=text)
    yield Line(topic="Machine", name="system", state="ok", found=f"{platform.system()} {platform.machine()}")


def _software_lines(torch: Installed) -> Iterator[Line]:
    topic = "Software"
    yield Line(topic=topic, name="python", state="ok", found=f"{platform.python_version()} at {sys.executable}")
    if torch.kind == "absent":
        yield Line(topic=topic, name="torch", state="problem", found="not installed",
                   advice="pip install torch==2.13.0; journals can be read and drawn without it")  # fmt: skip
    else:
        known = (2, 13) <= version_numbers(torch.version or "")[:2] < (2, 15)
        yield Line(
            topic=topic,
            name="torch",
            state="ok" if known else "problem",
            found=str(torch.version),
            advice="" if known else "the tests run on 2.13, torch-neuronx pairs with 2.14: install one of them",
        )
    for distribution, module, why in _LIBRARIES:
        found = look_up(distribution, module)
        state = "missing" if found.kind == "absent" else "ok"
        advice = f"pip install {distribution}; {why}" if state == "missing" else ""
        yield Line(topic=topic, name=distribution, state=state, found=found.version or "not installed", advice=advice)
    browser = find_program("chromium") or find_program("chromium-browser")
    yield Line(
        topic=topic,
        name="chromium",
        state="ok" if browser else "missing",
        found=browser or "not on PATH",
        advice="" if browser else "only the browser tests need it; on Debian: apt-get install chromium",
    )


def _neuron_lines(neuron: Installed) -> Iterator[Line]:
    topic = "Neuron software"
    for found in (neuron, look_up("neuronx-cc", "neuronxcc"), look_up("nki", "nki")):
        yield _package_line(topic, found)
    program = find_program("neuronx-cc")
    yield Line(
        topic=topic,
        name="neuronx-cc program",
        state="ok" if program else "missing",
        found=program or "not on PATH",
        advice=""
        if program
        else "put the environment's bin folder on PATH: torch-neuronx starts it by name (documented)",
    )


def _package_line(topic: str, found: Installed) -> Line:
    size = "" if found.nbytes is None else f", {bytes_text(found.nbytes)}"
    if found.kind == "installed":
        return Line(topic=topic, name=found.name, state="ok", found=f"{found.version}{size}")
    if found.kind == "placeholder":
        return Line(
            topic=topic,
            name=found.name,
            state="problem",
            found=f"{found.version}{size}: a placeholder that keeps the name on the public registry; it holds no code",
            advice=f"pip uninstall {found.name}; the real one is on the AWS Neuron package registry",
        )
    if found.kind == "xla":
        return Line(
            topic=topic,
            name=found.name,
            state="problem",
            found=f"{found.version}: the torch-xla one, whose tensors are not on `neuron`",
            advice="install 2.14 in an environment of its own; the two cannot share one",
            basis="documented",
        )
    text = "not installed" if found.kind == "absent" else f"a module at {found.place} that no package owns"
    return Line(
        topic=topic,
        name=found.name,
        state="missing" if found.kind == "absent" else "problem",
        found=text,
        advice="only the placement `neuron` needs it: install it from the AWS Neuron package registry",
    )


def variable_lines(found: dict[str, str]) -> Iterator[Line]:
    """Give a line for every variable of the Neuron software that is set, or one that says there is none."""
    topic = "Variables of the Neuron software"
    if not found:
        yield Line(topic=topic, name="none", state="ok", found=f"none is set (looked for {', '.join(PREFIXES)})")
    for name, value in found.items():
        known = describe(name)
        if known is None:
            meant = nearest(name)
            advice = f"did you mean {meant}?" if meant else "check the spelling: an unknown variable does nothing"
            text = f"{value!r}; not a variable this version knows"
            yield Line(topic=topic, name=name, state="note", found=text, advice=advice, basis="inferred")
            continue
        where = (
            "" if known.basis == "documented" else " (seen in sources)" if known.basis == "source" else " (reported)"
        )
        yield Line(
            topic=topic,
            name=name,
            state="note" if known.advice else "ok",
            found=f"{value!r}: {known.meaning}{where}",
            advice=known.advice,
            basis="documented" if known.basis == "documented" else "inferred",
        )
