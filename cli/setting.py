"""A setting as a request of JSON names it: the flag's long name, with the flag's own range and choices."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple, get_args, get_type_hints

from specdec.errors import UsageError

from .options import DraftOptions, ModelOptions, OutputOptions, PromptOptions, ResultOptions, SamplingOptions

PER_REQUEST = {
    "asked": PromptOptions,
    "drafts": DraftOptions,
    "sampling": SamplingOptions,
    "result": ResultOptions,
}
OF_THE_RUN = ("file", "jsonl", "json_", "stream_json", "output", "grammar_file", "json_schema_file")
KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a string"),
}


class Setting(NamedTuple):
    """One field of an options dataclass. kind: its type; info: its flag."""

    group: str
    field: str
    kind: Any
    info: Any

    def converted(self, key: str, value: object) -> object:
        """The field's value for a value of JSON. Raises UsageError, with the key, for one that is none."""
        if self.field == "logit_bias":
            return list(_biases(key, value))
        if self.field == "json_schema" and isinstance(value, dict):
            return json.dumps(value)
        if self.field == "samplers" and isinstance(value, list):
            return ";".join(_checked(f"each of {key}", one, str) for one in value)
        if self.kind == list[str]:
            values = value if isinstance(value, list) else [value]
            return [
                _checked(f"each of {key}" if isinstance(value, list) else key, one, str) for one in values
            ]
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return self._choice(key, value)
        return self._in_range(key, _checked(key, value, self.kind))

    def _choice(self, key: str, value: object) -> Enum:
        choices = {choice.value: choice for choice in self.kind}
        if not isinstance(value, str) or value not in choices:
            raise UsageError(f"{key} must be one of {', '.join(choices)}, not {_shown(value)}")
        choice: Enum = choices[value]
        return choice

    def _in_range(self, key: str, value: Any) -> Any:
        least, most = self.info.min, self.info.max
        if (least is not None and value < least) or (most is not None and value > most):
            limits = f"{least} or more" if most is None else f"from {least} to {most}"
            raise UsageError(f"{key} must be {limits}, not {_shown(value)}")
        return value


def setting(key: str) -> Setting:
    """The setting a request means by `key`. Raises UsageError for what no request can set."""
    found = settings().get(key)
    if found is not None:
        return found
    flag = f"--{key.replace('_', '-')}"
    if key in _names("models", ModelOptions):
        raise UsageError(
            f"{key} belongs to the models, which are loaded once: give {flag} on the command line"
        )
    if key in _run_names():
        raise UsageError(f"{key} belongs to the run, not to a request: give {flag} on the command line")
    close = difflib.get_close_matches(key, [*settings(), "prompt", "messages", "id"], 1)
    hint = f"did you mean {close[0]}?" if close else "settings have the long names of flags, with _ for -"
    raise UsageError(f"{key[:40]} is no setting of a request; {hint}")


@functools.cache
def settings() -> dict[str, Setting]:
    """Every setting of a request, by each of its names."""
    found: dict[str, Setting] = {}
    for name, group in PER_REQUEST.items():
        found.update((key, one) for key, one in _names(name, group).items() if one.field not in OF_THE_RUN)
    for own in ("prompt", "messages"):
        del found[own]
    return {**found, "n": found["max_tokens"]}


def _run_names() -> set[str]:
    groups = {**PER_REQUEST, "output": OutputOptions}
    return {key for name, group in groups.items() for key in _names(name, group)}


@functools.cache
def _names(name: str, group: type) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for field, hint in get_type_hints(group, include_extras=True).items():
        kind, info = get_args(hint)[:2]
        kind = next((one for one in get_args(kind) if type(None) in get_args(kind)), kind)
        flags = [info.default, *(info.param_decls or ())]  # Typer takes the first name for a default
        long = [flag[2:] for flag in flags if isinstance(flag, str) and flag.startswith("--")]
        found.update((flag.replace("-", "_"), Setting(name, field, kind, info)) for flag in long)
    return found


def _biases(key: str, value: object) -> Iterator[str]:
    """{"15043": 1.5} or [[15043, 1.5]] as the flag spells them; false: never this token."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        raise UsageError(
            f'{key} is {{"id": bias}} or [[id, bias]], as in {{"15043": 1.5}}, not {_shown(value)}'
        )
    for token, bias in pairs:
        if not str(token).isdecimal():
            raise UsageError(f"{key} has no token's id: {_shown(token)}")
        number = float("-inf") if bias is False else _checked(f"each bias of {key}", bias, float)
        yield f"{token}{number:+}"


def _checked(what: str, value: Any, kind: object) -> Any:
    types, wanted = KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{what} must be {wanted}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"
