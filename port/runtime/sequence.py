"""One request as a value: its tokens, and where its state lies in the cache."""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A prompt and what followed it.

    Attributes:
        token_ids: all known tokens, prompt first.
        block_table: block ids in order of position.
        state_id: state slot.
        cached: tokens whose keys are in the cache; the next query token is `token_ids[cached]`.
    """

    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    state_id: int
    cached: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def pending(self) -> int:
        """Known tokens that have not been run yet."""
        return len(self.token_ids) - self.cached

    def advanced(self, count: int) -> "Sequence":
        """Return the sequence after `count` more of its tokens were run."""
        if not 0 <= count <= self.pending:
            raise ValueError(f"expected to advance by 0 to {self.pending} tokens; found {count}.")
        return dataclasses.replace(self, cached=self.cached + count)

    def with_token(self, token_id: int) -> "Sequence":
        """Return the sequence with one more token at its end."""
        return dataclasses.replace(self, token_ids=(*self.token_ids, token_id))

    def rewound(self, cached: int) -> "Sequence":
        """Return the sequence with only the first `cached` tokens counted as run; all tokens are kept.

        The window ring keeps `backtracking` tokens more than the window, so at most that many may be taken back without
        running them again from a snapshot.
        """
        if not 0 <= cached <= self.cached:
            raise ValueError(f"expected to rewind to a length from 0 to {self.cached}; found {cached}.")
        return dataclasses.replace(self, cached=cached)
