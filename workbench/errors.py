"""The conditions a run can end in, each with the exit code the command line gives it.

Wrong arguments of a single call are plain `ValueError`/`TypeError`; this tree is for conditions of a run. A message
says what was expected, what came, where, and what to do.
"""


class WorkbenchError(Exception):
    """Base of every condition the workbench raises itself."""

    exit_code = 2


class PlanError(WorkbenchError, ValueError):
    """A plan that cannot be carried out; lists every problem found, not only the first."""


class JournalError(WorkbenchError, ValueError):
    """A journal file that cannot be read, or a record that does not belong in one."""


class StepError(WorkbenchError):
    """A step that cannot run from where the cursor stands."""


class DryRunError(StepError):
    """An operation that needs numbers, or mixes devices, on a device that has only shapes."""


class DeviceError(WorkbenchError):
    """A placement this machine cannot offer."""

    exit_code = 3


class TargetCrash(WorkbenchError):
    """The code under observation failed; the workbench itself is fine."""

    exit_code = 5
