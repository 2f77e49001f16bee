"""The measurements: they count right, say what they measured, and the documents show what was recorded."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import __main__ as bench
from bench import (
    browser,
    c_file,
    decode,
    limit,
    machine,
    memory,
    page,
    plot,
    profile,
    records,
    scaling,
    speculation,
    speed,
    table,
    translate,
)
from bench.flops import forward_flops, products, training_flops
from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.fast import native
from tests.export.test_page import BROWSER

TINY = speed.Case("b16", B=2, layers=2, width=16, heads=2, memory=6, segment=8)
ABOUT = {"command": "python -m bench x", "commit": "abc", "torch": "2", "cpu": "some", "threads": 1, "time": "now"}
SIZES: dict[str, Any] = {"width": 24, "heads": 3, "head_width": 5, "inner": 40, "layers": 3, "memory": 7}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few steps as there can be, of a model as small as it can be."""
    for module, names in ((speed, ("ROUNDS", "WARM_UP")), (profile, ("WARM_UP",)), (scaling, ("ROUNDS",))):
        for name in names:
            monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(speed, "CASES", dict.fromkeys(("b16", "b64", "b256"), TINY))


def counted(core: Any, B: int, T: int, V: int, engine: str) -> int:
    """By torch: what a training step multiplies and adds, after a full memory."""
    model = LanguageModel(LanguageModelConfig(core=core, inputs=V), engine)
    tokens = torch.zeros(B, T, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model.nll(tokens, tokens, speed.full_state(model, B))[0].sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("share_kv", [True, False])
def test_the_operations_of_feedback_are_those_that_torch_counts(share_kv: bool) -> None:
    """The reference takes three products for the memory handed in too. It also makes the last token's keys and values,
    which nothing reads, so they have no gradients: two thirds of a token's of the T that are counted."""
    B, T, V = 2, 9, 11
    core = FeedbackConfig(share_kv=share_kv, **SIZES)
    parts = forward_flops(core, B, T, V)
    unread = 2 * parts["keys and values"] // T
    assert counted(core, B, T, V, "reference") == pytest.approx(3 * sum(parts.values()) - unread, rel=1e-3)
    assert training_flops(core, B, T, V) < 3 * sum(parts.values())


def test_the_operations_of_transformer_xl_are_those_that_torch_counts() -> None:
    """The reference scores the segment's tokens along with the memory and masks what is too much."""
    B, T, V = 2, 9, 11
    core = TransformerXLConfig(**SIZES)
    parts = forward_flops(core, B, T, V, scored=core.memory + T)
    assert counted(core, B, T, V, "reference") == pytest.approx(3 * sum(parts.values()), rel=1e-3)


@pytest.mark.parametrize("core", [FeedbackConfig(**SIZES), TransformerXLConfig(**SIZES)], ids=["feedback", "xl"])
def test_the_products_that_are_timed_alone_are_those_of_the_step(core: Any) -> None:
    B, T, V = 3, 5, 11
    parts = forward_flops(core, B, T, V)
    besides = 3 * sum(parts[name] for name in ("scores and sums", "positions", "mix"))
    assert sum(map(limit.flops_of, products(core, B, T, V))) == training_flops(core, B, T, V) - besides


@pytest.mark.parametrize("page", table.PAGES)
def test_the_documents_show_the_records(page: str) -> None:
    """If this fails: python -m bench table."""
    text = (records.ROOT / page).read_text(encoding="utf-8")
    assert table.fill(text) == text


def test_every_section_is_on_one_page() -> None:
    text = "".join((records.ROOT / page).read_text(encoding="utf-8") for page in table.PAGES)
    assert all(text.count(f"<!-- {name}: made by") == 1 for name in table.SECTIONS)


@pytest.mark.usefixtures("quick")
def test_every_measurement_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(plot, "FIGURE", tmp_path / "scaling.png")
    assert all("Not measured yet" in table.section(name) for name in table.SECTIONS)
    found: dict[str, list[dict[str, Any]]] = {
        "speed": speed.measure_case(replace(TINY, implementations=("feedback", "reference", "transformer-xl", "lstm"))),
        "limit": limit.measure_case(TINY, square=32, rounds=1),
        "memory": memory.measure_decoding(),
        "scaling": [*scaling.measure_stream(TINY, 24, 16), *scaling.measure_threads(TINY)],
    }
    if not native.UNAVAILABLE_REASON:
        found["profile"] = profile.measure_case(TINY, rounds=1)
    for name, measured in found.items():
        records.add(name, measured, ABOUT)
        assert all(record["case"] and record["what"] for record in measured)
    plot.write_scaling(plot.FIGURE)
    shown = {name: table.section(name) for name in (*found, "state")}
    assert "our Transformer-XL" in shown["speed"] and "`python -m bench x` at abc" in shown["speed"]
    assert "| width 256, batch 16 | Feedback |" in shown["limit"] and "8.00" in shown["state"]
    assert "scaling.png" in shown["scaling"] and plot.FIGURE.stat().st_size < 60_000
    assert "memory" in shown and "Not measured yet" in shown["memory"]  # steps take a process each


def test_speculation_trains_a_pair_and_reports_acceptance_and_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(speculation, "FOLDER", tmp_path / "runs")
    text = tmp_path / "text.txt"
    text.write_text("all work and no play makes a dull day\n" * 400)
    sizes = {"core.width": "8", "core.layers": "1", "core.heads": "1", "core.memory": "6", "train.steps": "40"}
    sizes |= {"task.path": str(text), "train.segment": "16", "train.batch": "4"}
    for name in ("TARGET", "DRAFT"):
        monkeypatch.setattr(speculation, name, getattr(speculation, name) | sizes)
    for name, value in (("COMMON", {}), ("LENGTHS", (2,)), ("PROMPT", 20), ("TOKENS", 24), ("ROUNDS", 2)):
        monkeypatch.setattr(speculation, name, value)
    measured = speculation.measure()
    assert [(record["case"], record["what"]) for record in measured] == [
        (case, what) for case in speculation.CASES for what in ("target alone", "draft of 2")
    ]
    for record in measured[1::2]:
        assert 0 <= record["acceptance"] <= 1 and 1 <= record["tokens_per_call"] <= 3
        # The last call of a text may draft less than it could.
        assert record["tokens_per_call"] == pytest.approx(1 + 2 * record["acceptance"], abs=0.3)
    records.add("speculation", measured, ABOUT)
    assert "acceptance rate" in table.section("speculation")


def test_translators_are_timed_by_depth_and_against_their_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(translate, "ROUNDS", 1)
    tiny = translate.Case(
        "width-16",
        16,
        2,
        depths=(1, 2),
        encoder_layers=1,
        vocabulary=40,
        sentences=3,
        min_source=2,
        max_source=4,
        tokens=4,
    )
    measured = translate.measure_case(tiny)
    kinds = {record["what"] for record in measured}
    assert {"feedback", "transformer", "encoder", "softmax", "ratio"} <= kinds
    ratio = {record["of"]: record["ratio"] for record in measured if record["what"] == "ratio"}
    seconds = {(record["what"], record.get("depth")): record.get("seconds") for record in measured}
    of = "Feedback over our Transformer, depth 2"
    assert ratio[of] == pytest.approx(seconds["transformer", 2] / seconds["feedback", 2], abs=0.02)
    records.add("translate", measured, ABOUT)
    shown = table.section("translate")
    assert "| tokens/s, width 16 | decoder of 1 | decoder of 2 |" in shown and f"| {of}, width 16 |" in shown


def test_nothing_is_timed_where_the_search_finds_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = translate.Case(
        "width-16", 16, 2, encoder_layers=1, vocabulary=40, sentences=2, min_source=2, max_source=4, tokens=4
    )
    model, (source, mask) = translate.make_model(tiny, "feedback", 1), translate.make_sources(tiny)
    translate.check_search(tiny, model, source, mask)
    monkeypatch.setattr(translate, "our_translate", lambda *given: lambda: [-9.0, -9.0])
    with pytest.raises(SystemExit, match="differs from one without a cache"):
        translate.check_search(tiny, model, source, mask)


def test_a_peer_that_is_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*given: Any) -> Any:
        raise ImportError("No module named 'ctranslate2'")

    monkeypatch.setattr(translate, "marian_model", missing)
    tiny = translate.Case("tiny", 8, 1, (1,), 1, vocabulary=40, sentences=2, min_source=2, max_source=4, tokens=3)
    steps = translate.make_steps(tiny, Path("unused"))
    assert {name for name, _ in steps} == {"feedback", "transformer", "encoder", "softmax"}
    install = 'pip install "transformers>=5" "ctranslate2>=4.5"'
    assert capsys.readouterr().err == f"peer skipped: No module named 'ctranslate2'; {install}\n"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
def test_a_page_is_measured_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(browser, "SECONDS", 0.05)
    (record,) = browser.measure(["random-walk/feedback"])
    assert record["bytes"] > 4 * record["parameters"] and record["tokens_per_second"] > 0 < record["with_attention"]
    records.add("browser", [record], ABOUT)
    assert "`random-walk/feedback`" in table.section("browser")


@pytest.mark.parametrize("case", c_file.CASES)
def test_a_c_file_is_measured_without_mistakes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = c_file.TARGETS[case]
    for tool in (target.compiler, target.size, *target.command[:1]):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    measured = c_file.measure([case], tokens=50)
    assert [(record["what"], record["mistakes"]) for record in measured] == [("float32", 0), ("int8", 0)]
    assert all(500 < record["code_bytes"] < 50_000 for record in measured)
    assert measured[0]["parameter_bytes"] > 3 * measured[1]["parameter_bytes"]
    records.add("c", measured, ABOUT)
    assert f"| {target.name} | int8 |" in table.section("c")


def test_a_case_measured_again_replaces_its_old_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    for time, cases in (("1", ("b16", "b64")), ("2", ("b64",))):
        records.add("speed", [{"case": case, "what": "feedback"} for case in cases], {"time": time})
    assert [(record["case"], record["time"]) for record in records.newest_by_case("speed")] == [
        ("b16", "1"), ("b64", "2")
    ]  # fmt: skip


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="the kernel tells it on Linux")
def test_a_step_holds_parameters_gradients_moments_and_more() -> None:
    case = speed.CASES["b16"]
    model = speed.make_model(case, FeedbackConfig(**speed.sizes(case)), "auto")
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    peak = memory.measure_in_process("feedback", "b16")
    assert peak is not None and 4 * weights < peak < 40 * weights


def test_the_help_names_every_measurement_and_case(capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(["--help"])
    shown = capsys.readouterr().out
    for name, measurement in bench.MEASUREMENTS.items():
        assert name in shown and all(case in shown for case in measurement.cases)


def test_a_page_measures_the_machine_before_and_after_each_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    def start(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(command[3:])
        return subprocess.CompletedProcess(command, returncode=int(command[3:] == ["decode"]))

    written: list[str] = []
    monkeypatch.setattr(page.subprocess, "run", start)
    monkeypatch.setattr(table, "write", lambda: written.append("table"))
    monkeypatch.setattr(plot, "write", lambda: written.append("plot"))
    with pytest.raises(ValueError, match="some benchmarks failed"):
        bench.run(["page", "decode", "speed"])
    assert started == [["machine", "start"], ["decode"], ["speed"], ["machine", "end"]]
    assert written == ["table", "plot"] and "decode  FAILED" in capsys.readouterr().out
    assert all(name in bench.MEASUREMENTS for name in page.BENCHMARKS)


def test_every_head_has_the_span_of_the_case() -> None:
    case = replace(TINY, span=3)
    for core in (FeedbackConfig, TransformerXLConfig):
        spans = speed.make_model(case, core(**speed.sizes(case)), "auto").core.spans()
        assert len(spans) == case.layers and all((span.z == 3).all() for span in spans)


def test_the_machine_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(decode, "BANDWIDTH_BYTES", 1 << 16)
    monkeypatch.setattr(machine, "ROUNDS", 1)
    for case in machine.CASES:
        records.add("machine", machine.measure_case(case, square=16), ABOUT)
    shown = table.section("machine")
    assert shown.count("GB/s") == 2 and shown.count("GFLOP/s") == 2 and "after them" in shown


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["page", "sped"], "cannot measure 'sped'"),
        (["sped"], "cannot measure 'sped'; choose from: speed"),
        (["speed", "b17"], "unknown case 'b17' of speed; choose from: b16"),
        (["data", "b16"], "it has no cases"),
        (["table", "b16"], "cannot measure 'table b16'"),
    ],
)
def test_a_user_error_is_reported(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench.run(arguments)


@pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason="no native library")
def test_one_stream_is_measured_with_every_storage_beside_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "SINGLE_ROUNDS", 2)
    monkeypatch.setattr(decode, "BANDWIDTH_BYTES", 1 << 20)
    case = decode.Case("single-1x64", (decode.Decoder("feedback", 1),), span=8, steps=2, layers=1, width=64, heads=2)
    found = decode.measure_single(case)
    peers = ["gpt2", "ctranslate2", "ctranslate2-int8"] if find_spec("ctranslate2") else ["gpt2"]
    assert [record["what"] for record in found] == ["bandwidth", "float32", "bfloat16", "int8", *peers]
    sizes = [record["megabytes_per_token"] for record in found[1:4]]
    assert sizes[0] >= sizes[1] >= sizes[2] > 0
    assert all(record["over_gpt2"].count("to") == 1 and "of_bandwidth" in record for record in found[1:4])
    shown = "\n".join(table.single(found))
    assert "| one stream, 1 layers of width 64 | tokens/s |" in shown and "| Feedback, int8 |" in shown


def test_the_share_of_attention_in_a_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "ROUNDS", 2)
    monkeypatch.setattr(decode, "BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr(decode, "PARTS_SPANS", (1, 4))
    monkeypatch.setattr(decode, "PARTS_STREAMS", 2)
    monkeypatch.setattr(decode, "GROUPS", (1,))
    found = decode.measure_parts()
    assert [(record["what"], record["span"]) for record in found] == [
        *(("feedback", 1), ("feedback", 4)),
        *(("transformer-xl", 1), ("transformer-xl", 4)),
    ]
    assert found[0]["attention_milliseconds"] == 0 and found[0]["milliseconds"] > 0
    (one, two) = decode.measure_groups()[:2]
    assert (one["group"], two["group"]) == (2, 1) and one["over_one_group"] == "1.00 (1.00 to 1.00)"
    assert "| groups of 1 |" in "\n".join(table.groups([one, two]))
    shown = "\n".join(table.parts(found))
    assert "| a step of 2 streams | span | ms |" in shown and "| Transformer-XL | 4 |" in shown


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="peak memory can only be measured on Linux")
def test_the_memory_of_passes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "measure_in_process", lambda name, case: len(name) << 20)
    records = [{**record, **ABOUT} for record in memory.measure_case("passes")]
    sizes = {record["what"]: record["session_bytes"] for record in records}
    assert sizes["transformer-xl"] < sizes["staircase-2"] < sizes["staircase-4"] < sizes["staircase-8"]
    shown = "\n".join(table.memory_of_passes(records))
    assert "| Staircase, 8 passes | 11 | 0.79 |" in shown
