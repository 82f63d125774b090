"""Damaged GGUFs: each is a clear error or a model that runs; never a crash, a hang or a memory blow-up.

``pytest tests/test_gguf_fuzz.py --fuzz-seeds 20000 --fuzz-start 5000`` tries others and more. What a seed
means is :mod:`gguf_fuzzer`'s to say, and ``python tests/gguf_fuzzer.py DIRECTORY SEED 1`` tries one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf_damage
import gguf_parts
import pytest
import tiny
import tiny_architectures

from specdec.errors import UsageError
from specdec.gguf_file import GGUFFile

if sys.platform == "win32":
    pytest.skip("forks", allow_module_level=True)

FUZZER = Path(__file__).with_name("gguf_fuzzer.py")
ARCHITECTURES = [name for name in tiny_architectures.ARCHITECTURES if name != "llama"]
LIMIT = 400_000  # kilobytes that a case may come to; an undamaged one comes to 80,000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Undamaged files: llama with each tokenizer, and every other architecture there is a tiny model of."""
    directory = tmp_path_factory.mktemp("whole")
    tiny.llama(directory / "llama-bpe.gguf", tokenizer="bpe", dtype="q8_0", chat_template=tiny.CHATML)
    tiny.llama(directory / "llama-spm.gguf", chat_template=tiny.CHATML)
    for name in (*ARCHITECTURES, "mamba"):
        tiny_architectures.write(name, directory / f"{name}.gguf")
    return directory


def run(directory: Path, first: int, count: int) -> list[dict[str, Any]]:
    """The outcomes of that many seeds, by as many processes as there are cores."""
    n = min(os.cpu_count() or 1, count)
    shares = [(first + i * count // n, (i + 1) * count // n - i * count // n) for i in range(n)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(FUZZER.parent),
        "PYTHONSAFEPATH": "1",
    }

    def share(place: tuple[int, int]) -> list[dict[str, Any]]:
        words = [sys.executable, str(FUZZER), str(directory), *map(str, place)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        outcomes = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0, done.stderr[-3000:]
        assert [outcome["seed"] for outcome in outcomes] == list(range(place[0], place[0] + place[1]))
        return outcomes

    with ThreadPoolExecutor(n) as pool:
        return [outcome for outcomes in pool.map(share, shares) for outcome in outcomes]


def wrong(outcome: dict[str, Any]) -> str | None:
    """What should not have become of a file."""
    said = outcome.get("refused")
    if "died" in outcome:
        return f"{outcome['died']}: {outcome['stderr'][-500:]}"
    if outcome["kilobytes"] > LIMIT:
        return f"took {outcome['kilobytes']:,} kB"
    if said is not None and ("\n" in said or not said.isprintable() or len(said) > 1000):
        return f"said {said!r}"
    # NaN in the midst of a text is noticed by the sampler, which has no file.
    if said is not None and "model.gguf" not in said and not said.endswith("the model's logits are broken"):
        return f"did not name the file: {said}"
    return None


def test_every_damaged_file_is_an_error_or_a_model(whole: Path, request: pytest.FixtureRequest) -> None:
    first, count = request.config.getoption("--fuzz-start"), request.config.getoption("--fuzz-seeds")
    outcomes = run(whole, first, count)
    bad = [f"seed {o['seed']} ({o['file']}; {o['damage']}): {why}" for o in outcomes if (why := wrong(o))]
    wrote = sum("wrote" in o for o in outcomes)
    print(f"seeds {first} to {first + count - 1}: {wrote} ran, {len(outcomes) - wrote} were refused")
    assert not bad, "\n".join(bad[:20])
    assert 0.05 < wrote / len(outcomes) < 0.6  # the damage is neither harmless nor hopeless


def test_undamaged_files_run(whole: Path, tmp_path: Path) -> None:
    """What the fuzzer takes apart and puts together again is still a model."""
    for source in sorted(whole.glob("*.gguf")):
        file = gguf_parts.parts(source.read_bytes())
        file.lay_out()
        (tmp_path / source.name).write_bytes(file.written())
        assert (tmp_path / source.name).read_bytes() == source.read_bytes()
        GGUFFile.read(tmp_path / source.name).require_text_generation()


def test_the_same_seed_is_the_same_damage(whole: Path) -> None:
    source = (whole / "qwen3moe.gguf").read_bytes()
    first, second = (gguf_damage.damage(source, random.Random(7)) for _ in range(2))
    assert first == second
    assert first[0] != source


# --- what each check is for: llama.cpp would end the process ----------------------------------------------


def changed(whole: Path, name: str, tmp_path: Path, key: str, value: Any) -> GGUFFile:
    """A file with another value for one key, or without it."""
    file = gguf_parts.parts((whole / f"{name}.gguf").read_bytes())
    file.entries = [e for e in file.entries if e.key.decode() != key]
    if value is not None:
        kind = {int: gguf_parts.U32, float: gguf_parts.F32, str: 8, list: 9}[type(value)]
        raw = value.encode() if isinstance(value, str) else value
        file.entries.append(gguf_parts.Entry(key.encode(), kind, (7, raw) if kind == 9 else raw))
    (tmp_path / "model.gguf").write_bytes(file.written())
    return GGUFFile.read(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("qwen3moe", "expert_count", 1025, "expert_count is 1025, which is more than the 1024 there may be"),
        ("qwen3moe", "expert_used_count", 5, "expert_used_count is 5, which is more than the 4 experts"),
        ("qwen3moe", "expert_used_count", None, "expert_used_count is 0, which leaves the 4 experts"),
        ("qwen3moe", "expert_group_count", 4, "expert_group_count is 4, which is not less than the 4"),
        ("qwen3", "expert_group_count", 1, "expert_group_count is 1, which is not less than the 0 experts"),
        ("qwen3moe", "expert_group_count", 3, "expert_group_count is 3, which does not divide the 4 experts"),
        ("qwen3moe", "expert_group_count", 2, "used_count is 0, which is not between 0 and the 2 groups"),
        ("qwen35", "rope.dimension_sections", 0, "dimension_sections is [0, 0, 0, 0], which does not divide"),
        ("qwen35", "rope.dimension_sections", 5, "dimension_sections is [5, 5, 5, 5], which does not divide"),
        ("qwen3", "attention.head_count", 0, "it has no attention heads"),
        ("qwen3", "nextn_predict_layers", 3, "nextn_predict_layers is 3, which is more than the 2 layers"),
        ("qwen3next", "full_attention_interval", 0, "full_attention_interval is 0, which is no distance"),
        ("rwkv7", "token_shift_count", 1, "token_shift_count is 1, which is not 2"),
        ("rwkv7", "wkv.head_size", 32, "wkv.head_size is 32, which is no multiple of 64 that divides 64"),
        ("gemma3", "attention.sliding_window", 1 << 31, "sliding_window is 2147483648, which is no length"),
        ("gemma3", "attention.sliding_window_pattern", 1, "pattern is 1, which gives no layer the window"),
        ("gemma3", "attention.sliding_window_pattern", [0] * 4, "an array of 4 bool, which gives no layer"),
        ("llama-spm", "rope.scaling.type", "cubic", "'cubic', which is none of none, linear, yarn, longrope"),
        ("lfm2", "rope.dimension_count", 0, "is 0, which is no even number from 2 to the 16 dimensions"),
        ("lfm2", "rope.dimension_count", 18, "is 18, which is no even number from 2 to the 16 dimensions"),
        ("qwen3", "rope.dimension_count", 8, "is 8, which is not the 16 dimensions of a head"),
        ("qwen3", "attention.value_length", 8, "keys have 16 dimensions and its values 8"),
        ("lfm2", "attention.head_count", 2, "attn_q.weight has (64,) rows, not 2 heads of 16"),
        ("qwen2", "attention.head_count", 3, "layer 0 has 3 attention heads for 2 of keys"),
        ("qwen3", "attention.layer_norm_rms_epsilon", -1.0, "is -1.0, which is no small positive number"),
        ("mamba2", "ssm.group_count", 3, "ssm.group_count is 3, which does not divide ssm.inner_size, 128"),
        ("qwen35", "ssm.group_count", 3, "ssm.group_count is 3, which does not divide ssm.time_step_rank, 4"),
        ("qwen35", "ssm.inner_size", 32, "ssm.inner_size is 32, which is not 4 heads of ssm.state_size, 16"),
    ],
)  # fmt: skip
def test_numbers_that_end_the_process(
    whole: Path, tmp_path: Path, name: str, key: str, value: Any, message: str
) -> None:
    file = changed(whole, name, tmp_path, f"{name.partition('-s')[0]}.{key}", value)
    with pytest.raises(UsageError) as raised:
        file.require_text_generation()
    said = str(raised.value)
    assert said.startswith(f"{tmp_path / 'model.gguf'}: ")
    assert message in said
    assert said.endswith(": the file is damaged, fetch it again")


@pytest.mark.parametrize(
    ("name", "tensor", "kind", "message"),
    [
        ("qwen3", "blk.0.attn_norm.weight", 1, "'blk.0.attn_norm.weight' is of type F16, not F32"),
        ("mamba2", "blk.1.ssm_d", 30, "'blk.1.ssm_d' is of type BF16, not F32"),
        ("lfm2", "blk.0.shortconv.conv.weight", 1, "'blk.0.shortconv.conv.weight' is of type F16, not F32"),
        ("rwkv7", "blk.0.channel_mix_lerp_k.weight", 1, "_mix_lerp_k.weight' is of type F16, not F32"),
        ("qwen35", "blk.0.ffn_up.weight", 26, "'blk.0.ffn_up.weight' is of type I32, not a type for weights"),
        ("nemotron_h", "blk.0.ssm_conv1d.bias", None, "it has no tensor blk.0.ssm_conv1d.bias"),
        ("qwen35", "blk.0.attn_gate.weight", None, "it has no tensor blk.0.attn_gate.weight"),
    ],
)
def test_tensors_that_end_the_process(
    whole: Path, tmp_path: Path, name: str, tensor: str, kind: int | None, message: str
) -> None:
    file = gguf_parts.parts((whole / f"{name}.gguf").read_bytes())
    for found in [t for t in file.tensors if t.name.decode() == tensor]:
        if kind is None:
            file.tensors.remove(found)
        else:
            found.type = kind
    file.lay_out()
    (tmp_path / "model.gguf").write_bytes(file.written())
    with pytest.raises(UsageError) as raised:
        GGUFFile.read(tmp_path / "model.gguf").require_text_generation()
    assert message in str(raised.value)
