"""Teacher-forced checks: each sub-layer is fed the golden trace's input, so that an error stays where it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from port.model.block import Block
from port.model.taps import identity_tap
from port.runtime.prefill_inputs import build_prefill
from port.runtime.text_model import TextModel
from port.verify_rules import CheckResult, row_errors

# Quantiles of the relative row error and their limits. In fp32 nothing can flip; with quantised activations and keys a
# single code that falls the other way moves its row, so the median is held tightly and the tail loosely.
LIMITS: Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]] = {
    "fp32": {part: ((1.0, 1e-4),) for part in ("engram", "attn", "ffn")},
    "fp32q": {
        "engram": ((0.5, 1e-5), (1.0, 5e-2)),
        "attn": ((0.5, 1e-5), (0.9, 0.14)),
        "ffn": ((0.5, 1e-5), (1.0, 5e-2)),
    },
    "bf16": {
        "engram": ((0.5, 1e-2), (1.0, 5e-2)),
        "attn": ((0.5, 4.5e-2), (0.9, 0.14)),
        "ffn": ((0.5, 1e-2), (0.99, 4e-2)),
    },
}


@torch.inference_mode()
def traced_checks(
    text_model: TextModel, prompt: str, token_ids: list[int], trace_path: Path, mode: str
) -> Iterator[CheckResult]:
    """Yield one check per kind of sub-layer for a traced prompt, nothing for a prompt without trace."""
    with safe_open(trace_path, "pt") as file:
        trace = {key[len(prompt) + 1 :]: file.get_tensor(key) for key in file.keys() if key.startswith(prompt + ".L")}  # noqa: SIM118
    if not trace or mode not in LIMITS:
        return
    errors = _forced_errors(text_model, token_ids, trace)
    for part, limits in LIMITS[mode].items():
        if part not in errors:
            continue
        rows, layers = errors[part]
        failed = [(quantile, limit) for quantile, limit in limits if float(torch.quantile(rows, quantile)) > limit]
        quantile, limit = failed[0] if failed else limits[-1]
        worst = float(torch.quantile(rows, quantile))
        where = "worst row" if quantile == 1.0 else f"{quantile:.0%} of rows"
        yield CheckResult(
            prompt, f"{part} alone", not failed, worst, limit, f"{where}; worst layer {layers[int(rows.argmax())]}"
        )


def _forced_errors(
    text_model: TextModel, token_ids: list[int], trace: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, list[int]]]:
    """Return, per part, the error of every row of every layer and the layer each belongs to."""
    model = text_model.model
    cache = text_model.cache_for([len(token_ids)])
    sequence = cache.admit(tuple(token_ids))
    batch = build_prefill(cache.layout, [sequence], engram=text_model.engram).to(model.device)
    state = model.begin(batch)
    rotations = model.rotations(batch)
    found: dict[str, list[Tensor]] = {}
    owners: dict[str, list[int]] = {}

    def note(part: str, layer: int, expected: Tensor, output: Tensor) -> None:
        rows = row_errors(expected, output.cpu())
        found.setdefault(part, []).append(rows)
        owners.setdefault(part, []).extend([layer] * len(rows))

    activation, device = model.precision.activation, model.device
    for layer, block in enumerate(model.layers):
        assert isinstance(block, Block), "layers are blocks"
        given = {key: trace[f"L{layer}.{key}"].to(device, activation) for key in ("attn_in", "ffn_in")}
        if block.role.has_engram and layer > 0:
            stream = trace[f"L{layer - 1}.out"].to(device, activation)
            output = block.engram(stream, batch.engram_row_ids[str(layer)], identity_tap)
            note("engram", layer, trace[f"L{layer}.post_engram"], output)
        output, state = block.attn(
            given["attn_in"], state, batch, cache.kv_caches[layer], rotations[block.role.rope], identity_tap
        )
        note("attn", layer, trace[f"L{layer}.attn_out"], output)
        note("ffn", layer, trace[f"L{layer}.ffn_out"], block.ffn(given["ffn_in"], batch.valid_token_mask, identity_tap))
    return {part: (torch.cat(rows), owners[part]) for part, rows in found.items()}
