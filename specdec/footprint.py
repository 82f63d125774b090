"""What memory a model needs, told from its header alone, by llama.cpp's own formulas.

Sources: ``llama_model::create_memory`` (which layers have cells and which a state), ``llama_kv_cache``,
``llama_memory_recurrent``, ``llama_hparams::n_embd_r`` and ``n_embd_s``, ``llama_model_base::load_hparams``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .architectures import HYBRID, KEEPS_STATES, RECURRENT
from .errors import UsageError
from .gguf_file import GGUFFile
from .gguf_header import TENSOR_TYPES, GGUFArray

CELL_STEP = 256  # tokens; llama.cpp makes contexts in multiples of it
STATE_BYTES = 4  # of an element of a recurrent state: F32

# Their memory is a class of its own in llama.cpp: an indexer or a router beside what is counted here.
MORE_THAN_COUNTED = frozenset(
    [
        "minimax-m3",
        "glm-dsa",
        "deepseek32",
        "glm5-next",
        "hy_v4",
        "dots3note",
        "deepseek4",
        "qwen4exp",
        "graniteswitch",
        "nanbeige",
    ]
)
BLOCKS = {name: (block, nbytes) for name, block, nbytes in TENSOR_TYPES.values()}
BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
WITHOUT_GROUPS = ("mamba", "jamba")  # their converters may write a group count; llama.cpp reads none


@dataclass(frozen=True)
class Shape:
    """How the memory of a context grows.

    weights: bytes of all tensors. trained: tokens of context the model was made for, 0 when unknown.
    keys, values: elements of the KV cache for each token of context, all layers together. state: elements
    of one copy of the recurrent state. copies: whether the context keeps earlier copies to roll back to
    (``n_rs_seq``). layers, masks, embedding, feed_forward, vocab: what the buffers' size comes of.
    complete: whether this is all there is; else it is the least the model needs.
    """

    weights: int
    trained: int
    layers: int
    keys: int
    values: int
    state: int
    copies: bool
    masks: int
    embedding: int
    feed_forward: int
    vocab: int
    complete: bool

    @classmethod
    def of(cls, file: GGUFFile) -> Shape:
        """Raises UsageError when a key that llama.cpp reads as a number holds something else."""
        layers = _Layers(file)
        attention = [i for i in range(layers.count) if layers.has_cells(i)]
        recurrent = sum(layers.has_state(i) for i in range(layers.trunk))
        return cls(
            weights=file.weights_bytes,
            trained=file.context_length or 0,
            layers=layers.count,
            keys=sum(layers.key_length(i) * layers.kv_heads[i] for i in attention),
            values=0 if layers.mla else sum(layers.value_length(i) * layers.kv_heads[i] for i in attention),
            state=recurrent * layers.state_elements(),
            copies=file.architecture in KEEPS_STATES,
            masks=(2 if layers.has_windows else 1) if attention else 0,
            embedding=layers.embedding,
            feed_forward=max(layers.feed_forward, default=0),
            vocab=len(file.tokens or ()),
            complete=file.architecture not in MORE_THAN_COUNTED,
        )


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory that a loaded model takes, part by part.

    weights: mapped from the file, so that the system may drop and read them again. cells: the KV cache.
    state: the recurrent state and its copies. buffers: logits and intermediate results, an estimate.
    at_least: whether cells and state are a lower bound rather than exact.
    """

    weights: int
    cells: int
    state: int
    buffers: int
    at_least: bool

    @property
    def working(self) -> int:
        """What is allocated and written to, and so has to be in memory: all but the weights."""
        return self.cells + self.state + self.buffers

    @property
    def total(self) -> int:
        return self.weights + self.working


def footprint(
    shape: Shape,
    n_ctx: int,
    *,
    n_outputs: int = 2,
    n_batch: int = 64,
    copies: int = 0,
    types: tuple[str, str] = ("F16", "F16"),
) -> Footprint:
    """What a context of ``n_ctx`` tokens takes, as ``specdec.backend.Context`` makes it.

    n_outputs: rows of logits. n_batch: tokens of one pass. copies: earlier
    states asked for, where the architecture keeps any. types: of the cache's keys and values, ggml's names.
    """
    n_cells = -(-n_ctx // CELL_STEP) * CELL_STEP  # with the whole of a sliding window's past: swa_full
    kept = 1 + (copies if shape.copies else 0)
    cells = sum(
        n * n_cells // BLOCKS[kind][0] * BLOCKS[kind][1]
        for n, kind in zip((shape.keys, shape.values), types, strict=True)
    )
    return Footprint(
        weights=shape.weights,
        cells=cells,
        state=shape.state * STATE_BYTES * kept,
        buffers=_buffers(shape, n_cells, n_outputs, n_batch),
        at_least=not shape.complete,
    )


def _buffers(shape: Shape, n_cells: int, n_outputs: int, n_batch: int) -> int:
    """A layer's intermediate results, the logits in their place; masks; the logits handed out."""
    logits = n_outputs * shape.vocab * 4
    hidden = n_batch * (8 * shape.embedding + 2 * shape.feed_forward) * 4
    return max(hidden, logits) + shape.masks * n_batch * n_cells * 2 + logits


class _Layers:
    """The layers' metadata, with llama.cpp's defaults."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._arch = arch = file.architecture
        self.count = self._number("block_count")
        self.trunk = self.count - self._number("nextn_predict_layers")
        self.embedding = self._number("embedding_length")
        self.heads = self._each("attention.head_count")
        self.kv_heads = self._each("attention.head_count_kv", self.heads)
        self.feed_forward = self._each("feed_forward_length")
        self.mla = bool(
            self._number("attention.key_length_mla") and self._number("attention.value_length_mla")
        )
        first = self.heads[0] if self.heads else 0
        whole = self.embedding // first if first else 0
        asks = first or arch == "plamo2"
        self._key = self._number("attention.key_length", whole) if asks else 0
        self._value = self._number("attention.value_length", whole) if asks else 0
        self._key_swa = self._number("attention.key_length_swa", self._key)
        self._value_swa = self._number("attention.value_length_swa", self._value)
        self._window = self._windowed()
        self.has_windows = bool(self._number("attention.sliding_window"))
        self._recurrent = self._each("attention.recurrent_layers", self._by_interval())

    def has_cells(self, layer: int) -> bool:
        """Whether a layer has a KV cache of its own."""
        arch = self._arch
        if arch in RECURRENT or layer >= self._first_shared():
            return False
        if arch == "falcon-h1":
            return True
        if arch in HYBRID:
            if arch.startswith("nemotron") and self.feed_forward[layer]:
                return False
            beyond = arch in BY_INTERVAL and layer >= self.trunk
            return not self.has_state(layer) and not beyond
        return layer < self.trunk or not self.trunk

    def has_state(self, layer: int) -> bool:
        """Whether a layer has a recurrent state."""
        arch = self._arch
        if arch in RECURRENT or arch == "falcon-h1":
            return True
        if arch in BY_INTERVAL:
            return layer < self.trunk and bool(self._recurrent[layer])
        if arch.startswith("nemotron_h"):
            return not self.kv_heads[layer] and not self.feed_forward[layer]
        return arch in HYBRID and layer < self.trunk and not self.kv_heads[layer]

    def key_length(self, layer: int) -> int:
        return self._key_swa if self._window[layer] else self._key

    def value_length(self, layer: int) -> int:
        return self._value_swa if self._window[layer] else self._value

    def state_elements(self) -> int:
        """Elements of one layer's state: ``n_embd_r`` + ``n_embd_s``."""
        number, n = self._number, self.embedding
        heads = self.heads[0] if self.heads else 0
        if wkv := number("wkv.head_size"):
            return number("token_shift_count", 2) * n + n * wkv
        kernel, inner, state = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
        if cache := number("shortconv.l_cache"):
            return n * (cache - 1) + state * inner
        if head := number("kda.head_dim"):
            return 3 * (kernel - 1 if kernel else 3) * heads * head + head * head * heads
        groups = 0 if self._arch in WITHOUT_GROUPS else number("ssm.group_count")
        convolution = max(0, kernel - 1) * (inner + 2 * groups * state)
        if self._arch == "minimax-01":
            return convolution + self._key * self._key * heads
        return convolution + state * inner

    def _first_shared(self) -> int:
        """The layer from which on layers use the cells of earlier ones (``n_layer_kv_from_start``)."""
        if self._arch == "gemma3n":
            return 20
        shared = self._number("attention.shared_kv_layers") if self._arch == "gemma4" else 0
        return self.count - shared

    def _by_interval(self) -> list[int]:
        interval = self._number("full_attention_interval", BY_INTERVAL.get(self._arch, 4)) or 1
        return [int((i + 1) % interval != 0) for i in range(self.count)]

    def _windowed(self) -> list[int]:
        """Which layers have a sliding window (``llama_hparams::set_swa_pattern`` for a number)."""
        key = "attention.sliding_window_pattern"
        if isinstance(self._file.metadata.get(f"{self._arch}.{key}"), GGUFArray):
            return self._each(key)
        period = self._number(key)
        return [int(period > 0 and i % period < period - 1) for i in range(self.count)]

    def _number(self, key: str, default: int = 0) -> int:
        found = self._file.integer(f"{self._arch}.{key}")
        return default if found is None else found

    def _each(self, key: str, default: list[int] | None = None) -> list[int]:
        """A value for each layer, from an array or from one number for all."""
        found = self._file.metadata.get(f"{self._arch}.{key}")
        if isinstance(found, GGUFArray):
            if found.type not in ("u32", "i32", "u64", "i64", "bool"):
                raise UsageError(f"{self._file.path}: {self._arch}.{key} is {found!r}: the file is damaged")
            values = [int(v) for v in found]
            return values + [0] * (self.count - len(values))
        if found is None and default is not None:
            return default
        return [self._number(key)] * self.count
