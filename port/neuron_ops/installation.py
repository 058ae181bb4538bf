"""What is replaced now and how often it was asked for: the one place that writes into torch, and puts everything back.

Stand-ins ask `INSTALLATION` for the mapping whenever they are called, so one that somebody kept (`from torch import
zeros` inside, used later) is the original again once nothing is installed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from port.neuron_ops.device_mapping import DeviceMapping

Replacements = Iterable[tuple[Any, Any, Any]]
"""Owner, name and what stands there; the owner is a module, a class, or a dictionary whose key the name is."""

_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Original:
    owner: Any
    name: Any
    value: Any


class Installation:
    """A mapping, the functions of `torch.cuda` for it, and the originals of every name that is replaced.

    Attributes:
        mapping: what CUDA stands for; None while nothing is installed.
        names: functions by their name in `torch.cuda`; empty while nothing is installed.
        count: how often it was asked for and not yet left.
    """

    def __init__(self) -> None:
        self.mapping: DeviceMapping | None = None
        self.names: Mapping[str, Callable[..., Any]] = {}
        self.count = 0
        self._lock = threading.RLock()
        self._originals: list[_Original] = []

    def enter(
        self,
        mapping: DeviceMapping,
        names: Callable[[DeviceMapping], Mapping[str, Callable[..., Any]]],
        replacements: Callable[[DeviceMapping], Replacements],
    ) -> None:
        """Install, or count one more use of what is installed.

        Args:
            mapping: what CUDA is to stand for.
            names: makes the functions of `torch.cuda` for it.
            replacements: says what to put where.

        Raises:
            RuntimeError: another mapping is installed.
        """
        with self._lock:
            if self.mapping is not None and self.mapping != mapping:
                raise RuntimeError(
                    f"transfer_to_neuron: expected the mapping that is installed, CUDA as {self.mapping}; found "
                    f"{mapping}. Leave the other one first."
                )
            if not self.count:
                try:
                    self.names = names(mapping)
                    # All of them first: what is made from an original must not be made from a stand-in.
                    wanted = list(replacements(mapping))
                    self.mapping = mapping
                    for owner, name, own in wanted:
                        self._replace(owner, name, own)
                except BaseException:
                    self._put_back()
                    raise
            self.count += 1

    def leave(self) -> None:
        """Undo one `enter`; the last one puts everything back. Does nothing while nothing is installed."""
        with self._lock:
            if not self.count:
                return
            self.count -= 1
            if not self.count:
                self._put_back()

    def _replace(self, owner: Any, name: Any, own: Any) -> None:
        places = owner if isinstance(owner, dict) else vars(owner)
        self._originals.append(_Original(owner=owner, name=name, value=places.get(name, _ABSENT)))
        if isinstance(owner, dict):
            owner[name] = own
        else:
            setattr(owner, name, own)

    def _put_back(self) -> None:
        self.mapping = None
        self.names = {}
        while self._originals:
            original = self._originals.pop()
            if isinstance(original.owner, dict):
                if original.value is _ABSENT:
                    original.owner.pop(original.name, None)
                else:
                    original.owner[original.name] = original.value
            elif original.value is _ABSENT:
                delattr(original.owner, original.name)
            else:
                setattr(original.owner, original.name, original.value)


INSTALLATION = Installation()
"""That of this process."""
