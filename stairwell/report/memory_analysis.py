"""Measure whether the memory of a model keeps the state of a state-tracking task along long streams.

The label of a token is the state to track: parity, a cell, an element of a group. At several positions of many streams
the newest memory vector is compared with that state. References come from the first position, which is within the
training length, and from half of the streams; the other half is measured:

- accuracy of a linear probe that predicts the state from the vector;
- distance from the vector to the mean vector of its state and to the nearest mean of another state;
- attention by distance;
- distance to the undisturbed stream after noise was added to the memory.

Letters: B streams, T tokens, E vectors, N dimensions of a vector, Y states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stairwell.files import parse_json, write_text
from stairwell.models import LanguageModel
from stairwell.report.attention import AttentionAverage, average_attention
from stairwell.runs.load import check_results_writable, find_result, load, open_run, results_folder
from stairwell.runs.long_streams import check_growing, stream_of
from stairwell.state import FieldType, State
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from stairwell.tasks.generated import EndlessStream
from stairwell.train.streams import add_noise

FILE = "memory_analysis.json"
POSITIONS = (40, 400, 4_000, 40_000)
STREAMS, WINDOW = 128, 32  # vectors of the last WINDOW tokens before each position
NOISE_LEVELS = (0.1, 0.3, 1.0)  # relative to the norm of a memory vector
NOISE_TOKENS = 24  # tokens after the noise
PLOTTED_STATES, PLOTTED_VECTORS = 8, 40  # states, and vectors per state
SEED = 0


@dataclass(frozen=True)
class MemoryAnalysis:
    """Lists have one entry per position unless noted. Distances are in units of `unit_distance`."""

    states: int
    "Number of states."
    dimensions: int
    "Dimensions of a memory vector."
    streams: int
    window: int
    positions: list[int]
    accuracy: list[float]
    "Accuracy of the model, %."
    probe_accuracy: list[float]
    "Accuracy of the linear probe, %."
    probe_agreement: list[float]
    "How often the probe and the model predict the same state, %."
    own_distance: list[list[float]]
    "Distance to the mean of the true state: 5th, 50th and 95th percentile."
    other_distance: list[list[float]]
    "Distance to the nearest mean of another state, same percentiles."
    predicted_distance: list[list[float]]
    "Distance to the mean of the state that the model predicts, same percentiles."
    closer_to_other: list[float]
    "Vectors that are closer to the mean of another state, %."
    unit_distance: float
    "Median distance from the mean of a state to the nearest other mean."
    noise_levels: list[float]
    "Noise relative to the norm of a memory vector."
    noise_distance: list[list[float]]
    "Median distance to the undisturbed stream after each token, for each noise level."
    changed_predictions: list[float]
    "Streams with another prediction after the last of these tokens, %, for each noise level."
    plotted_states: list[int]
    plotted_vectors: list[list[list[list[float]]]]
    "Projected vectors at the first and the last position, by predicted state."
    attention: AttentionAverage | None = None
    step: int | None = None
    "Step of the analyzed parameters; None if the file does not have it."


@dataclass(frozen=True)
class MemoryWindow:
    """Memory vectors, states and predictions at the last tokens before a position."""

    vectors: Tensor  # (B, T, N)
    states: Tensor  # (B, T), IGNORE_INDEX where the token is not scored
    predictions: Tensor  # (B, T)

    def scored(self, streams: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors (E, N), states (E,) and predictions (E,) of the scored tokens of some streams."""
        scored = self.states[streams] != IGNORE_INDEX
        return self.vectors[streams][scored], self.states[streams][scored], self.predictions[streams][scored]


Probe = Callable[[Tensor], Tensor]  # vectors (E, N) -> states (E,)
REFERENCE, MEASURED = slice(0, None, 2), slice(1, None, 2)  # halves of the streams


@torch.no_grad()
def analyze_memory(
    model: LanguageModel,
    task: EndlessStream,
    positions: Sequence[int] = POSITIONS,
    streams: int = STREAMS,
    window: int = WINDOW,
) -> MemoryAnalysis:
    """Follow streams to the last position and measure. The result is deterministic."""
    model.eval()
    stream_ids = [StreamId(SEED, stream) for stream in range(streams)]
    windows, state, last_tokens = follow_windows(model, task, stream_ids, positions, window)
    vectors, states, _ = windows[0].scored(REFERENCE)
    labels, means = class_means(vectors, states)
    unit = nearest_mean_distance(means)
    with torch.enable_grad():
        probe = fit_probe(vectors, states, model.config.V)
    measured = [measure_window(window, labels, means, unit, probe) for window in windows]
    noise_distance, changed_predictions = disturb(model, state, last_tokens, unit)
    plotted_states, plotted_vectors = project(windows[0], windows[-1], labels, means)
    by_position: dict[str, Any] = {name: [values[name] for values in measured] for name in measured[0]}
    return MemoryAnalysis(
        states=model.config.V,
        dimensions=vectors.shape[1],
        streams=streams,
        window=window,
        positions=list(positions),
        **by_position,
        unit_distance=round(unit, 4),
        noise_levels=list(NOISE_LEVELS),
        noise_distance=noise_distance,
        changed_predictions=changed_predictions,
        plotted_states=plotted_states,
        plotted_vectors=plotted_vectors,
        attention=average_attention(model, (last_tokens, state), last_tokens.shape[1]),
    )


def measure_window(window: MemoryWindow, labels: Tensor, means: Tensor, unit: float, probe: Probe) -> dict[str, Any]:
    """Return the fields of `MemoryAnalysis` that belong to one position."""
    vectors, states, predictions = window.scored(MEASURED)
    own, other = distances(vectors, states, labels, means)
    predicted, _ = distances(vectors, predictions, labels, means)
    probed = probe(vectors)
    return {
        "accuracy": percent(predictions == states),
        "probe_accuracy": percent(probed == states),
        "probe_agreement": percent(probed == predictions),
        "own_distance": percentiles(own / unit),
        "other_distance": percentiles(other / unit),
        "predicted_distance": percentiles(predicted / unit),
        "closer_to_other": percent(other < own),
    }


def follow_windows(
    model: LanguageModel, task: EndlessStream, stream_ids: Sequence[StreamId], positions: Sequence[int], window: int
) -> tuple[list[MemoryWindow], State, Tensor]:
    """Return the window before each position, the state before the last call of the model and the tokens of that
    call."""
    check_growing(model, positions[-1])
    device = next(model.parameters()).device
    state, last_tokens = model.init_state(len(stream_ids)), torch.empty(0)
    parts: dict[int, list[tuple[Tensor, ...]]] = {position: [] for position in positions}
    state_before = state
    batches = endless_batches(task, stream_ids, positions[-1], BLOCK)
    for batch, position in split_at_windows(batches, positions, window):
        tokens, targets = batch.tokens.to(device), batch.targets.to(device)
        if position is None:
            for segment in tokens.split(256, 1):
                _, state = model(segment, state)
            continue
        state_before, last_tokens = state, tokens
        vectors, predictions, state = read_tokens(model, state, tokens)
        parts[position].append((vectors, targets, predictions))
    windows = [MemoryWindow(*(torch.cat(tensors, 1) for tensors in zip(*parts[position]))) for position in positions]
    return windows, state_before, last_tokens


def split_at_windows(
    batches: Iterator[TokenBatch], positions: Sequence[int], window: int
) -> Iterator[tuple[TokenBatch, int | None]]:
    """Split a stream at the edges of the windows. Yield each segment with the position its window ends at, if any."""
    done = 0
    edges = {edge for position in positions for edge in (max(0, position - window), position)}
    for batch in batches:
        length = batch.tokens.shape[1]
        cuts = sorted({0, length, *(edge - done for edge in edges if done < edge < done + length)})
        for first, end in pairwise(cuts):
            ends = [position for position in positions if position - window <= done + first and done + end <= position]
            yield TokenBatch(batch.tokens[:, first:end], batch.targets[:, first:end]), ends[0] if ends else None
        done += length


def read_tokens(model: LanguageModel, state: State, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
    """Return the newest memory vector (B, T, N) and the prediction (B, T) after each token, and the last state."""
    vectors, predictions = [], []
    for t in range(tokens.shape[1]):
        logits, state = model(tokens[:, t : t + 1], state)
        vectors.append(newest_vector(state))
        predictions.append(logits.argmax(-1)[:, 0])
    return torch.stack(vectors, 1), torch.stack(predictions, 1), state


def newest_vector(state: State) -> Tensor:
    """Return what the last token left in the memory, (B, N): the newest slots, or the whole recurrent state."""
    parts = []
    for leaf in state.leaves():
        if leaf.field_type in (FieldType.SLOTS, FieldType.GROWING):
            parts.append(leaf.tensor[:, -1:].flatten(1))
        elif leaf.field_type is FieldType.CARRY:
            parts.append(leaf.tensor.flatten(1))
    return torch.cat(parts, 1).float()


def class_means(vectors: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states that occur (Y,) and the mean vector of each (Y, N)."""
    labels, index = states.unique(return_inverse=True)
    sums = vectors.new_zeros(len(labels), vectors.shape[1]).index_add_(0, index, vectors)
    return labels, sums / index.bincount()[:, None]


def nearest_mean_distance(means: Tensor) -> float:
    """Return the median distance from a mean to the nearest other mean."""
    between = torch.cdist(means, means).fill_diagonal_(torch.inf)
    return float(between.amin(1).median())


def distances(vectors: Tensor, states: Tensor, labels: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances of vectors to the mean of their state and to the nearest other mean. Vectors of states
    without a mean are left out."""
    has_mean = torch.isin(states, labels)
    to_means = torch.cdist(vectors[has_mean], means)
    own = torch.searchsorted(labels, states[has_mean])[:, None]
    return to_means.gather(1, own)[:, 0], to_means.scatter(1, own, torch.inf).amin(1)


def fit_probe(vectors: Tensor, states: Tensor, outputs: int, weight_decay: float = 1e-4) -> Probe:
    """Fit a multinomial logistic regression from zero, which makes it deterministic."""
    mean, std = vectors.mean(0), vectors.std(0).clamp(min=1e-6)
    weight = torch.zeros(vectors.shape[1], outputs, device=vectors.device, requires_grad=True)
    bias = torch.zeros(outputs, device=vectors.device, requires_grad=True)
    inputs = (vectors - mean) / std
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=150, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(inputs @ weight + bias, states) + weight_decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return lambda vectors: ((vectors - mean) / std @ weight + bias).argmax(-1)


def disturb(model: LanguageModel, state: State, tokens: Tensor, unit: float) -> tuple[list[list[float]], list[float]]:
    """Add noise to the memory. For each noise level, return the median distance to the undisturbed streams after each
    token, and the share of streams whose last prediction changed."""
    tokens = tokens[:, :NOISE_TOKENS]
    undisturbed, expected, _ = read_tokens(model, state, tokens)
    noise_distance, changed_predictions = [], []
    for level in NOISE_LEVELS:
        with torch.random.fork_rng(devices=[tokens.device] if tokens.is_cuda else []):
            torch.manual_seed(SEED)
            noisy = add_noise(state, level)
        vectors, predictions, _ = read_tokens(model, noisy, tokens)
        medians = (vectors - undisturbed).norm(dim=-1).median(0).values / unit
        noise_distance.append([round(float(distance), 5) for distance in medians])
        changed_predictions.append(percent(predictions[:, -1] != expected[:, -1]))
    return noise_distance, changed_predictions


def project(
    early: MemoryWindow, late: MemoryWindow, labels: Tensor, means: Tensor
) -> tuple[list[int], list[list[list[list[float]]]]]:
    """Project the vectors of a few states to the plane of the largest variance of their means."""
    states = labels[:PLOTTED_STATES]
    center = means[:PLOTTED_STATES].mean(0)
    _, _, axes = torch.linalg.svd(means[:PLOTTED_STATES] - center, full_matrices=False)
    plane = axes[:2].T  # (N, 2)
    if plane.shape[1] < 2:
        plane = torch.nn.functional.pad(plane, (0, 2 - plane.shape[1]))
    plotted = []
    for window in (early, late):
        vectors, _, predictions = window.scored(MEASURED)
        points = ((vectors - center) @ plane).double().cpu()
        chosen = [points[(predictions == state).cpu()][:PLOTTED_VECTORS] for state in states]
        plotted.append([vectors.numpy().round(3).tolist() for vectors in chosen])
    return states.tolist(), plotted


def percentiles(values: Tensor) -> list[float]:
    return [round(float(value), 4) for value in np.percentile(values.cpu().numpy(), (5, 50, 95))]


def percent(condition: Tensor) -> float:
    return round(100 * float(condition.double().mean()), 3)


def analyze_run(
    path: str | Path, device: str = "auto", positions: Sequence[int] = POSITIONS, streams: int = STREAMS
) -> MemoryAnalysis:
    """Analyze the memory of a run's model and write the result to the run folder."""
    model, task = load(path, device)
    check_results_writable(path)
    analysis = analyze_memory(model, stream_of(task), positions, streams)
    analysis = replace(analysis, step=open_run(path).load_model()[1]["step"])
    write_text(results_folder(path) / FILE, json.dumps(asdict(analysis)) + "\n")
    return analysis


def read_analysis(path: str | Path) -> MemoryAnalysis | None:
    """Return the analysis in a run folder; None if there is none or the file is damaged."""
    try:
        data: dict[str, Any] = parse_json(find_result(path, FILE).read_bytes())
        attention = data.pop("attention")
        return MemoryAnalysis(**data, attention=AttentionAverage(**attention) if attention else None)
    except (OSError, ValueError, KeyError, TypeError):
        return None
