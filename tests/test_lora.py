"""LoRA adapters on the target: they change its logits as they should, and drafts are judged by the result."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from specdec import Drafting, Engine, Loading, SamplingParams, UsageError
from specdec.backend import Context, Model

RANK, ALPHA = 2, 4.0
GREEDY = SamplingParams(temperature=0.0)


def adapter(path: Path, tensors: dict[str, tuple[int, int]], *, seed: int = 0) -> Path:
    """tensors: name → (rows, columns) of the weight that is adapted."""
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", ALPHA)
    for name, (rows, columns) in tensors.items():
        w.add_tensor(f"{name}.lora_a", rng.normal(size=(RANK, columns)).astype(np.float32))
        w.add_tensor(f"{name}.lora_b", rng.normal(size=(rows, RANK)).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def logits(model: Model, *lora: tuple[Path, float]) -> np.ndarray:
    with Context(model, n_ctx=32, threads=1, lora=lora) as context:
        return context.feed(np.array([1, 300, 301], np.int32))[0].copy()


def test_logits_move_by_the_scale(models: Path, tmp_path: Path) -> None:
    """On the output matrix the logits are linear in the scale, and adapters add up."""
    one = adapter(tmp_path / "one.gguf", {"output.weight": (512, 64)})
    two = adapter(tmp_path / "two.gguf", {"output.weight": (512, 64)}, seed=1)
    with Model(models / "target.gguf") as model:
        base, half, whole = logits(model), logits(model, (one, 0.5)), logits(model, (one, 1.0))
        assert np.abs(whole - base).max() > 1
        np.testing.assert_allclose(whole - base, 2 * (half - base), atol=1e-3)
        np.testing.assert_allclose(logits(model, (one, 0.0)), base, atol=1e-5)
        both = logits(model, (one, 1.0), (two, 0.3))
        np.testing.assert_allclose(both - whole, logits(model, (two, 0.3)) - base, atol=1e-3)


def test_speculative_text_is_the_adapted_targets(models: Path, tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora.gguf", {f"blk.{i}.attn_q.weight": (64, 64) for i in range(2)})
    texts = {}
    for lora in ((), ((path, 0.2),)):
        loading = Loading(n_ctx=256, threads=1, lora=lora)
        with Engine(models / "target.gguf", models / "cousin.gguf", loading=loading) as engine:
            prompt = engine.tokenize("the and of")
            for kind in ("model", "none"):
                engine.redraft(Drafting(drafter=kind), models / "cousin.gguf")  # type: ignore[arg-type]
                steps = engine.decoder(GREEDY, 1).generate(prompt, 30)
                texts[lora, kind] = "".join(step.text for step in steps)
    with_lora = ((path, 0.2),)
    assert texts[(), "model"] == texts[(), "none"]
    assert texts[with_lora, "model"] == texts[with_lora, "none"] != texts[(), "none"]


def test_what_does_not_fit_is_refused(models: Path, tmp_path: Path) -> None:
    wrong = adapter(tmp_path / "wrong.gguf", {"output.weight": (512, 32)})
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"missing\.gguf: there is no such LoRA adapter"):
        Engine(models / "target.gguf", loading=Loading(lora=((tmp_path / "missing.gguf", 1.0),)))
    for path in (wrong, junk, models / "cousin.gguf"):
        loading = Loading(n_ctx=64, threads=1, lora=((path, 1.0),))
        with pytest.raises(UsageError, match=f"{path.name}: not a LoRA adapter for .*target.gguf") as caught:
            Engine(models / "target.gguf", loading=loading)
        assert "\n" not in str(caught.value)
