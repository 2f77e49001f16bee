"""An episode of an agent, to be stepped through: what it saw, did, earned and expected, and what it attended to.

Of a picture only what has changed since the one before is kept, as a PNG with its place, so that a page stays small.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stairwell.errors import UserError
from stairwell.rl.agent import Agent
from stairwell.rl.episodes import split_seed
from stairwell.rl.render import Shown, frames
from stairwell.rl.task import Reinforcement

STEPS = 200  # of an episode, at most
ROOM = 300_000  # characters of a page that one episode may take
COLORS = 256  # of a PNG with a palette
LARGEST = {True: 800, False: 240}  # pixels along the longer side of a picture, of so few colors or of more

Pixels = NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class Patch:
    """A piece of a picture and where it belongs."""

    x: int
    y: int
    image: str
    "its address, which holds all of it"


@dataclass(frozen=True)
class Step:
    action: str
    reward: float
    value: float
    "the return that it expected from here on"
    observed: str
    "the observation in words, where there is no picture"
    attention: list[list[int]]
    "for each layer the share of each frame that is remembered, in thousandths, averaged over heads, the newest first"
    patch: Patch | None
    "what has changed since the picture before; none where nothing has"

    @property
    def size(self) -> int:
        """About how many characters of a page it takes."""
        drawn = len(self.patch.image) if self.patch else 0
        return 120 + drawn + len(self.observed) + 3 * sum(map(len, self.attention))


@dataclass(frozen=True)
class Episode:
    width: int
    "of its pictures; 0 where there are none"
    height: int
    layers: list[str]
    first: int
    "how many frames back the newest that it can attend to is"
    steps: list[Step]
    ended: bool
    "whether all of it is here"


def read_episode(agent: Agent, task: Reinforcement) -> Episode | None:
    """The first episode of the test split, as far as it fits; none where the environment is not there."""
    shown: list[Shown] = []
    steps: list[Step] = []
    room, drawn = ROOM, Drawn()
    try:
        for frame in islice(frames(agent, task, 1, split_seed(0, "test")), STEPS):
            steps.append(step_of(frame, drawn))
            shown.append(frame)
            room -= steps[-1].size
            if room < 0:
                break
    except (UserError, OSError):
        return None
    core = agent.config.core
    names = layer_names(len(shown[0].attention), core.layers)
    first = getattr(core, "first", 1)
    return Episode(drawn.width, drawn.height, names, first, steps, shown[-1].over)


def step_of(frame: Shown, drawn: Drawn) -> Step:
    shares = [np.rint(1000 * weights).astype(int).tolist() for weights in frame.attention]
    patch = drawn.next(frame.picture) if frame.picture is not None else None
    words = "" if frame.picture is not None else frame.observed
    return Step(frame.action, digits(frame.reward), digits(frame.value), words, shares, patch)


def digits(number: float) -> float:
    return float(f"{number:.4g}")


def layer_names(count: int, layers: int) -> list[str]:
    """What `count` pictures of attention are of: those of a model that goes through its layers several times say so."""
    passes = count // layers
    return [f"{f'pass {n + 1}, ' if passes > 1 else ''}layer {l + 1}" for n in range(passes) for l in range(layers)]


class Drawn:
    """Pictures as pieces, each with what has changed since the one before. The first one decides how they are kept: few
    colors exactly, as PNG; more of them smaller, as JPEG."""

    def __init__(self) -> None:
        self.before: Pixels | None = None
        self.flat = True
        self.width, self.height = 0, 0

    def next(self, picture: Pixels) -> Patch | None:
        if self.before is None:
            self.flat = len(palette(picture)[0]) <= COLORS
        pixels, before = small(picture, LARGEST[self.flat]), self.before
        self.height, self.width = max(self.height, pixels.shape[0]), max(self.width, pixels.shape[1])
        self.before = pixels
        if before is None or before.shape != pixels.shape:
            return Patch(0, 0, self.address(pixels))
        changed = (pixels != before).any(-1)
        if not changed.any():
            return None
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        top, left = int(rows[0]), int(columns[0])
        return Patch(left, top, self.address(pixels[top : rows[-1] + 1, left : columns[-1] + 1]))

    def address(self, pixels: Pixels) -> str:
        return as_png(pixels) if self.flat else as_address(Image.fromarray(pixels), "jpeg", quality=70)


def small(picture: Pixels, largest: int) -> Pixels:
    """A picture that is too large is made smaller by a whole number."""
    factor = -(-max(picture.shape[:2]) // largest)
    return picture if factor == 1 else np.asarray(Image.fromarray(picture).reduce(factor))


def palette(pixels: Pixels) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """The colors of a picture, and which of them each pixel has."""
    red, green, blue = (pixels[..., i].astype(np.int32) for i in range(3))
    colors, places = np.unique(red << 16 | green << 8 | blue, return_inverse=True)
    return colors, places.reshape(pixels.shape[:2])


def as_png(pixels: Pixels) -> str:
    """Exact where there are few enough colors for a palette, which pictures that were made smaller may have not."""
    colors, places = palette(pixels)
    if len(colors) > COLORS:
        return as_address(Image.fromarray(pixels).quantize(COLORS), "png", optimize=True)
    image = Image.fromarray(places.astype(np.uint8), mode="P")
    image.putpalette([int(color) >> shift & 255 for color in colors for shift in (16, 8, 0)])
    return as_address(image, "png", optimize=True)


def as_address(image: Image.Image, form: str, **options: Any) -> str:
    written = io.BytesIO()
    image.save(written, format=form.upper(), **options)
    return f"data:image/{form};base64,{base64.b64encode(written.getvalue()).decode('ascii')}"
