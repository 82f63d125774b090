"""Where a chat template, a program from somebody's file, runs: Jinja's sandbox, bounded in time and memory.

Jinja's own keeps a template from Python's internals, but lets it loop for ever or build ``'x' * 10**10``.
Here every loop, call, filter, operator and literal takes from one :class:`Budget`, and what would be larger
than it allows is refused before it is made. Built from the pieces of llama-cpp-python's
``Jinja2ChatFormatter``, whose templates read as they do there.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment, is_internal_attribute
from jinja2.visitor import NodeTransformer
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from .bounds import BOUNDS, LARGEST, METHOD_BOUNDS, Bound, braces, nothing, percent, weight

SECONDS = 2.0  # of processor time; the longest real conversation takes some hundredths
TOTAL = 1 << 27  # of all values together
MOST_BITS = 1 << 12  # of a whole number
MOST_INDENT = 64  # spaces a level of JSON
LONGEST_DATE = 256  # characters of a date's format; what C's strftime sets aside is a multiple of it

# Not of bounded cost, and of no use in a conversation.
DROPPED_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")

JINJAS_OWN = ("_loop_vars", "_block_vars")  # arguments that compiled templates give to every call


class Budget:
    """What one compilation or rendering may take, counted in the thread that does it."""

    def __init__(self) -> None:
        self._deadline = time.thread_time() + SECONDS
        self._steps = 0
        self._taken = 0

    def step(self) -> None:
        """Something was done. Raises SecurityError when it has been going on for too long."""
        self._steps += 1
        if self._steps % 32 == 0 and time.thread_time() > self._deadline:
            raise SecurityError(f"it was still at work after {SECONDS:g} s")

    def take(self, size: int) -> None:
        """A value of that size is about to be made. Raises SecurityError when that is too much."""
        self.step()
        self._taken += max(size, 0)
        if size > LARGEST:
            raise SecurityError(f"it makes a value larger than {LARGEST:,} characters")
        if self._taken > TOTAL:
            raise SecurityError(f"it makes values of more than {TOTAL:,} characters")


class Paced:
    """An iterable whose every step is counted."""

    def __init__(self, items: Iterable[Any], budget: Budget) -> None:
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.step()
            yield item


class PacedSized(Paced):
    """The same for one that knows its length, which ``loop.length`` then has without a copy."""

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # it is Sized, or this would be a Paced


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates. Whatever a template does that it may not raises SecurityError."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        self.budget = Budget()
        self._one_at_a_time = threading.Lock()
        super().__init__(
            loader=jinja2.BaseLoader(),
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Jinja2ChatFormatter.IgnoreGenerationTags, jinja2.ext.loopcontrols],
            finalize=self.weighed,
            cache_size=0,
        )
        self.concat = self._concatenated  # type: ignore[method-assign,assignment,unused-ignore]
        self.globals.pop("lipsum", None)
        filters: dict[str, Callable[..., Any]] = self.filters
        filters["tojson"] = self._tojson
        for name in DROPPED_FILTERS:
            filters.pop(name, None)
        for name, function in filters.items():
            filters[name] = self._bounded(function, BOUNDS.get(name))

    def compiled(self, source: str) -> jinja2.Template:
        """The template. Raises Jinja's errors for one that is none."""
        with self._one_at_a_time:
            self.budget = Budget()
            return self.from_string(source)

    def rendered(self, template: jinja2.Template, **variables: Any) -> str:
        """The template's text. Raises SecurityError, and whatever else a program may raise."""
        with self._one_at_a_time:
            self.budget = Budget()
            return template.render(variables)

    # What the compiled template calls, besides what Jinja has it call anyway.

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Counted().visit(source), *args, **kwargs)

    def paced(self, items: Any) -> Paced:
        """What a for loop goes through."""
        return (PacedSized if isinstance(items, Sized) else Paced)(items, self.budget)

    def joined(self, *values: Any) -> str:
        """``a ~ b ~ c``"""
        self.budget.take(sum(weight(value) for value in values))
        return "".join(map(str, values))

    def weighed(self, value: Any) -> Any:
        """A value that has just been made, or is about to become text."""
        self.budget.take(weight(value))
        return value

    def _concatenated(self, pieces: Iterable[str]) -> str:
        """The text of a template, a macro or a block."""
        kept, size = [], 0
        for piece in pieces:
            self.budget.step()
            kept.append(piece)
            size += len(piece)
            if size > LARGEST:
                self.budget.take(size)
        return "".join(kept)

    # What Jinja's sandbox lets one override.

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # paced, joined and weighed count for themselves
            return __obj(*args)
        if isinstance(owner, (str, bytes, int)):
            name = getattr(__obj, "__name__", "")
            if name == "join" and args:
                args = (list(__self.paced(args[0])), *args[1:])
                bound = BOUNDS["join"](args[0], owner)
            else:
                named = {k: v for k, v in kwargs.items() if k not in JINJAS_OWN}
                bound = METHOD_BOUNDS.get(name, nothing)(owner, *args, **named)
            __self.budget.take(bound)
        __self.budget.step()
        return __self.weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sized = isinstance(left, (str, bytes, list, tuple)), isinstance(right, (str, bytes, list, tuple))
        if operator == "+" and any(sized):
            self.budget.take(weight(left) + weight(right))
        elif operator == "*" and any(sized):
            value, times = (left, right) if sized[0] else (right, left)
            self.budget.take(weight(value) * times if isinstance(times, int) else 0)
        elif operator == "%" and isinstance(left, (str, bytes)):
            self.budget.take(percent(left, right))
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MOST_BITS:
                raise SecurityError(f"it computes a number of more than {MOST_BITS:,} bits")
        self.budget.step()
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        if attribute.startswith("_") or is_internal_attribute(obj, attribute):
            raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)  # a list's append, or a message that has such a key

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapper = super().wrap_str_format(value)
        return None if wrapper is None else self._bounded(wrapper, functools.partial(braces, value.__self__))

    def _bounded(self, function: Callable[..., Any], bound: Bound | None) -> Callable[..., Any]:
        """A filter that takes from the budget; bound: the size of what it makes, if that can be large."""
        skipped = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if bound is not None:
                values = list(args[skipped:])
                if values and isinstance(values[0], Iterator):
                    values[0] = list(self.paced(values[0]))
                    args = (*args[:skipped], *values)
                self.budget.take(bound(*values, **kwargs))
            return self.weighed(function(*args, **kwargs))

        return bounded

    def _tojson(
        self,
        x: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as ``Jinja2ChatFormatter.tojson`` writes it."""
        if isinstance(indent, int) and indent > MOST_INDENT:
            raise SecurityError(f"it indents JSON by {indent:,} spaces")
        self.budget.take(weight(x) * (2 + len("".join(separators or ()))))
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return self._concatenated(encoder.iterencode(x))


def strftime_now(form: str) -> str:
    """The date, as ``Jinja2ChatFormatter.strftime_now`` writes it."""
    if len(form) > LONGEST_DATE:
        raise SecurityError(f"it writes a date of more than {LONGEST_DATE} characters")
    return str(Jinja2ChatFormatter.strftime_now(form))


class _Counted(NodeTransformer):
    """Has loops, ``~`` and literals with something computed in them go through the sandbox."""

    def _through(self, name: str, arguments: Sequence[nodes.Node], node: nodes.Node) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name)
        call = nodes.Call(function, list(arguments), [], None, None)
        call.set_lineno(node.lineno)
        return call

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = self._through("paced", [node.iter], node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._through("joined", node.nodes, node)

    def _literal(self, node: nodes.Expr) -> nodes.Expr:
        try:
            node.as_const()
        except nodes.Impossible:
            self.generic_visit(node)
            if getattr(node, "ctx", "load") == "load":
                return self._through("weighed", [node], node)
        return node

    visit_List = visit_Tuple = visit_Dict = _literal  # noqa: N815
