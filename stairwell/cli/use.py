"""Commands on what is trained: `report`, `generate`, `export`, `serve`; about this installation: `info`, `bench`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from stairwell.cli.app import MOST_SEED, Device, app, output_option, say
from stairwell.errors import UserError

MOST_ROWS = 4096  # of a server; more is a typing error


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, compared on one page")],
    out: Annotated[Path, output_option("the page to write; the pictures go beside it")] = Path("report.html"),
    inside: Annotated[
        bool, typer.Option("--inside", help="follow the memory along a stream without end, to see whether it drifts")
    ] = False,
) -> None:
    """Make one HTML page (and PNGs) of trainings: curves, scores, beliefs, attention, and how far they hold."""
    from stairwell.report import check_report, gather, summary, write_html, write_png, write_stream_pngs
    from stairwell.report.drift import measure_drift

    check_report(out, out.parent / f"{out.stem}.png", "--out")
    for run in runs if inside else ():
        measure_drift(run)
    gathered = [gather(run) for run in runs]
    write_html(out, ", ".join(dict.fromkeys(run.title for run in gathered)), gathered, [summary(gathered)], [])
    write_png(out.with_suffix(".png"), gathered)
    write_stream_pngs(out, gathered)
    print(out)


@app.command()
def generate(
    run: Annotated[Path, typer.Argument(help="the run folder of a language model")],
    prompt: Annotated[str, typer.Option(help="the text to go on from; without one, a line end")] = "",
    tokens: Annotated[int, typer.Option(help="how many tokens to write", min=1)] = 500,
    temperature: Annotated[
        float,
        typer.Option(
            help="lower is more predictable: 1 samples from the model's own distribution, 0 takes the likeliest", min=0
        ),
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="choose among so many likeliest tokens only")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="choose among the likeliest tokens that together have this chance")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="above 1: tokens that are among the last 64 become less likely")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="end before this text; may be given several times", show_default=False)
    ] = None,
    samples: Annotated[int, typer.Option(help="so many texts, one after the other, after the same prompt", min=1)] = 1,
    seed: Annotated[int | None, typer.Option(help="the same seed writes the same text", min=0, max=MOST_SEED)] = None,
    save_state: Annotated[
        Path | None,
        output_option("keep the stream in this file, to go on with it another day"),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="go on with a stream that --save-state has kept")] = None,
    device: Device = "auto",
) -> None:
    """Let a trained language model write, token by token as it comes."""
    from stairwell import outputs
    from stairwell.generate import Choice, Writer, load_language_model, read_prompt
    from stairwell.stream import STREAM, Stream

    if samples > 1 and save_state is not None:
        raise UserError("--save-state keeps one stream: use it without --samples")
    outputs.check_all(("--save-state", save_state, STREAM))
    choice = Choice(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty)
    model, vocabulary = load_language_model(run, device)
    if state is not None:
        first = Writer.load(state, model, vocabulary, choice, stop or (), seed)
        if prompt:
            print(first.read(prompt), end="")
    else:
        stream = Stream(model, vocabulary)
        read_prompt(stream, prompt)
        first = Writer(stream, choice, stop or (), seed)
    for number in range(samples):
        writer = first.fork() if samples > 1 else first
        if samples > 1:
            print(f"--- {number + 1} ---")
        for piece in writer.write(tokens):
            print(piece, end="", flush=True)
        if save_state is None:
            print(writer.end())
    if save_state is not None:
        first.save(save_state)


@app.command()
def export(
    runs: Annotated[list[Path], typer.Argument(help="run folders; a page shows several of one task side by side")],
    html: Annotated[
        Path | None,
        output_option("write one HTML file that holds the models and runs them, from the disk"),
    ] = None,
    onnx: Annotated[
        Path | None,
        output_option("write the step of one model, named states in and out, for onnxruntime"),
    ] = None,
    torch_export: Annotated[Path | None, output_option("write the same step as a graph of torch.export")] = None,
    hf: Annotated[
        Path | None,
        output_option("write a folder, new or empty, for Hugging Face's from_pretrained, its tokenizer included"),
    ] = None,
) -> None:
    """Put trained models into other people's hands: one HTML file that runs them, a graph of one step, or a model for
    Hugging Face transformers."""
    from stairwell import outputs
    from stairwell.export import GRAPH, ONNX, PAGE, export_html, export_onnx, export_torch, from_runs
    from stairwell.runs.launch import load

    if not (html or onnx or torch_export or hf):
        raise UserError(
            "say what to write: --html page.html, --onnx model.onnx, --torch-export model.pt2 or --hf folder"
        )
    if len(runs) > 1 and (onnx or torch_export or hf):
        raise UserError("only a page holds several models: give one run")
    outputs.check_all(
        ("--html", html, PAGE),
        ("--onnx", onnx, ONNX),
        ("--torch-export", torch_export, GRAPH),
        ("--hf", hf, outputs.FOLDER),
    )
    if html is not None:
        size = export_html(from_runs(runs), html)
        print(f"{html}: {size / 1e6:.1f} MB; open it in any browser")
    if onnx is not None or torch_export is not None:
        model, task = load(runs[0], "cpu", "reference")
    if onnx is not None:
        names = export_onnx(model, onnx, task.vocabularies.get("text"))
        print(f"{onnx}: {', '.join(names['inputs'])} -> {', '.join(names['outputs'])}")
    if torch_export is not None:
        export_torch(model, torch_export)
        print(torch_export)
    if hf is not None:
        from stairwell.hf import export_hf

        loader = export_hf(runs[0], hf)
        print(f"{hf}: import stairwell.hf, then {loader}.from_pretrained('{hf}')")


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="the run folder of a language model")],
    host: Annotated[str, typer.Option(help="the address to listen on; 127.0.0.1 is this machine alone")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port to listen on; 0 takes one that is free", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="a file with a bearer token, which every request must then carry")
    ] = None,
    rows: Annotated[
        int, typer.Option(help="texts that are written at a time, in one batch", min=1, max=MOST_ROWS)
    ] = 16,
    waiting: Annotated[
        int, typer.Option(help="texts that may wait for a place; more are told to come back", min=0)
    ] = 64,
    max_clients: Annotated[int, typer.Option(help="requests that are answered at a time", min=1)] = 256,
    max_prompt: Annotated[int, typer.Option(help="tokens of a prompt", min=1)] = 16_384,
    max_tokens: Annotated[int, typer.Option(help="tokens to write in one text", min=1)] = 4_096,
    max_seconds: Annotated[float, typer.Option(help="of one request, which then ends with what there is", min=1)] = 300,
    max_states: Annotated[int, typer.Option(help="states that are kept at a time", min=0)] = 256,
    max_state_bytes: Annotated[int, typer.Option(help="of all states together", min=0)] = 1_000_000_000,
    state_seconds: Annotated[float, typer.Option(help="a state that nobody asked for is forgotten", min=1)] = 3_600,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="another name that the server answers to in a Host header; '*' is any"),
    ] = None,
    device: Device = "auto",
) -> None:
    """Serve a trained language model: OpenAI's completions, and states that stay on the server."""
    from stairwell.serve.requests import Limits
    from stairwell.serve.running import serve as serve_run

    limits = Limits(
        prompt=max_prompt, tokens=max_tokens, seconds=max_seconds, clients=max_clients,
        states=max_states, states_bytes=max_state_bytes, state_seconds=state_seconds,
    )  # fmt: skip
    serve_run(run, host, port, token_file, device, rows, waiting, limits, allow_host or (), say)


@app.command()
def info() -> None:
    """Tell versions, device, engine and threads."""
    from stairwell.runs.launch import information

    for name, value in information().items():
        print(f"{name:12} {value}")


# The measurements have a help of their own, which lists them with their cases.
@app.command("bench", add_help_option=False, context_settings={"ignore_unknown_options": True})
def bench_command(
    arguments: Annotated[list[str] | None, typer.Argument(help="what to measure, then cases", metavar="NAME")] = None,
) -> None:
    """Measure speed and memory, from a checkout of the sources; `--help` lists what there is."""

    for place in (Path.cwd(), Path(__file__).resolve().parents[2]):
        # A folder of this name beside the package: nobody else's is run.
        if (place / "bench/__main__.py").is_file() and (place / "stairwell/__init__.py").is_file():
            sys.path.insert(0, str(place))
            importlib.import_module("bench.__main__").run(arguments or [])
            return
    raise UserError("the measurements come with the sources: clone them and run `stairwell bench` in that folder")
