"""specdec check: what it says of a pair and of a folder, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_architectures
from test_architectures import STRATEGIES

from specdec.gguf_file import GGUFFile
from specdec.model_facts import ModelFacts
from specdec.pair import Pair, judge, strategy
from specdec.prediction import Prediction, predict
from specdec.room import Device, Room
from specdec.settings import LONGEST_DRAFT, Loading

SPECDEC = Path(sys.executable).with_name("specdec")
ROOMY = Room(available=8 * 10**9, total=16 * 10**9)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target; drafters that are right, foreign, short of context and as large as the target."""
    folder = tmp_path_factory.mktemp("check")
    large = dict(n_layer=4, n_embd=256, n_ff=1024, n_ctx_train=8192)
    tiny.llama(folder / "target.gguf", **large, chat_template=tiny.CHATML)  # type: ignore[arg-type]
    tiny.llama(folder / "small.gguf", n_ctx_train=8192, chat_template=tiny.CHATML)
    tiny.llama(folder / "short.gguf", n_ctx_train=1024)
    tiny.llama(folder / "twin.gguf", **large, seed=1)  # type: ignore[arg-type]
    tiny.llama(folder / "foreign.gguf", tokenizer="bpe", n_vocab=768, n_ctx_train=8192)
    return folder


def run(home: Path, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LD_LIBRARY_PATH")}
    return subprocess.run(
        [SPECDEC, "check", *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={
            **kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"), "HF_HUB_OFFLINE": "1", **env,
        },
        timeout=60,
        check=False,
    )  # fmt: skip


def judged(target: Path, draft: Path | None, n_ctx: int = 4096, room: Room = ROOMY) -> Pair:
    files = GGUFFile.read(target), None if draft is None else GGUFFile.read(draft)
    return judge(*files, room, loading=Loading(n_ctx=n_ctx))


# The verdict.


def test_a_pair_that_is_right(files: Path) -> None:
    pair = judged(files / "target.gguf", files / "small.gguf")
    assert (pair.verdict, pair.findings) == ("right", ())
    assert pair.vocabularies is not None
    assert pair.vocabularies.shared == 512
    assert pair.rollback == ("cell removal", "cell removal")
    assert pair.prediction is not None
    assert pair.prediction.cost < 0.05
    assert pair.prediction.speedup > 2


def test_a_foreign_vocabulary_cannot(files: Path) -> None:
    pair = judged(files / "target.gguf", files / "foreign.gguf")
    assert (pair.verdict, pair.prediction) == ("cannot", None)
    (finding,) = pair.findings
    assert finding.refusal
    assert finding.what.startswith("vocabulary: its tokenizer is of kind 'gpt2'")
    assert "probabilities of different tokens" in finding.means
    assert "family and tokenizer" in finding.do


def test_a_context_that_fits_nowhere_cannot(files: Path) -> None:
    pair = judged(files / "target.gguf", None, room=Room(available=4_000_000, total=5_000_000))
    assert pair.verdict == "cannot"
    (finding,) = pair.findings
    assert "needs 10.0 MB of memory" in finding.what
    assert finding.do.startswith("lower it: -c ")


@pytest.mark.parametrize(
    ("draft", "n_ctx", "what"),
    [
        ("short.gguf", 4096, "the drafter's context is 1,024 tokens, the target's 4,096"),
        ("twin.gguf", 4096, "a drafted token costs 1.00 of a target pass"),
        ("small.gguf", 10000, "the target was trained for 8,192 tokens, and -c is 10,000"),
    ],
)
def test_a_pair_that_is_right_but(files: Path, draft: str, n_ctx: int, what: str) -> None:
    pair = judged(files / "target.gguf", files / draft, n_ctx)
    assert pair.verdict == "right, but"
    assert what in [f.what for f in pair.findings]
    assert all(f.means and f.do and not f.refusal for f in pair.findings)


@pytest.mark.parametrize("architecture", STRATEGIES)
def test_the_strategy_is_told_from_the_architecture(architecture: str) -> None:
    """STRATEGIES is what contexts find by trying."""
    assert (strategy(architecture, LONGEST_DRAFT), strategy(architecture, 0)) == STRATEGIES[architecture]


def test_with_devices_the_memory_is_theirs(files: Path) -> None:
    target = GGUFFile.read(files / "target.gguf")
    device = Device("CUDA0", 10**9, 2 * 10**9)
    pair = judge(target, None, ROOMY, (device,), loading=Loading(gpu_layers=99))
    assert (pair.need.working, pair.need.on_devices) == (0, pair.need.target.footprint.total)
    assert pair.as_dict(target.path, None)["memory"]["devices"] == [  # type: ignore[index]
        {"name": "CUDA0", "free": 10**9, "total": 2 * 10**9}
    ]


# What it may bring.


def facts(parameters: int, dense: int, experts: int = 0, used: float = 1.0, bits: float = 8.0) -> ModelFacts:
    known = ModelFacts.of(GGUFFile.read(FACTS[0])).remember()
    shape = {**known["shape"], "weights": round(parameters * bits / 8)}
    changed = dict(parameters=parameters, dense=dense, experts=experts, used=used, shape=shape)
    return ModelFacts.recall({**known, **changed})


FACTS: list[Path] = []


@pytest.fixture(autouse=True)
def _any_file(files: Path) -> None:
    FACTS[:] = [files / "small.gguf"]


def test_the_prediction_is_the_theorem() -> None:
    found = predict(facts(10**9, 10**9), facts(10**8, 10**8))
    assert found.cost == pytest.approx(0.1)
    assert found.acceptance == pytest.approx(0.75)
    gains = [(1 - 0.75 ** (k + 1)) / 0.25 / (1 + 0.1 * k) for k in range(17)]
    assert found.speedup == pytest.approx(max(gains))
    assert found.length == gains.index(max(gains))


def test_no_draft_of_an_equal_pays() -> None:
    assert predict(facts(10**9, 10**9), facts(10**9, 10**9)) == Prediction(1.0, 0.85, 0, 1.0)


def test_fewer_bits_and_translation_cost_acceptance() -> None:
    target, draft = facts(10**9, 10**9), facts(10**8, 10**8)
    assert predict(target, facts(10**8, 10**8, bits=2.6)).acceptance == pytest.approx(0.65)
    assert predict(target, draft, translated=True).acceptance == pytest.approx(0.55)


def test_verifying_reads_more_experts() -> None:
    dense, sparse = facts(10**9, 10**9), facts(10**10, 10**8, experts=9 * 10**9, used=0.1)
    draft = facts(10**8, 10**8)
    assert sparse.bytes_read() == pytest.approx(10**9)
    assert predict(sparse, draft).cost == pytest.approx(predict(dense, draft).cost)
    assert predict(sparse, draft).speedup < predict(dense, draft).speedup


# The command.


def test_the_table_fits_and_exits_0(files: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "-m", files / "target.gguf", "-md", files / "small.gguf")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].split() == ["file", "target.gguf", "small.gguf"]
    assert "template     yes                     the same" in lines
    assert "context      4,096 tokens            4,096 tokens" in lines
    assert "cache        8.4 MB                  1.0 MB" in lines
    assert "rollback     cell removal            cell removal" in lines
    assert "vocabularies the same, 512 tokens" in lines
    assert "predicted from sizes alone" in done.stdout
    assert lines[-1] == "verdict      right"
    assert "\x1b" not in done.stdout


def test_a_mismatch_exits_2_with_the_reason(files: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "-m", files / "target.gguf", "-md", files / "foreign.gguf")
    assert (done.returncode, done.stderr) == (2, "")
    assert "verdict      cannot" in done.stdout
    assert "cannot: vocabulary: its tokenizer is of kind 'gpt2'" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_json_for_scripts(files: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "-m", files / "target.gguf", "-md", files / "small.gguf", "--json")
    got = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert (got["verdict"], got["findings"]) == ("right", [])
    assert got["target"]["path"] == str(files / "target.gguf")
    assert got["target"]["memory"]["cells"] == 4096 * 4 * 2 * 128 * 2
    assert got["draft"]["rollback"] == "cell removal"
    assert got["vocabulary"]["shared"] == 512
    assert got["memory"]["available"] > 0
    bad = run(tmp_path, "-m", files / "target.gguf", "-md", files / "foreign.gguf", "--json")
    assert bad.returncode == 2
    assert json.loads(bad.stdout)["verdict"] == "cannot"
    assert json.loads(bad.stdout)["findings"][0]["refusal"] is True


def test_a_model_alone(files: Path, tmp_path: Path) -> None:
    hybrid = tiny_architectures.write("qwen35", tmp_path / "hybrid.gguf")
    done = run(tmp_path, "-m", hybrid, "-c", "2048")
    assert done.returncode == 0
    assert "rollback     state snapshots" in done.stdout
    assert "verdict      right, but" in done.stdout  # it has no chat template
    alone = json.loads(run(tmp_path, "-m", files / "target.gguf", "--json").stdout)
    assert (alone["draft"], alone["vocabulary"], alone["prediction"]) == (None, None, None)


def test_a_context_that_cannot_be_is_said_by_generate_before_loading(files: Path, tmp_path: Path) -> None:
    args = ["-m", files / "target.gguf", "-c", 1 << 24]
    checked = run(tmp_path, *args)
    if checked.returncode == 0:
        pytest.skip("this machine has room for 34 GB of cache")
    done = subprocess.run(
        [SPECDEC, "generate", *map(str, args), "the"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"specdec: {files / 'target.gguf'}: a context of 16,777,216 tokens needs ")
    assert "lower it: -c " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_is_ranked(files: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "-m", files / "target.gguf", "--drafts", files)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    ranked = [line.split()[-1] for line in lines[3:6]]
    assert ranked == ["short.gguf", "small.gguf", "twin.gguf"]
    assert lines[5].split()[0] == "none"
    foreign = lines.index("With another vocabulary, for --draft-translate alone:")
    assert lines[foreign + 1].split()[-1] == "foreign.gguf"
    assert lines[-2:] == ["  target.gguf", "    this is the target itself"]
    got = json.loads(run(tmp_path, "-m", files / "target.gguf", "--drafts", files, "--json").stdout)
    assert [Path(c["path"]).name for c in got["candidates"]] == [*ranked, "foreign.gguf"]
    assert [c["translated"] for c in got["candidates"]] == [False, False, False, True]
    assert got["unsuitable"][0]["reason"] == "this is the target itself"


def test_a_translated_drafter_is_right_but(files: Path, tmp_path: Path) -> None:
    pair = ["-m", files / "target.gguf", "-md", files / "foreign.gguf"]
    refused, allowed = run(tmp_path, *pair, "--json"), run(tmp_path, *pair, "--draft-translate", "--json")
    assert (refused.returncode, allowed.returncode) == (2, 0)
    assert "--draft-translate: every round" in json.loads(refused.stdout)["findings"][0]["do"]
    got = json.loads(allowed.stdout)
    assert got["verdict"] == "right, but"
    assert got["findings"][0]["means"].startswith("its text is translated")
    assert 0.3 <= got["prediction"]["acceptance"] <= 0.7


def test_names_that_would_steer_a_terminal_do_not(files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in (b"red\x1b[31m.gguf", b"latin\xe9.gguf"):
        (folder / os.fsdecode(name)).write_bytes((files / "small.gguf").read_bytes())
    done = run(tmp_path, "-m", files / "target.gguf", "--drafts", folder, PYTHONUTF8="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "red\ufffd[31m.gguf" in done.stdout
    assert "latin?.gguf" in done.stdout
    again = run(tmp_path, "-m", files / "target.gguf", "--drafts", folder, "--json", PYTHONUTF8="1")
    found = {os.fsencode(c["path"]) for c in json.loads(again.stdout)["candidates"]}
    assert os.fsencode(folder) + b"/latin\xe9.gguf" in found


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-m", "missing.gguf"], "no such file: missing.gguf"),
        (["-m", "nobody"], "no model named 'nobody'"),
        (["-m", "{}/target.gguf", "-md", "{}/small.gguf", "--drafts", "{}"], "--drafts looks for a drafter"),
        (["-m", "{}/target.gguf", "--drafts", "{}/none"], "--drafts {}/none: no such folder"),
    ],
)
def test_wrong_usage_is_one_line(args: list[str], message: str, files: Path, tmp_path: Path) -> None:
    done = run(tmp_path, *(arg.format(files) for arg in args))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"specdec: {message.format(files)}")
    assert done.stderr.count("\n") == 1
