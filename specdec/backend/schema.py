"""JSON schemas as grammars: the binding's converter, with what it gets wrong put right."""

from __future__ import annotations

import json
import re
from typing import Any

from llama_cpp.llama_grammar import SchemaConverter

# The converter lets control characters into strings, which is no JSON; this is llama.cpp's own rule.
CHARACTER = r"""char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})"""
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Converter(SchemaConverter):
    """``json_schema_to_gbnf`` whose literals mean what the schema says."""

    def visit(self, schema: Any, name: str) -> Any:
        """Raises ValueError for what is no schema, or one that nothing fulfils."""
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise ValueError(f"a schema is an object or true, not {json.dumps(schema)[:40]}")
        for least, most in (("minLength", "maxLength"), ("minItems", "maxItems")):
            if schema.get(most) is not None and schema.get(least, 0) > schema[most]:
                raise ValueError(f"{least} {schema[least]} is above {most} {schema[most]}")
        if re.search(r'["\\]', str(schema.get("pattern", ""))):
            raise ValueError("a pattern with a quote or a backslash cannot be translated")
        return super().visit(schema, name)  # type: ignore[no-untyped-call]  # the binding's

    def _format_literal(self, literal: str) -> str:
        """A text as a GBNF literal; JSON strings first get back the characters that need no escape."""
        if len(literal) > 1 and literal.startswith('"'):
            literal = json.dumps(json.loads(literal), ensure_ascii=False)
        return '"' + "".join(ESCAPES.get(c, c) for c in literal) + '"'

    def _generate_constant_rule(self, value: object) -> str:
        return self._format_literal(json.dumps(value, ensure_ascii=False))


def gbnf_from_json_schema(schema: str) -> str:
    """GBNF for a JSON schema. Raises whatever the schema provokes in the converter."""
    settings: dict[str, Any] = dict(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    converter: Any = Converter(**settings)  # type: ignore[no-untyped-call]  # the binding's
    value = json.loads(schema)
    try:
        converter.visit(converter.resolve_refs(value, "stdin") if isinstance(value, dict) else value, "")
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing, or refers to itself") from error
    rules = str(converter.format_grammar()).split("\n")
    return "\n".join(CHARACTER if rule.startswith("char ::= ") else rule for rule in rules)
