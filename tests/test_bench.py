"""specdec bench: what it compares, what it makes of the runs, and the real command."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from specdec.cli import bench_plan, bench_plot
from specdec.cli.bench_check import checks, judge
from specdec.cli.bench_peer import Asked, Pair, Peer, Rival, ServerPeer, SimplePeer, make_peers
from specdec.cli.bench_plan import Configuration, Plan
from specdec.cli.bench_prompts import first, read_prompts
from specdec.cli.bench_race import Race
from specdec.cli.bench_result import Result
from specdec.cli.bench_table import as_csv, as_markdown, as_text, tables
from specdec.cli.bench_timed import Details, Timed, Trial

from specdec import Engine
from specdec.errors import SpecdecError, UsageError
from specdec.limit import Curve, perfect_rate
from specdec.prompts import PROMPTS, BenchPrompt
from specdec.settings import Drafting, Loading
from specdec.stats import Stats

SPECDEC = Path(sys.executable).with_name("specdec")

# What is tried


def test_configurations_have_names_and_a_plain_one_for_each_temperature() -> None:
    plan = Plan(("model", "suffix,model"), (4,), (0.0, 0.8), ("block", "token"))
    names = [one.name for one in plan.configurations()]
    assert names == [
        "plain@0", "model:4@0", "model:adaptive@0", "suffix+model:4@0", "suffix+model:adaptive@0",
        "plain@0.8", "model:4:block@0.8", "model:adaptive:block@0.8", "model:4:token@0.8",
        "model:adaptive:token@0.8", "suffix+model:4:block@0.8", "suffix+model:adaptive:block@0.8",
        "suffix+model:4:token@0.8", "suffix+model:adaptive:token@0.8",
    ]  # fmt: skip
    assert {one.base for one in plan.configurations() if one.temperature} == {"plain@0.8"}
    assert [one.name for one in Plan(("lookup",), ()).configurations()] == ["plain", "lookup:adaptive"]
    translated = Plan(("model",), (2,), translate=True).configurations()
    assert [one.drafting().translate for one in translated] == [True, True, True]


def test_a_configuration_is_drafting_and_sampling() -> None:
    plain, fixed, adaptive = Plan(("suffix,model",), (6,), (0.8,), ("token",)).configurations()
    assert plain.drafting() == Drafting(drafter="none", draft_max=1, accept="block")
    assert fixed.drafting() == Drafting(drafter="suffix,model", draft_max=6, accept="token")
    assert adaptive.drafting() == Drafting(drafter="suffix,model", accept="token")
    assert adaptive.sampling().temperature == 0.8


def test_lists_are_read() -> None:
    assert bench_plan.drafters("model, suffix+model") == ("model", "suffix,model")
    assert bench_plan.lengths("2,4,8") == (2, 4, 8)
    assert bench_plan.lengths("") == ()
    assert bench_plan.temperatures("0,0.8") == (0.0, 0.8)
    assert bench_plan.rules("token,block") == ("token", "block")


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (bench_plan.drafters, "model,magic", "'magic' is not known"),
        (bench_plan.drafters, "none", "'none' is not known"),
        (bench_plan.drafters, "model,,suffix", "an empty place"),
        (bench_plan.lengths, "4,4", "names one twice"),
        (bench_plan.lengths, "0", "'0' is no draft length"),
        (bench_plan.lengths, "²", "'²' is no draft length"),
        (bench_plan.temperatures, "warm", "'warm' is no temperature"),
        (bench_plan.temperatures, "nan", "'nan' is no temperature"),
        (bench_plan.rules, "typical", "'typical' is no lossless rule"),
    ],
)
def test_lists_that_make_no_sense_are_refused(read: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert said in str(caught.value)


def test_a_cascade_in_the_wrong_order_is_refused() -> None:
    with pytest.raises(UsageError, match="the model comes last"):
        Plan(("model,suffix",), ())


# Prompts


def test_the_prompts_that_are_built_in_are_three_of_five_kinds() -> None:
    kinds = ["chat", "code", "summary", "translation", "editing"]
    assert [prompt.kind for prompt in PROMPTS] == kinds * 3
    assert len({prompt.text for prompt in PROMPTS}) == 15
    for prompt in PROMPTS:
        if prompt.kind == "summary":
            assert 150 <= len(prompt.text.split()) <= 300


def test_spec_bench_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(
        '{"question_id": 1, "category": "qa", "turns": ["Who?\u2028And why?", "When?"]}\n\n'
        '{"prompt": "Hello"}\n',
        "utf-8",
    )
    assert read_prompts(file) == [BenchPrompt("qa", "Who?\u2028And why?"), BenchPrompt("prompts", "Hello")]


def test_plain_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("One prompt.\r\n\n  Another one.\n", "utf-8")
    assert read_prompts(file) == [
        BenchPrompt("prompts", "One prompt."),
        BenchPrompt("prompts", "Another one."),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n \n", "there are no prompts"),
        ('{"turns": ["a"]}\n{"turns": []}\n', 'line 2: "turns" must be a list of texts'),
        ('{"turns": ["a"], "category": 3}', 'line 1: "category" must be a text'),
        ('{"turns": ["a"]}\nplain\n', "line 2 is not JSON"),
        ('{"question": "a"}', 'line 1: "turns" must be'),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        read_prompts(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_few_of_the_prompts_are_of_all_kinds() -> None:
    prompts = [BenchPrompt(kind, f"{kind}{i}") for kind in "ab" for i in range(3)]
    assert [prompt.text for prompt in first(prompts, 3)] == ["a0", "b0", "a1"]


# The limit


def test_the_limit_of_a_drafter_that_is_always_right_is_the_longest_draft() -> None:
    assert perfect_rate([4, 4], 4, lambda n: 1.0, 0.1, longest=10) == pytest.approx(11 / (1.0 + 10 * 0.1))


def test_the_limit_of_a_drafter_that_is_never_right_is_plain_decoding() -> None:
    assert perfect_rate([0, 0, 0], 8, lambda n: 0.5 + 0.1 * n, 0.01) == pytest.approx(1 / 0.6)


def test_the_limit_is_the_best_of_all_choices() -> None:
    accepted, length, d = [0, 1, 1, 2, 3, 3], 3, 0.15
    cost = [1.0, 1.5, 1.6, 2.9]  # seconds of 1, 2, 3 and 4 rows
    chances = [1 / 6, 2 / 6, 1 / 6, 2 / 6]
    rates = []
    for choice in itertools.product(*(range(r + 1) for r in range(4))):
        tokens = sum(p * (j + 1) for p, j in zip(chances, choice, strict=True))
        seconds = sum(p * (cost[j] + j * d) for p, j in zip(chances, choice, strict=True))
        rates.append(tokens / seconds)
    found = perfect_rate(accepted, length, lambda n: cost[n - 1], d, longest=3)
    assert found == pytest.approx(max(rates), rel=1e-12)


def test_whole_drafts_go_on_with_the_rate_that_the_rounds_had() -> None:
    # Three of four guesses were kept, so past the draft of one it is 3/4, then 9/16.
    chances = [1 / 4, 3 / 16, 9 / 16]
    expected = sum(p * (r + 1) for r, p in enumerate(chances))
    assert perfect_rate([0, 1, 1, 1], 1, lambda n: 1.0, 0.0, longest=2) == pytest.approx(expected)


def test_a_curve_goes_through_its_points_and_on_in_a_line() -> None:
    curve = Curve({1: (1.0, 9), 3: (1.4, 5), 5: (2.0, 5)})
    assert [curve(n) for n in (1, 2, 3, 4, 5, 7)] == pytest.approx([1.0, 1.2, 1.4, 1.7, 2.0, 2.6])
    assert curve.times(2.0)(3) == pytest.approx(2.8)
    assert Curve({1: (1.0, 1)})(4) == 4.0


def test_a_curve_never_falls() -> None:
    curve = Curve({1: (1.0, 10), 2: (1.6, 1), 3: (1.3, 2), 4: (2.0, 1)})
    assert [curve(n) for n in (1, 2, 3, 4)] == pytest.approx([1.0, 1.4, 1.4, 2.0])


# What is made of the runs


def timed(
    seconds: float,
    rounds: Sequence[tuple[int, int]],
    tokens: Sequence[int] | None = None,
    drafting: float = 0.0,
) -> Timed:
    """A run of our own; of a round's time nine tenths are the target's pass, drafting is the drafter's."""
    stats = Stats()
    share = (seconds - drafting) / sum(drafted + 1 for drafted, _ in rounds)
    passes = []
    for drafted, accepted in rounds:
        stats.count(drafted=drafted, accepted=accepted, emitted=accepted + 1, source="model")
        passes.append(0.9 * share * (drafted + 1))
    stats.seconds["verify"] = seconds
    details = Details(stats, list(rounds), passes, drafting)
    every = tuple(tokens if tokens is not None else range(stats.emitted))
    return Timed(stats.emitted, seconds, stats.drafted, stats.accepted, every, details)


def one(name: str) -> Configuration:
    drafter, _, length = name.partition(":")
    fixed = int(length) if length.isdigit() else None
    return Configuration(name, "plain", "none" if drafter == "plain" else drafter, fixed, "block", 0.0)


class NoPeer(Peer):
    def __init__(self) -> None:
        self.name = "llama-server"
        self.command = ["llama-server", "-a b"]

    def run(self, asked: Asked) -> Timed:
        raise SpecdecError("llama-server failed with 1: too warm")


@pytest.fixture
def result() -> Result:
    """Two prompts of six tokens: plain takes 6 s on the one and 12 s on the other."""
    plain, tokens = [(0, 0)] * 6, range(6)
    fast = {
        "plain": timed(6.0, plain),
        "model:2": timed(3.0, [(2, 2), (2, 2)], drafting=0.4),
        "model:4": timed(4.0, [(4, 4), (0, 0)]),
        "model:adaptive": timed(2.0, [(5, 5)]),
        "llama-server": Timed(6, 4.0, 6, 3, tuple(range(7))),
    }
    slow = {
        "plain": timed(12.0, plain),
        "model:2": timed(10.0, [(2, 0), (2, 2), (2, 1)], [9, *tokens][:6]),
        "model:4": timed(15.0, [(4, 1), (4, 3)]),
        "model:adaptive": timed(12.0, plain),
        "llama-server": Timed(6, 6.0, 6, 3, (0, 1, 5)),
    }
    trials = [Trial(0, 0, "chat", 7, fast), Trial(1, 1, "code", 7, slow)]
    names = ["plain", "model:2", "model:4", "model:adaptive"]
    return Result(trials, [*map(one, names), Rival("llama-server", "plain", NoPeer(), 0.0)])


def test_ratios_are_taken_prompt_by_prompt(result: Result) -> None:
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["plain", "model:2", "model:4", "model:adaptive", "llama-server"]
    assert rows["plain"].ratio is None
    ratio = rows["model:2"].ratio
    assert ratio is not None
    assert (ratio.median, ratio.least, ratio.most, ratio.n) == pytest.approx((1.6, 1.2, 2.0, 2))
    assert rows["model:2"].by_kind == pytest.approx({"chat": 2.0, "code": 1.2})
    assert rows["llama-server"].by_kind == pytest.approx({"chat": 1.5, "code": 2.0})
    assert rows["plain"].rate == pytest.approx(0.75)


def test_counts_are_taken_over_all_prompts(result: Result) -> None:
    row = next(row for row in result.rows if row.name == "model:2")
    assert row.accepted == pytest.approx(7 / 10)
    assert row.length == pytest.approx(12 / 5)
    assert row.inside == pytest.approx((0.9 * 2.6 + 0.4 + 0.9 * 10.0) / 13.0)
    assert row.same == (1, 2)
    peer = next(row for row in result.rows if row.name == "llama-server")
    assert (peer.accepted, peer.length, peer.inside) == (0.5, None, None)
    assert peer.same == (1, 2)  # with a token more, the end of the text


def test_the_best_fixed_length_is_found_afterwards(result: Result) -> None:
    best = result.best_fixed(one("model:adaptive"))
    assert best is not None
    assert best.name == "model:2"
    spread = result.spread("model:adaptive", "best-fixed")
    assert spread is not None
    assert (spread.least, spread.most) == pytest.approx((10.0 / 12.0, 3.0 / 2.0))


def test_the_limit_follows_from_costs_and_acceptance(result: Result) -> None:
    assert result.single == pytest.approx((0.9 + 1.8) / 2)
    assert result.shape is not None
    single = {0: 0.9, 1: 1.8}
    limits = []
    for i, accepted in enumerate(
        ([4], [1, 3])
    ):  # of the longest fixed length, without the round that was cut
        costs = result.shape.times(single[i])
        limits.append(perfect_rate(accepted, 4, costs, 0.0))
    assert result.limit(one("model:adaptive")) == pytest.approx(sum(limits) / 2)
    spread = result.spread("model:2", "limit")
    assert spread is not None
    assert spread.most == pytest.approx(max(2.0 / limits[0], 0.6 / limits[1]))


def test_the_forecast_is_the_best_single_length_for_each_prompt(result: Result) -> None:
    assert result.shape is not None
    cost = [result.shape(rows) for rows in range(26)]
    rates = [  # of four in four all were accepted, and of 1 and 3 in four: 2, 2.5 and 3 tokens a round
        max((k + 1) / cost[k + 1] for k in range(25)) / 0.9,
        max(1 / cost[1], 2 / cost[2], 2.5 / cost[3], 3 / cost[4]) / 1.8,
    ]
    assert result.forecast(one("model:adaptive")) == pytest.approx(sum(rates) / 2)
    spread = result.spread("model:adaptive", "forecast")
    assert spread is not None
    assert (spread.least, spread.most) == pytest.approx(sorted((3.0 / rates[0], 0.5 / rates[1])))
    judge(checks(["model:adaptive/forecast>=0.1"], {"model:adaptive": "plain"}), result)


def test_rules_are_compared_with_an_interval() -> None:
    def rule(name: str) -> Configuration:
        return Configuration(name, "plain", "model", 2, "token" if name == "token" else "block", 0.8)

    trials = [
        Trial(
            i, i, "chat", 3, {"block": timed(1.0, [(2, 2), (2, kept)]), "token": timed(1.0, [(2, 1), (2, 1)])}
        )
        for i, kept in enumerate((0, 1, 2))
    ]
    (interval,) = Result(trials, [rule("token"), rule("block")]).intervals()
    assert interval.name == "block"
    assert interval.ratio == pytest.approx((4 + 5 + 6) / 12)
    assert (interval.low, interval.high) == pytest.approx((1.0, 1.5))


def test_the_tables_say_it_all(result: Result) -> None:
    heading, *blocks = as_text("heading", list(tables(result))).split("\n\n")
    speeds, kinds, derived = (
        {line.split("  ")[0]: line.split() for line in block.splitlines()[2:]} for block in blocks
    )
    assert heading == "heading"
    words = speeds["model:2"]
    assert words[:8] == ["model:2", "1.3", "1.60", "1.20", "2.00", "70%", "2.40", "90.3%"]
    assert words[9:] == ["1", "of", "2"]
    assert kinds["model:4"] == ["model:4", "1.50", "0.80"]
    assert derived["model:adaptive ÷ best fixed (model:2)"][-3:] == ["1.17", "0.83", "1.50"]
    assert derived["model:adaptive ÷ llama-server"][-3:] == ["1.25", "0.50", "2.00"]
    markdown = as_markdown("heading", list(tables(result))).splitlines()
    assert "| model:2 | 1.3 | 1.60 | 1.20 | 2.00 | 70% | 2.40 | 90.3% |" in "\n".join(markdown)
    assert all(line.count("|") == 11 for line in markdown if line.startswith("| model:2 | 1.3"))
    rows = list(csv.DictReader(io.StringIO(as_csv(result))))
    assert [row["name"] for row in rows] == [row.name for row in result.rows]
    assert (rows[1]["ratio"], rows[1]["ratio_chat"], rows[1]["same_tokens"]) == ("1.6", "2", "1")
    assert rows[0]["ratio"] == ""


def test_everything_is_in_the_object(result: Result) -> None:
    found = json.loads(json.dumps(result.as_dict()))
    assert [row["name"] for row in found["results"]] == [row.name for row in result.rows]
    assert found["results"][1]["drafted_by_position"] == [5, 5]
    assert [row.get("draft_length") for row in found["results"]] == [0, 2, 4, "adaptive", None]
    assert found["results"][4]["command"] == ["llama-server", "-a b"]
    assert found["results"][2]["ratio_by_kind"] == pytest.approx({"chat": 1.5, "code": 0.8})
    assert found["results"][1]["accepted_by_position"] == [4, 3]
    (adaptive,) = found["adaptive"]
    assert adaptive["best_fixed"] == "model:2"
    assert adaptive["over_peers"]["llama-server"]["median"] == pytest.approx(1.25)
    assert found["trials"][1]["runs"]["model:4"] == {
        "tokens": 6, "seconds": 15.0, "drafted": 8, "accepted": 4, "rounds": 2
    }  # fmt: skip
    assert found["target_ms"]["1"] == pytest.approx(1350.0)


def test_what_was_not_run_is_left_out() -> None:
    trials = [Trial(0, 0, "chat", 7, {"plain": timed(6.0, [(0, 0)] * 6)}), Trial(1, 1, "chat", 7, {})]
    result = Result(trials, [one("plain"), one("model:2"), one("model:adaptive")])
    assert [row.name for row in result.rows] == ["plain"]
    assert result.spread("model:2", "plain") is None
    assert result.limit(one("model:2")) is None
    assert result.forecast(one("model:2")) is None
    assert "model" not in as_text("", list(tables(result)))


def test_checks_name_what_fell_short(result: Result) -> None:
    bases = {row.name: "plain" for row in result.rows}
    fine = checks(["model:2>=1.59", "model:2/llama-server >= 0.9", "model:adaptive/best-fixed>=1"], bases)
    judge(fine, result)
    with pytest.raises(SpecdecError) as caught:
        judge(checks(["model:2>=1.61", "model:4>=1"], bases), result)
    assert str(caught.value) == "1 of 2 checks failed: model:2>=1.61: it is 1.600"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:2>1", "write it as NAME>=RATIO"),
        ("model:3>=1", "there is no 'model:3' in this run; there are plain, model:2"),
        ("model:2/other>=1", "there is no 'other'"),
    ],
)
def test_checks_that_could_not_be_made_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        checks([text], {"plain": "plain", "model:2": "plain"})
    assert said in str(caught.value)


def test_the_charts_are_drawn(result: Result, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg, png = tmp_path / "bench.svg", tmp_path / "bench.png"
    bench_plot.draw(result, "a heading", svg)
    bench_plot.draw(result, "a heading", png)
    assert "</svg>" in svg.read_text("utf-8")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_charts_that_cannot_be_drawn_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"ends in \.svg, \.png, \.pdf"):
        bench_plot.check_plot(tmp_path / "bench.txt")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'pip install "specdec\[plot\]"'):
        bench_plot.check_plot(tmp_path / "bench.svg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match="no directory that can be written"):
        bench_plot.check_plot(tmp_path / "missing" / "bench.svg")


# llama.cpp's programs, played by scripts

SIMPLE = """
import json, sys
from pathlib import Path
from typing import Any
if sys.argv[-1] == "--help":
    print("--spec-type none,draft-simple,ngram-simple   --spec-draft-n-max N")
    sys.exit()
log = Path(__file__).with_suffix(".log")
words = sys.argv[1:]
words[words.index("-f") + 1] = Path(words[words.index("-f") + 1]).read_text()
with log.open("a") as file:
    file.write(json.dumps(words) + "\\n")
if "--fail" in words:
    sys.exit("some lines\\nerror: no such flag\\nusage: see --help")
n = int(words[words.index("-n") + 1])
print("the text")
print("encoded   12 tokens in    0.150 seconds, speed:   80.000 t/s", file=sys.stderr)
print(f"decoded {n:4d} tokens in {n / 50:8.3f} seconds, speed:   50.000 t/s", file=sys.stderr)
print("n_draft   = 3\\nn_predict = 9\\nn_drafted = 10\\nn_accept  = 7\\naccept    = 70.000%", file=sys.stderr)
"""

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
if sys.argv[-1] == "--help":
    print("--port PORT")
    sys.exit()
log = Path(__file__).with_suffix(".log")
log.write_text(json.dumps(sys.argv[1:]) + "\\n")
if "--fail" in sys.argv:
    sys.exit("error: cannot load the model")
class Handler(BaseHTTPRequestHandler):
    def answer(self, code, value):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
    def do_GET(self):
        self.answer(200, {"status": "ok"})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with log.open("a") as file:
            file.write(json.dumps(asked) + "\\n")
        if asked["n_predict"] > 100:
            return self.answer(400, {"error": "too many"})
        n = asked["n_predict"]
        times = {"predicted_n": n, "predicted_ms": 20.0 * (n - 1), "draft_n": 10, "draft_n_accepted": 7}
        self.answer(200, {"content": "", "tokens": list(range(n)), "timings": times})
    def log_message(self, *args):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def script(path: Path, text: str) -> Path:
    """An executable that a word names."""
    path.write_text(f"#!{sys.executable}\n{text}", "utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def logged(program: Path) -> list[Any]:
    """What it was called with, or asked, each time."""
    return [json.loads(line) for line in program.with_suffix(".log").read_text("utf-8").splitlines()]


@pytest.fixture
def simple(tmp_path: Path) -> Path:
    return script(tmp_path / "llama-speculative-simple", SIMPLE)


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return script(tmp_path / "llama-server", SERVER)


PAIR = Pair(Path("big.gguf"), Path("small.gguf"), 3, Loading(n_ctx=512, gpu_layers=7))
ASKED = Asked("Say \\n twice.\n", (5, 6, 7), 24, 0.8, 11)


def test_llama_speculative_simple_gets_our_files_and_tells_its_speed(simple: Path) -> None:
    (peer,) = make_peers([f"{simple} --spec-draft-n-max 8"], PAIR)
    assert isinstance(peer, SimplePeer)
    assert peer.name == "llama-speculative-simple"
    found = peer.run(ASKED)
    assert (found.emitted, found.seconds, found.drafted, found.accepted) == (24, 0.48, 10, 7)
    assert found.rate == pytest.approx(50.0)
    assert logged(simple) == [
        [
            "--spec-draft-n-max", "8", "-m", "big.gguf", "-t", "3", "-c", "512", "-ngl", "7",
            "-md", "small.gguf", "--spec-type", "draft-simple", "--no-escape", "-f", "Say \\n twice.\n\n",
            "-n", "24", "--temp", "0.8", "--seed", "11",
        ]
    ]  # fmt: skip


def test_a_peer_that_drafts_from_its_own_text_gets_no_drafter(simple: Path) -> None:
    (peer,) = make_peers([f"{simple} --spec-type ngram-simple -t 1"], PAIR)
    peer.run(ASKED)
    (words,) = logged(simple)
    assert words[:7] == ["--spec-type", "ngram-simple", "-t", "1", "-m", "big.gguf", "-c"]
    assert "-md" not in words
    assert words.count("-t") == 1


def test_llama_server_is_started_once_and_its_first_token_is_not_counted(server: Path) -> None:
    (peer,) = make_peers([str(server)], PAIR)
    assert isinstance(peer, ServerPeer)
    try:
        for _ in range(2):
            found = peer.run(ASKED)
            assert (found.emitted, found.drafted, found.accepted) == (23, 10, 7)
            assert found.rate == pytest.approx(50.0)
            assert found.tokens == tuple(range(24))
        with pytest.raises(SpecdecError, match=r'llama-server failed with 400: \{"error": "too many"\}'):
            peer.run(ASKED._replace(n=200))
    finally:
        peer.close()
    command, *asked = logged(server)
    assert command[:10] == ["-m", "big.gguf", "-t", "3", "-c", "512", "-ngl", "7", "-md", "small.gguf"]
    assert command[10:14] == ["-np", "1", "--host", "127.0.0.1"]
    assert asked[0] == {
        "prompt": [5, 6, 7], "n_predict": 24, "temperature": 0.8, "seed": 11, "cache_prompt": True,
        "return_tokens": True, "stream": False,
    }  # fmt: skip
    assert len(asked) == 3


def test_a_peer_that_fails_says_why(simple: Path, server: Path) -> None:
    one, other = make_peers([f"{simple} --fail", f"{server} --fail"], PAIR)
    with pytest.raises(SpecdecError) as caught:
        one.run(ASKED)
    assert str(caught.value) == "llama-speculative-simple failed with 1: error: no such flag"
    with pytest.raises(SpecdecError, match="llama-server failed with 1: error: cannot load the model"):
        other.run(ASKED)
    other.close()


def test_peers_are_recognised_by_name_or_by_help(simple: Path, server: Path, tmp_path: Path) -> None:
    renamed = server.rename(tmp_path / "served")
    words = f"{sys.executable} {simple}"
    peers = make_peers([str(simple), words, str(renamed)], PAIR)
    assert [(type(peer), peer.name) for peer in peers] == [
        (SimplePeer, "llama-speculative-simple"),
        (SimplePeer, "llama-speculative-simple#2"),
        (ServerPeer, "llama-server"),
    ]
    for command, said in [
        ("/nowhere/llama-server", "there is no such program"),
        ("", "names no program"),
        ("llama-server 'x", "No closing quotation"),
        (sys.executable, "neither llama-speculative-simple nor llama-server"),
    ]:
        with pytest.raises(UsageError, match=said):
            make_peers([command], PAIR)


# The race, with real models


@pytest.fixture
def engine(models: Path) -> Engine:
    return Engine(
        models / "target.gguf",
        models / "cousin.gguf",
        loading=Loading(n_ctx=256, threads=1),
        drafting=Drafting(drafter="model", draft_max=1),
        longest_draft=8,
    )


def test_everybody_runs_on_every_prompt_and_another_is_first(engine: Engine, models: Path) -> None:
    entrants = Plan(("suffix", "model"), (2,)).configurations()
    names = [entrant.name for entrant in entrants]
    prompts = [BenchPrompt("a", "the and to the and"), BenchPrompt("b", "of in is of in")]
    with engine:
        race = Race(engine, models / "cousin.gguf", entrants, prompts, 12, 1, pytest.fail)
        for number in range(3):
            race.run(number, lambda share: None)
        assert engine.draft is None or engine.draft.model.path == models / "cousin.gguf"
    assert [list(trial.runs) for trial in race.trials] == [names[i:] + names[:i] for i in range(3)]
    assert [(trial.kind, trial.prompt) for trial in race.trials] == [("a", 0), ("b", 1), ("a", 0)]
    for trial in race.trials:
        runs = trial.runs
        assert {run.emitted for run in runs.values()} == {12}
        assert all(run.seconds > 0.0 for run in runs.values())
        for run in runs.values():
            details = run.details
            assert details is not None
            assert len(details.passes) == len(details.rounds) == details.stats.rounds
            assert sum(details.passes) + details.drafter_seconds <= run.seconds
            assert sum(drafted for drafted, _ in details.rounds) == run.drafted
        assert runs["plain"].drafted == 0
        assert runs["model:2"].drafted > 0
        model = runs["model:2"].details
        assert model is not None
        assert model.drafter_seconds > 0.0


def test_a_prompt_that_does_not_fit_is_refused_before_the_race(engine: Engine) -> None:
    prompts = [BenchPrompt("a", "the"), BenchPrompt("b", "the and to " * 40)]
    entrants = Plan(("suffix",), ()).configurations()
    with engine, pytest.raises(UsageError, match=r"prompt 2 \(b\) has \d+ tokens, and with -n 200"):
        Race(engine, None, entrants, prompts, 200, 1, pytest.fail)


def test_a_peer_that_fails_in_the_middle_is_left_out(engine: Engine) -> None:
    said: list[str] = []
    entrants: list[Configuration | Rival] = [one("plain"), Rival("llama-server", "plain", NoPeer(), 0.0)]
    with engine:
        race = Race(engine, None, entrants, [BenchPrompt("a", "the and")], 4, 1, said.append)
        race.run(0, lambda share: None)
        with pytest.raises(SpecdecError, match="too warm"):
            race.warm_up(lambda share: None)
    assert list(race.trials[0].runs) == ["plain"]
    assert said == ["llama-server failed with 1: too warm; left out of prompt 1"]


# The command


class Bench:
    """The real command on a tiny pair, in a home of its own."""

    def __init__(self, models: Path, home: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LD_LIBRARY_PATH")}
        self.env = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "HF_HUB_OFFLINE": "1"}
        prompts = home / "prompts.jsonl"
        lines = [("chat", "the and to the and to"), ("code", "of in is of in is"), ("chat", "that he was")]
        prompts.write_text(
            "".join(json.dumps({"category": k, "turns": [t]}) + "\n" for k, t in lines), "utf-8"
        )
        self.words = [
            SPECDEC, "bench", "-m", models / "target.gguf", "-md", models / "cousin.gguf", "-c", "256",
            "-t", "1", "--prompts", prompts, "-n", "12",
        ]  # fmt: skip

    def start(self, *args: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(word) for word in (*self.words, *args)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env,
        )  # fmt: skip

    def __call__(self, *args: object) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with self.start(*args) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture
def bench(models: Path, tmp_path: Path) -> Bench:
    return Bench(models, tmp_path)


def test_the_command_measures_everything_by_default(bench: Bench, simple: Path) -> None:
    code, out, err = bench("--draft-lengths", "2,4", "--peer", f"{simple} --spec-draft-n-max 4", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    drafters = ("model", "suffix", "lookup", "suffix+model")
    own = [f"{drafter}:{length}" for drafter in drafters for length in ("2", "4", "adaptive")]
    assert [row["name"] for row in found["results"]] == ["plain", *own, "llama-speculative-simple"]
    assert len(found["trials"]) == 3
    for row in found["results"][1:-1]:
        assert row["ratio"]["n"] == 3
        assert row["same_tokens"] == [3, 3]
        assert 0.0 < row["share_in_llama_decode"] <= 1.0
    assert found["results"][-1]["tokens_per_second"] == pytest.approx(50.0)
    assert [one["name"] for one in found["adaptive"]] == [f"{drafter}:adaptive" for drafter in drafters]
    assert found["adaptive"][0]["limit_tokens_per_second"] > 0.0
    assert (found["threads"], found["prompts"], found["max_tokens"], found["finished"]) == (1, 3, 12, True)
    assert len(logged(simple)) == 4  # once to see that it works, and on three prompts


def test_the_command_prints_tables(bench: Bench) -> None:
    args = ("--drafters", "suffix", "--draft-lengths", "2", "--temps", "0,0.8", "--limit", "2")
    code, out, err = bench(*args)
    assert (code, err) == (0, "")
    heading, *_ = out.splitlines()
    assert heading == "target.gguf, 1 thread; 2 prompts, up to 12 tokens each, temperature 0,0.8"
    names = [line.split()[0] for line in out.splitlines() if line]
    for name in (
        "plain@0",
        "suffix:2@0",
        "suffix:adaptive@0",
        "plain@0.8",
        "suffix:2@0.8",
        "suffix:adaptive@0.8",
    ):
        assert name in names
    code, out, err = bench(*args[:4], "--temps", "0.8", "--accept", "block,token", "--markdown")
    assert (code, err) == (0, "")
    rows = [line.split(" | ") for line in out.splitlines()]
    assert [row[0] for row in rows if len(row) == 4 and "token rejection" in row[0]] == [
        f"| suffix:{length}:block ÷ token rejection, tok/round (95 % interval)"
        for length in ("2", "adaptive")
    ]
    code, out, err = bench(*args, "--csv")
    assert (code, err) == (0, "")
    assert [row["name"] for row in csv.DictReader(io.StringIO(out))] == [
        "plain@0", "suffix:2@0", "suffix:adaptive@0", "plain@0.8", "suffix:2@0.8", "suffix:adaptive@0.8"
    ]  # fmt: skip


def test_a_check_that_fails_is_exit_code_1(bench: Bench) -> None:
    args = ("--drafters", "suffix", "--draft-lengths", "", "--limit", "1")
    code, out, err = bench(*args, "--check", "suffix:adaptive>=0.0", "--check", "suffix:adaptive>=1000")
    assert code == 1
    assert "suffix:adaptive" in out
    assert err.startswith("specdec: 1 of 2 checks failed: suffix:adaptive>=1000: it is ")
    code, _, err = bench(*args, "--check", "suffix:adaptive>=0.0")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--json", "--csv"), "exclude each other"),
        (("--check", "model:3>=1"), "there is no 'model:3'"),
        (("--drafters", "model,suffix+x"), "'x' is not known"),
        (("--peer", "/nowhere/llama-server"), "there is no such program"),
        (("--prompts", "/nowhere/prompts"), "cannot read the prompts"),
        (("-n", "300"), "raise -c"),
    ],
)
def test_wrong_usage_is_exit_code_2(bench: Bench, args: tuple[str, ...], said: str) -> None:
    code, out, err = bench(*args)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_without_a_drafter_only_repetitions_are_drafted(bench: Bench) -> None:
    at = bench.words.index("-md")
    del bench.words[at : at + 2]
    code, out, err = bench("--draft-lengths", "", "--limit", "1", "--csv")
    assert (code, err) == (0, "")
    names = [row["name"] for row in csv.DictReader(io.StringIO(out))]
    assert names == ["plain", "suffix:adaptive", "lookup:adaptive"]


def test_ctrl_c_prints_what_there_is(bench: Bench, simple: Path) -> None:
    args = ("--drafters", "suffix", "--draft-lengths", "2", "--repeat", "1000", "--peer", simple)
    with bench.start(*args) as process:
        log, ends = simple.with_suffix(".log"), time.monotonic() + 60
        while not (log.exists() and len(logged(simple)) > 3):
            assert time.monotonic() < ends
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "interrupted in run " in out.splitlines()[0]
    assert any(line.startswith("suffix:adaptive") for line in out.splitlines())


def test_charts_from_the_command(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg = tmp_path / "bench.svg"
    code, _, err = bench("--drafters", "model", "--draft-lengths", "2", "--limit", "1", "--plot", svg)
    assert (code, err) == (0, "")
    assert "</svg>" in svg.read_text("utf-8")
