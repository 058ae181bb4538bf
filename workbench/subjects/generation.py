"""Greedy generation with the model of a text side, in a cache of its own, so that the stepped run stays as it was."""

from __future__ import annotations

from collections.abc import Callable

from workbench.errors import StepError
from workbench.subjects.base import Side
from workbench.subjects.text_side import TextSide


def generate_text(
    side: Side, max_tokens: int, progress: Callable[[str], None] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return the prompt's ids, the ids that follow it, and their text.

    Args:
        side: a side that runs the text model with numbers.
        max_tokens: tokens to add, at least 1.
        progress: told after every token.

    Raises:
        StepError: the side runs something else, or has no numbers.
    """
    from port.runtime.generate import generate

    if not isinstance(side, TextSide) or not side.has_numbers:
        raise StepError("generate needs a side that runs the text model with numbers; this one does not.")
    if max_tokens < 1:
        raise StepError(f"generate: expected max_tokens of at least 1, found {max_tokens}.")
    prompt = side.prompts[0]

    def told(done: int, most: int) -> None:
        if progress is not None:
            progress(f"token {done} of {most}")

    with side.whole_model() as text_model:
        room = text_model.config.max_position_embeddings - len(prompt)
        if max_tokens > room:
            raise StepError(
                f"generate: expected max_tokens of at most {room}, which the model has positions for after a prompt of "
                f"{len(prompt)}; found {max_tokens}."
            )
        (found,) = generate(text_model, [prompt], max_tokens=max_tokens, progress=told)
    return prompt, found.token_ids, text_model.tokenizer.decode(found.token_ids)
