"""The flags, with llama.cpp's names, gathered into the dataclasses the commands work with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from specdec.errors import UsageError
from specdec.settings import ORDER, Drafting, Loading, SamplingParams

from .adapter import scaled_adapter
from .completion import complete_model
from .constraint import grammar_text, token_bias
from .defaults import ShowSettings, show
from .template import template_source
from .textfile import sound

MODELS, DRAFT, SAMPLING, OUTPUT = "Models", "Drafting", "Sampling", "Output"
LARGEST_INT = (1 << 31) - 1  # llama.cpp counts in 32 bits


def option(*names: str, panel: str | None = None, once: bool = False, help: str, **more: Any) -> Any:
    """A Typer option in a panel of the help page.

    ``once``: it belongs to one run, so neither environment nor config.toml may set it.
    """
    return typer.Option(*names, rich_help_panel=panel, help=help, allow_from_autoenv=not once, **more)


class AcceptName(str, Enum):
    block = "block"
    token = "token"
    typical = "typical"


@dataclass(frozen=True)
class ModelOptions:
    """Which models, and how they are loaded."""

    model: Annotated[
        str | None,
        option(
            "--model", "-m", panel=MODELS, metavar="MODEL", autocompletion=complete_model,
            help="Target: a name from 'specdec models list', a .gguf path, or hf:owner/repo/file.gguf. "
            "Without it the demonstration pair is used.",
        ),
    ] = None  # fmt: skip
    draft: Annotated[
        str | None,
        option(
            "--draft", "-md", "--model-draft", panel=MODELS, metavar="MODEL", autocompletion=complete_model,
            help="Drafter: a smaller model of the same family and tokenizer, named in the same ways; with "
            "--draft-translate, any.",
        ),
    ] = None  # fmt: skip
    n_ctx: Annotated[
        int,
        option("-c", "--ctx-size", panel=MODELS, min=0, max=1 << 24, metavar="N",
               help="Context in tokens; 0 for what the model was trained with."),
    ] = Loading.n_ctx  # fmt: skip
    n_ctx_draft: Annotated[
        int | None,
        option("-cd", "--ctx-size-draft", panel=MODELS, min=2, max=1 << 24, metavar="N",
               help="The drafter's context; by default the target's, as far as the drafter was trained."),
    ] = None  # fmt: skip
    threads: Annotated[
        int | None,
        option("-t", "--threads", panel=MODELS, min=1, max=512, metavar="N",
               help="CPU threads; by default one for each physical core."),
    ] = None  # fmt: skip
    threads_draft: Annotated[
        int | None,
        option("-td", "--threads-draft", panel=MODELS, min=1, max=512, metavar="N",
               help="CPU threads of the drafter; by default the target's, or fewer where that is faster."),
    ] = None  # fmt: skip
    gpu_layers: Annotated[
        int | None,
        option("-ngl", "--gpu-layers", "--n-gpu-layers", panel=MODELS, min=-1, max=100000, metavar="N",
               help="Layers kept on the GPU, where llama-cpp-python was built for one; -1 for all."),
    ] = None  # fmt: skip
    gpu_layers_draft: Annotated[
        int | None,
        option("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", panel=MODELS, min=-1, max=100000,
               metavar="N", help="The same for the drafter; by default the target's."),
    ] = None  # fmt: skip
    lora: Annotated[
        list[Path] | None,
        option("--lora", panel=MODELS, metavar="FILE",
               help="A LoRA adapter (GGUF) on top of the target; repeatable."),
    ] = None  # fmt: skip
    lora_scaled: Annotated[
        list[str] | None,
        option("--lora-scaled", panel=MODELS, metavar="FILE:SCALE",
               help="The same with a weight of its own, as in style.gguf:0.5; repeatable."),
    ] = None  # fmt: skip
    chat_template: Annotated[
        str | None,
        option("--chat-template", "--chat-template-file", panel=MODELS, metavar="NAME|FILE",
               help="Chat template in place of the model's: one of llama.cpp's by name, or a Jinja file."),
    ] = None  # fmt: skip

    def loading(self) -> Loading:
        """Raises UsageError for a template that cannot be found and a scale that is no number."""
        return Loading(
            n_ctx=self.n_ctx,
            n_ctx_draft=self.n_ctx_draft,
            threads=self.threads,
            threads_draft=self.threads_draft,
            gpu_layers=self.gpu_layers,
            gpu_layers_draft=self.gpu_layers_draft,
            lora=(*((path, 1.0) for path in self.lora or ()), *map(scaled_adapter, self.lora_scaled or ())),
            chat_template=None if self.chat_template is None else template_source(self.chat_template),
        )


@dataclass(frozen=True)
class DraftOptions:
    """Who drafts, how far, and which rule judges."""

    drafter: Annotated[
        str | None,
        option("--drafter", panel=DRAFT, metavar="NAMES",
               help="model: the --draft GGUF. suffix: the longest repetition in the text and in "
               "--lookup-corpus, no second model. lookup: the last repetition of a few tokens. none: plain "
               "decoding. Several, as in suffix,model: the free ones first, the model when they have "
               "nothing worth offering. By default the model when there is one, else suffix."),
    ] = None  # fmt: skip
    draft_max: Annotated[
        int | None,
        option("--draft-max", "--draft-n", panel=DRAFT, min=1, max=256, metavar="N",
               help="A fixed draft length; by default it follows measured costs and acceptance, and "
               "nothing is drafted where that does not pay."),
    ] = None  # fmt: skip
    draft_min: Annotated[
        int,
        option("--draft-min", "--draft-n-min", panel=DRAFT, min=0, max=256, metavar="N",
               help="Drafts shorter than this are not verified."),
    ] = Drafting.draft_min  # fmt: skip
    draft_p_min: Annotated[
        float,
        option("--draft-p-min", panel=DRAFT, min=0.0, max=1.0, metavar="P",
               help="Stop drafting where the drafter's likeliest token is less likely than this."),
    ] = Drafting.p_min  # fmt: skip
    draft_translate: Annotated[
        bool,
        option("--draft-translate", panel=DRAFT,
               help="Any GGUF may be the drafter: where its vocabulary is another one, its text is tokenised "
               "anew for the target. Lossless; it drafts greedily, and fewer drafts are accepted than with a "
               "vocabulary in common."),
    ] = Drafting.translate  # fmt: skip
    lookup_max: Annotated[
        int,
        option("--lookup-ngram-max", panel=DRAFT, min=1, max=64, metavar="N",
               help="Longest run of last tokens that lookup searches for."),
    ] = Drafting.ngram_max  # fmt: skip
    lookup_min: Annotated[
        int,
        option("--lookup-ngram-min", panel=DRAFT, min=1, max=64, metavar="N",
               help="Shortest run of last tokens that lookup searches for."),
    ] = Drafting.ngram_min  # fmt: skip
    lookup_corpus: Annotated[
        list[Path] | None,
        option("--lookup-corpus", panel=DRAFT, metavar="FILE",
               help="A text to draft from, such as source files or a document; repeatable. Tokenised once "
               "and kept in the cache directory."),
    ] = None  # fmt: skip
    accept: Annotated[
        AcceptName,
        option("--accept", panel=DRAFT,
               help="block: block verification, lossless. token: token by token, lossless, accepts less. "
               "typical: LOSSY, keeps a drafted token when the target gives it at least "
               "--typical-threshold times its favourite's probability."),
    ] = AcceptName.block  # fmt: skip
    typical_threshold: Annotated[
        float,
        option("--typical-threshold", panel=DRAFT, min=0.0, max=1.0, metavar="P",
               help="For --accept typical; lower accepts more and strays further."),
    ] = Drafting.typical_threshold  # fmt: skip

    def drafting(self) -> Drafting:
        return Drafting(
            drafter=self.drafter,
            draft_max=self.draft_max,
            draft_min=self.draft_min,
            p_min=self.draft_p_min,
            translate=self.draft_translate,
            ngram_max=self.lookup_max,
            ngram_min=self.lookup_min,
            lookup_corpus=tuple(self.lookup_corpus or ()),
            accept=self.accept.value,
            typical_threshold=self.typical_threshold,
        )


@dataclass(frozen=True)
class SamplingOptions:
    """llama.cpp's samplers; the same ones draw the drafter's tokens."""

    temp: Annotated[
        float,
        option("--temp", "--temperature", panel=SAMPLING, min=0.0, max=100.0, metavar="T",
               help="Temperature; 0 always takes the likeliest token."),
    ] = SamplingParams.temperature  # fmt: skip
    top_k: Annotated[
        int,
        option("--top-k", panel=SAMPLING, min=0, max=LARGEST_INT, metavar="K",
               help="Keep the K likeliest; 0: all."),
    ] = SamplingParams.top_k  # fmt: skip
    top_p: Annotated[
        float,
        option("--top-p", panel=SAMPLING, min=0.0, max=1.0, metavar="P",
               help="Keep the likeliest that together reach P; 1: all."),
    ] = SamplingParams.top_p  # fmt: skip
    min_p: Annotated[
        float,
        option("--min-p", panel=SAMPLING, min=0.0, max=1.0, metavar="P",
               help="Drop what is less likely than P times the likeliest; 0: nothing."),
    ] = SamplingParams.min_p  # fmt: skip
    typical: Annotated[
        float,
        option("--typical", "--typical-p", panel=SAMPLING, min=0.0, max=1.0, metavar="P",
               help="Locally typical sampling; 1: off. (The lossy acceptance rule is --accept typical.)"),
    ] = SamplingParams.typical_p  # fmt: skip
    top_n_sigma: Annotated[
        float,
        option("--top-nsigma", "--top-n-sigma", panel=SAMPLING, metavar="N",
               help="Keep logits within N standard deviations of the largest; -1: off."),
    ] = SamplingParams.top_n_sigma  # fmt: skip
    xtc_probability: Annotated[
        float,
        option("--xtc-probability", panel=SAMPLING, min=0.0, max=1.0, metavar="P",
               help="Chance that the likeliest tokens above the XTC threshold are excluded; 0: off."),
    ] = SamplingParams.xtc_probability  # fmt: skip
    xtc_threshold: Annotated[
        float,
        option("--xtc-threshold", panel=SAMPLING, min=0.0, max=1.0, metavar="P",
               help="XTC's threshold; above 0.5: off."),
    ] = SamplingParams.xtc_threshold  # fmt: skip
    repeat_last_n: Annotated[
        int,
        option("--repeat-last-n", panel=SAMPLING, min=-1, max=LARGEST_INT, metavar="N",
               help="Tokens the penalties look back on; 0: none, -1: all."),
    ] = SamplingParams.repeat_last_n  # fmt: skip
    repeat_penalty: Annotated[
        float,
        option("--repeat-penalty", panel=SAMPLING, min=0.01, max=100.0, metavar="X",
               help="Penalty on repeated tokens; 1: off."),
    ] = SamplingParams.repeat_penalty  # fmt: skip
    presence_penalty: Annotated[
        float,
        option("--presence-penalty", panel=SAMPLING, min=-100.0, max=100.0, metavar="X", help="0: off."),
    ] = SamplingParams.presence_penalty
    frequency_penalty: Annotated[
        float,
        option("--frequency-penalty", panel=SAMPLING, min=-100.0, max=100.0, metavar="X", help="0: off."),
    ] = SamplingParams.frequency_penalty
    dry_multiplier: Annotated[
        float,
        option("--dry-multiplier", panel=SAMPLING, min=0.0, max=100.0, metavar="X",
               help="DRY repetition penalty; 0: off."),
    ] = SamplingParams.dry_multiplier  # fmt: skip
    dry_base: Annotated[
        float, option("--dry-base", panel=SAMPLING, min=0.0, max=100.0, metavar="X", help="DRY's base.")
    ] = SamplingParams.dry_base
    dry_allowed_length: Annotated[
        int,
        option("--dry-allowed-length", panel=SAMPLING, min=0, max=LARGEST_INT, metavar="N",
               help="Repetitions up to this length go unpunished."),
    ] = SamplingParams.dry_allowed_length  # fmt: skip
    dry_penalty_last_n: Annotated[
        int,
        option("--dry-penalty-last-n", panel=SAMPLING, min=-1, max=LARGEST_INT, metavar="N",
               help="Tokens DRY looks back on; 0: none, -1: all."),
    ] = SamplingParams.dry_penalty_last_n  # fmt: skip
    dry_sequence_breaker: Annotated[
        list[str] | None,
        option("--dry-sequence-breaker", panel=SAMPLING, metavar="TEXT",
               help="Text that ends a repetition; repeatable, replaces the defaults; none: no breakers."),
    ] = None  # fmt: skip
    samplers: Annotated[
        str,
        option("--samplers", panel=SAMPLING, metavar="NAMES",
               help="Samplers in their order, separated by ';'; those left out are off."),
    ] = ";".join(ORDER)  # fmt: skip
    mirostat: Annotated[
        int,
        option("--mirostat", panel=SAMPLING, min=0, max=2, hidden=True,
               help="Refused: it has no distribution per position to verify a draft against."),
    ] = 0  # fmt: skip
    seed: Annotated[
        int | None,
        option("--seed", "-s", panel=SAMPLING, min=-1, max=(1 << 63) - 1, metavar="N",
               help="Makes sampling repeatable, given --draft-max; by default (and at -1) a new one."),
    ] = None  # fmt: skip
    ignore_eos: Annotated[
        bool,
        option("--ignore-eos", panel=SAMPLING, help="Never let the model end the text by itself."),
    ] = False
    logit_bias: Annotated[
        list[str] | None,
        option("--logit-bias", "-l", panel=SAMPLING, metavar="ID(+/-)BIAS",
               help="Add to a token's logit, as in 15043+1; 15043-inf: never this token. Repeatable."),
    ] = None  # fmt: skip
    grammar: Annotated[
        str | None,
        option("--grammar", panel=SAMPLING, metavar="GBNF",
               help="Only text that this grammar allows, in llama.cpp's GBNF."),
    ] = None  # fmt: skip
    grammar_file: Annotated[
        Path | None,
        option("--grammar-file", panel=SAMPLING, metavar="FILE", help="The same, read from a file."),
    ] = None  # fmt: skip
    json_schema: Annotated[
        str | None,
        option("--json-schema", "-j", panel=SAMPLING, metavar="JSON",
               help="Only JSON that this schema allows; {}: any object."),
    ] = None  # fmt: skip
    json_schema_file: Annotated[
        Path | None,
        option("--json-schema-file", "-jf", panel=SAMPLING, metavar="FILE",
               help="The same, read from a file."),
    ] = None  # fmt: skip

    def sampling(self) -> SamplingParams:
        """Raises UsageError for values that cannot be used and files that cannot be read."""
        samplers = ("mirostat",) if self.mirostat else tuple(n for n in self.samplers.split(";") if n)
        breakers = SamplingParams.dry_sequence_breakers
        if self.dry_sequence_breaker:
            given = (sound(b, "the text of --dry-sequence-breaker") for b in self.dry_sequence_breaker)
            breakers = tuple(b for b in given if b != "none")
        return SamplingParams(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical,
            top_n_sigma=self.top_n_sigma,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            repeat_last_n=self.repeat_last_n,
            repeat_penalty=self.repeat_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            dry_penalty_last_n=self.dry_penalty_last_n,
            dry_sequence_breakers=breakers,
            samplers=samplers,
            ignore_eos=self.ignore_eos,
            logit_bias=dict(map(token_bias, self.logit_bias or ())),
            grammar=self.grammar_text(),
        )

    def grammar_text(self) -> str:
        """The grammar in GBNF, wherever it comes from; '' for none. Raises UsageError for more than one."""
        return grammar_text(self.grammar, self.grammar_file, self.json_schema, self.json_schema_file)


@dataclass(frozen=True)
class PromptOptions:
    """What is to be answered or continued, and when to end."""

    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The prompt.", show_default=False)
    ] = None
    prompt: Annotated[
        str | None,
        option("-p", "--prompt", once=True, metavar="TEXT", help="The prompt, as llama.cpp takes it."),
    ] = None
    file: Annotated[
        Path | None,
        option("-f", "--file", once=True, metavar="FILE", help="Read the prompt from a file; -: stdin."),
    ] = None
    max_tokens: Annotated[
        int,
        typer.Option("-n", "--max-tokens", "--predict", "--n-predict", metavar="N", min=-1, max=1 << 31,
                     help="The most tokens to write; -1: until the model stops or the context is full."),
    ] = -1  # fmt: skip
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", "-r", "--reverse-prompt", metavar="TEXT",
                     help="End before this text; repeatable."),
    ] = None  # fmt: skip
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Continue the prompt as it stands, without the model's chat template."),
    ] = False
    system: Annotated[
        str | None,
        option("--system", "-sys", "--system-prompt", metavar="TEXT",
               help="System message: an instruction before the prompt."),
    ] = None  # fmt: skip
    messages: Annotated[
        Path | None,
        option("--messages", once=True, metavar="FILE",
               help='Answer a conversation: JSON, a list of {"role": …, "content": …}; -: stdin.'),
    ] = None  # fmt: skip
    jsonl: Annotated[
        bool,
        option("--jsonl", once=True,
               help="Read requests, a JSON object a line, from stdin or -f; write a result a line."),
    ] = False  # fmt: skip

    def __post_init__(self) -> None:
        if self.max_tokens == 0:
            raise UsageError("-n 0 asks for no text; use at least 1, or -1 for no limit")


@dataclass(frozen=True)
class OutputOptions:
    """What is shown."""

    color: Annotated[
        bool, option("--color", panel=OUTPUT, help="Show the tokens that came from the drafter in green.")
    ] = False
    quiet: Annotated[
        bool, option("--quiet", "-q", panel=OUTPUT, help="No progress, no status bar, no summary.")
    ] = False
    verbose: Annotated[
        bool, option("--verbose", "-v", panel=OUTPUT, help="Show llama.cpp's log on stderr.")
    ] = False


@dataclass(frozen=True)
class ResultOptions:
    """What a program gets of a generation, and where."""

    json_: Annotated[
        bool, option("--json", panel=OUTPUT, help="Print one JSON object with text, tokens and statistics.")
    ] = False
    stream_json: Annotated[
        bool,
        option("--stream-json", panel=OUTPUT, help="Print one JSON object a round, and the result last."),
    ] = False  # fmt: skip
    logprobs: Annotated[
        int,
        option("--logprobs", "--n-probs", panel=OUTPUT, min=0, max=1000, metavar="N",
               help="In JSON: each token's log-probability, and those of the N likeliest; 0: none."),
    ] = 0  # fmt: skip
    output: Annotated[
        Path | None,
        option("--output", "-o", panel=OUTPUT, once=True, metavar="FILE",
               help="Write to a file, whole or not at all, instead of to stdout."),
    ] = None  # fmt: skip


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the flags of these dataclasses and calls it with one instance of each.

    The command gets --show-settings too; what no flag sets is looked up as ``defaults`` describes.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(_parameters(groups))

        @functools.wraps(command)
        def call(ctx: typer.Context, show_settings: bool, **values: Any) -> None:
            if show_settings:
                show(ctx)
                return
            command(*(group(**{f.name: values[f.name] for f in fields(group)}) for group in groups))

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by Typer
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        return call

    return decorate


def _parameters(groups: Iterable[type]) -> Iterator[inspect.Parameter]:
    """What Typer is to pass to a command: its context, the groups' fields, --show-settings."""
    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    yield keyword("ctx", annotation=typer.Context)
    for group in groups:
        hints = get_type_hints(group, include_extras=True)
        for f in fields(group):
            default = inspect.Parameter.empty if f.default is MISSING else f.default
            yield keyword(f.name, default=default, annotation=hints[f.name])
    yield keyword("show_settings", default=False, annotation=ShowSettings)
