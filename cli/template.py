"""A chat template as the command line names it."""

from __future__ import annotations

import difflib
from pathlib import Path

from specdec.errors import UsageError

from .textfile import read_text


def template_source(named: str) -> str:
    """A name of llama.cpp's templates as it is, Jinja as it is, anything else read as a file.

    Raises UsageError for what is none of them.
    """
    from specdec.backend import builtin_templates

    names = builtin_templates()
    if named in names or "{%" in named or "{{" in named:
        return named
    if Path(named).expanduser().exists():
        return read_text(Path(named), "the chat template")
    close = difflib.get_close_matches(named, names, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        f"--chat-template {named}: no such template and no such file; {hint}"
        f"llama.cpp's are {', '.join(names)}"
    )
