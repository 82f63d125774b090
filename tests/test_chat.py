"""``specdec chat`` as a script: turns and commands through a pipe."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from chat import Chat


def test_answers_on_stdout_and_a_line_of_statistics_each_on_stderr(chat: Chat) -> None:
    done = chat("the and of", "and then", args=("--seed", 1))
    plain = chat("the and of", "and then", args=("--drafter", "none"))
    assert (done.returncode, plain.returncode) == (0, 0)
    assert done.stdout == plain.stdout
    assert len(done.stderr.splitlines()) == 2
    assert all(line.startswith("16 tok · ") and len(line) <= 60 for line in done.stderr.splitlines())
    assert "\x1b" not in done.stdout + done.stderr


def test_a_second_turn_sees_the_first(chat: Chat) -> None:
    two = chat("the and of", "and then", "/save a.json")
    alone = chat("and then")
    assert two.stdout.endswith(chat.saved("a.json")[-1]["content"] + "\n")
    assert not two.stdout.endswith(alone.stdout)


def test_what_is_saved_is_loaded_and_answered_by_generate(chat: Chat) -> None:
    first = chat("/system be nice", "the and of", "/save a.json", "and then", "/save b.json")
    assert first.returncode == 0
    assert [m["role"] for m in chat.saved("a.json")] == ["system", "user", "assistant"]
    again = chat("/load a.json", "and then", "/save c.json")
    assert chat.saved("c.json")[:-1] == chat.saved("b.json")[:-1]
    assert again.stdout == chat.saved("c.json")[-1]["content"] + "\n"
    (chat.cwd / "ask.json").write_text(json.dumps(chat.saved("c.json")[:-1]))
    command = chat.command("--quiet", "--messages", "ask.json")
    command[1] = "generate"
    done = subprocess.run(command, capture_output=True, env=chat.env, cwd=chat.cwd, check=True)
    assert done.stdout.decode() == chat.saved("c.json")[-1]["content"]


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"messages": []}', '[{"role": "nobody", "content": "x"}]', "[1]", "\0"]
)
def test_a_broken_file_changes_nothing(chat: Chat, broken: str) -> None:
    (chat.cwd / "broken.json").write_text(broken)
    done = chat("the and of", "/save a.json", "/load broken.json", "/load missing.json", "/save b.json")
    assert done.returncode == 1
    assert "broken.json" in done.stderr
    assert "missing.json" in done.stderr
    assert "specdec: 2 of the script's lines failed" in done.stderr
    assert chat.saved("a.json") == chat.saved("b.json")


def test_undo_retry_edit_and_reset(chat: Chat) -> None:
    done = chat(
        "the and of", "and then", "/save 0.json", "/retry", "/save 1.json", "/undo", "/save 2.json",
        "/edit had this", "/save 3.json", "/reset", "/undo", "/retry", "/edit x",
    )  # fmt: skip
    zero, one, two, three = (chat.saved(f"{i}.json") for i in range(4))
    assert one == zero  # greedy: the same answer
    assert two == zero[:2]
    assert three[0] == {"role": "user", "content": "had this"}
    assert len(three) == 2
    assert "taken back: and then" in done.stderr
    assert "there is nothing to take back" in done.stderr
    assert "specdec: there is no message to answer again" in done.stderr
    assert "specdec: there is no message to edit" in done.stderr
    assert done.returncode == 1


def test_settings_change_and_bad_ones_do_not(chat: Chat) -> None:
    done = chat(
        "/set", "/set temp 0.5", "/set draft-max 3", "/set --top-k 5", "/set ignore_eos on",
        '/set stop ["b"]',
        "/set temp hot", "/set draft_max 99", "/set model x", "/set top_k", "/set grammar (", "/set seed 7",
        "/set stop default", "/set stop", "/set logit_bias 5+1 6-2", "/set logit_bias default",
        '/set json_schema {"type": "integer"}', "/set json_schema", "/set json_schema default",
        '/set stop ["a"]', "the and of",
    )  # fmt: skip
    said = done.stderr.splitlines()
    assert said.count('json_schema {"type": "integer"}') == 2
    assert 'logit_bias ["5+1", "6-2"]' in said
    assert said.count("stop (default)") == 3
    for line in ("temp 0.5", "draft_max 3", "top_k 5", "ignore_eos True", 'stop ["a"]', "seed 7"):
        assert line in said
    assert "mirostat" not in done.stderr
    assert 'specdec: temp must be a number, not "hot"' in said
    assert any("longer than the 24 that this run was started for" in line for line in said)
    assert any(
        line.startswith("specdec: model is no setting of a chat; there are max_tokens") for line in said
    )
    assert any(line.startswith("specdec: the grammar cannot be used") for line in said)
    assert "specdec: 4 of the script's lines failed; the messages above say why" in said
    assert "a" not in done.stdout


def test_a_seed_makes_a_sampled_conversation_repeatable(chat: Chat) -> None:
    turns = ("the and of", "/set top_p 0.9", "and then", "/retry")
    runs = [chat(*turns, args=("--temp", 1, "--seed", seed)).stdout for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0].splitlines())) > 2


def test_the_drafter_changes_on_the_way(chat: Chat) -> None:
    done = chat(
        "/draft", "the and of", "/draft off", "/retry", "/draft lookup", "/retry",
        f"/draft {chat.models}/draft.gguf",
        "/retry", "/draft nowhere.gguf", "/stats", args=("--draft-max", 4),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) % 4 == 0
    assert len({tuple(lines[i : i + len(lines) // 4]) for i in range(0, len(lines), len(lines) // 4)}) == 1
    said = done.stderr
    assert said.count("drafter: model ") == 2
    assert "no drafter: plain decoding" in said
    assert "drafter: lookup" in said
    assert "nowhere.gguf" in said
    assert "4 turns · 64 tok" in said
    assert "accepted, by position in the draft" in said
    assert "by drafter" in said
    assert all(len(line) <= 60 for line in said.splitlines() if not line.startswith(("specdec", "drafter")))


def test_a_context_that_fills_up_says_what_it_forgets(chat: Chat) -> None:
    turns = [f"the {i} and of this that was" for i in range(8)]
    done = chat(*turns, "/save a.json", args=("-c", 200))
    assert done.returncode == 0
    assert (
        "the context is full: the oldest turn, “the 0 and of this that was…”, is no longer shown"
        in done.stderr
    )
    assert len(chat.saved("a.json")) == 16
    stopped = chat(*turns, args=("-c", 200, "--context-full", "stop"))
    assert stopped.returncode == 1
    assert "the context holds 200: take turns back" in stopped.stderr
    assert 0 < stopped.stdout.count("\n") < done.stdout.count("\n")


@pytest.mark.parametrize("hide", [False, True])
def test_reasoning_is_shown_or_hidden_and_always_kept(chat: Chat, hide: bool) -> None:
    """The template opens the block, and this model never closes it."""
    args = ("--hide-reasoning",) if hide else ()
    done = chat("the and of", "/save a.json", args=args, model="thinks.gguf")
    content = chat.saved("a.json")[-1]["content"]
    assert content.startswith("<think>\n")
    assert done.stdout.strip("\n") == ("" if hide else content.removeprefix("<think>\n").strip("\n"))


def test_a_model_without_a_template_names_the_way_out(chat: Chat) -> None:
    done = chat("hello", model="draft.gguf")
    assert (done.returncode, done.stdout) == (2, "")
    assert "this model has no chat template; --chat-template chatml gives it a common one" in done.stderr
    assert chat("the and of", args=("--chat-template", "chatml"), model="draft.gguf").returncode == 0


def test_help_names_every_command(chat: Chat) -> None:
    done = chat("/help", "/quit", "never said")
    for name in [
        "help",
        "system",
        "undo",
        "retry",
        "edit",
        "reset",
        "stats",
        "set",
        "draft",
        "save",
        "load",
        "copy",
        "quit",
    ]:
        assert f"  /{name}" in done.stderr
    assert (done.returncode, done.stdout) == (0, "")


def test_unknown_commands_and_arguments_that_are_none(chat: Chat) -> None:
    done = chat("/nonsense", "/undo 3", "/save", "/load", "/copy", "//the and of", "/save a.json")
    for message in (
        "/nonsense is no command",
        "/undo takes nothing",
        "/save needs",
        "/load needs",
        "no answer to",
    ):
        assert message in done.stderr
    assert chat.saved("a.json")[0]["content"] == "/the and of"
    assert done.returncode == 1


def test_a_turn_over_several_lines_and_bytes_that_are_no_utf_8(chat: Chat) -> None:
    done = subprocess.run(
        chat.command("-q"), input=b"the\\\nand of\n\xff\xfe\n/save a.json\n", capture_output=True,
        env=chat.env, cwd=chat.cwd, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"line 3 is not UTF-8" in done.stderr
    assert [m["content"] for m in chat.saved("a.json")][:1] == ["the\nand of"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_script_with_what_was_written_kept(chat: Chat, number: int, code: int) -> None:
    process = subprocess.Popen(
        chat.command("-n", -1, "-c", 4096, "--ignore-eos"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=chat.env, cwd=chat.cwd,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"the and of\n")
    process.stdin.flush()
    first = process.stdout.read(20)
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert len(first + rest) > 20
    assert b"Traceback" not in errors


def test_a_closed_pipe_is_enough(chat: Chat) -> None:
    command = " ".join(f"'{part}'" for part in chat.command("-n", 400))
    script = f"yes 'the and of' | {command} -c 2048 -q | head -c 50 | wc -c; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=chat.env,
        cwd=chat.cwd,
        timeout=120,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("50", "")
    assert done.returncode == 0
