"""`stairwell translate`, `summarize`, `tune`, `distill` and `eval` of pairs, as a person uses them."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from stairwell.cli import seq2seq
from stairwell.decode.beam import has_loop
from stairwell.errors import UserError
from stairwell.experiments import measures
from stairwell.experiments.measures import Metric
from stairwell.runs.seq2seq import PENALTIES, open_translator
from stairwell.tasks import text_scores
from stairwell.train.pair_objective import GREEDY
from stairwell.train.run import Run
from stairwell.train.translator import Search
from tests import language_pair
from tests.commands import Completed, stairwell


def run_command(folder: Path, *arguments: object, **environment: str) -> Completed:
    return stairwell(folder, *arguments, STAIRWELL_CACHE=str(folder / "cache"), **environment)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a model that has hardly learned anything."""
    folder = tmp_path_factory.mktemp("translating")
    data = language_pair.write(folder / "data")
    given = ["--task.path", data, *language_pair.TINY, "--task.max_source_length", "24", "--quiet", "--steps", "40"]
    ended = run_command(folder, "train", "translation/feedback", *given, "--out", "run")
    assert ended.status == 0, ended
    return folder


def noise(lines: int) -> bytes:
    """Whatever a file may hold: nothing, spaces, bytes that are no text, other scripts, control characters, much."""
    dice = random.Random(0)
    kinds = [
        lambda: b"",
        lambda: b" \t ",
        lambda: bytes(dice.choice([b for b in range(256) if b != 10]) for _ in range(dice.randint(1, 60))),
        lambda: "日本語 العربية 🙂 ελληνικά".encode(),
        lambda: "one\u2028two\x85three\x0bfour\x0cfive\x1csix\r".encode(),
        lambda: b"\x00\x07\x1b[31m ba",
        lambda: b"ba ke li " * dice.randint(1, 60),
        lambda: b"\xed\xa0\x80\xff\xfe",
    ]
    return b"".join(dice.choice(kinds)() + b"\n" for _ in range(lines))


def check_noise(place: Path, lines: int) -> None:
    (place / "noise").write_bytes(noise(lines))
    ended = run_command(place, "translate", "run", "noise", "--beam", 2, "--min-length", 4)
    assert ended.status == 0, ended.err
    assert ended.out.count("\n") == lines and ended.out.endswith("\n")
    assert all(len(line.splitlines()) <= 1 for line in ended.out.split("\n"))
    assert f"{lines:,} lines" in ended.err and "words/s" in ended.err
    assert "lines were truncated to 24 tokens" in ended.err


def test_one_line_out_for_one_line_of_noise_in(place: Path) -> None:
    check_noise(place, 200)


@pytest.mark.slow
def test_one_line_out_for_each_of_ten_thousand(place: Path) -> None:
    check_noise(place, 10_000)


def test_a_last_line_without_an_end_and_several_files_count(place: Path) -> None:
    (place / "a").write_bytes(b"ba\nke")
    (place / "b").write_bytes(b"")
    ended = run_command(place, "translate", "run", "a", "b", "a")
    assert ended.status == 0 and ended.out.count("\n") == 4


def test_an_empty_line_is_an_empty_line_wherever_it_stands(place: Path) -> None:
    (place / "some").write_bytes(b"\nba ke li\n\nba\n")
    lines = run_command(place, "translate", "run", "some").out.split("\n")
    assert lines[0] == lines[2] == "" and len(lines) == 5
    (place / "alone").write_bytes(b"ba ke li\n")
    assert run_command(place, "translate", "run", "alone").out == lines[1] + "\n"


def test_a_file_of_another_system_says_the_same(place: Path) -> None:
    (place / "plain").write_bytes(b"ba ke li\nnu\n")
    (place / "foreign").write_bytes(b"\xef\xbb\xbfba ke li\r\nnu\r\n")
    plain, foreign = (run_command(place, "translate", "run", name, "--nbest", 5).out for name in ("plain", "foreign"))
    assert plain == foreign and plain.count("\n") == 10


def test_the_best_come_with_their_scores(place: Path) -> None:
    ended = run_command(place, "translate", "run", "data/val.xx", "--beam", 4, "--nbest", 3)
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [int(number) for number, *_ in rows] == [i for i in range(40) for _ in range(3)]
    for i in range(0, 120, 3):
        scores = [float(score) for _, score, _ in rows[i : i + 3]]
        assert scores == sorted(scores, reverse=True)
    ended = run_command(place, "translate", "run", "data/val.xx", "--beam", 2, "--nbest", 3)
    assert "the 3 best of a beam of 2" in ended.error_line


def test_targets_can_be_drawn(place: Path) -> None:
    draw = ["translate", "run", "data/val.xx", "--temperature", 1.0, "--nbest", 2]
    once, again, other = (run_command(place, *draw, "--seed", seed) for seed in (1, 1, 2))
    assert once.status == 0 and len(once.out.splitlines()) == 80
    assert once.out == again.out != other.out
    assert "give a temperature too" in run_command(place, "translate", "run", "data/val.xx", "--top-k", 3).error_line


def test_a_report_shows_sentences_and_where_the_model_looked(place: Path) -> None:
    ended = run_command(place, "report", "run", "--out", "page.html")
    assert ended.status == 0, ended
    page = (place / "page.html").read_text()
    assert page.count('class="looks"') == 4 and page.count("<dt>wanted</dt>") == 4


def test_a_prefix_is_what_a_translation_begins_with(place: Path) -> None:
    (place / "sources").write_bytes(b"ba\nke\n")
    (place / "prefixes").write_bytes(b"four five\n\n")
    ended = run_command(place, "translate", "run", "sources", "--prefix", "prefixes")
    assert ended.out.startswith("four five")
    (place / "prefixes").write_bytes(b"four five\n")
    ended = run_command(place, "translate", "run", "sources", "--prefix", "prefixes")
    assert "there are 1 prefixes and more texts" in ended.error_line


def test_lengths_hold(place: Path) -> None:
    ended = run_command(place, "translate", "run", "data/val.xx", "--max-length", 2, "--min-length", 2)
    assert ended.status == 0 and "texts were cut at the maximum length" in ended.err
    assert all(len(line.split()) <= 2 for line in ended.out.splitlines())
    assert Search(max_length=9, max_length_ratio=2.0).lengths(3, 100) == (0, 9)
    assert Search(max_length_ratio=2.0).lengths(3, 100) == (0, 16)
    assert Search(max_length_ratio=2.0).lengths(300, 100) == (0, 100)
    assert Search(min_length=4, min_length_ratio=0.5, max_length_ratio=0).lengths(20, 100) == (10, 100)
    with pytest.raises(UserError, match="min_length"):
        Search(min_length=50, max_length=8)


def test_tune_keeps_what_it_found_and_eval_reads_it(place: Path) -> None:
    ended = run_command(place, "tune", "run", "--beam", 2, "--sentences", 5, "--json")
    found = json.loads(ended.out)
    assert ended.err.count("length penalty") == 9 and found["sentences"] == 5
    kept = json.loads((place / "run/search.json").read_text())
    assert kept["length_penalty"] == found["length_penalty"] and kept["beam"] == 2
    scores = json.loads(run_command(place, "eval", "run", "--json").out)
    assert scores["beam"] == 2 and scores["length_penalty"] == found["length_penalty"]
    assert {"bleu", "bleu_cased", "bleu_lowercase", "chrf++", "loss", "signature_lowercase"} <= scores.keys()
    (place / "run/search.json").unlink()


def test_experiments_tune_the_length_penalty_before_they_measure(place: Path) -> None:
    run, search = Run(place / "run"), place / "run/search.json"
    assert not search.exists()
    Metric("test BLEU", "bleu", tuned=True).measure(run, "cpu", "auto")
    assert json.loads(search.read_text())["length_penalty"] in PENALTIES
    search.unlink()


def test_other_data_can_be_evaluated(place: Path) -> None:
    language_pair.write(place / "other", valid=7)
    scores = json.loads(run_command(place, "eval", "run", "--data", place / "other", "--json").out)
    assert scores["sentences"] == 7


def test_a_corpus_that_is_too_large_for_the_disk_is_not_begun(place: Path) -> None:
    ended = run_command(place, "distill", "run", "--out", "large", TEST_FILE_LIMIT="1000")
    assert ended.status == 1 and ended.err == "stairwell: large: File too large\n", ended
    assert not list(place.glob("large*")) and not list(place.glob(".large*"))


def test_a_line_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seq2seq, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(UserError, match="line 2 is longer than 1 MiB"):
        list(seq2seq.lines_of(io.BytesIO(b"short\n" + b"x" * ((1 << 20) + 1))))


def test_distilled_targets_are_what_the_model_says(place: Path) -> None:
    ended = run_command(place, "distill", "run", "--out", "distilled", "--beam", 2, "--json")
    assert json.loads(ended.out)["train"] == 400
    assert (place / "distilled/train.xx").read_text() == (place / "data/train.xx").read_text()
    said = run_command(place, "translate", "run", "data/train.xx", "--beam", 2).out
    assert (place / "distilled/train.yy").read_text() == said
    for split in ("valid", "test"):
        assert len((place / f"distilled/{split}.yy").read_text().splitlines()) == 40
    assert "is not empty" in run_command(place, "distill", "run", "--out", "distilled").error_line
    given = ["--task.path", "distilled", *language_pair.TINY, "--quiet", "--steps", "1", "--out", "student"]
    assert run_command(place, "train", "translation/feedback", *given).status == 0


def test_a_run_of_another_task_is_refused(place: Path) -> None:
    assert "was not trained for summarization" in run_command(place, "eval", "run", "--baselines").error_line
    assert "was not trained for summarization" in run_command(place, "summarize", "run", "data/val.xx").error_line
    assert "there.txt" in run_command(place, "translate", "run", "not/there.txt").error_line


def test_commands_for_other_models_say_so(place: Path) -> None:
    assert "is not a language model" in run_command(place, "generate", "run").error_line
    assert "of the kind 'seq2seq'" in run_command(place, "export", "run", "--html", "other.html").error_line
    assert run_command(place, "report", "run", "--out", "report.html").status == 0


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
    said = [
        run_command(tmp_path, "summarize", "runs/summarization-feedback", name).out
        for name in ("lines.txt", "other.csv")
    ]
    assert said == [ended.out.splitlines(keepends=True)[0]] * 2, "a table's column of articles is read, not its lines"
    refused = run_command(tmp_path, "summarize", "runs/summarization-feedback", "wrong.csv")
    assert refused.status == 2 and "row 1 has no column 'source'; it has article, number" in refused.error_line
    scores = json.loads(run_command(tmp_path, "eval", "runs/summarization-feedback", "--split", "valid", "--json").out)
    assert {"rouge1", "rouge2", "rougeL"} <= scores.keys()
    asked = ["eval", "runs/summarization-feedback", "--split", "valid", "--baselines", "--json"]
    scores = json.loads(run_command(tmp_path, *asked).out)
    assert scores["nearest_rougeL"] == 100 and scores["lead_rougeL"] == 0
    (tmp_path / "more").mkdir()
    (tmp_path / "more/dev.jsonl").write_text(json.dumps({"source": "Ba ke. Mo.", "target": "ba ke"}) + "\n")
    scores = json.loads(run_command(tmp_path, *asked, "--data", "more").out)
    assert scores["sentences"] == 1 and scores["lead_rougeL"] == 100 and scores["nearest_rougeL"] == 0


def test_a_text_that_runs_in_a_loop_is_decoded_again_without_it(place: Path) -> None:
    # A model that has hardly learned anything, made to write long texts, repeats itself.
    texts = ["ba ke mo", "li", "su ro", "nu ba", "ba ba ba ba ba ba ba ba"]

    def written(**options: Any) -> tuple[list[str], int]:
        translator = open_translator(place / "run", device="cpu", beam=2, min_length=14, **options)
        return [best[0].text for best in translator.translate(texts)], translator.looped

    (found, looped), (kept, none), (blocked, _) = written(), written(break_loops=False), written(no_repeat_ngram_size=3)
    vocabulary = open_translator(place / "run", device="cpu").task.vocabulary.target
    again = [has_loop(vocabulary.encode(text).tolist()) for text in kept]
    again[-1] = False  # its source repeats itself too, so it may be right
    assert looped == sum(again) > 0 and none == 0
    assert found == [blocked[i] if again[i] else kept[i] for i in range(len(texts))]
    assert not any(has_loop(vocabulary.encode(text).tolist()) for text in found[:-1])

    (place / "loops.txt").write_text("\n".join(texts) + "\n")
    asked = ["translate", "run", "loops.txt", "--beam", "2", "--min-length", "14"]
    ended = run_command(place, *asked)
    assert ended.out.splitlines() == found and f"{looped} texts had a repetition loop and were decoded again" in ended.err
    assert run_command(place, *asked, "--keep-loops").out.splitlines() == kept


def test_validation_and_experiments_keep_loops_as_they_were_published(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not GREEDY.break_loops and Search().break_loops
    seen: list[Search] = []
    monkeypatch.setattr(measures, "evaluate_pairs", lambda *given: seen.append(given[-1]) or {"bleu": 1.0})
    Metric("BLEU", "bleu").measure(Run(place / "run"), "cpu", "auto")
    assert [search.break_loops for search in seen] == [False]


def test_scores_are_those_of_the_tools() -> None:
    said, wanted = ["the cat sat on the mat", "A dog runs"], ["the cat sat on a mat", "a dog runs"]
    score, signature = text_scores.bleu(said, wanted, lowercase=True)
    # 8 of 9 words, 5 of 7 pairs, 3 of 5 triples, 1 of 3 quadruples; the lengths are equal.
    assert score == pytest.approx(100 * (8 / 9 * 5 / 7 * 3 / 5 * 1 / 3) ** 0.25) and "case:lc" in signature
    assert text_scores.bleu(said, wanted)[0] < score
    # Unigrams by hand: 5 of 6 words both ways, then 3 of 3.
    assert text_scores.rouge(said, wanted)["rouge1"] == pytest.approx(100 * (5 / 6 + 1) / 2)


def test_compounds_are_split_on_both_sides() -> None:
    said, wanted = ["a high-speed train runs fast"], ["a high-grade train runs fast"]
    # `high - speed` is three tokens: 6 of 7 are right, 4 of 6 pairs, 2 of 5 triples; of 4 quadruples none, smoothed.
    assert text_scores.compound_bleu(said, wanted) == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 8) ** 0.25)
    # As one token: 4 of 5, 2 of 4, 1 of 3, none of 2.
    assert text_scores.bleu(said, wanted)[0] == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25)


def test_identical_outputs_have_p_1_and_better_ones_a_small_p() -> None:
    dice = random.Random(0)
    wanted = [" ".join(dice.choices("abcdefgh", k=12)) for _ in range(60)]
    worse = [text.replace("a", "h").replace("b", "g") if i % 2 else text for i, text in enumerate(wanted)]
    same = text_scores.paired_test(worse, worse, wanted)
    assert same["p_value"] == 1 and same["first"] == same["second"] == pytest.approx(text_scores.bleu(worse, wanted)[0])
    # One sentence of 60 differs: swapping it or not gives the same difference, so nothing can be concluded.
    assert text_scores.paired_test(worse, [wanted[0], wanted[1], *worse[2:]], wanted)["p_value"] == 1
    found = text_scores.paired_test(worse, wanted, wanted)
    assert found["second"] == pytest.approx(100) and found["p_value"] < 0.001 and found["second_interval"] < 1e-9
    assert 0 < found["first_interval"] < 10
    # Each system is wrong on its own half of the sentences: no difference, in whatever order.
    other = [text if i % 2 else text.replace("a", "h").replace("b", "g") for i, text in enumerate(wanted)]
    for pair in ((worse, other), (other, worse)):
        assert text_scores.paired_test(*pair, wanted)["p_value"] > 0.2


def test_two_translators_are_compared(place: Path) -> None:
    given = ["--task.path", place / "data", *language_pair.TINY, "--quiet", "--steps", "150", "--out", "better"]
    assert run_command(place, "train", "translation/feedback", *given).status == 0
    found = json.loads(run_command(place, "compare", "run", "better", "--json").out)
    assert found["sentences"] == 40 and 0 < found["p_value"] <= 1
    assert json.loads(run_command(place, "compare", "run", "run", "--json").out)["p_value"] == 1
    assert found["second"] == pytest.approx(json.loads(run_command(place, "eval", "better", "--json").out)["bleu"])


def test_a_missing_tool_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"pip install 'stairwell\[seq2seq\]'"):
        text_scores.bleu(["a"], ["a"])
