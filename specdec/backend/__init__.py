"""llama.cpp through llama-cpp-python's low-level API. Nothing outside this package imports ``llama_cpp``."""

from .chain import Candidates, Chain, grammar_chain
from .context import Context, FeedProgress, Rows
from .llama import Abort, default_threads, supports_gpu
from .model import Model
from .schema import gbnf_from_json_schema
from .template import ChatTemplate, Message, builtin_templates
from .vocabulary import Vocabulary

__all__ = [
    "Abort",
    "Candidates",
    "Chain",
    "ChatTemplate",
    "Context",
    "FeedProgress",
    "Message",
    "Model",
    "Rows",
    "Vocabulary",
    "builtin_templates",
    "default_threads",
    "gbnf_from_json_schema",
    "grammar_chain",
    "supports_gpu",
]
