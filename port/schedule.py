"""What each layer does and from which layer it borrows, derived once from the configuration.

Rule for every list of sources: a layer uses the largest source id that is not above its own. A layer with ratio 0
attends to its window only and borrows nothing.
"""

from dataclasses import dataclass
from typing import Literal

from port.config import ModelConfig
from port.config_rules import source_of

CandidateUse = Literal["none", "publishes", "restricted"]
RopeKind = Literal["window", "compress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRole:
    """One layer's part in the schedule.

    Attributes:
        layer: index of the layer.
        ratio: tokens per compressed entry; 0 = window only.
        rope: "window" (plain, `rope_theta`) or "compress" (YaRN, `compress_rope_theta`).
        kv_source: layer whose compressed entries this layer attends to; None for ratio 0.
        index_k_source: layer whose index keys are scored; None for ratio 0.
        index_source: layer whose selection of entries this layer uses; None for ratio 0.
        candidates: "publishes" the blocks, selects only inside them ("restricted"), or neither. Only layers that own an
            indexer are ever restricted.
        has_engram: an Engram lookup comes before this layer's attention.
    """

    layer: int
    ratio: int
    rope: RopeKind
    kv_source: int | None
    index_k_source: int | None
    index_source: int | None
    candidates: CandidateUse
    has_engram: bool

    @property
    def owns_kv(self) -> bool:
        """Whether this layer has a compressor and a compressed cache."""
        return self.kv_source == self.layer

    @property
    def owns_index_k(self) -> bool:
        """Whether this layer has index keys of its own."""
        return self.index_k_source == self.layer

    @property
    def owns_index(self) -> bool:
        """Whether this layer has an indexer."""
        return self.index_source == self.layer


@dataclass(frozen=True, slots=True)
class LayerSchedule:
    """The roles of all backbone layers.

    Attributes:
        roles: one per layer, in order.
    """

    roles: tuple[LayerRole, ...]

    @classmethod
    def from_config(cls, config: ModelConfig) -> "LayerSchedule":
        """Return the schedule of a configuration (which has been validated when it was made)."""
        return cls(tuple(_role(config, layer) for layer in range(config.num_hidden_layers)))

    def __getitem__(self, layer: int) -> LayerRole:
        return self.roles[layer]

    def __len__(self) -> int:
        return len(self.roles)

    @property
    def ratios(self) -> tuple[int, ...]:
        """The different ratios above 0, ascending."""
        return tuple(sorted({role.ratio for role in self.roles if role.ratio > 0}))

    @property
    def kv_sources(self) -> tuple[int, ...]:
        """Layers that own a compressed cache, ascending."""
        return tuple(role.layer for role in self.roles if role.owns_kv)

    @property
    def engram_layers(self) -> tuple[int, ...]:
        """Layers with an Engram lookup, ascending."""
        return tuple(role.layer for role in self.roles if role.has_engram)

    @property
    def n_prefill_layer(self) -> int:
        """Index of the first layer with ratio 1; the number of layers when there is none."""
        return next((role.layer for role in self.roles if role.ratio == 1), len(self.roles))


def _role(config: ModelConfig, layer: int) -> LayerRole:
    ratio = config.compress_ratios[layer]
    if ratio == 0:
        kv_source = index_k_source = index_source = None
    else:
        kv_source = source_of(layer, config.kv_source_layer_ids)
        index_k_source = source_of(layer, config.index_k_source_layer_ids)
        index_source = source_of(layer, config.index_source_layer_ids)
    return LayerRole(
        layer=layer,
        ratio=ratio,
        rope="window" if ratio == 0 else "compress",
        kv_source=kv_source,
        index_k_source=index_k_source,
        index_source=index_source,
        candidates=_candidate_use(config, layer, owns_index=index_source == layer),
        has_engram=layer in config.engram_layer_ids,
    )


def _candidate_use(config: ModelConfig, layer: int, *, owns_index: bool) -> CandidateUse:
    source = config.candidate_source_layer_id
    if source is None or not owns_index or layer < source:
        return "none"
    return "publishes" if layer == source else "restricted"
