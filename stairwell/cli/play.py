"""`stairwell play`: watch an agent in the terminal, or as a GIF."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from stairwell.cli.app import AsJson, Device, Quiet, app, output_option, result_text, say, strict_json
from stairwell.cli.help import USE


@app.command(rich_help_panel=USE)
def play(
    run: Annotated[Path, typer.Argument(help="Run folder, or name of a pretrained agent.")],
    episodes: Annotated[int, typer.Option(help="Number of episodes.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the environment and of the actions.", min=0)] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Take the most probable action instead of sampling.")
    ] = False,
    gif: Annotated[Path | None, output_option("GIF file to write.")] = None,
    fps: Annotated[float, typer.Option(help="Frames per second.", min=0.1, max=1000)] = 8.0,
    quiet: Quiet = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Run a trained agent: show its actions and its attention, then print its mean return."""
    from stairwell import outputs
    from stairwell.rl.evaluation import EpisodeStats
    from stairwell.rl.render import GIF, RenderedStep, compose_image, render_episodes, to_ansi, write_gif
    from stairwell.rl.task import RLTask
    from stairwell.runs.families import check_family
    from stairwell.runs.load import load

    outputs.check_all(("--gif", gif, GIF))
    agent, task = load(run, device)
    check_family(task.family, "rl", "play")
    assert isinstance(task, RLTask)
    stats, images, lines = EpisodeStats(), [], 0
    live = sys.stderr.isatty() and not quiet and not as_json

    def show(frame: RenderedStep, lines: int) -> int:
        """Overwrite the last frame in the terminal. Return the number of lines."""
        text = f"episode {frame.episode + 1}, step {frame.step}: {frame.action}, reward {frame.reward:.3g}, "
        text += f"return {frame.episode_return:.3g}, value {frame.value:.3g}"
        if frame.image is None:
            text += f"; observation {frame.observation}"
        if frame.image is not None or frame.attention:
            text = f"{to_ansi(compose_image(frame), shutil.get_terminal_size().columns - 1)}\n{text}"
        up = f"\x1b[{lines}F\x1b[J" if lines else ""
        print(up + text, file=sys.stderr, flush=True)
        time.sleep(1 / fps)
        return text.count("\n") + 1

    for frame in render_episodes(agent, task, episodes, seed, deterministic, stats):
        if gif is not None:
            images.append(compose_image(frame, labels=True))
        if live:
            lines = show(frame, lines)
        elif frame.done and not quiet:
            say(f"episode {frame.episode + 1}: return {frame.episode_return:.4g} in {frame.step} steps")
    if gif is not None:
        write_gif(gif, images, fps)
    result = {"run": str(run), "seed": seed, **stats.scores()}
    print(strict_json(result) if as_json else result_text(result))
