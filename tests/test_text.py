"""Text is never cut inside a character, and a stop string never shows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.text import TextStream


def pieces_of(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(c % (len(raw) + 1) for c in cuts)})
    return [raw[a:b] for a, b in pairwise(edges)]


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_any_text_cut_anywhere_arrives_whole(text: str, cuts: list[int]) -> None:
    raw = text.encode()
    stream = TextStream()
    shown = [stream.feed(piece) for piece in pieces_of(raw, cuts)]
    assert "\ufffd" not in "".join(shown) or "\ufffd" in text
    assert "".join(shown) + stream.finish() == text


def test_a_character_waits_for_its_last_byte() -> None:
    stream = TextStream()
    raw = "é😀あ".encode()
    assert [stream.feed(raw[i : i + 1]) for i in range(len(raw))] == ["", "é", "", "", "", "😀", "", "", "あ"]
    assert stream.finish() == ""


def test_bytes_that_are_no_character_become_a_mark() -> None:
    stream = TextStream()
    assert stream.feed(b"a\xffb\xe3\x81") == "a\ufffdb"
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize("stop", [["END"], ["never", "END"], ["END", "ENDING"], ["\n\nEND", "END"]])
def test_a_stop_string_across_pieces_is_not_shown(stop: list[str]) -> None:
    stream = TextStream(stop)
    shown = [stream.feed(p) for p in (b"one E", b"N", b"ough E", b"N", b"DING more")]
    assert "".join(shown) == "one ENough "
    assert shown[0] == "one "  # held back: it might have been the stop string
    assert stream.stopped
    assert stream.feed(b"after") == ""
    assert stream.finish() == ""


def test_what_was_held_back_is_shown_at_the_end() -> None:
    stream = TextStream(["<|end|>"])
    assert stream.feed(b"text <|en") == "text "
    assert stream.finish() == "<|en"
    assert not stream.stopped


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_the_text_ends_where_a_stop_string_begins(text: str, stop: list[str], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, 30)))
    stream = TextStream(stop)
    shown = ""
    for piece in pieces_of(text.encode(), cuts):
        shown += stream.feed(piece)
        assert not any(s in shown for s in stop)
    shown += stream.finish()
    assert text.startswith(shown)
    assert not any(s in shown for s in stop)
    assert stream.stopped == any(s in text for s in stop)
    if not stream.stopped:
        assert shown == text


def test_empty_stop_strings_are_ignored() -> None:
    stream = TextStream([""])
    assert stream.feed(b"abc") == "abc"
    assert not stream.stopped
