"""What the user asked for, in order: every Session verb called, with JSON-able arguments. Replay re-issues them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.records.base import Json, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One call of a Session verb.

    Attributes:
        seq: position in the journal, shared with the records.
        verb: name of the Session method.
        arguments: keyword arguments, JSON-able only.
    """

    seq: int
    verb: str
    arguments: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """Return the journal line of this action."""
        return {"action": self.verb, "seq": self.seq, "arguments": to_plain(self.arguments)}

    def call_text(self, subject: str = "session") -> str:
        """Return the Python call that repeats the action, as in `session.run(until='layers.3')`."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{subject}.{self.verb}({arguments})"
