"""Tables of what a checkpoint holds and of what one rank keeps; made of the port's values, shown like any view."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from port.checkpoint.inventory import Inventory
from port.checkpoint.plan import WeightPlan
from port.checkpoint.problems import Problem
from port.config import ModelConfig
from port.schedule import LayerRole, LayerSchedule
from workbench.records.base import Json, to_plain
from workbench.units import bytes_text
from workbench.views.base import TableView

_SHOWN_PROBLEMS = 50
_NO_SOURCE = "-"


def inventory_table(inventory: Inventory) -> TableView:
    """Return tensors and bytes by family and dtype."""
    rows = [(row.family, row.dtype, f"{row.tensor_count:,}", bytes_text(row.nbytes)) for row in inventory.rows]
    rows.append(("all", "", f"{inventory.tensor_count:,}", bytes_text(inventory.nbytes)))
    return TableView(
        title="Tensors by family and dtype",
        header=("family", "dtype", "tensors", "bytes"),
        rows=tuple(rows),
        data=_plain_rows(inventory.rows),
        align="llrr",
    )


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """Return what is wrong, errors first, each wrapped to 100 columns; nothing of it is cut off."""
    order = {"error": 0, "warning": 1, "note": 2}
    ranked = sorted(problems, key=lambda problem: order[problem.severity])
    lines = [
        textwrap.fill(f"{problem.severity}: {problem}", width=100, subsequent_indent="    ", break_long_words=False)
        for problem in ranked[:_SHOWN_PROBLEMS]
    ]
    more = len(ranked) - len(lines)
    return [*lines, f"and {more} more (--json lists all)"] if more else lines


def schedule_table(config: ModelConfig) -> TableView:
    """Return what each layer does; layers that do the same follow each other in one row."""
    roles = LayerSchedule.from_config(config).roles
    groups: list[list[LayerRole]] = []
    for role in roles:
        if groups and _same_row(groups[-1][0], role):
            groups[-1].append(role)
        else:
            groups.append([role])
    drafts = config.num_nextn_predict_layers
    return TableView(
        title="Layer schedule",
        header=("layers", "ratio", "rope", "KV from", "index keys from", "selection from", "candidates", "engram"),
        rows=tuple(_schedule_row(group) for group in groups),
        data=_plain_rows(roles),
        note=f"and {drafts} draft layers (ratio 0), which the text model does not run" if drafts else "",
    )


def plan_table(plan: WeightPlan) -> TableView:
    """Return the bytes one rank keeps, by category."""
    rows = [
        (
            row.category,
            row.sharing,
            f"{row.tensor_count:,}",
            bytes_text(row.stored_bytes),
            bytes_text(row.rank_bytes),
            f"{row.rank_bytes / max(1, plan.weights_bytes):.1%}",
        )
        for row in plan.rows
    ]
    rows.append(("all", "", "", bytes_text(plan.stored_bytes), bytes_text(plan.weights_bytes), ""))
    padding = sum(row.padding_bytes for row in plan.rows)
    return TableView(
        title=f"Weights of rank {plan.rank} of {plan.world_size} ({', '.join(plan.parts)}), kept as stored",
        header=("category", "shared", "tensors", "in the checkpoint", "on this rank", "share"),
        rows=tuple(rows),
        data=_plain_rows(plan.rows),
        note=f"{bytes_text(padding)} of it pads Engram tables to equal parts" if padding else "",
        align="llrrrr",
    )


def _same_row(first: LayerRole, role: LayerRole) -> bool:
    """Return whether two layers differ in nothing a row shows; owners begin a row of their own."""
    shown = ("ratio", "rope", "kv_source", "index_k_source", "index_source", "candidates", "has_engram")
    keys = (*shown, "owns_kv", "owns_index_k", "owns_index")
    return all(getattr(first, key) == getattr(role, key) for key in keys)


def _schedule_row(group: Sequence[LayerRole]) -> tuple[str, ...]:
    role, last = group[0], group[-1].layer
    layers = str(role.layer) if last == role.layer else f"{role.layer}-{last}"
    sources = (role.kv_source, role.index_k_source, role.index_source)
    names = [_NO_SOURCE if source is None else "itself" if source == role.layer else str(source) for source in sources]
    candidates = "" if role.candidates == "none" else role.candidates
    return (layers, str(role.ratio), role.rope, *names, candidates, "yes" if role.has_engram else "")


def _plain_rows(items: Sequence[object]) -> tuple[dict[str, Json], ...]:
    rows: list[dict[str, Json]] = []
    for item in items:
        plain = to_plain(item)
        assert isinstance(plain, Mapping), "rows are dataclasses"
        rows.append(dict(plain))
    return tuple(rows)
