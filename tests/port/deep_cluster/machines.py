"""Made-up machines: what neuron-ls would print, a fake tool that prints it, and a driver's tree."""

from __future__ import annotations

import json
import shlex
from pathlib import Path


def listed(index: int, **changes: object) -> dict[str, object]:
    """Return one device of a trn2.48xlarge as neuron-ls lists it, with some keys changed; a None key is left out."""
    body: dict[str, object] = {
        "instance_type": "trn2.48xlarge",
        "instance_id": "i-0",
        "neuron_device": index,
        "bdf": f"0000:{index:02x}:00.0",
        "cpu_affinity": "0-3,8" if index % 2 == 0 else "4-7",
        "numa_node": str(index % 2),
        "connected_to": [index ^ 1],
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 103079215104,
        "neuroncore_ids": [4 * index + at for at in range(4)],
        "neuron_processes": [],
        **changes,
    }
    return {key: value for key, value in body.items() if value != "absent"}


def write_tool(folder: Path, *, stdout: str = "", stderr: str = "", exit_code: int = 0, body: str = "") -> Path:
    """Write an executable neuron-ls into a folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / "neuron-ls"
    lines = ["#!/bin/sh", body, f"printf %s {shlex.quote(stdout)}", f"printf %s {shlex.quote(stderr)} >&2"]
    tool.write_text("\n".join([*lines, f"exit {exit_code}", ""]), encoding="utf-8")
    tool.chmod(0o755)
    return folder


def write_machine(root: Path, *devices: dict[str, object]) -> Path:
    """Write a root with the tools' folder, whose neuron-ls lists these devices."""
    write_tool(root / "opt/aws/neuron/bin", stdout=json.dumps(list(devices)))
    return root


def write_tree(root: Path, *, devices: int = 1, cores: int = 8, name: str = "Trainium2", kind: str = "Trn2") -> Path:
    """Write a driver's tree."""
    for index in range(devices):
        folder = root / f"sys/devices/virtual/neuron_device/neuron{index}"
        (folder / "info/architecture").mkdir(parents=True)
        (folder / "info/architecture/device_name").write_text(name + "\n")
        (folder / "info/architecture/instance_type").write_text(kind + "\n")
        (folder / "connected_devices").write_text("3, 1\n")
        for core in range(cores):
            use = folder / f"neuron_core{core}/stats/memory_usage/device_mem/tensors"
            use.mkdir(parents=True)
            (use / "present").write_text("4096\n")
            (use / "peak").write_text("8192\n")
    return root
