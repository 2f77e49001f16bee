"""Commands of sequence-to-sequence runs: `translate`, `summarize`, `tune`, `compare` and `distill`."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from stairwell.cli.app import (
    MAX_SEED,
    SAMPLING,
    AsJson,
    Device,
    SplitName,
    WeightsName,
    app,
    naming,
    output_option,
    result_text,
    say,
    strict_json,
)
from stairwell.cli.help import TRAIN, USE
from stairwell.errors import UserError

MAX_LINE_BYTES = 1 << 24
MAX_NBEST = 1000  # more is a typing error

Folder = Annotated[Path, typer.Argument(help="Run folder, or name of a pretrained model.", metavar="RUN")]
Files = Annotated[
    list[Path] | None, typer.Argument(help="Text files with one text per line; standard input if not given.")
]
Articles = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Text files with one article per line, or tables (jsonl, csv, tsv) with the source column of training; "
        "standard input if not given."
    ),
]
Beam = Annotated[
    int | None,
    typer.Option(help="Beam width; 1 is greedy.", min=1, max=MAX_NBEST, show_default="as tuned, or 5"),
]
Best = Annotated[
    int,
    typer.Option(
        help="Print the n best hypotheses: line number from 0, score and text, separated by tabs.",
        min=1,
        max=MAX_NBEST,
    ),
]
Penalty = Annotated[
    float | None,
    typer.Option(help="Length penalty; higher prefers longer texts.", show_default="as tuned, or 1"),
]
NgramSize = Annotated[
    int | None,
    typer.Option(
        help="Size of n-grams that must not repeat; 0: no constraint.", show_default="as tuned, or 0; summaries 3"
    ),
]
BreakLoops = Annotated[
    bool | None,
    typer.Option(
        "--break-loops/--keep-loops",
        help="Decode texts with a repetition loop again, with --no-repeat-ngram-size 3.",
        show_default="as tuned, or --break-loops",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of target tokens; 0: the longest target in training.", min=0, show_default="as tuned, or 0"
    ),
]
MaxLengthRatio = Annotated[
    float | None,
    typer.Option(
        help="Maximum number of target tokens per source token, plus 10; 0: no limit.", show_default="as tuned, or 3"
    ),
]
MinLength = Annotated[
    int | None, typer.Option(help="Minimum number of target tokens.", min=0, show_default="as tuned, or 0")
]
MinLengthRatio = Annotated[
    float | None,
    typer.Option(help="Minimum number of target tokens per source token.", min=0, show_default="as tuned, or 0"),
]
Temperature = Annotated[
    float | None, typer.Option(help="Sampling temperature; 0: beam search.", min=0, show_default="0")
]
TopK = Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.", min=1, show_default="all")]
TopP = Annotated[
    float | None,
    typer.Option(help="Sample from the most probable tokens whose probabilities sum to p.", show_default="1"),
]
Seed = Annotated[int | None, typer.Option(help="Random seed of sampling.", min=0, max=MAX_SEED, show_default="0")]
Batch = Annotated[int, typer.Option(help="Texts decoded in one batch; changes speed, not results.", min=1)]
Prefix = Annotated[Path | None, typer.Option(help="File with the first words of each target, one per line.")]


def read_lines(files: list[Path], column: str = "") -> Iterator[str]:
    """Yield the lines of files, or of standard input. Invalid UTF-8 is replaced. `column`: the column to read
    of tables; without it tables are read line by line."""
    from stairwell.data import parallel

    if not files:
        if sys.stdin is None:
            raise UserError("there is no standard input; name a file")
        yield from lines_of(sys.stdin.buffer)
    for file in files:
        if column and file.suffix in parallel.TABLES:
            yield from parallel.table_texts(file, column)
            continue
        with open(file, "rb") as content:
            yield from lines_of(content)


def lines_of(stream: Any) -> Iterator[str]:
    content: BinaryIO = stream
    for number, line in enumerate(iter(lambda: content.readline(MAX_LINE_BYTES + 1), b"")):
        if len(line) > MAX_LINE_BYTES:
            raise UserError(f"line {number + 1:,} is longer than {MAX_LINE_BYTES >> 20} MiB; give one text per line")
        # Some editors write a byte order mark, which is not in the training data.
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        yield text.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="replace")


def write_texts(run: Path, files: list[Path], task: str, best: int, prefix: Path | None, **options: Any) -> None:
    """Write one line per input line, or the `best` hypotheses with their scores; print the speed to stderr.
    Articles may contain line ends, so those to summarize may come as a table."""
    from stairwell.runs.pair_runs import open_translator

    for file in [*files, *([prefix] if prefix else [])]:
        file.open("rb").close()  # fail before the model is loaded
    with naming(SAMPLING):
        translator = open_translator(run, task, **options)
    if not files and sys.stdin is not None and sys.stdin.isatty():
        translator.read_ahead = 1  # translate each typed line at once
    prefixes = list(read_lines([prefix])) if prefix else None
    out, lines, words, start = sys.stdout.buffer, 0, 0, time.perf_counter()
    column = translator.task.config.source if task == "summarization" else ""
    for hypotheses in translator.translate(read_lines(files, column), best, prefixes):
        for hypothesis in hypotheses:
            text = hypothesis.text if best == 1 else f"{lines}\t{hypothesis.score:.4f}\t{hypothesis.text}"
            # A tokenizer can produce a lone surrogate, which cannot be encoded.
            out.write(text.encode("utf-8", errors="replace") + b"\n")
        lines, words = lines + 1, words + len(hypotheses[0].text.split())
        out.flush()
    seconds = max(time.perf_counter() - start, 1e-9)
    say(f"{lines:,} lines, {words:,} words in {seconds:.1f} s: {words / seconds:,.0f} words/s")
    if translator.cut:
        max_length = translator.task.config.max_source_length
        say(f"{translator.cut:,} lines were truncated to {max_length:,} tokens, the model's task.max_source_length")
    if translator.looped:
        say(
            f"{translator.looped:,} texts had a repetition loop and were decoded again without it (--keep-loops "
            f"keeps them)"
        )
    if translator.unended:
        limits = "--max-length, --max-length-ratio" if task == "translation" else "--max-length"
        say(f"{translator.unended:,} texts were cut at the maximum length ({limits})")


@app.command(rich_help_panel=USE)
def translate(
    run: Folder,
    files: Files = None,
    beam: Beam = None,
    nbest: Best = 1,
    length_penalty: Penalty = None,
    no_repeat_ngram_size: NgramSize = None,
    break_loops: BreakLoops = None,
    max_length: MaxLength = None,
    max_length_ratio: MaxLengthRatio = None,
    min_length: MinLength = None,
    min_length_ratio: MinLengthRatio = None,
    prefix: Prefix = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    batch: Batch = 64,
    weights: WeightsName = "float32",
    device: Device = "auto",
) -> None:
    """Translate text line by line, from standard input or files."""
    write_texts(
        run, files or [], "translation", nbest, prefix, device=device, batch=batch, weights=weights, beam=beam,
        length_penalty=length_penalty, no_repeat_ngram_size=no_repeat_ngram_size, break_loops=break_loops,
        max_length=max_length, max_length_ratio=max_length_ratio, min_length=min_length,
        min_length_ratio=min_length_ratio, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip


@app.command(rich_help_panel=USE)
def summarize(
    run: Folder,
    files: Articles = None,
    beam: Beam = None,
    nbest: Best = 1,
    length_penalty: Penalty = None,
    no_repeat_ngram_size: NgramSize = None,
    break_loops: BreakLoops = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    prefix: Prefix = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    batch: Batch = 16,
    weights: WeightsName = "float32",
    device: Device = "auto",
) -> None:
    """Summarize articles: lines of text, or rows of a table."""
    write_texts(
        run, files or [], "summarization", nbest, prefix, device=device, batch=batch, weights=weights, beam=beam,
        length_penalty=length_penalty, no_repeat_ngram_size=no_repeat_ngram_size, break_loops=break_loops,
        max_length=max_length, min_length=min_length,
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
    )  # fmt: skip


@app.command(rich_help_panel=TRAIN)
def tune(
    run: Folder,
    beam: Beam = None,
    no_repeat_ngram_size: NgramSize = None,
    break_loops: BreakLoops = None,
    sentences: Annotated[int, typer.Option(help="Number of validation sentences; 0: all.", min=0)] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the best length penalty on the validation set and save it in the run folder."""
    from stairwell.runs.pair_runs import PENALTIES
    from stairwell.runs.pair_runs import tune as tune_run

    def tell(penalty: float, score: float) -> None:
        say(f"length penalty {penalty:g}: {score:.2f}")

    with naming(SAMPLING):
        result = tune_run(
            run, PENALTIES, sentences, device, tell, beam=beam, no_repeat_ngram_size=no_repeat_ngram_size,
            break_loops=break_loops,
        )  # fmt: skip
    print(strict_json(result) if as_json else result_text(result))


@app.command(rich_help_panel=USE)
def compare(
    first: Annotated[
        Path, typer.Argument(help="Run folder, or name of a pretrained translator, whose data is used.", metavar="RUN")
    ],
    second: Annotated[
        Path, typer.Argument(help="Run folder, or name of another pretrained translator.", metavar="OTHER")
    ],
    split: SplitName = "test",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare the BLEU of two translators on the same sentences, with the p-value of the difference.

    `stairwell report RUN OTHER` compares the scores and curves of runs of any task.
    """
    from stairwell.runs.pair_runs import compare as compare_runs

    result = compare_runs(first, second, "valid" if split == "valid" else "test", device)
    print(strict_json(result) if as_json else result_text(result))


@app.command(rich_help_panel=TRAIN)
def distill(
    run: Folder,
    out: Annotated[Path, output_option("New or empty folder for the corpus.")],
    beam: Beam = None,
    break_loops: BreakLoops = None,
    batch: Batch = 64,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write a corpus of a model's outputs for its training sources, to train a smaller model on."""
    from stairwell.runs.pair_runs import distill as distill_run

    def tell(done: int) -> None:
        if done % 1000 == 0:
            say(f"{done:,} pairs")

    result = distill_run(run, out, device, batch, tell, beam=beam, break_loops=break_loops)
    print(strict_json(result) if as_json else result_text(result))
