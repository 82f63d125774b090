"""Reasoning told apart from the answer, however the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec.reasoning import ReasoningStream, Span, opens_reasoning, without_reasoning

FRAGMENTS = [
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<",
    "</",
    "th",
    "ink>",
    "[",
    "/",
    " ",
    "\n",
    "a",
    "ä",
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join) | st.text(max_size=20)


def split(pieces: list[str], open: bool = False) -> list[Span]:
    """The spans of a stream of pieces, with neighbours of one kind joined."""
    stream = ReasoningStream(open)
    spans = [span for piece in pieces for span in stream.feed(piece)] + stream.finish()
    assert all(span.text for span in spans)
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].reasoning == span.reasoning:
            joined[-1] = Span(joined[-1].text + span.text, span.reasoning)
        else:
            joined.append(span)
    return joined


@pytest.mark.parametrize(
    ("text", "open", "reasoning", "answer"),
    [
        ("", False, "", ""),
        ("an answer", False, "", "an answer"),
        ("<think>why</think>answer", False, "<think>why</think>", "answer"),
        ("\n<think>\nwhy\n</think>\n\nan answer\n", False, "\n<think>\nwhy\n</think>\n\n", "an answer\n"),
        ("[THINK]why[/THINK] answer", False, "[THINK]why[/THINK] ", "answer"),
        ("<think></think>", False, "<think></think>", ""),
        ("<think>unfinished </thin", False, "<think>unfinished </thin", ""),
        ("<think>a [/THINK] b</think>c", False, "<think>a [/THINK] b</think>", "c"),
        ("why</think>answer", True, "why</think>", "answer"),
        ("why[/THINK]answer", True, "why[/THINK]", "answer"),
        ("never closed", True, "never closed", ""),
        ("</think>\nanswer", True, "</think>\n", "answer"),
        ("<think>again</think>answer", True, "<think>again</think>", "answer"),
        # An answer that talks about the tags, or nearly has one.
        ("The tag <think>x</think> is …", False, "", "The tag <think>x</think> is …"),
        ("<think>a</think>Use <think>b</think>", False, "<think>a</think>", "Use <think>b</think>"),
        ("<think>a</think> <think>b</think>", False, "<think>a</think> ", "<think>b</think>"),
        ("<thinking>x</thinking>", False, "", "<thinking>x</thinking>"),
        ("</think>x", False, "", "</think>x"),
        ("  <thin", False, "", "  <thin"),
        ("  spaces first", False, "", "  spaces first"),
        (" \n", False, "", " \n"),
    ],
)
def test_the_block_at_the_beginning(text: str, open: bool, reasoning: str, answer: str) -> None:
    expected = [Span(reasoning, True)] * bool(reasoning) + [Span(answer, False)] * bool(answer)
    assert split([text], open) == expected
    assert split(list(text), open) == expected
    assert without_reasoning(text, open) == answer


@settings(deadline=None)
@given(text=TEXTS, open=st.booleans(), cuts=st.lists(st.integers(0, 40), max_size=8))
@example(text="<think>a</think>b", open=False, cuts=[3, 6, 8, 11, 16])
def test_pieces_make_no_difference(text: str, open: bool, cuts: list[int]) -> None:
    at = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(at)]
    spans = split(pieces, open)
    assert "".join(span.text for span in spans) == text
    assert spans == split([text], open)
    assert [span.reasoning for span in spans] in ([], [True], [False], [True, False])
    assert without_reasoning(text, open) == "".join(span.text for span in spans if not span.reasoning)


@settings(deadline=None)
@given(thought=st.text(max_size=20), answer=st.text(max_size=20))
def test_what_is_in_the_block_is_not_in_the_answer(thought: str, answer: str) -> None:
    if "</think>" not in thought:
        assert without_reasoning(f"<think>{thought}</think>{answer}") == answer.lstrip()


def test_only_what_may_become_a_tag_is_held_back() -> None:
    stream = ReasoningStream()
    assert stream.feed(" <th") == []
    assert stream.feed("ink>so") == [Span(" <think>so", True)]
    assert stream.feed(" a < b </") == [Span(" a < b ", True)]
    assert stream.feed("b") == [Span("</b", True)]
    assert stream.feed("</think>\n") == [Span("</think>", True), Span("\n", True)]
    assert stream.feed("<") == [Span("<", False)]
    assert stream.finish() == []


def test_an_answer_is_not_held_back() -> None:
    stream = ReasoningStream()
    assert stream.feed("<t") == []
    assert stream.feed("able>") == [Span("<table>", False)]
    assert stream.feed("<think>") == [Span("<think>", False)]
    assert stream.finish() == []


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("[INST]x[/INST][THINK]", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_whether_the_prompt_opens_a_block(prompt: str, opens: bool) -> None:
    assert opens_reasoning(prompt) == opens
