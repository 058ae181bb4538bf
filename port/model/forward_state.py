"""What one step hands to the next: the residual streams and what layers published for others; a value."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardState:
    """The state of a forward pass between two steps. T = query rows, M = streams, D = model width.

    Attributes:
        stream: (T, M, D); None before the embedding.
        pre: float32 (T, M), weights with which the next sub-layer collapses the streams.
        selection: by index source layer, int32 (T, K): entries of each row's own sequence, ascending, -1 = none.
        candidate_blocks: bool (T, B), blocks that later index sources may select from; None before they are published.
        compressed: prefill only, by KV source layer, all entries of all requests in a line, as cached.
        index_keys: prefill only, by index-key source layer, the index keys in the same order.
        logits: float32, one row per wanted row; None before the head.
    """

    stream: Tensor | None = None
    pre: Tensor | None = None
    selection: Mapping[int, Tensor] = field(default_factory=dict)
    candidate_blocks: Tensor | None = None
    compressed: Mapping[int, Tensor] = field(default_factory=dict)
    index_keys: Mapping[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None

    def replace(self, **changes: object) -> "ForwardState":
        """Return the state with some fields replaced."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that is present, by name; published ones as `selection.2`, `compressed.2` and so on."""
        found: dict[str, Tensor] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                found[spec.name] = value
            elif isinstance(value, Mapping):
                found |= {f"{spec.name}.{layer}": tensor for layer, tensor in value.items()}
        return found

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "ForwardState":
        """Return the state with tensors replaced by name, spelled as in `tensors`.

        Raises:
            ValueError: a name this state does not hold.
        """
        known = self.tensors()
        unknown = sorted(set(tensors) - set(known))
        if unknown:
            raise ValueError(f"expected names among {', '.join(known)}; found {', '.join(unknown)}.")
        changes: dict[str, object] = {}
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                changes[spec.name] = tensors.get(spec.name, value)
            elif isinstance(value, Mapping):
                changes[spec.name] = {layer: tensors.get(f"{spec.name}.{layer}", old) for layer, old in value.items()}
        return self.replace(**changes)

    def map(self, function: Callable[[Tensor], Tensor]) -> "ForwardState":
        """Return the state with `function` applied to every tensor."""
        return self.with_tensors({name: function(tensor) for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "ForwardState":
        """Return the state on another device and with its activations in another dtype.

        Args:
            device: where every tensor goes; where it is when None.
            dtype: for the streams and the published keys. Collapse weights and logits stay float32, indices
                stay integers.
        """

        def move(name: str, tensor: Tensor) -> Tensor:
            converts = dtype is not None and name.split(".")[0] in ("stream", "compressed", "index_keys")
            return tensor.to(device=device or tensor.device, dtype=dtype if converts else tensor.dtype)

        return self.with_tensors({name: move(name, tensor) for name, tensor in self.tensors().items()})
