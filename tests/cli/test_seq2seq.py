"""`stairwell translate`, `summarize`, `tune`, `compare`, `distill` and `eval` of sequence-to-sequence runs."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from stairwell.cli import seq2seq
from stairwell.decode.beam import has_loop
from stairwell.errors import UserError
from stairwell.experiments import measures
from stairwell.experiments.measures import Metric
from stairwell.runs.pair_runs import PENALTIES, open_translator
from stairwell.runs.run import Run
from stairwell.tasks import text_scores
from stairwell.train.pair_objective import GREEDY
from stairwell.train.translator import Search
from tests import language_pair
from tests.commands import Completed, stairwell


def run_command(folder: Path, *arguments: object, **environment: str) -> Completed:
    return stairwell(folder, *arguments, STAIRWELL_CACHE=str(folder / "cache"), **environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a model that has hardly been trained."""
    folder = tmp_path_factory.mktemp("translating")
    data = language_pair.write(folder / "data")
    given = ["--task.path", data, *language_pair.TINY, "--task.max_source_length", "24", "--quiet", "--steps", "40"]
    ended = run_command(folder, "train", "translation/feedback", *given, "--out", "run")
    assert ended.status == 0, ended
    return folder


def noise(lines: int) -> bytes:
    """Lines of all sorts: empty, spaces, invalid UTF-8, other scripts, control characters, very long ones."""
    rng = random.Random(0)
    makers = [
        lambda: b"",
        lambda: b" \t ",
        lambda: bytes(rng.choice([b for b in range(256) if b != 10]) for _ in range(rng.randint(1, 60))),
        lambda: "日本語 العربية 🙂 ελληνικά".encode(),
        lambda: "one\u2028two\x85three\x0bfour\x0cfive\x1csix\r".encode(),
        lambda: b"\x00\x07\x1b[31m ba",
        lambda: b"ba ke li " * rng.randint(1, 60),
        lambda: b"\xed\xa0\x80\xff\xfe",
    ]
    return b"".join(rng.choice(makers)() + b"\n" for _ in range(lines))


def check_noise(folder: Path, lines: int) -> None:
    (folder / "noise").write_bytes(noise(lines))
    ended = run_command(folder, "translate", "run", "noise", "--beam", 2, "--min-length", 4)
    assert ended.status == 0, ended.err
    assert ended.out.count("\n") == lines and ended.out.endswith("\n")
    assert all(len(line.splitlines()) <= 1 for line in ended.out.split("\n"))
    assert f"{lines:,} lines" in ended.err and "words/s" in ended.err
    assert "lines were truncated to 24 tokens" in ended.err


def test_every_input_line_gives_one_output_line(folder: Path) -> None:
    check_noise(folder, 200)


@pytest.mark.slow
def test_every_one_of_ten_thousand_lines_gives_one_output_line(folder: Path) -> None:
    check_noise(folder, 10_000)


def test_several_files_and_a_last_line_without_a_line_end_are_read(folder: Path) -> None:
    (folder / "a").write_bytes(b"ba\nke")
    (folder / "b").write_bytes(b"")
    ended = run_command(folder, "translate", "run", "a", "b", "a")
    assert ended.status == 0 and ended.out.count("\n") == 4


def test_an_empty_line_gives_an_empty_line(folder: Path) -> None:
    (folder / "some").write_bytes(b"\nba ke li\n\nba\n")
    lines = run_command(folder, "translate", "run", "some").out.split("\n")
    assert lines[0] == lines[2] == "" and len(lines) == 5
    (folder / "alone").write_bytes(b"ba ke li\n")
    assert run_command(folder, "translate", "run", "alone").out == lines[1] + "\n"


def test_byte_order_marks_and_carriage_returns_do_not_matter(folder: Path) -> None:
    (folder / "plain").write_bytes(b"ba ke li\nnu\n")
    (folder / "foreign").write_bytes(b"\xef\xbb\xbfba ke li\r\nnu\r\n")
    plain, foreign = (run_command(folder, "translate", "run", name, "--nbest", 5).out for name in ("plain", "foreign"))
    assert plain == foreign and plain.count("\n") == 10


def test_n_best_hypotheses_have_line_numbers_and_scores(folder: Path) -> None:
    ended = run_command(folder, "translate", "run", "data/val.xx", "--beam", 4, "--nbest", 3)
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [int(number) for number, *_ in rows] == [i for i in range(40) for _ in range(3)]
    for i in range(0, 120, 3):
        scores = [float(score) for _, score, _ in rows[i : i + 3]]
        assert scores == sorted(scores, reverse=True)
    ended = run_command(folder, "translate", "run", "data/val.xx", "--beam", 2, "--nbest", 3)
    assert "the 3 best of a beam of 2" in ended.error_line


def test_targets_can_be_sampled(folder: Path) -> None:
    sample = ["translate", "run", "data/val.xx", "--temperature", 1.0, "--nbest", 2]
    once, again, other = (run_command(folder, *sample, "--seed", seed) for seed in (1, 1, 2))
    assert once.status == 0 and len(once.out.splitlines()) == 80
    assert once.out == again.out != other.out
    assert (
        "have no effect without a temperature"
        in run_command(folder, "translate", "run", "data/val.xx", "--top-k", 3).error_line
    )


def test_a_report_shows_sentences_and_source_attention(folder: Path) -> None:
    ended = run_command(folder, "report", "run", "--out", "report.html")
    assert ended.status == 0, ended
    page = (folder / "report.html").read_text()
    assert page.count('class="source-attention"') == 4 and page.count("<dt>reference</dt>") == 4


def test_a_translation_starts_with_its_prefix(folder: Path) -> None:
    (folder / "sources").write_bytes(b"ba\nke\n")
    (folder / "prefixes").write_bytes(b"four five\n\n")
    ended = run_command(folder, "translate", "run", "sources", "--prefix", "prefixes")
    assert ended.out.startswith("four five")
    (folder / "prefixes").write_bytes(b"four five\n")
    ended = run_command(folder, "translate", "run", "sources", "--prefix", "prefixes")
    assert "there are 1 prefixes and more texts" in ended.error_line


def test_length_limits_are_obeyed(folder: Path) -> None:
    ended = run_command(folder, "translate", "run", "data/val.xx", "--max-length", 2, "--min-length", 2)
    assert ended.status == 0 and "texts were cut at the maximum length" in ended.err
    assert all(len(line.split()) <= 2 for line in ended.out.splitlines())
    assert Search(max_length=9, max_length_ratio=2.0).lengths(3, 100) == (0, 9)
    assert Search(max_length_ratio=2.0).lengths(3, 100) == (0, 16)
    assert Search(max_length_ratio=2.0).lengths(300, 100) == (0, 100)
    assert Search(min_length=4, min_length_ratio=0.5, max_length_ratio=0).lengths(20, 100) == (10, 100)
    with pytest.raises(UserError, match="min_length"):
        Search(min_length=50, max_length=8)


def test_tune_saves_the_best_length_penalty_and_eval_uses_it(folder: Path) -> None:
    ended = run_command(folder, "tune", "run", "--beam", 2, "--sentences", 5, "--json")
    tuned = json.loads(ended.out)
    assert ended.err.count("length penalty") == 9 and tuned["sentences"] == 5
    saved = json.loads((folder / "run/search.json").read_text())
    assert saved["length_penalty"] == tuned["length_penalty"] and saved["beam"] == 2
    scores = json.loads(run_command(folder, "eval", "run", "--json").out)
    assert scores["beam"] == 2 and scores["length_penalty"] == tuned["length_penalty"]
    assert {"bleu", "bleu_cased", "bleu_lowercase", "chrf++", "loss", "signature_lowercase"} <= scores.keys()
    (folder / "run/search.json").unlink()


def test_experiments_tune_the_length_penalty_before_they_measure(folder: Path) -> None:
    run, search = Run(folder / "run"), folder / "run/search.json"
    assert not search.exists()
    Metric("test BLEU", "bleu", tuned=True).measure(run, "cpu", "auto")
    assert json.loads(search.read_text())["length_penalty"] in PENALTIES
    search.unlink()


def test_other_data_can_be_evaluated(folder: Path) -> None:
    language_pair.write(folder / "other", valid=7)
    scores = json.loads(run_command(folder, "eval", "run", "--data", folder / "other", "--json").out)
    assert scores["sentences"] == 7


def test_a_full_disk_leaves_no_part_of_a_corpus(folder: Path) -> None:
    ended = run_command(folder, "distill", "run", "--out", "large", TEST_FILE_LIMIT="1000")
    assert ended.status == 1 and ended.err == "stairwell: large: File too large\n", ended
    assert not list(folder.glob("large*")) and not list(folder.glob(".large*"))


def test_a_very_long_line_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seq2seq, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(UserError, match="line 2 is longer than 1 MiB"):
        list(seq2seq.lines_of(io.BytesIO(b"short\n" + b"x" * ((1 << 20) + 1))))


def test_distilled_targets_are_the_outputs_of_the_model(folder: Path) -> None:
    ended = run_command(folder, "distill", "run", "--out", "distilled", "--beam", 2, "--json")
    assert json.loads(ended.out)["train"] == 400
    assert (folder / "distilled/train.xx").read_text() == (folder / "data/train.xx").read_text()
    outputs = run_command(folder, "translate", "run", "data/train.xx", "--beam", 2).out
    assert (folder / "distilled/train.yy").read_text() == outputs
    for split in ("valid", "test"):
        assert len((folder / f"distilled/{split}.yy").read_text().splitlines()) == 40
    assert "is not empty" in run_command(folder, "distill", "run", "--out", "distilled").error_line
    given = ["--task.path", "distilled", *language_pair.TINY, "--quiet", "--steps", "1", "--out", "student"]
    assert run_command(folder, "train", "translation/feedback", *given).status == 0


def test_a_run_of_another_task_is_rejected(folder: Path) -> None:
    assert "was not trained for summarization" in run_command(folder, "eval", "run", "--baselines").error_line
    assert "was not trained for summarization" in run_command(folder, "summarize", "run", "data/val.xx").error_line
    assert "there.txt" in run_command(folder, "translate", "run", "not/there.txt").error_line


def test_encoder_and_decoder_are_exported(folder: Path) -> None:
    done = run_command(folder, "export", "run", "--onnx", "onnx")
    assert done.status == 0, done
    encoder, decoder = done.out.splitlines()
    assert encoder.startswith("onnx/encoder.onnx: source, source_mask -> source_keys.0, source_values.0")
    assert decoder.startswith("onnx/decoder.onnx: token, source_mask, source_keys.0, source_values.0")
    assert decoder.endswith(", count, memory -> logits, countN, memoryN")
    assert "is not empty" in run_command(folder, "export", "run", "--onnx", "onnx").error_line
    assert "is not empty" in run_command(folder, "export", "run", "--torch-export", "onnx").error_line


def test_page_of_a_translator_is_exported(folder: Path) -> None:
    done = run_command(folder, "export", "run", "--html", "page.html", "--weights", "int8", "--title", "Numbers")
    assert done.status == 0 and done.out.startswith("page.html: 0."), done
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "<h1>Numbers</h1>" in page and "<dd>int8</dd>" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])  # type: ignore[index]
    assert data["task"]["task"] == "translate" and data["names"] == ["xx", "yy"]
    saved = folder / "run/search.json"
    expected = json.loads(saved.read_text())["length_penalty"] if saved.exists() else 1.0
    assert data["models"][0]["search"]["length_penalty"] == expected
    wrong = run_command(folder, "export", "run", "--html", "page.html", "--weights", "bfloat16")
    assert "--weights bfloat16: the page of a translator has parameters in float32 or int8" in wrong.error_line
    wrong = run_command(folder, "export", "run", "--html", "page.html", "--episodes", "2")
    assert "--episodes: only the page of an agent" in wrong.error_line


def test_commands_for_other_families_are_rejected(folder: Path) -> None:
    assert "is not a language model" in run_command(folder, "generate", "run").error_line
    mixed = run_command(folder, "export", "s5-feedback", "run", "--html", "other.html")
    assert "this run is of the family 'pairs'" in mixed.error_line
    mixed = run_command(folder, "export", "run", "s5-feedback", "--html", "other.html")
    assert "the page of a translator expects a run of the family 'pairs'" in mixed.error_line
    assert run_command(folder, "report", "run", "--out", "report.html").status == 0


def test_articles_are_summarized(tmp_path: Path) -> None:
    rows = [{"source": ["ba ke.", "li mo."], "target": ["one two", "three"]} for _ in range(30)]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny = [word for word in language_pair.TINY if word not in ("--task.source", "xx", "--task.target", "yy")]
    ended = run_command(tmp_path, "train", "summarization/feedback", "--task.path", ".", *tiny, "--steps", 2, "--quiet")
    assert ended.status == 0, ended
    ended = run_command(tmp_path, "summarize", "runs/summarization-feedback", "dev.jsonl")
    assert ended.status == 0 and ended.out.count("\n") == 30
    (tmp_path / "lines.txt").write_text("ba ke. li mo.\n")
    (tmp_path / "other.csv").write_text('source,number\n"ba ke.\nli mo.",1\n')
    (tmp_path / "wrong.csv").write_text("article,number\nba ke.,1\n")
    printed = [
        run_command(tmp_path, "summarize", "runs/summarization-feedback", name).out
        for name in ("lines.txt", "other.csv")
    ]
    assert printed == [ended.out.splitlines(keepends=True)[0]] * 2, (
        "a table's column of articles is read, not its lines"
    )
    rejected = run_command(tmp_path, "summarize", "runs/summarization-feedback", "wrong.csv")
    assert rejected.status == 2 and "row 1 has no column 'source'; it has article, number" in rejected.error_line
    scores = json.loads(run_command(tmp_path, "eval", "runs/summarization-feedback", "--split", "valid", "--json").out)
    assert {"rouge1", "rouge2", "rougeL"} <= scores.keys()
    command = ["eval", "runs/summarization-feedback", "--split", "valid", "--baselines", "--json"]
    scores = json.loads(run_command(tmp_path, *command).out)
    assert scores["nearest_rougeL"] == 100 and scores["lead_rougeL"] == 0
    (tmp_path / "more").mkdir()
    (tmp_path / "more/dev.jsonl").write_text(json.dumps({"source": "Ba ke. Mo.", "target": "ba ke"}) + "\n")
    scores = json.loads(run_command(tmp_path, *command, "--data", "more").out)
    assert scores["sentences"] == 1 and scores["lead_rougeL"] == 100 and scores["nearest_rougeL"] == 0


def test_a_minimum_length_above_the_longest_target_is_rejected(folder: Path) -> None:
    with pytest.raises(UserError, match=r"min_length 100,000 is above the longest target of the run"):
        open_translator(folder / "run", device="cpu", min_length=100_000)


def test_a_text_with_a_repetition_loop_is_decoded_again(folder: Path) -> None:
    # A hardly trained model repeats itself if it has to generate long texts.
    texts = ["ba ke mo", "li", "su ro", "nu ba", "ba ba ba ba ba ba ba ba"]

    def translations(**options: Any) -> tuple[list[str], int]:
        translator = open_translator(folder / "run", device="cpu", beam=2, min_length=14, **options)
        return [best[0].text for best in translator.translate(texts)], translator.looped

    broken, looped = translations()
    unchanged, none = translations(break_loops=False)
    blocked, _ = translations(no_repeat_ngram_size=3)
    vocabulary = open_translator(folder / "run", device="cpu").task.vocabulary.target
    again = [has_loop(vocabulary.encode(text).tolist()) for text in unchanged]
    again[-1] = False  # its source has a loop too, so the target may be correct
    assert looped == sum(again) > 0 and none == 0
    assert broken == [blocked[i] if again[i] else unchanged[i] for i in range(len(texts))]
    assert not any(has_loop(vocabulary.encode(text).tolist()) for text in broken[:-1])

    (folder / "loops.txt").write_text("\n".join(texts) + "\n")
    command = ["translate", "run", "loops.txt", "--beam", "2", "--min-length", "14"]
    ended = run_command(folder, *command)
    assert (
        ended.out.splitlines() == broken and f"{looped} texts had a repetition loop and were decoded again" in ended.err
    )
    assert run_command(folder, *command, "--keep-loops").out.splitlines() == unchanged


def test_validations_and_experiments_keep_loops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not GREEDY.break_loops and Search().break_loops
    searches: list[Search] = []
    monkeypatch.setattr(measures, "evaluate_pairs", lambda *given: searches.append(given[-1]) or {"bleu": 1.0})
    Metric("BLEU", "bleu").measure(Run(folder / "run"), "cpu", "auto")
    assert [search.break_loops for search in searches] == [False]


def test_bleu_and_rouge_are_as_computed_by_hand() -> None:
    outputs, references = ["the cat sat on the mat", "A dog runs"], ["the cat sat on a mat", "a dog runs"]
    score, signature = text_scores.bleu(outputs, references, lowercase=True)
    # 8 of 9 words, 5 of 7 pairs, 3 of 5 triples, 1 of 3 quadruples; the lengths are equal.
    assert score == pytest.approx(100 * (8 / 9 * 5 / 7 * 3 / 5 * 1 / 3) ** 0.25) and "case:lc" in signature
    assert text_scores.bleu(outputs, references)[0] < score
    # Unigrams by hand: 5 of 6 words both ways, then 3 of 3.
    assert text_scores.rouge(outputs, references)["rouge1"] == pytest.approx(100 * (5 / 6 + 1) / 2)


def test_compounds_are_split_on_both_sides() -> None:
    outputs, references = ["a high-speed train runs fast"], ["a high-grade train runs fast"]
    # `high - speed` is three tokens: 6 of 7 are correct, 4 of 6 pairs, 2 of 5 triples; of 4 quadruples none, smoothed.
    assert text_scores.compound_bleu(outputs, references) == pytest.approx(
        100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 8) ** 0.25
    )
    # As one token: 4 of 5, 2 of 4, 1 of 3, none of 2.
    assert text_scores.bleu(outputs, references)[0] == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25)


def test_identical_outputs_have_p_1_and_better_ones_a_small_p() -> None:
    rng = random.Random(0)
    references = [" ".join(rng.choices("abcdefgh", k=12)) for _ in range(60)]
    worse = [text.replace("a", "h").replace("b", "g") if i % 2 else text for i, text in enumerate(references)]
    same = text_scores.paired_test(worse, worse, references)
    assert same["p_value"] == 1 and same["first"] == same["second"] == pytest.approx(
        text_scores.bleu(worse, references)[0]
    )
    # One sentence of 60 differs: swapping it or not gives the same difference, so nothing can be concluded.
    assert text_scores.paired_test(worse, [references[0], references[1], *worse[2:]], references)["p_value"] == 1
    result = text_scores.paired_test(worse, references, references)
    assert result["second"] == pytest.approx(100) and result["p_value"] < 0.001 and result["second_interval"] < 1e-9
    assert 0 < result["first_interval"] < 10
    # Each system is wrong on its own half of the sentences: no difference, in either order.
    other = [text if i % 2 else text.replace("a", "h").replace("b", "g") for i, text in enumerate(references)]
    for pair in ((worse, other), (other, worse)):
        assert text_scores.paired_test(*pair, references)["p_value"] > 0.2


def test_two_translators_are_compared(folder: Path) -> None:
    given = ["--task.path", folder / "data", *language_pair.TINY, "--quiet", "--steps", "150", "--out", "better"]
    assert run_command(folder, "train", "translation/feedback", *given).status == 0
    result = json.loads(run_command(folder, "compare", "run", "better", "--json").out)
    assert result["sentences"] == 40 and 0 < result["p_value"] <= 1
    assert json.loads(run_command(folder, "compare", "run", "run", "--json").out)["p_value"] == 1
    assert result["second"] == pytest.approx(json.loads(run_command(folder, "eval", "better", "--json").out)["bleu"])


def test_a_missing_scorer_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r'sacrebleu is not installed: pip install "sacrebleu>=2\.4"'):
        text_scores.bleu(["a"], ["a"])
