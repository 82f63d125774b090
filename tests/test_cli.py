"""The real command: its output, its exit codes, its one-line errors, its pipes and signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

SPECDEC = Path(sys.executable).with_name("specdec")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")}
    return {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONFAULTHANDLER": "1",
        "COLUMNS": "60",
    }


class Specdec:
    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self.env = env
        self.cwd = cwd

    def __call__(self, *args: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [SPECDEC, *map(str, args)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=self.env,
            cwd=self.cwd,
            timeout=120,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )


@pytest.fixture
def specdec(env: dict[str, str], tmp_path: Path) -> Specdec:
    return Specdec(env, tmp_path)


@pytest.fixture
def pair(models: Path) -> list[str]:
    """A pair that drafts: the adaptive schedule would see that between models of one size nothing pays."""
    paths = ["-m", str(models / "target.gguf"), "-md", str(models / "cousin.gguf")]
    return [*paths, "-c", "256", "-t", "1", "--draft-max", "8"]


# What it writes.


def test_text_on_stdout_and_nothing_else(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair, "--temp", "0", "-n", 20, "the and of")
    plain = specdec("generate", *pair, "--temp", "0", "-n", 20, "--drafter", "none", "the and of")
    assert done.returncode == plain.returncode == 0
    assert done.stdout
    assert done.stdout == plain.stdout
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"20 tokens in [\d.]+ s, [\d.]+ tok/s, about [\d.]+× plain decoding", lines[0])
    assert re.fullmatch(
        r"model drafter: \d+ of \d+ drafted accepted \([\d.]+%\), [\d.]+ tokens a round, \d+ rounds", lines[1]
    )
    assert lines[2].startswith("seconds: load ")
    assert len(lines) == 3


def test_quiet_says_nothing_on_stderr(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair, "-q", "-n", 5, "the and of")
    assert done.stdout
    assert done.stderr == ""


def test_json_is_the_documented_object(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair, "--json", "--temp", "0", "-n", 24, "-s", 5, "the and of")
    assert done.returncode == 0
    got = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert got["completion_tokens"] == len(got["tokens"]) == 24
    assert got["finish_reason"] == "length"
    assert got["prompt_tokens"] > 1
    assert (got["seed"], got["lossless"], got["drafter"]) == (5, True, "model")
    assert got["model"].endswith("target.gguf")
    assert got["draft"].endswith("cousin.gguf")
    stats = got["stats"]
    assert stats["rejected"] == stats["drafted"] - stats["accepted"]
    assert stats["acceptance_rate"] == pytest.approx(stats["accepted"] / stats["drafted"], abs=1e-4)
    assert stats["mean_accepted_length"] == pytest.approx(24 / stats["rounds"], abs=1e-3)
    assert sum(stats["drafted_by_position"]) == stats["drafted"]
    assert sum(stats["accepted_by_position"]) == stats["accepted"]
    assert stats["tokens_per_second"] > 0
    assert got["schedule"] == {"name": "fixed", "draft_max": 8, "draft_min": 0}
    assert set(stats["seconds"]) == {"load", "prefill", "draft", "verify", "sample", "other"}
    assert stats["seconds"]["load"] > 0
    streamed = specdec("generate", *pair, "--temp", "0", "-n", 24, "the and of")
    assert streamed.stdout == got["text"]


def test_by_default_the_draft_length_adapts(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair[:-2], "--temp", "0", "-n", 40, "--json", "the and of")
    got = json.loads(done.stdout)
    assert (got["schedule"]["name"], got["schedule"]["longest"]) == ("adaptive", 24)
    assert set(got["schedule"]["target_ms"]) == {"1", "2", "4", "8", "16"}
    assert got["schedule"]["drafter_ms"]["model"] > 0
    assert (
        got["text"]
        == json.loads(specdec("generate", *pair, "--temp", "0", "-n", 40, "--json", "the and of").stdout)[
            "text"
        ]
    )


def test_a_corpus_and_a_cascade_by_their_flags(specdec: Specdec, pair: list[str], tmp_path: Path) -> None:
    plain = specdec("generate", *pair, "--drafter", "none", "--temp", "0", "-n", 24, "the and of").stdout
    words = tmp_path / "words.txt"
    words.write_text("the and of" + plain, "utf-8")
    args = ["--drafter", "suffix,model", "--lookup-corpus", words, "--temp", "0", "-n", 24, "--json"]
    got = json.loads(specdec("generate", *pair, *args, "the and of").stdout)
    assert (got["text"], got["drafter"]) == (plain, "suffix,model")
    assert got["stats"]["by_drafter"]["suffix"]["accepted"] > 0


def test_typical_acceptance_says_that_it_is_lossy(specdec: Specdec, pair: list[str]) -> None:
    args = ["generate", *pair, "--accept", "typical", "-n", 5, "the and of"]
    assert "LOSSY: typical acceptance" in specdec(*args).stderr
    assert json.loads(specdec(*args, "--json").stdout)["lossless"] is False


def test_the_same_seed_gives_the_same_text(specdec: Specdec, pair: list[str]) -> None:
    texts = [specdec("generate", *pair, "-n", 20, "-s", s, "the and of").stdout for s in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_ends_the_text_before_it(specdec: Specdec, pair: list[str]) -> None:
    args = ["generate", *pair, "--temp", "0", "-n", 30, "the and of"]
    whole = specdec(*args).stdout
    stop = whole[9:12]
    done = specdec(*args, "--stop", stop, "--json")
    got = json.loads(done.stdout)
    assert got["text"] == whole[: whole.index(stop)]
    assert got["finish_reason"] == "stop"


@pytest.mark.parametrize("how", ["argument", "-p", "-f", "-f -", "pipe"])
def test_every_way_to_give_a_prompt(specdec: Specdec, pair: list[str], tmp_path: Path, how: str) -> None:
    text = "thé and あ of"
    (tmp_path / "prompt.txt").write_text(text, "utf-8")
    args: dict[str, list[str]] = {
        "argument": [text], "-p": ["-p", text], "-f": ["-f", "prompt.txt"], "-f -": ["-f", "-"], "pipe": [],
    }  # fmt: skip
    stdin = text.encode() if how in ("-f -", "pipe") else None
    done = specdec("generate", *pair, "--temp", "0", "-n", 8, "--json", *args[how], stdin=stdin)
    expected = specdec("generate", *pair, "--temp", "0", "-n", 8, "--json", text)
    assert json.loads(done.stdout)["tokens"] == json.loads(expected.stdout)["tokens"]


def test_a_full_context_is_said(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair, "-c", 40, "the and of")
    assert done.returncode == 0
    assert "the context of 40 tokens is full; -c makes it larger" in done.stderr


def test_the_drafters_own_context_may_be_smaller_and_says_so_once(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair, "-cd", 24, "--temp", "0", "-n", 60, "the and of")
    assert done.returncode == 0
    assert done.stderr.count("outgrown the drafter's context of 24 tokens") == 1
    assert done.stdout == specdec("generate", *pair, "--temp", "0", "-n", 60, "the and of").stdout


def test_ignore_eos_goes_on(specdec: Specdec, tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "ends.gguf", ends=True, scale=1.0)
    flat = ["--temp", 3, "--top-k", 0, "--min-p", 0, "--top-p", 1]
    args = ["generate", "-m", path, "-c", 1500, "-t", 1, "-s", 1, *flat, "the"]
    short = json.loads(specdec(*args, "--json").stdout)
    assert short["finish_reason"] == "stop"
    long = json.loads(specdec(*args, "--json", "--ignore-eos").stdout)
    assert long["finish_reason"] == "context"


# What it refuses: one line, exit code 2, nothing left behind.


def bad_files(directory: Path) -> dict[str, Path]:
    directory.mkdir()
    good = tiny.llama(directory / "good.gguf").read_bytes()
    files = {
        "missing": directory / "missing.gguf",
        "directory": directory,
        "empty": directory / "empty.gguf",
        "text": directory / "text.gguf",
        "truncated": directory / "truncated.gguf",
        "header": directory / "header.gguf",
        "embedding": tiny.bert(directory / "bert.gguf"),
        "vision": tiny.clip(directory / "mmproj.gguf"),
    }
    files["empty"].write_bytes(b"")
    files["text"].write_text("Once upon a time\n" * 50)
    files["truncated"].write_bytes(good[: len(good) * 2 // 3])
    files["header"].write_bytes(good[:16] + bytes([0xFF] * 40) + good[56:])
    return files


EXPECTED = {
    "missing": "no such file",
    "directory": "is a directory",
    "empty": "empty",
    "text": "not a GGUF",
    "truncated": "incomplete",
    "header": "",
    "embedding": "embedding",
    "vision": "give a text-generation GGUF instead",
}


@pytest.mark.parametrize("role", ["-m", "-md"])
@pytest.mark.parametrize("kind", EXPECTED)
def test_an_unusable_file_is_one_line_and_exit_code_2(
    specdec: Specdec, models: Path, tmp_path: Path, role: str, kind: str
) -> None:
    path = bad_files(tmp_path / "bad")[kind]
    before = sorted(p for p in tmp_path.rglob("*"))
    other = [] if role == "-m" else ["-m", models / "target.gguf"]
    refused(
        specdec("generate", *other, role, path, "the"),
        path.name if kind != "directory" else "bad",
        EXPECTED[kind],
    )
    assert sorted(p for p in tmp_path.rglob("*")) == before


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("specdec: ")
    for text in said:
        assert text in done.stderr


def test_another_vocabulary_is_translated_when_asked(
    specdec: Specdec, models: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    other = tiny.llama(tmp_path / "other.gguf", tokenizer="bpe")
    flags = [
        "generate",
        "--raw",
        "-m",
        models / "target.gguf",
        "-c",
        "256",
        "-t",
        "1",
        "--temp",
        "0",
        "-n",
        "30",
    ]
    draft = ["-md", other, "--draft-max", "4"]
    plain = specdec(*flags, "--drafter", "none", "the and of")
    refused(specdec(*flags, *draft, "the and of"), "of kind 'gpt2'", "or --draft-translate: ")
    done = specdec(*flags, *draft, "--draft-translate", "--json", "the and of")
    result = json.loads(done.stdout)
    assert result["text"] == plain.stdout.removesuffix("\n")
    assert result["drafter"] == "translated"
    assert result["stats"]["by_drafter"]["translated"]["drafted"] == result["stats"]["drafted"] > 0
    env["SPECDEC_DRAFT_TRANSLATE"] = "1"
    assert specdec(*flags, *draft, "the and of").stdout == plain.stdout
    settings = specdec(*flags, *draft, "--show-settings").stdout.splitlines()
    assert "--draft-translate\ttrue\tSPECDEC_DRAFT_TRANSLATE" in settings
    requests = b'{"prompt": "the and of", "draft_translate": false}\n{"prompt": "the and of"}\n'
    lines = specdec(*flags[:1], *flags[2:], *draft, "--raw", "--jsonl", stdin=requests).stdout.splitlines()
    assert "--draft-translate" in json.loads(lines[0])["error"]["message"]
    assert json.loads(lines[1])["text"] == result["text"]


def test_another_vocabulary_is_refused_with_the_reason(
    specdec: Specdec, models: Path, tmp_path: Path
) -> None:
    other = tiny.llama(tmp_path / "other.gguf", n_vocab=1024)
    done = specdec("generate", "-m", models / "target.gguf", "-md", other, "the")
    refused(done, "512", "1,024", "probabilities of different tokens", "target's family and tokenizer")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-n", "0"], "-n 0 asks for no text"),
        (["-n", "-2"], "-n"),
        (["-n", "many"], "-n"),
        (["-c", "-1"], "-c"),
        (["-c", "99999999999"], "-c"),
        (["-t", "0"], "-t"),
        (["--temp", "-1"], "--temp"),
        (["--temp", "nan"], "--temp"),
        (["--top-k", "-3"], "--top-k"),
        (["--top-p", "2"], "--top-p"),
        (["--min-p", "-0.5"], "--min-p"),
        (["--repeat-penalty", "0"], "--repeat-penalty"),
        (["--draft-max", "0"], "--draft-max"),
        (["--draft-max", "100000"], "--draft-max"),
        (["--draft-max", "4", "--draft-min", "5"], "--draft-min"),
        (["--draft-p-min", "1.5"], "--draft-p-min"),
        (["--lookup-ngram-max", "1", "--lookup-ngram-min", "2"], "n-gram"),
        (["--typical-threshold", "0"], "threshold"),
        (["--accept", "always"], "always"),
        (["--drafter", "oracle"], "oracle"),
        (["--samplers", "top_k;mirostat"], "distribution per position"),
        (["--samplers", "top_q"], "top_q"),
        (["--mirostat", "2"], "distribution per position"),
        (["--seed", "x"], "--seed"),
        (["--no-such-flag"], "--no-such-flag"),
        (["-p", "again"], "given twice"),
        (["-f", "prompt.txt"], "given twice"),
        (["extra", "arguments"], "arguments"),
    ],
)
def test_flags_that_make_no_sense(
    specdec: Specdec, pair: list[str], tmp_path: Path, args: list[str], said: str
) -> None:
    (tmp_path / "prompt.txt").write_text("again")
    refused(specdec("generate", *pair, *args, "the"), said)


@pytest.mark.parametrize(
    ("args", "stdin", "said"),
    [
        ([], None, "empty"),
        ([""], None, "empty"),
        ([], b"", "empty"),
        ([], b"caf\xe9", "stdin: the prompt is not UTF-8 (byte 3 is 0xe9)"),
        (["-f", "nowhere.txt"], None, "nowhere.txt: cannot read the prompt: No such file"),
        (["-f", "."], None, "cannot read the prompt: Is a directory"),
        (["-f", "latin1.txt"], None, "latin1.txt: the prompt is not UTF-8"),
    ],
)
def test_prompts_that_cannot_be_read(
    specdec: Specdec, pair: list[str], tmp_path: Path, args: list[str], stdin: bytes | None, said: str
) -> None:
    (tmp_path / "latin1.txt").write_bytes("Größe".encode("latin-1"))
    refused(specdec("generate", *pair, *args, stdin=stdin), said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_prompt_file_without_permission(specdec: Specdec, pair: list[str], tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("hello")
    (tmp_path / "secret.txt").chmod(0)
    refused(specdec("generate", *pair, "-f", "secret.txt"), "cannot read the prompt: Permission denied")


def test_a_prompt_longer_than_the_context(specdec: Specdec, pair: list[str]) -> None:
    done = specdec("generate", *pair, "-c", 32, stdin=b"the and of " * 200)
    refused(done, "tokens and the context holds 32", "raise -c", "trained for 2048")


def test_a_name_nobody_knows(specdec: Specdec) -> None:
    refused(
        specdec("generate", "-m", "smolm2-135m", "the"), "smolm2-135m", "smollm2-135m", "specdec models list"
    )


def test_a_recurrent_model_is_target_and_drafter_like_any_other(
    specdec: Specdec, tmp_path: Path, models: Path
) -> None:
    path, attention = tiny.mamba(tmp_path / "river.gguf"), models / "target.gguf"
    for args in (["-m", path], ["-m", path, "-md", attention], ["-m", attention, "-md", path]):
        common = ["--temp", 0, "-n", 24, "-t", 1, "--json", "the and of the"]
        plain, drafted = (
            specdec("generate", *args[:2], "--drafter", "none", *common),
            specdec("generate", *args, *common),
        )
        assert json.loads(drafted.stdout)["text"] == json.loads(plain.stdout)["text"]


def test_an_empty_name_is_not_the_default_model(specdec: Specdec) -> None:
    refused(specdec("generate", "-m", "", "the"), "a model's name is empty")


@pytest.mark.parametrize("flags", [["-c", "1"], ["-cd", "1"]])
def test_a_context_of_one_token(specdec: Specdec, pair: list[str], flags: list[str]) -> None:
    refused(specdec("generate", *pair, *flags, "the"))


def test_a_prompt_without_end_is_refused(specdec: Specdec, pair: list[str]) -> None:
    refused(specdec("generate", *pair, "-f", "/dev/zero"), "/dev/zero: a prompt of more than 64 MiB")


@pytest.mark.parametrize("flag", ["--repeat-last-n", "--dry-penalty-last-n"])
def test_a_huge_penalty_window_is_the_whole_context(specdec: Specdec, pair: list[str], flag: str) -> None:
    args = [
        "generate",
        *pair,
        "--repeat-penalty",
        1.3,
        "--dry-multiplier",
        1,
        "-s",
        1,
        "-n",
        20,
        "the and of",
    ]
    huge, whole = (specdec(*args, flag, n) for n in (2**31 - 1, -1))
    assert huge.returncode == 0
    assert huge.stdout == whole.stdout != ""


# Help, and a terminal's width.


@pytest.mark.parametrize("command", [[], ["models"]])
def test_without_a_command_the_commands_are_shown(specdec: Specdec, command: list[str]) -> None:
    done = specdec(*command)
    assert done.returncode == 2
    assert "Usage:" in done.stdout
    assert done.stdout.count("\n") > 5


@pytest.mark.parametrize("command", [[], ["generate"], ["models"], ["models", "list"], ["models", "pull"]])
def test_help_fits_the_terminal(specdec: Specdec, command: list[str]) -> None:
    done = specdec(*command, "--help")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 60


def test_help_explains_what_the_lossy_rule_is(specdec: Specdec) -> None:
    assert "LOSSY" in specdec("generate", "--help").stdout


def test_version(specdec: Specdec) -> None:
    done = specdec("--version")
    assert re.fullmatch(r"specdec \d+\.\d+\.\d+ \((native|reference) kernels\)\n", done.stdout)


def test_an_unknown_choice_of_kernels_is_one_line(specdec: Specdec, pair: list[str]) -> None:
    specdec.env["SPECDEC_KERNELS"] = "fast"
    done = specdec("generate", *pair, "the")
    assert done.returncode == 1
    assert done.stderr == "specdec: SPECDEC_KERNELS is 'fast'; use native or reference\n"


# Models.


def test_models_by_name(specdec: Specdec, smollm_path: Path) -> None:
    names = specdec("models", "list", "--names").stdout.split()
    assert {"smollm2-135m", "smollm2-135m-wide"} <= set(names)
    listed = specdec("models", "list")
    assert listed.returncode == 0
    assert "models.toml" in listed.stdout
    assert specdec("models", "path", "smollm2-135m").stdout.strip() == str(smollm_path)
    refused(specdec("models", "path", "smollm2-135m-wide"), "specdec models pull smollm2-135m-wide")
    refused(specdec("models", "path", "nonsense"), "specdec models list")


def test_a_models_toml_of_ones_own(specdec: Specdec, home: Path, models: Path) -> None:
    config = home / "config" / "specdec"
    config.mkdir(parents=True, exist_ok=True)
    own = config / "models.toml"
    own.write_text(
        f'[models.mine]\npath = "{models / "target.gguf"}"\ndraft = "little"\n'
        f'[models.little]\npath = "{models / "cousin.gguf"}"\n'
    )
    try:
        done = specdec("generate", "-m", "mine", "-md", "little", "-c", 64, "-t", 1, "-n", 4, "the")
        assert "model drafter" in done.stderr
        done = specdec("generate", "-m", "mine", "--drafter", "model", "-c", 64, "-t", 1, "-n", 4, "the")
        assert "model drafter" in done.stderr
        done = specdec("generate", "-m", "mine", "-c", 64, "-t", 1, "-n", 4, "the")
        assert "for mine try --draft little" in done.stderr
        own.write_text("[models.mine\n")
        refused(specdec("generate", "-m", "mine", "the"), str(own))
    finally:
        own.unlink()


# Pipes and signals.


def shell(env: dict[str, str], line: str) -> subprocess.CompletedProcess[bytes]:
    """A command line with redirections; $SPECDEC is the program."""
    env = {**env, "SPECDEC": str(SPECDEC)}
    return subprocess.run(["sh", "-c", line], env=env, capture_output=True, timeout=60, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "command", ["generate {pair} -n 5 the", "generate {pair} --json -n 5 the", "models list", "--help"]
)
def test_a_full_disk_is_one_line(env: dict[str, str], pair: list[str], command: str) -> None:
    done = shell(env, f"$SPECDEC {command.format(pair=' '.join(pair))} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == b"specdec: cannot write the output: No space left on device\n"


def test_closed_streams(env: dict[str, str], pair: list[str]) -> None:
    flat = " ".join(pair)
    done = shell(env, f"$SPECDEC generate {flat} -n 5 the >&-")
    assert done.returncode == 1
    assert done.stderr == b"specdec: standard output is closed: there is nowhere to write to\n"
    done = shell(env, f"$SPECDEC generate {flat} -q -n 5 the 2>&-")
    assert (done.returncode, bool(done.stdout)) == (0, True)
    assert shell(env, "$SPECDEC generate -m nowhere.gguf the 2>&-").returncode == 2
    assert shell(env, "$SPECDEC generate -m nowhere.gguf the 2>/dev/full").returncode == 2


@pytest.fixture
def slow(tmp_path: Path) -> list[str]:
    """A model that takes some milliseconds a token."""
    path = tiny.llama(tmp_path / "slow.gguf", n_embd=256, n_layer=8, n_ff=1024, n_head=8, n_head_kv=8)
    return ["generate", "-m", str(path), "-c", "2048", "-t", "1", "--drafter", "none", "--ignore-eos"]


def started(env: dict[str, str], *args: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """The program at work, its output in pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen([SPECDEC, *args], stdin=stdin, stdout=pipe, stderr=pipe, env=env)


def test_a_reader_that_leaves_ends_it_quietly(env: dict[str, str], slow: list[str]) -> None:
    process = started(env, *slow, "the")
    assert process.stdout is not None
    assert process.stdout.read(5)
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_ctrl_c_keeps_the_text_so_far_and_exits_130(env: dict[str, str], slow: list[str]) -> None:
    process = started(env, *slow, "the")
    assert process.stdout is not None
    first = process.stdout.read(5)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(first + rest) > 5
    assert b"Traceback" not in errors
    assert b" tok/s" in errors  # the summary of what there was


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_json_gives_the_object_so_far(
    env: dict[str, str], slow: list[str], number: signal.Signals, code: int
) -> None:
    process = started(env, *slow, "--json", "the")
    time.sleep(2.5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert json.loads(out)["finish_reason"] == "interrupted"


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("drafter", ["none", "model"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_long_prompt_is_read(
    env: dict[str, str], slow: list[str], number: signal.Signals, code: int, drafter: str
) -> None:
    path = slow[slow.index("-m") + 1]
    slow[slow.index("none")] = drafter
    process = started(env, *slow, "-md", path, "-c", "16000", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"the and of in " * 3500)
    process.stdin.close()
    process.stdin = None
    time.sleep(3)
    assert process.poll() is None, "it should still be reading"
    began = time.monotonic()
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert time.monotonic() - began < 3
    assert out == b""
    assert b"Traceback" not in errors
    assert b"expected to pay" not in errors  # nobody was asked for a draft
    prefill = re.search(rb"prefill ([\d.]+)", errors)
    assert prefill is not None
    assert float(prefill[1]) > 0.5
