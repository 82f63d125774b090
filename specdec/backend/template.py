"""A model's chat template, rendered in a sandbox, or one of llama.cpp's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import llama_cpp
from jinja2.exceptions import SecurityError

from ..errors import UsageError
from .model import Model
from .sandbox import Sandbox, strftime_now

Message = dict[str, str]

Render = Callable[[Sequence[Message]], str]


def builtin_templates() -> list[str]:
    """The names of llama.cpp's own templates (``llama_chat_builtin_templates``), sorted."""
    count = llama_cpp.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * count)()
    llama_cpp.llama_chat_builtin_templates(names, count)
    return sorted(name.decode() for name in names if name)


class ChatTemplate:
    """Turns a conversation into the text a model expects.

    source: Jinja, or a name of :func:`builtin_templates`; None for the model's own. origin: what messages
    about a template call it, by default the model's path.
    Raises UsageError for a model without a template and for one that is no Jinja.
    """

    def __init__(self, model: Model, source: str | None = None, *, origin: str | None = None) -> None:
        self.origin = origin or str(model.path)
        source = model.chat_template if source is None else source
        if source is None:
            raise UsageError(
                f"{model.path}: this model has no chat template; --chat-template chatml gives it a common "
                "one, --raw continues a text without any"
            )
        self._render = self._builtin(source) if source in builtin_templates() else self._jinja(model, source)

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, ending where its next answer begins.

        messages: ``{"role": "system" | "user" | "assistant", "content": text}``, oldest first.
        Raises UsageError when the template refuses them, reaches out of its sandbox, or takes more time or
        memory than any conversation needs.
        """
        try:
            return self._render(messages)
        except Exception as error:  # a template is a program from a file: what it raises is its own failure
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> UsageError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        what = "is refused" if isinstance(error, SecurityError) else "failed"
        return UsageError(
            f"{self.origin}: the chat template {what} ({reason}); --chat-template takes another, "
            "--raw continues a text without one"
        )

    def _jinja(self, model: Model, source: str) -> Render:
        vocab, sandbox = model.vocab, Sandbox()
        try:
            template = sandbox.compiled(source)
        except Exception as error:  # Jinja's own kinds of error, and whatever else a broken source provokes
            raise self._failed(error) from error

        def refuse(message: object) -> None:
            raise ValueError(message)

        variables = {  # those of Jinja2ChatFormatter
            "eos_token": vocab.control_text(vocab.eos),
            "bos_token": vocab.control_text(vocab.bos),
            "raise_exception": refuse,
            "strftime_now": strftime_now,
            "add_generation_prompt": True,
            **dict.fromkeys(("functions", "function_call", "tools", "tool_choice")),
        }
        return lambda messages: sandbox.rendered(template, messages=list(messages), **variables)

    @staticmethod
    def _builtin(name: str) -> Render:
        """``llama_chat_apply_template``, which knows its templates by name."""

        def render(messages: Sequence[Message]) -> str:
            raw = [(m["role"].encode(), m["content"].encode()) for m in messages]
            message = llama_cpp.llama_chat_message
            chat = (message * len(raw))(*(message(role, content) for role, content in raw))
            size = 256 + 2 * sum(len(role) + len(content) for role, content in raw)
            for _ in range(2):
                buffer = ctypes.create_string_buffer(size)
                n = llama_cpp.llama_chat_apply_template(name.encode(), chat, len(raw), True, buffer, size)
                if n < 0:
                    raise ValueError(f"llama.cpp's template {name} does not take these messages")
                if n <= size:
                    return buffer.raw[:n].decode("utf-8", "replace")
                size = n
            raise ValueError(f"llama.cpp's template {name} gives no text of a fixed length")

        return render
