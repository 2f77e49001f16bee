"""`stairwell translate`, `summarize`, `tune`, `compare` and `distill`: what a sequence-to-sequence run is for."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from stairwell.cli.app import (
    MOST_SEED,
    AsJson,
    Device,
    SplitName,
    app,
    output_option,
    result_text,
    say,
    strict_json,
)
from stairwell.errors import UserError

LONGEST_LINE = 1 << 24  # bytes
MOST_HYPOTHESES = 1000  # more is a typing error

Folder = Annotated[Path, typer.Argument(help="the run folder of a trained model", metavar="RUN")]
Files = Annotated[list[Path] | None, typer.Argument(help="text files, one text a line; standard input if not given")]
Articles = Annotated[
    list[Path] | None,
    typer.Argument(
        help="text files, one article a line, or tables (jsonl, csv, tsv) with the column of articles that the run was "
        "trained on; standard input if not given"
    ),
]
Beam = Annotated[
    int | None,
    typer.Option(help="hypotheses at a time; 1 is greedy; 5 if the run was not tuned", min=1, max=MOST_HYPOTHESES),
]
Best = Annotated[
    int,
    typer.Option(
        help="print the n best hypotheses of each text, one per line: the line number of the text, counted from 0, the "
        "score and the hypothesis, separated by tabs",
        min=1,
        max=MOST_HYPOTHESES,
    ),
]
Penalty = Annotated[float | None, typer.Option(help="higher prefers longer texts; what `tune` found if not given")]
Block = Annotated[int | None, typer.Option(help="no sequence of so many tokens comes twice; 3 is usual for summaries")]
BreakLoops = Annotated[
    bool | None,
    typer.Option(
        "--break-loops/--keep-loops",
        help="decode a text that repeats itself in a loop again, without repeated sequences of 3 tokens; this is done "
        "unless the run was tuned with --keep-loops",
        show_default=False,
    ),
]
Most = Annotated[int | None, typer.Option(help="the most tokens of a target; 0: as long as any in training", min=0)]
MostRatio = Annotated[float | None, typer.Option(help="the most target tokens a source token, and 10 more; 0: any")]
Fewest = Annotated[int | None, typer.Option(help="the fewest tokens of a target", min=0)]
FewestRatio = Annotated[float | None, typer.Option(help="the fewest target tokens a source token", min=0)]
Temperature = Annotated[float | None, typer.Option(help="draw, likelier the lower it is; 0: beam search", min=0)]
TopK = Annotated[int | None, typer.Option(help="draw from the so many likeliest tokens only", min=1)]
TopP = Annotated[float | None, typer.Option(help="draw from the fewest tokens that hold this much probability only")]
Seed = Annotated[int | None, typer.Option(help="fixes what is drawn", min=0, max=MOST_SEED)]
Batch = Annotated[int, typer.Option(help="texts at a time; changes speed, not results", min=1)]
Prefix = Annotated[Path | None, typer.Option(help="a file with the words that each target begins with, one a line")]


def read_lines(files: list[Path], column: str = "") -> Iterator[str]:
    """Every line of some files, or of standard input, whatever is in it: what is no UTF-8 becomes a sign of its own.
    `column`: what to read of tables; without it their lines are texts like any other."""
    from stairwell.data import parallel

    if not files:
        yield from lines_of(sys.stdin.buffer)
    for file in files:
        if column and file.suffix in parallel.TABLES:
            yield from parallel.table_texts(file, column)
            continue
        with open(file, "rb") as content:
            yield from lines_of(content)


def lines_of(stream: Any) -> Iterator[str]:
    content: BinaryIO = stream
    for number, line in enumerate(iter(lambda: content.readline(LONGEST_LINE + 1), b"")):
        if len(line) > LONGEST_LINE:
            raise UserError(f"line {number + 1:,} is longer than {LONGEST_LINE >> 20} MiB; give one text per line")
        # Some editors begin a file with a mark of its encoding: no model has seen that in training.
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        yield text.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="replace")


def write_texts(run: Path, files: list[Path], task: str, best: int, prefix: Path | None, **options: Any) -> None:
    """One line out for one line in, or `best` lines with their scores; what it took goes to standard error. An article
    may have line ends of its own, so those to summarize may come as a table."""
    from stairwell.runs.seq2seq import open_translator

    for file in [*files, *([prefix] if prefix else [])]:
        file.open("rb").close()  # a file that is not there is found out before the model is loaded
    translator = open_translator(run, task, **options)
    if not files and sys.stdin.isatty():
        translator.ahead = 1  # whoever types a line waits for its translation
    prefixes = list(read_lines([prefix])) if prefix else None
    out, lines, words, began = sys.stdout.buffer, 0, 0, time.perf_counter()
    column = translator.task.config.source if task == "summarization" else ""
    for found in translator.translate(read_lines(files, column), best, prefixes):
        for written in found:
            text = written.text if best == 1 else f"{lines}\t{written.score:.4f}\t{written.text}"
            # Half a pair of surrogates can come out of a tokenizer; a file cannot hold it.
            out.write(text.encode("utf-8", errors="replace") + b"\n")
        lines, words = lines + 1, words + len(found[0].text.split())
        out.flush()
    seconds = max(time.perf_counter() - began, 1e-9)
    say(f"{lines:,} lines, {words:,} words in {seconds:.1f} s: {words / seconds:,.0f} words/s")
    if translator.cut:
        longest = translator.task.config.max_source_length
        say(
            f"{translator.cut:,} lines were cut to the {longest:,} tokens that the model reads (task.max_source_length)"
        )
    if translator.looped:
        say(f"{translator.looped:,} texts ran in a loop and were decoded again without it (--keep-loops keeps them)")
    if translator.unended:
        limits = "--longest, --longest-ratio" if task == "translation" else "--longest"
        say(f"{translator.unended:,} texts were stopped at their greatest length ({limits})")


@app.command()
def translate(
    run: Folder,
    files: Files = None,
    beam: Beam = None,
    nbest: Best = 1,
    length_penalty: Penalty = None,
    block: Block = None,
    break_loops: BreakLoops = None,
    longest: Most = None,
    longest_ratio: MostRatio = None,
    shortest: Fewest = None,
    shortest_ratio: FewestRatio = None,
    prefix: Prefix = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    batch: Batch = 64,
    device: Device = "auto",
) -> None:
    """Translate: one line out for every line in, from standard input or files."""
    write_texts(
        run, files or [], "translation", nbest, prefix, device=device, batch=batch, beam=beam,
        length_penalty=length_penalty, block=block, break_loops=break_loops, longest=longest,
        longest_ratio=longest_ratio, shortest=shortest, shortest_ratio=shortest_ratio, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip


@app.command()
def summarize(
    run: Folder,
    files: Articles = None,
    beam: Beam = None,
    nbest: Best = 1,
    length_penalty: Penalty = None,
    block: Block = None,
    break_loops: BreakLoops = None,
    longest: Most = None,
    shortest: Fewest = None,
    prefix: Prefix = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    batch: Batch = 16,
    device: Device = "auto",
) -> None:
    """Summarize: one line out for every article in, which is a line or the row of a table."""
    write_texts(
        run, files or [], "summarization", nbest, prefix, device=device, batch=batch, beam=beam,
        length_penalty=length_penalty, block=block, break_loops=break_loops, longest=longest, shortest=shortest,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip


@app.command()
def tune(
    run: Folder,
    beam: Beam = None,
    block: Block = None,
    break_loops: BreakLoops = None,
    sentences: Annotated[int, typer.Option(help="of the validation set; 0: all", min=0)] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the length penalty that suits a run on its validation set, and keep it in the run's folder."""
    from stairwell.runs.seq2seq import PENALTIES
    from stairwell.runs.seq2seq import tune as tune_run

    def tell(penalty: float, score: float) -> None:
        say(f"length penalty {penalty:g}: {score:.2f}")

    result = tune_run(run, PENALTIES, sentences, device, tell, beam=beam, block=block, break_loops=break_loops)
    print(strict_json(result) if as_json else result_text(result))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="the run folder of a translator, whose data is used", metavar="RUN")],
    second: Annotated[Path, typer.Argument(help="that of another", metavar="OTHER")],
    split: SplitName = "test",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare the BLEU of two translators on the same sentences, with the p-value of the difference."""
    from stairwell.runs.seq2seq import compare as compare_runs

    result = compare_runs(first, second, "valid" if split == "valid" else "test", device)
    print(strict_json(result) if as_json else result_text(result))


@app.command()
def distill(
    run: Folder,
    out: Annotated[Path, output_option("the folder of the new corpus, new or empty")],
    beam: Beam = None,
    break_loops: BreakLoops = None,
    batch: Batch = 64,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Make a corpus of what a run writes for its own training sources, for a smaller model to learn from."""
    from stairwell.runs.seq2seq import distill as distill_run

    def tell(done: int) -> None:
        if done % 1000 == 0:
            say(f"{done:,} pairs")

    result = distill_run(run, out, device, batch, tell, beam=beam, break_loops=break_loops)
    print(strict_json(result) if as_json else result_text(result))
