"""What a round costs outside llama_decode, at a vocabulary of 151,936. A script, not a test.

    python tests/bench_round.py
    SPECDEC_KERNELS=reference python tests/bench_round.py --profile

A tiny random pair makes llama_decode short and the vocabulary real: k = 8, at temperature 0 and with
llama-cli's default samplers at 0.8. Medians over the rounds, in microseconds, by part.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
from pathlib import Path

import numpy as np
import tiny

from specdec import kernels
from specdec.acceptance import BlockVerification
from specdec.backend import Context, Model
from specdec.decoder import Decoder
from specdec.drafters import ModelDrafter
from specdec.sampling import Sampler
from specdec.schedule import FixedSchedule
from specdec.settings import SamplingParams

N_VOCAB = 151_936
K = 8
PARTS = ("draft", "verify", "sample", "other")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        shape = {"n_vocab": N_VOCAB, "n_embd": 32, "n_layer": 1, "n_ff": 32, "n_head": 1, "n_head_kv": 1}
        paths = [Path(directory) / name for name in ("target.gguf", "draft.gguf")]
        for path, noise in zip(paths, (0.0, 0.05), strict=True):
            tiny.llama(path, seed=0, noise=noise, scale=6.0, **shape)  # type: ignore[arg-type]
        print(f"{kernels.name} kernels, vocabulary {N_VOCAB:,}, k = {K}; µs a round outside llama_decode\n")
        print("| temperature | in all | draft | verify | sample | other | accepted |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        with Model(paths[0]) as model, Model(paths[1]) as draft_model:
            target = Context(model, n_ctx=4096, n_outputs=K + 1, threads=1)
            draft = Context(draft_model, n_ctx=4096, threads=1)
            for temperature in (0.0, 0.8):
                measure(target, draft, temperature, options.rounds, profile=options.profile)


def measure(target: Context, draft: Context, temperature: float, n_rounds: int, *, profile: bool) -> None:
    params = SamplingParams(temperature=temperature)
    rng = np.random.default_rng(0)
    drafter = ModelDrafter(draft, params, rng, draft_max=K)
    sampler = Sampler(target.model.vocab, params, rng, target.n_ctx)
    decoder = Decoder(target, drafter, sampler, FixedSchedule(K), BlockVerification(), rng)
    steps = decoder.generate(np.arange(3, 40, dtype=np.int32))
    for _ in range(10):
        next(steps)
    profiler = cProfile.Profile()
    rounds: list[dict[str, float]] = []
    for _ in range(n_rounds):
        seconds = dict(decoder.stats.seconds)
        inside = {"draft": draft.decode_seconds, "verify": target.decode_seconds}
        if profile:
            profiler.enable()
        step = next(steps)
        profiler.disable()
        inside = {
            "draft": draft.decode_seconds - inside["draft"],
            "verify": target.decode_seconds - inside["verify"],
        }
        if step.drafted == K:
            rounds.append({p: decoder.stats.seconds[p] - seconds[p] - inside.get(p, 0.0) for p in PARTS})
    medians = {part: 1e6 * statistics.median(r[part] for r in rounds) for part in PARTS}
    whole = 1e6 * statistics.median(sum(r.values()) for r in rounds)
    parts = " | ".join(f"{medians[part]:.0f}" for part in PARTS)
    print(f"| {temperature} | {whole:.0f} | {parts} | {decoder.stats.acceptance_rate:.0%} |")
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
