"""A lower bound of the memory that a run needs, in bytes, computed before anything is allocated.

    parameters      4 P           P numbers, counted on the meta device
    training        4 P (1 + M)   gradients, and M numbers per parameter that the optimizer stores
    states          B states of one stream
    activations     4 B T L N D   one vector per layer, pass and token; engines save more
    batches         24 B T        tokens, targets and starts, and the longest episode of each stream

Every part is a lower bound, so a run that fits is never rejected. B and T of pairs are those of the largest batch of
the data: `train.batch` and `train.batch_tokens` are limits.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.rl.flatten import num_box_elements, num_discrete_values, observation_bytes
from stairwell.rl.task import RLTask
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import preset
from stairwell.tasks import Task
from stairwell.tasks.generated import GeneratedTask
from stairwell.tasks.pair_task import PairTask
from stairwell.train.config import PairTrainConfig, StreamTrainConfig

NUMBER = 4  # bytes
TOKEN = 24  # bytes of a token in a batch: token id, target, start
STREAM = 1000  # bytes per stream in a batch source, at least
POSITION = 40  # bytes per stream in a checkpoint's note
LAYER = 25_000  # bytes of a layer's modules, without their parameters
OPTIMIZER_STATE = {"adam": 2, "adamw": 2, "rmsprop": 1}  # numbers per parameter
LAYER_FIELDS = (("core", "layers"), ("model", "encoder_layers"))  # fields with a number of layers
SIZE_FIELDS = ("batch", "batch_tokens", "segment", "valid_batch")  # train fields that memory depends on
NO_SIZE_FIELDS = ("heads", "encoder_heads")  # they divide a layer's width
SAMPLE = 8  # layers that are built to measure the size of one
MAX_TOKENS = 10**10  # of a generated split: days on a laptop
CGROUP = Path("/sys/fs/cgroup/memory.max")  # memory limit of a container


def check_training(config: RunConfig, task: Task, device: torch.device, processes: int = 1) -> None:
    """Reject a run that does not fit into memory, with the options to lower."""
    memory = memory_of(device)
    # Counting imports parts of torch that take seconds; most runs are far below the limit.
    if memory is not None and 16 * estimate_bytes(config, task) >= memory:
        batch = batch_bytes(config, task, processes)
        # Check the batch first: counting a model of a million layers takes long.
        check_fits(memory, batch, config, device)
        check_fits(memory, {**model_bytes(config, task, processes), **batch}, config, device)
    check_splits(config, task)


def check_model(config: RunConfig, task: Task, device: torch.device) -> None:
    """Reject a trained model that does not fit into memory."""
    memory = memory_of(device)
    if memory is not None and 16 * estimate_bytes(config, task) >= memory:
        parameters = model_bytes(config, task, 1)["parameters"]
        check_fits(memory, {"parameters": parameters}, config, device)


def check_splits(config: RunConfig, task: Task) -> None:
    """Reject generated splits whose evaluation would take days."""
    valid_tokens = config.train.valid_tokens if isinstance(config.train, StreamTrainConfig) else 0
    for split, (episodes, count) in task.splits.items() if isinstance(task, GeneratedTask) else ():
        tokens = episodes.size * count
        read = min(tokens, valid_tokens or tokens) if split == "valid" else tokens
        if read > MAX_TOKENS:
            raise UserError(
                f"--task.{split}_episodes {count:,}: the {split} split would have about {tokens:,} tokens, and at most "
                f"{MAX_TOKENS:,} are read; lower it"
            )


def check_streams(model: Any, streams: int, tokens: int, lower: str) -> None:
    """Reject an evaluation of `streams` parallel streams, `tokens` tokens at a time, that does not fit into memory.
    `lower`: the options to lower."""
    memory = memory_of(next(model.parameters()).device)
    state = sum(leaf.tensor.numel() * leaf.tensor.element_size() for leaf in model.init_state(1).leaves())
    needed = streams * (STREAM + state + TOKEN * tokens)
    if memory is not None and needed > memory:
        raise UserError(
            f"{streams:,} parallel streams would need at least {format_bytes(needed)} ({format_bytes(state)} of "
            f"state each), "
            f"and there are {format_bytes(memory)}; lower {lower}"
        )


def check_fits(memory: int, parts: dict[str, float], config: RunConfig, device: torch.device) -> None:
    if sum(parts.values()) > memory:
        counted = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
        raise UserError(
            f"{config.name} would need at least {format_bytes(sum(parts.values()))} ({counted}), and {device} has "
            f"{format_bytes(memory)}; lower {what_to_lower(config)}"
        )


def batch_bytes(config: RunConfig, task: Task, processes: int) -> dict[str, float]:
    """Return the bytes that grow with the tokens of a step."""
    core, train = config.core, config.train
    streams, tokens = largest_batch(config, task, processes)
    minibatches = train.minibatches if isinstance(train, AgentTrainConfig) and train.algorithm == "ppo" else 1
    parts = train.accumulate * minibatches  # each has its own activations
    counted = {
        "activations": NUMBER * tokens * depth_of(core) * core.width / parts,
        "batches": TOKEN * max(tokens, streams * longest_episode(config, task))
        + STREAM * streams
        + POSITION * train.batch,
    }
    if isinstance(task, RLTask):
        # The observations of a rollout, and those of a part as float32 inputs of the encoders.
        space = task.observation_space
        counted["observations"] = tokens * (observation_bytes(space) + NUMBER * num_box_elements(space) / parts)
    return counted


def largest_batch(config: RunConfig, task: Task, processes: int) -> tuple[int, int]:
    """Return the batch size of the largest step of a process, and its number of tokens."""
    train = config.train
    if not isinstance(train, PairTrainConfig):
        streams = -(-train.batch // processes)
        return streams, streams * train.segment
    assert isinstance(task, PairTask)
    shapes = task.batch_shapes(train.batch, train.batch_tokens)
    pairs, tokens = max(shapes, key=lambda shape: shape[0] * shape[1], default=(0, 0))
    pairs = -(-pairs // processes)
    return pairs, pairs * tokens


def depth_of(core: Any) -> int:
    """Return the number of layers that a token goes through, in all computed passes."""
    return getattr(core, "layers", 1) * getattr(core, "computed", getattr(core, "passes", 1))


def model_bytes(config: RunConfig, task: Task, processes: int) -> dict[str, float]:
    """Return the bytes that grow with the model; infinity if a tensor is larger than 64 bits can count."""
    train = config.train
    numbers, state = model_and_state(config, task)
    streams, _ = largest_batch(config, task, processes)
    if not isinstance(train, PairTrainConfig):
        streams = max(streams, train.valid_batch)
    return {
        "parameters": NUMBER * numbers + LAYER * sum(layers_of(config, *field) for field in LAYER_FIELDS),
        "gradients and optimizer": NUMBER * numbers * (1 + OPTIMIZER_STATE.get(train.optimizer, 0)),
        "states": state * streams,
    }


def model_and_state(
    config: RunConfig, task: Task, layer_fields: Sequence[tuple[str, str]] = LAYER_FIELDS
) -> tuple[float, float]:
    """Return the number of parameters, and the bytes of one stream's state. Both are linear in the number of layers, so
    that models of a few layers suffice."""
    if not layer_fields:
        return count(config, task)
    field, *others = layer_fields
    layers, composition = layers_of(config, *field), getattr(config.core, "memory_composition", 0)
    few = max(SAMPLE, composition) if isinstance(composition, int) else SAMPLE
    if layers <= 2 * few:
        return model_and_state(config, task, others)
    (numbers, state), (more, larger) = (
        model_and_state(with_layers(config, *field, n), task, others) for n in (few, 2 * few)
    )
    left = layers / few - 2
    return more + left * (more - numbers), larger + left * (larger - state)


def layers_of(config: RunConfig, section: str, name: str) -> int:
    return getattr(getattr(config, section), name, 0)


def with_layers(config: RunConfig, section: str, name: str, layers: int) -> RunConfig:
    changed: dict[str, Any] = {section: dataclasses.replace(getattr(config, section), **{name: layers})}
    return dataclasses.replace(config, **changed)


def count(config: RunConfig, task: Task) -> tuple[float, float]:
    try:
        with torch.device("meta"):
            model: Any = config.make_model(task, "meta", "reference")
            state = model.core.init_state(1)
    except (RuntimeError, OverflowError, TypeError):  # a tensor that is larger than 64 bits can count
        return math.inf, math.inf
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return float(numbers), sum(leaf.tensor.numel() * leaf.tensor.element_size() for leaf in state.leaves())


def estimate_bytes(config: RunConfig, task: Task) -> float:
    """Return a rough upper estimate of the bytes, from the config alone."""
    core, train = config.core, config.train

    def size(name: str, otherwise: int = 1) -> int:
        return max(int(getattr(core, name, None) or otherwise), 1)

    width, depth = size("width"), depth_of(core)
    context = max(size("memory"), size("chunk") * size("passes"), size("max_tokens"), size("distances"))
    inner = size("inner", 4 * width) + max(size("heads") * size("head_width"), width)
    vocabulary = 0 if task.family == "rl" else sum(task.facts()[name] for name in ("inputs", "outputs"))
    numbers = 8 * size("layers") * width * inner * size("products") + width * (vocabulary + context)
    encoder = layers_of(config, "model", "encoder_layers")
    numbers += 8 * encoder * width * max(getattr(config.model, "encoder_inner", None) or 0, 4 * width)
    if isinstance(train, PairTrainConfig):
        streams, tokens = train.batch, max(train.batch_tokens, config.option("task.max_target_length"))
    else:
        streams = max(train.batch, train.valid_batch)
        tokens = streams * train.segment
    observed = 0
    if isinstance(task, RLTask):
        numbers += width * num_discrete_values(task.observation_space) + width * num_box_elements(
            task.observation_space
        )
        observed = tokens * (
            observation_bytes(task.observation_space) + NUMBER * num_box_elements(task.observation_space)
        )
    stored = streams * (context * depth * width + longest_episode(config, task)) + tokens * (depth * width + 1)
    total: float = NUMBER * (4 * numbers + stored) + observed + LAYER * (size("layers") + encoder) + STREAM * streams
    return total


def longest_episode(config: RunConfig, task: Task) -> int:
    """Return about how many tokens the longest episode of a generated task has, in any stage of the curriculum; 0 for
    tasks that read files."""
    if not isinstance(task, GeneratedTask):
        return 0
    longest = max(task.train.size, *(episodes.size for episodes, _ in task.splits.values()))
    for stage in config.train.make_curriculum().stages[-1:]:
        with suppress(UserError, TypeError):  # an invalid stage is reported when training starts
            episodes: Any = task.train
            longest = max(longest, dataclasses.replace(episodes, **stage).size)
    return longest


def what_to_lower(config: RunConfig) -> str:
    """Return the options that exceed those of the preset by the largest factors."""
    default = preset(config.name)
    raised = []
    for section in ("core", "model", "task", "train"):
        for name, value in integer_fields(getattr(config, section)):
            before = getattr(getattr(default, section), name, None)
            if (section != "train" or name in SIZE_FIELDS) and name not in NO_SIZE_FIELDS:
                raised.append((value / max(before if type(before) is int else 1, 1), f"--{section}.{name}", value))
    for stage in config.train.make_curriculum().stages[-1:]:
        for name, value in stage.items():
            if value <= getattr(config.task, name, 0):
                continue  # the curriculum ends at the task's own difficulty
            before = getattr(default.task, name, None)
            raised.append((value / max(before if type(before) is int else 1, 1), f"--train.curriculum {name}", value))
    worst = [f"{option} (now {value:,})" for ratio, option, value in sorted(raised, reverse=True)[:2] if ratio > 1]
    return " or ".join(worst) or "--train.batch, --train.segment, --core.width or --core.layers"


def integer_fields(section: Any) -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if type(value) is int:
            yield field.name, value


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory of a device; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def format_bytes(size: float) -> str:
    if not math.isfinite(size):
        return "9 EB"
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000:
            return f"{size:,.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} EB"
