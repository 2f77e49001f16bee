"""Tables of docs/performance.md and docs/agents.md, generated from bench/results.

`python -m bench table` writes each table between its two markers, or a note if there are no results yet.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import plot
from bench.c_file import CASES as C_CASES
from bench.records import ROOT, Record, newest_by_case

PAGES = ("docs/performance.md", "docs/agents.md")
NOT_MEASURED = "Not measured yet: `python -m bench {}`."
MAIN = "4 layers, width 256, memory 100, segment 64, batch 16"
CHAR_PTB = "6 layers, width 384, memory 512, segment 128, batch 16 (the paper's char-PTB)"
SHAPES = {
    "b16": MAIN,
    "b64": "the same, batch 64",
    "b16-loops": "the same, batch 16, second run",
    "b64-loops": "the same, batch 64, second run",
    "b256": "the same, batch 256",
    "b16-dropout": "the same, batch 16, dropout 0.2",
    "b64-dropout": "the same, batch 64, dropout 0.2",
    "small": "2 layers, width 64, memory 16, segment 32, batch 128",
    "char-ptb": CHAR_PTB,
    "enwik8": "4 layers, width 512, inner 4,096, span 160 of 1,024, segment 128, batch 8 (a third of its enwik8)",
}
PEERS = {
    "x-transformers": "x-transformers' Transformer-XL",
    "transformer-xl": "our Transformer-XL",
    "feedback-pytorch": "feedback-transformer-pytorch",
    "feedback-torch": "our PyTorch engine",
    "reference": "our reference engine",
    "lstm": "torch.nn.LSTM",
}
NAMES = {
    "feedback": "Feedback",
    "feedback-own-kv": "Feedback, own keys and values in each layer",
    "feedback-bfloat16-cache": "Feedback, keys and values in bfloat16",
    "feedback-bf16-kv": "Feedback, keys and values in bfloat16",
    "transformer-xl": "Transformer-XL",
    "reference": "Feedback, reference engine",
    "transformer-xl-reference": "Transformer-XL, reference engine",
    "x-transformers": "x-transformers' Transformer-XL",
    "gpt2": "Hugging Face's GPT-2",
    "ctranslate2": "GPT-2 in CTranslate2",
    "ctranslate2-int8": "GPT-2 in CTranslate2, int8",
    "staircase-2": "Staircase, 2 passes",
    "staircase-4": "Staircase, 4 passes",
    "staircase-8": "Staircase, 8 passes",
    "cached-1": "Cached Staircase, 1 computed pass",
}


SINGLE_RATIOS = {
    "of_bandwidth": "of the bandwidth",
    "over_float32": "over float32",
    "over_gpt2": "over Hugging Face's GPT-2",
    "over_ctranslate2": "over CTranslate2's",
}
TRANSLATORS = {
    "feedback": "Feedback",
    "transformer": "our Transformer",
    "marian": "Hugging Face's Marian",
    "ctranslate2": "CTranslate2",
}


def by_case(records: list[Record]) -> dict[str, dict[str, Record]]:
    results: dict[str, dict[str, Record]] = {}
    for record in records:
        results.setdefault(record["case"], {})[record["what"]] = record
    return results


def grid(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    first, *lines = (f"| {' | '.join(map(str, row))} |" for row in (head, *rows))
    return [first, "|---" * len(head) + "|", *lines]


def source(records: list[Record]) -> str:
    """Return the distinct commands, commits and machines of the records."""
    keys = ("command", "commit", "torch", "cpu", "threads")
    sources = dict.fromkeys(tuple(record[key] for key in keys) for record in records)
    return "; ".join(
        f"`{command}` at {commit}, torch {torch}, {cpu}, {threads} threads"
        for command, commit, torch, cpu, threads in sources
    )


def rounds_and_spread(records: list[Record], before: int) -> tuple[int, float]:
    """Return the number of rounds and the largest spread. Old records without rounds had `before`."""
    return min(record.get("rounds", before) for record in records), max(record["spread"] for record in records)


def speed(records: list[Record]) -> list[str]:
    cases, rows = by_case(records), []
    for case in sorted(cases, key=list(SHAPES).index):
        results = cases[case]
        for what, field in (("feedback", "feedback_over_this"), ("feedback-bf16-kv", "rounded_over_this")):
            if what in results:
                title = SHAPES[case] if what == "feedback" else "the same, keys and values in bfloat16"
                ratios = [with_range(results.get(peer, {}), field) for peer in PEERS]
                rows.append([title, f"{results[what]['tokens_per_second']:,}", *ratios])
    lines = grid(["training step", "Feedback, tokens/s", *(f"over {name}" for name in PEERS.values())], rows)
    rounds, worst = rounds_and_spread(records, before=5)
    return [
        *lines,
        *("", f"{source(records)}, interleaved in one process,"),
        f"one run of {rounds} rounds. Above 1, Feedback is faster. The spread (slowest minus fastest round) is up to",
        f"{worst:.2f} of the median: differences below about 20% are not significant.",
    ]


def with_range(record: Record, field: str) -> str:
    """Return a ratio with its range over the rounds, if it was recorded."""
    if field not in record:
        return ""
    low, high = record.get(f"{field}_range", (None, None))
    return f"{record[field]:.2f}" if low is None else f"{record[field]:.2f} ({low:.2f} to {high:.2f})"


def machine(records: list[Record]) -> list[str]:
    names = {"bandwidth": "reading memory", "square product": "product of two square matrices of size 2,048"}
    rows = []
    for record in sorted(records, key=lambda record: str(record["what"])):
        is_bandwidth = record["what"] == "bandwidth"
        value = f"{record['gigabytes_per_second']} GB/s" if is_bandwidth else f"{record['gigaflop_per_second']} GFLOP/s"
        when = "before the benchmarks" if record["case"] == "start" else "after them"
        rows.append([names[record["what"]], when, value, f"{record['spread']:.2f}"])
    lines = grid(["the machine", "measured", "median", "spread"], rows)
    about = f"{records[0]['instruction_set']}, medians of {records[0]['rounds']} rounds"
    return [*lines, "", f"{source(records)}; {about}."]


def schedules(records: list[Record]) -> list[str]:
    """Return the time with shared columns over the time with shared streams, and how good the choice is."""
    batches = sorted({record["rows"] for record in records})
    rows = []
    for case in dict.fromkeys(record["case"] for record in records):
        results = {record["rows"]: record for record in records if record["case"] == case}
        ratios = [f"{results[B]['columns_over_streams']:.2f}" if B in results else "" for B in batches]
        worst = max(record["auto_over_better"] for record in results.values())
        rows.append([case.replace("-", " "), *ratios, f"{worst:.2f}"])
    head = ["columns over streams", *(f"batch {B}" for B in batches), "chosen over the better, worst"]
    choices = [record["auto_over_better"] for record in records]
    within = sum(choice <= 1.1 for choice in choices)
    rounds, spread = rounds_and_spread(records, before=5)
    about = f"the chosen schedule is within 10% of the better one in {within} of {len(choices)} cases"
    return [
        *grid(head, rows),
        *("", f"{source(records)}; medians of {rounds} rounds, spread up to {spread:.2f}; {about}."),
    ]


def short_shape(case: str) -> str:
    return "width 64, batch 128" if case == "small" else f"width 256, batch {case.removeprefix('b')}"


def limit(records: list[Record]) -> list[str]:
    rows = []
    for case, results in by_case(records).items():
        for model in ("feedback", "transformer-xl"):
            step, products = results[model], results[f"{model} products"]
            rates = [f"{which['gigaflop_per_second']:,.0f}" for which in (step, products, results["square"])]
            shares = [f"{100 * step[share]:.0f}%" for share in ("of_products", "of_square")]
            rows.append([short_shape(case), NAMES[model], f"{step['gigaflop']:,.1f}", *rates, *shares])
    head = ["shape", "model", "GFLOP per step", "GFLOP/s, step", "products alone", "square product"]
    rounds, worst = rounds_and_spread(records, before=7)
    return [
        *grid([*head, "step / products", "step / square"], rows),
        *("", f"{source(records)}; medians of {rounds} rounds, spread up to {worst:.2f}."),
    ]


def profile(records: list[Record]) -> list[str]:
    cases = by_case(records)
    parts = list(dict.fromkeys(record["what"] for record in records))
    rows = []
    for part in parts:
        shares = [f"{100 * results[part]['share']:.1f}%" if part in results else "" for results in cases.values()]
        rows.append([part, *shares])
    whole = [f"{sum(record['milliseconds'] for record in results.values()):,.0f} ms" for results in cases.values()]
    head = ["part of a Feedback step", *map(short_shape, cases)]
    return [*grid(head, [*rows, ["whole step, with profiler", *whole]]), "", f"{source(records)}."]


def memory(records: list[Record]) -> list[str]:
    passes = [record for record in records if record["case"] == "passes"]
    records = [record for record in records if record["case"] not in ("decoding", "passes")]
    if not records:
        return [NOT_MEASURED.format("memory")]
    rows = []
    for case, results in by_case(records).items():
        shape = {"b16": MAIN, "b64": "the same, batch 64", "char-ptb": CHAR_PTB}[case]
        for what, record in results.items():
            rows.append([shape, NAMES[what], f"{record['peak_megabytes']:,.0f}", f"{record['over_feedback']:.2f}"])
            shape = ""
    worst = max(record["spread"] for record in records)
    head = ["training step", "model", "peak, MiB", "over Feedback"]
    about = f"{source(records)}; two runs of each model differ by at most {100 * worst:.1f}%."
    return [*grid(head, rows), "", about, *memory_of_passes(passes)]


def memory_of_passes(records: list[Record]) -> list[str]:
    if not records:
        return []
    rows = [
        [
            NAMES[record["what"]],
            *(f"{record['peak_megabytes']:,.0f}", f"{record['over_transformer_xl']:.2f}"),
            *(f"{record['session_bytes']:,}", f"{record['session_bytes'] / records[0]['session_bytes']:.2f}"),
        ]
        for record in records
    ]
    head = [
        "4 layers, width 256, context and segment 256, batch 8",
        "peak of a training step, MiB",
        "over Transformer-XL",
    ]
    return ["", *grid([*head, "one stream in decoding, bytes", "over Transformer-XL"], rows), "", f"{source(records)}."]


def state(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] == "decoding"]
    if not records:
        return [NOT_MEASURED.format("memory decoding")]
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
    head = ["one stream", "state, bytes", "over Feedback", "session buffers, bytes", "over Feedback"]
    return [*grid(head, rows), "", f"{source(records)}; sizes do not depend on the machine."]


def decode(records: list[Record]) -> list[str]:
    rows = [
        [
            NAMES[record["what"]],
            *(record["rows"], f"{record['span']:,}", f"{record['state_megabytes']:,}"),
            *(f"{record['tokens_per_second']:,.1f}", f"{record['feedback_over_this']:.2f}"),
        ]
        for record in records
        if "rows" in record
    ]
    head = ["decoding", "batch", "span", "state, MiB", "tokens/s", "Feedback over this"]
    lines = [*grid(head, rows), "", f"{source(records)}; spread up to {max_spread(records):.2f} of the median."]
    lines += parts([record for record in records if record["case"] == "parts"])
    lines += groups([record for record in records if record["case"] == "groups"])
    lines += single([record for record in records if record["case"].startswith("single-")])
    return lines + flat([record for record in records if record["case"] == "flat"])


def parts(records: list[Record]) -> list[str]:
    """Return the share of attention in a step of many streams, and the speed at which it reads memory."""
    if not records:
        return []
    rows = [
        [
            NAMES[record["what"]],
            *(f"{record['span']:,}", f"{record['milliseconds']:.1f}", f"{record['attention_milliseconds']:.1f}"),
            f"{record['read_megabytes']:,}",
            record.get("gigabytes_per_second", ""),
        ]
        for record in records
    ]
    head = [f"a step of {records[0]['streams']} streams", "span", "ms", "of these attention", "it reads, MiB", "GB/s"]
    bandwidth = sorted({record["bandwidth"] for record in records})
    about = " and ".join(f"{value} GB/s" for value in bandwidth)
    about = f"Attention: the difference to a span of 1. Bandwidth in the same runs: {about}."
    return ["", *grid(head, rows), "", about]


def groups(records: list[Record]) -> list[str]:
    """Return the speed of many streams of Feedback that are processed group by group."""
    if not records:
        return []
    sizes = list(dict.fromkeys(record["group"] for record in records))
    rows = [
        [f"{span:,}", *(record["over_one_group"] for record in records if record["span"] == span)]
        for span in dict.fromkeys(record["span"] for record in records)
    ]
    head = [f"{records[0]['streams']} streams of Feedback, speed of groups over one step; span"]
    return ["", *grid([*head, *(f"groups of {size}" for size in sizes)], rows)]


def single(records: list[Record]) -> list[str]:
    """Return the speed of one stream by storage of the parameters, for each shape."""
    lines = []
    for case in dict.fromkeys(record["case"] for record in records):
        results = [record for record in records if record["case"] == case]
        machine = next(record for record in results if record["what"] == "bandwidth")
        rows = [
            [
                NAMES.get(record["what"], f"Feedback, {record['what']}"),
                f"{record['tokens_per_second']:,.0f}",
                *(record.get(name, "") for name in SINGLE_RATIOS),
            ]
            for record in results
            if record is not machine
        ]
        layers, width = case.removeprefix("single-").split("x")
        head = [
            f"one stream, {layers} layers of width {width}",
            "tokens/s",
            *SINGLE_RATIOS.values(),
        ]
        about = f"{machine['gigabytes_per_second']} GB/s, {machine['threads']} threads, {machine['instruction_set']}"
        lines += ["", *grid(head, rows), "", f"Median and range of {machine['rounds']} rounds; {about}."]
    return lines


def max_spread(records: list[Record]) -> float:
    return max(record.get("spread", 0.0) for record in records)


def flat(records: list[Record]) -> list[str]:
    """Return the time per token at the start and at the end of a long stream, once the memory is full."""
    lines = []
    for model in ("feedback", "transformer-xl"):
        times = [record for record in records if record["what"] == model and record["after"]]
        if times:
            first, last = times[0], times[-1]
            lines.append(
                f"{NAMES[model]}, one stream: {first['milliseconds']} ms per token after {first['after']:,} tokens, "
                f"{last['milliseconds']} ms after {last['after']:,}."
            )
    return ["", *lines] if lines else []


def translate(records: list[Record]) -> list[str]:
    """Return tables of tokens per second by model and depth, of shares of the time, and of ratios."""
    lines = []
    for case in dict.fromkeys(record["case"] for record in records):
        results = [record for record in records if record["case"] == case]
        timed = {(record["what"], record["depth"]): record for record in results if record["what"] != "ratio"}
        depths = sorted({depth for _, depth in timed if depth})
        rows = []
        for name, label in TRANSLATORS.items():
            rates = [timed.get((name, depth)) for depth in depths]
            if any(rates):
                rows.append([label, *(f"{rate['tokens_per_second']:,.0f}" if rate else "" for rate in rates)])
        head = [f"tokens/s, {case.replace('-', ' ')}", *(f"decoder of {depth}" for depth in depths)]
        shares = []
        for part, label in (("encoder", "encoder"), ("softmax", "vocabulary scores")):
            share = [f"{100 * timed[part, 0]['seconds'] / timed['feedback', d]['seconds']:.0f}%" for d in depths]
            shares.append([f"share of Feedback's time: {label}", *share])
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
        *grid(["speed ratio", "median", "range over rounds"], rows),
        *("", f"{source(records)}; medians of {rounds} interleaved rounds, spread up to {worst:.2f}."),
    ]


def staircase(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] == "staircase"]
    if not records:
        return [NOT_MEASURED.format("staircase")]
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
        *grid([*head, "time in the paper (GPU)", "fast engine over reference"], rows),
        *("", f"{source(records)}; medians of {rounds} rounds, spread up to {worst:.2f}."),
    ]


def scaling(records: list[Record]) -> list[str]:
    if not plot.FIGURE.exists():
        return [NOT_MEASURED.format("scaling` and `python -m bench plot")]
    image = f"![Time per token by stream position, memory, batch size and threads](pictures/{plot.FIGURE.name})"
    return [image, "", f"{source(records)}; spread up to {max_spread(records):.2f} of the median."]


def serve(records: list[Record]) -> list[str]:
    lines: list[str] = []
    results = by_case([record for record in records if record["case"] != "memory"])
    if results:
        rows = [
            [
                "{layers} layers, width {width}, memory {memory}".format(**case["loop"]),
                f"{case['loop']['tokens_per_second']:,.0f}",
                *(f"{case[clients]['over_loop']:.2f}" for clients in ("1", "4", "16")),
            ]
            for case in results.values()
        ]
        shown = [record for record in records if record["case"] in results]
        rounds, worst = rounds_and_spread(shown, before=5)
        head = [
            "texts of 128 tokens",
            "sequential, no server, tokens/s",
            "1 client over that",
            "4 clients",
            "16 clients",
        ]
        lines += [*grid(head, rows), "", f"{source(shown)}; medians of {rounds} rounds, spread up to {worst:.2f}."]
    memory = [record for record in records if record["case"] == "memory"]
    if memory:
        sizes = ", ".join(f"{record['megabytes']:,} after {record['after']:,}" for record in memory[::2])
        lines += ["", f"Resident memory of a server, in MiB: {sizes} requests. {source(memory)}."]
    return lines


def speculation(records: list[Record]) -> list[str]:
    labels = {"greedy": "greedy", "sampling": "sampling", "transformers": "greedy, by transformers' `generate`"}
    rows = [
        [
            labels[record["case"]],
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
        "method",
        "acceptance rate",
        "tokens per target call",
        "tokens/s",
        "over the target alone",
    ]
    first = records[0]
    sizes = {name: (first[f"{name}_megabytes"], first[f"{name}_bits"]) for name in ("target", "draft")}
    pair = " and ".join(f"{name} {size} MB, {bits:.2f} bits per byte" for name, (size, bits) in sizes.items())
    turns = f"{first['prompts']} prompts of the test split, {first['tokens']} tokens each, interleaved"
    return [
        *grid(head, rows),
        *("", f"{source(records)}; {turns};"),
        f"spread up to {max_spread(records):.2f} of the median. Size and validation loss: {pair}.",
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
    head = ["page of a preset's model", "parameters", "bytes", "tokens/s", "tokens/s with attention"]
    return [*grid(head, rows), "", f"{source(records)}; {records[0]['browser']}, headless, one thread."]


def c_file(records: list[Record]) -> list[str]:
    sizes = ("code_bytes", "parameter_bytes", "state_bytes", "stack_bytes", "tokens", "mistakes", "tokens_per_second")
    rows = [
        [record["target"], record["what"], *(f"{record[size]:,}" for size in sizes)]
        for record in sorted(records, key=lambda record: (C_CASES.index(record["case"]), record["what"]))
    ]
    head = ["machine", "type", "code", "parameters", "state", "stack", "tokens", "mistakes", "tokens/s"]
    return [*grid(head, rows), "", f"{source(records)}; tokens per second of processor time."]


def agents(records: list[Record]) -> list[str]:
    names = {"feedback": "Feedback", "transformer-xl": "Transformer-XL", "lstm": "LSTM"}
    rows = [
        [
            record["case"],
            names.get(record["what"], record["what"]),
            f"{record['parameters']:,}",
            f"{record['loop_frames_per_second']:,}",
            f"{record['loop_feedback_over_this']:.2f}",
            f"{record['learning_feedback_over_this']:.2f}",
            f"{record['playing_feedback_over_this']:.2f}",
        ]
        for record in records
    ]
    head = ["environment", "agent", "parameters", "frames/s", "Feedback over it", "steps only", "rollout only"]
    return [*grid(head, rows), "", f"{source(records)}; medians of {records[0]['rounds']} rounds, interleaved."]


SB3_POLICIES = {
    "feedback": "`MlpMemoryPolicy`, Feedback of width 64",
    "lstm": "`MlpLstmPolicy`, width 64",
    "lstm-256": "`MlpLstmPolicy`, default sizes (width 256)",
}


def sb3(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] in SB3_POLICIES]
    if not records:
        return [NOT_MEASURED.format("rl-memory")]
    rows, curve = [], records[0]["curve"]
    points = (len(curve) // 2, -1)
    for case in dict.fromkeys(record["case"] for record in records):
        runs = [record for record in records if record["case"] == case]
        rows.append(
            [
                SB3_POLICIES[case],
                f"{runs[0]['parameters']:,}",
                *(", ".join(f"{run['curve'][point][1]:.2f}" for run in runs) for point in points),
                ", ".join(f"{run['test_return']:.2f}" for run in runs),
                f"{statistics.median(run['cpu_microseconds_per_frame'] for run in runs):,.0f}",
                f"{runs[0]['state_bytes_per_frame']:,}",
            ]
        )
    head = ["policy", "parameters", *(f"return at {curve[point][0]:,} frames" for point in points), "test return"]
    lines = grid([*head, "CPU time per frame, µs", "stored state per frame, bytes"], rows)
    image = f"![Return against frames](pictures/{plot.SB3_FIGURE.name})"
    return [*lines, "", image, "", f"{source(records)}."]


def stored_states(records: list[Record]) -> list[str]:
    records = [record for record in records if record["case"] == "stored-states"]
    if not records:
        return [NOT_MEASURED.format("rl-memory stored-states")]
    rows = [
        [
            record["what"],
            f"{record['state_bytes_per_frame']:,.1f}",
            record["rollout_microseconds_per_frame"],
            record["learning_microseconds_per_frame"],
        ]
        for record in records
    ]
    epochs, rounds = records[0]["epochs"], records[0]["rounds"]
    head = ["states of a rollout", "stored, bytes per frame", "rollout, µs per frame", f"{epochs} epochs, µs per frame"]
    return [*grid(head, rows), "", f"{source(records)}; CPU times, medians of {rounds} interleaved rounds."]


# Section name in the markers -> benchmark and table function.
SECTIONS: dict[str, tuple[str, Callable[[list[Record]], list[str]]]] = {
    "machine": ("machine", machine),
    "speed": ("speed", speed),
    "limit": ("limit", limit),
    "profile": ("profile", profile),
    "memory": ("memory", memory),
    "state": ("memory", state),
    "decode": ("decode", decode),
    "translate": ("translate", translate),
    "schedules": ("schedules", schedules),
    "staircase": ("staircase", staircase),
    "scaling": ("scaling", scaling),
    "serve": ("serve", serve),
    "speculation": ("speculation", speculation),
    "browser": ("browser", browser),
    "c": ("c", c_file),
    "agents": ("agents", agents),
    "sb3": ("rl-memory", sb3),
    "stored-states": ("rl-memory", stored_states),
}


def section(name: str) -> str:
    measurement, show = SECTIONS[name]
    records = newest_by_case(measurement)
    return "\n".join(show(records) if records else [NOT_MEASURED.format(measurement)])


def fill(text: str) -> str:
    """Return a page with the text between its markers regenerated."""
    for name in SECTIONS:
        start, end = f"<!-- {name}: made by `python -m bench table` -->", f"<!-- end of {name} -->"
        if start in text:
            before, _, rest = text.partition(start)
            _, end_found, after = rest.partition(end)
            if not end_found:
                raise ValueError(f"section '{name}' has no end marker: {end}")
            text = f"{before}{start}\n{section(name)}\n{end}{after}"
    return text


def write() -> None:
    for page in PAGES:
        path: Path = ROOT / page
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
