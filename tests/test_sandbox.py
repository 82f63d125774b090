"""Chat templates: what they may do, as llama-cpp-python renders them, and what they may not."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import pytest
import tiny
from jinja2.exceptions import SecurityError
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from specdec.backend import ChatTemplate, Model
from specdec.backend.sandbox import SECONDS, Sandbox
from specdec.errors import UsageError

MESSAGES = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "Is 2 < 3? <b>é</b> 😀"},
    {"role": "assistant", "content": "<think>hm</think> It is."},
    {"role": "user", "content": "Are you sure?  "},
]

# What templates of real models are made of.
WELCOME = {
    "chatml": tiny.CHATML,
    "thoughts": "{% for m in messages %}{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') | trim }}{% else %}{{ m['content'] }}{% endif %}"
    "{% endfor %}",
    "namespace": "{% set ns = namespace(last=-1, text='') %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% set ns.text = ns.text ~ m.content + '!' %}{% endif %}{% endfor %}"
    "{{ ns.last }}{{ ns.text }}{{ messages[::-1] | length }}",
    "macro": "{% macro turn(m, i=0) %}{{ '%02d|%s' % (i, m.role) }}{% if caller %}{{ caller() }}{% endif %}"
    "{% endmacro %}{% for m in messages if m.role != 'system' %}{% call turn(m, loop.index) %}"
    ", {{ loop.length }}{{ loop.last }}{% endcall %}{% else %}none{% endfor %}",
    "controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
    "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}{% generation %}x{% endgeneration %}",
    "json": "{{ messages | tojson(indent=2) }}{{ messages[1] | tojson }}"
    "{{ {'b': [1, 2.5, none], 'a': true} | tojson }}"
    "{% for key, value in messages[0] | dictsort %}{{ key }}{{ value }}{% endfor %}",
    "filters": "{{ messages | map(attribute='role') | join(', ') | upper }}{{ 'a\nb' | indent(2, true) }}"
    "{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content | replace('<', '&lt;') | safe }}"
    "{{ ['x'] * 3 }}{{ 'ab'.title() ~ '-'.join(['c', 'd']) }}{{ '{:>4}'.format(7) }}{{ range(3) | list }}",
    "tuples": "{% for a, b in [(1, 2), (3, messages[0].role)] %}{{ a }}{{ b }}{% endfor %}{{ nothing }}"
    "{{ nothing is defined }}{{ bos_token ~ eos_token }}{% for x in nothing %}{% endfor %}"
    "{{ 7 // 2 ** 1 % 4 }}",
    "methods": "{% for m in messages %}{% set x = m.role %}"
    "{{ x.strip('u').center(12).replace('s', 'S').rstrip() }}"
    "{{ x.zfill(12).ljust(14) ~ x.expandtabs(4).lstrip('s') }}{{ ', '.join([x, x]) }}{{ '{:>9}'.format(x) }}"
    "{{ x.encode('utf-8').decode() | trim('r') }}{{ x.rjust(9) }}{% endfor %}",
    "recursive": "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "refuses": "{{ raise_exception('Conversation roles must alternate') }}",
}


def rendered(source: str, messages: list[dict[str, str]] = MESSAGES) -> str:
    def refuse(message: str) -> None:
        raise ValueError(message)

    sandbox = Sandbox()
    variables: dict[str, Any] = {"raise_exception": refuse, "bos_token": "<s>", "eos_token": "</s>"}
    return sandbox.rendered(
        sandbox.compiled(source), messages=messages, add_generation_prompt=True, **variables
    )


def outcome(render: Any) -> str:
    try:
        return str(render())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", WELCOME)
def test_renders_as_the_binding_does(name: str) -> None:
    source = WELCOME[name]

    def by_the_binding() -> str:
        formatter = Jinja2ChatFormatter(source, eos_token="</s>", bos_token="<s>")
        return formatter(messages=MESSAGES).prompt  # type: ignore[arg-type]  # TypedDicts

    expected = outcome(by_the_binding)
    assert outcome(lambda: rendered(source)) == expected
    assert "Error" not in expected or name == "refuses", expected


def test_a_long_conversation_is_within_its_limits() -> None:
    messages = [{"role": r, "content": f"{i} " * 300} for i in range(500) for r in ("user", "assistant")]
    text = rendered(WELCOME["chatml"], messages)
    assert text.count("<|im_start|>") == 1001
    assert len(text) > 1_000_000


ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "item": "{{ ''['__class__'] }}",
    "filter": "{{ '' | attr('__class__') }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "context": "{{ self._TemplateReference__context }}",
    "function": "{{ raise_exception.__globals__ }}",
    "format": "{{ '{0.__class__}'.format('') }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "borrowed format": "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "map": "{{ [''] | map(attribute='__class__') | list }}",
    "groupby": "{{ [''] | groupby('__class__') | list }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update({'role': 'x'}) }}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_ways_out_are_closed(name: str) -> None:
    with pytest.raises(SecurityError):
        rendered(ESCAPES[name])


def test_a_message_with_the_name_of_a_method_is_no_way_out() -> None:
    assert rendered("{{ messages[0].pop }}|{{ messages[0]['pop'] }}", [{"pop": "corn"}]) == "|corn"


@pytest.mark.parametrize(
    "source", ["{% import 'os' as os %}", "{% include '/etc/passwd' %}", "{{ lipsum() }}"]
)
def test_nothing_is_read_from_elsewhere(source: str) -> None:
    assert outcome(lambda: rendered(source)).startswith(("TemplateNotFound", "UndefinedError"))


DOUBLED = "{% set ns = namespace(x='x') %}{% for i in range(99) %}"
TOO_LARGE = {
    "times": "{{ 'x' * 10**10 }}",
    "times a string": "{{ 10**10 * 'x' }}",
    "times a list": "{{ [0] * 10**10 }}",
    "powers": "{{ 10**(10**10) }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(20) %}{% set ns.x = ns.x**2 %}{% endfor %}",
    "joined": DOUBLED + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "added": DOUBLED + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "blocks": DOUBLED + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "nested lists": DOUBLED + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "nested dicts": DOUBLED + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x | tojson }}",
    "nested names": DOUBLED + "{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "output": "{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "many values": "{% for i in range(99999) %}{% set x = 'x' * 1000000 %}{% endfor %}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "star": "{{ '%*d' % (10**9, 1) }}",
    "percent by filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format width": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format_map": "{{ '{a:>{b}}'.format_map({'a': 1, 'b': 10**9}) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "center by method": "{{ 'x'.center(10**10) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "indent": "{{ 'x\nx' | indent(10**10) }}",
    "batch": "{{ [1] | batch(10**10, 0) | list }}",
    "slice": "{{ [1] | slice(10**10) | list }}",
    "join": "{{ range(99999) | join('y' * 100000) }}",
    "join by method": "{{ ('y' * 100000).join(range(99999) | map('string')) }}",
    "replace": "{{ ('x' * 1000000) | replace('x', 'y' * 100000) }}",
    "replace by method": "{{ ('x' * 1000000).replace('', 'y' * 100000) }}",
    "strip": "{{ ('a' * 1000000).strip('b' * 1000000 ~ 'a') }}",
    "trim": "{{ ('a' * 1000000) | trim('b' * 1000000 ~ 'a') }}",
    "punycode": "{{ ('é' * 1000000).encode('punycode') }}",
    "date": "{{ strftime_now('%99999Y' * 100000) }}",
    "translate": "{{ ('x' * 1000000).translate({120: 'y' * 100000}) }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "json": "{{ [[1]] | tojson(indent=10**9) }}",
    "json separators": "{{ ([1] * 10000) | tojson(separators=('x' * 100000, ':')) }}",
    "safe": "{{ ('x' | safe) * 10**10 }}",
    "sum": "{{ range(99999) | batch(1) | sum(start=[]) }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "filter block": "{% filter center(10**10) %}x{% endfilter %}",
    "map": "{{ ['a'] | map('center', 10**10) | list }}",
}
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "filters": "{% for i in range(99999) %}{% set x = range(9999) | sort | length %}{% endfor %}",
}
ALLOWED = 600 << 20  # bytes of address space beyond what the process begins with


def test_what_is_too_large_is_refused_before_it_is_made() -> None:
    """In a process of its own, which has little memory to lose."""
    cases = {**TOO_LARGE, **ENDLESS}
    program = (
        "import json, resource, sys, time\n"
        "from specdec.backend.sandbox import Sandbox, strftime_now\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {ALLOWED}, used + {ALLOWED}))\n"
        "for name, source in json.load(sys.stdin).items():\n"
        "    sandbox, began = Sandbox(), time.thread_time()\n"
        "    try:\n"
        "        template = sandbox.compiled(source)\n"
        "        said = 'text: ' + sandbox.rendered(template, strftime_now=strftime_now)[:50]\n"
        "    except Exception as error:\n"
        "        said = f'{type(error).__name__}: {error}'\n"
        "    print(json.dumps([name, said, time.thread_time() - began]), flush=True)\n"
    )
    if sys.platform != "linux":
        pytest.skip("limits the address space as Linux does")
    assert resource.RLIMIT_AS
    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", program],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=120,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in outcomes] == list(cases), done.stderr
    for name, said, seconds in outcomes:
        assert said.startswith("SecurityError: it "), (name, said)
        assert seconds < 2 * SECONDS, (name, seconds)
        assert ("still at work" in said) == (name in ENDLESS), (name, said)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "not " * 9000 + "1 }}",
        "{{ a" + ".a" * 9000 + " }}",
        "{% macro m(n) %}{{ m(n+1) }}{% endmacro %}{{ m(0) }}",
        "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    ],
)
def test_what_is_too_deep_is_an_error(source: str) -> None:
    with pytest.raises(RecursionError):
        rendered(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ ''.__class__ }}", "is refused (it reaches for '__class__' of a str)"),
        ("{{ 'x' * 10**10 }}", "is refused (it makes a value larger than 4,194,304 characters)"),
        (ENDLESS["loops"], "is refused (it was still at work after 2 s)"),
        ("{{ raise_exception('no\nsystem') }}", "failed (no system)"),
    ],
)
def test_what_a_user_reads(target_model: Model, source: str, reason: str) -> None:
    template = ChatTemplate(target_model, source, origin="--chat-template")
    began = time.thread_time()
    with pytest.raises(UsageError) as caught:
        template.render(MESSAGES)
    assert str(caught.value) == (
        f"--chat-template: the chat template {reason}; --chat-template takes another, "
        "--raw continues a text without one"
    )
    assert time.thread_time() - began < 2 * SECONDS


def test_the_next_rendering_has_a_budget_of_its_own() -> None:
    sandbox = Sandbox()
    template = sandbox.compiled(
        "{% for i in range(times) %}{% set x = 'x' * 1000000 %}{% endfor %}{{ times }}"
    )
    with pytest.raises(SecurityError, match=r"values of more than"):
        sandbox.rendered(template, times=1000)
    assert sandbox.rendered(template, times=50) == "50"
