"""Forward passes in step: ranks that share experts or tables run them together, busy ones and idle ones.

Before each pass every rank says whether it has one to run. While any has, those that have none take part with no row
of their own; when none has, all stop. With one rank nothing is asked.
"""

import torch
from torch import Tensor

from port.collectives.transport import sum_tensor
from port.model.transformer import Transformer
from port.runtime.cache_engine import CacheEngine
from port.runtime.input_metadata import InputMetadata


class Turns:
    """The passes of one rank.

    Args:
        model: made with this rank's share, or with everything.

    Attributes:
        is_shared: whether other ranks must keep step.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.is_shared = model.parallel is not None and model.parallel.is_shared

    def forward(self, batch: InputMetadata, cache: CacheEngine) -> Tensor:
        """Return the logits of a batch, run while the other ranks run theirs or take part."""
        if self.is_shared:
            self._vote(True)
        logits = self.model(batch.to(self.model.device), cache)
        self._end_step(batch.is_prompt)
        return logits

    def finish(self) -> None:
        """Take part until no rank has a pass to run; every rank calls this once it has no more of its own."""
        while self.is_shared and self._vote(False):
            self.model.take_part()
            self._end_step(False)

    def _vote(self, has_pass: bool) -> bool:
        """Return whether any rank has a pass to run."""
        assert self.model.parallel is not None, "only shared passes are voted on"
        return int(sum_tensor(torch.tensor([int(has_pass)]), self.model.parallel.groups.world)) > 0

    def _end_step(self, is_prompt: bool) -> None:
        if self.model.balancer is not None:
            self.model.balancer.step(is_prompt)
