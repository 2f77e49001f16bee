"""Why a memory drifts away from what it stands for, or does not: a look inside along a stream without end.

The label of a token is the state of the world that a model has to keep: parity, a place, an element of a group. At a
few places of many streams the newest vector of the memory is held against that state. All yardsticks come from the
first place, which is within the lengths of training, and from half of the streams; the other half is measured: a linear
probe that reads the state from the vector; the distance from the vector to the mean of its own state and to the nearest
other mean; where the layers look; and, the memory being pushed aside, how fast it comes back.

Letters: B streams, T tokens, E vectors, N numbers of a vector, Y states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stairwell.errors import UserError
from stairwell.field_types import FieldType
from stairwell.files import parse_json, write_text
from stairwell.models import LanguageModel, inspect
from stairwell.report.played import layer_names
from stairwell.runs.launch import load
from stairwell.runs.long_streams import MOST_GROWING, stream_of
from stairwell.state import State
from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.endless import BLOCK, StreamName, endless_batches
from stairwell.tasks.generated import Endless
from stairwell.train.run import Run
from stairwell.train.streams import disturbed

FILE = "inside.json"
PLACES = (40, 400, 4_000, 40_000)
STREAMS, WINDOW = 128, 32  # vectors are taken at the last tokens before each place
PUSHES = (0.1, 0.3, 1.0)  # noise, as a part of the memory's size
STEPS = 24  # tokens after a push
SHOWN, DOTS = 8, 40  # states on the map, dots of each
SEED = 0


@dataclass(frozen=True)
class Attention:
    """How much each head looks at each distance, on average; the nearest first."""

    layers: list[str]
    first: int
    "the nearest distance"
    weights: list[list[list[float]]]
    "layer, head, distance"


@dataclass(frozen=True)
class Drift:
    states: int
    "how many states of the world there are"
    numbers: int
    "of the vector that is looked at"
    streams: int
    window: int
    places: list[int]
    right: list[float]
    "the model's right answers at each place, %"
    probe: list[float]
    "states that the linear probe reads rightly, %"
    probe_said: list[float]
    "where the probe reads the state that the model answers with, right or wrong, %"
    own: list[list[float]]
    "distance to the mean of the own state: its 5th, 50th and 95th percentile at each place"
    other: list[list[float]]
    "the same to the nearest mean of another state"
    said: list[list[float]]
    "the same to the mean of the state that the model answers with, right or wrong"
    astray: list[float]
    "vectors that are nearer to another state's mean, %"
    apart: float
    "median distance from one state's mean to the nearest other: the unit of all distances here"
    pushes: list[float]
    "how far the memory was pushed, as a part of its size"
    pushed: list[list[float]]
    "for each of them the median distance to the stream that was not pushed, after each token"
    lost: list[float]
    "streams whose answer is another one after the last of these tokens, %"
    shown: list[int]
    "states on the map"
    dots: list[list[list[list[float]]]]
    "at the first and at the last place, for each of these states: points of the map where the model answers with it"
    attention: Attention | None = None


@dataclass(frozen=True)
class Window:
    """What was seen at the last tokens before a place: every vector with its state, stream by stream."""

    vectors: Tensor  # (B, T, N)
    states: Tensor  # (B, T), IGNORE where the task does not ask
    answers: Tensor  # (B, T)

    def of(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors (E, N), states (E,) and answers (E,) of some streams, where the task asks."""
        asked = self.states[rows] != IGNORE
        return self.vectors[rows][asked], self.states[rows][asked], self.answers[rows][asked]


Probe = Callable[[Tensor], Tensor]  # vectors (E, N) -> states (E,)
FITTED, MEASURED = slice(0, None, 2), slice(1, None, 2)  # streams


@torch.no_grad()
def look_inside(
    model: LanguageModel, task: Endless, places: Sequence[int] = PLACES, streams: int = STREAMS, window: int = WINDOW
) -> Drift:
    """Follow the streams to the last place and measure; the same numbers every time."""
    model.eval()
    names = [StreamName(SEED, row) for row in range(streams)]
    seen, state, last = follow_windows(model, task, names, places, window)
    yardstick, states, _ = seen[0].of(FITTED)
    labels, means = class_means(yardstick, states)
    unit = nearest_other(means)
    with torch.enable_grad():
        reads = fit_probe(yardstick, states, model.config.V)
    rows = [measured(found, labels, means, unit, reads) for found in seen]
    along = {name: [row[name] for row in rows] for name in rows[0]}
    pushed, lost = push(model, state, last, unit)
    shown, dots = draw_map(seen[0], seen[-1], labels, means)
    return Drift(
        states=model.config.V,
        numbers=yardstick.shape[1],
        streams=streams,
        window=window,
        places=list(places),
        **along,
        apart=round(unit, 4),
        pushes=list(PUSHES),
        pushed=pushed,
        lost=lost,
        shown=shown,
        dots=dots,
        attention=attended(model, state, last),
    )


def measured(found: Window, labels: Tensor, means: Tensor, unit: float, reads: Probe) -> dict[str, Any]:
    """What there is to say of one place, by the names of Drift."""
    vectors, truth, answers = found.of(MEASURED)
    to_own, to_other = distances(vectors, truth, labels, means)
    to_said, _ = distances(vectors, answers, labels, means)
    read = reads(vectors)
    return {
        "right": percent(answers == truth),
        "probe": percent(read == truth),
        "probe_said": percent(read == answers),
        "own": percentiles(to_own / unit),
        "other": percentiles(to_other / unit),
        "said": percentiles(to_said / unit),
        "astray": percent(to_other < to_own),
    }


def follow_windows(
    model: LanguageModel, task: Endless, names: Sequence[StreamName], places: Sequence[int], window: int
) -> tuple[list[Window], State, Tensor]:
    """What was seen at each place; the state before the last tokens that were read, and these tokens."""
    device = next(model.parameters()).device
    state, last = model.init_state(len(names)), torch.empty(0)
    if places[-1] > MOST_GROWING and any(leaf.role is FieldType.GROWING for leaf in state.leaves()):
        raise UserError(f"this model keeps all of its past; look at places up to {MOST_GROWING:,}")
    parts: dict[int, list[tuple[Tensor, ...]]] = {place: [] for place in places}
    before = state
    for batch, place in pieces(endless_batches(task, names, places[-1], BLOCK), places, window):
        tokens, targets = batch.tokens.to(device), batch.targets.to(device)
        if place is None:
            for part in tokens.split(256, 1):
                _, state = model(part, state)
            continue
        before, last = state, tokens
        vectors, answers, state = walk(model, state, tokens)
        parts[place].append((vectors, targets, answers))
    seen = [Window(*(torch.cat(kind, 1) for kind in zip(*parts[place]))) for place in places]
    return seen, before, last


def pieces(batches: Iterator[Batch], places: Sequence[int], window: int) -> Iterator[tuple[Batch, int | None]]:
    """The stream cut where windows begin and end; with each piece the place that its window ends at, if any."""
    done = 0
    edges = {edge for place in places for edge in (max(0, place - window), place)}
    for batch in batches:
        length = batch.tokens.shape[1]
        cuts = sorted({0, length, *(edge - done for edge in edges if done < edge < done + length)})
        for first, end in pairwise(cuts):
            inside = [place for place in places if place - window <= done + first and done + end <= place]
            yield Batch(batch.tokens[:, first:end], batch.targets[:, first:end]), inside[0] if inside else None
        done += length


def newest(state: State) -> Tensor:
    """What the last token left in the memory, (B, N): the newest slot, or all that is carried on."""
    parts = []
    for leaf in state.leaves():
        if leaf.role in (FieldType.SLOTS, FieldType.GROWING):
            parts.append(leaf.tensor[:, -1:].flatten(1))
        elif leaf.role is FieldType.CARRY:
            parts.append(leaf.tensor.flatten(1))
    return torch.cat(parts, 1).float()


def class_means(vectors: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """The states that occur (Y,) and the mean vector of each (Y, N)."""
    labels, index = states.unique(return_inverse=True)
    sums = vectors.new_zeros(len(labels), vectors.shape[1]).index_add_(0, index, vectors)
    return labels, sums / index.bincount()[:, None]


def nearest_other(means: Tensor) -> float:
    """The median over the states of the distance to the nearest other one."""
    between = torch.cdist(means, means).fill_diagonal_(torch.inf)
    return float(between.amin(1).median())


def distances(vectors: Tensor, states: Tensor, labels: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """From each vector to the mean of its own state and to the nearest other; states without one are left out."""
    known = torch.isin(states, labels)
    between = torch.cdist(vectors[known], means)
    own = torch.searchsorted(labels, states[known])[:, None]
    return between.gather(1, own)[:, 0], between.scatter(1, own, torch.inf).amin(1)


def fit_probe(vectors: Tensor, states: Tensor, outputs: int, decay: float = 1e-4) -> Probe:
    """Logistic regression: the state that is likeliest by a linear map of the vector. It begins at zero and draws
    nothing, so it is the same every time."""
    middle, size = vectors.mean(0), vectors.std(0).clamp(min=1e-6)
    weight = torch.zeros(vectors.shape[1], outputs, device=vectors.device, requires_grad=True)
    bias = torch.zeros(outputs, device=vectors.device, requires_grad=True)
    given = (vectors - middle) / size
    search = torch.optim.LBFGS([weight, bias], max_iter=150, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = torch.nn.functional.cross_entropy(given @ weight + bias, states) + decay * weight.square().sum()
        value.backward()
        return value

    search.step(loss)
    return lambda asked: ((asked - middle) / size @ weight + bias).argmax(-1)


def push(model: LanguageModel, state: State, tokens: Tensor, unit: float) -> tuple[list[list[float]], list[float]]:
    """Distances between streams whose memory was pushed and the same streams left alone, after each of the next tokens,
    for every size of push; and how many answers differ at the end."""
    tokens = tokens[:, :STEPS]
    alone, answers, _ = walk(model, state, tokens)
    pushed, lost = [], []
    for size in PUSHES:
        with torch.random.fork_rng(devices=[tokens.device] if tokens.is_cuda else []):
            torch.manual_seed(SEED)
            aside = disturbed(state, size)
        vectors, others, _ = walk(model, aside, tokens)
        pushed.append([round(float(d), 5) for d in (vectors - alone).norm(dim=-1).median(0).values / unit])
        lost.append(percent(others[:, -1] != answers[:, -1]))
    return pushed, lost


def walk(model: LanguageModel, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
    """The newest vector (B, T, N) and the answer (B, T) after each token, and the last state."""
    vectors, answers = [], []
    for t in range(tokens.shape[1]):
        logits, state = model(tokens[:, t : t + 1], state)
        vectors.append(newest(state))
        answers.append(logits.argmax(-1)[:, 0])
    return torch.stack(vectors, 1), torch.stack(answers, 1), state


def draw_map(
    early: Window, late: Window, labels: Tensor, means: Tensor
) -> tuple[list[int], list[list[list[list[float]]]]]:
    """A few states in the plane in which their means lie farthest apart; vectors at the first and the last place."""
    few = labels[:SHOWN]
    middle = means[:SHOWN].mean(0)
    _, _, axes = torch.linalg.svd(means[:SHOWN] - middle, full_matrices=False)
    plane = axes[:2].T  # (N, 2)
    if plane.shape[1] < 2:
        plane = torch.nn.functional.pad(plane, (0, 2 - plane.shape[1]))
    drawn = []
    for found in (early, late):
        vectors, _, answers = found.of(MEASURED)
        points = (vectors - middle) @ plane
        drawn.append([points[answers == label][:DOTS].double().cpu().numpy().round(3).tolist() for label in few])
    return few.tolist(), drawn


def attended(model: LanguageModel, state: State, tokens: Tensor) -> Attention | None:
    with inspect(model) as seen:
        model(tokens, state)
    if not seen.attention:
        return None
    weights = [layer.mean((0, 2)) for layer in seen.attention]  # each (H, distances)
    core: Any = model.config.core
    rounded = [[[round(number, 4) for number in head] for head in layer.tolist()] for layer in weights]
    return Attention(layer_names(len(weights), core.layers), core.first, rounded)


def percentiles(values: Tensor) -> list[float]:
    return [round(float(value), 4) for value in np.percentile(values.cpu().numpy(), (5, 50, 95))]


def percent(yes: Tensor) -> float:
    return round(100 * float(yes.double().mean()), 3)


def measure_drift(
    path: str | Path, device: str = "auto", places: Sequence[int] = PLACES, streams: int = STREAMS
) -> Drift:
    """Look inside a run and write down what was seen."""
    model, task = load(path, device)
    Run(path).check_writable()
    drift = look_inside(model, stream_of(task), places, streams)
    write_text(Path(path) / FILE, json.dumps(asdict(drift)) + "\n")
    return drift


def read_drift(path: str | Path) -> Drift | None:
    """What a run folder knows of its inside; none where nobody has looked, or the file is not what it should be."""
    try:
        data: dict[str, Any] = parse_json((Path(path) / FILE).read_bytes())
        attention = data.pop("attention")
        return Drift(**data, attention=Attention(**attention) if attention else None)
    except (OSError, ValueError, KeyError, TypeError):
        return None
