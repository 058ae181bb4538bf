"""Two accounts of one call brought together: storages seen by their tensors, and requests seen by the allocator.

Each storage is a request made in its own operation; what is left over is memory that no tensor shows. Where the two
accounts do not agree, because the call did not do the same twice, nothing is merged and the reason is given.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.probes.allocator_run import AllocatorEvent
from workbench.probes.storage_ledger import Block, Ledger, reentered

_DATA = "aten::tensor"
"""Tensors made from data come from no operation of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The two accounts as one.

    Attributes:
        ledger: storages and left-over requests, in one order; None where the accounts disagree.
        why_not: how they disagree.
    """

    ledger: Ledger | None
    why_not: str = ""


@dataclass(slots=True)
class _Request:
    event: AllocatorEvent
    born: int
    died: int | None = None
    returned: AllocatorEvent | None = None
    block: Block | None = None


def merge(tensors: Ledger, events: Sequence[AllocatorEvent]) -> Merged:
    """Return one ledger of storages and of what only the allocator saw, in the order of the allocator.

    Args:
        tensors: of the observed run; stays as it is.
        events: of a second run of the same call.
    """
    own = [block for block in tensors.blocks if not block.baseline]
    requests = _requests(events)
    found = _match(own, requests)
    if found < len(own):
        missing = own[found]
        return Merged(
            ledger=None,
            why_not=f"{missing.op} made {missing.nbytes} bytes in the observed run, and not in the one under the "
            "profiler; the call does not do the same twice",
        )
    blocks = [block for block in tensors.blocks if block.baseline]
    for request, owner in zip(requests, _owners(requests), strict=True):
        block = copy.copy(request.block) if request.block is not None else _left_over(request, owner)
        block.born, block.died = request.born, request.died
        blocks.append(block)
    ledger = reentered(blocks)
    was, now = tensors.sums["cpu", "tensors"], ledger.sums["cpu", "tensors"]
    if (was.peak.nbytes, was.live) != (now.peak.nbytes, now.live):
        return Merged(
            ledger=None,
            why_not=f"tensors reached {was.peak.nbytes} bytes and kept {was.live} in the observed run, and "
            f"{now.peak.nbytes} and {now.live} in the one under the profiler; a storage changed its size, or lived "
            "longer, without an operation that shows it",
        )
    return Merged(ledger=ledger)


def _requests(events: Sequence[AllocatorEvent]) -> list[_Request]:
    """Return the run's own memory, requests and returns numbered in one order."""
    requests: list[_Request] = []
    alive: dict[int, _Request] = {}
    number = 0
    for event in events:
        if event.nbytes < 0:
            request = alive.pop(event.address, None)
            if request is not None:  # otherwise memory from before the run
                number += 1
                request.died, request.returned = number, event
        elif event.nbytes > 0:
            number += 1
            requests.append(_Request(event, number))
            alive[event.address] = requests[-1]
    return requests


def _match(own: Sequence[Block], requests: Sequence[_Request]) -> int:
    """Say which request is which storage, both in their order; return how many storages have one."""
    found = 0
    for request in requests:
        if found < len(own) and _is_request_of(own[found], request):
            request.block = own[found]
            found += 1
    return found


def _is_request_of(block: Block, request: _Request) -> bool:
    event, returned = request.event, request.returned
    if block.nbytes != event.nbytes:
        return False
    if block.op in (_DATA, ""):
        return True
    if block.op not in event.inside:
        return False
    # What an operation gives back before it ends is its scratch, not its result.
    return returned is None or returned.inside.get(block.op) != event.inside[block.op]


def _owners(requests: Sequence[_Request]) -> list[Block | None]:
    """Return for each request the storage it was made for: its own, or one of the same operation; None for neither."""
    following: list[_Request | None] = [None] * len(requests)
    after: _Request | None = None
    for index in range(len(requests) - 1, -1, -1):
        following[index] = after = requests[index] if requests[index].block is not None else after
    owners: list[Block | None] = []
    before: _Request | None = None
    for request, after in zip(requests, following, strict=True):
        if request.block is not None:
            before = request
        owners.append(next((one.block for one in (before, after) if one is not None and _serves(request, one)), None))
    return owners


def _serves(request: _Request, other: _Request) -> bool:
    """Say whether memory was asked for in, or just before, the operation that made another storage."""
    event, block = request.event, other.block
    if request is other or block is None:
        return request is other
    if event.call >= 0:
        return event.call == other.event.call and (block.op in event.inside or event.op == block.op)
    return event.op == block.op and other.born > request.born


def _left_over(request: _Request, owner: Block | None) -> Block:
    event = request.event
    return Block(
        nbytes=event.nbytes,
        device="cpu",
        dtype="",
        shape=(),
        baseline=False,
        owner="" if owner is None else owner.owner,
        op=event.op,
        line=None if owner is None else owner.line,
        given_role="workspace",
        counts="allocator",
    )
