"""llama.cpp's own programs on the same prompts: what they are given, and the speed they report."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from specdec.errors import SpecdecError, UsageError
from specdec.settings import Loading

from .bench_timed import Timed

SIMPLE, SERVER = "llama-speculative-simple", "llama-server"
PATIENCE = 600.0  # seconds until a server has loaded its models, or a program has told its flags
DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")
COUNTED = re.compile(r"n_(drafted|accept)\s*=\s*(\d+)")


class Asked(NamedTuple):
    """One run: the prompt as the model reads it, how many tokens to write, and how."""

    text: str
    tokens: tuple[int, ...]
    n: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Pair:
    """The files that everybody decodes with, and the machine's part of it."""

    target: Path
    draft: Path | None
    threads: int
    loading: Loading


class Peer(ABC):
    """A program of llama.cpp. command: its words, with flags of the user's own. name: what tables call it."""

    def __init__(self, name: str, command: Sequence[str], known: str, pair: Pair) -> None:
        self.name = name
        self.command = list(command)
        self._flags = _flags(self.command, known, pair)

    @abstractmethod
    def run(self, asked: Asked) -> Timed:
        """Decodes. Raises SpecdecError with the program's own reason when it fails."""

    def close(self) -> None:
        """Ends what still runs."""
        return


@dataclass(frozen=True)
class Rival:
    """A peer at one temperature. base: the name of the plain decoding that it is compared with."""

    name: str
    base: str
    peer: Peer
    temperature: float

    def run(self, asked: Asked) -> Timed:
        return self.peer.run(asked)


class SimplePeer(Peer):
    """llama-speculative-simple: started for each prompt; it tells what it decoded, and how long that took."""

    def run(self, asked: Asked) -> Timed:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt", newline="") as file:
            file.write(asked.text + "\n")  # it drops one newline at the end
            file.flush()
            done = subprocess.run(
                [
                    *self.command, *self._flags, "--no-escape", "-f", file.name, "-n", str(asked.n),
                    "--temp", f"{asked.temperature:g}", "--seed", str(asked.seed),
                ],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
        report = done.stdout + done.stderr
        decoded = DECODED.search(report)
        if done.returncode != 0 or decoded is None:
            raise SpecdecError(_failure(self.name, done.returncode, done.stderr or done.stdout))
        counted = {name: int(value) for name, value in COUNTED.findall(report)}
        return Timed(int(decoded[1]), float(decoded[2]), counted.get("drafted", 0), counted.get("accept", 0))


class ServerPeer(Peer):
    """llama-server: started once; its clock starts with the first token, which is not counted then."""

    def __init__(self, name: str, command: Sequence[str], known: str, pair: Pair) -> None:
        super().__init__(name, command, known, pair)
        self._log: IO[str] | None = None
        self._server: subprocess.Popen[str] | None = None
        self._url = ""

    def run(self, asked: Asked) -> Timed:
        if self._server is None:
            self._start()
        answer = self._post(
            {
                "prompt": list(asked.tokens), "n_predict": asked.n, "temperature": asked.temperature,
                "seed": asked.seed, "cache_prompt": True, "return_tokens": True, "stream": False,
            }
        )  # fmt: skip
        times = answer["timings"]
        emitted = max(0, int(times["predicted_n"]) - 1)
        tokens = tuple(int(token) for token in answer.get("tokens") or ()) or None
        return Timed(
            emitted,
            times["predicted_ms"] / 1e3,
            times.get("draft_n", 0),
            times.get("draft_n_accepted", 0),
            tokens,
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        if self._log is not None:
            self._log.close()
        self._server = self._log = None

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # close()
        self._server = subprocess.Popen(
            [*self.command, *self._flags, "-np", "1", "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        ends = time.monotonic() + PATIENCE
        while not self._healthy():
            if self._server.poll() is not None or time.monotonic() > ends:
                raise SpecdecError(_failure(self.name, self._server.poll(), self._logged()))
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # not listening yet, or still loading
            return False

    def _post(self, request: dict[str, object]) -> dict[str, Any]:
        assert self._server is not None
        body = urllib.request.Request(
            f"{self._url}/completion", json.dumps(request).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(body) as answer:
                value: dict[str, Any] = json.load(answer)
                return value
        except urllib.error.HTTPError as error:
            raise SpecdecError(
                _failure(self.name, error.code, error.read().decode(errors="replace"))
            ) from error
        except (OSError, ValueError) as error:
            raise SpecdecError(_failure(self.name, self._server.poll(), self._logged())) from error

    def _logged(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        return self._log.read()


def make_peers(commands: Sequence[str], pair: Pair) -> list[Peer]:
    """The peers of --peer. Raises UsageError for a command that cannot be run or is neither program."""
    peers: list[Peer] = []
    for command in commands:
        words = _words(command)
        program, known = _recognised(words)
        again = sum(peer.name.partition("#")[0] == program for peer in peers)
        name = f"{program}#{again + 1}" if again else program
        peers.append((ServerPeer if program == SERVER else SimplePeer)(name, words, known, pair))
    return peers


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--peer {command!r}: {error}") from error
    if not words:
        raise UsageError(f"--peer names no program: use {SIMPLE} or {SERVER}, and flags of your own")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--peer {words[0]}: there is no such program")
    return words


def _recognised(words: Sequence[str]) -> tuple[str, str]:
    """Which of the programs it is, and what its --help says."""
    try:
        done = subprocess.run(
            [*words, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--peer {words[0]}: it cannot be run: {error}") from error
    known = done.stdout + done.stderr
    for program in (SIMPLE, SERVER):
        if any(Path(word).name.startswith(program) for word in words):
            return program, known
    if "--port" in known:
        return SERVER, known
    if "--draft" in known or "--spec-" in known:
        return SIMPLE, known
    raise UsageError(f"--peer {words[0]} is neither {SIMPLE} nor {SERVER}, by its name and by its --help")


def _flags(command: Sequence[str], known: str, pair: Pair) -> list[str]:
    """The same files, threads and context as ours, except what the command itself says."""
    loading = pair.loading
    wanted: list[tuple[tuple[str, ...], object]] = [
        (("-m", "--model"), pair.target),
        (("-t", "--threads"), pair.threads),
        (("-c", "--ctx-size"), loading.n_ctx),
        (("-ngl", "--gpu-layers", "--n-gpu-layers"), loading.gpu_layers),
    ]
    kind = next((command[i + 1] for i, word in enumerate(command[:-1]) if word == "--spec-type"), None)
    if pair.draft is not None and (kind is None or "draft" in kind):
        wanted += [
            (("-md", "--model-draft", "--spec-draft-model"), pair.draft),
            (("-td", "--threads-draft", "--spec-draft-threads"), loading.threads_draft),
            (("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), loading.gpu_layers_draft),
        ]
        if (
            kind is None and "draft-simple" in known
        ):  # newer ones draft with a model only when they are told to
            wanted.append((("--spec-type",), "draft-simple"))
    flags: list[str] = []
    for names, value in wanted:
        if value is not None and not any(name in command for name in names):
            flags += [names[0], str(value)]
    return flags


def _failure(name: str, code: int | None, output: str) -> str:
    """One line: its last words."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "")
    ended = "does not answer" if code is None else f"failed with {code}"
    return f"{name} {ended}{f': {said[:300]}' if said else ' and said nothing'}"
