"""Rendered episodes of an agent: image, action, reward and attention of every step.

for step in render_episodes(agent, task, episodes=3, seed=0):
    image = compose_image(step)        # (height, width, 3) uint8

Attention is drawn as one strip per layer, averaged over heads, newest memory position on the right as in reports and
exported pages, brighter for more. `compose_image(step, labels=True)` adds labels and enlarges small images; without an
image it draws the observation as text.
"""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from stairwell.errors import MissingPackage, UserError
from stairwell.models import inspect
from stairwell.outputs import OutputType, contains_bytes, write_output

from .acting import eval_mode, first_inputs, sample_actions, to_tensors
from .agent import Agent, AgentInputs
from .environments import Array
from .evaluation import Episode, EpisodeStats
from .task import RLTask
from .vector_env import BrokenEnvironment, VectorEnv

BACKGROUND, HIGHLIGHT = np.array([24, 26, 31]), np.array([255, 196, 61])
GAP = 8  # pixels between images
STRIP_TITLE = ("attention to memory,", "newest position right")
MIN_IMAGE = 240  # pixels of the longer side of a labeled image; smaller ones are enlarged
TEXT_COLUMNS = 40  # characters per line of an observation
LINE_HEIGHT, TEXT_COLOR = 14, (225, 225, 225)  # of labels
MAX_LISTED = 12  # numbers of an observation in a summary
GIF = OutputType("a GIF of stairwell play", contains_bytes(b"\x21\xfe\x09stairwell"))  # in a GIF comment


class RenderedStep(NamedTuple):
    episode: int
    step: int
    action: str
    reward: float
    episode_return: float  # up to this step
    value: float  # expected discounted return, in rewards of the environment
    done: bool
    observation: str  # a summary, for environments without images
    image: Array | None  # (height, width, 3) uint8, before the action
    attention: list[Array]  # one per layer: (positions,), newest first


def render_episodes(
    agent: Agent,
    task: RLTask,
    episodes: int,
    seed: int,
    deterministic: bool = False,
    stats: EpisodeStats | None = None,
) -> Iterator[RenderedStep]:
    """Yield every step of the episodes. Finished episodes are added to `stats`."""
    env = make_render_env(task, seed)
    try:
        with eval_mode(agent):
            yield from _render_episodes(
                agent, env, episodes, seed, deterministic, task.config.max_episode_steps, stats or EpisodeStats()
            )
    finally:
        env.close()


def make_render_env(task: RLTask, seed: int) -> VectorEnv:
    """Return a vector environment of size 1 that renders images if it can."""
    env = task.make_env(range(1), seed)
    if env.render_options:
        env.close()
        env = task.make_env(range(1), seed, **env.render_options)
    return env


def _render_episodes(
    agent: Agent,
    env: VectorEnv,
    episodes: int,
    seed: int,
    deterministic: bool,
    max_episode_steps: int,
    stats: EpisodeStats,
) -> Iterator[RenderedStep]:
    device, action_dist = next(agent.parameters()).device, agent.action_dist
    inputs = first_inputs(agent, env.reset())
    state, start = agent.init_state(1), torch.ones(1, 1, dtype=torch.bool, device=device)
    finished, episode = 0, Episode()
    for t in itertools.count():
        if finished == episodes:
            return
        image = env.render(0)
        with torch.no_grad(), inspect(agent) as recorder:
            output, state = agent(inputs.map(lambda values: values[:, None].to(device)), state, start)
        policy = output.policy[:, 0]
        action = action_dist.mode(policy) if deterministic else sample_actions(action_dist, policy, seed, range(1), t)
        env_action = action_dist.to_environment(action)
        step = env.step(env_action)
        done, ignored = bool(step.terminated[0] or step.truncated[0]), bool(step.ignored[0])
        reward = float(step.rewards[0])
        episode.add(reward, ignored)
        if episode.length > max_episode_steps:
            raise BrokenEnvironment(f"an episode has not ended after {max_episode_steps:,} steps")
        if not ignored:
            yield RenderedStep(
                episode=finished,
                step=episode.length,
                action=describe_action(env_action[0], env.action_names),
                reward=reward,
                episode_return=episode.return_,
                value=float(output.value[0, 0]) * agent.reward_scale,
                done=done,
                observation=summarize_observation(inputs),
                image=image,
                attention=[weights[0, :, -1].mean(0).cpu().numpy() for weights in recorder.attention],
            )
        if done:
            stats.episodes.append(episode)
            finished, episode = finished + 1, Episode()
        inputs = AgentInputs(to_tensors(step.observations), action.cpu(), torch.from_numpy(step.rewards))
        start = torch.from_numpy(step.start)[:, None].to(device)


def describe_action(action: Array, names: Sequence[str]) -> str:
    if names:
        return names[int(action)]
    text = np.array2string(np.asarray(action), precision=2)
    return text if np.ndim(action) else f"action {text}"


def summarize_observation(inputs: AgentInputs) -> str:
    """Return the observation of one environment as text, with the first few numbers of each leaf."""
    parts = []
    for path, values in inputs.observation.items():
        name, numbers = path.partition(".")[2], values[0].flatten().tolist()
        text = " ".join(f"{number:.3g}" for number in numbers[:MAX_LISTED])
        text += " ..." if len(numbers) > MAX_LISTED else ""
        parts.append(f"{name} {text}" if name else text)
    return "; ".join(parts)


def compose_image(step: RenderedStep, labels: bool = False) -> Array:
    """Return the image with the attention strips on its right, or below a wide image. `labels` names the strips,
    enlarges a small image and draws an observation without an image as text."""
    image = np.zeros((0, 0, 3), np.uint8) if step.image is None else step.image
    if labels:
        image = describe_step(step) if step.image is None else enlarge(step.image)
    strips = [attention_strip(weights) for weights in step.attention]
    if labels and strips:
        named = [(text_image(f"layer {layer}"), strip) for layer, strip in enumerate(strips, start=1)]
        title = stack_images([text_image(line) for line in STRIP_TITLE], 0)
        strips = [title, *(stack_images(pair, 2) for pair in named)]
    blocks = [block for block in (image, stack_images(strips)) if block.size]
    if not blocks:
        raise UserError("there is nothing to draw: the environment renders no images, and this core has no attention")
    below = image.size and image.shape[1] > 2 * image.shape[0]
    return stack_images(blocks) if below else stack_images([block.swapaxes(0, 1) for block in blocks]).swapaxes(0, 1)


def enlarge(image: Array) -> Array:
    """Return an image whose longer side has at least MIN_IMAGE pixels, by repeating pixels."""
    scale = -(-MIN_IMAGE // max(image.shape[:2]))
    return image.repeat(scale, 0).repeat(scale, 1)


def describe_step(step: RenderedStep) -> Array:
    """Return an image of a step's observation, action and reward as text."""
    lines = textwrap.wrap(f"observation {step.observation}", TEXT_COLUMNS)
    lines += [f"step {step.step}: {step.action}", f"reward {step.reward:.3g}, return {step.episode_return:.3g}"]
    text = stack_images([text_image(line) for line in lines], 0)
    return pad_image(text, text.shape[0], max(text.shape[1], MIN_IMAGE))


def attention_strip(weights: Array, size: int = 12) -> Array:
    """Return one square per memory position, the newest on the right: (size, positions * size, 3).

    weights (positions,), newest first"""
    strength = np.clip(weights[::-1] / max(float(weights.max(initial=0)), 1e-6), 0, 1)
    colors = (BACKGROUND + strength[:, None] * (HIGHLIGHT - BACKGROUND)).astype(np.uint8)  # (positions, 3)
    strip = np.repeat(np.repeat(colors[None], size, 0), size, 1)
    strip[:, ::size] = 0
    return strip


def stack_images(images: Sequence[Array], gap: int = GAP) -> Array:
    """Stack images vertically with a gap between them."""
    if not images:
        return np.zeros((0, 0, 3), np.uint8)
    width = max(image.shape[1] for image in images)
    stacked = np.concatenate([pad_image(image, image.shape[0] + gap, width) for image in images])
    return stacked[: len(stacked) - gap]


def pad_image(image: Array, height: int, width: int) -> Array:
    """Pad an image with black below and on the right."""
    padded = np.zeros((height, width, 3), np.uint8)
    padded[: image.shape[0], : image.shape[1]] = image
    return padded


@cache
def text_image(text: str) -> Array:
    """Return a line of text as an image, light on black."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default()
    left, _, right, _ = font.getbbox(text)
    image = Image.new("RGB", (round(right - left) + 2, LINE_HEIGHT))
    ImageDraw.Draw(image).text((1 - left, 0), text, fill=TEXT_COLOR, font=font)
    return np.asarray(image)


def to_ansi(image: Array, columns: int) -> str:
    """Return an image for a color terminal, with two pixels per character, one above the other."""
    _, width, _ = image.shape
    scale = max(1, -(-width // columns))
    small = image[scale // 2 :: scale, scale // 2 :: scale]
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


def write_gif(path: str | os.PathLike[str], images: Sequence[Array], fps: float) -> None:
    """Write images to a GIF, `fps` frames per second."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackage("writing a GIF needs pillow, which is not installed", "pillow>=10") from None
    height = max(image.shape[0] for image in images)
    width = max(image.shape[1] for image in images)
    frames = [Image.fromarray(pad_image(image, height, width)) for image in images]
    options: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 1000 / fps, "loop": 0}
    write_output(path, GIF, lambda temporary: frames[0].save(temporary, format="GIF", comment=b"stairwell", **options))
