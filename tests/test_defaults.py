"""Settings from flags, environment and config.toml, and what Tab completes: of the real program."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from specdec.cli.options import option, takes

from specdec.errors import UsageError

SPECDEC = Path(sys.executable).with_name("specdec")
HEAVY = {"llama_cpp", "numpy", "gguf", "huggingface_hub"}


class Program:
    """specdec in an empty home of its own."""

    def __init__(self, home: Path) -> None:
        self.config = home / "config" / "specdec" / "config.toml"
        self.models = self.config.with_name("models.toml")
        self.config.parent.mkdir(parents=True)
        self.cwd = home / "work"
        self.cwd.mkdir()
        kept = {k: v for k, v in os.environ.items() if k in ("LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")}
        self.env = {
            **kept,
            "PATH": f"{SPECDEC.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "HF_HUB_OFFLINE": "1",
        }

    def __call__(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(SPECDEC, *args, **env)

    def run(self, *command: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Another program in the same place."""
        return subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**self.env, **env},
            cwd=self.cwd,
            timeout=60,
            check=False,
        )

    def settings(self, *args: object, **env: str) -> dict[str, tuple[str, str]]:
        """Value and origin of every flag of generate."""
        done = self("generate", "--show-settings", *args, **env)
        assert (done.returncode, done.stderr) == (0, "")
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        return {flag: (value, origin) for flag, value, origin in rows}

    def refused(self, *args: object, **env: str) -> str:
        """Its one line of error."""
        done = self("generate", *args, "the", **env)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("specdec: ")
        assert done.stderr.count("\n") == 1
        return done.stderr[len("specdec: ") :].strip()


@pytest.fixture
def specdec(tmp_path: Path) -> Program:
    return Program(tmp_path)


# Which one holds.

KINDS = {  # default; at the top of config.toml, in [generate], variable, command line: as written, as read
    "--temp": ("0.8", ("0.1", "0.1"), ("0.2", "0.2"), ("0.3", "0.3"), (["--temp", "0.4"], "0.4")),
    "--ctx-size": ("4096", ("1", "1"), ("2", "2"), ("3", "3"), (["-c", "4"], "4")),
    "--model": ("not set", ("'a'", "a"), ("'b'", "b"), ("c", "c"), (["-m", "d"], "d")),
    "--accept": ("block", ("'token'", "token"), ("'block'", "block"), ("typical", "typical"),
                 (["--accept", "token"], "token")),
    "--quiet": ("false", ("true", "true"), ("false", "false"), ("yes", "true"), (["-q"], "true")),
    "--stop": ("not set", ("['a']", '["a"]'), ("['b', '\\n']", '["b", "\\\\n"]'),
               ("c d\n\ne\n", '["c d", "e"]'), (["--stop", "f", "-r", "g"], '["f", "g"]')),
}  # fmt: skip


def test_flags_come_before_environment_before_config_file_before_defaults(specdec: Program) -> None:
    def shown(*args: str, **env: str) -> dict[str, tuple[str, str]]:
        return {flag: setting for flag, setting in specdec.settings(*args, **env).items() if flag in KINDS}

    names = {flag: f"SPECDEC_{flag[2:].upper().replace('-', '_')}" for flag in KINDS}
    top = "".join(f"{flag[2:]} = {kind[1][0]}\n" for flag, kind in KINDS.items())
    table = "".join(f"{flag[2:]} = {kind[2][0]}\n" for flag, kind in KINDS.items())
    variables = {names[flag]: kind[3][0] for flag, kind in KINDS.items()}
    args = [arg for kind in KINDS.values() for arg in kind[4][0]]

    assert shown() == {flag: (kind[0], "default") for flag, kind in KINDS.items()}
    specdec.config.write_text(top)
    assert shown() == {flag: (kind[1][1], str(specdec.config)) for flag, kind in KINDS.items()}
    specdec.config.write_text(f"{top}[generate]\n{table}")
    in_table = {flag: (kind[2][1], f"{specdec.config} [generate]") for flag, kind in KINDS.items()}
    assert shown() == in_table
    assert shown(**dict.fromkeys(variables, "")) == in_table  # an empty variable sets nothing
    assert shown(**variables) == {flag: (kind[3][1], names[flag]) for flag, kind in KINDS.items()}
    assert shown(*args, **variables) == {flag: (kind[4][1], "flag") for flag, kind in KINDS.items()}


def test_a_run_obeys_them(specdec: Program, models: Path) -> None:
    specdec.config.write_text(
        f"model = '{models / 'target.gguf'}'\ndraft = '{models / 'cousin.gguf'}'\nctx_size = 256\n"
        "threads = 1\nseed = 1\nmax-tokens = 9\n[generate]\nmax-tokens = 7\n"
    )
    done = specdec("generate", "--seed", 3, "the and of", SPECDEC_JSON="on", SPECDEC_SEED="2")
    got = json.loads(done.stdout)
    assert (got["completion_tokens"], got["seed"], got["drafter"]) == (7, 3, "model")
    assert got["model"] == str(models / "target.gguf")
    assert got["draft"] == str(models / "cousin.gguf")


def test_every_long_spelling_works_and_the_main_one_comes_first(specdec: Program) -> None:
    assert specdec.settings(SPECDEC_TEMPERATURE="0.3")["--temp"] == ("0.3", "SPECDEC_TEMPERATURE")
    both = specdec.settings(SPECDEC_TEMPERATURE="0.3", SPECDEC_TEMP="0.4")
    assert both["--temp"] == ("0.4", "SPECDEC_TEMP")
    specdec.config.write_text("n_predict = 3\n[generate]\npredict = 4\n")
    assert specdec.settings()["--max-tokens"] == ("4", f"{specdec.config} [generate]")


@pytest.mark.parametrize("words", [("1", "TRUE", "Yes", "on"), ("0", "False", "no", "off")])
def test_switches_in_the_environment(specdec: Program, words: tuple[str, ...]) -> None:
    value = str(words[0] == "1").lower()
    flags = ("color", "quiet", "raw", "verbose")
    specdec.config.write_text("".join(f"{flag} = {str(value == 'false').lower()}\n" for flag in flags))
    got = specdec.settings(
        **{f"SPECDEC_{flag.upper()}": word for flag, word in zip(flags, words, strict=True)}
    )
    assert {flag: got[f"--{flag}"] for flag in flags} == {f: (value, f"SPECDEC_{f.upper()}") for f in flags}


def test_what_belongs_to_one_run_is_not_taken_from_elsewhere(specdec: Program) -> None:
    variables = {
        "SPECDEC_PROMPT": "x",
        "SPECDEC_FILE": "x",
        "SPECDEC_SHOW_SETTINGS": "1",
        "SPECDEC_HELP": "1",
    }
    assert specdec.settings(**variables) == specdec.settings()
    assert "--prompt" not in specdec.settings()
    done = specdec("generate", **variables)
    assert (done.returncode, "is empty" in done.stderr) == (2, True)
    for key in ("prompt", "file", "show-settings"):
        specdec.config.write_text(f'{key} = "x"\n')
        assert specdec.refused() == f"{specdec.config}: {key}: can only be given on the command line"


def test_variables_of_others_are_left_alone(specdec: Program) -> None:
    assert specdec.settings(SPECDEC_KERNELS="reference", SPECDEC_NONSENSE="1") == specdec.settings()


# What they refuse.


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SPECDEC_TEMP", "abc", "'abc' should be a valid number"),
        ("SPECDEC_TEMPERATURE", "-1", "'-1' should be greater than or equal to 0"),
        ("SPECDEC_TOP_K", "1.5", "'1.5' should be a valid integer"),
        ("SPECDEC_ACCEPT", "always", "'always' is not one of 'block', 'token', 'typical'"),
        ("SPECDEC_QUIET", "maybe", "'maybe' should be true or false, yes or no, on or off, 1 or 0"),
    ],
)
def test_a_bad_variable_is_named(specdec: Program, variable: str, value: str, said: str) -> None:
    assert specdec.refused(**{variable: value}) == f"{variable}: {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temp = 'hot'", "temp: must be a number"),
        ("temp = true", "temp: must be a number"),
        ("top_k = 1.5", "top_k: must be a whole number"),
        ("quiet = 1", "quiet: must be true or false"),
        ("model = 3", "model: must be a text in quotes"),
        ("stop = 'a'", "stop: must be a list in [ ], each item a text in quotes"),
        ("stop = ['a', 1]", "stop: must be a list in [ ], each item a text in quotes"),
        ("temp = 200", "temp: 200 should be less than or equal to 100"),
        ("[generate]\ntemp = 200", "[generate] temp: 200 should be less than or equal to 100"),
        ("accept = 'always'", "accept: 'always' is not one of 'block', 'token', 'typical'"),
        ("tempp = 1", "tempp: unknown key; did you mean temp?"),
        ("[generate]\nctx_sise = 1", "[generate] ctx_sise: unknown key; did you mean ctx-size?"),
        ("q = true", "q: unknown key; keys are the long names of flags, as --show-settings lists them"),
        ("[generat]\ntemp = 1", "unknown table [generat]; did you mean generate?"),
        ("generate = 3", "generate: is a command: give it a table, [generate]"),
        ("temp = 1\ntemperature = 1", "temperature: is the same setting as temp; keep one of them"),
        ("temp = ", "not valid TOML: Invalid value (at line 1, column 8)"),
    ],
)
def test_a_mistake_in_the_config_file_is_named(specdec: Program, text: str, said: str) -> None:
    specdec.config.write_text(f"{text}\n")
    assert specdec.refused() == f"{specdec.config}: {said}"


def test_a_config_file_that_cannot_be_read(specdec: Program) -> None:
    specdec.config.write_bytes(b"model = 'caf\xe9'\n")
    assert specdec.refused() == f"{specdec.config}: cannot be read: it is not UTF-8 text"
    specdec.config.unlink()
    specdec.config.mkdir()
    assert specdec.refused() == f"{specdec.config}: cannot be read: Is a directory"


def test_help_and_other_commands_do_not_mind_a_broken_config_file(specdec: Program) -> None:
    specdec.config.write_text("temp = \n")
    for args in (["--help"], ["generate", "--help"], ["models", "list", "--names"]):
        done = specdec(*args)
        assert (done.returncode, done.stderr) == (0, "")


def test_help_says_that_there_are_other_sources(specdec: Program) -> None:
    assert "config.toml" in specdec("--help").stdout
    page = " ".join(specdec("generate", "--help").stdout.replace("│", " ").split())
    assert "from the environment (SPECDEC_TEMP for --temp), then from config.toml" in page


# Tables of commands.


@dataclass(frozen=True)
class Some:
    temp: Annotated[float, option("--temp", help="T", max=2.0)] = 0.8


@dataclass(frozen=True)
class More:
    lines: Annotated[int, option("--lines", help="N", max=50)] = 1
    prompt: Annotated[str | None, option("--prompt", once=True, help="P")] = None


@pytest.fixture
def two_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs one of two commands, of which only the second takes --lines; gives what it was called with."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    called: list[object] = []
    app = typer.Typer()
    app.command("first")(takes(Some)(lambda some: called.append(some)))
    app.command("second")(takes(Some, More)(lambda some, more: called.append((some, more))))

    def run(config: str, *args: str) -> object:
        (tmp_path / "specdec").mkdir(exist_ok=True)
        (tmp_path / "specdec" / "config.toml").write_text(config)
        app(list(args), standalone_mode=False)
        return called.pop()

    return run


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="XDG_CONFIG_HOME is for the others")
def test_keys_and_tables_of_another_command_are_fine(two_commands: Any) -> None:
    config = "lines = 5\ntemp = 1\n[second]\nlines = 7\ntemp = 2\n"
    assert two_commands(config, "first") == Some(1.0)
    assert two_commands(config, "second") == (Some(2.0), More(7))
    assert two_commands(config, "second", "--lines", "9", "--prompt", "p") == (Some(2.0), More(9, "p"))
    for table, error in {"first": "lines: unknown key", "second": "nonsense: unknown key"}.items():
        key = error.partition(":")[0]
        with pytest.raises(UsageError, match=rf"config.toml: \[{table}\] {error}"):
            two_commands(f"[{table}]\n{key} = 1\n", "first")


# --show-settings.


def test_show_settings_lists_every_flag_once_and_starts_nothing(specdec: Program) -> None:
    got = specdec.settings("-m", "no-such-model", "--samplers", "top_k;temperature", SPECDEC_STOP="a\tb")
    assert list(got)[:2] == ["--max-tokens", "--stop"]
    assert got["--model"] == ("no-such-model", "flag")
    assert got["--samplers"] == ("top_k;temperature", "flag")
    assert got["--stop"] == ('["a\\tb"]', "SPECDEC_STOP")
    assert got["--seed"] == ("not set", "default")
    assert specdec.settings("--lora", "a.gguf")["--lora"] == ('["a.gguf"]', "flag")
    assert "--mirostat" not in got
    assert specdec.settings(SPECDEC_MIROSTAT="1")["--mirostat"] == ("1", "SPECDEC_MIROSTAT")


def test_show_settings_checks_the_flags_too(specdec: Program) -> None:
    assert "--temp" in specdec.refused("--show-settings", "--temp", "-1")
    specdec.config.write_text("temp = 200\n")
    assert "config.toml: temp: 200" in specdec.refused("--show-settings")


def in_terminal(specdec: Program, columns: int, *args: str) -> list[str]:
    """The lines it writes to a terminal, without colours."""
    main, other = pty.openpty()
    env = {**specdec.env, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen([SPECDEC, *args], stdout=other, stdin=other, env=env, cwd=specdec.cwd)
    os.close(other)
    written = b""
    try:
        while read := os.read(main, 1 << 16):
            written += read
    except OSError:  # how a terminal says that nobody is left
        pass
    os.close(main)
    assert process.wait(60) == 0
    plain = written.decode().replace("\r\n", "\n").replace("\x1b[2m", "").replace("\x1b[1m", "")
    return plain.replace("\x1b[0m", "").splitlines()


def test_show_settings_is_a_table_that_fits_a_terminal(specdec: Program) -> None:
    specdec.config.write_text("temp = 0.25\n")
    lines = in_terminal(specdec, 60, "generate", "--show-settings", "--draft-max", "4")
    rows = [line.split() for line in lines]
    assert ["flag", "value", "where", "from"] in rows
    assert ["--temp", "0.25", "config.toml"] in rows
    assert ["--draft-max", "4", "flag"] in rows
    assert max(map(len, lines[:-1])) <= 60
    assert lines[-1] == f"config.toml: {specdec.config}"
    specdec.config.unlink()
    lines = in_terminal(specdec, 60, "generate", "--show-settings")
    assert lines[-1] == f"config.toml: {specdec.config} (there is none yet)"


@pytest.mark.parametrize("shell", ["", "bash"])
def test_settings_and_completion_load_nothing_heavy(specdec: Program, shell: str) -> None:
    """Nor does completing in bash load what only conversion and colours need."""
    code = (
        "import sys; from specdec.cli import main; sys.argv = ['specdec', 'generate', '--show-settings']\n"
        "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    env = {"_SPECDEC_COMPLETE": "complete_bash", "COMP_WORDS": "specdec generate -m smol", "COMP_CWORD": "3"}
    done = specdec.run(sys.executable, "-c", code, **(env if shell else {}))
    loaded = set(done.stderr.split())
    assert "specdec.registry" in loaded
    assert loaded & (HEAVY | ({"pydantic", "rich"} if shell else set())) == set()


# Completion.


def completed(specdec: Program, line: str, shell: str = "bash") -> list[str]:
    """What the shell is told of a line whose last word is being typed."""
    bash = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    other = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = specdec(**{"_SPECDEC_COMPLETE": f"complete_{shell}", **(bash if shell == "bash" else other)})
    assert (done.returncode if shell != "fish" or done.stdout else 0, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    "line", ["generate -m ", "generate -md ", "generate --draft ", "models path ", "models pull "]
)
def test_models_are_completed_wherever_one_is_named(specdec: Program, line: str) -> None:
    names = specdec("models", "list", "--names").stdout.split()
    assert completed(specdec, f"specdec {line}") == names
    some = [name for name in names if name.startswith("smollm2-1")]
    assert completed(specdec, f"specdec {line}smollm2-1") == some
    assert "smollm2-135m" in some


def test_files_are_completed_beside_names(specdec: Program) -> None:
    specdec.models.write_text('[models.mine]\npath = "x.gguf"\n')
    (specdec.cwd / "sub").mkdir()
    for name in ("mine.gguf", "mine too.gguf", "mine.txt", ".mine.gguf", "sub/inner.gguf", "sub/mine.gguf"):
        (specdec.cwd / name).touch()
    (specdec.cwd / "mines").mkdir()
    assert completed(specdec, "specdec generate -m min") == [
        "ministral-3-3b",
        "ministral-3-14b",
        "mine",
        "mine.gguf",
        "mines/",
    ]
    assert completed(specdec, "specdec generate -m sub/") == ["sub/inner.gguf", "sub/mine.gguf"]
    assert completed(specdec, f"specdec generate -m {specdec.cwd}/sub/i") == [f"{specdec.cwd}/sub/inner.gguf"]
    assert completed(specdec, "specdec generate -m ~/work/mine.") == ["~/work/mine.gguf"]
    assert completed(specdec, "specdec generate -m su") == []  # a directory alone: the shell does it better
    assert completed(specdec, "specdec generate -m nowhere/x") == []


def test_commands_flags_and_choices_are_completed(specdec: Program) -> None:
    assert {"generate", "models"} <= set(completed(specdec, "specdec "))
    assert completed(specdec, "specdec models p") == ["path", "pull"]
    assert completed(specdec, "specdec generate --draft-m") == ["--draft-max", "--draft-min"]
    assert completed(specdec, "specdec generate --accept ") == ["block", "token", "typical"]
    assert completed(specdec, "specdec generate --temp 0.5 --accept t") == ["token", "typical"]


def test_broken_files_do_not_break_completion(specdec: Program) -> None:
    specdec.models.write_text("[models.mine\n")
    specdec.config.write_text("temp = \n")
    (specdec.cwd / "a.gguf").touch()
    assert completed(specdec, "specdec generate -m ") == ["a.gguf"]
    assert completed(specdec, "specdec generate --accept b", "fish") == ["block"]
    assert completed(specdec, "specdec generate -m small") == []


def test_fish_and_zsh_are_told_what_it_is(specdec: Program) -> None:
    specdec.models.write_text('[models.a]\npath = "a"\ndescription = "Model:' + " word" * 60 + '; more"\n')
    fish = completed(specdec, "specdec generate -m a", "fish")
    assert fish == [f"a\tModel:{' word' * 60}"]
    zsh = "".join(completed(specdec, "specdec generate -m a", "zsh"))
    assert zsh == f'_arguments \'*: :(("a":"Model\\\\:{" word" * 60}"))\''
    flags = completed(specdec, "specdec generate --", "fish")
    assert all(flag.startswith("-") for flag in flags)  # no help text was broken into lines
    assert any(flag.startswith("--accept\tblock: block verification") for flag in flags)


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _specdec_completion specdec"),
        ("zsh", "#compdef specdec"),
        ("fish", "complete --command specdec --no-files"),
    ],
)
def test_the_script_of_each_shell(specdec: Program, shell: str, line: str) -> None:
    done = specdec("--show-completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert any(written.startswith(line) for written in done.stdout.splitlines())
    installed = specdec("--install-completion", shell)
    assert installed.returncode == 0
    assert done.stdout.strip() in Path(installed.stdout.splitlines()[0].rpartition(" ")[2]).read_text()


def test_the_script_of_a_shell_nobody_knows(specdec: Program) -> None:
    done = specdec("--show-completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_a_real_bash(specdec: Program) -> None:
    script = (
        "source <(specdec --show-completion bash)\ncomplete -p specdec\n"
        "COMP_WORDS=(specdec generate -m smollm2-135m-); COMP_CWORD=3; _specdec_completion specdec\n"
        'echo "${COMPREPLY[@]}"'
    )
    done = specdec.run("bash", "--norc", "-c", script)
    assert done.stdout.splitlines() == [
        "complete -o default -F _specdec_completion specdec",
        "smollm2-135m-wide",
    ]
    (specdec.cwd / "only.gguf").touch()
    guessed = specdec.run("bash", "--norc", "-c", "specdec --show-completion; true")
    assert "COMPREPLY" in guessed.stdout
