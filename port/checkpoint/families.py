"""Which part of the model a tensor belongs to, read off its name.

| family | tensors |
|---|---|
| embedding, head | `embed.weight`, `head.weight` |
| attention, compressor, indexer | `layers.*.attn.*` |
| router, experts, shared_experts | `layers.*.ffn.*` |
| engram_tables, engram_dense | `layers.*.engram.embed.*`, the other `layers.*.engram.*` |
| norms_hc | norm weights of the residual stream and the hyper-connection mixes |
| draft | `mtp.*` |
| vision | `vision.*`, `aligner.*`, `image_*` |
| other | any other name |
"""

from typing import Literal, get_args

Family = Literal[
    "embedding",
    "attention",
    "compressor",
    "indexer",
    "router",
    "experts",
    "shared_experts",
    "engram_tables",
    "engram_dense",
    "norms_hc",
    "head",
    "draft",
    "vision",
    "other",
]

FAMILIES: tuple[Family, ...] = get_args(Family)

_GLOBAL: dict[str, Family] = {"embed": "embedding", "head": "head", "norm": "norms_hc"}
_IN_ATTENTION: dict[str, Family] = {"compressor": "compressor", "indexer": "indexer"}
_IN_FFN: dict[str, Family] = {"experts": "experts", "shared_experts": "shared_experts", "gate": "router"}


def family_of(name: str) -> Family:
    """Return the family of a tensor name without `model.` prefix."""
    parts = name.split(".", 4)
    first = parts[0]
    if first == "layers" and len(parts) > 2:
        part = parts[2]
        after = parts[3] if len(parts) > 3 else ""
        if part == "ffn":
            return _IN_FFN.get(after, "other")
        if part == "attn":
            return _IN_ATTENTION.get(after, "attention")
        if part == "engram":
            return "engram_tables" if after == "embed" else "engram_dense"
        return "norms_hc" if part.startswith("hc_") or part.endswith("_norm") else "other"
    if first == "mtp":
        return "draft"
    if first in ("vision", "aligner") or first.startswith("image_"):
        return "vision"
    return "norms_hc" if first.startswith("hc_") else _GLOBAL.get(first, "other")


def layer_of(name: str) -> int | None:
    """Return the backbone layer a name belongs to, None for tensors outside `layers.*`."""
    parts = name.split(".", 2)
    return int(parts[1]) if parts[0] == "layers" and len(parts) > 2 and parts[1].isdigit() else None
