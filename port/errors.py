"""The error tree of the port: one base class, one class per kind of user-visible failure.

Messages follow one form: what was expected; what came; where; what to do. Every class is also a `ValueError` or a
`RuntimeError`, so code that only knows the standard library still catches the right thing.
"""


class PortError(Exception):
    """Base of every error the port raises on purpose."""


class ConfigError(PortError, ValueError):
    """A model configuration that cannot be run; the message lists every problem found."""


class CheckpointError(PortError, ValueError):
    """A checkpoint that is malformed, incomplete, or not the one the model needs.

    Attributes:
        problems: the `port.checkpoint.Problem` values behind the text, where there are any.
    """

    def __init__(self, message: str, *, problems: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class ShapeBucketError(PortError, ValueError):
    """A batch that fits none of the static shapes the model was prepared for."""


class PlatformError(PortError, RuntimeError):
    """A device, a mode or a library that this machine or this port does not have."""


class KernelUnavailableError(PortError, AttributeError):
    """A kernel factory that the back end of this platform does not have."""


class CollectiveError(PortError, RuntimeError):
    """An exchange between ranks that did not come to an end: one of them died, fell behind or asked for another one."""
