"""Commands that use trained models, `report`, `generate`, `export` and `serve`, and `info` about the installation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stairwell.cli.app import MAX_SEED, SAMPLING, Device, WeightsName, app, naming, output_option, say
from stairwell.cli.help import MAINTAIN, USE
from stairwell.errors import UserError

if TYPE_CHECKING:
    from stairwell.decode.weights import Weights
    from stairwell.outputs import OutputType
    from stairwell.tasks import Task

MAX_BATCH = 4096  # of a server; more is a typing error


@app.command(rich_help_panel=USE)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders or pretrained models, compared on one page.")],
    out: Annotated[Path, output_option("HTML page to write; figures go to the same folder.")] = Path("report.html"),
    inside: Annotated[bool, typer.Option("--inside", help="Also analyze the memory along an endless stream.")] = False,
) -> None:
    """Write one HTML page (and PNGs) of runs: learning curves, scores, predictions, attention, long-stream results."""
    from stairwell.report import check_report, differences, gather, summary, write_extra_pngs, write_html, write_png
    from stairwell.report.memory_analysis import analyze_run

    check_report(out, out.parent / f"{out.stem}.png", "--out")
    for run in runs if inside else ():
        analyze_run(run)
    gathered = [gather(run) for run in runs]
    tables = [summary(gathered), *([table] if (table := differences(gathered)) is not None else [])]
    write_html(out, ", ".join(dict.fromkeys(run.title for run in gathered)), gathered, tables, [])
    write_png(out.with_suffix(".png"), gathered)
    write_extra_pngs(out, gathered)
    for one in gathered:
        for text in one.outdated:
            say(f"{one.folder}: {text}")
    print(out.resolve())


@app.command(rich_help_panel=USE)
def generate(
    run: Annotated[Path, typer.Argument(help="Run folder, or name of a pretrained language model.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.", show_default="a newline")] = "",
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the generated text.")] = False,
    tokens: Annotated[int, typer.Option(help="Number of tokens to generate.", min=1)] = 500,
    temperature: Annotated[
        float,
        typer.Option(help="Sampling temperature; 0 is greedy.", min=0),
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most probable tokens.", show_default="all")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the most probable tokens whose probabilities sum to p.", show_default="1"),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Repetition penalty; above 1, the last 64 tokens become less probable.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text; may be repeated.", show_default=False)
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of texts to generate from the prompt.", min=1)] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of sampling.", min=0, max=MAX_SEED, show_default="random")
    ] = None,
    save_state: Annotated[
        Path | None,
        output_option("File to save the state of the stream to, to continue it later."),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Continue a stream saved with --save-state.")] = None,
    weights: WeightsName = "float32",
    device: Device = "auto",
) -> None:
    """Generate text with a trained language model."""
    from stairwell import outputs
    from stairwell.decode import Sampling
    from stairwell.generate import TextGenerator, load_language_model, read_prompt
    from stairwell.stream import STREAM, Stream

    if samples > 1 and save_state is not None:
        raise UserError("--save-state saves one stream; leave out --samples")
    outputs.check_all(("--save-state", save_state, STREAM))
    with naming(SAMPLING):
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty)
    model, vocabulary = load_language_model(run, device, cast("Weights", weights))
    held = ""  # text that a saved stream had held back, printed once
    if state is not None:
        with naming(SAMPLING):
            first = TextGenerator.load(state, model, vocabulary, sampling, stop or (), seed)
        if prompt:
            with naming({}, "--prompt: "):
                held = first.feed(prompt)
    else:
        stream = Stream(model, vocabulary)
        with naming({}, "--prompt: "):
            read_prompt(stream, prompt)
        with naming(SAMPLING):
            first = TextGenerator(stream, sampling, stop or (), seed)
    print(held, end="")
    for number in range(samples):
        generator = first.fork() if samples > 1 else first
        if samples > 1:
            print(f"--- {number + 1} ---")
        if echo:
            print(prompt.encode("utf-8", "replace").decode("utf-8"), end="")
        for text in generator.generate(tokens):
            print(text, end="", flush=True)
        if save_state is None:
            print(generator.flush())
    if save_state is not None:
        first.save(save_state)


@app.command(rich_help_panel=USE)
def label(
    run: Annotated[Path, typer.Argument(help="Run folder of a model of labeled data.")],
    tokens: Annotated[Path, typer.Argument(help="File of tokens: one sequence per line, as in training.")],
    weights: WeightsName = "float32",
    device: Device = "auto",
) -> None:
    """Print the predicted labels of new sequences: one line per sequence, one label per token."""
    from stairwell.runs.labels import label_sequences

    for line in label_sequences(run, tokens, device, cast("Weights", weights)):
        print(line)


@app.command(rich_help_panel=USE)
def export(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders or pretrained models; an HTML page can show several runs of one task."),
    ],
    html: Annotated[
        Path | None,
        output_option("HTML file that contains the models and runs them offline; agents play in it."),
    ] = None,
    title: Annotated[str, typer.Option(help="With --html: title of the page.", show_default="name of the data")] = "",
    onnx: Annotated[
        Path | None,
        output_option(
            "ONNX graph of one decoding step; states are named inputs and outputs. For a translator or summarizer: new "
            "folder with encoder.onnx and decoder.onnx."
        ),
    ] = None,
    torch_export: Annotated[Path | None, output_option("The same as torch.export graphs (.pt2).")] = None,
    hf: Annotated[
        Path | None,
        output_option("New folder for Hugging Face's from_pretrained, with tokenizer and model card."),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            help="With --html: recorded episodes of an agent whose environment is not built into stairwell.",
            min=1,
            max=20,
            show_default="3",
        ),
    ] = None,
    c: Annotated[
        Path | None,
        output_option("C99 source with the parameters and one step; its header (.h) is written next to it."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="With --c: prefix of the names in the C file.", show_default="name of the C file"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="With --c, or --html of a translator or summarizer: data type of the matrices.",
            metavar="float32|int8",
            show_default="float32",
        ),
    ] = None,
) -> None:
    """Export trained models: an HTML page that runs them, ONNX, torch.export, Hugging Face transformers, or C. At least
    one of the formats is required: --html, --onnx, --torch-export, --hf or --c.

    \b
    Examples:
      stairwell export runs/mine --html page.html
      stairwell export s5-feedback --c s5.c --weights int8
    """
    from stairwell import outputs
    from stairwell.export import GRAPH, ONNX, PAGE
    from stairwell.rl.task import RLTask
    from stairwell.runs.load import config_of, load, open_run

    if not (html or onnx or torch_export or hf or c):
        raise UserError(
            "choose an output: --html page.html, --onnx model.onnx, --torch-export model.pt2, --c model.c, --hf folder"
        )
    if len(runs) > 1 and (onnx or torch_export or hf or c):
        raise UserError("only an HTML page can contain several models; give one run")
    pairs = config_of(open_run(runs[0])).family.name == "pairs"  # a translator or summarizer
    if c is None and name is not None:
        raise UserError("--name is only read with --c")
    if c is None and weights is not None and not (html and pairs):
        raise UserError("--weights is only read with --c, or with --html of a translator or summarizer")
    outputs.check_all(
        ("--html", html, PAGE),
        ("--onnx", onnx, outputs.FOLDER if pairs else ONNX),
        ("--torch-export", torch_export, outputs.FOLDER if pairs else GRAPH),
        ("--hf", hf, outputs.FOLDER),
        *c_outputs(c),
    )
    model, task = load(runs[0], "cpu", "reference")
    if hf is not None and isinstance(task, RLTask):
        raise UserError("--hf: Hugging Face transformers has no agents; use --onnx, --torch-export or --html")
    if episodes is not None and html is None:
        raise UserError("--episodes is only read with --html")
    if html is not None:
        size = export_page(runs, task, html, title, episodes, weights or "float32")
        print(f"{html}: {size / 1e6:.1f} MB; open it in any browser")
    if onnx is not None or torch_export is not None:
        export_graphs(runs[0], model, task, onnx, torch_export)
    if hf is not None:
        from stairwell.hf import export_hf

        loader = export_hf(runs[0], hf)
        print(f"{hf}: import stairwell.hf, then {loader}.from_pretrained('{hf}')")
    if c is not None:
        write_c(runs[0], c, name, weights or "float32")


def c_outputs(path: Path | None) -> list[tuple[str, Path, OutputType]]:
    """Return the C file and its header as outputs of the command."""
    from stairwell.export.c import C_FILE, header_path

    if path is None:
        return []
    with naming({}, "--c "):
        return [("--c", path, C_FILE), ("--c", header_path(path), C_FILE)]


def write_c(run: Path, path: Path, name: str | None, weights: str) -> None:
    """Write a run as a C file and its header, and print their sizes."""
    from stairwell.export.c import export_c, header_path
    from stairwell.runs.load import load

    model, task = load(run, "cpu", "reference")
    with naming({"name": "--name", "weights": "--weights"}):
        sizes = export_c(model, path, task, name, cast("Weights", weights))
    print(
        f"{path}, {header_path(path)}: {sizes.parameters:,} parameters in {sizes.parameter_bytes:,} bytes, a state of "
        f"{sizes.state_bytes:,} bytes per stream"
    )


def export_page(runs: list[Path], task: Task, path: Path, title: str, episodes: int | None, weights: str) -> int:
    """Write the HTML page of the runs. Return its size in bytes."""
    from stairwell import export
    from stairwell.rl.task import RLTask
    from stairwell.tasks.pair_task import PairTask

    if isinstance(task, RLTask):
        return export.export_agent_html(export.agents_of_runs(runs), path, title, episodes)
    if episodes is not None:
        raise UserError("--episodes: only the page of an agent shows recorded episodes; leave it out")
    if isinstance(task, PairTask):
        with naming({"weights": "--weights"}):
            translators = export.translators_of_runs(runs)
            return export.export_translation_html(translators, path, title, cast("Weights", weights))
    return export.export_html(export.from_runs(runs), path, title)


def export_graphs(run: Path, model: Any, task: Task, onnx: Path | None, torch_export: Path | None) -> None:
    """Export one step, or an encoder and one decoding step, and print the names of inputs and outputs."""
    from stairwell import export
    from stairwell.rl.task import RLTask
    from stairwell.runs.load import find_result
    from stairwell.tasks.file_task import vocabularies
    from stairwell.tasks.pair_task import PairTask
    from stairwell.train.translator import SEARCH, load_search

    graphs: dict[Path, dict[str, list[str]]] = {}
    if isinstance(task, PairTask):
        if onnx is not None:
            search = load_search(find_result(run, SEARCH).parent, task)
            named = export.export_seq2seq_onnx(model, onnx, task, search)
            graphs |= {onnx / f"{name}.onnx": names for name, names in named.items()}
        if torch_export is not None:
            named = export.export_seq2seq_torch(model, torch_export)
            graphs |= {torch_export / f"{name}.pt2": names for name, names in named.items()}
    elif isinstance(task, RLTask):
        if onnx is not None:
            graphs[onnx] = export.export_agent_onnx(model, task, onnx)
        if torch_export is not None:
            graphs[torch_export] = export.export_agent_torch(model, task, torch_export)
    else:
        if onnx is not None:
            of_task = vocabularies(task)
            graphs[onnx] = export.export_onnx(model, onnx, of_task.get("text") or of_task.get("tokens"))
        if torch_export is not None:
            graphs[torch_export] = export.export_torch(model, torch_export)
    for path, names in graphs.items():
        print(f"{path}: {', '.join(names['inputs'])} -> {', '.join(names['outputs'])}")


@app.command(rich_help_panel=USE)
def serve(
    run: Annotated[Path, typer.Argument(help="Run folder, or name of a pretrained language model.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 127.0.0.1 accepts connections from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a bearer token that every request must send.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences decoded at once, in one batch.", min=1, max=MAX_BATCH)] = 16,
    waiting: Annotated[int, typer.Option(help="Sequences that may wait; further requests get 429.", min=0)] = 64,
    max_clients: Annotated[int, typer.Option(help="Concurrent requests.", min=1)] = 256,
    max_prompt: Annotated[int, typer.Option(help="Maximum tokens of a prompt.", min=1)] = 16_384,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of a completion.", min=1)] = 4_096,
    max_seconds: Annotated[float, typer.Option(help="Time limit of a request, in seconds.", min=1)] = 300,
    max_states: Annotated[int, typer.Option(help="Maximum number of saved states.", min=0)] = 256,
    max_state_bytes: Annotated[
        int, typer.Option(help="Maximum total size of the saved states, in bytes.", min=0)
    ] = 1_000_000_000,
    state_seconds: Annotated[float, typer.Option(help="Idle seconds after which a state is evicted.", min=1)] = 3_600,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Additional host name to accept in the Host header; '*' accepts any."),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(help="Jinja template that formats chat messages as a prompt, as in Hugging Face."),
    ] = None,
    request_log: Annotated[
        bool, typer.Option("--request-log/--no-request-log", help="Print one line per request to standard error.")
    ] = True,
    weights: WeightsName = "float32",
    device: Device = "auto",
) -> None:
    """Serve a trained language model with OpenAI-compatible completion and chat APIs and saved states."""
    from stairwell.serve.limits import Limits
    from stairwell.serve.run_server import serve as serve_run

    limits = Limits(
        prompt_tokens=max_prompt, completion_tokens=max_tokens, seconds=max_seconds, clients=max_clients,
        states=max_states, total_state_bytes=max_state_bytes, state_seconds=state_seconds,
    )  # fmt: skip
    serve_run(
        run, host, port, token_file, device, batch, waiting, limits, allow_host or (), say, chat_template,
        say if request_log else None, cast("Weights", weights),
    )  # fmt: skip


@app.command(rich_help_panel=MAINTAIN)
def info() -> None:
    """Print versions, device, engine and number of threads."""
    from stairwell.runs.device import information

    for name, value in information().items():
        print(f"{name:12} {value}")
