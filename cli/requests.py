"""Requests: what is asked of one generation, by flags or by a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

from specdec.errors import UsageError
from specdec.settings import Drafting, SamplingParams

from .jsontext import parsed
from .messages import parse_messages
from .options import DraftOptions, PromptOptions, ResultOptions, SamplingOptions
from .prompt import Prompt
from .setting import setting
from .textfile import LARGEST, decoded, sound

GRAMMARS = ("grammar", "grammar_file", "json_schema", "json_schema_file")


@dataclass(frozen=True)
class Request:
    """One generation that is asked for. seed: None draws one."""

    prompt: Prompt
    sampling: SamplingParams
    drafting: Drafting
    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: int = 0


@dataclass(frozen=True)
class Defaults:
    """What the flags say; of every request, where there are several."""

    asked: PromptOptions
    drafts: DraftOptions
    sampling: SamplingOptions
    result: ResultOptions

    def read(self) -> Defaults:
        """The same with its grammar read: its file may be a pipe, which can be read only once.

        Raises UsageError for a grammar that cannot be read.
        """
        return self.changed({"sampling": {"grammar": self.sampling.grammar_text() or None}})

    def changed(self, values: dict[str, dict[str, Any]]) -> Defaults:
        """The same with other values. values: for each field here, those of its own fields that change."""
        new_sampling = values.get("sampling", {})
        if not new_sampling.keys().isdisjoint(GRAMMARS):  # a grammar takes the place of any other
            values = {**values, "sampling": {**dict.fromkeys(GRAMMARS), **new_sampling}}
        return replace(self, **{name: replace(getattr(self, name), **new) for name, new in values.items()})

    @property
    def request_seed(self) -> int | None:
        """The seed that was asked for; None draws one."""
        return None if self.sampling.seed == -1 else self.sampling.seed

    def request(self, prompt: Prompt) -> Request:
        """A request with these settings. Raises UsageError for values that do not go together."""
        return Request(
            prompt,
            self.sampling.sampling(),
            self.drafts.drafting(),
            self.asked.max_tokens,
            tuple(sound(text, "the text of --stop") for text in self.asked.stop or ()),
            self.request_seed,
            self.result.logprobs,
        )


class Line(NamedTuple):
    """A line of JSONL: its request, or what is wrong with it. id: what the request calls itself."""

    number: int
    id: object
    request: Request | UsageError


def read_requests(file: BinaryIO, defaults: Defaults) -> Iterator[Line]:
    """The requests of a JSONL stream, each as soon as its line is there; blank lines are none.

    Raises UsageError when the stream cannot be read.
    """
    for number, raw in _lines(file):
        if raw.strip():
            yield _line(number, raw, defaults)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers; of one that is too long only as much as shows that it is."""
    number = 0
    while raw := _read(file, LARGEST + 1):
        number += 1
        rest = raw
        while len(rest) > 1 and not rest.endswith(b"\n"):
            rest = _read(file, 1 << 16)
        yield number, raw


def _read(file: BinaryIO, size: int) -> bytes:
    try:
        return file.readline(size)
    except OSError as error:
        raise UsageError(f"cannot read the requests: {error.strerror}") from error


def _line(number: int, raw: bytes, defaults: Defaults) -> Line:
    name: object = None
    try:
        value = _object(raw)
        name = value.pop("id", None)
        return Line(number, name, _request(value, defaults))
    except UsageError as error:
        return Line(number, name, error)


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > LARGEST:
        raise UsageError(f"the line has more than {LARGEST >> 20} MiB, which fits no context")
    value = parsed(decoded(raw.rstrip(), "the line"), "the line")
    if not isinstance(value, dict):
        raise UsageError('the line is no JSON object; a request is one, as in {"prompt": "Hello"}')
    return value


def _request(value: dict[str, Any], defaults: Defaults) -> Request:
    sound(json.dumps(value, ensure_ascii=False), "the text")
    prompt = {key: value.pop(key, None) for key in ("prompt", "messages")}
    changes: dict[str, dict[str, Any]] = {}
    given: dict[str, str] = {}
    for key, new in value.items():
        one = setting(key)
        if new is None:
            continue
        if given.setdefault(one.field, key) != key:
            raise UsageError(f"{given[one.field]} and {key} are the same setting: give one of them")
        changes.setdefault(one.group, {})[one.field] = one.converted(key, new)
    changed = defaults.changed(changes)
    return changed.request(_prompt(**prompt, asked=changed.asked, own_system="system" in given))


def _prompt(prompt: object, messages: object, asked: PromptOptions, *, own_system: bool) -> Prompt:
    system = asked.system or ""
    if (prompt is None) == (messages is None):
        both = "both" if messages is not None else "neither"
        raise UsageError(f'a request has a "prompt" (a text) or "messages" (a conversation); this has {both}')
    if messages is None:
        if not isinstance(prompt, str):
            raise UsageError("prompt must be a string")
        return Prompt(prompt, system=system, raw=asked.raw)
    conversation = parse_messages(messages, "messages")
    if conversation[0]["role"] == "system" and not own_system:
        system = ""  # its own goes before the command line's
    return Prompt(messages=conversation, system=system, raw=asked.raw, source="messages")
