"""A checkpoint's model held against golden data: one row per prompt and check, with the worst figure and its limit.

Reads any folder in the golden format: `golden.json`, `<mode>.safetensors`, optionally `trace_<mode>.safetensors`, and
the checkpoint in `checkpoint/` or elsewhere. The limits are those the golden data was released with, by mode:

| mode | what must hold |
|---|---|
| fp32 | every logits row within relative L2 1e-4; router ids, selections, candidate blocks, greedy tokens exact |
| fp32kv, fp32q | median row within 1e-5 where the golden noise allows no flip; elsewhere argmax agreement 0.85 |
| bf16 | teacher-forced parts against the trace; argmax agreement 0.65 on prompts of 16 tokens or more |

In fp32 a row whose golden margin is 1e-4 or less may go either way; such rows are counted in the note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors import safe_open
from torch import Tensor

from port.errors import PortError
from port.model.taps import RecordingTap
from port.runtime.decode_inputs import build_decode
from port.runtime.prefill_inputs import build_prefill
from port.runtime.text_model import TextModel, open_text_model
from port.verify_rules import CheckResult, flips, row_errors
from port.verify_trace import traced_checks

Mode = Literal["fp32", "fp32kv", "fp32q", "bf16"]
Progress = Callable[[int, int, str], None]
"""Called with (prompts done, prompts in all, name of the prompt just done)."""

ROW_LIMIT = 1e-4
QUIET_NOISE = 1e-5
QUIET_MEDIAN = 1e-5
ARGMAX_SHARE: Mapping[str, float] = {"fp32kv": 0.85, "fp32q": 0.85, "bf16": 0.65}
BF16_SHORTEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one prompt's prefill and teacher-forced decode gave."""

    logits: Tensor
    gen_logits: Tensor
    taps: Mapping[str, Tensor]
    gen_taps: Mapping[str, Tensor]


def verify(
    checkpoint: str | Path | TextModel,
    golden: str | Path,
    *,
    mode: Mode = "fp32",
    prompts: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Iterator[CheckResult]:
    """Yield the result of every check, prompt by prompt.

    Args:
        checkpoint: folder of the checkpoint, or a loaded model whose profile then takes the mode's place.
        golden: folder of the golden data.
        mode: which of its modes.
        prompts: names of prompts; all that golden.json lists for the mode when empty.
        progress: called after every prompt.

    Raises:
        PortError: no such mode, prompt or file.
        CheckpointError: the checkpoint cannot be opened.
    """
    folder = Path(golden)
    if mode not in get_args(Mode):
        raise PortError(f"verify: expected a mode among {', '.join(get_args(Mode))}; found {mode!r}.")
    chosen = _chosen(_described(folder, mode if not prompts else None), prompts, folder)
    data_path = folder / f"{mode}.safetensors"
    if not data_path.is_file():
        raise PortError(f"verify: expected golden data at {data_path}; there is no such file. Choose another --mode.")
    text_model = checkpoint if isinstance(checkpoint, TextModel) else open_text_model(checkpoint, profile=mode)
    return _checks(text_model, folder, data_path, chosen, mode, progress)


def _checks(
    text_model: TextModel,
    folder: Path,
    data_path: Path,
    prompts: Mapping[str, list[int]],
    mode: Mode,
    progress: Progress | None,
) -> Iterator[CheckResult]:
    trace_path = folder / f"trace_{mode}.safetensors"
    with safe_open(data_path, "pt") as data:
        known = set(data.keys())
        for done, (name, token_ids) in enumerate(prompts.items(), start=1):
            golden = {key[len(name) + 1 :]: data.get_tensor(key) for key in known if key.startswith(name + ".")}
            if "logits" not in golden:
                raise PortError(f"verify: {data_path}: expected `{name}.logits` as golden.json says; it is missing.")
            _expect_same_model(text_model, name, token_ids, golden, data_path)
            run = _run(text_model, token_ids, golden)
            yield from _fp32_checks(name, golden, run) if mode == "fp32" else _loose_checks(name, golden, run, mode)
            if trace_path.is_file():
                yield from traced_checks(text_model, name, token_ids, trace_path, mode)
            if progress is not None:
                progress(done, len(prompts), name)


def _expect_same_model(
    text_model: TextModel, name: str, token_ids: list[int], golden: Mapping[str, Tensor], data_path: Path
) -> None:
    """Refuse golden data of a model of other sizes: nothing in it can be compared."""
    config, problems = text_model.config, []
    expected = (len(token_ids), config.vocab_size)
    if tuple(golden["logits"].shape) != expected:
        problems.append(f"logits {list(expected)}, found {list(golden['logits'].shape)}")
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < config.vocab_size:
        problems.append(f"token ids from 0 to {config.vocab_size - 1}, found {min(token_ids)} to {max(token_ids)}")
    layers = config.num_hidden_layers
    if "router_ids" in golden and golden["router_ids"].shape[0] != layers:
        problems.append(f"router ids of {layers} layers, found {golden['router_ids'].shape[0]}")
    if problems:
        raise PortError(
            f"verify: {data_path}: {name}: expected {'; '.join(problems)}. Is this the golden data of this checkpoint?"
        )


@torch.inference_mode()
def _run(text_model: TextModel, token_ids: list[int], golden: Mapping[str, Tensor]) -> _Run:
    """Prefill the prompt, then decode with the golden tokens fed, so that one flip cannot spoil what follows it."""
    fed = golden["gen_tokens"].tolist()[:-1] if "gen_tokens" in golden else []
    model, layout_cache = text_model.model, text_model.cache_for([len(token_ids) + len(fed) + 1])
    sequence = layout_cache.admit(tuple(token_ids), max_tokens=len(fed) + 1)
    tap = RecordingTap(_recorded(text_model))
    batch = build_prefill(layout_cache.layout, [sequence], engram=text_model.engram).to(model.device)
    logits = model(batch, layout_cache, tap).cpu()
    sequence = sequence.advanced(len(token_ids))
    rows, steps = [logits[-1]], []
    for token in fed:
        sequence = sequence.with_token(token)
        step_tap = RecordingTap(_recorded(text_model))
        batch = build_decode(layout_cache.layout, [sequence], engram=text_model.engram).to(model.device)
        rows.append(model(batch, layout_cache, step_tap).cpu()[-1])
        steps.append(step_tap.tensors)
        sequence = sequence.advanced(1)
    gen_taps = {
        key: torch.cat([step[key] for step in steps])
        for key in (steps[0] if steps else {})
        if "ids" in key or "topk" in key
    }
    return _Run(logits=logits, gen_logits=torch.stack(rows), taps=tap.tensors, gen_taps=gen_taps)


def _recorded(text_model: TextModel) -> set[str]:
    names = set()
    for role in text_model.model.schedule.roles:
        names.add(f"layers.{role.layer}.ffn.router_ids")
        if role.owns_index:
            names |= {f"layers.{role.layer}.attn.index_topk", f"layers.{role.layer}.attn.candidate_blocks"}
    return names


def _fp32_checks(name: str, golden: Mapping[str, Tensor], run: _Run) -> Iterator[CheckResult]:
    yield _worst_row(name, "prefill logits", golden["logits"], run.logits)
    if "gen_logits" in golden:
        yield _worst_row(name, "decode logits", golden["gen_logits"], run.gen_logits)
        wrong = (run.gen_logits.argmax(-1) != golden["gen_tokens"]).nonzero().flatten().tolist()
        note = f"token {wrong[0]} differs" if wrong else ""
        yield CheckResult(name, "greedy tokens", not wrong, float(len(wrong)), 0.0, note)
    for prefix, label, taps in (("", "prefill", run.taps), ("gen_", "decode", run.gen_taps)):
        if f"{prefix}router_ids" in golden:
            ids, margin = golden[f"{prefix}router_ids"], golden.get(f"{prefix}router_margin")
            found = torch.stack([taps[f"layers.{layer}.ffn.router_ids"].cpu() for layer in range(ids.shape[0])])
            yield flips(name, f"{label} router ids", ids, found, margin)
        layers = sorted(int(key.rpartition("L")[2]) for key in golden if key.startswith(f"{prefix}index_topk.L"))
        for layer in layers:
            chosen, margin = golden[f"{prefix}index_topk.L{layer}"], golden.get(f"{prefix}index_margin.L{layer}")
            found = taps[f"layers.{layer}.attn.index_topk"].cpu()
            yield flips(name, f"{label} selection L{layer}", chosen, found, margin)
    if "candidate_blocks" in golden:
        found = next((tensor for key, tensor in run.taps.items() if key.endswith("candidate_blocks")), None)
        yield _blocks(name, golden["candidate_blocks"].bool(), found)


def _loose_checks(name: str, golden: Mapping[str, Tensor], run: _Run, mode: Mode) -> Iterator[CheckResult]:
    for prefix, label, found in (("", "prefill", run.logits), ("gen_", "decode", run.gen_logits)):
        if f"{prefix}logits" not in golden:
            continue
        expected = golden[f"{prefix}logits"]
        median = float(row_errors(expected, found).median())
        noise = golden.get(f"{prefix}logits_noise")
        if mode != "bf16" and noise is not None and float(noise.max()) < QUIET_NOISE:
            yield CheckResult(name, f"{label} median row", median <= QUIET_MEDIAN, median, QUIET_MEDIAN, "")
        elif mode != "bf16" or run.logits.shape[0] >= BF16_SHORTEST:
            share = float((expected.argmax(-1) == found.argmax(-1)).float().mean())
            limit = ARGMAX_SHARE[mode]
            note = f"at least; median row {median:.2g}"
            yield CheckResult(name, f"{label} argmax agreement", share >= limit, share, limit, note)


def _worst_row(name: str, check: str, expected: Tensor, found: Tensor) -> CheckResult:
    errors = row_errors(expected, found)
    worst = float(errors.max())
    note = "" if worst <= ROW_LIMIT else f"row {int(errors.argmax())}, {int((errors > ROW_LIMIT).sum())} rows over"
    return CheckResult(name, check, worst <= ROW_LIMIT, worst, ROW_LIMIT, note)


def _blocks(name: str, expected: Tensor, found: Tensor | None) -> CheckResult:
    if found is None:
        return CheckResult(name, "candidate blocks", False, None, 0.0, "no layer published any")
    width = max(expected.shape[1], found.shape[1])
    padded = [torch.nn.functional.pad(mask.cpu(), (0, width - mask.shape[1])) for mask in (expected, found)]
    rows = (padded[0] != padded[1]).any(dim=-1).nonzero().flatten().tolist()
    note = f"first in row {rows[0]}" if rows else ""
    return CheckResult(name, "candidate blocks", not rows, float(len(rows)), 0.0, note)


def _described(folder: Path, mode: Mode | None) -> dict[str, list[int]]:
    """Return the prompts of golden.json, only those listed for `mode` where it has such a list (a subset may)."""
    path = folder / "golden.json"
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        listed = body.get("modes", {}).get(mode, {}).get("prompts", body["prompts"])
        return {name: list(prompt["token_ids"]) for name, prompt in body["prompts"].items() if name in listed}
    except OSError as error:
        raise PortError(
            f"verify: expected golden data in {folder}; cannot read golden.json: {error.strerror}."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PortError(f"verify: {path}: expected prompts with token_ids; {error!r}.") from error


def _chosen(described: Mapping[str, list[int]], prompts: tuple[str, ...], folder: Path) -> dict[str, list[int]]:
    unknown = [name for name in prompts if name not in described]
    if unknown:
        raise PortError(
            f"verify: expected prompts among {', '.join(described)} ({folder}); found {', '.join(unknown)}."
        )
    return {name: ids for name, ids in described.items() if not prompts or name in prompts}
