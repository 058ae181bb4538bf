"""The text model, as a program of steps: embedding, then engram, attention and feed-forward per layer, then the head.

    model = Transformer(config, profile=NumericProfile.named("fp32"))
    model.load(checkpoint)
    state = model.begin(batch)
    for step in model.steps():
        state = model.run_step(step, state, batch, cache)
    state.logits

`forward` is that loop. Nothing else holds control flow, so stepping, comparing and timing all see the same run. Modules
carry the checkpoint's names: `state_dict()` has the keys of the checkpoint's index, with the stored dtypes.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from port.checkpoint.index import Checkpoint
from port.checkpoint.loader import LoadReport, Progress, load_tensors
from port.checkpoint.names import tensor_table
from port.checkpoint.slices import RankSlice
from port.collectives.parallel import Parallel
from port.config import ModelConfig
from port.kernels.hyper_connections import collapse_streams
from port.kernels.quantize import FP8_MAX
from port.model.block import Block
from port.model.expert_share import ExpertShare
from port.model.experts import ExpertLoop
from port.model.forward_state import ForwardState
from port.model.precision import Precision
from port.model.rotary import RotationTable, rotation_tables
from port.model.steps import Step, step_program
from port.model.taps import Tap, identity_tap
from port.model.weights import Embedding, Linear, RMSNorm, WeightForm
from port.numerics import NumericProfile
from port.runtime.cache_engine import CacheEngine
from port.runtime.eplb import ExpertBalancer, ExpertSlots
from port.runtime.input_metadata import InputMetadata
from port.schedule import LayerSchedule, RopeKind


class Transformer(nn.Module):
    """DeepSeek-V4.1 text model.

    Args:
        config: of the checkpoint.
        profile: where results are rounded.
        device: where weights go when they are loaded; until then they are on `meta`.
        moe: walk only the experts hit (reads ids on the host), or all with fixed shapes. The bits are the same with one
            thread; with more, a CPU product may split its sums otherwise for another number of rows.
        weights: keep a dense copy of each quantised weight, made at load, or dequantise at every use, in pieces; the
            bits are the same.
        parallel: this rank's share of experts and Engram tables; None for all of them. Every rank of a group must run
            the same passes: `forward`, the same steps, or `take_part`.

    Attributes:
        parallel: this rank's share; None for everything.
        balancer: maps and counts of experts; None where this rank has all of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        profile: NumericProfile,
        device: torch.device | str = "cpu",
        moe: ExpertLoop = "hit",
        weights: WeightForm = "dequantized",
        parallel: Parallel | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.schedule = LayerSchedule.from_config(config)
        self.precision = Precision(profile, fp4_compressed_kv=config.use_fp4_sparse_kv)
        self.device = torch.device(device)
        self.weight_form: WeightForm = weights
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.parallel = parallel
        self.balancer = None if parallel is None else _balancer(config, parallel, self.device)
        self.layers = nn.ModuleList(
            Block(config, role, self.precision, moe, parallel, self._share(role.layer, parallel, moe))
            for role in self.schedule.roles
        )
        self._slices, self._elsewhere = _kept(config, parallel)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = Linear(config.vocab_size, config.hidden_size, stored="bf16")
        self._rotations: dict[RopeKind, RotationTable] | None = None
        self._rotation_rows = 0

    def steps(self) -> tuple[Step, ...]:
        """Return the program of a forward pass."""
        return step_program(self.schedule)

    def begin(self, batch: InputMetadata) -> ForwardState:
        """Return the state before the first step."""
        self.rotations(batch)
        return ForwardState()

    def run_step(
        self,
        step: Step,
        state: ForwardState,
        batch: InputMetadata,
        cache: CacheEngine,
        tap: Tap = identity_tap,
    ) -> ForwardState:
        """Return the state after one step; an attention step stores its rows in `cache`.

        Args:
            step: one of `steps()`; its weights must be loaded.
            state: of the step before.
            batch: on the model's device.
            cache: the rows of earlier tokens.
            tap: called at every named intermediate.
        """
        if step.kind == "embed":
            return self._embed(batch, tap)
        if step.kind == "head":
            return self._head(state, batch, tap)
        assert step.layer is not None, "every other kind of step belongs to a layer"
        block = self.layers[step.layer]
        assert isinstance(block, Block), "layers are blocks"
        if step.kind == "engram":
            return block.engram_step(state, batch, tap)
        if step.kind == "ffn":
            return block.ffn_step(state, batch, tap)
        rotations = self.rotations(batch)[block.role.rope]
        return block.attention_step(state, batch, cache.kv_caches[step.layer], rotations, tap)

    def forward(self, batch: InputMetadata, cache: CacheEngine, tap: Tap = identity_tap) -> Tensor:
        """Return the logits of the wanted rows, float32; the whole program in order."""
        state = self.begin(batch)
        for step in self.steps():
            state = self.run_step(step, state, batch, cache, tap)
        assert state.logits is not None, "the last step makes logits"
        return state.logits

    def take_part(self) -> None:
        """Take part in the exchanges of one forward pass of the other ranks, with no request of one's own."""
        for step in self.steps():
            if step.layer is not None:
                block = self.layers[step.layer]
                assert isinstance(block, Block), "layers are blocks"
                if step.kind == "engram":
                    block.engram.take_part()
                elif step.kind == "ffn":
                    block.ffn.take_part()

    def load(
        self, checkpoint: Checkpoint, modules: Iterable[str] | None = None, *, progress: Progress | None = None
    ) -> LoadReport:
        """Fill weights from a checkpoint and return what became of every tensor; FP8 codes within the profile's range.

        Args:
            checkpoint: opened; only the named modules' tensors are read.
            modules: names of modules or tensors (see `Step.weights`); everything when None.
            progress: called after each tensor with bytes read and bytes in all.

        Raises:
            CheckpointError: tensors are missing, or of another shape or dtype, all listed; nothing was changed.
        """
        wanted = self._keys(modules)
        limit = self.precision.profile.weight_fp8_max
        loaded, report = load_tensors(
            checkpoint,
            wanted,
            whole=modules is None,
            device=self.device,
            fp8_limit=None if limit == FP8_MAX else limit,
            slices=self._slices,
            elsewhere=self._elsewhere,
            progress=progress,
        )
        for name, tensor in loaded.items():
            self._set(name, nn.Parameter(tensor, requires_grad=False))
        if self.weight_form == "dequantized":
            for linear_module in self._linears(modules):
                linear_module.make_dense(self.precision.operands)
        return report

    def unload(self, modules: Iterable[str] | None = None) -> None:
        """Give the memory of weights back; they are on `meta` again."""
        for name, parameter in self._keys(modules).items():
            meta = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            self._set(name, nn.Parameter(meta, requires_grad=False))
        for linear_module in self._linears(modules):
            linear_module.drop_dense()

    def _share(self, layer: int, parallel: Parallel | None, moe: ExpertLoop) -> ExpertShare | None:
        if parallel is None or self.balancer is None:
            return None
        return ExpertShare(parallel, self.balancer, layer, static=moe == "all")

    def _embed(self, batch: InputMetadata, tap: Tap) -> ForwardState:
        streams = self.config.hc_mult
        rows = self.embed(batch.input_ids).to(self.precision.activation)
        stream = rows.unsqueeze(1).expand(-1, streams, -1).contiguous()
        pre = torch.zeros(rows.shape[0], streams, dtype=torch.float32, device=rows.device)
        pre[:, 0] = 1.0
        return ForwardState(stream=tap("embed.out", stream), pre=pre)

    def _head(self, state: ForwardState, batch: InputMetadata, tap: Tap) -> ForwardState:
        assert state.stream is not None, "the embedding step comes first"
        assert state.pre is not None, "every step hands on its collapse weights"
        hidden = tap("norm.out", self.norm(collapse_streams(state.stream, state.pre)))
        if batch.selected_token_indices is not None:
            hidden = hidden.index_select(0, batch.selected_token_indices)
        logits = self.head(hidden, operands=self.precision.head_operands, out_dtype=torch.float32)
        return state.replace(logits=tap("logits", logits))

    def rotations(self, batch: InputMetadata) -> dict[RopeKind, RotationTable]:
        """Return tables that reach the batch's largest position, made on the host and grown in powers of two."""
        positions = batch.max_position + 1
        if self._rotations is None or positions > self._rotation_rows:
            rows = max(256, 1 << (positions - 1).bit_length())
            self._rotation_rows = min(rows, max(positions, self.config.max_position_embeddings))
            self._rotations = rotation_tables(self.config, self._rotation_rows, self.device)
        return self._rotations

    def _keys(self, modules: Iterable[str] | None) -> dict[str, Tensor]:
        state = self.state_dict(keep_vars=True)
        if modules is None:
            return state
        wanted = tuple(modules)
        found = {name: tensor for name, tensor in state.items() if _belongs(name, wanted)}
        if not found:
            raise ValueError(f"expected modules or tensors such as 'layers.3.attn'; found {wanted!r}.")
        return found

    def _linears(self, modules: Iterable[str] | None) -> list[Linear]:
        wanted = None if modules is None else tuple(modules)
        return [
            module
            for name, module in self.named_modules()
            if isinstance(module, Linear) and (wanted is None or _belongs(f"{name}.weight", wanted))
        ]

    def _set(self, name: str, parameter: nn.Parameter) -> None:
        owner, _, leaf = name.rpartition(".")
        setattr(self.get_submodule(owner), leaf, parameter)


def _balancer(config: ModelConfig, parallel: Parallel, device: torch.device) -> ExpertBalancer | None:
    if parallel.expert_ranks == 1:
        return None
    slots = ExpertSlots(
        experts=config.n_routed_experts, ranks=parallel.expert_ranks, requested=parallel.requested_experts
    )
    group, rank = parallel.groups.expert_host, parallel.expert_rank
    return ExpertBalancer(slots, layers=config.num_hidden_layers, rank=rank, group=group, device=device)


def _kept(config: ModelConfig, parallel: Parallel | None) -> tuple[dict[str, RankSlice] | None, frozenset[str]]:
    """Return what this rank keeps of each tensor, and the names it leaves to others."""
    if parallel is None:
        return None, frozenset()
    table = tensor_table(config, ("text",))
    slices = parallel.slices(table)
    return slices, frozenset(table) - frozenset(slices)


def _belongs(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)
