"""What a NeuronCore can do, as data: the one table that the port, the virtual core and the doctor ask.

Nothing here was measured by this project: no NeuronCore was at hand. The mark of a row says where it stands:
`documented` (vendor documentation of Neuron 2.32 and 2.33), `source` (a public torch-neuronx tree of April 2026; 2.14
may differ), `field` (reported by users, with their versions), `inferred` (follows from other rows, not stated
anywhere). `supported` is None where nobody knows.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

Area = Literal["dtype", "operation", "layout", "compile", "memory", "collective"]
Mark = Literal["documented", "source", "field", "inferred"]

_DOCS = "Neuron 2.33 documentation, torch"
_CODES = "Neuron 2.32 documentation, compiler error codes"
_CLI = "Neuron 2.32 documentation, neuronx-cc command line"
_HARDWARE = "Neuron 2.32 documentation, trn2 architecture"
_TREE = "torch-neuronx source of April 2026"
_DSV4 = "public DeepSeek-V4 bring-up notes on trn2.3xlarge, neuronx-cc 2.27"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing the device can or cannot do.

    Attributes:
        name: key of the row.
        area: which part of the table.
        supported: True, False, or None where nobody knows.
        fact: what happens, in words.
        instead: what the port does about it; "" where nothing needs doing.
        limit: the number in `fact`, where there is one.
        error: what the compiler or the runtime says, where it refuses.
        source: where the fact comes from.
        mark: how far to trust it.
    """

    name: str
    area: Area
    supported: bool | None
    fact: str
    source: str
    mark: Mark
    instead: str = ""
    limit: int | float | None = None
    error: str = ""


CAPABILITIES: tuple[Capability, ...] = (
    Capability(
        name="float32",
        area="dtype",
        supported=True,
        fact="native, as are bfloat16, float16, int8, int16, int32, uint8 and bool",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="bfloat16",
        area="dtype",
        supported=True,
        fact="native, 79 TFLOPS per physical core",
        limit=79,
        source=_HARDWARE,
        mark="documented",
    ),
    Capability(
        name="int64",
        area="dtype",
        supported=False,
        fact="stored as 64 bits; eager casts values to int32, a compiled graph reads pairs of int32, and an explicit "
        "cast goes through the host",
        instead="index tensors are int32 from end to end; exact 64-bit hashing stays on the host",
        source=f"{_TREE}; {_CLI} (--native-int64)",
        mark="source",
    ),
    Capability(
        name="float64",
        area="dtype",
        supported=False,
        fact="values are converted to float32 and back",
        instead="no float64 after loading",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="complex",
        area="dtype",
        supported=False,
        fact="not native; 2.14 decomposes complex operations in compiled graphs",
        instead="rotary embedding in real pairs",
        error="NCC_EVRF004",
        source=f"{_CODES}; {_DOCS}",
        mark="documented",
    ),
    Capability(
        name="float8_e4m3fn",
        area="dtype",
        supported=False,
        fact="as an operand the compiler refuses it on trn1 and trn2; the hardware's e4m3 has infinities and ends at "
        "240. Moving it (gather, index_select) works",
        instead="codes are kept within 240, and the compiler is told to read e4m3fn as e4m3; "
        "or fp8 travels as uint8 (`deepinfer_neuron`)",
        limit=240,
        error="NCC_EVRF051",
        source=f"{_CODES}; {_HARDWARE}; {_DSV4}",
        mark="documented",
    ),
    Capability(
        name="float8_e5m2",
        area="dtype",
        supported=True,
        fact="supported on trn2",
        limit=57344,
        source=_HARDWARE,
        mark="documented",
    ),
    Capability(
        name="float4_e2m1fn_x2",
        area="dtype",
        supported=False,
        fact="unsupported in code generation",
        instead="packed FP4 codes are int8 and are decoded by a table of 16 numbers",
        error="NCC_ESPP004",
        source=_CODES,
        mark="documented",
    ),
    Capability(
        name="float8_e8m0fnu",
        area="dtype",
        supported=None,
        fact="not mentioned for the device",
        instead="scales travel as uint8 exponents and are decoded with int32 shifts",
        source=_CODES,
        mark="inferred",
    ),
    Capability(
        name="sort",
        area="operation",
        supported=False,
        fact="sort, argsort and histc are refused on trn2",
        instead="top-k, prefix sums and searches over float bits",
        error="NCC_EVRF029",
        source=f"{_DSV4}; {_CODES} does not list it",
        mark="field",
    ),
    Capability(
        name="topk_unsorted",
        area="operation",
        supported=False,
        fact="topk(sorted=False) is lowered to a sort on some paths",
        instead="topk(sorted=True) always",
        error="NCC_EVRF029",
        source=_DSV4,
        mark="field",
    ),
    Capability(
        name="topk_integer",
        area="operation",
        supported=False,
        fact="topk of int32 or int64 is refused",
        instead="topk of floats only",
        error="NCC_EVRF013",
        source=_CODES,
        mark="documented",
    ),
    Capability(
        name="topk_wide",
        area="operation",
        supported=False,
        fact="topk with k of 16 or more over rows of 32768 columns ends in an internal error",
        instead="top-k in two levels: the best of each chunk, then the best of those",
        limit=32768,
        error="NCC_INAS001 (ISGV902)",
        source="public reports on AwsNeuronTopK",
        mark="field",
    ),
    Capability(
        name="scatter_reduce_integer",
        area="operation",
        supported=False,
        fact="scatter with a reduction of integers or booleans is refused",
        instead="comparison with an iota, then a sum",
        error="NCC_EVRF016",
        source=_CODES,
        mark="documented",
    ),
    Capability(
        name="linalg",
        area="operation",
        supported=False,
        fact="qr, svd, eigh, cholesky_ex, inv_ex, lu_factor_ex, ldl_factor_ex, slogdet, det, cholesky_inverse and "
        "triangular_solve always run on the host",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="random",
        area="operation",
        supported=False,
        fact="random operations run on the host, and early builds have no generator of the device",
        instead="a counter-based generator in ordinary integer operations",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="scaled_mm",
        area="operation",
        supported=False,
        fact="no `_scaled_mm` in early builds",
        instead="weights are dequantised in pieces, and products are bfloat16 or float32",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="table_index_widening",
        area="memory",
        supported=False,
        fact="index_select and indexing on a table of 8-bit elements widen the whole table to 32 bits",
        instead="an embedding look-up on a view of wider words",
        limit=4,
        source="measured by the project this port follows, on trn2; not measured here",
        mark="field",
    ),
    Capability(
        name="gather_descriptors",
        area="operation",
        supported=True,
        fact="each row of a gather costs a DMA descriptor; 327,900 of them kept a compiler pass busy for an hour",
        instead="few wide gathers in the stored dtype, converted afterwards",
        source=_DSV4,
        mark="field",
    ),
    Capability(
        name="as_strided",
        area="layout",
        supported=False,
        fact="limited: tensors are contiguous or keep their format, and a graph that mutates an aliased input may be "
        "given as_strided writes",
        instead="caches are allocated as roots and sliced inside the traced function",
        source=f"{_TREE}; public reports",
        mark="field",
    ),
    Capability(
        name="broadcast_destination",
        area="layout",
        supported=False,
        fact="a copy into a tensor of stride 0 is refused",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="dynamic_shapes",
        area="compile",
        supported=False,
        fact="graphs have static shapes; another shape is another compile",
        instead="torch.compile(dynamic=False), one graph per batch size",
        error="NCC_EMOD025",
        source=_DOCS,
        mark="documented",
    ),
    Capability(
        name="graph_memory",
        area="memory",
        supported=True,
        fact="one compiled graph may use 24 GiB: inputs, outputs and scratchpad together",
        limit=24 << 30,
        error="NCC_EOOM001, NCC_EOOM002",
        source=_CODES,
        mark="documented",
    ),
    Capability(
        name="core_memory",
        area="memory",
        supported=True,
        fact="a logical core of two physical ones owns a stack of 24 GiB; single cores share one",
        limit=24 << 30,
        source=_HARDWARE,
        mark="documented",
    ),
    Capability(
        name="send_recv",
        area="collective",
        supported=False,
        fact="the process group of the device has no send and no receive",
        instead="all-gather, all-to-all and reduce-scatter only",
        source=_TREE,
        mark="source",
    ),
    Capability(
        name="all_to_all_uneven",
        area="collective",
        supported=False,
        fact="within an instance only slots of equal size are exchanged",
        instead="decode packs tokens for an all-gather of fixed size; prompts exchange exact sizes through the host",
        source="public notes on expert parallelism on trn2",
        mark="field",
    ),
    Capability(
        name="fork",
        area="collective",
        supported=False,
        fact="a core belongs to one process until it ends, and a forked child cannot use the runtime",
        instead="processes are spawned, one per core",
        source=_TREE,
        mark="source",
    ),
)

_BY_NAME = {row.name: row for row in CAPABILITIES}

HOST_OPERATIONS: frozenset[str] = frozenset(
    {
        "linalg_qr",
        "_linalg_svd",
        "_linalg_eigh",
        "linalg_cholesky_ex",
        "linalg_inv_ex",
        "linalg_lu_factor_ex",
        "linalg_ldl_factor_ex",
        "_linalg_slogdet",
        "_linalg_det",
        "cholesky_inverse",
        "triangular_solve",
        "linalg_solve_triangular",
    }
)
"""ATen names (without overload) of the row `linalg`; the last one is the form `triangular_solve` has today."""


def capability(name: str) -> Capability:
    """Return the row of this name.

    Raises:
        ValueError: no such row; the message has the nearest one.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    nearest = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"capability: expected one of {', '.join(_BY_NAME)}; found {name!r}.{hint}")


def capability_table() -> str:
    """Return the table as Markdown, the one in `docs/device.md`."""
    words = {True: "yes", False: "no", None: "unknown"}
    lines = ["| what | device | fact | the port | error | source | mark |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {row.area}: `{row.name}` | {words[row.supported]} | {row.fact} | {row.instead} | {row.error} "
        f"| {row.source} | {row.mark} |"
        for row in CAPABILITIES
    ]
    return "\n".join(lines) + "\n"
