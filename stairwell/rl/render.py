"""An agent at play, frame by frame: what it sees from above, what it does, and what in its memory it attends to.

for frame in frames(agent, task, episodes=3, seed=0):
    picture = beside(frame)        # (height, width, 3) uint8

Attention is drawn as one strip a layer, averaged over heads, the newest slot on the left, brighter for more.
Letters: L layers, S slots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from stairwell.errors import UserError
from stairwell.models import inspect
from stairwell.outputs import Kind, marked, write_output

from .agent import Agent, Inputs
from .environments import Array
from .environments.batched import uniform
from .episodes import Episode, Played
from .rollouts import as_tensors, deciding
from .rows import BrokenEnvironment, Rows
from .task import Reinforcement

GROUND, INK = np.array([24, 26, 31]), np.array([255, 196, 61])
GAP = 8  # pixels
FEW = 12  # numbers of an observation in words
GIF = Kind("a GIF of stairwell play", marked(b"\x21\xfe\x09stairwell"))  # a comment, as GIF has them


class Shown(NamedTuple):
    episode: int
    step: int
    action: str
    reward: float
    earned: float  # since the episode began
    value: float
    over: bool
    observed: str  # the observation in short, for those that have no picture
    picture: Array | None  # (height, width, 3) uint8, before the action
    attention: list[Array]  # one a layer: (slots,), the newest first


def frames(
    agent: Agent, task: Reinforcement, episodes: int, seed: int, likeliest: bool = False, played: Played | None = None
) -> Iterator[Shown]:
    """Every frame of so many episodes, one after the other; returns and lengths go to `played`."""
    rows = drawable(task, seed)
    try:
        with deciding(agent):
            yield from _frames(agent, rows, episodes, seed, likeliest, task.config.longest, played)
    finally:
        rows.close()


def drawable(task: Reinforcement, seed: int) -> Rows:
    """One row, with pictures where the environment can make some."""
    rows = task.open(range(1), seed)
    if rows.drawn_with:
        rows.close()
        rows = task.open(range(1), seed, **rows.drawn_with)
    return rows


def _frames(
    agent: Agent, rows: Rows, episodes: int, seed: int, likeliest: bool, longest: int, played: Played | None
) -> Iterator[Shown]:
    device, names = next(agent.parameters()).device, rows.action_names
    now = Inputs(as_tensors(rows.begin()), agent.no_action(1).cpu(), torch.zeros(1))
    state, start = agent.init_state(1), torch.ones(1, 1, dtype=torch.bool, device=device)
    number, episode, time = 0, Episode(), 0
    while number < episodes:
        picture = rows.render(0)
        with torch.no_grad(), inspect(agent) as seen:
            said, state = agent(now.map(lambda values: values[:, None].to(device)), state, start)
        policy = said.policy[:, 0]
        noise = torch.from_numpy(uniform(seed, range(1), time, agent.actions.noises)).to(device)
        action = agent.actions.likeliest(policy) if likeliest else agent.actions.sample(policy, noise)
        done = agent.actions.to_environment(action)
        frame = rows.step(done)
        over = bool(frame.terminated[0] or frame.truncated[0])
        reward, time = float(frame.rewards[0]), time + 1
        episode.add(reward, bool(frame.idle[0]))
        if episode.length > longest:
            raise BrokenEnvironment(f"an episode has not ended after {longest:,} steps")
        if not frame.idle[0]:
            looks = [weights[0, :, -1].mean(0).cpu().numpy() for weights in seen.attention]
            word = names[int(done[0])] if names else np.array2string(np.asarray(done[0]), precision=2)
            value, saw = float(said.value[0, 0]), in_short(now)
            yield Shown(number, episode.length, word, reward, episode.earned, value, over, saw, picture, looks)
        if over:
            if played is not None:
                played.episodes.append(episode)
            number, episode = number + 1, Episode()
        now = Inputs(as_tensors(frame.observations), action.cpu(), torch.from_numpy(frame.rewards))
        start = torch.from_numpy(frame.start)[:, None].to(device)


def in_short(inputs: Inputs) -> str:
    """An observation of one row in words; numbers beyond a handful are left out."""
    words = []
    for path, values in inputs.observation.items():
        name, numbers = path.partition(".")[2], values[0].flatten().tolist()
        listed = " ".join(f"{number:.3g}" for number in numbers[:FEW]) + (" ..." if len(numbers) > FEW else "")
        words.append(f"{name} {listed}" if name else listed)
    return "; ".join(words)


def beside(shown: Shown) -> Array:
    """The picture with strips of attention beside it."""
    picture = np.zeros((0, 0, 3), np.uint8) if shown.picture is None else shown.picture
    strips = [strip(weights) for weights in shown.attention]
    blocks = [block for block in (picture, stacked(strips)) if block.size]
    if not blocks:
        raise UserError("there is nothing to draw: the environment has no picture, and this core no attention")
    # A wide picture has the strips below it.
    below = picture.size and picture.shape[1] > 2 * picture.shape[0]
    return stacked(blocks) if below else stacked([block.swapaxes(0, 1) for block in blocks]).swapaxes(0, 1)


def strip(weights: Array, size: int = 12) -> Array:
    """One row of squares, (size, slots * size, 3)."""
    strength = np.clip(weights / max(float(weights.max(initial=0)), 1e-6), 0, 1)
    squares = (GROUND + strength[:, None] * (INK - GROUND)).astype(np.uint8)  # (slots, 3)
    made = np.repeat(np.repeat(squares[None], size, 0), size, 1)
    made[:, ::size] = 0
    return made


def stacked(blocks: Sequence[Array]) -> Array:
    """One below the other, with a gap."""
    if not blocks:
        return np.zeros((0, 0, 3), np.uint8)
    width = max(block.shape[1] for block in blocks)
    parts = []
    for block in blocks:
        padded = np.zeros((block.shape[0] + GAP, width, 3), np.uint8)
        padded[: block.shape[0], : block.shape[1]] = block
        parts.append(padded)
    return np.concatenate(parts)[:-GAP]


def as_text(picture: Array, columns: int) -> str:
    """A picture for a terminal with colors: two pixels a character, one above the other."""
    height, width, _ = picture.shape
    scale = max(1, -(-width // columns))
    small = picture[scale // 2 :: scale, scale // 2 :: scale]
    if len(small) % 2:
        small = np.concatenate([small, np.zeros_like(small[:1])])
    lines = []
    for upper, lower in zip(small[::2], small[1::2]):
        cells = [
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper.tolist(), lower.tolist())
        ]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def write_gif(path: str | os.PathLike[str], pictures: Sequence[Array], rate: float) -> None:
    """All frames in one file, `rate` a second."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("pillow is not installed, which writes GIFs: pip install 'stairwell[rl]'") from None
    height = max(picture.shape[0] for picture in pictures)
    width = max(picture.shape[1] for picture in pictures)
    images = []
    for picture in pictures:
        whole = np.zeros((height, width, 3), np.uint8)
        whole[: picture.shape[0], : picture.shape[1]] = picture
        images.append(Image.fromarray(whole))
    options: dict[str, Any] = {"save_all": True, "append_images": images[1:], "duration": 1000 / rate, "loop": 0}
    write_output(path, GIF, lambda temporary: images[0].save(temporary, format="GIF", comment=b"stairwell", **options))
