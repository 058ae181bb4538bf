"""How a role looks in every picture of memory: one colour and one hatch each, so that neither has to do alone."""

from __future__ import annotations

from workbench.records.memory import Role
from workbench.views.base import HATCHES, PALETTE

ROLES: tuple[Role, ...] = ("weight", "cache", "input", "activation", "workspace", "collective", "unknown")
"""In the order they are stacked, what stays longest first."""


def look_of(role: Role) -> tuple[str, str]:
    """Return colour and hatch."""
    index = ROLES.index(role)
    return PALETTE[index], HATCHES[index]
