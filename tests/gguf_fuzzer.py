"""Runs damaged GGUFs, each in a process forked from this one: what became of each as a line of JSON.

    python tests/gguf_fuzzer.py DIRECTORY FIRST COUNT

DIRECTORY holds the whole files. A case is its seed: which file, what is damaged.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf_damage

SECONDS = 15  # of the processor that a case may take; it needs 0.1
WAIT = 120  # seconds that it may take on a busy machine
MEMORY = 512 << 20  # bytes of address space that a case may take beyond what it begins with
PROMPT, TOKENS = 40, 8  # tokens
SENTENCE = "the cat and the dog, the cat and the dog"


def damaged(directory: Path, seed: int) -> tuple[str, bytes, str]:
    """The name of the file that a seed means, its damaged bytes, and what is damaged."""
    rng = random.Random(seed)
    source = rng.choice(sorted(directory.glob("*.gguf")))
    broken, what = gguf_damage.damage(source.read_bytes(), rng)
    return source.stem, broken, what


def run(path: Path) -> dict[str, Any]:
    """What becomes of one file in this process: refused with a message, or the number of tokens it wrote."""
    from specdec import Drafting, Engine, Loading, SamplingParams, SpecdecError

    loading, drafting = Loading(n_ctx=64, threads=1), Drafting(draft_max=3)
    try:
        with Engine(path, path, loading=loading, drafting=drafting) as engine:  # it drafts for itself
            messages = [{"role": "user", "content": SENTENCE}]
            text = engine.tokenize_chat(messages) if engine.has_template else engine.tokenize(SENTENCE)
            written = []
            for temperature in (0.0, 0.8, 0.0):
                decoder = engine.decoder(SamplingParams(temperature=temperature), seed=1)
                for step in decoder.generate(text[:PROMPT], TOKENS):
                    written.extend(step.tokens)
                engine.redraft(Drafting(drafter="none") if temperature else drafting, path)
            return {"wrote": len(written)}
    except SpecdecError as error:
        return {"refused": str(error)}


def case(directory: Path, seed: int, path: Path) -> dict[str, Any]:
    """One seed, in a forked process: its outcome, how it ended, seconds, kilobytes at most."""
    name, broken, what = damaged(directory, seed)
    path.write_bytes(broken)
    answer, errors = path.with_suffix(".json"), path.with_suffix(".stderr")
    answer.unlink(missing_ok=True)
    began = time.perf_counter()
    child = os.fork()
    if not child:
        _alone(path, answer, errors)
    _, status, usage = os.wait4(child, 0)
    outcome: dict[str, Any] = {"seed": seed, "file": name, "damage": what}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hung = number in (signal.SIGALRM, signal.SIGXCPU)
        outcome["died"] = "hung" if hung else signal.Signals(number).name
        outcome["stderr"] = errors.read_text(errors="replace")[-2000:]
    elif os.WEXITSTATUS(status) or not answer.exists():
        outcome["died"] = f"exit status {os.WEXITSTATUS(status)}"
        outcome["stderr"] = errors.read_text(errors="replace")[-2000:]
    else:
        outcome |= json.loads(answer.read_text())
    return outcome | {"seconds": round(time.perf_counter() - began, 3), "kilobytes": usage.ru_maxrss}


def _alone(path: Path, answer: Path, errors: Path) -> None:
    """The forked process: never returns."""
    status = 1
    try:
        file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        answer.write_text(json.dumps(run(path)))
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    directory, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    import specdec  # before the forks, so that each finds it loaded
    import specdec.backend

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    assert specdec.Engine
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"XDG_CACHE_HOME": place, "GGML_NO_BACKTRACE": "1"}
        for seed in range(first, first + count):
            print(json.dumps(case(directory, seed, Path(place) / "model.gguf")), flush=True)


if __name__ == "__main__":
    main()
