"""Every environment variable the port honours: name, default, meaning, validation; nothing else in `port` reads them.

`ENV.DEEPINFER_ENFORCE_EAGER` and the like are read when first asked for and kept, so a value cannot change between two
graphs of one run; `ENV.rearm(name)` forgets one value, `ENV.rearm_all()` all of them. `ENV.resolve()` reads and
validates everything at once: a runner calls it before anything is traced, since Dynamo must not meet a read of the
environment. Names and meanings are those of deepinfer 0.1.0 (runtime contracts, section 6); defaults that differ on
Neuron say so.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from port.errors import ConfigError

T = TypeVar("T")

PREFIX = "DEEPINFER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What one variable came to.

    Attributes:
        name: of the variable.
        value: parsed, or the default.
        is_set: whether the environment holds a value for it.
        meaning: in words.
    """

    name: str
    value: object
    is_set: bool
    meaning: str


class Setting(Generic[T]):
    """One variable, as a descriptor of `Environment`.

    Args:
        parse: makes the value from the text; raises ValueError with what was expected.
        default: the value where the variable is not set, or a function of the environment that gives it.
        meaning: one line for the table of variables.
        default_text: how the table writes a default that is computed.
    """

    def __init__(
        self,
        parse: Callable[[str], T],
        *,
        default: T | Callable[[Environment], T],
        meaning: str,
        default_text: str | None = None,
    ) -> None:
        self.name = ""
        self.meaning = meaning
        self._parse = parse
        self._default = default
        self._default_text = default_text

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, environment: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, environment: Environment, owner: type) -> T: ...
    def __get__(self, environment: Environment | None, owner: type) -> T | Setting[T]:
        return self if environment is None else environment.value_of(self)

    @property
    def is_computed(self) -> bool:
        """Whether the default follows from other variables."""
        return callable(self._default)

    @property
    def default_text(self) -> str:
        """The default as the table of variables writes it."""
        if self._default_text is not None:
            return self._default_text
        if isinstance(self._default, bool):
            return str(int(self._default))
        return "unset" if self._default is None or self._default == () else str(self._default)

    def read(self, environment: Environment) -> T:
        """Return the value of this variable in an environment.

        Raises:
            ConfigError: its text cannot be used; says what was expected.
        """
        text = environment.raw(self.name)
        if text is None:
            return self._default(environment) if self.is_computed else self._default  # pyright: ignore
        try:
            return self._parse(text.strip())
        except ValueError as error:
            raise ConfigError(f"{self.name}: expected {error}; found {text!r}. Unset it for the default.") from None


def _flag(text: str) -> bool:
    return text not in ("", "0", "false", "False")


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    words = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(words) from None
        if value < low or (high is not None and value > high):
            raise ValueError(words)
        return value

    return parse


def _number(low: float, high: float | None = None, *, above: bool = False) -> Callable[[str], float]:
    words = f"a number {'above' if above else 'of at least'} {low:g}"
    words += "" if high is None else f" and at most {high:g}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(words) from None
        # Written so that NaN fails too.
        if not (value > low or (value == low and not above)) or not (high is None or value <= high):
            raise ValueError(words)
        return value

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return parse


def _name(text: str) -> str:
    if not text:
        raise ValueError("a name")
    return text


def _token_ids(text: str) -> tuple[int, ...]:
    """Parse "3,10..20": single ids and ranges that include both ends."""
    words = "token ids such as 3,10..20"
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dots, last = part.partition("..")
        try:
            low, high = int(first), int(last if dots else first)
        except ValueError:
            raise ValueError(words) from None
        if low < 0 or high < low:
            raise ValueError(words)
        found.update(range(low, high + 1))
    return tuple(sorted(found))


class Environment:
    """The variables of one process; `ENV` is the one everybody uses.

    Args:
        source: where raw texts are; the process environment, or a dict in tests.
    """

    DEEPINFER_NEURON_DEVICE = Setting(
        _one_of("neuron", "cpu"), default="neuron", meaning="`cpu`: host mode, the same code on the CPU"
    )
    DEEPINFER_NEURON_FP8_MAX = Setting(
        _number(0, 448, above=True),
        default=lambda env: 448.0 if env.DEEPINFER_NEURON_DEVICE == "cpu" else 224.0,
        default_text="224, 448 in host mode",
        meaning="largest magnitude of a quantised activation or cache element; trn2 reads e4m3 up to 240",
    )
    DEEPINFER_NEURON_COMPILE_BACKEND = Setting(
        _name,
        default=lambda env: "aot_eager" if env.DEEPINFER_NEURON_DEVICE == "cpu" else "neuron",
        default_text="neuron, aot_eager in host mode",
        meaning="back end of compiled decode graphs: `neuron`, `deepinfer_neuron` (fp8 travels as bytes), "
        "or any name Dynamo knows",
    )
    DEEPINFER_ENFORCE_EAGER = Setting(
        _flag, default=True, meaning="no decode graphs; basic mode on Neuron starts eager (deepinfer: 0)"
    )
    DEEPINFER_CUDAGRAPH_BATCH_SIZE_INTERVAL = Setting(
        _whole(1), default=8, meaning="distance of the batch sizes that have a decode graph of their own"
    )
    DEEPINFER_USE_NEXTN_DECODE = Setting(
        _whole(0), default=0, meaning="draft tokens per step; basic mode on Neuron has none (deepinfer: 5)"
    )
    DEEPINFER_ENABLE_MTP_VARLEN = Setting(_flag, default=False, meaning="draft length by confidence; not on Neuron")
    DEEPINFER_MAX_BACKTRACKING_TOKENS = Setting(
        _whole(1),
        default=lambda env: env.DEEPINFER_USE_NEXTN_DECODE + 1,
        default_text="draft tokens + 1",
        meaning="ring slots kept for taking tokens back; never less than draft tokens + 1",
    )
    DEEPINFER_ZERO_OVERHEAD_SCHEDULING = Setting(
        _flag, default=False, meaning="post-process one step late; not on Neuron (deepinfer: 1)"
    )
    DEEPINFER_SAMPLER_FORCE_TOPK = Setting(_whole(0), default=0, meaning="sample among the k best only; 0 is off")
    DEEPINFER_DECODE_TOKEN_BLACKLIST = Setting(
        _token_ids, default=(), meaning="token ids never produced, such as `3,10..20`"
    )
    DEEPINFER_COMPUTE_SUM_SMALLER_PROBS = Setting(
        _flag, default=False, meaning="also return the probability of all tokens less likely than the sampled one"
    )
    DEEPINFER_ENGRAM_PAD_TOKEN = Setting(_whole(0), default=2, meaning="raw id for missing n-gram history")
    DEEPINFER_ENGRAM_FORCE_GPU_STORAGE = Setting(
        _flag, default=False, meaning="Engram tables in device memory instead of host memory"
    )
    DEEPINFER_NUM_STATE_SLOTS_RATIO = Setting(
        _number(1), default=1.2, meaning="state slots = int(max_num_seqs * ratio) + 1"
    )
    DEEPINFER_PREFILL_ATTEMPT_INTERVAL = Setting(
        _whole(1), default=70, meaning="decode steps between two tries to prefill on all ranks"
    )
    DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL = Setting(
        _whole(1), default=100, meaning="decode steps between two tries to prefill on any rank"
    )
    DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K = Setting(
        _whole(1), default=1 << 30, meaning="largest sum of context lengths in one prefill"
    )
    DEEPINFER_INDEX_ATTN_MEMORY_LIMIT = Setting(
        _whole(1), default=10 << 30, meaning="bytes of index scores held at a time in a prefill"
    )
    DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE = Setting(
        _one_of("off", "mask", "compact"), default="off", meaning="prefill only what later layers need; off on Neuron"
    )
    DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS = Setting(
        _whole(0), default=0, meaning="redundant experts, rounded up so that ranks share evenly"
    )
    DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL = Setting(
        _whole(0), default=0, meaning="steps between two rearrangements of experts; 0 is off, the only value on Neuron"
    )
    DEEPINFER_EXPERT_COUNT_WINDOW_SIZE = Setting(
        _whole(1), default=100, meaning="steps of expert counts that are looked back on"
    )
    DEEPINFER_MOE_LB_STAT_INTERVAL = Setting(_whole(1), default=128, meaning="steps between two load statistics")
    DEEPINFER_FORCE_LOAD_BALANCE = Setting(
        _flag, default=False, meaning="route by a hash of row and position, for profiling"
    )
    DEEPINFER_GLOO_TIMEOUT = Setting(
        _number(0, above=True), default=14400.0, meaning="seconds a host collective may wait before it is an error"
    )
    DEEPINFER_BATCH_INVARIANT = Setting(
        _flag, default=False, meaning="results that do not depend on the batch; refused on Neuron, as on Ascend"
    )
    DEEPINFER_XGRAMMAR_TIMEOUT = Setting(
        _number(0, above=True), default=20.0, meaning="seconds a grammar may take to compile"
    )
    DEEPINFER_SO_BUILDER_CPUS = Setting(_whole(1), default=4, meaning="host threads that compile grammars")
    DEEPINFER_LOGGING_INTERVAL_STEP = Setting(_whole(1), default=100, meaning="steps between two log lines")
    DEEPINFER_GC_INTERVAL_STEP = Setting(_whole(1), default=1000, meaning="steps between two garbage collections")

    def __init__(self, source: MutableMapping[str, str] | None = None) -> None:
        self._source = source
        self._values: dict[str, object] = {}

    def value_of(self, setting: Setting[T]) -> T:
        """Return the value of a setting, read once; see `Setting.read` for what may go wrong."""
        if setting.name not in self._values:
            self._values[setting.name] = setting.read(self)
        return self._values[setting.name]  # pyright: ignore[reportReturnType] - stored under its own name

    def raw(self, name: str) -> str | None:
        """Return the text of any variable as it is now, None where it is not set; nothing is kept."""
        return self._raw().get(name)

    def set(self, name: str, text: str) -> None:
        """Set a variable of this process and forget what was read before."""
        self._raw()[name] = text
        self._forget(name)

    def rearm(self, name: str) -> None:
        """Forget the value of one variable, so that it is read again.

        Raises:
            ConfigError: no such variable; the message has the nearest one.
        """
        if name not in SETTINGS:
            raise ConfigError(f"environment: expected a variable the port knows; found {name!r}.{_hint(name)}")
        self._forget(name)

    def rearm_all(self) -> None:
        """Forget every value."""
        self._values.clear()

    def resolve(self) -> tuple[Resolved, ...]:
        """Read and validate every variable, in the order of the table.

        Raises:
            ConfigError: values that cannot be used, all of them in one message.
        """
        problems, found = [], []
        for setting in SETTINGS.values():
            try:
                value = self.value_of(setting)
            except ConfigError as error:
                problems.append(str(error))
            else:
                is_set = self.raw(setting.name) is not None
                found.append(Resolved(name=setting.name, value=value, is_set=is_set, meaning=setting.meaning))
        if problems:
            raise ConfigError("the environment cannot be used:\n  " + "\n  ".join(problems))
        return tuple(found)

    def unknown(self) -> tuple[str, ...]:
        """Return what to say of each set `DEEPINFER_*` variable that the port does not know: it would be ignored."""
        names = sorted(name for name in self._raw() if name.startswith(PREFIX) and name not in SETTINGS)
        return tuple(f"{name} is set and means nothing here.{_hint(name)}" for name in names)

    def _forget(self, name: str) -> None:
        self._values.pop(name, None)
        for setting in SETTINGS.values():
            if setting.is_computed:
                self._values.pop(setting.name, None)

    def _raw(self) -> MutableMapping[str, str]:
        return os.environ if self._source is None else self._source


def _settings() -> Iterator[Setting[object]]:
    return (value for value in vars(Environment).values() if isinstance(value, Setting))


def _hint(name: str) -> str:
    nearest = difflib.get_close_matches(name, SETTINGS, n=1)
    return f" Did you mean {nearest[0]}?" if nearest else ""


SETTINGS: dict[str, Setting[object]] = {setting.name: setting for setting in _settings()}
"""Every variable by name, in the order of the table."""

ENV = Environment()
"""The variables of this process."""


def environment_table() -> str:
    """Return the variables as a Markdown table, the one in `docs/environment.md`."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{item.name}` | {item.default_text} | {item.meaning} |" for item in SETTINGS.values()]
    return "\n".join(lines) + "\n"
