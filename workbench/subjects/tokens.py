"""The tokens both sides of a session are fed: chosen by one side, so that a flip of one token cannot part the two."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.errors import StepError


class TokenTrack:
    """Tokens of each decode step, one per sequence; decode step n is fed `of_pass(n)`, n from 1."""

    def __init__(self, known: Sequence[Sequence[int]] = ()) -> None:
        """Begin with what is known, as golden tokens are."""
        self._fixed = [tuple(tokens) for tokens in known]
        self._chosen: dict[int, tuple[int, ...]] = dict(enumerate(self._fixed, start=1))

    @property
    def is_fixed(self) -> bool:
        """Whether the tokens were known from the start."""
        return bool(self._fixed)

    def choose(self, forward_pass: int, tokens: Sequence[int]) -> None:
        """Note what the leading side chose to feed in a forward pass; tokens known from the start stay."""
        if not self._fixed:
            self._chosen[forward_pass] = tuple(tokens)

    def of_pass(self, forward_pass: int) -> tuple[int, ...]:
        """Return the tokens fed in a decode step.

        Raises:
            StepError: the leading side has not got there.
        """
        if forward_pass not in self._chosen:
            raise StepError(
                f"decode step {forward_pass} cannot run before the reference has chosen its tokens; "
                "step both sides together."
            )
        return self._chosen[forward_pass]
