"""A model's chat template, rendered in Jinja's sandbox by the binding."""

from __future__ import annotations

from collections.abc import Sequence

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from ..errors import UsageError
from .model import Model

Message = dict[str, str]


def render_chat(model: Model, messages: Sequence[Message]) -> str:
    """The text the model expects for a conversation, ending where its answer begins.

    messages: ``{"role": "system" | "user" | "assistant", "content": text}``, oldest first.
    Raises UsageError when the model has no template or its template refuses the messages.
    """
    template = model.chat_template
    if template is None:
        raise UsageError(f"{model.path}: this model has no chat template; use --raw to continue a text")
    vocab = model.vocab
    try:
        formatter = Jinja2ChatFormatter(
            template, eos_token=vocab.control_text(vocab.eos), bos_token=vocab.control_text(vocab.bos)
        )
        return formatter(messages=list(messages)).prompt  # type: ignore[arg-type]  # TypedDicts per role
    except Exception as error:  # a template is a program from a file: whatever it raises is its own failure
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(
            f"{model.path}: its chat template failed ({reason}); use --raw to continue a text"
        ) from error
