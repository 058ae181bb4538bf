"""One short word of ours for each of torch's kinds of graph break, so that a reader can sort a list at a glance.

The rules are patterns over torch's names of kinds, first match first, and cover the registry of torch 2.13 whole (a
test counts). A kind of a later torch falls under the same patterns, or is "other". Not for advice; see
`break_registry`.
"""

from __future__ import annotations

import re

INTENTIONAL = frozenset({"explicit_graph_break", "compiler_disabled"})
"""Classes that the author of the program asked for."""

_RULES: tuple[tuple[str, str], ...] = (
    # Asked for by the author.
    (
        "explicit_graph_break",
        r"torch\._dynamo\.(graph_break|skip_frame|step_unsupported)\(|ComptimeContext|^Forced graph",
    ),
    ("compiler_disabled", r"torch\.compiler\.disable"),
    # Limits of the compiler itself rather than of a line.
    ("recompile_limit", r"(recompile|cache) limit|Excessive RestartAnalysis"),
    ("break_in_loop", r"^graph break in loop"),
    ("inlined_break", r"^Graph break in inlined function"),
    ("backend_failed", r"Backend compiler exception"),
    # A tensor's value or a size that depends on it.
    ("tensor_item", r"Tensor\.item\(\)"),
    (
        "dynamic_shape_op",
        r"Dynamic shape operator|data-dependent output shape|unbacked SymInt|Dynamic slicing with Tensor",
    ),
    (
        "data_dependent_op",
        r"Data dependent operator|tolist\(\)|non-scalar tensor|unsupported index\(Tensor\)|repr\(\) on tensor",
    ),
    ("data_dependent_assert", r"[Aa]ssert(ion)?\b|torch\._check"),
    ("data_dependent_branch", r"Data-dependent branching|guard_scalar branch|cond_fn|builtin op on tensor arguments"),
    (
        "data_pointer",
        r"Data pointer|unsupported Tensor comparison|fake value$|tensor\.is_inference|Tensor with grad_fn",
    ),
    # Libraries and facilities Dynamo treats by name.
    ("numpy_unsupported", r"numpy|NumPy|ndarray"),
    ("logging_call", r"[Ll]ogg(ing|er)|reorder a debugging"),
    (
        "higher_order_op",
        r"torch\.(cond|map|scan|associative_scan|while_loop)\b|HigherOrder|HOP\b|higher order op|invoke_subgraph"
        r"|[Ss]trict.mode|set_subgraph_inputs|rewrite_signature|hints_wrapper|wrap_with_|out_dtype|executorch|flat_apply|FlexAttention|WrapHigherOrder|nonstrict_trace"
        r"|leaf_function|pytree|nested side effect|checkpoint",
    ),
    (
        "autograd",
        r"[Aa]utograd|backward|custom (jvp|vjp)|jvp|retain_grad|requires_grad|grad_fn|ImperativeEngine|dtype mismatch "
        r"between tensor and its gradient|saved_tensors",
    ),
    ("functorch", r"func(torch|torh)|functorh|torch\.func|functional_call"),
    ("hook", r"[Hh]ook|RemovableHandle"),
    ("sparse_or_nested", r"[Ss]parse|[Nn]ested_?[Tt]ensor"),
    ("distributed", r"[Dd]istributed|collectives|P2P|isend|FSDP|Placement"),
    ("triton", r"[Tt]riton|tma_descriptor|grid type"),
    ("torch_mode", r"inference_mode|deterministic_algorithms|function mode|torch\.compile call"),
    ("random", r"random|Tensor\.uniform_|torch\.Generator"),
    ("profiler", r"profiler|record_function"),
    ("torchscript", r"TorchScript|ScriptModules|torch\.jit|wrap_jit"),
    ("stream_or_event", r"current_stream|event method|get_device_module|stream"),
    ("deepcopy", r"deepcopy"),
    ("weakref", r"weakref"),
    ("generator", r"generator|yield|infinite"),
    (
        "context_manager",
        r"[Cc]ontext ?[Mm]anager|contextlib|ContextWrapping|contextmanager|escaped from compiled region"
        r"|__enter__",
    ),
    ("exception_handling", r"[Ee]xception|EXCEPT_HANDLER|CLEANUP_THROW|traceback"),
    # Calls and attributes.
    ("skipped_function", r"marked as skipped|not implemented in python"),
    (
        "tensor_method",
        r"Unsupported Tensor|Unhandled tensor method|Tensor\.\w+|tensor (attribute|method|data|creation)"
        r"|[Tt]ensor subclass|as_subclass|Tensor device mismatch|elementwise_dtypes|check_meta|broadcast",
    ),
    (
        "unsupported_method",
        r"Unsupported method call|method call|missing method|constant-like method|Unhandled args for method"
        r"|opaque|OpaqueObject|Opaque object|as a method",
    ),
    ("unsupported_function", r"Unsupported function call|function call|bind arguments|unconverted argument|Variadic"),
    ("container", r"mapping ?proxy"),
    (
        "fake_tensor",
        r"[Ff]ake ?[Tt]ensor|fake tensors|real value|FX node|\bproxy\b|op packet|PT2-compliant|in-graph|meta kernel"
        r"|returned non-Tensor|non-single Tensor|out=|call_method node|constant fold",
    ),
    (
        "module_state",
        r"nn\.Module|NNModule|nn\.Parameter|Parameter\(|placeholder op for parameter|RNN|_ntuple|optimizer",
    ),
    (
        "mutation",
        r"mutation|Inplace|aliasing|[Ss]ide.[Ee]ffect|setattr|__setattr__|STORE_ATTR|__delattr__|slice assignment"
        r"|__setitem__|C-level descriptor|Write to immutable",
    ),
    ("reconstruction", r"[Rr]econstruct"),
    (
        "unsupported_builtin",
        r"builtin|isinstance|issubclass|hasattr|super\(|super getattr|arg super"
        r"|vectorcall|[Hh]ashability|\bid\(|call_id|hash|repr|str\(|__len__|iter\("
        r"|next\(|\bsort|type\(\) call|cast\(\)|range\(|getattr|__get__|_impl\b|slot not|sq_|tp_|nb_|mp_|len_"
        r"|richcompare|comparison|operator|vars\(|list\(",
    ),
    (
        "standard_library",
        r"itertools|functools|collections|deque|inspect|dataclass|Pydantic|Enum|typing|TypedDict|namedtuple"
        r"|NamedTuple|unittest",
    ),
    (
        "bytecode",
        r"bytecode|BUILD_|LOAD_|CALL_INTRINSIC|UNPACK|SEND|Comprehension|NullVariable|cell|closure|local variable|"
        r"deleted variable|Inline attempt|"
        r"Import|import|__build_class__|__class__|metaclass|mro",
    ),
    ("container", r"dict|set\b|key|list|__getitem__|TypeError|unpacking|sequence"),
    ("user_object", r"[Uu]ser.[Dd]efined|user defined|object|Source|source|[Aa]ttribute|constant|argument|unwrap"),
)

_PATTERNS = tuple((word, re.compile(pattern)) for word, pattern in _RULES)

CLASSES: tuple[str, ...] = tuple(dict.fromkeys([*(word for word, _ in _RULES), "user_error", "other"]))
"""Every word `reason_class` can return."""

_USER_ERROR = re.compile(r"data-dependent expression|torch\._check\*?\(\)\.|dynamic control flow|Consider annotating")


def reason_class(reason: str) -> str:
    """Return our word for torch's `reason` (the kind, or the first line of the message); "other" where none fits."""
    if _USER_ERROR.search(reason):
        return "user_error"
    return next((word for word, pattern in _PATTERNS if pattern.search(reason)), "other")
