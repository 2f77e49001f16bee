"""The page of translators: logits, searches and texts equal Python's in node and in Chromium, in float32 and int8."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES
from stairwell.decode.weights import quantize
from stairwell.errors import UserError
from stairwell.export import PageTranslator, export_translation_html, translators_of_runs
from stairwell.export.pack import PackedModel
from stairwell.export.task_json import pair_json
from stairwell.export.translation_page import make_translation_page, pack_seq2seq
from stairwell.models import Seq2Seq, Seq2SeqConfig, inspect
from stairwell.runs.pair_runs import open_translator
from stairwell.tasks.base import SavedTask
from stairwell.tasks.pair_task import PairTask
from stairwell.tasks.summarization import Summarization, SummarizationConfig
from stairwell.tasks.translation import Translation, TranslationConfig
from stairwell.text import BPE
from stairwell.train.translator import Search, Translator
from tests.export.test_accessibility import check, inspect_file
from tests.export.test_engine import EXPORT, run_node
from tests.export.test_page import BROWSER, measure_on_phone, open_page, run_script
from tests.invariants import scramble
from tests.models.test_seq2seq import DECODERS, SIZES

SHIPPED = "multi30k-de-en"
MEGABYTE = 1_000_000
V, T = 11, 9
LENGTHS = (6, 1, 4, 21)  # of the sources
CORPUS = (
    "it's ½ of 12 cafés – don't run! 'stop' the dog's run\nein hund läuft, it's a dog; the café's 12 cats 100% run\n"
)
GERMAN = [
    "Ein Mann mit einem orangefarbenen Hut starrt etwas an.",
    "zwei  junge frauen\tsitzen im park auf einer bank und essen eis .",
    "",
    "ein kleines mädchen klettert in ein spielhaus aus holz .",
    "ein boston terrier läuft über saftig-grünes gras vor einem weißen zaun .",
]
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{name: (name, {}, {}) for name in DECODERS},
    "feedback, post-norm, separate embeddings": (
        "feedback",
        {"norm": "post", "share_kv": False, "attend_to_current": True, "adaptive_span": True},
        {"encoder_positions": "relative", "encoder_distance": 2, "encoder_norm": "post", "tied": "none"},
    ),
    "transformer-xl, post-norm": ("transformer-xl", {"norm": "post", "head_width": 3}, {"tied": "output"}),
    "lstm, relative": ("lstm", {}, {"encoder_positions": "relative", "encoder_distance": 3, "start_embedding": False}),
}
SEARCHES = [
    Search(beam=1),
    Search(beam=1, break_loops=False, min_length=4),
    Search(beam=4),
    Search(beam=5, length_penalty=0.4, no_repeat_ngram_size=2),
    Search(beam=3, length_penalty=-0.5, max_length_ratio=0.5, break_loops=False),
    Search(beam=3, length_penalty=0.0, min_length_ratio=0.7, max_length=7),
    Search(beam=2, no_repeat_ngram_size=1, max_length_ratio=0.0),
]
DECODERS_THAT_SEARCH = ("feedback", "transformer-xl", "staircase", "global-cached-staircase", "lstm", "deltanet")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")


@cache
def make_model(name: str, size: int = V) -> Seq2Seq:
    core, core_options, options = MODELS[name]
    torch.manual_seed(0)
    config = CORES[core].config(**{**SIZES, **DECODERS[core], **core_options})
    sizes = {"encoder_layers": 2, "encoder_heads": 2, "sources": size, "targets": size, **options}
    return scramble(Seq2Seq(Seq2SeqConfig(core=config, **sizes), "reference")).eval()  # type: ignore[return-value]


def sentences() -> tuple[list[Tensor], list[Tensor]]:
    """Return sources and targets."""
    generator = torch.Generator().manual_seed(1)
    sources = [torch.randint(V, (length,), generator=generator) for length in LENGTHS]
    return sources, [torch.randint(V, (T,), generator=generator) for _ in LENGTHS]


def run_cases(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (folder / "cases.json").write_text(json.dumps(list(cases.values())))
    script = Path(__file__).with_name("translation_cases.js")
    return dict(zip(cases, run_node(script, EXPORT, folder / "cases.json")))


def as_case(packed: PackedModel, **others: Any) -> dict[str, Any]:
    return {"header": packed.header, "block": packed.block, **others}


@cache
def make_task(summarization: bool = False, **options: Any) -> PairTask:
    saved = SavedTask({"joint": BPE.build([CORPUS], 300)}, "words", {})
    sizes = {"max_source_length": 30, "max_target_length": 20, "lowercase": True}
    if summarization:
        return Summarization.from_saved(SummarizationConfig(**{**sizes, **options}), saved)
    return Translation.from_saved(TranslationConfig(**{**sizes, **options}), saved)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sources, targets = ([ids.tolist() for ids in side] for side in sentences())
    cases = {
        name: as_case(pack_seq2seq(make_model(name)), sources=sources, targets=targets, values=True) for name in MODELS
    }
    for name in ("feedback", "transformer-xl, post-norm", "feedback, post-norm, separate embeddings"):
        packed = pack_seq2seq(make_model(name), "int8")
        cases[f"{name} int8"] = as_case(packed, sources=sources, targets=targets, values=True)
    return run_cases(tmp_path_factory.mktemp("steps"), cases)


@torch.no_grad()
def expected_steps(model: Seq2Seq, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (T, V) and attention to the source (T, layers, H, J)."""
    with inspect(model) as recorder:
        logits, _ = model(target[None], model.init_state(1, source[None]))
    return logits[0], torch.stack([weights[0].transpose(0, 1) for weights in recorder.source_attention], 1)


@pytest.mark.parametrize("name", MODELS)
def test_encoder_and_decoder_give_the_logits_and_attention_of_pytorch(name: str, steps: dict[str, Any]) -> None:
    model, precise = make_model(name), copy.deepcopy(make_model(name)).double()
    for source, target, found in zip(*sentences(), steps[name]["steps"], strict=True):
        logits = torch.tensor([step["logits"] for step in found], dtype=torch.float64)
        attention = torch.tensor([step["attention"] for step in found], dtype=torch.float64)
        expected = expected_steps(model, source, target)
        torch.testing.assert_close(logits.float(), expected[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(attention.float(), expected[1], rtol=0, atol=1e-5)
        # The engine computes in float64, so the tolerance is far below the effect of any mistake.
        expected = expected_steps(precise, source, target)
        torch.testing.assert_close(logits, expected[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(attention, expected[1], rtol=0, atol=1e-10)


def test_int8_parameters_are_those_of_the_rounded_model(steps: dict[str, Any]) -> None:
    for case in (name for name in steps if name.endswith(" int8")):
        model = copy.deepcopy(make_model(case.removesuffix(" int8")))
        quantize(model, "int8")
        expected = torch.cat([value.flatten() for value in model.state_dict().values()])
        assert torch.equal(torch.tensor(steps[case]["values"]), expected)
        assert not torch.equal(expected, torch.tensor(steps[case.removesuffix(" int8")]["values"]))
        for source, target, found in zip(*sentences(), steps[case]["steps"], strict=True):
            logits = torch.tensor([step["logits"] for step in found])
            torch.testing.assert_close(logits, expected_steps(model, source, target)[0], rtol=0, atol=1e-5)


def test_float32_parameters_are_exact(steps: dict[str, Any]) -> None:
    for name in MODELS:
        expected = torch.cat([value.flatten() for value in make_model(name).state_dict().values()])
        assert torch.equal(torch.tensor(steps[name]["values"]), expected)


def test_half_precision_is_used_where_it_is_exact(tmp_path: Path) -> None:
    model = copy.deepcopy(make_model("feedback"))
    full = pack_seq2seq(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    # The largest, the smallest and a subnormal number of half precision.
    model.encoder.norm.weight.data[:4] = torch.tensor([65504.0, -(2.0**-24), 3 * 2.0**-20, -0.0])
    packed = pack_seq2seq(model)
    assert {tensor["type"] for tensor in packed.header["tensors"].values()} == {"float16"}
    assert len(packed.block) < 0.51 * len(full.block)
    found = run_cases(tmp_path, {"half": as_case(packed, values=True)})["half"]["values"]
    assert torch.equal(torch.tensor(found), torch.cat([value.flatten() for value in model.state_dict().values()]))


def source_texts() -> list[str]:
    generator = np.random.default_rng(0)
    words = [
        *CORPUS.split(),
        "Üben",
        "İstanbul",
        "ΟΔΟΣ",
        "日本",
        "getUserName",
        "\xa0",
        "\x1c",
        "\u2028",
        "\ufeff",
        "𝒳",
    ]
    texts = [" ".join(generator.choice(words, generator.integers(1, 9))) for _ in range(12)]
    return [*texts, "", " \t ", "x" * 60, "dog " * 12]


@pytest.fixture(scope="module")
def translations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    task = make_task()
    cases = {}
    for name in DECODERS_THAT_SEARCH:
        searches = [{**pair_json(task, search)["search"], "nbest": search.beam} for search in SEARCHES]
        packed = pack_seq2seq(make_model(name, task.inputs))
        cases[name] = as_case(packed, task=pair_json(task, Search()), texts=source_texts(), searches=searches)
    return run_cases(tmp_path_factory.mktemp("translations"), cases)


@pytest.mark.parametrize("name", DECODERS_THAT_SEARCH)
@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_greedy_and_beam_search_give_the_hypotheses_of_python(
    name: str, number: int, translations: dict[str, Any]
) -> None:
    task, search = make_task(), SEARCHES[number]
    # In float64, as the engine computes: random models have near ties.
    translator = Translator(copy.deepcopy(make_model(name, task.inputs)).double(), task, search)
    results, loops = translations[name]["translations"][number], 0
    for text, result in zip(source_texts(), results, strict=True):
        # One by one, because the loops are counted.
        before, (expected,) = translator.looped, translator.translate([text], search.beam)
        found = [(hypothesis["text"], hypothesis["score"]) for hypothesis in result["hypotheses"]] or [("", 0.0)]
        assert [text for text, _ in found] == [hypothesis.text for hypothesis in expected]
        scores = [hypothesis.score for hypothesis in expected]
        assert [score for _, score in found] == pytest.approx(scores, abs=1e-9)
        assert [result["looped"]] == [translator.looped > before]
        loops += result["looped"]
    assert (loops > 0) == (translator.looped > 0)
    assert sum(result["cut"] for result in results) == translator.cut == 1


def test_random_models_run_in_loops(translations: dict[str, Any]) -> None:
    """The tests above need them."""
    found = [result["looped"] for case in translations.values() for run in case["translations"] for result in run]
    assert sum(found) > 5


def unicode_texts() -> list[str]:
    """Return texts with every character that Python's Unicode tables have, except surrogates."""
    known = [
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")
    ]
    texts = [
        "".join(f"x{character}Yb{character} " for character in known[i : i + 500]) for i in range(0, len(known), 500)
    ]
    generator = random.Random(0)
    alphabet = "ΣσΑα.'\u0301 ABcD_9İı\xad"
    return [*texts, *("".join(generator.choices(alphabet, k=generator.randint(1, 12))) for _ in range(300))]


@pytest.mark.parametrize(
    "task",
    [make_task(), make_task(lowercase=False), make_task(True, words=7), make_task(True, split_names=True, words=0)],
    ids=["lowercase", "case", "words", "names"],
)
def test_texts_are_normalized_encoded_and_decoded_as_in_python(task: PairTask, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    decoded = [generator.integers(0, task.outputs, generator.integers(1, 12)).tolist() for _ in range(400)]
    texts = [*unicode_texts(), *source_texts()]
    packed = pack_seq2seq(make_model("lstm", task.inputs))
    case = as_case(packed, task=pair_json(task, Search()), texts=texts, decoded=decoded)
    result = run_cases(tmp_path, {"case": case})["case"]
    for text, found in zip(texts, result["encoded"], strict=True):
        assert found["normalized"] == task.normalize_source(text), ascii(text)
        (ids,), cut = task.encode_sources([text])
        assert (found["ids"], found["cut"]) == (ids.tolist(), bool(cut)), ascii(text)
    assert result["decoded"] == [task.decode_target(ids) for ids in decoded]


@pytest.fixture(scope="module")
def shipped() -> PageTranslator:
    return translators_of_runs([SHIPPED])[0]


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_shipped_translator_equals_the_command_line(weights: Any, shipped: PageTranslator, tmp_path: Path) -> None:
    task = pair_json(shipped.task, shipped.search)
    searches = [{"beam": 1}, {"beam": 5, "nbest": 5}]
    case = as_case(pack_seq2seq(shipped.model, weights), task=task, texts=GERMAN, searches=searches)
    results = run_cases(tmp_path, {"case": case})["case"]["translations"]
    for search, found in zip(searches, results, strict=True):
        translator = open_translator(SHIPPED, "translation", "cpu", weights=weights, beam=search["beam"])
        for result, expected in zip(found, translator.translate(GERMAN, search.get("nbest", 1)), strict=True):
            texts = [hypothesis["text"] for hypothesis in result["hypotheses"]]
            assert (texts or [""]) == [hypothesis.text for hypothesis in expected]
            scores = [hypothesis["score"] for hypothesis in result["hypotheses"]] or [0.0]
            assert scores == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-5)


def test_page_of_the_shipped_translator_has_at_most_three_megabytes(shipped: PageTranslator, tmp_path: Path) -> None:
    sizes: dict[str, int] = {}
    for weights in ("float32", "int8"):
        sizes[weights] = export_translation_html([shipped], tmp_path / f"{weights}.html", weights=weights)  # type: ignore[arg-type]
        assert sizes[weights] == (tmp_path / f"{weights}.html").stat().st_size
    assert sizes["int8"] < 2.1 * MEGABYTE and sizes["int8"] < sizes["float32"] < 3 * MEGABYTE
    page = (tmp_path / "int8.html").read_text(encoding="utf-8")
    assert "<h1>Translate German to English</h1>" in page and "<dd>int8</dd>" in page
    assert not re.search(r"""(src|href)\s*=|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|https?://""", page)


RUN = """
    const translate = async (text, settings = {}) => {
      page.input.value = text;
      for (const [name, value] of Object.entries(settings)) page[name].value = value;
      await page.run();
      return page.pairs.map(({ hypotheses }) => hypotheses.map(({ text, score }) => [text, score]));
    };"""


@needs_browser
def test_page_translates_in_chromium(shipped: PageTranslator, tmp_path: Path) -> None:
    export_translation_html([shipped], tmp_path / "page.html", weights="int8")
    result = run_script(
        tmp_path / "page.html",
        f"""{RUN}
        const defaults = [page.beam.value, page.penalty.value, page.ngrams.value];
        page.runButton.click();
        const empty = live();
        const beam = await translate({json.dumps(chr(10).join(GERMAN))});
        const spoken = live(), status = page.status.textContent;
        const [pair] = page.pairs, token = pair.elements[5];
        const shade = (e) => parseFloat(getComputedStyle(e).getPropertyValue("--weight"));
        token.dispatchEvent(new PointerEvent("pointerover", {{ bubbles: true }}));
        const weights = [...page.weights(pair, 5)];
        const shades = pair.sources.map((e) => (e.matches(".attended") ? shade(e) : 0));
        const rows = [...page.matrix.querySelectorAll(".row")].map((row) => row.getAttribute("aria-label"));
        token.focus();
        press("ArrowRight", token);
        const next = [page.selected.token, live(), document.activeElement === pair.elements[6]];
        page.matrix.querySelectorAll(".row")[2].dispatchEvent(new PointerEvent("pointerover", {{ bubbles: true }}));
        const hovered = page.selected.token;
        page.side.querySelectorAll(".hypotheses button")[1].click();
        const pressed = document.activeElement.getAttribute("aria-pressed");
        const second = [pair.target.textContent, page.selected.token, pressed];
        const greedy = await translate({json.dumps(GERMAN[0])}, {{ beam: 1 }});
        const clamped = await translate("hund", {{ beam: 0.4, penalty: 99, ngrams: "x" }});
        const options = [page.beam.value, page.penalty.value, page.ngrams.value];
        return {{ defaults, empty, beam, spoken, status, weights, shades, rows, next, hovered, second, greedy, clamped,
                 options }};""",
    )
    translator = open_translator(SHIPPED, "translation", "cpu", weights="int8")
    expected = list(translator.translate(GERMAN, 5))
    for found, hypotheses in zip(result["beam"], expected, strict=True):
        assert ([text for text, _ in found] or [""]) == [hypothesis.text for hypothesis in hypotheses]
    assert result["defaults"] == ["5", "1", "0"] and result["empty"] == "Type text in German."
    assert result["spoken"].startswith(f"English: {expected[0][0].text}\n")
    assert result["status"].startswith("5 lines translated in ")
    # The attention when the sixth token was predicted.
    task = translator.task
    (source,), _ = task.encode_sources(GERMAN[:1])
    target = task.vocabulary.target.encode(task.normalize(expected[0][0].text))
    tokens = torch.tensor([[task.end, *target.tolist()]])
    with torch.no_grad(), inspect(translator.model) as recorder:
        translator.model(tokens, translator.model.init_state(1, torch.from_numpy(source)[None]))
    attention = torch.cat(recorder.source_attention, 1)[0].mean(0)  # (T, J)
    torch.testing.assert_close(torch.tensor(result["weights"]), attention[5], rtol=0, atol=1e-5)
    for shade, weight in zip(result["shades"], attention[5].tolist(), strict=True):
        assert shade == (0 if weight < 0.01 else pytest.approx(70 * weight**0.5, abs=1))
    assert (
        len(result["rows"]) == tokens.shape[1]
        and result["rows"][5].startswith("hat: ")
        and "on hut" in result["rows"][5]
    )
    assert result["next"][0] == 6 and " attended to " in result["next"][1] and result["next"][2]
    assert result["hovered"] == 2
    assert result["second"][0].startswith(expected[0][1].text[:20]) and result["second"][1:] == [0, "true"]
    greedy = replace(translator.search, beam=1)
    (best,) = Translator(translator.model, task, greedy).translate(GERMAN[:1])
    assert [text for text, _ in result["greedy"][0]] == [best[0].text]
    assert result["options"] == ["1", "10", "0"] and len(result["clamped"][0]) == 1


def page_translator(name: str, summarization: bool = False, **options: Any) -> PageTranslator:
    task = make_task(summarization, **options)
    search = Search(**task.search_defaults, beam=3)
    return PageTranslator(name, make_model(name, task.inputs), task, search)


@needs_browser
def test_summarizer_reads_an_article_and_models_are_chosen(tmp_path: Path) -> None:
    staircase, lstm = page_translator("staircase", True), page_translator("lstm", True)
    export_translation_html([staircase, lstm], tmp_path / "page.html")
    article = "it's a dog\n\nthe café's 12 cats don't run"
    result = run_script(
        tmp_path / "page.html",
        f"""{RUN}
        const texts = [await translate({json.dumps(article)})];
        const choices = [...page.side.querySelectorAll(".choices button")];
        const layers = choices.map((choice) => choice.getAttribute("aria-label"));
        choices[2].click();
        const [pair] = page.pairs, heads = page.attentionOf(pair)[0][1].map((weights) => [...weights]);
        const chosen = [page.layer, [...page.weights(pair, 0)], heads];
        page.menu.value = 1;
        page.menu.dispatchEvent(new Event("change"));
        const cleared = page.pairs.length;
        texts.push(await translate({json.dumps(article)}));
        const single = page.side.querySelectorAll(".choices button").length;
        const job = translate("it's a dog " + "cats ".repeat(40));
        press("Escape");
        await job;
        const stopped = page.status.textContent, button = page.runButton.textContent;
        return {{ texts, layers, chosen, cleared, single, stopped, button }};""",
    )
    for one, found in zip((staircase, lstm), result["texts"], strict=True):
        translator = Translator(copy.deepcopy(one.model).double(), one.task, one.search)
        (expected,) = translator.translate([article], 3)
        assert [text for text, _ in found[0]] == [hypothesis.text for hypothesis in expected]
    assert result["layers"][:3] == ["all layers", "pass 1, layer 1", "pass 1, layer 2"] and len(result["layers"]) == 7
    layer, weights, heads = result["chosen"]
    assert layer == 1 and weights == pytest.approx(torch.tensor(heads).mean(0).tolist(), abs=1e-6)
    assert result["cleared"] == 0 and result["single"] == 0
    assert result["stopped"] == "Stopped." and result["button"] == "Summarize"


MEASURE = """<script>(async () => {
  page.input.value = "it's ½ of 12 cafés – don't run! 'stop' the dog's run";
  await page.run();
  const right = Math.max(...[...document.querySelectorAll("main *")].map((e) => e.getBoundingClientRect().right));
  const rows = [...document.querySelectorAll(".matrix .row")].map((e) => e.getBoundingClientRect().width);
  parent.postMessage(JSON.stringify({ width: innerWidth, right, rows }), "*");
})();</script></body>"""


@needs_browser
@pytest.mark.parametrize("summarization", [False, True], ids=["translator", "summarizer"])
def test_page_fits_a_phone(summarization: bool, tmp_path: Path) -> None:
    export_translation_html([page_translator("feedback", summarization)], tmp_path / "page.html")
    layout = measure_on_phone(tmp_path / "page.html", MEASURE)
    assert layout["width"] == 390 and layout["right"] <= 390
    assert layout["rows"] and min(layout["rows"]) > 200


@needs_browser
def test_page_is_accessible(tmp_path: Path) -> None:
    export_translation_html([page_translator("feedback")], tmp_path / "page.html")
    tree = inspect_file(tmp_path, 'page.input.value = "the dog"; await page.run();')
    check(tree)
    tags = [stop["tag"] for stop in tree["stops"]]
    assert tags[:8] == ["button", "textarea", "button", "button", "input", "input", "input", "span"]
    roles = [node["role"] for node in tree["tree"]]
    assert roles.count("spinbutton") == 3 and "option" in roles
    names = [node["name"] for node in tree["tree"]]
    assert any("beam size" in name.lower() for name in names) and any("% on " in name for name in names)


@needs_browser
def test_page_has_a_light_and_a_dark_theme(tmp_path: Path) -> None:
    from matplotlib.image import imread

    export_translation_html([page_translator("feedback")], tmp_path / "page.html")
    brightness = {}
    for theme, flags in (("light", []), ("dark", ["--blink-settings=preferredColorScheme=0"])):
        screenshot = tmp_path / f"{theme}.png"
        open_page(tmp_path / "page.html", "--window-size=900,1000", f"--screenshot={screenshot}", *flags)
        brightness[theme] = imread(screenshot)[..., :3].mean()
    assert brightness["light"] > 0.8 and brightness["dark"] < 0.3


def test_mistakes_are_named(tmp_path: Path) -> None:
    feedback, lstm = page_translator("feedback"), page_translator("lstm")
    with pytest.raises(UserError, match="at least one translator"):
        make_translation_page([])
    with pytest.raises(UserError, match="weights bfloat16: the page of a translator has parameters in float32 or int8"):
        make_translation_page([feedback], weights="bfloat16")
    with pytest.raises(UserError, match="int8 requires a transformer core, not LSTM"):
        make_translation_page([lstm], weights="int8")
    with pytest.raises(UserError, match="'summarizer' and 'feedback' were trained for different tasks or vocabularies"):
        make_translation_page([feedback, replace(page_translator("lstm", True), name="summarizer")])
    with pytest.raises(UserError, match="'lstm' has 11 source and 11 target tokens, but its task has 301"):
        make_translation_page([replace(lstm, model=make_model("lstm"))])
    with pytest.raises(UserError, match="a page searches and does not sample"):
        make_translation_page([replace(lstm, search=Search(temperature=0.5))])
    assert lstm.model.training is False and len(make_translation_page([feedback, lstm], "Words")) > 10_000
