"""What a pair has taught: written down whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdec.experience import FIRST_BALANCE, Experience, place


def taught(path: Path | None = None) -> Experience:
    e = Experience(0.1, {"model": 0.01}, path)
    for n, seconds in ((1, 0.11), (8, 0.25), (8, 0.26)):
        e.target.note(n, 0, seconds)
    for _ in range(5):
        e.drafter("model").note(1, 0, 0.02)
        e.acceptance("suffix").learn(0.5, True)
    e.balance = 7.5
    return e


def test_it_is_kept_and_recalled(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pair.json"
    e = taught(path)
    path.parent.mkdir()
    (path.parent / "pair.json.1-a.partial").touch()  # of a run that was killed
    e.keep()
    again = Experience(0.3, {"model": 0.03}, path)
    assert again.balance == 7.5
    assert again.target(8) == pytest.approx(e.target(8), rel=0.05)
    assert again.drafter("model")(1) == pytest.approx(0.02, rel=0.05)
    assert again.acceptance("suffix").chance(0.5) == pytest.approx(
        e.acceptance("suffix").chance(0.5), abs=0.1
    )
    assert [f.name for f in path.parent.iterdir()] == ["pair.json"]
    assert path.stat().st_size < 4000


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "null",
        lambda text: json.dumps({**json.loads(text), "version": 0}),
        lambda text: json.dumps({**json.loads(text), "target": {"0:1": "x"}}),
        lambda text: json.dumps({**json.loads(text), "acceptance": {"suffix": [[2.0, 9.0]] * 14}}),
        lambda text: json.dumps({**json.loads(text), "balance": None}),
    ],
)
def test_a_broken_file_says_nothing(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "pair.json"
    taught(path).keep()
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    e = Experience(0.3, {"model": 0.03}, path)
    assert (e.balance, e.target(1), e.drafter("model")(1)) == pytest.approx((FIRST_BALANCE, 0.3, 0.03))
    taught(path).keep()
    assert Experience(0.3, {}, path).balance == 7.5


def test_where_nothing_was_learnt_or_nothing_can_be_written_nothing_happens(tmp_path: Path) -> None:
    Experience(0.1, {}, tmp_path / "pair.json").keep()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    taught(tmp_path / "file" / "pair.json").keep()
    taught().keep()


def test_each_pair_has_a_place_of_its_own(tmp_path: Path) -> None:
    names = [place(tmp_path, *what) for what in (("a", 2), ("a", 3), ("b", 2), ("a", 2))]
    assert len(set(names)) == 3
    assert names[0] == names[3]


def test_figures_for_the_result() -> None:
    assert taught().as_dict() == {
        "target_ms": {"1": 100.0, "2": pytest.approx(144, abs=15), "4": pytest.approx(185, abs=20),
                      "8": pytest.approx(250, abs=20), "16": pytest.approx(337, abs=25)},
        "drafter_ms": {"model": pytest.approx(20.0, abs=1)},
    }  # fmt: skip
