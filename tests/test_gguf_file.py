"""gguf_file and gguf_header: what a file says, each way to break it, agreement with the gguf package."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny

from specdec.errors import UsageError
from specdec.gguf_file import GGUFFile
from specdec.gguf_header import TENSOR_TYPES, GGUFArray

U32, STR, ARR = 4, 8, 9


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, code: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", code) + payload


def array(code: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", code, count) + payload


def tensor(name: str = "w", shape: tuple[int, ...] = (8,), code: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


ARCH = entry("general.architecture", STR, string("llama"))
BPE = entry("tokenizer.ggml.model", STR, string("gpt2"))


def header(
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = bytes(4096),
    version: int = 3,
    n_tensors: int | None = None,
    n_entries: int | None = None,
) -> bytes:
    entries, tensors = [ARCH] if entries is None else entries, tensors or []
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_entries is None else n_entries,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def texts(*tokens: str | bytes) -> bytes:
    return entry("tokenizer.ggml.tokens", ARR, array(STR, len(tokens), b"".join(map(string, tokens))))


def error_of(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        GGUFFile.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


# --- what a sound file says


def test_values_of_a_sound_file(tmp_path: Path) -> None:
    path = tiny.llama(
        tmp_path / "m.gguf", n_vocab=400, n_ctx_train=777, chat_template=tiny.CHATML, dtype="q8_0"
    )
    file = GGUFFile.read(path)
    assert (file.path, file.parts, file.size) == (path, (path,), path.stat().st_size)
    assert (file.architecture, file.context_length) == ("llama", 777)
    assert (file.tokenizer_model, file.chat_template) == ("llama", tiny.CHATML)
    assert file.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    words = tiny.vocab("spm", 400)
    assert file.tokens is not None
    assert list(file.tokens) == words.texts
    assert file.tokens[-1] == words.texts[-1]
    assert file.tokens[3:6] == words.texts[3:6]
    assert file.token_types is not None
    assert file.token_types.dtype == np.int32
    assert file.token_types.tolist() == words.types
    q = next(t for t in file.tensors if t.name == "blk.1.ffn_down.weight")
    assert (q.shape, q.type, q.nbytes, q.part) == ((128, 64), "Q8_0", 128 * 64 // 32 * 34, 0)
    assert file.weights_bytes == sum(t.nbytes for t in file.tensors)
    file.require_text_generation()


def test_what_is_missing_is_none(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header())
    file = GGUFFile.read(path)
    assert (file.context_length, file.chat_template, file.tokenizer_model) == (None, None, None)
    assert (file.tokens, file.token_types, file.tensors) == (None, None, ())


@pytest.mark.parametrize(
    ("code", "form", "value"),
    [
        (0, "<B", 200), (1, "<b", -5), (2, "<H", 60000), (3, "<h", -300), (4, "<I", 1 << 31), (5, "<i", -9),
        (6, "<f", 0.5), (7, "<?", True), (10, "<Q", 1 << 63), (11, "<q", -(1 << 60)), (12, "<d", 1e300),
    ],
)  # fmt: skip
def test_every_value_type(tmp_path: Path, code: int, form: str, value: float) -> None:
    path = tmp_path / "m.gguf"
    packed = struct.pack(form, value)
    path.write_bytes(header([ARCH, entry("x", code, packed), entry("xs", ARR, array(code, 3, packed * 3))]))
    file = GGUFFile.read(path)
    assert file.metadata["x"] == value
    xs = file.metadata["xs"]
    assert isinstance(xs, GGUFArray)
    assert list(xs) == [value] * 3
    assert (len(xs), xs[-1], xs.numpy().dtype) == (3, value, np.dtype(form))
    with pytest.raises(TypeError):
        xs.bytes(0)


@pytest.mark.parametrize("seed", range(20))
def test_string_arrays_of_any_shape(tmp_path: Path, seed: int) -> None:
    """Empty strings, long ones, zero bytes, whatever looks like a length prefix inside a text."""
    rng = random.Random(seed)
    odd = [b"", b"\0", b"a" * 255, b"b" * 256, b"c" * 70_000, b"\x05" + bytes(7), bytes(40), b"\xff\xfe"]
    strings = [
        rng.choice(odd) if rng.random() < 0.02 else rng.randbytes(rng.randint(1, 12)).replace(b"\0", b"x")
        for _ in range(rng.choice([0, 1, 31, 5000, 20_000]))
    ]
    path = tmp_path / "m.gguf"
    values = entry("s", ARR, array(STR, len(strings), b"".join(map(string, strings))))
    path.write_bytes(header([ARCH, values, entry("after", U32, struct.pack("<I", 7))], data=b""))
    file = GGUFFile.read(path)
    found = file.metadata["s"]
    assert isinstance(found, GGUFArray)
    assert [found.bytes(i) for i in range(len(found))] == strings
    assert file.metadata["after"] == 7
    with pytest.raises(IndexError):
        found[len(strings)]
    with pytest.raises(TypeError):
        found.numpy()


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "m.gguf")
    file = GGUFFile.read(path)
    path.write_bytes(b"something else")
    assert file.tokens is not None
    assert file.tokens[1] == "<s>"


def test_split_model(tmp_path: Path) -> None:
    whole = GGUFFile.read(tiny.llama(tmp_path / "m.gguf"))
    first = tiny.llama(tmp_path / "m.gguf", split=5)
    file = GGUFFile.read(first)
    assert [p.name for p in file.parts] == [f"m-0000{i}-of-00005.gguf" for i in range(1, 6)]
    assert file.size == sum(p.stat().st_size for p in file.parts)
    assert [(t.name, t.shape) for t in file.tensors] == [(t.name, t.shape) for t in whole.tensors]
    assert [t.part for t in file.tensors] == [i // 5 for i in range(len(file.tensors))]
    file.require_text_generation()


# --- agreement with the gguf package


def agree(path: Path) -> None:
    file, reader = GGUFFile.read(path), gguf.GGUFReader(path)
    fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        ours, theirs = file.metadata[key], field.contents()
        assert (list(ours) if isinstance(ours, GGUFArray) else ours) == theirs, key
    assert len(file.tensors) == len(reader.tensors)
    for our, their in zip(file.tensors, reader.tensors, strict=True):
        assert (our.name, our.type) == (their.name, their.tensor_type.name)
        assert list(our.shape) == their.shape.tolist()
        assert (our.offset, our.nbytes) == (their.data_offset, their.n_bytes)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_agrees_with_the_gguf_package(tmp_path: Path, dtype: tiny.Dtype) -> None:
    agree(tiny.llama(tmp_path / "m.gguf", n_vocab=384, dtype=dtype, tokenizer="bpe"))


def test_agrees_with_the_gguf_package_on_other_files(tmp_path: Path) -> None:
    agree(tiny.mamba(tmp_path / "mamba.gguf", n_vocab=384))
    agree(tiny.bert(tmp_path / "bert.gguf"))
    agree(tiny.clip(tmp_path / "clip.gguf"))


def test_agrees_with_the_gguf_package_on_a_real_model(smollm_path: Path) -> None:
    agree(smollm_path)
    file = GGUFFile.read(smollm_path)
    file.require_text_generation()
    assert (file.architecture, file.context_length, len(file.tokens or ())) == ("llama", 8192, 49152)


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    for kind, size in gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # 36 bytes in ggml, 40 in the package; never in a file
            assert TENSOR_TYPES[int(kind)] == (kind.name, *size)


def test_a_real_vocabulary_is_read_in_milliseconds(tmp_path: Path) -> None:
    rng = random.Random(0)
    n = 262_144
    words = [rng.randbytes(rng.randint(1, 12)).hex() + str(i) for i in range(n)]
    entries = [
        ARCH,
        texts(*words),
        entry("tokenizer.ggml.scores", ARR, array(6, n, bytes(4 * n))),
        entry("tokenizer.ggml.token_type", ARR, array(5, n, struct.pack("<i", 1) * n)),
    ]
    path = tmp_path / "big.gguf"
    path.write_bytes(header(entries, [tensor()]))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        GGUFFile.read(path)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.25  # 0.05 s on a quiet machine; the gguf package takes 10 s


# --- files that cannot be used


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in error_of(tmp_path / "none.gguf")
    assert "no such file" in error_of(tmp_path / "none" / "m.gguf")


def test_a_folder(tmp_path: Path) -> None:
    assert "this is a folder" in error_of(tmp_path)


def test_a_path_no_system_accepts(tmp_path: Path) -> None:
    assert "cannot be read" in error_of(tmp_path / ("n" * 5000))
    assert "cannot be read" in error_of(tmp_path / "a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in error_of(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tiny.clip(tmp_path / "m.gguf")
    path.chmod(0)
    assert "cannot be read (Permission denied)" in error_of(path)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is empty"),
        (b"GG", "begins with the text 'GG'"),
        (b"Once upon a time\n", "begins with the text 'Once upon a time"),
        (b"{\n  \"architectures\": []}", "begins with the text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"\n  <html>Not found</html>", "a web page"),
        (struct.pack("<Q", 300) + b'{"__metadata__":{}}', "safetensors"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\x80\x02ctorch", "Python pickle"),
        (b"lmgg" + bytes(60), "before GGUF"),
        (b"\x1f\x8b\x08" + bytes(60), "compressed"),
        (b"\x7fELF\x02\x01", "begins with the bytes 7f 45 4c 46 02 01"),
    ],
)  # fmt: skip
def test_not_a_gguf(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    assert says in error_of(path)


BIG = 1 << 40
BROKEN: dict[str, tuple[bytes, str]] = {
    "only the magic": (b"GGUF", "the version at byte 4 needs 4 bytes, but the file ends at byte 4"),
    "no counts": (b"GGUF\x03\0\0\0", "the tensor count at byte 8 needs 8 bytes"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 0": (header(version=0), "version 0 is not supported"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "version 4": (header(version=4), "version 4 is not supported"),
    "tensor count": (header(n_tensors=BIG), "claims 1,099,511,627,776 tensors"),
    "negative tensor count": (header(n_tensors=(1 << 64) - 1), "more than fit into"),
    "entry count": (header(n_entries=BIG), "and 1,099,511,627,776 metadata entries, more than fit into"),
    "one entry too many": (header(n_entries=2)[:69], "the key of metadata entry 1"),
    "one tensor too many": (header(n_tensors=1)[:69], "the name of tensor 0 at byte 69"),
    "key length": (header([struct.pack("<Q", BIG)]), "metadata entry 0 at byte 24 claims a length of"),
    "long key": (header([struct.pack("<Q", 70_000)], data=bytes(80_000)), "of at most 65,535"),
    "key past the end": (header([struct.pack("<Q", 60_000)]), "needs 60,000 bytes, but the file ends at"),
    "empty key": (header([ARCH, entry("", U32, bytes(4))]), "is empty"),
    "key twice": (header([ARCH, ARCH]), "'general.architecture' at byte 69 is there twice"),
    "value type": (header([entry("x", 13, bytes(8))]), "the value of 'x' at byte 33 is of unknown type 13"),
    "value past the end": (header([entry("x", 12, b"")], data=b"")[:40], "the value of 'x' at byte 37 needs"),
    "text length": (header([entry("x", STR, struct.pack("<Q", BIG))]), "claims a length of"),
    "text past the end": (header([entry("x", STR, struct.pack("<Q", 5000))]), "needs 5,000 bytes"),
    "array of arrays": (header([entry("x", ARR, array(ARR, 1, array(U32, 1, bytes(4))))]), "array of arrays"),
    "array type": (header([entry("x", ARR, array(77, 1, bytes(8)))]), "array of unknown type 77"),
    "array count": (header([entry("x", ARR, array(U32, BIG, b""))]), "claims 1,099,511,627,776 elements"),
    "array past the end": (header([entry("x", ARR, array(U32, 9000, b""))]), "(9,000 elements)"),
    "strings count": (header([entry("x", ARR, array(STR, BIG, b""))]), "claims 1,099,511,627,776 elements"),
    "strings past the end": (header([entry("x", ARR, array(STR, 9000, b""))]), "(9,000 strings)"),
    "string length": (
        header([entry("x", ARR, array(STR, 2, string("a") + struct.pack("<Q", BIG)))]),
        "a string of the value of 'x' at byte 58 needs",
    ),
    "last string past the end": (
        header([entry("x", ARR, array(STR, 1, struct.pack("<Q", 200)))], data=b"") + b"a" * 100,
        "a string of the value of 'x'",
    ),
    "alignment 0": (header([ARCH, entry("general.alignment", U32, struct.pack("<I", 0))]), "power of two"),
    "alignment 48": (header([ARCH, entry("general.alignment", U32, struct.pack("<I", 48))]), "is 48, not a"),
    "alignment text": (header([ARCH, entry("general.alignment", STR, string("32"))]), "'32', not a power"),
    "tensor name length": (header(tensors=[tensor("w" * 64)]), "tensor 0 at byte 69 claims a length of 64"),
    "tensor twice": (header(tensors=[tensor(), tensor(offset=32)]), "tensor 'w' at byte 102 is there twice"),
    "dimensions": (header(tensors=[tensor(shape=(1,) * 5)]), "has 5 dimensions"),
    "negative dimension": (header(tensors=[tensor(shape=((1 << 64) - 1,))]), "impossible shape"),
    "huge shape": (header(tensors=[tensor(shape=(1 << 40, 1 << 40))]), "impossible shape"),
    "huge shape and none": (header(tensors=[tensor(shape=(1 << 63, 0))]), "impossible shape"),
    "tensor type": (header(tensors=[tensor(code=99)]), "unknown type 99: the file is damaged, or made for a"),
    "removed tensor type": (header(tensors=[tensor(code=31)]), "no longer reads"),
    "block": (header(tensors=[tensor(shape=(40,), code=2)]), "Q4_0 packs them in blocks of 32"),
    "misaligned": (header(tensors=[tensor(), tensor("v", offset=33)]), "33, which is no multiple of 32"),
    "overlap": (header(tensors=[tensor(shape=(16,)), tensor("v", offset=32)]), "overlaps the one before"),
    "gap": (header(tensors=[tensor(), tensor("v", offset=64)]), "leaves a gap"),
    "offset overflow": (header(tensors=[tensor(offset=(1 << 64) - 32)]), "leaves a gap"),
    "past the end": (
        header(tensors=[tensor(shape=(2000,))]),
        "truncated, 8,128 bytes expected and 4,224 present; the download is probably incomplete",
    ),
    "no architecture": (header([entry("x", U32, bytes(4))]), "general.architecture is missing"),
    "empty architecture": (header([entry("general.architecture", STR, string(""))]), "is missing"),
    "architecture number": (header([entry("general.architecture", U32, bytes(4))]), "is 0, not a string"),
    "architecture bytes": (header([entry("general.architecture", STR, string("a\nb"))]), "which is no name"),
    "imatrix": (header([entry("general.type", STR, string("imatrix"))]), "importance matrix"),
    "no layers": (header([ARCH, entry("llama.block_count", U32, bytes(4))]), "claims 0 layers"),
    "many layers": (header([ARCH, entry("llama.block_count", U32, b"\xff" * 4)]), "4,294,967,295 layers"),
    "context length": (header([ARCH, entry("llama.context_length", STR, string("x"))]), "not a whole number"),
    "template": (header([ARCH, entry("tokenizer.chat_template", U32, bytes(4))]), "not a string"),
    "tokens text": (header([ARCH, entry("tokenizer.ggml.tokens", STR, string("a"))]), "is 'a', not an array"),
    "tokens numbers": (
        header([ARCH, entry("tokenizer.ggml.tokens", ARR, array(U32, 1, bytes(4)))]),
        "is an array of 1 u32, not an array of string",
    ),
    "token types": (
        header([ARCH, texts("a", "b"), entry("tokenizer.ggml.token_type", ARR, array(5, 1, bytes(4)))]),
        "2 tokens but 1 token types",
    ),
    "token twice": (header([ARCH, texts("a", "b", "", "a", "")]), "tokens 0 and 3 have the same text"),
    "long token twice": (
        header([ARCH, texts("x" * 100 + "a", "x" * 100 + "b", "x" * 100 + "a")]),
        "tokens 0 and 2 have the same text",
    ),
    "token twice up to a zero": (header([ARCH, texts("a", "b", "b\0c")]), "tokens 1 and 2 have the same"),
    "token for a byte": (
        header([
            ARCH, texts(*[f"<0x{b:02X}>" for b in range(256) if b not in (10, 65)], "A"),
            entry("tokenizer.ggml.model", STR, string("llama")),
        ]),
        "no token for byte <0x0A>",
    ),
    "split without a name": (
        header([ARCH, entry("split.count", 2, b"\x02\0")]),
        "part 1 of 2 of a split model, so its name has to end in -00001-of-00002.gguf",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken(tmp_path: Path, name: str) -> None:
    raw, says = BROKEN[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    assert says in error_of(path)


@pytest.mark.parametrize("missing", [1, 1000, 100_000])
def test_truncated(tmp_path: Path, missing: int) -> None:
    path = tiny.llama(tmp_path / "m.gguf")
    size = path.stat().st_size
    os.truncate(path, size - missing)
    message = error_of(path)
    assert f"{size:,} bytes expected and {size - missing:,} present" in message
    assert "download is probably incomplete" in message


def test_truncated_in_the_header(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "m.gguf")
    os.truncate(path, 5000)
    assert "but the file ends at byte 5,000; the download is probably incomplete" in error_of(path)


def test_split_with_a_part_missing(tmp_path: Path) -> None:
    first = tiny.llama(tmp_path / "m.gguf", split=5)
    (tmp_path / "m-00002-of-00005.gguf").unlink()
    assert "m-00002-of-00005.gguf of this split model missing" in error_of(first)
    (tmp_path / "m-00004-of-00005.gguf").unlink()
    assert "m-00002-of-00005.gguf and 1 more of this split model missing" in error_of(first)


def test_split_named_by_another_part(tmp_path: Path) -> None:
    first = tiny.llama(tmp_path / "m.gguf", split=5)
    message = error_of(tmp_path / "m-00003-of-00005.gguf")
    assert f"part 3 of 5 of a split model; name the first, {first}" in message


def test_split_with_a_broken_part(tmp_path: Path) -> None:
    first = tiny.llama(tmp_path / "m.gguf", split=5)
    third = tmp_path / "m-00003-of-00005.gguf"
    os.truncate(third, third.stat().st_size - 1000)
    with pytest.raises(UsageError, match=r"m-00003-of-00005.gguf: truncated"):
        GGUFFile.read(first)


def test_split_with_parts_of_another_model(tmp_path: Path) -> None:
    first = tiny.llama(tmp_path / "m.gguf", split=5)
    second, third = (tmp_path / f"m-0000{i}-of-00005.gguf" for i in (2, 3))
    saved = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(UsageError, match=r"m-00002-of-00005.gguf: holds part 3, not 2"):
        GGUFFile.read(first)
    second.write_bytes(saved.replace(b"blk.0.", b"blk.1."))
    assert "are not parts of the same model" in error_of(first)


# --- files that are sound, but no text-generation model


def test_embedding_and_vision_files(tmp_path: Path) -> None:
    for path, says in (
        (tiny.bert(tmp_path / "bert.gguf"), "an embedding model (bert)"),
        (tiny.bert(tmp_path / "nomic.gguf", architecture="nomic-bert-moe"), "an embedding model"),
        (tiny.bert(tmp_path / "t5.gguf", architecture="t5"), "an encoder-decoder model"),
        (tiny.bert(tmp_path / "dream.gguf", architecture="dream"), "a diffusion model"),
        (tiny.bert(tmp_path / "voc.gguf", architecture="wavtokenizer-dec"), "a vocoder"),
        (tiny.bert(tmp_path / "qwen3.gguf", architecture="qwen3"), "an embedding or reranking model"),
        (tiny.clip(tmp_path / "clip.gguf"), "the vision or audio part (mmproj)"),
        (tiny.llama(tmp_path / "lora.gguf", extra={"general.type": "adapter"}), "an adapter (LoRA)"),
        (tiny.llama(tmp_path / "emb.gguf", extra={"llama.pooling_type": 3}), "an embedding or reranking"),
        (tiny.llama(tmp_path / "eye.gguf", extra={"llama.attention.causal": False}), "an embedding or"),
    ):
        file = GGUFFile.read(path)
        with pytest.raises(UsageError) as caught:
            file.require_text_generation()
        message = str(caught.value)
        assert message.startswith(f"{path}: this is ")
        assert says in message
        assert message.endswith("give a text-generation GGUF instead")


@pytest.mark.parametrize(
    ("entries", "tensors", "says"),
    [
        ([ARCH], [tensor()], "a llama model without a tokenizer"),
        ([ARCH, texts("a", "b")], [tensor()], "a llama model without a tokenizer"),
        ([ARCH, BPE, texts("a")], [], "a vocabulary without weights"),
    ],
)
def test_incomplete_models(tmp_path: Path, entries: list[bytes], tensors: list[bytes], says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(entries, tensors))
    with pytest.raises(UsageError, match=says):
        GGUFFile.read(path).require_text_generation()


def test_recurrent_models_are_text_generation(tmp_path: Path) -> None:
    GGUFFile.read(tiny.mamba(tmp_path / "m.gguf")).require_text_generation()


# --- fuzz: any bytes give a file or a UsageError, soon and in little memory


def mutated(raw: bytes, data: int, rng: random.Random) -> bytes:
    """``raw`` with its first ``data`` bytes (all that is not weights) changed somehow."""
    out = bytearray(raw)
    table = raw.index(b"token_embd.weight") - 8
    change: list[Callable[[int], None]] = [
        lambda at: out.__setitem__(at, rng.randrange(256)),
        lambda at: out.__setitem__(at, out[at] ^ 1 << rng.randrange(8)),
        lambda at: out.__setitem__(slice(at, at + 8), struct.pack("<Q", rng.choice(NUMBERS))),
        lambda at: out.__setitem__(slice(at, at + 4), struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)),
        lambda at: out.__delitem__(slice(at, at + rng.choice([1, 4, 8, 100]))),
        lambda at: out.__setitem__(slice(at, at), rng.randbytes(rng.choice([1, 4, 8, 100]))),
        lambda at: out.__delitem__(slice(at, None)),
        lambda at: out.__setitem__(slice(at, None), bytes(len(out) - at)),
    ]
    for _ in range(rng.choice([1, 1, 2, 5])):
        low, high = rng.choice([(0, 24), (24, 1000), (0, data), (table, data)])
        rng.choice(change)(min(rng.randrange(low, high), len(out) - 1) if out else 0)
        if not out:
            break
    return bytes(out)


NUMBERS = [0, 1, 2, 9, 13, 255, 256, 65536, *(1 << n for n in (20, 22, 31, 32, 40, 63))]
NUMBERS += [(1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 8]


def test_fuzz(tmp_path: Path) -> None:
    originals = []
    for path in (
        tiny.llama(tmp_path / "spm.gguf", n_vocab=384, chat_template=tiny.CHATML),
        tiny.llama(tmp_path / "bpe.gguf", n_vocab=384, tokenizer="bpe", dtype="q4_0"),
        tiny.mamba(tmp_path / "mamba.gguf", n_vocab=384),
    ):
        originals.append((path.read_bytes(), min(t.offset for t in GGUFFile.read(path).tensors)))
    path = tmp_path / "mutated.gguf"
    outcomes = {True: 0, False: 0}
    for seed in range(300):
        rng = random.Random(seed)
        path.write_bytes(mutated(*rng.choice(originals), rng))
        tracemalloc.start()
        began = time.perf_counter()
        try:
            refusal = read_everything(path)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        finally:
            seconds, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert seconds < 2, f"seed {seed}: {seconds:.1f} s"
        assert peak < 32 << 20, f"seed {seed}: {peak:,} bytes"
        if refusal is not None:
            assert refusal.startswith(f"{path}: "), f"seed {seed}"
            assert refusal.isprintable(), f"seed {seed}"
        outcomes[refusal is None] += 1
    assert min(outcomes.values()) > 20  # the mutations are neither all harmless nor all fatal


def read_everything(path: Path) -> str | None:
    """What the refusal says, None when there is none."""
    try:
        file = GGUFFile.read(path)
        for value in file.metadata.values():
            if isinstance(value, GGUFArray):
                assert len(list(value)) == len(value)
        assert all(t.offset + t.nbytes <= file.size for t in file.tensors)
        file.require_text_generation()
    except UsageError as error:
        return str(error)
    return None
