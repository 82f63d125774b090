"""``specdec generate``: a prompt in, its text out; or requests in, a result for each out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import SpecdecError, UsageError

from .options import (
    DraftOptions,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    ResultOptions,
    SamplingOptions,
    takes,
)
from .prompt import read_prompt
from .requests import Defaults, read_requests
from .textfile import opened

if TYPE_CHECKING:
    from specdec.settings import Drafting, Loading

    from .answers import Answers, Form


@takes(PromptOptions, ModelOptions, DraftOptions, SamplingOptions, ResultOptions, OutputOptions)
def generate(
    asked: PromptOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampling: SamplingOptions,
    result: ResultOptions,
    output: OutputOptions,
) -> None:
    """Write the answer to a prompt, or continue a text.

    The text goes to stdout and nothing else does; status and summary go to the terminal and to stderr.

    [bold]Examples[/bold]

    specdec generate "Explain why the sky is blue."

    specdec generate -m big.gguf -md small.gguf -n 200 "Write a haiku."

    cat notes.txt | specdec generate -m big.gguf -md small.gguf --temp 0 > summary.txt

    specdec generate --raw --drafter lookup -m big.gguf -f story.txt

    specdec generate --jsonl -f requests.jsonl -o results.jsonl
    """
    form = _form(asked, result)
    defaults = Defaults(asked, drafts, sampling, result).read()
    loading, drafting = models.loading(), drafts.drafting()
    if not asked.jsonl:
        request = defaults.request(read_prompt(asked))
        with _started(models, loading, drafting, result.output, output, form) as answers:
            answers.one(request)
        return
    defaults.sampling.sampling()  # flags that make no sense are not left to the requests to find out
    with (
        opened(_source(asked), "the requests") as file,
        _started(models, loading, drafting, result.output, output, form) as answers,
    ):
        answers.each(read_requests(file, defaults))
    if answers.failed:
        raise SpecdecError(f"{answers.failed} of {answers.seen} requests failed; their lines say why")


def _form(asked: PromptOptions, result: ResultOptions) -> Form:
    """What is written. Raises UsageError for flags that contradict each other."""
    if result.json_ and result.stream_json:
        raise UsageError("--json prints one object and --stream-json one for each round: give one of them")
    if result.stream_json:
        return "events"
    if result.json_ or asked.jsonl:
        return "json"
    if result.logprobs:
        raise UsageError("--logprobs are shown in JSON alone: add --json or --stream-json")
    return "text"


def _source(asked: PromptOptions) -> Path:
    """Where requests come from. Raises UsageError for prompts besides them, and for a terminal."""
    named = {"the argument": asked.text, "-p": asked.prompt, "--messages": asked.messages}
    for name, value in named.items():
        if value is not None:
            raise UsageError(f"with --jsonl the prompts are in the requests: leave out {name}")
    if asked.file is None and sys.stdin is not None and sys.stdin.isatty():
        raise UsageError("no requests: give them to --jsonl in a pipe or with -f FILE (-f - is the terminal)")
    return asked.file or Path("-")


@contextmanager
def _started(
    models: ModelOptions,
    loading: Loading,
    drafting: Drafting,
    path: Path | None,
    output: OutputOptions,
    form: Form,
) -> Iterator[Answers]:
    """The models, loaded, and ready to answer."""
    from .answers import Answers
    from .interrupts import interruptible
    from .locate import loaded, locate_pair
    from .log import log_shown
    from .output import destination
    from .view import View

    with (
        interruptible() as signals,
        destination(path) as stream,
        View(color=output.color, quiet=output.quiet, stdout=stream) as view,
        log_shown(view, output.verbose),
    ):
        files = locate_pair(models, drafting, quiet=output.quiet)
        _check_output(path, [*files, *(adapter for adapter, _ in loading.lora)])
        with loaded(files, loading, drafting, view, signals.abort) as engine:
            yield Answers(engine, files[1], view, stream, form)


def _check_output(path: Path | None, used: list[Path | None]) -> None:
    """Raises UsageError for an output that would take the place of a file the run works with."""
    for file in used:
        if path is not None and file is not None and path.exists() and path.samefile(file):
            raise UsageError(f"-o {path} is one of the models: choose another file")
