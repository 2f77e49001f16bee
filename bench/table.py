"""The tables of the README and of docs/performance.md, from bench/results.

`python -m bench table` writes each between its two markers. What has not been measured yet is said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import plot
from bench.records import ROOT, Record, newest_by_case

PAGES = ("README.md", "docs/performance.md")
NOT_YET = "Not measured yet: `python -m bench {}`."
MAIN = "4 layers, width 256, memory 100, segment 64, 16 rows"
CHAR_PTB = "6 layers, width 384, memory 512, segment 128, 16 rows (the paper's char-PTB)"
SHAPES = {
    "b16": MAIN,
    "b64": "the same, 64 rows",
    "b16-loops": "the same, 16 rows, again",
    "b64-loops": "the same, 64 rows, again",
    "b256": "the same, 256 rows",
    "b16-dropout": "the same, 16 rows, dropout 0.2",
    "b64-dropout": "the same, 64 rows, dropout 0.2",
    "small": "2 layers, width 64, memory 16, segment 32, 128 rows",
    "char-ptb": CHAR_PTB,
    "enwik8": "4 layers, width 512, inner 4,096, span 160 of 1,024, segment 128, 8 rows (a third of its enwik8)",
}
PEERS = {
    "x-transformers": "x-transformers' Transformer-XL",
    "transformer-xl": "our Transformer-XL",
    "feedback-pytorch": "feedback-transformer-pytorch",
    "feedback-torch": "its loops in PyTorch",
    "reference": "our reference engine",
    "lstm": "torch.nn.LSTM",
}
NAMES = {
    "feedback": "Feedback",
    "transformer-xl": "Transformer-XL",
    "reference": "Feedback, reference engine",
    "transformer-xl-reference": "Transformer-XL, reference engine",
    "x-transformers": "x-transformers' Transformer-XL",
    "gpt2": "Hugging Face's GPT-2",
    "staircase-2": "Staircase, 2 passes",
    "staircase-4": "Staircase, 4 passes",
    "staircase-8": "Staircase, 8 passes",
    "cached-1": "Cached Staircase, computed once",
}


TRANSLATORS = {
    "feedback": "Feedback",
    "transformer": "our Transformer",
    "marian": "Hugging Face's Marian",
    "ctranslate2": "CTranslate2",
}


def by_case(records: list[Record]) -> dict[str, dict[str, Record]]:
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        found.setdefault(record["case"], {})[record["what"]] = record
    return found


def grid(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A Markdown table."""
    first, *lines = (f"| {' | '.join(map(str, row))} |" for row in (head, *rows))
    return [first, "|---" * len(head) + "|", *lines]


def source(records: list[Record]) -> str:
    """Which commands made the numbers, of what code, on what machine: each once."""
    keys = ("command", "commit", "torch", "cpu", "threads")
    kinds = dict.fromkeys(tuple(record[key] for key in keys) for record in records)
    return "; ".join(
        f"`{command}` at {commit}, torch {torch}, {cpu}, {threads} threads"
        for command, commit, torch, cpu, threads in kinds
    )


def rounds_and_spread(records: list[Record], before: int) -> tuple[int, float]:
    """Records from before the number of rounds was written down had `before` of them."""
    return min(record.get("rounds", before) for record in records), max(record["spread"] for record in records)


def speed(records: list[Record]) -> list[str]:
    rows = []
    for case, found in by_case(records).items():
        ratios = [f"{found[peer]['feedback_over_this']:.2f}" if peer in found else "" for peer in PEERS]
        rows.append([case, f"{found['feedback']['tokens_per_second']:,}", *ratios])
    order = list(SHAPES)
    rows = [[SHAPES[row[0]], *row[1:]] for row in sorted(rows, key=lambda row: order.index(row[0]))]
    lines = grid(["training step", "Feedback, tokens/s", *(f"over {name}" for name in PEERS.values())], rows)
    rounds, worst = rounds_and_spread(records, before=5)
    lines += ["", f"{source(records)}, all in one process"]
    lines += ["taking turns, one run; more than 1 means that Feedback is faster. Slowest minus fastest of the"]
    return [
        *lines,
        f"{rounds} rounds is up to {worst:.2f} of the median: read ratios within about a fifth of 1 as a tie.",
    ]


def limit(records: list[Record]) -> list[str]:
    rows = []
    for case, found in by_case(records).items():
        for model in ("feedback", "transformer-xl"):
            step, alone = found[model], found[f"{model} products"]
            rates = [f"{which['gigaflop_per_second']:,.0f}" for which in (step, alone, found["square"])]
            shares = [f"{100 * step[share]:.0f}%" for share in ("of_products", "of_square")]
            rows.append([case.removeprefix("b"), NAMES[model], f"{step['gigaflop']:,.1f}", *rates, *shares])
    head = ["rows", "model", "GFLOP a step", "GFLOP/s, the step", "its products alone", "a square product"]
    rounds, worst = rounds_and_spread(records, before=7)
    return [
        *grid([*head, "of its products", "of the square"], rows),
        *("", f"{source(records)}; medians of {rounds} rounds, spread up to {worst:.2f}."),
    ]


def profile(records: list[Record]) -> list[str]:
    cases = by_case(records)
    parts = list(dict.fromkeys(record["what"] for record in records))
    rows = []
    for part in parts:
        shares = [f"{100 * found[part]['share']:.1f}%" if part in found else "" for found in cases.values()]
        rows.append([part, *shares])
    whole = [f"{sum(record['milliseconds'] for record in found.values()):,.0f} ms" for found in cases.values()]
    head = ["part of a Feedback step", *(f"{case.removeprefix('b')} rows" for case in cases)]
    return [*grid(head, [*rows, ["whole step, profiled", *whole]]), "", f"{source(records)}."]


def memory(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] != "decoding"]
    if not records:
        return [NOT_YET.format("memory")]
    rows = []
    for case, found in by_case(records).items():
        words = {"b16": MAIN, "b64": "the same, 64 rows", "char-ptb": CHAR_PTB}[case]
        for what, record in found.items():
            rows.append([words, NAMES[what], f"{record['peak_megabytes']:,.0f}", f"{record['over_feedback']:.2f}"])
            words = ""
    worst = max(record["spread"] for record in records)
    head = ["training step", "model", "peak, MiB", "over Feedback"]
    return [*grid(head, rows), "", f"{source(records)}; two runs of each differ by at most {100 * worst:.1f}%."]


def state(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] == "decoding"]
    if not records:
        return [NOT_YET.format("memory decoding")]
    rows = [
        [
            NAMES[record["what"]],
            f"{record['state_bytes']:,}",
            f"{record['state_over_feedback']:.2f}",
            f"{record['session_bytes']:,}",
            f"{record['session_over_feedback']:.2f}",
        ]
        for record in records
    ]
    head = ["one stream", "state, bytes", "over Feedback", "session's buffers, bytes", "over Feedback"]
    return [*grid(head, rows), "", f"{source(records)}; these are sizes, the same on any machine."]


def decode(records: list[Record]) -> list[str]:
    rows = [
        [
            NAMES[record["what"]],
            *(record["rows"], f"{record['span']:,}", f"{record['state_megabytes']:,}"),
            *(f"{record['tokens_per_second']:,.1f}", f"{record['feedback_over_this']:.2f}"),
        ]
        for record in records
        if record["case"] != "flat"
    ]
    head = ["decoding", "rows", "span", "state, MiB", "tokens/s", "Feedback over this"]
    lines = [*grid(head, rows), "", f"{source(records)}; spread up to {spread_of(records):.2f} of the median."]
    return lines + flat([record for record in records if record["case"] == "flat"])


def spread_of(records: list[Record]) -> float:
    return max(record.get("spread", 0.0) for record in records)


def flat(records: list[Record]) -> list[str]:
    """Time per token at the beginning and at the end of a long stream, once the memory is full."""
    lines = []
    for model in ("feedback", "transformer-xl"):
        times = [record for record in records if record["what"] == model and record["after"]]
        if times:
            first, last = times[0], times[-1]
            lines.append(
                f"{NAMES[model]}, one row: {first['milliseconds']} ms a token after {first['after']:,} tokens, "
                f"{last['milliseconds']} ms after {last['after']:,}."
            )
    return ["", *lines] if lines else []


def translate(records: list[Record]) -> list[str]:
    """Tokens a second by who and how deep, what is the same at every depth, and the ratios."""
    lines = []
    for case in dict.fromkeys(record["case"] for record in records):
        found = [record for record in records if record["case"] == case]
        timed = {(record["what"], record["depth"]): record for record in found if record["what"] != "ratio"}
        depths = sorted({depth for _, depth in timed if depth})
        rows = []
        for name, words in TRANSLATORS.items():
            rates = [timed.get((name, depth)) for depth in depths]
            if any(rates):
                rows.append([words, *(f"{rate['tokens_per_second']:,.0f}" if rate else "" for rate in rates)])
        head = [f"tokens/s, {case.replace('-', ' ')}", *(f"decoder of {depth}" for depth in depths)]
        shares = []
        for part, words in (("encoder", "the encoder"), ("softmax", "scores of the output symbols")):
            share = [f"{100 * timed[part, 0]['seconds'] / timed['feedback', d]['seconds']:.0f}%" for d in depths]
            shares.append([f"of Feedback's time, {words}", *share])
        lines += [*grid(head, [*rows, *shares]), ""]
    rows = [
        [f"{record['of']}, {record['case'].replace('-', ' ')}", f"{record['ratio']:.2f}",
         f"{record['low']:.2f} to {record['high']:.2f}"]
        for record in records if record["what"] == "ratio"
    ]  # fmt: skip
    timed_records = [record for record in records if record["what"] != "ratio"]
    rounds, worst = rounds_and_spread(timed_records, before=0)
    return [
        *lines,
        *grid(["how many times as fast", "median", "of the rounds"], rows),
        *("", f"{source(records)}; medians of {rounds} rounds in turns, spread up to {worst:.2f}."),
    ]


def staircase(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] == "staircase"]
    if not records:
        return [NOT_YET.format("staircase")]
    rows = [
        [
            NAMES[record["what"]],
            f"{record['tokens_per_second']:,}",
            f"{record['time_over_transformer_xl']:.2f}",
            f"{record['operations_over_transformer_xl']:.2f}",
            record["paper"],
            f"{record['reference_over_fast']:.2f}",
        ]
        for record in records
    ]
    head = ["training step", "tokens/s", "time over Transformer-XL", "operations over Transformer-XL"]
    rounds, worst = rounds_and_spread(records, before=5)
    return [
        *grid([*head, "time in the paper, on GPUs", "fast engine over reference"], rows),
        *("", f"{source(records)}; medians of {rounds} rounds, spread up to {worst:.2f}."),
    ]


def scaling(records: list[Record]) -> list[str]:
    if not plot.PICTURE.exists():
        return [NOT_YET.format("scaling` and `python -m bench plot")]
    return [f"![Time per token against stream, memory, rows and threads](pictures/{plot.PICTURE.name})", "",
            f"{source(records)}; spread up to {spread_of(records):.2f} of the median."]  # fmt: skip


def serve(records: list[Record]) -> list[str]:
    lines: list[str] = []
    found = by_case([record for record in records if record["case"] != "memory"])
    if found:
        rows = [
            [
                "{layers} layers, width {width}, memory {memory}".format(**ways["loop"]),
                f"{ways['loop']['tokens_per_second']:,.0f}",
                *(f"{ways[clients]['over_loop']:.2f}" for clients in ("1", "4", "16")),
            ]
            for ways in found.values()
        ]
        shown = [record for record in records if record["case"] in found]
        rounds, worst = rounds_and_spread(shown, before=5)
        head = ["texts of 128 tokens", "one after the other, no server, tokens/s", "1 client over that", "4", "16"]
        lines += [*grid(head, rows), "", f"{source(shown)}; medians of {rounds} rounds, spread up to {worst:.2f}."]
    memory = [record for record in records if record["case"] == "memory"]
    if memory:
        held = ", ".join(f"{record['megabytes']:,} after {record['after']:,}" for record in memory[::2])
        lines += ["", f"Resident memory of a server, in MiB: {held} requests. {source(memory)}."]
    return lines


def speculation(records: list[Record]) -> list[str]:
    words = {"greedy": "greedy", "sampling": "sampling", "transformers": "greedy, by transformers' `generate`"}
    rows = [
        [
            words[record["case"]],
            record["what"],
            f"{100 * record['acceptance']:.0f}%" if "acceptance" in record else "",
            f"{record['tokens_per_call']:.2f}" if "tokens_per_call" in record else "1.00",
            f"{record['tokens_per_second']:,.1f}",
            f"{record['over_alone']:.2f}",
        ]
        for record in records
    ]
    head = [
        "decoding",
        "who writes",
        "drafted tokens kept",
        "tokens a call of the target",
        "tokens/s",
        "over the target alone",
    ]
    first = records[0]
    sizes = {name: (first[f"{name}_megabytes"], first[f"{name}_bits"]) for name in ("target", "draft")}
    pair = " and ".join(f"{name} {size} MB, {bits:.2f} bits a byte" for name, (size, bits) in sizes.items())
    turns = f"{first['prompts']} prompts of the test split, {first['tokens']} tokens each, in turns"
    return [
        *grid(head, rows),
        *("", f"{source(records)}; {turns};"),
        f"spread up to {spread_of(records):.2f} of the median. Parameters and loss in validation: {pair}.",
    ]


def browser(records: list[Record]) -> list[str]:
    rows = [
        [
            f"`{record['case']}`",
            f"{record['parameters']:,}",
            f"{record['bytes']:,}",
            f"{record['tokens_per_second']:,}",
            f"{record['with_attention']:,}",
        ]
        for record in records
    ]
    head = ["page of a preset's model", "parameters", "bytes", "tokens/s", "with all attention looked at"]
    return [*grid(head, rows), "", f"{source(records)}; {records[0]['browser']}, headless, one thread."]


# The name in a section's markers: the measurement that it shows, and how.
SECTIONS: dict[str, tuple[str, Callable[[list[Record]], list[str]]]] = {
    "speed": ("speed", speed),
    "limit": ("limit", limit),
    "profile": ("profile", profile),
    "memory": ("memory", memory),
    "state": ("memory", state),
    "decode": ("decode", decode),
    "translate": ("translate", translate),
    "staircase": ("staircase", staircase),
    "scaling": ("scaling", scaling),
    "serve": ("serve", serve),
    "speculation": ("speculation", speculation),
    "browser": ("browser", browser),
}


def section(name: str) -> str:
    measurement, show = SECTIONS[name]
    records = newest_by_case(measurement)
    return "\n".join(show(records) if records else [NOT_YET.format(measurement)])


def fill(text: str) -> str:
    """A page with what stands between its markers made anew."""
    for name in SECTIONS:
        begin, end = f"<!-- {name}: made by `python -m bench table` -->", f"<!-- end of {name} -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, found, after = rest.partition(end)
            if not found:
                raise ValueError(f"the section '{name}' has a beginning but no end: {end}")
            text = f"{before}{begin}\n{section(name)}\n{end}{after}"
    return text


def write() -> None:
    for page in PAGES:
        path: Path = ROOT / page
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
