"""Conversations: only what is new is read, whatever happened to the messages; turns are dropped whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from specdec import Drafting, Engine, Loading, SamplingParams, UsageError
from specdec.decoder import Decoder
from specdec.errors import ContextFullError
from specdec.session import Session

GREEDY = SamplingParams(temperature=0.0)
TOKENIZERS = ("spm", "bpe")
STRIPPING = tiny.CHATML.replace("message['content']", "message['content'].strip()")
THINKING = (
    tiny.CHATML.replace("message['content']", "message['content'].split('</think>')[-1].lstrip()").replace(
        "assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif"
    )
)  # fmt: skip


@pytest.fixture(params=TOKENIZERS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with pair(tmp_path, tokenizer=request.param) as engine:
        yield engine


def pair(path: Path, *, n_ctx: int = 2048, template: str = tiny.CHATML, tokenizer: str = "bpe") -> Engine:
    target, draft = (
        tiny.llama(
            path / f"{name}.gguf", noise=noise, tokenizer=tokenizer, n_vocab=768, chat_template=template,
            add_bos=False, dtype="q8_0", n_ctx_train=4096,
        )
        for name, noise in (("target", 0.0), ("draft", 0.1))
    )  # fmt: skip
    return Engine(target, draft, loading=Loading(n_ctx=n_ctx, threads=1))


def drafterless(engine: Engine) -> Decoder:
    engine.redraft(Drafting(drafter="none"))
    return engine.decoder(GREEDY, 1)


class Counted:
    """A session that knows how many tokens each answer made the target read."""

    def __init__(self, engine: Engine, decoder: Decoder, **settings: object) -> None:
        self.session = Session(engine, **settings)  # type: ignore[arg-type]
        self.decoder = decoder
        self.engine = engine

    def answer(self, n: int = 12, take: int | None = None) -> tuple[int, int]:
        """(tokens read, tokens written); take: break off after that many steps."""
        before = self.engine.target.tokens_fed
        steps = self.session.answer(self.decoder, n)
        written = sum(len(step.tokens) for step in itertools.islice(steps, take))
        return self.engine.target.tokens_fed - before, written

    def turn(self, text: str, n: int = 12, take: int | None = None) -> tuple[int, int]:
        self.session.ask(text)
        return self.answer(n, take)


def n_tokens(engine: Engine, text: str) -> int:
    return len(engine.target.model.vocab.tokenize_more(text))


def frame(text: str) -> str:
    """What a turn adds to the text besides the answers."""
    return f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_ten_turns_read_only_what_is_new(engine: Engine) -> None:
    chat = Counted(engine, drafterless(engine))
    chat.session.system = "be it the and of"
    for turn in range(10):
        text = f"the {turn} and of this"
        read, written = chat.turn(text)
        assert written == 12
        if turn:
            # The last token of an answer is read with what follows it; so is the last of this one, next time.
            assert read == 1 + n_tokens(engine, frame(text)) - 1 + written
    assert len(engine.target) == sum(len(p.tokens) for p in chat.session._passages) + 12 - 1


def test_undo_retry_an_edit_and_a_new_system_prompt(engine: Engine) -> None:
    """Each reads from where the texts part, and not before."""
    chat = Counted(engine, drafterless(engine))
    session = chat.session
    session.system = "be it the and of"
    for turn in range(4):
        chat.turn(f"the {turn} and of this")
    held = len(engine.target)

    del session.messages[-1]  # retry: nothing but the last token of the prompt is read again
    answer = list(session.answer(chat.decoder, 12))
    assert sum(len(step.tokens) for step in answer) == 12
    assert len(engine.target) == held
    del session.messages[-1]
    assert chat.answer() == (12, 12)

    assert session.undo() == "the 3 and of this"
    assert [m["role"] for m in session.messages] == ["system"] + ["user", "assistant"] * 3
    read, written = chat.turn("the 3 had and from")
    assert written <= read <= n_tokens(engine, frame("the 3 had and from")) + written
    read, written = chat.turn("and so on")
    assert read == n_tokens(engine, frame("and so on")) + written

    session.system = "be it the and from had"
    read, written = chat.turn("the the")
    whole = len(engine.target) + 1 - written
    common = n_tokens(engine, "<|im_start|>system\nbe it the and")
    assert whole - common - 3 <= read - written <= whole - common + 3
    read, written = chat.turn("and of")
    assert read == n_tokens(engine, frame("and of")) + written


def test_an_interrupted_answer_is_kept_and_goes_on_from_the_caches(engine: Engine) -> None:
    chat = Counted(engine, drafterless(engine))
    chat.turn("the and of")
    _, written = chat.turn("and then", n=50, take=7)
    assert written == 7
    assert chat.session.messages[-1]["role"] == "assistant"
    read, written = chat.turn("go on")
    assert read == n_tokens(engine, frame("go on")) + written


def test_the_drafter_too_reads_only_what_is_new(tmp_path: Path) -> None:
    with pair(tmp_path) as engine:
        engine.redraft(Drafting(draft_max=8), tmp_path / "draft.gguf")
        decoder = engine.decoder(GREEDY, 1)
        chat = Counted(engine, decoder)
        assert engine.draft is not None
        for turn in range(10):
            drafted, fed = decoder.stats.drafted, engine.draft.tokens_fed
            text = f"the {turn} and of this"
            _, written = chat.turn(text, 24)
            drafted, fed = decoder.stats.drafted - drafted, engine.draft.tokens_fed - fed
            if turn:
                assert fed <= n_tokens(engine, frame(text)) + written + drafted + 2, turn
        assert decoder.stats.accepted > 20


@pytest.mark.parametrize("template", [STRIPPING, THINKING])
def test_a_template_that_changes_earlier_answers_is_followed(tmp_path: Path, template: str) -> None:
    """The text is always what the template says, and reading resumes where it parts from the cache."""
    with pair(tmp_path, template=template) as engine:
        chat = Counted(engine, drafterless(engine))
        for turn in range(3):
            chat.turn(f"the {turn}")
            prompt = engine.template.render(chat.session.messages[:-1])
            tokens = [t for p in chat.session._passages for t in p.tokens.tolist()]
            assert (
                b"".join(engine.target.model.vocab.spelled(t) for t in tokens).decode("utf-8", "replace")
                == prompt
            )
        assert chat.session.messages[1]["content"].startswith("<think>\n") == (template is THINKING)


def test_the_oldest_turns_are_dropped_whole_and_the_conversation_goes_on(tmp_path: Path) -> None:
    forgotten: list[list[dict[str, str]]] = []
    with pair(tmp_path, n_ctx=200) as engine:
        chat = Counted(engine, drafterless(engine), on_forget=forgotten.append)
        session = chat.session
        session.system = "be it"
        for turn in range(12):
            session.ask(f"{turn} and of this")
            steps = list(session.answer(chat.decoder, 20))
            assert sum(len(step.tokens) for step in steps) == 20
            assert steps[-1].finish_reason == "length"
            assert len(engine.target) < 200
        dropped = [m for messages in forgotten for m in messages]
        assert [m["role"] for m in dropped] == ["user", "assistant"] * (len(dropped) // 2)
        assert dropped == session.messages[1 : 1 + session.forgotten]
        assert 8 <= len(dropped) <= 22
        assert len(session.messages) == 1 + 24
        shown = engine.template.render([session.messages[0], *session.messages[1 + session.forgotten :]])
        assert shown.startswith("<|im_start|>system\nbe it<|im_end|>\n<|im_start|>user\n")
        while session.undo():
            pass
        assert (session.forgotten, session.messages) == (0, [{"role": "system", "content": "be it"}])


def test_a_context_that_fills_up_in_an_answer_makes_room_and_the_answer_goes_on(tmp_path: Path) -> None:
    forgotten: list[list[dict[str, str]]] = []
    with pair(tmp_path, n_ctx=160) as engine:
        for drafting in (Drafting(drafter="none"), Drafting()):
            engine.redraft(drafting, tmp_path / "draft.gguf" if drafting.drafter is None else None)
            session = Session(engine, on_forget=forgotten.append)
            decoder = engine.decoder(GREEDY, 1)
            for turn in range(3):
                session.ask(f"the {turn}")
                list(session.answer(decoder, 10))
            del forgotten[:]
            session.ask("and on")
            steps = list(session.answer(decoder, 90))
            assert sum(len(step.tokens) for step in steps) == 90
            assert steps[-1].finish_reason == "length"
            dropped = [m for messages in forgotten for m in messages]
            assert dropped == session.messages[: len(dropped)]
            assert [m["role"] for m in dropped] == ["user", "assistant"] * (len(dropped) // 2)
            assert session.forgotten == len(dropped) > 0
            assert session.messages[-1]["content"] == "".join(step.text for step in steps)
            assert session.messages[-2]["content"] == "and on"
            # The next turn, too, finds this answer in the cache.
            before = engine.target.tokens_fed
            session.ask("go")
            room = session.forgotten
            next(session.answer(decoder, 2))
            if session.forgotten == room:
                assert engine.target.tokens_fed - before <= n_tokens(engine, frame("go")) + 12


def test_one_turn_that_fills_the_context_ends(tmp_path: Path) -> None:
    with pair(tmp_path, n_ctx=64) as engine:
        session = Session(engine)
        session.ask("the and of")
        steps = list(session.answer(drafterless(engine)))
        assert steps[-1].finish_reason == "context"
        session.ask("the and of " * 40)
        with pytest.raises(UsageError, match=r"the prompt has .* tokens and the context holds 64"):
            list(session.answer(engine.decoder(GREEDY, 1)))
        assert session.forgotten == 0
        assert session.undo() == "the and of " * 40


def test_stop_refuses_in_place_of_forgetting(tmp_path: Path) -> None:
    with pair(tmp_path, n_ctx=96) as engine:
        session = Session(engine, context_full="stop")
        decoder = drafterless(engine)
        session.ask("the and of")
        assert list(session.answer(decoder))[-1].finish_reason == "context"
        session.ask("and")
        with pytest.raises(ContextFullError, match="the context holds 96: take turns back"):
            session.answer(decoder)
        session.undo()
        session.undo()
        session.ask("and")
        assert next(session.answer(decoder, 3)).tokens


def test_a_stop_string_cuts_the_answer_and_the_next_turn_agrees(tmp_path: Path) -> None:
    with pair(tmp_path) as engine:
        decoder = drafterless(engine)
        session = Session(engine)
        session.ask("the and of")
        text = "".join(step.text for step in session.answer(decoder, 20))
        session.reset()
        session.ask("the and of")
        stop = text[5:8]
        cut = "".join(step.text for step in session.answer(decoder, 20, stop=[stop]))
        assert cut == text[: text.index(stop)]
        assert session.last_answer == cut
        session.ask("go")
        list(session.answer(decoder, 4))
        prompt = engine.template.render(session.messages[:-1])
        tokens = [t for p in session._passages for t in p.tokens.tolist()]
        assert (
            b"".join(engine.target.model.vocab.spelled(t) for t in tokens).decode("utf-8", "replace")
            == prompt
        )


def test_nothing_to_answer(tmp_path: Path) -> None:
    with pair(tmp_path) as engine:
        session = Session(engine)
        assert (session.undo(), session.last_answer, session.system) == (None, None, "")
        with pytest.raises(UsageError, match="no message to answer"):
            session.answer(engine.decoder(GREEDY, 1))
        session.system = "a"
        session.system = "b"
        session.ask("c")
        session.reset()
        assert session.messages == [{"role": "system", "content": "b"}]
        session.system = ""
        assert session.messages == []
