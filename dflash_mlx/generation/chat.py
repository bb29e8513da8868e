"""A conversation as the tokens that a target expects."""

from collections.abc import Mapping, Sequence

from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import UserError

# What a template raises that refuses, for example, a system message, or does not know an option:
# those in jinja, and those that mlx-lm has as functions.
TEMPLATE_ERRORS = (TemplateError, AssertionError, NotImplementedError, TypeError, ValueError)


def chat_tokens(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, object]],
    options: Mapping[str, object] | None = None,
    *,
    continue_final_message: bool = False,
) -> list[int]:
    """The tokens of a conversation by the tokenizer's chat template, up to the answer.

    Args:
        tokenizer: has a chat template.
        messages: each with its ``role`` and ``content``.
        options: for the template, such as ``enable_thinking``.
        continue_final_message: whether the answer goes on with the last message.

    Raises:
        UserError: the template refuses.
    """
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
            **(options or {}),
        )
    except TEMPLATE_ERRORS as error:
        raise UserError(
            f"The target's chat template cannot be applied with these options: {error}."
        ) from error
