"""Whether two words for the kind of a graph break mean the same: a case's own, and ours.

A case author's word is free (`tensor_item`, `scalar_read`, `host_sync`), so it is read for its meaning. Torch's own
text decides where both sides have it. Not for naming a kind; see `workbench/probes/break_classes.py`.
"""

from __future__ import annotations

import re

from workbench.probes.break_classes import reason_class

_MEANINGS: dict[str, str] = {
    "tensor_item": r"item|scalar|host_(read|sync|value|copy)|to_(python|number|host)|number_of_tensor|float_of|int_of",
    "dynamic_shape_op": r"dynamic_(shape|size|output)|data_dependent_(shape|size|output)|nonzero|unique|bool(ean)?_mask"
    r"|mask(ed)?_(index|select)|unbacked",
    "data_dependent_op": r"data_dependent|tolist|value_dependent|host_(read|sync|value|copy)|host_list",
    "data_dependent_branch": r"branch|control_flow|data_dependent_(if|jump|cond|loop|while)|conditional"
    r"|tensor_(if|bool)",
    "data_dependent_assert": r"assert",
    "data_pointer": r"pointer|data_ptr|address",
    "explicit_graph_break": r"explicit|graph_break|manual|user_(inserted|asked|requested)|intended|intentional|forced",
    "compiler_disabled": r"disable|opt(ed)?_out|excluded",
    "skipped_function": r"skip|builtin|c_(function|extension)|extension|unmodel+ed|not_traced|untraceable",
    "unsupported_builtin": r"builtin|print|operator|exec|eval|open",
    "unsupported_method": r"method|lock|storage|attribute",
    "unsupported_function": r"unsupported_(function|call)|function_call|untraceable",
    "tensor_method": r"tensor_(method|attribute|call)|unsupported_tensor|subclass|sparse",
    "numpy_unsupported": r"numpy|ndarray|\bnp\b",
    "logging_call": r"logg?(er|ing)?(_|\b)|print",
    "context_manager": r"context|with_(block|statement)|contextlib",
    "exception_handling": r"exception|try|raise|except",
    "generator": r"generator|yield|iterator",
    "higher_order_op": r"higher_order|hop|cond|scan|checkpoint",
    "autograd": r"autograd|backward|grad",
    "hook": r"hook",
    "random": r"random|rng|seed",
    "distributed": r"distributed|collective|all_reduce|p2p",
    "deepcopy": r"copy",
    "weakref": r"weak",
    "recompile_limit": r"recompil|cache_limit|limit",
    "reconstruction": r"reconstruct",
    "bytecode": r"bytecode|opcode|instruction|class_definition|build_class|import",
    "standard_library": r"stdlib|standard_library|functools|inspect|dataclass|itertools|enum",
    "profiler": r"profil",
    "fake_tensor": r"fake|meta|custom_op",
    "container": r"dict|list|set|container|mapping",
    "user_object": r"user_(object|defined|class)|object|attribute|custom_class",
    "user_error": r"user_error|data_dependent|guard|symbolic",
}
_EMPTY_WORDS = frozenset({"unsupported", "op", "call", "function", "other", "data", "break", "error", "kind", "torch"})


def same_meaning(word: str, reason: str, *, torch_reason: str = "") -> bool:
    """Say whether a case means the kind of break that Dynamo's `reason` names.

    Args:
        word: the case's word for the kind, "" where it gives none.
        reason: what our record has, in Dynamo's words.
        torch_reason: what the case has, in Dynamo's words; "" where it gives none.
    """
    if torch_reason:
        if _plain(torch_reason) == _plain(reason):
            return True
        ours = reason_class(reason)
        if ours != "other" and reason_class(torch_reason) == ours:
            return True
    return words_agree(word, reason_class(reason)) if word else not torch_reason


def words_agree(word: str, ours: str) -> bool:
    """Say whether a case's word and one of our classes mean the same."""
    plain = re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")
    if plain == ours:
        return True
    pattern = _MEANINGS.get(ours)
    if pattern is not None and re.search(pattern, plain):
        return True
    return bool((set(plain.split("_")) & set(ours.split("_"))) - _EMPTY_WORDS)


def _plain(reason: str) -> str:
    return " ".join(re.sub(r"[^\w()=.]+", " ", reason).lower().split())
