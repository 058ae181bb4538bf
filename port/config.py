"""The model configuration: one field per checkpoint key, same spelling, validated whole.

`ModelConfig` holds the root keys and the keys of `text_config` side by side; `quantization_config` and `rope_scaling`
are small records, `vision_config` stays a raw mapping because only the text model is built here. Engine limits (fixed
head widths, block sizes) are no part of the architecture and are not checked; see `port/config_rules.py` for what is.

Not here: what follows from the configuration per layer (`port/schedule.py`) and how results are rounded
(`port/numerics.py`).
"""

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from port.config_rules import config_problems
from port.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """How the weights are stored.

    Attributes:
        quant_method: "fp8" (dense linears are e4m3 with one scale per tile).
        activation_scheme: "dynamic".
        weight_block_size: rows and columns of a tile.
        scale_fmt: "ue8m0", scales are powers of two.
        expert_dtype: "fp4" (routed experts are packed e2m1 with one scale per row and 32 columns).
    """

    quant_method: str = "fp8"
    activation_scheme: str = "dynamic"
    weight_block_size: tuple[int, int] = (32, 32)
    scale_fmt: str = "ue8m0"
    expert_dtype: str = "fp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """YaRN parameters, applied on compressed layers only.

    Attributes:
        rope_type: "yarn".
        factor: how far the context was stretched.
        beta_fast: rotations per original context above which a frequency is kept.
        beta_slow: rotations per original context below which a frequency is divided by `factor`.
        original_max_position_embeddings: context length before stretching.
    """

    rope_type: str
    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A DeepSeek-V4.1 `config.json` as a value. Field names are checkpoint keys; only differences are explained here.

    Attributes:
        quantization: the root key `quantization_config`.
        vision: the root key `vision_config`, unread; None when absent.
        text_model_type: `model_type` inside `text_config`.
        rope_scaling: None when absent: plain rotary embedding everywhere.
        index_k_source_layer_ids: layers that own index keys; the same as `kv_source_layer_ids` when absent.
        candidate_source_layer_id: layer that publishes candidate blocks; None when there is none.
        engram_layer_ids: empty when the model has no Engram; the other `engram_*` fields then mean nothing.
        engram_num_embeddings: table rows per Engram layer; empty when absent (they follow from the primes).
        unknown_keys: one sentence per key that is not known, with the nearest known one. No part of equality.
    """

    architectures: tuple[str, ...]
    model_type: str
    dtype: str
    quantization: QuantizationConfig
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rope_scaling: RopeScaling | None = None
    index_k_source_layer_ids: tuple[int, ...] = ()
    candidate_source_layer_id: int | None = None
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 0
    text_model_type: str = "deepseek_v41_text"
    transformers_version: str = ""
    image_token_id: int | None = None
    tokenizer_compatibility: str = "release"
    hidden_act: str = "silu"
    attention_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = False
    scoring_func: str = "sqrtsoftplus"
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    hc_shifted: bool = True
    use_fp4_sparse_kv: bool = True
    engram_layer_ids: tuple[int, ...] = ()
    engram_num_embeddings: tuple[int, ...] = ()
    engram_max_ngram_size: int = 0
    engram_vocab_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 0
    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_target_attn_input: bool = True
    dspark_markov_rank: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    vision: Mapping[str, object] | None = None
    unknown_keys: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.index_k_source_layer_ids:
            object.__setattr__(self, "index_k_source_layer_ids", self.kv_source_layer_ids)
        problems = config_problems(self)
        if problems:
            raise ConfigError(_problem_text(problems))

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "ModelConfig":
        """Return the configuration held by the parsed text of a `config.json`.

        Raises:
            ConfigError: keys that are missing, of the wrong type, or that contradict each other; all of them at once.
        """
        reader = _Reader()
        root = reader.mapping(data, "the configuration")
        text = reader.mapping(root.get("text_config"), "text_config")
        values: dict[str, object] = {}
        for spec in dataclasses.fields(cls):
            if spec.name in _NESTED_FIELDS:
                continue
            source, key, where = (
                (root, spec.name, "") if spec.name in _ROOT_FIELDS else (text, spec.name, "text_config.")
            )
            if spec.name == "text_model_type":
                key = "model_type"
            if key not in source or (source[key] is None and spec.default is not dataclasses.MISSING):
                if spec.default is dataclasses.MISSING:
                    reader.problems.append(f"{where}{key}: expected {_TYPE_NAMES[str(spec.type)]}; the key is missing")
                continue
            values[spec.name] = reader.value(source[key], str(spec.type), where + key)
        quantization = reader.mapping(root.get("quantization_config"), "quantization_config")
        values["quantization"] = reader.record(QuantizationConfig, quantization, "quantization_config")
        if text.get("rope_scaling") is not None:
            scaling = reader.mapping(text["rope_scaling"], "text_config.rope_scaling")
            values["rope_scaling"] = reader.record(RopeScaling, scaling, "text_config.rope_scaling")
        vision = root.get("vision_config")
        values["vision"] = None if vision is None else dict(reader.mapping(vision, "vision_config"))
        if reader.problems:
            raise ConfigError(_problem_text(reader.problems))
        return cls(**values, unknown_keys=_unknown_keys(root, text))  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_file(cls, path: str | Path) -> "ModelConfig":
        """Return the configuration in a `config.json`, or in the directory that holds one.

        Raises:
            ConfigError: no such file, text that is not JSON, or an invalid configuration; the message names the file.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "config.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: expected a config.json; it cannot be read ({error.strerror}).") from error
        except ValueError as error:
            raise ConfigError(f"{path}: expected JSON; {error}.") from error
        try:
            return cls.from_dict(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, object]:
        """Return the nested mapping `from_dict` accepts, with every known key spelled out (defaults included)."""
        root: dict[str, object] = {}
        text: dict[str, object] = {"model_type": self.text_model_type}
        for spec in dataclasses.fields(self):
            if spec.name in _NESTED_FIELDS or spec.name == "text_model_type":
                continue
            target = root if spec.name in _ROOT_FIELDS else text
            target[spec.name] = _plain(getattr(self, spec.name))
        text["rope_scaling"] = None if self.rope_scaling is None else _plain_record(self.rope_scaling)
        root["quantization_config"] = _plain_record(self.quantization)
        root["text_config"] = text
        root["vision_config"] = None if self.vision is None else dict(self.vision)
        return root


_ROOT_FIELDS = (
    "architectures",
    "model_type",
    "dtype",
    "transformers_version",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "image_token_id",
    "tokenizer_compatibility",
)
_NESTED_FIELDS = ("quantization", "rope_scaling", "vision", "unknown_keys")
_TYPE_NAMES = {
    "int": "an integer",
    "int | None": "an integer or null",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "tuple[int, ...]": "a list of integers",
    "tuple[int, int]": "a list of two integers",
    "tuple[str, ...]": "a list of strings",
}
_TYPE_NAMES |= {f"<class '{name}'>": text for name, text in _TYPE_NAMES.items()}


class _Reader:
    """Reads values of the expected type and collects what is wrong, so that one error can name it all."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def mapping(self, value: object, where: str) -> Mapping[str, object]:
        if isinstance(value, Mapping):
            return value
        self.problems.append(f"{where}: expected a JSON object; found {type(value).__name__} {value!r:.40}")
        return {}

    def value(self, value: object, type_name: str, where: str) -> object:
        type_name = type_name.removeprefix("<class '").removesuffix("'>")
        if type_name.startswith("tuple"):
            item = type_name.removeprefix("tuple[").split(",")[0]
            size_fits = "..." in type_name or (isinstance(value, list | tuple) and len(value) == type_name.count("int"))
            if isinstance(value, list | tuple) and size_fits and all(_is_a(entry, item) for entry in value):
                return tuple(value)
        elif _is_a(value, type_name):
            return float(value) if type_name == "float" else value  # pyright: ignore[reportArgumentType]
        self.problems.append(f"{where}: expected {_TYPE_NAMES[type_name]}; found {value!r:.60}")
        return value

    def record(self, cls: type, source: Mapping[str, object], where: str) -> object:
        values: dict[str, object] = {}
        known = {spec.name: spec for spec in dataclasses.fields(cls)}
        before = len(self.problems)
        for name, spec in known.items():
            if name in source:
                values[name] = self.value(source[name], str(spec.type), f"{where}.{name}")
            elif spec.default is dataclasses.MISSING:
                self.problems.append(f"{where}.{name}: expected {_TYPE_NAMES[str(spec.type)]}; the key is missing")
        return cls(**values) if len(self.problems) == before else None


def _is_a(value: object, type_name: str) -> bool:
    if type_name == "int | None":
        return value is None or _is_a(value, "int")
    if type_name == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if type_name == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, {"bool": bool, "str": str}[type_name])


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _plain_record(record: "QuantizationConfig | RopeScaling") -> dict[str, object]:
    return {spec.name: _plain(getattr(record, spec.name)) for spec in dataclasses.fields(record)}


def _unknown_keys(root: Mapping[str, object], text: Mapping[str, object]) -> tuple[str, ...]:
    names = [spec.name for spec in dataclasses.fields(ModelConfig)]
    known_root = [*_ROOT_FIELDS, "quantization_config", "text_config", "vision_config"]
    known_text = [name for name in names if name not in _ROOT_FIELDS and name not in ("quantization", "vision")]
    known_text += ["model_type"]
    return tuple(
        _unknown_key(key, where, known)
        for source, where, known in ((root, "", known_root), (text, "text_config.", known_text))
        for key in source
        if key not in known
    )


def _unknown_key(key: str, where: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{where}{key}: not a known key, ignored{hint}"


def _problem_text(problems: list[str]) -> str:
    head = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return f"the configuration has {head}:\n" + "\n".join(f"  {problem}" for problem in problems)
