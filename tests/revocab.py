"""The same model under another vocabulary: its ids shuffled, or its rarest tokens left out.

    revocab.shuffled(target, tmp_path / "shuffled.gguf")       # computes what the target computes, ids apart
    revocab.pruned(target, tmp_path / "pruned.gguf", 0.5)      # must spell with shorter tokens

Rows of the embedding (and of the output matrix, if there is one) follow their tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

OF_EACH_TOKEN = ("tokens", "token_type", "scores")
NORMAL = int(gguf.TokenType.NORMAL)


def shuffled(source: Path, destination: Path, seed: int = 0) -> Path:
    """Every token with another id."""
    reader = gguf.GGUFReader(source)
    n = len(reader.fields["tokenizer.ggml.tokens"].data)
    return _write(reader, np.random.default_rng(seed).permutation(n), destination)


def pruned(source: Path, destination: Path, share: float) -> Path:
    """Without the last ``share`` of the tokens that merges make, and without those merges."""
    reader = gguf.GGUFReader(source)
    texts = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    made = [i for i, text in enumerate(texts) if types[i] == NORMAL and len(text) > 1]
    gone = set(made[len(made) - int(share * len(made)) :])
    return _write(reader, np.array([i for i in range(len(texts)) if i not in gone]), destination)


def _write(reader: gguf.GGUFReader, order: NDArray[Any], destination: Path) -> Path:
    """order: which old id each new one was."""
    fields = {key: (f.contents(), f.types[0], f.types[-1]) for key, f in reader.fields.items()}
    w = gguf.GGUFWriter(destination, fields["general.architecture"][0])
    n_old = len(fields["tokenizer.ggml.tokens"][0])
    new = {int(old): i for i, old in enumerate(order)}
    gone = {text for old, text in enumerate(fields["tokenizer.ggml.tokens"][0]) if old not in new}
    for key, (value, kind, element) in fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        name = key.removeprefix("tokenizer.ggml.")
        if name in OF_EACH_TOKEN:
            value = [value[old] for old in order]
        elif name == "merges":
            value = [merge for merge in value if merge.replace(" ", "") not in gone]
        elif name.endswith("_token_id"):
            value = new[value]
        elif key.endswith(".vocab_size"):
            value = len(order)
        w.add_key_value(key, value, kind, element if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        rows = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            assert len(rows) == n_old
            rows = np.ascontiguousarray(rows[order])
        w.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return destination
