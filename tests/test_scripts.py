"""The program in scripts: JSON in and out, files, pipes, signals."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import tiny

SPECDEC = Path(sys.executable).with_name("specdec")
TOO_LONG = (64 << 20) + 1  # bytes of a line

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="bash and its pipes")

Json = dict[str, Any]
WILD = {"temp": 5, "top_k": 0, "min_p": 0, "top_p": 1}  # any token at all, bytes of characters too


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a target that has a chat template, its drafter, and a target that takes its time."""
    directory = tmp_path_factory.mktemp("chat")
    tiny.llama(directory / "target.gguf", chat_template=tiny.CHATML)
    tiny.llama(directory / "cousin.gguf", noise=0.1)
    tiny.llama(directory / "plain.gguf")
    tiny.llama(directory / "slow.gguf", n_embd=256, n_layer=8, n_ff=1024, n_head=8, n_head_kv=8)
    return directory


class Shell:
    """Runs bash with the function ``g``: ``specdec generate`` on the tiny pair."""

    def __init__(self, models: Path, cwd: Path) -> None:
        self.models = models
        self.cwd = cwd
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH")}
        self.env = {
            **kept,
            "HOME": str(cwd),
            "XDG_CACHE_HOME": str(cwd / "cache"),
            "XDG_CONFIG_HOME": str(cwd / "config"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONFAULTHANDLER": "1",
            "LANG": "C.UTF-8",
            "SPECDEC": str(SPECDEC),
        }

    @property
    def pair(self) -> list[str]:
        return [
            *("-m", str(self.models / "target.gguf"), "-md", str(self.models / "cousin.gguf")),
            *("-c", "256", "-t", "1"),
        ]

    def __call__(self, line: str, *, stdin: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-c", f'g() {{ "$SPECDEC" generate {" ".join(self.pair)} "$@"; }}; {line}'],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env=self.env,
            cwd=self.cwd,
            timeout=120,
            check=False,
        )
        out = done.stdout.decode("utf-8", "surrogateescape")
        return subprocess.CompletedProcess(done.args, done.returncode, out, done.stderr.decode())

    def start(self, *args: str, stdin: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [SPECDEC, "generate", *args], stdin=stdin, stdout=pipe, stderr=pipe, env=self.env, cwd=self.cwd
        )

    def slow(self, *args: str) -> subprocess.Popen[bytes]:
        """A run that goes on until it is stopped."""
        model = ["-m", str(self.models / "slow.gguf"), "-c", "2000", "-t", "1", "--drafter", "none"]
        return self.start(*model, "--ignore-eos", *args)


@pytest.fixture
def shell(chat: Path, tmp_path: Path) -> Shell:
    return Shell(chat, tmp_path)


def objects(done: subprocess.CompletedProcess[str]) -> list[Json]:
    """The lines of stdout as JSON."""
    assert done.stdout.endswith("\n"), done.stderr
    return [json.loads(line) for line in done.stdout.removesuffix("\n").split("\n")]


def requests(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("specdec: ")
    for text in said:
        assert text in done.stderr


# Requests, one a line.


BROKEN: list[tuple[Callable[[int], bytes], str]] = [
    (lambda i: b'{"prompt": "the and', "the line is not JSON: Unterminated string"),
    (lambda i: b'{"id": %d}' % i, 'a request has a "prompt" (a text) or "messages"'),
    (lambda i: b'{"id": %d, "prompt": "the", "top_k": -1}' % i, "top_k must be from 0 to 2147483647, not -1"),
    (lambda i: b'{"id": %d, "prompt": "%s"}' % (i, b"the " * 400), "the context holds 256"),
    (lambda i: b'{"id": %d, "prompt": "the", "grammar": "root ::= ("}' % i, "grammar"),
    (lambda i: b'{"id": %d, "prompt": "caf\xe9"}' % i, "the line is not UTF-8"),
    (lambda i: b'{"prompt": "' + b"x" * TOO_LONG + b'"}', "the line has more than 64 MiB"),
    (lambda i: b'{"id": %d, "prompt": "the", "top_kk": 3}' % i, "did you mean top_k?"),
    (lambda i: b'{"id": %d, "prompt": "the", "ctx_size": 9}' % i, "give --ctx-size on the command line"),
    (
        lambda i: b'{"id": %d, "messages": [{"role": "me", "content": ""}]}' % i,
        "messages: message 0: its role",
    ),
]


def thousand() -> Iterator[bytes]:
    """A thousand requests; every hundredth is broken, each in a way of its own."""
    for i in range(1000):
        if i % 100 == 99:
            yield BROKEN[i // 100][0](i)
        else:
            request: Json = {"id": i, "prompt": f"the and of {i}", "n": 3, "seed": i, "draft_max": 2 + i % 3}
            yield json.dumps(request).encode()


def test_a_thousand_requests_keep_their_order_and_the_memory(shell: Shell) -> None:
    process = shell.start(*shell.pair, "--jsonl", "-q")
    assert process.stdin is not None
    assert process.stdout is not None

    def write(to: IO[bytes]) -> None:
        for line in thousand():
            to.write(line + b"\n")
            to.flush()

    writer = threading.Thread(target=write, args=(process.stdin,))
    writer.start()
    got, resident = [], {}
    for i in range(1000):
        got.append(json.loads(process.stdout.readline()))
        if i in (150, 999):
            status = Path(f"/proc/{process.pid}/status")
            resident[i] = int(status.read_text().split("VmRSS:")[1].split()[0]) if status.exists() else 0
    writer.join()
    process.stdin.close()
    process.stdin = None
    rest, errors = process.communicate(timeout=30)
    assert rest == b""
    assert process.returncode == 1
    assert errors == b"specdec: 10 of 1000 requests failed; their lines say why\n"
    for i, result in enumerate(got):
        assert next(iter(result)) == "id"
        if i % 100 != 99:
            assert result["id"] == i
            assert (result["completion_tokens"], result["seed"]) == (3, i)
            continue
        unread = i // 100 in (0, 5, 6)  # what cannot be read has no id either
        assert result["id"] == (None if unread else i)
        assert result["error"]["line"] == i + 1
        assert BROKEN[i // 100][1] in result["error"]["message"]
        assert result["error"].keys() == {"message", "line"}
    assert resident[999] - resident[150] < 5000, "kB"


def test_a_request_is_answered_while_the_pipe_stays_open(shell: Shell) -> None:
    process = shell.start(*shell.pair, "--jsonl", "-q")
    assert process.stdin is not None
    assert process.stdout is not None
    for name in ("first", "second"):
        process.stdin.write(json.dumps({"id": name, "prompt": "the", "n": 2}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == name
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (0, b"", b"")


def test_a_request_answers_as_the_flags_would(shell: Shell) -> None:
    flags = "--temp 0.9 --top-k 20 -s 7 -n 12 --stop zz --repeat-penalty 1.2 --draft-max 3 --logit-bias 300+2"
    alone = json.loads(shell(f"g {flags} --json 'the and of'").stdout)
    request = {
        "prompt": "the and of", "temperature": 0.9, "top_k": 20, "seed": 7, "max_tokens": 12, "stop": "zz",
        "repeat_penalty": 1.2, "draft_max": 3, "logit_bias": {"300": 2},
    }  # fmt: skip
    (got,) = objects(shell("g --jsonl", stdin=requests(request)))
    assert got["tokens"] == alone["tokens"]
    assert got["stats"]["drafted_by_position"] == alone["stats"]["drafted_by_position"]
    assert list(got) == ["id", *alone]
    (default,) = objects(shell(f"g {flags} --jsonl", stdin=requests({"prompt": "the and of"})))
    assert default["tokens"] == alone["tokens"]


def test_an_id_comes_back_as_it_was(shell: Shell) -> None:
    ids = [None, 3, "größe →", [1, {"a": None}], 1.5, True, "\ud800", 12345678901234567890]
    asked = [one for value in ids for one in ({"id": value, "prompt": "the"}, {"id": value})]
    results = objects(shell("g --jsonl -q -n 2", stdin=requests(*asked)))
    for value, answered, failed in zip(ids, results[::2], results[1::2], strict=True):
        assert answered["id"] == failed["id"] == value
        assert answered["completion_tokens"] == 2
        assert "prompt" in failed["error"]["message"]


NONSENSE: list[tuple[object, str]] = [
    ({"prompt": ""}, "the prompt is empty"),
    ({"prompt": 3}, "prompt must be a string"),
    ({"prompt": "a", "messages": []}, "this has both"),
    ({"messages": []}, "messages: the conversation has no messages"),
    ({"messages": [{"role": "user"}]}, 'messages: message 0 has no "content"'),
    ({"messages": [{"role": "assistant", "content": "a"}]}, "ends with the assistant's message"),
    ({"prompt": "half \ud800"}, "is not UTF-8"),
    ({"prompt": "a", "temp": "hot"}, 'temp must be a number, not "hot"'),
    ({"prompt": "a", "temp": True}, "temp must be a number, not true"),
    ({"prompt": "a", "n": 1.5}, "n must be a whole number, not 1.5"),
    ({"prompt": "a", "n": 0}, "asks for no text"),
    ({"prompt": "a", "n": 3, "max_tokens": 3}, "n and max_tokens are the same setting"),
    ({"prompt": "a", "raw": 1}, "raw must be true or false, not 1"),
    ({"prompt": "a", "stop": ["a", 2]}, "each of stop must be a string, not 2"),
    ({"prompt": "a", "accept": "all"}, 'accept must be one of block, token, typical, not "all"'),
    ({"prompt": "a", "draft_max": 25}, "drafts of 25 tokens are longer than the 24"),
    ({"prompt": "a", "draft_max": 2, "draft_min": 3}, "--draft-min must be 0 to"),
    ({"prompt": "a", "samplers": "top_k;mirostat"}, "distribution per position"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias has no token's id"),
    ({"prompt": "a", "logit_bias": [[1]]}, "logit_bias is"),
    ({"prompt": "a", "logit_bias": {"100000": 1}}, "token 100000"),
    ({"prompt": "a", "json_schema": "{"}, "schema is not JSON"),
    ({"prompt": "a", "grammar": 'root ::= "a"', "json_schema": {}}, "each say what the text may be"),
    ({"prompt": "a", "lora": "x"}, "give --lora on the command line"),
    ({"prompt": "a", "threads": 2}, "give --threads on the command line"),
    ({"prompt": "a", "chat_template": "chatml"}, "give --chat-template on the command line"),
    ({"prompt": "a", "output": "x"}, "output belongs to the run"),
    ({"prompt": "a", "raw": True, "system": "b"}, "--raw"),
    (["prompt"], "the line is no JSON object"),
    ("prompt", "the line is no JSON object"),
]
NO_JSON: list[tuple[bytes, str]] = [
    (b"[" * 100_000, "nested deeper than 100 levels"),
    (b'{"id": ' + b"[" * 500 + b"]" * 500 + b', "prompt": "a"}', "nested deeper than 100 levels"),
    (b'{"prompt": "a", "temp": NaN}', "NaN is no number in JSON"),
    (b'{"prompt": "a", "id": 1e999}', "1e999 is larger than any number"),
    (b'{"prompt": "a", "id": ' + b"9" * 5000 + b"}", "the line is not JSON"),
    (b'{"prompt": "a\x00"}', "the line is not JSON: Invalid control character at column 14"),
    (b"\xff\xfe{\x00", "the line is not UTF-8 (byte 0 is 0xff)"),
]


def test_requests_that_make_no_sense(shell: Shell) -> None:
    lines = [json.dumps(request).encode() for request, _ in NONSENSE] + [line for line, _ in NO_JSON]
    done = shell("g --jsonl", stdin=b"\n".join([*lines, b'{"prompt": "the", "n": 1}']))
    *failed, last = objects(done)
    assert last["completion_tokens"] == 1
    for i, (result, (_, said)) in enumerate(zip(failed, [*NONSENSE, *NO_JSON], strict=True)):
        assert said in result["error"]["message"]
        assert result["error"]["line"] == i + 1
    assert done.returncode == 1
    n = len(lines)
    assert done.stderr.splitlines()[-1] == f"specdec: {n} of {n + 1} requests failed; their lines say why"


def test_blank_lines_carriage_returns_and_a_byte_order_mark(shell: Shell) -> None:
    text = '\ufeff{"id": 1, "prompt": "the"}\r\n\r\n   \n{"id": 2, "promp": 1}\r\n'
    good, bad = objects(shell("g --jsonl -q -n 1", stdin=text))
    assert (good["id"], good["completion_tokens"]) == (1, 1)
    assert bad["error"] == {"message": "promp is no setting of a request; did you mean prompt?", "line": 4}
    assert shell("g --jsonl -q", stdin="\n\n").stdout == ""


def test_a_common_beginning_is_not_read_again(shell: Shell) -> None:
    told = {"system": "the and of " * 8}
    ask = [{"id": i, "prompt": f"{name} the", "n": 4, **told} for i, name in enumerate(("in", "to", "of"))]
    first, *others = objects(shell("g --jsonl -q", stdin=requests(*ask)))
    assert first["cached_prompt_tokens"] == 0
    assert list(first)[3:5] == ["prompt_tokens", "cached_prompt_tokens"]
    for result in others:
        assert result["prompt_tokens"] - 20 < result["cached_prompt_tokens"] < result["prompt_tokens"]
    alone = json.loads(shell(f"g --json -q -n 4 --temp 0 -sys '{told['system']}' 'in the'").stdout)
    cold, warm = objects(
        shell("g --jsonl -q --temp 0", stdin=requests({"prompt": "to the", "n": 2, **told}, ask[0]))
    )
    assert cold["cached_prompt_tokens"] == 0
    assert warm["tokens"] == alone["tokens"]


def test_who_drafts_may_change_from_request_to_request(shell: Shell) -> None:
    ask = [
        {"prompt": "the and of", "temp": 0, "n": 12, "drafter": d} for d in ("model", "lookup", "none", None)
    ]
    results = objects(shell("g --jsonl -q", stdin=requests(*ask)))
    assert [r["drafter"] for r in results] == ["model", "lookup", "none", "model"]
    assert len({tuple(r["tokens"]) for r in results}) == 1
    assert results[2]["stats"]["drafted"] == 0
    assert results[3]["draft"] is not None


def test_the_flags_are_defaults_and_a_grammar_takes_the_place_of_another(shell: Shell) -> None:
    ask = requests(
        {"prompt": "the"},
        {"prompt": "the", "grammar": 'root ::= "no"'},
        {"prompt": "the", "json_schema": {"const": 7}},
    )
    results = objects(shell("g --jsonl -q --grammar-file <(echo 'root ::= \"yes\"')", stdin=ask))
    assert [r["text"].strip() for r in results] == ["yes", "no", "7"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--jsonl the", "leave out the argument"),
        ("--jsonl -p the", "leave out -p"),
        ("--jsonl -f nowhere", "nowhere: cannot read the requests: No such file"),
        ("--jsonl -f .", ".: cannot read the requests: Is a directory"),
        ("--jsonl <&-", "standard input is closed"),
        ("--json --stream-json the", "give one of them"),
        ("--logprobs 2 the", "add --json or --stream-json"),
        ("--logprobs -1 --json the", "--logprobs"),
        ("--grammar a --json-schema {} the", "--grammar and --json-schema each say"),
        ("--grammar '' the", "the grammar of --grammar is empty"),
        ("--grammar-file nowhere the", "nowhere: cannot read the grammar"),
        ("--json-schema-file nowhere the", "nowhere: cannot read the schema"),
        ("-j '{' the", "schema is not JSON"),
        ("--grammar 'root ::= (' the", "grammar"),
        ("--logit-bias 5 the", "as in 15043+1 or 15043-inf, not '5'"),
        ("--logit-bias 5+inf the", "not '5+inf'"),
        ("--logit-bias x-1 the", "not 'x-1'"),
        ("--logit-bias 100000+1 the", "token 100000"),
        ("--lora-scaled a.gguf the", "as in style.gguf:0.5, not 'a.gguf'"),
        ("--lora nowhere.gguf the", "nowhere.gguf"),
        ("--chat-template chatnl the", "did you mean chatml?"),
        ("--dry-sequence-breaker $'\\xff' the", "the text of --dry-sequence-breaker is not UTF-8"),
        ("--stop $'\\xff' the", "the text of --stop is not UTF-8"),
        ("--raw --system a the", "--raw continues a text without one"),
        ("--messages nowhere.json", "nowhere.json: cannot read the conversation"),
        ("--messages m.json the", "the prompt is given twice, by the argument and by --messages"),
        ("<&-", "no prompt"),
        ("-f - <&-", "stdin: cannot read the prompt: standard input is closed"),
    ],
)
def test_flags_that_make_no_sense(shell: Shell, args: str, said: str) -> None:
    refused(shell(f"g {args}"), said)


# Conversations.


TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the"},
    {"role": "assistant", "content": "and"},
    {"role": "user", "content": "of"},
]


def test_a_conversation_is_answered(shell: Shell) -> None:
    (shell.cwd / "talk.json").write_text(json.dumps({"model": "any", "messages": TALK}))
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
    by_hand = shell("g --raw --json --temp 0 -n 8", stdin=f"{text}<|im_start|>assistant\n")
    expected = json.loads(by_hand.stdout)
    for line, stdin in (
        ("--messages talk.json --json", None),
        ("--messages - --json", json.dumps(TALK)),
        ("--jsonl", requests({"messages": TALK})),
        ("--jsonl --system ignored", requests({"messages": TALK})),
        ("--jsonl", requests({"messages": TALK[1:], "system": TALK[0]["content"]})),
        ("--messages <(cat) --json -sys 'be brief'", json.dumps(TALK[1:])),
    ):
        got = json.loads(shell(f"g --temp 0 -n 8 {line}", stdin=stdin).stdout)
        assert got["tokens"] == expected["tokens"], line
        assert got["prompt_tokens"] == expected["prompt_tokens"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "m.json is not JSON"),
        ("3", "m.json: a conversation is a list of messages"),
        ('{"model": "x"}', "m.json: a conversation is a list of messages"),
        ("[]", "m.json: the conversation has no messages"),
        ('[{"role": "user", "content": "a"}, "b"]', "m.json: message 1 is not an object"),
        ('[{"role": "user", "content": null}]', 'message 0: its "content" must be a string, not null'),
        ('[{"role": "user", "content": [{"text": "a"}]}]', 'message 0: its "content" must be a string'),
        ('[{"content": "a"}]', 'message 0 has no "role"'),
        ('[{"role": "bot", "content": "a"}]', "must be one of system, user, assistant, tool, not 'bot'"),
        ('[{"role": "assistant", "content": "a"}]', "m.json ends with the assistant's message"),
        ('[{"role": "user", "content": "\\ud800"}]', "is not UTF-8"),
    ],
)
def test_conversations_that_are_none(shell: Shell, content: str, said: str) -> None:
    (shell.cwd / "m.json").write_text(content)
    refused(shell("g --messages m.json"), said)


def test_two_system_messages_are_one_too_many(shell: Shell) -> None:
    (shell.cwd / "m.json").write_text(json.dumps(TALK))
    refused(shell("g --messages m.json --system b"), "has a system message of its own")
    refused(shell("g --messages m.json --raw"), "a conversation needs the model's chat template")


def test_a_conversation_is_written_so_that_it_can_be_read(tmp_path: Path) -> None:
    from specdec.cli.messages import read_messages, write_messages

    path = tmp_path / "talk.json"
    write_messages(path, [*TALK, {"role": "assistant", "content": "größe\n→"}], "a model")
    assert read_messages(path) == [*TALK, {"role": "assistant", "content": "größe\n→"}]
    assert json.loads(path.read_text("utf-8"))["model"] == "a model"
    assert os.listdir(tmp_path) == ["talk.json"]


def test_templates_by_name_and_by_file(shell: Shell) -> None:
    (shell.cwd / "own.jinja").write_text(tiny.CHATML)
    own = json.loads(shell("g --json --temp 0 -n 6 the").stdout)
    for named in ("chatml", "own.jinja", "<(cat own.jinja)"):
        got = json.loads(shell(f"g --json --temp 0 -n 6 --chat-template {named} the").stdout)
        assert got["tokens"] == own["tokens"]
    other = json.loads(shell("g --json --temp 0 -n 6 --chat-template gemma the").stdout)
    assert other["prompt_tokens"] != own["prompt_tokens"]
    refused(shell(f"g -m {shell.models / 'plain.gguf'} --system a the"), "has no chat template")


# What a program gets.


def test_events_add_up_to_the_result(shell: Shell) -> None:
    whole = json.loads(shell("g --json -s 3 -n 20 'the and of'").stdout)
    *rounds, last = objects(shell("g --stream-json -s 3 -n 20 'the and of'"))
    assert {r["event"] for r in rounds} == {"round"}
    assert list(rounds[0]) == ["event", "text", "tokens", "accepted", "drafted", "drafter"]
    assert "".join(r["text"] for r in rounds) == last["text"] == whole["text"]
    assert [t for r in rounds for t in r["tokens"]] == last["tokens"] == whole["tokens"]
    assert sum(r["accepted"] for r in rounds) == last["stats"]["accepted"]
    assert sum(r["drafted"] for r in rounds) == last["stats"]["drafted"]
    assert list(last) == ["event", *whole]
    lines = objects(
        shell("g --jsonl --stream-json -n 4", stdin=requests({"id": 5, "prompt": "the"}, {"id": 6}))
    )
    assert {(r["id"], r["event"]) for r in lines} == {(5, "round"), (5, "result"), (6, "error")}
    assert all(list(r)[:2] == ["id", "event"] for r in lines)


def test_logprobs_are_the_targets_own(shell: Shell) -> None:
    args = "-n 10 -s 2 --temp 1.5 'the and of'"
    got = json.loads(shell(f"g --json --logprobs 512 {args}").stdout)
    assert [one["token"] for one in got["logprobs"]] == got["tokens"]
    for one in got["logprobs"]:
        assert list(one) == ["token", "text", "bytes", "logprob", "top"]
        assert one["text"] == bytes(one["bytes"]).decode("utf-8", "replace") or not one["bytes"]
        logprobs = [other["logprob"] for other in one["top"]]
        assert len(logprobs) == 512
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-4)
        assert {o["token"]: o["logprob"] for o in one["top"]}[one["token"]] == one["logprob"]
        assert any(o["text"] == "<|im_end|>" and o["bytes"] == [] for o in one["top"])
    text = b"".join(bytes(one["bytes"]) for one in got["logprobs"]).decode("utf-8", "replace")
    assert text.lstrip(" ") == got["text"].lstrip(" ")
    plain = json.loads(shell(f"g --json --n-probs 1 --drafter none {args} --temp 0").stdout)
    assert [len(one["top"]) for one in plain["logprobs"]] == [1] * 10
    assert all(one["token"] == one["top"][0]["token"] for one in plain["logprobs"])
    *rounds, last = objects(shell(f"g --stream-json --logprobs 1 {args}"))
    assert [p for r in rounds for p in r["logprobs"]] == last["logprobs"]
    assert "logprobs" not in json.loads(shell(f"g --json {args}").stdout)


def test_biases_forbid_and_force_tokens(shell: Shell) -> None:
    free = json.loads(shell("g --json --temp 0 -n 12 the").stdout)["tokens"]
    never = shell(f"g --json --temp 0 -n 12 --logit-bias {free[0]}-inf the").stdout
    assert free[0] not in json.loads(never)["tokens"]
    always = shell("g --json --temp 0 -n 4 -l 300+1000 the").stdout
    assert json.loads(always)["tokens"] == [300] * 4
    (got,) = objects(
        shell("g --jsonl --temp 0 -n 12", stdin=requests({"prompt": "the", "logit_bias": [[free[0], False]]}))
    )
    assert got["tokens"] == json.loads(never)["tokens"]


def test_a_schema_gives_json_that_fits(shell: Shell) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    (shell.cwd / "schema.json").write_text(json.dumps(schema))
    for seed, flags in enumerate(
        ("-jf schema.json", '-j "$(<schema.json)"', "--json-schema-file <(cat schema.json)")
    ):
        done = shell(f"g -q -s {seed} -n 200 --logit-bias 257-inf {flags} the")
        got = json.loads(done.stdout)
        assert got.keys() == {"ok", "n"}
        assert got["n"] in (1, 22)


# Files.


def test_a_file_gets_what_stdout_would(shell: Shell) -> None:
    for flags in ("", "--json", "--stream-json"):
        on_stdout = shell(f"g -s 1 -n 9 {flags} the")
        done = shell(f"umask 027; g -s 1 -n 9 {flags} -o out.txt the")
        assert (done.returncode, done.stdout) == (0, "")
        written = (shell.cwd / "out.txt").read_text("utf-8")
        assert written.count("\n") == on_stdout.stdout.count("\n")
        if not flags:
            assert written == on_stdout.stdout
    assert stat.S_IMODE((shell.cwd / "out.txt").stat().st_mode) == 0o640
    assert [p.name for p in shell.cwd.iterdir() if "specdec" in p.name] == []


def test_a_file_that_is_there_keeps_its_mode_and_its_link(shell: Shell) -> None:
    real = shell.cwd / "real.txt"
    real.write_text("old")
    real.chmod(0o604)
    (shell.cwd / "link.txt").symlink_to("real.txt")
    assert shell("g -q -n 5 -o link.txt the").returncode == 0
    assert (shell.cwd / "link.txt").is_symlink()
    assert real.read_text() not in ("", "old")
    assert stat.S_IMODE(real.stat().st_mode) == 0o604


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (".", "it is a directory"),
        ("none/out.txt", "No such file or directory"),
        ("file.txt/out.txt", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("/proc/nothing", "cannot write"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_anything_is_loaded(
    shell: Shell, path: str, said: str
) -> None:
    (shell.cwd / "file.txt").write_text("")
    refused(shell(f"g -m missing.gguf -o {path} the"), said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everything")
def test_permissions_are_looked_at(shell: Shell) -> None:
    (shell.cwd / "mine.txt").write_text("old")
    (shell.cwd / "mine.txt").chmod(0o444)
    refused(shell("g -o mine.txt the"), "no permission")
    (shell.cwd / "shut").mkdir(mode=0o555)
    refused(shell("g -o shut/out.txt the"), "Permission denied")


def test_a_failure_leaves_the_file_as_it_was(shell: Shell) -> None:
    (shell.cwd / "out.txt").write_text("old")
    refused(shell(f"g -m {shell.models / 'target.gguf'} -c 8 -o out.txt the and of in to"), "extra argument")
    refused(shell("g -c 8 -o out.txt 'the and of in to'"), "the context holds 8")
    assert (shell.cwd / "out.txt").read_text() == "old"
    done = shell("ulimit -f 1; trap '' XFSZ; g -n 200 --json --logprobs 3 -o out.txt the")
    assert done.returncode == 1
    assert "out.txt: cannot write: File too large; out.txt is as it was" in done.stderr
    assert (shell.cwd / "out.txt").read_text() == "old"
    assert [p.name for p in shell.cwd.iterdir() if "specdec" in p.name] == []


def test_devices_and_pipes_are_written_directly(shell: Shell) -> None:
    text = shell("g -q -s 1 -n 9 the").stdout
    assert shell("g -q -s 1 -n 9 -o >(cat) the; wait $!").stdout == text
    assert shell("g -q -s 1 -n 9 -o /dev/stdout the").stdout == text
    assert shell("g -q -s 1 -n 9 -o - the").stdout == text
    shell("echo first > log; g -q -s 1 -n 9 -o /dev/stdout the >> log")
    assert (shell.cwd / "log").read_bytes().decode() == "first\n" + text
    full = shell("g -q -n 9 -o /dev/full the")
    assert full.returncode == 1
    assert full.stderr == "specdec: /dev/full: cannot write: No space left on device\n"


def test_failed_requests_are_in_the_file_too(shell: Shell) -> None:
    done = shell("g -q --jsonl -o out.jsonl -n 2", stdin=requests({"prompt": "the"}, {"prompt": ""}))
    assert done.returncode == 1
    first, second = map(json.loads, (shell.cwd / "out.jsonl").read_text().splitlines())
    assert first["completion_tokens"] == 2
    assert second["error"]["line"] == 2


# Text.


@pytest.mark.parametrize("encoding", ["", "ascii", "utf-16", "cp1252"])
def test_json_survives_every_encoding_of_stdout(shell: Shell, encoding: str) -> None:
    shell.env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    request = requests({"id": "größe →", "prompt": "the", "n": 40, "ignore_eos": True, **WILD})
    done = subprocess.run(
        [SPECDEC, "generate", *shell.pair, "--jsonl", "-q"],
        input=request.encode(), env=shell.env, cwd=shell.cwd, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    got = json.loads(done.stdout.decode(encoding or "ascii"))
    assert got["id"] == "größe →"
    assert got["completion_tokens"] == 40
    assert not got["text"].isascii()


def test_text_in_a_locale_that_lacks_it(shell: Shell) -> None:
    wild = "g -q -n 60 -s 3 --temp 5 --top-k 0 --min-p 0 --top-p 1 the"
    text = shell(wild).stdout
    assert not text.isascii()
    assert text.encode("utf-8", "strict").decode() == text
    for encoding in ("ascii", "latin-1"):
        shell.env["PYTHONIOENCODING"] = encoding
        assert shell(wild).stdout == text.encode(encoding, "replace").decode("utf-8", "surrogateescape")
        shell(f"{wild} -o out.txt")
        assert (shell.cwd / "out.txt").read_bytes().decode() == text


def test_no_character_is_cut_and_no_stop_string_shown(shell: Shell) -> None:
    wild = {"prompt": "the", "n": 60, "seed": 3, **WILD}
    (whole,) = objects(shell("g --jsonl -q", stdin=requests(wild)))
    text = whole["text"]
    stops = [text[i : i + 3] for i in range(5, len(text) - 3, 4)]
    asked = requests(*({**wild, "stop": ["never there", stop]} for stop in stops))
    lines = objects(shell("g --jsonl -q --stream-json", stdin=asked))
    results = [line for line in lines if line["event"] == "result"]
    rounds = "".join(line["text"] for line in lines if line["event"] == "round")
    assert rounds == "".join(r["text"] for r in results)
    for stop, result in zip(stops, results, strict=True):
        assert result["text"] == text[: text.index(stop)]
        assert result["finish_reason"] == "stop"


# The shell.


def test_ways_of_bash(shell: Shell) -> None:
    (shell.cwd / "p.txt").write_text("the and of")
    text = shell("g -q --temp 0 -n 6 'the and of'").stdout
    for line in (
        "g -q --temp 0 -n 6 -f <(cat p.txt)",
        "g -q --temp 0 -n 6 -f p.txt < /dev/null",
        "set -o pipefail; cat p.txt | g -q --temp 0 -n 6 | cat",
        "export -f g; xargs -d '\\n' -n 1 bash -c 'g -q --temp 0 -n 6 \"$0\"' < p.txt",
    ):
        done = shell(line)
        assert (done.returncode, done.stdout) == (0, text), line
    with_newline = shell("g -q --temp 0 -n 6 <<< 'the and of'")
    assert with_newline.stdout == shell("g -q --temp 0 -n 6 $'the and of\\n'").stdout


@pytest.mark.parametrize("flags", ["", "--json", "--stream-json", "--jsonl"])
def test_a_pipe_that_closes_is_the_end(shell: Shell, flags: str) -> None:
    stdin = requests(*[{"prompt": "the", "n": 20}] * 3) if flags == "--jsonl" else "the"
    done = shell(f"g -n 100 {flags} | head -c 5; echo ${{PIPESTATUS[0]}} >&2", stdin=stdin)
    assert len(done.stdout) == 5 or not flags
    assert done.stderr.splitlines()[-1] == "0"
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.parametrize("flags", ["", "--json", "--stream-json", "--jsonl"])
def test_a_full_disk_is_one_line(shell: Shell, flags: str) -> None:
    stdin = requests({"prompt": "the"}) if flags == "--jsonl" else "the"
    done = shell(f"g -n 3 {flags} > /dev/full", stdin=stdin)
    assert done.returncode == 1
    assert done.stderr == "specdec: cannot write the output: No space left on device\n"


def test_nothing_but_text_without_a_terminal(shell: Shell) -> None:
    shell.env |= {"TERM": "xterm-256color", "COLUMNS": "20", "NO_COLOR": "1"}
    done = shell("g -n 30 --temp 0 --color the")  # sampled, a byte of the text could be any
    assert "\x1b" not in done.stdout + done.stderr
    shell.env |= {"TERM": "dumb", "CLICOLOR_FORCE": "1", "FORCE_COLOR": "1", "NO_COLOR": ""}
    again = shell("g --jsonl", stdin=requests({"prompt": "the", "n": 3, "temp": 0}))
    assert "\x1b" not in again.stdout + again.stderr
    assert again.stderr.startswith("1 requests, 0 failed; 3 tokens in ")


# Signals.


ENDS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_in_events_and_requests(shell: Shell, number: signal.Signals, code: int) -> None:
    process = shell.slow("--jsonl", "--stream-json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(requests({"id": 1, "prompt": "the"}, {"id": 2, "prompt": "the"}).encode())
    process.stdin.flush()
    first = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == code
    *rounds, last = [json.loads(line) for line in out.splitlines()]
    assert (last["id"], last["event"], last["finish_reason"]) == (1, "result", "interrupted")
    assert last["tokens"] == [t for r in first + rounds for t in r["tokens"]]
    assert b"Traceback" not in errors
    assert errors.startswith(b"1 requests, 0 failed; ")


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_while_waiting_for_a_request(shell: Shell, number: signal.Signals, code: int) -> None:
    process = shell.start(*shell.pair, "--jsonl", "-q")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(requests({"prompt": "the", "n": 2}).encode())
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["completion_tokens"] == 2
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(10) == code
    assert process.communicate() == (b"", b"")


@pytest.mark.parametrize(("number", "code"), ENDS)
@pytest.mark.parametrize("flags", [[], ["--stream-json"]])
def test_a_signal_leaves_the_file_as_it_was(
    shell: Shell, number: signal.Signals, code: int, flags: list[str]
) -> None:
    (shell.cwd / "out.txt").write_text("old")
    process = shell.slow("-o", "out.txt", *flags, "the")

    def begun() -> bool:
        return any(p.stat().st_size > 10 for p in shell.cwd.glob(".specdec-*"))

    deadline = time.monotonic() + 30
    while not begun() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert out == b""
    assert errors.endswith(b"specdec: interrupted; out.txt is as it was\n")
    assert b"Traceback" not in errors
    assert (shell.cwd / "out.txt").read_text() == "old"
    assert list(shell.cwd.glob(".specdec-*")) == []
