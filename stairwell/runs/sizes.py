"""What a training needs at least, in bytes, against what the machine has: counted before anything is allocated.

    parameters      4 P           P numbers, counted on tensors without storage
    training        4 P (1 + M)   gradients, and M numbers that the optimizer keeps of each parameter
    states          B x those of one row
    activations     4 B T L N D   one vector a layer, pass and token; engines keep more
    batches         24 B T        symbols, targets and starts, and the longest episode of each row

Everything is counted low, so that what could run is never refused. B and T of pairs are those of the largest batch that
the data gives: `train.batch` and `train.batch_tokens` are limits.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.rl.config import AgentTrainConfig
from stairwell.rl.flatten import num_box_elements, num_discrete_values, observation_bytes
from stairwell.rl.task import RLTask
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import preset
from stairwell.tasks import Task
from stairwell.tasks.generated import GeneratedTask
from stairwell.tasks.pair_task import PairTask
from stairwell.train.config import PairTrainConfig

NUMBER = 4  # bytes
SYMBOL = 24  # bytes of a token in a batch: symbol, target, start
ROW = 1000  # bytes that a feed keeps of a row, at least
POSITION = 40  # bytes of a row in a checkpoint's note
LAYER = 25_000  # bytes of a layer's modules, without their parameters
REMEMBERED = {"adam": 2, "adamw": 2, "rmsprop": 1}  # numbers that an optimizer keeps of each parameter
LAYERED = (("core", "layers"), ("model", "encoder_layers"))  # what has layers, and how many
SIZED = ("batch", "batch_tokens", "segment", "valid_batch")  # options of a training that memory depends on
UNSIZED = ("heads", "encoder_heads")  # a layer's width is divided among them
SAMPLE = 8  # layers that are built to find out what one has
MOST_TOKENS = 10**10  # of a generated split: days on a laptop
CGROUP = Path("/sys/fs/cgroup/memory.max")  # what a container may use


def check_training(experiment: RunConfig, task: Task, device: torch.device, processes: int = 1) -> None:
    """Refuse a training that cannot fit, in a line that says what to lower."""
    there = memory_of(device)
    # Counting loads parts of torch that take seconds; most trainings are far from any limit.
    if there is not None and 16 * guess(experiment, task) >= there:
        batch = batch_bytes(experiment, task, processes)
        # Where a batch alone is too large, a model of a million layers need not be counted.
        refuse_beyond(there, batch, experiment, device)
        refuse_beyond(there, {**model_bytes(experiment, task, processes), **batch}, experiment, device)
    check_splits(experiment, task)


def check_model(experiment: RunConfig, task: Task, device: torch.device) -> None:
    """The same for a model that is only used."""
    there = memory_of(device)
    if there is not None and 16 * guess(experiment, task) >= there:
        parameters = model_bytes(experiment, task, 1)["parameters"]
        refuse_beyond(there, {"parameters": parameters}, experiment, device)


def check_splits(experiment: RunConfig, task: Task) -> None:
    """Refuse generated splits that would be read for days."""
    for split, (episodes, count) in task.splits.items() if isinstance(task, GeneratedTask) else ():
        tokens = episodes.size * count
        read = min(tokens, experiment.train.valid_tokens or tokens) if split == "valid" else tokens
        if read > MOST_TOKENS:
            raise UserError(
                f"--task.{split}_episodes {count:,}: the {split} split would have about {tokens:,} tokens, and at most "
                f"{MOST_TOKENS:,} are read; lower it"
            )


def check_streams(model: Any, streams: int, tokens: int, lower: str) -> None:
    """Refuse to evaluate so many streams at a time, so many tokens of each, where they cannot fit; `lower` names the
    options that decide it."""
    there = memory_of(next(model.parameters()).device)
    state = sum(leaf.tensor.numel() * leaf.tensor.element_size() for leaf in model.init_state(1).leaves())
    needed = streams * (ROW + state + SYMBOL * tokens)
    if there is not None and needed > there:
        raise UserError(
            f"{streams:,} streams at a time would need at least {in_words(needed)} ({in_words(state)} of state each), "
            f"and there are {in_words(there)}; lower {lower}"
        )


def refuse_beyond(there: int, parts: dict[str, float], experiment: RunConfig, device: torch.device) -> None:
    if sum(parts.values()) > there:
        counted = ", ".join(f"{name} {in_words(size)}" for name, size in parts.items())
        raise UserError(
            f"{experiment.name} would need at least {in_words(sum(parts.values()))} ({counted}), and {device} has "
            f"{in_words(there)}; lower {what_to_lower(experiment)}"
        )


def batch_bytes(experiment: RunConfig, task: Task, processes: int) -> dict[str, float]:
    """What grows with the tokens of an update."""
    core, train = experiment.core, experiment.train
    rows, tokens = largest_batch(experiment, task, processes)
    minibatches = train.minibatches if isinstance(train, AgentTrainConfig) and train.algorithm == "ppo" else 1
    parts = train.accumulate * minibatches  # each has activations of its own
    counted = {
        "activations": NUMBER * tokens * depth_of(core) * core.width / parts,
        "batches": SYMBOL * max(tokens, rows * longest(task)) + ROW * rows + POSITION * train.batch,
    }
    if isinstance(task, RLTask):
        # A rollout's frames, and those of a part as the numbers that encoders read.
        seen = task.observation_space
        counted["observations"] = tokens * (observation_bytes(seen) + NUMBER * num_box_elements(seen) / parts)
    return counted


def largest_batch(experiment: RunConfig, task: Task, processes: int) -> tuple[int, int]:
    """Rows, and tokens of all of them, in the largest step of a process."""
    train = experiment.train
    if not (isinstance(train, PairTrainConfig) and isinstance(task, PairTask)):
        rows = -(-train.batch // processes)
        return rows, rows * train.segment
    shapes = task.batch_shapes(train.batch, train.batch_tokens)
    rows, tokens = max(shapes, key=lambda shape: shape[0] * shape[1], default=(0, 0))
    rows = -(-rows // processes)
    return rows, rows * tokens


def depth_of(core: Any) -> int:
    """How many layers a token goes through, all passes counted that are computed."""
    return getattr(core, "layers", 1) * getattr(core, "computed", getattr(core, "passes", 1))


def model_bytes(experiment: RunConfig, task: Task, processes: int) -> dict[str, float]:
    """What grows with the model; infinite where a tensor would have more bytes than can be counted."""
    train = experiment.train
    numbers, state = model_and_state(experiment, task)
    rows, _ = largest_batch(experiment, task, processes)
    if not isinstance(train, PairTrainConfig):
        rows = max(rows, train.valid_batch)
    return {
        "parameters": NUMBER * numbers + LAYER * sum(layers_of(experiment, *place) for place in LAYERED),
        "gradients and optimizer": NUMBER * numbers * (1 + REMEMBERED.get(train.optimizer, 0)),
        "states": state * rows,
    }


def model_and_state(
    experiment: RunConfig, task: Task, layered: Sequence[tuple[str, str]] = LAYERED
) -> tuple[float, float]:
    """Parameters, and bytes of a row's state. Both grow evenly with the layers, so that few need to be built."""
    if not layered:
        return count(experiment, task)
    place, *others = layered
    layers, memory_of_layer = layers_of(experiment, *place), getattr(experiment.core, "memory_composition", 0)
    few = max(SAMPLE, memory_of_layer) if isinstance(memory_of_layer, int) else SAMPLE
    if layers <= 2 * few:
        return model_and_state(experiment, task, others)
    (numbers, state), (more, larger) = (
        model_and_state(with_layers(experiment, *place, n), task, others) for n in (few, 2 * few)
    )
    left = layers / few - 2
    return more + left * (more - numbers), larger + left * (larger - state)


def layers_of(experiment: RunConfig, section: str, name: str) -> int:
    return getattr(getattr(experiment, section), name, 0)


def with_layers(experiment: RunConfig, section: str, name: str, layers: int) -> RunConfig:
    changed: dict[str, Any] = {section: dataclasses.replace(getattr(experiment, section), **{name: layers})}
    return dataclasses.replace(experiment, **changed)


def count(experiment: RunConfig, task: Task) -> tuple[float, float]:
    try:
        with torch.device("meta"):
            model: Any = experiment.make_model(task, "meta", "reference")
            state = model.core.init_state(1)
    except (RuntimeError, OverflowError, TypeError):  # a tensor of more bytes than 64 bits can count
        return math.inf, math.inf
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return float(numbers), sum(leaf.tensor.numel() * leaf.tensor.element_size() for leaf in state.leaves())


def guess(experiment: RunConfig, task: Task) -> float:
    """Bytes, roughly and rather too many, from the config alone."""
    core, train = experiment.core, experiment.train

    def size(name: str, otherwise: int = 1) -> int:
        return max(int(getattr(core, name, None) or otherwise), 1)

    width, depth = size("width"), depth_of(core)
    sight = max(size("memory"), size("chunk") * size("passes"), size("max_tokens"), size("distances"))
    inside = size("inner", 4 * width) + max(size("heads") * size("head_width"), width)
    symbols = 0 if task.family == "rl" else sum(task.facts()[name] for name in ("inputs", "outputs"))
    numbers = 8 * size("layers") * width * inside * size("products") + width * (symbols + sight)
    encoder = layers_of(experiment, "model", "encoder_layers")
    numbers += 8 * encoder * width * max(getattr(experiment.model, "encoder_inner", None) or 0, 4 * width)
    if isinstance(train, PairTrainConfig):
        rows, tokens = train.batch, max(train.batch_tokens, experiment.task.max_target_length)
    else:
        rows = max(train.batch, train.valid_batch)
        tokens = rows * train.segment
    observed = 0
    if isinstance(task, RLTask):
        numbers += width * num_discrete_values(task.observation_space) + width * num_box_elements(task.observation_space)
        observed = tokens * (observation_bytes(task.observation_space) + NUMBER * num_box_elements(task.observation_space))
    kept = rows * (sight * depth * width + longest(task)) + tokens * (depth * width + 1)
    return NUMBER * (4 * numbers + kept) + observed + LAYER * (size("layers") + encoder) + ROW * rows


def longest(task: Task) -> int:
    """About how many tokens the longest episode of a generated task has; others are read bit by bit."""
    if not isinstance(task, GeneratedTask):
        return 0
    return max(task.train.size, *(episodes.size for episodes, _ in task.splits.values()))


def what_to_lower(experiment: RunConfig) -> str:
    """The options that are furthest above the preset's, as someone would write them."""
    usual = preset(experiment.name)
    raised = []
    for section in ("core", "model", "task", "train"):
        for name, value in numbers_of(getattr(experiment, section)):
            before = getattr(getattr(usual, section), name, None)
            if (section != "train" or name in SIZED) and name not in UNSIZED:
                raised.append((value / max(before if type(before) is int else 1, 1), f"--{section}.{name}", value))
    worst = [f"{option} (now {value:,})" for ratio, option, value in sorted(raised, reverse=True)[:2] if ratio > 1]
    return " or ".join(worst) or "--train.batch, --train.segment, --core.width or --core.layers"


def numbers_of(config: Any) -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if type(value) is int:
            yield field.name, value


def memory_of(device: torch.device) -> int | None:
    """Bytes of memory that a device has; nothing where nobody can tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return min(whole, int(limit)) if limit.isdigit() else whole


def in_words(size: float) -> str:
    if not math.isfinite(size):
        return "9 EB"
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000:
            return f"{size:,.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} EB"
