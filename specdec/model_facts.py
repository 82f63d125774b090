"""What a header says of a model as target or drafter, in a form small enough to be remembered."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .footprint import Shape
from .gguf_file import GGUFFile
from .gguf_header import GGUFArray

LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight")  # one row of them a token, not all


@dataclass(frozen=True)
class ModelFacts:
    """The facts of one GGUF.

    size: bytes of all its files. parameters: elements of all tensors. dense, experts: bytes that a pass
    reads of the weights all tokens use, and of all experts; used: the share of the experts that one token
    uses. quantisation: the type most of the bytes are in. context: tokens the model was trained for, 0 when
    the file does not say. template: a name of the chat template, equal for equal ones; None without one.
    vocabulary: a name of all that the file says of its tokenizer.
    """

    name: str
    architecture: str
    size: int
    parameters: int
    dense: int
    experts: int
    used: float
    quantisation: str
    context: int
    template: str | None
    vocabulary: str
    vocab_size: int
    tokenizer: str
    shape: Shape

    @classmethod
    def of(cls, file: GGUFFile) -> ModelFacts:
        """Raises UsageError when the metadata is damaged."""
        arch, template = file.architecture, file.chat_template
        tied = all(t.name != "output.weight" for t in file.tensors)
        dense = experts = parameters = 0
        kinds: Counter[str] = Counter()
        for tensor in file.tensors:
            n = 1
            for length in tensor.shape:
                n *= length
            parameters += n
            kinds[tensor.type] += tensor.nbytes
            if "_exps" in tensor.name:
                experts += tensor.nbytes
            elif tensor.name not in LOOKED_UP or (tied and tensor.name == LOOKED_UP[0]):
                dense += tensor.nbytes
        return cls(
            name=file.text("general.name") or file.path.stem,
            architecture=arch,
            size=file.size,
            parameters=parameters,
            dense=dense,
            experts=experts,
            used=_share_of_experts(file),
            quantisation=kinds.most_common(1)[0][0] if kinds else "",
            context=file.context_length or 0,
            template=None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16],
            vocabulary=_vocabulary(file),
            vocab_size=len(file.tokens or ()),
            tokenizer=file.tokenizer_model or "",
            shape=Shape.of(file),
        )

    @property
    def bits(self) -> float:
        """Bits a parameter."""
        return 8 * self.shape.weights / max(1, self.parameters)

    @property
    def active(self) -> float:
        """Parameters one token uses, about: all but the experts it is not sent to."""
        read = self.dense + self.experts
        return self.parameters * (self.bytes_read() / read if read else 1.0)

    def bytes_read(self, rows: int = 1) -> float:
        """Bytes of weights that a pass of ``rows`` tokens reads; experts as if chosen independently."""
        return self.dense + self.experts * (1.0 - (1.0 - self.used) ** rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: all but the shape of the memory."""
        return {key: value for key, value in vars(self).items() if key != "shape"}

    def remember(self) -> dict[str, Any]:
        """Plain values, to be taken up by :meth:`recall`."""
        return asdict(self)

    @classmethod
    def recall(cls, known: Mapping[str, Any]) -> ModelFacts:
        """Raises TypeError or KeyError for what :meth:`remember` did not make."""
        return cls(**{**known, "shape": Shape(**known["shape"])})


def _share_of_experts(file: GGUFFile) -> float:
    arch = file.architecture
    count = file.integer(f"{arch}.expert_count") or 0
    used = file.metadata.get(f"{arch}.expert_used_count", 0)
    if isinstance(used, GGUFArray):  # one for each layer
        each = [float(n) for n in used]
        most = sum(each) / max(1, sum(n > 0 for n in each))
    else:
        most = float(used) if isinstance(used, int) else 0.0
    return min(1.0, most / count) if count else 1.0


def _vocabulary(file: GGUFFile) -> str:
    found = hashlib.sha256()
    for key in sorted(k for k in file.metadata if k.startswith("tokenizer.ggml.")):
        value = file.metadata[key]
        said = value.digest if isinstance(value, GGUFArray) else repr(value)
        found.update(f"\0{key}\0{said}".encode())
    return found.hexdigest()[:24]
