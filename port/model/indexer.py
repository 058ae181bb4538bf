"""The indexer: which compressed entries each query attends to."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from port.config import ModelConfig
from port.kernels.gather import load_rows
from port.kernels.index_selection import candidate_blocks, index_scores, restrict_to_blocks, select_entries
from port.kernels.rotary import rotate_tail
from port.model.precision import Precision
from port.model.taps import Tap
from port.model.weights import Linear, RMSNorm
from port.runtime.cache_engine import KVCache
from port.runtime.input_metadata import InputMetadata
from port.schedule import LayerRole


@dataclass(frozen=True, slots=True)
class Selection:
    """What an indexer decided.

    Attributes:
        entries: int32 (T, index_topk), ascending, -1 = none.
        candidate_blocks: bool (T, B) where this layer publishes them, else None.
    """

    entries: Tensor
    candidate_blocks: Tensor | None


class Indexer(nn.Module):
    """Scores entries by cheap keys and keeps the best. Key weights exist only where the layer owns index keys."""

    def __init__(self, config: ModelConfig, role: LayerRole, precision: Precision) -> None:
        super().__init__()
        heads, width = config.index_n_heads, config.index_head_dim
        if role.owns_index_k:
            self.wk = Linear(width, config.head_dim, stored="bf16")
            self.k_norm = RMSNorm(width, eps=config.rms_norm_eps)
        self.wq_b = Linear(heads * width, config.q_lora_rank, stored="fp8")
        self.weights_proj = Linear(heads, config.hidden_size, stored="bf16")
        self.config = config
        self.role = role
        self.precision = precision
        self._prefix = f"layers.{role.layer}.attn"

    def keys(self, latent: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return index keys of new entries as cached, (C, index_head_dim).

        Args:
            latent: (C, head_dim), the compressor's output before rotation.
            rotation: cosines and sines at the first token of each entry.
        """
        precision = self.precision
        key = self.k_norm(self.wk(latent, operands=precision.operands, out_dtype=precision.activation))
        return precision.index_row(rotate_tail(key, *rotation))

    def forward(
        self,
        y: Tensor,
        query_latent: Tensor,
        rotation: tuple[Tensor, Tensor],
        batch: InputMetadata,
        cache: KVCache,
        gathered_keys: Tensor | None,
        allowed_blocks: Tensor | None,
        tap: Tap,
    ) -> Selection:
        """Return the entries each row attends to.

        Args:
            y: (T, D), the attention input.
            query_latent: (T, q_lora_rank), quantised as a linear's input.
            rotation: cosines and sines at the rows' positions.
            batch: entry ranges and lengths.
            cache: index keys, read in a decode.
            gathered_keys: prefill, index keys of all requests in a line.
            allowed_blocks: bool (T, B), published by the candidate source; read where this layer is restricted.
            tap: see `port/model/taps.py`.
        """
        config, precision, prefix = self.config, self.precision, self._prefix
        heads, width = config.index_n_heads, config.index_head_dim
        query = self.wq_b(query_latent, operands=precision.operands, out_dtype=precision.activation)
        query = precision.index_row(rotate_tail(query.unflatten(-1, (heads, width)), *rotation))
        query = tap(f"{prefix}.index_query", query)
        weight = self.weights_proj(y, operands=precision.operands, out_dtype=precision.activation)
        if precision.profile.index_weights == "scaled":
            weight = weight * (width**-0.5 * heads**-0.5)
        weight = tap(f"{prefix}.index_weights", weight)
        score = tap(f"{prefix}.index_score", self._scores(query, weight, batch, cache, gathered_keys))

        published = None
        if self.role.candidates == "publishes":
            published = candidate_blocks(
                score,
                batch.klen[str(self.role.ratio)],
                block_size=config.candidate_block_size,
                topk_blocks=config.candidate_topk_blocks,
            )
            published = tap(f"{prefix}.candidate_blocks", published)
        elif self.role.candidates == "restricted":
            assert allowed_blocks is not None, "the candidate source runs before the layers it restricts"
            score = restrict_to_blocks(score, allowed_blocks, block_size=config.candidate_block_size)
        entries = tap(f"{prefix}.index_topk", select_entries(score, topk=config.index_topk))
        return Selection(entries, published)

    def _scores(
        self, query: Tensor, weight: Tensor, batch: InputMetadata, cache: KVCache, gathered_keys: Tensor | None
    ) -> Tensor:
        """Return float32 (T, entries), -inf where an entry is not visible to the row."""
        key = str(self.role.ratio)
        precision = self.precision
        options = {
            "operands": precision.operands,
            "round_per_head": precision.profile.index_score == "per_head",
        }
        if batch.is_prompt:
            assert gathered_keys is not None, "a prefill publishes its index keys before they are scored"
            spans = [(request.rows, request.entries[key]) for request in batch.requests]
            width = max(end - begin for _, (begin, end) in spans)
            pieces = []
            for (row, row_end), (entry, entry_end) in spans:
                piece = index_scores(query[row:row_end], weight[row:row_end], gathered_keys[entry:entry_end], **options)
                pieces.append(nn.functional.pad(piece, (0, width - (entry_end - entry))))
            score = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        else:
            assert cache.ica_cache is not None, "a layer that selects entries has index keys"
            assert batch.block_tables is not None, "a decode batch has block tables"
            per_block = cache.ica_cache.shape[1]
            offset = torch.arange(per_block, dtype=torch.int32, device=query.device)
            slots = (batch.block_tables.unsqueeze(-1) * per_block + offset).flatten(1)
            score = index_scores(query, weight, load_rows(cache.ica_cache.flatten(0, 1), slots), **options)
        entry = torch.arange(score.shape[1], dtype=torch.int32, device=score.device)
        visible = entry < batch.klen[key].unsqueeze(-1)
        return torch.where(visible, score.to(torch.float32), -torch.inf)
