"""Which experts a token goes to, and with what weight. Shape letters: T tokens, E experts, K experts per token.

Source: DeepSeek-V4.1 `inference/model.py`, Gate.forward, revision dba1be0a.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from port.kernels.topk import top_columns

_SUM_EPS = 1e-20
_LINEAR_ABOVE = 20.0


def affinities(logit_TE: Tensor) -> Tensor:
    """Return sqrt(softplus(logit)), float32 (T, E).

    For very negative logits softplus is exp(x) to the last bit; `log1p(exp(x))` keeps that, `log(1 + exp(x))` would
    give 0.
    """
    return F.softplus(logit_TE.to(torch.float32), beta=1.0, threshold=_LINEAR_ABOVE).sqrt()


def route(logit_TE: Tensor, bias_E: Tensor, *, topk: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Return the chosen experts and their weights.

    Args:
        logit_TE: float32 (T, E), the gate's output.
        bias_E: float32 (E,), added for the choice only.
        topk: experts per token.
        scaling: factor on the normalised weights.

    Returns:
        ids int64 (T, K), by descending biased affinity, equal ones by ascending id; weights float32 (T, K).
    """
    affinity = affinities(logit_TE)
    ids = top_columns(affinity + bias_E, topk)[1].to(torch.int64)
    chosen = affinity.gather(-1, ids)
    return ids, chosen / (chosen.sum(dim=-1, keepdim=True) + _SUM_EPS) * scaling
