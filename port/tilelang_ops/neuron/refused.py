"""Factories of modes that this platform does not have: present by name, refused when called."""

from collections.abc import Callable
from typing import NoReturn

from port.tilelang_ops.table import row


def refuse(name: str) -> Callable[..., NoReturn]:
    """Return the factory of a kernel that belongs to a mode the platform does not have; calling it raises.

    Raises:
        NotImplementedError: by the factory, whatever it is called with: the mode, and what turns it off.
    """
    mode = row(name).mode

    def factory(*arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError(
            f"{name}: this kernel is called in {mode.name} only, which platform neuron does not have. {mode.way_out}"
        )

    factory.__name__ = factory.__qualname__ = name
    return factory
