"""A folder of models, ranked as drafters, and what is remembered of their headers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiny
import tiny_architectures

from specdec import catalogue
from specdec.catalogue import Ranking, rank
from specdec.errors import UsageError
from specdec.gguf_file import GGUFFile


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.llama(tmp_path / "target.gguf", n_layer=4, n_embd=256, n_ff=1024)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two that can draft, one with another vocabulary, and four that are no drafters."""
    folder = tmp_path / "models"
    (folder / "owner" / "repo").mkdir(parents=True)
    tiny.llama(folder / "large.gguf", n_layer=3, n_embd=256, n_ff=1024)
    tiny.llama(folder / "owner" / "repo" / "small.gguf")
    tiny.llama(folder / "foreign.gguf", tokenizer="bpe", n_vocab=768)
    tiny.clip(folder / "mmproj.gguf")
    tiny.bert(folder / "bert.gguf")
    (folder / "broken.gguf").write_bytes((folder / "large.gguf").read_bytes()[:4000])
    (folder / "page.gguf").write_text("<!doctype html>")
    (folder / "notes.txt").write_text("no model")
    return folder


def names(ranking: Ranking) -> list[str]:
    return [c.path.name for c in ranking.candidates]


def reasons(ranking: Ranking) -> dict[str, str]:
    return {u.path.name: u.reason for u in ranking.unsuitable}


def test_the_most_promising_first_and_foreign_ones_last(target: Path, folder: Path, tmp_path: Path) -> None:
    found = rank(target, folder, tmp_path / "cache")
    assert names(found) == ["small.gguf", "large.gguf", "foreign.gguf"]
    small, large, foreign = found.candidates
    assert small.prediction.speedup > 2
    assert not large.prediction.pays
    assert [candidate.foreign for candidate in found.candidates] == [False, False, True]
    assert foreign.prediction.acceptance == pytest.approx(small.prediction.acceptance - 0.2, abs=0.15)
    assert foreign.vocabularies.reason is not None
    assert foreign.vocabularies.reason.startswith(
        "its tokenizer is of kind 'gpt2', the target's of kind 'llama'"
    )
    assert reasons(found) == {
        "bert.gguf": "this is an embedding model (bert)",
        "broken.gguf": reasons(found)["broken.gguf"],
        "mmproj.gguf": "this is the vision or audio part (mmproj) of a model, not a language model",
        "page.gguf": reasons(found)["page.gguf"],
    }
    assert "the download is probably incomplete" in reasons(found)["broken.gguf"]
    assert reasons(found)["page.gguf"].startswith("not a GGUF file: it is a web page")


def test_the_second_time_no_file_is_read(
    target: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rank(target, folder, tmp_path / "cache")
    monkeypatch.setattr(GGUFFile, "read", lambda path: pytest.fail(f"{path} was read"))
    assert rank(target, folder, tmp_path / "cache") == first


def test_a_file_that_changed_is_read_again(target: Path, folder: Path, tmp_path: Path) -> None:
    rank(target, folder, tmp_path / "cache")
    tiny.llama(folder / "large.gguf", n_embd=64)
    os.utime(folder / "large.gguf", ns=(1, 1))
    found = rank(target, folder, tmp_path / "cache")
    large = next(c for c in found.candidates if c.path.name == "large.gguf")
    assert large.prediction is not None
    assert large.prediction.pays


def remembered(cache: Path) -> dict[str, dict[str, object]]:
    (file,) = (cache / "catalogue").glob("*.json")
    known: dict[str, dict[str, object]] = json.loads(file.read_bytes().partition(b"\n")[2])
    return known


def test_what_has_vanished_is_forgotten(target: Path, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    rank(target, folder, cache)
    assert len(remembered(cache)["files"]) == 8
    (folder / "large.gguf").unlink()
    found = rank(target, folder, cache)
    assert names(found) == ["small.gguf", "foreign.gguf"]
    assert str(folder / "large.gguf") not in remembered(cache)["files"]
    assert len(remembered(cache)["files"]) == 7


@pytest.mark.parametrize(
    "damage",
    [
        lambda known: b"",
        lambda known: known[: len(known) // 2],
        lambda known: known.replace(b'"dense": ', b'"dense": 9'),
        lambda known: b"\xff" * 1000,
        lambda known: catalogue._checksum(b"[]") + b"\n[]",
        lambda known: catalogue._checksum(b'{"format": 0}') + b'\n{"format": 0}',
    ],
    ids=["empty", "half", "altered", "no text", "another kind", "another format"],
)
def test_a_broken_memory_is_made_anew(damage: object, target: Path, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = rank(target, folder, cache)
    (file,) = (cache / "catalogue").glob("*.json")
    sound = file.read_bytes()
    file.write_bytes(damage(sound))  # type: ignore[operator]
    assert rank(target, folder, cache) == first
    assert file.read_bytes() == sound


def test_a_cache_that_cannot_be_written_only_costs_time(target: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where a directory should be")
    assert names(rank(target, folder, tmp_path / "cache"))[0] == "small.gguf"


def test_runs_at_the_same_time_agree(target: Path, folder: Path, tmp_path: Path) -> None:
    found: list[Ranking] = []
    runs = [
        threading.Thread(target=lambda: found.append(rank(target, folder, tmp_path / "cache")))
        for _ in range(4)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(found) == 4
    assert all(one == found[0] for one in found)
    assert [p.suffix for p in (tmp_path / "cache" / "catalogue").iterdir()] == [".json"]


def test_a_split_model_counts_once_and_changes_with_any_part(target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    first = tiny.llama(folder / "split.gguf", split=8)
    found = rank(target, folder, tmp_path / "cache")
    assert names(found) == [first.name]
    assert found.candidates[0].facts.size == sum(p.stat().st_size for p in folder.iterdir())
    max(folder.iterdir()).unlink()
    found = rank(target, folder, tmp_path / "cache")
    assert names(found) == []
    assert "of this split model missing" in reasons(found)[first.name]


def test_links_hidden_folders_and_the_target_itself(target: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "again.gguf").symlink_to(folder / "large.gguf")
    (folder / "target.gguf").symlink_to(target)
    (folder / "nowhere.gguf").symlink_to(folder / "gone")
    (folder / ".hidden").mkdir()
    tiny.llama(folder / ".hidden" / "hidden.gguf")
    found = rank(target, folder, tmp_path / "cache")
    assert sorted(names(found)) == ["again.gguf", "foreign.gguf", "small.gguf"]
    assert reasons(found)["target.gguf"] == "this is the target itself"
    assert reasons(found)["nowhere.gguf"].startswith("no such file")


def test_a_vocabulary_is_compared_once_for_all_that_have_it(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for seed in range(5):
        tiny.llama(folder / f"{seed}.gguf", seed=seed)
    compared = []
    monkeypatch.setattr(
        catalogue, "compared", lambda *pair: compared.append(pair) or catalogue.Vocabularies(512)
    )
    assert len(rank(target, folder, tmp_path / "cache").candidates) == 5
    assert len(compared) == 1


def test_a_target_or_folder_that_is_none(target: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mmproj.gguf: this is the vision or audio part"):
        rank(folder / "mmproj.gguf", folder, tmp_path / "cache")
    with pytest.raises(UsageError, match=r"--drafts .*none: no such folder"):
        rank(target, tmp_path / "none", tmp_path / "cache")
    with pytest.raises(UsageError, match=r"--drafts .*notes.txt: this is no folder"):
        rank(target, folder / "notes.txt", tmp_path / "cache")


def test_experts_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    facts = catalogue.ModelFacts.of(
        GGUFFile.read(tiny_architectures.write("qwen3moe", tmp_path / "moe.gguf"))
    )
    experts = 2 * 3 * 4 * 48 * 64 * 4  # layers, matrices, experts, their size, F32
    assert (facts.experts, facts.used) == (experts, 0.5)
    assert facts.bytes_read() == facts.dense + experts / 2
    assert facts.bytes_read(3) == facts.dense + experts * (1 - 0.5**3)
    embedding = 512 * 64 * 4
    assert facts.dense + facts.experts == facts.shape.weights - embedding


def test_llama_cpp_is_not_loaded_for_it(target: Path, folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from specdec.catalogue import rank;"
        f"rank(Path({str(target)!r}), Path({str(folder)!r}), Path({str(tmp_path / 'cache')!r}));"
        "print(sorted({'llama_cpp', 'gguf', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
