"""Process groups of one rank: made in the same order everywhere, tried once each, closed together.

    layout = ParallelLayout(data_parallel=4, expert_parallel=2, engram_parallel=4)
    with open_groups(layout, rank=rank, rendezvous="file:///tmp/meeting") as groups:
        model = open_text_model(folder, parallel=Parallel(groups=groups))

Each group does one tiny all-reduce right after it is made, one of a single rank too: communicators of devices are made
at the first use (documented), and a rank that is missing should be missed here. A rank that dies later gives the others
a `CollectiveError` at their next exchange: at once where the back end sees its connection close, as gloo does, and
after the timeout at the latest. After such an error the groups are of no use; end the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from port.collectives.layout import ParallelLayout
from port.collectives.transport import explained, group_device
from port.environment import ENV
from port.errors import CollectiveError, ConfigError

_HOST_KINDS = ("world", "expert_host")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelGroups:
    """The groups one rank is a member of; None for a group of one made without a process group.

    Attributes:
        layout: sizes.
        rank: of this process in the world.
        world, data_host, expert_host: on the host (gloo), for votes and statistics.
        local, data, context, expert, engram: on the device's back end.
    """

    layout: ParallelLayout
    rank: int
    world: ProcessGroup | None = None
    local: ProcessGroup | None = None
    data: ProcessGroup | None = None
    data_host: ProcessGroup | None = None
    context: ProcessGroup | None = None
    expert: ProcessGroup | None = None
    expert_host: ProcessGroup | None = None
    engram: ProcessGroup | None = None


@contextmanager
def open_groups(
    layout: ParallelLayout,
    *,
    rank: int,
    rendezvous: str,
    backend: str | None = None,
    timeout_s: float | None = None,
) -> Iterator[ParallelGroups]:
    """Join the other ranks, yield this rank's groups, and leave them all at the end.

    Args:
        layout: the same on every rank.
        rank: of this process in the world.
        rendezvous: where ranks meet: "file:///a/path/that/does/not/exist/yet", or "tcp://127.0.0.1:port".
        backend: of the device groups; the platform's when None. The world and the host copies are gloo.
        timeout_s: longest wait for the others; `DEEPINFER_GLOO_TIMEOUT` when None.

    Raises:
        ConfigError: a rank outside the layout, a rendezvous of another kind, or a timeout that is not above 0.
        CollectiveError: not all ranks came, or a process group exists already.
    """
    layout.members("world", rank)
    seconds = ENV.DEEPINFER_GLOO_TIMEOUT if timeout_s is None else timeout_s
    _check(rendezvous, seconds)
    if dist.is_initialized():
        raise CollectiveError("open_groups: expected no process group in this process; there is one. Close it first.")
    timeout = timedelta(seconds=seconds)
    try:
        try:
            dist.init_process_group(
                "gloo", init_method=rendezvous, rank=rank, world_size=layout.world_size, timeout=timeout
            )
        except (RuntimeError, ValueError) as error:
            raise CollectiveError(
                f"open_groups: expected {layout.world_size} ranks to meet at {rendezvous} within {seconds:g} s; rank "
                f"{rank} met: {str(error).strip().splitlines()[0]}"
            ) from error
        yield _make_groups(layout, rank, _device_backend(backend), timeout)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def single_process() -> ParallelGroups:
    """Return the groups of a process that is alone; no process group is made."""
    return ParallelGroups(layout=ParallelLayout(), rank=0)


def _make_groups(layout: ParallelLayout, rank: int, backend: str, timeout: timedelta) -> ParallelGroups:
    own: dict[str, ProcessGroup | None] = {}
    plan = layout.groups()
    kinds = [(kind, kind, "gloo" if kind in _HOST_KINDS else backend) for kind in plan]
    kinds.append(("data_host", "data", "gloo"))
    for name, kind, group_backend in kinds:
        if name == "world":
            own[name] = dist.group.WORLD
        else:
            # Every rank makes every group, its own or not: that is what the library asks for.
            for members in plan[kind]:
                group = dist.new_group(list(members), backend=group_backend, timeout=timeout)
                if rank in members and isinstance(group, ProcessGroup):
                    own[name] = group
        _try_once(name, own[name])
    return ParallelGroups(layout=layout, rank=rank, **own)


def _try_once(name: str, group: ProcessGroup | None) -> None:
    one = torch.ones(1, dtype=torch.float32, device=group_device(group))
    with explained(f"first all-reduce of the {name} group", group):
        dist.all_reduce(one, group=group)
    if int(one) != dist.get_world_size(group):
        raise CollectiveError(f"{name} group: expected a sum of {dist.get_world_size(group)}; found {int(one)}.")


def _device_backend(backend: str | None) -> str:
    if backend is not None:
        return backend
    from port.platform import PLATFORM

    return PLATFORM.distributed_backend


def _check(rendezvous: str, seconds: float) -> None:
    if not rendezvous.startswith(("file://", "tcp://")):
        raise ConfigError(f"rendezvous: expected file:///path or tcp://127.0.0.1:port; found {rendezvous!r}.")
    if not seconds > 0:
        raise ConfigError(f"timeout_s: expected a number above 0; found {seconds!r}.")
