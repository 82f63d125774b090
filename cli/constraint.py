"""What narrows a text: a grammar or a schema, and biases on single tokens."""

from __future__ import annotations

import math
import re
from pathlib import Path

from specdec.errors import UsageError

from .textfile import read_text, sound


def grammar_text(
    grammar: str | None, grammar_file: Path | None, schema: str | None, schema_file: Path | None
) -> str:
    """The one grammar that is given, in GBNF; '' for none.

    Raises UsageError for more than one, for an empty one, and for a schema that is none.
    """
    named = {
        "--grammar": grammar,
        "--grammar-file": grammar_file,
        "--json-schema": schema,
        "--json-schema-file": schema_file,
    }
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} each say what the text may be: give one of them")
    if not given:
        return ""
    what = "the grammar" if grammar is not None or grammar_file is not None else "the schema"
    file = grammar_file or schema_file
    text = read_text(file, what) if file else sound(grammar or schema or "", f"{what} of {given[0]}")
    if not text.strip():
        raise UsageError(f"{what} of {given[0]} is empty")
    if what == "the grammar":
        return text
    from specdec.grammar import from_json_schema

    return from_json_schema(text)


def token_bias(text: str) -> tuple[int, float]:
    """The token and the bias of ID+BIAS or ID-BIAS. Raises UsageError for any other text."""
    found = re.fullmatch(r"\s*(\d{1,10})([+-].+)", text)
    try:
        bias = float(found[2]) if found else math.nan
    except ValueError:
        bias = math.nan
    if found is None or math.isnan(bias) or bias == math.inf:
        raise UsageError(
            f"--logit-bias takes a token's id and a number to add, as in 15043+1 or 15043-inf, not {text!r}"
        )
    return int(found[1]), bias
