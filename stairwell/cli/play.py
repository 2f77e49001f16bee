"""`stairwell play`: watch an agent, in the terminal or as a GIF."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from stairwell.cli.app import AsJson, Device, Quiet, app, output_option, result_text, say, strict_json


@app.command()
def play(
    run: Annotated[Path, typer.Argument(help="the run folder of an agent")],
    episodes: Annotated[int, typer.Option(help="how many episodes to play", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="the same seed plays the same episodes", min=0)] = 0,
    likeliest: Annotated[
        bool, typer.Option("--likeliest", help="always the likeliest action, in place of a drawn one")
    ] = False,
    gif: Annotated[Path | None, output_option("write the episodes as a GIF")] = None,
    rate: Annotated[float, typer.Option(help="frames a second", min=0.1)] = 8.0,
    quiet: Quiet = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Let a trained agent play: what it does and what it attends to, then its mean return with its spread."""
    from stairwell import outputs
    from stairwell.rl.episodes import Played
    from stairwell.rl.render import GIF, Shown, as_text, beside, frames, write_gif
    from stairwell.rl.task import Reinforcement
    from stairwell.runs.families import check_kind
    from stairwell.runs.launch import load

    outputs.check_all(("--gif", gif, GIF))
    agent, task = load(run, device)
    check_kind(task.kind, "agent", "play")
    assert isinstance(task, Reinforcement)
    played, pictures, drawn = Played(), [], 0
    live = sys.stderr.isatty() and not quiet and not as_json

    def show(frame: Shown, lines: int) -> int:
        """Draw over what was drawn before; how many lines there are now."""
        words = f"episode {frame.episode + 1}, step {frame.step}: {frame.action}, reward {frame.reward:.3g}, "
        words += f"return {frame.earned:.3g}, expects {frame.value:.3g}"
        if frame.picture is None:
            words += f"; it saw {frame.observed}"
        to_see = frame.picture is not None or frame.attention
        text = f"{as_text(beside(frame), shutil.get_terminal_size().columns - 1)}\n{words}" if to_see else words
        up = f"\x1b[{lines}F\x1b[J" if lines else ""
        print(up + text, file=sys.stderr, flush=True)
        time.sleep(1 / rate)
        return text.count("\n") + 1

    for frame in frames(agent, task, episodes, seed, likeliest, played):
        if gif is not None:
            pictures.append(beside(frame))
        if live:
            drawn = show(frame, drawn)
        elif frame.over and not quiet:
            say(f"episode {frame.episode + 1}: return {frame.earned:.4g} in {frame.step} steps")
    if gif is not None:
        write_gif(gif, pictures, rate)
    result = {"run": str(run), "seed": seed, **played.scores()}
    print(strict_json(result) if as_json else result_text(result))
