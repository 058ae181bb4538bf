"""Many log records of one place made into one record of that place, the user's own line first.

Not for listening (see `break_log`) nor for running anything (see `graphs`).
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from workbench.probes.break_classes import INTENTIONAL, reason_class
from workbench.probes.break_log import BreakEvent, BreakFrame
from workbench.probes.break_registry import find_entry
from workbench.probes.look_past import LookPast
from workbench.probes.reached_lines import Place, Reach
from workbench.probes.user_code import is_library, shown_path
from workbench.records.graphs import GraphBreak, SourceFrame

_OF_PIECES = frozenset({"reconstruction", "recompile_limit"})
"""Classes that cutting a function can cause by itself: a value handed between pieces, a piece compiled many times."""


def merge_events(events: Iterable[BreakEvent], *, pass_index: int = 0) -> list[GraphBreak]:
    """Return one record per source site and reason, in order of appearance.

    Args:
        events: Dynamo's records; those without a place in the program are left out.
        pass_index: pass of the search the events come from.
    """
    groups: dict[tuple[str, int, str], list[BreakEvent]] = {}
    for event in events:
        if event.frames:
            leaf = user_frames(event.frames)[0]
            groups.setdefault((leaf.file, leaf.line, event.reason), []).append(event)
    return [_site(group, pass_index) for group in groups.values()]


def new_sites(
    known: Sequence[GraphBreak], events: Iterable[BreakEvent], search: LookPast, *, pass_index: int
) -> list[GraphBreak]:
    """Return the sites of a later pass that no earlier one had, with what the cut hides put back.

    A cut function is no loop and no skipped frame any more, so whether the line stands in one comes from its source.
    """
    places = {(one.file, one.line) for one in known}
    fresh: list[GraphBreak] = []
    for one in merge_events(events, pass_index=pass_index):
        if (one.file, one.line) in places or one.reason_class in _OF_PIECES:
            continue
        block, loop = search.in_block(one.file, one.line)
        fresh.append(replace(one, frame_skipped=one.frame_skipped or block, in_loop=one.in_loop or loop))
    return fresh


def with_reach(breaks: Iterable[GraphBreak], places: Mapping[Place, Reach]) -> list[GraphBreak]:
    """Return the breaks with how often, and through which modules, each was reached; None and none where not seen."""
    found: list[GraphBreak] = []
    for one in breaks:
        reach = places.get((one.file, one.line))
        if reach is not None and reach.calls:
            one = replace(one, calls=reach.calls, modules=tuple(reach.modules))
        found.append(one)
    return found


def user_frames(frames: Sequence[BreakFrame]) -> list[BreakFrame]:
    """Return the frames leaf first, without those of torch and of the standard library below the user's last line."""
    ordered = list(reversed(frames))
    first = next((index for index, one in enumerate(ordered) if not is_library(one.file)), 0)
    return ordered[first:]


def _site(group: Sequence[BreakEvent], pass_index: int) -> GraphBreak:
    deepest = max(group, key=lambda event: len(event.frames))
    frames = user_frames(deepest.frames)
    entry = find_entry(deepest.reason)
    kind = reason_class(deepest.reason)
    leaf = frames[0]
    return GraphBreak(
        file=shown_path(leaf.file),
        line=leaf.line,
        function=leaf.function,
        text=_source_line(leaf),
        reason=deepest.reason,
        reason_class=kind,
        registry_id=entry.registry_id if entry else None,
        explanation=deepest.explanation or (entry.explanation if entry else ""),
        hints=deepest.hints or (entry.hints if entry else ()),
        frames=tuple(
            SourceFrame(file=shown_path(one.file), line=one.line, function=one.function, text=_source_line(one))
            for one in frames
        ),
        modules=(),
        frame_skipped=any(event.skipped for event in group),
        in_loop=any(event.in_loop for event in group),
        intentional=kind in INTENTIONAL,
        log_records=len(group),
        pass_index=pass_index,
    )


def _source_line(frame: BreakFrame) -> str:
    return linecache.getline(frame.file, frame.line).strip()
