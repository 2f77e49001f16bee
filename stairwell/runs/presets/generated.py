"""Presets of tasks that generate their data: both papers' tasks and state tracking.

At paper scale the hyperparameters are those of table 9 and sections 7.1, 7.4 and 7.6 of Fan et al. 2020 and of tables 4
and 5 of Ju et al. 2021.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from stairwell.runs.config import RunConfig
from stairwell.runs.presets.build import PresetScale, base_run, small_run, with_core
from stairwell.tasks import task_type
from stairwell.tasks.algorithmic import AlgorithmicConfig
from stairwell.tasks.copying import CopyingConfig
from stairwell.tasks.counting import CountingConfig
from stairwell.tasks.generated import LengthConfig
from stairwell.tasks.permutations import PermutationsConfig
from stairwell.tasks.random_walk import RandomWalkConfig
from stairwell.train.config import StreamTrainConfig

# Both papers clip gradients at 0.1. With 1.0 a model can forget a state-tracking task within a few steps.
PAPER_CLIP = 0.1
STATEMENTS = 20  # of the programs that models are scored on at laptop scale


def random_walk(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    if scale == "quick":
        return small_run(
            "random-walk", core, heads=1, memory=16,
            train=StreamTrainConfig(
                steps=6000, batch=128, segment=32, learning_rate=1e-3, warmup=300, curriculum="length=8..100",
                validate_every=1000, checkpoint_every=1000, valid_batch=50,
            ),
        )  # fmt: skip
    if scale == "laptop":
        base = base_run(
            task_name="random-walk", task=RandomWalkConfig(length=100), layers=2, width=64, heads=1,
            train=StreamTrainConfig(
                steps=4000, batch=256, segment=32, learning_rate=3e-3, warmup=200, decay="cosine", max_grad_norm=1.0,
                stopping_threshold=99.8, curriculum="length=8..100", curriculum_accuracy=92, validate_every=250,
                checkpoint_every=500, valid_batch=50,
            ),
        )  # fmt: skip
    else:
        base = paper_run("random-walk", RandomWalkConfig(length=100, train_episodes=10_000))
    return with_core(base, core)


def paper_run(task_name: str, task: Any, **train: Any) -> RunConfig:
    """Return the run of the first paper's random walk, at paper scale, on a task."""
    config = StreamTrainConfig(
        steps=50_000, batch=512, segment=64, learning_rate=1e-4, warmup=1000, max_grad_norm=PAPER_CLIP,
        validate_every=1000, checkpoint_every=1000, valid_batch=50,
    )  # fmt: skip
    train_config = dataclasses.replace(config, **train)
    return base_run(task_name=task_name, task=task, layers=4, width=256, heads=4, dropout=0.2, train=train_config)


def long_random_walk(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the second paper's random walk, of 400 actions at paper scale."""
    run = random_walk(core, scale)
    return run.replace(task={"length": 400}, train={"segment": 128}) if scale == "paper" else run


def short_random_walk(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return a random walk of 50 actions at laptop scale."""
    if scale != "laptop":
        return long_random_walk(core, scale)
    train = {"steps": 1600, "curriculum": "length=8..50", "validate_every": 400}
    base = random_walk(scale=scale).replace(core={"heads": 4}, task={"length": 50}, train=train)
    return with_core(base, core)


def algorithmic(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    if scale == "quick":
        return small_run(
            "algorithmic", core, width=128, chunk=8,
            train=StreamTrainConfig(
                steps=10000, batch=128, segment=64, learning_rate=1e-3, warmup=300,
                curriculum="variables=1,statements=10;variables=2,statements=10;variables=3,statements=10..100",
                curriculum_accuracy=93, validate_every=2000, checkpoint_every=1000, valid_batch=50,
            ),
        )  # fmt: skip
    if scale == "laptop":
        base = base_run(
            task_name="algorithmic", task=AlgorithmicConfig(statements=STATEMENTS), layers=2, width=64, heads=4,
            train=StreamTrainConfig(
                steps=30_000, batch=32, segment=32, learning_rate=3e-3, warmup=200, decay="cosine",
                max_grad_norm=PAPER_CLIP,
                # One variable first, with every type of statement: a model that follows one soon tells two apart. A
                # Cached Staircase that started with two had not learned this after 16,000 steps.
                curriculum=(
                    "variables=1,statements=6,assigns=1,changes=1,prints=2,ifs=1;"
                    "variables=2,statements=6,assigns=8,changes=1,prints=4,ifs=1;"
                    "variables=3,statements=8,assigns=8,changes=1,prints=4,ifs=1;"
                    "variables=3,statements=8,assigns=2,changes=1,prints=2,ifs=1;"
                    "variables=3,statements=8..100,assigns=1,changes=1,prints=1,ifs=1"
                ),
                curriculum_accuracy=92, validate_every=1000, checkpoint_every=1000, valid_batch=50,
            ),
        )  # fmt: skip
    else:
        base = paper_run("algorithmic", AlgorithmicConfig(statements=100, train_episodes=10_000))
    return with_core(base, core)


def long_algorithmic(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the second paper's programs, with twice as many steps at paper scale."""
    run = algorithmic(core, scale)
    if scale != "paper":
        return run
    return run.replace(task={"variables": 3}, train={"steps": 100_000, "batch": 256, "segment": 128})


def copy(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    if scale == "quick":
        return small_run(
            "copy", core, width=128, heads=4, memory=801, context=801, chunk=16, task={"test_episodes": 100},
            train=StreamTrainConfig(
                steps=4000, batch=32, segment=82, warmup=300, curriculum="length=2..40", valid_batch=50
            ),
        )  # fmt: skip
    if scale == "laptop":
        base = base_run(
            task_name="copy", task=CopyingConfig(test_episodes=100), layers=2, width=128, heads=4,
            train=StreamTrainConfig(
                steps=3000, batch=16, segment=82, learning_rate=1e-3, warmup=200, decay="cosine",
                curriculum="length=2..40", valid_batch=50,
            ),
        )  # fmt: skip
    else:
        base = paper_run("copy", CopyingConfig(train_episodes=10_000), segment=82)
    return with_core(base, core)


def reverse(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    return dataclasses.replace(copy(core, scale), task_name="reverse").replace(task={"reverse": True})


def counting(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    if scale == "quick":
        return small_run(
            "counting", core, memory=101, context=101, chunk=8,
            train=StreamTrainConfig(steps=3000, batch=64, segment=64, warmup=300, valid_batch=50),
        )  # fmt: skip
    if scale == "laptop":
        base = base_run(
            task_name="counting", task=CountingConfig(), layers=2, width=64, heads=2,
            train=StreamTrainConfig(steps=2000, batch=32, segment=64, learning_rate=1e-3, warmup=300, valid_batch=50),
        )  # fmt: skip
    else:
        base = paper_run("counting", CountingConfig(train_episodes=10_000))
    return with_core(base, core)


def short_memory_run(task_name: str, core: str, train: StreamTrainConfig, context: int = 64, **sizes: int) -> RunConfig:
    """Return a run with a memory of two tokens: too short to look up short sequences, so that the model has to carry
    its state, which is what generalizes to longer sequences than those of training."""
    train = dataclasses.replace(train, max_grad_norm=PAPER_CLIP)
    return small_run(task_name, core, memory=2, context=context, chunk=1, train=train, **sizes)  # type: ignore[arg-type]


def parity(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    if scale == "quick":
        train = StreamTrainConfig(
            steps=2000, batch=128, segment=40, learning_rate=2e-3, warmup=100, curriculum="length=2..40",
            valid_batch=50,
        )  # fmt: skip
        return short_memory_run("parity", core, train, width=32, heads=1)
    if scale == "laptop":
        base = base_run(
            task_name="parity", task=LengthConfig(length=40, test_episodes=200), layers=2, width=32, heads=1,
            train=StreamTrainConfig(
                steps=1500, batch=256, segment=40, learning_rate=2e-3, warmup=100, decay="cosine",
                curriculum="length=2..40", valid_batch=50,
            ),
        )  # fmt: skip
    else:
        base = without_dropout(paper_run("parity", LengthConfig(length=40), segment=40, curriculum="length=2..40"))
    return with_core(base, core)


def s5(core: str = "transformer-xl", scale: PresetScale = "quick") -> RunConfig:
    if scale == "quick":
        train = StreamTrainConfig(
            steps=5000, batch=128, segment=20, learning_rate=1e-3, warmup=300, curriculum="length=1..20",
            valid_batch=50,
        )  # fmt: skip
        return short_memory_run("s5", core, train, width=128)
    if scale == "laptop":
        base = base_run(
            task_name="s5", task=PermutationsConfig(generators=True, length=40, test_length=200, test_episodes=200),
            layers=2, width=64, heads=2,
            train=StreamTrainConfig(
                steps=2500, batch=128, segment=40, learning_rate=1e-3, warmup=300, decay="cosine",
                curriculum="length=1..40", valid_batch=50,
            ),
        )  # fmt: skip
    else:
        task = PermutationsConfig(length=40, test_length=200)
        base = without_dropout(paper_run("s5", task, segment=40, curriculum="length=1..40"))
    return with_core(base, core)


def without_dropout(run: RunConfig) -> RunConfig:
    return run.replace(core={"attention_dropout": 0.0, "relu_dropout": 0.0})


def labeled(core: str) -> RunConfig:
    train = StreamTrainConfig(steps=2000, batch=32, segment=32, warmup=100)
    return short_memory_run("labeled", core, train, context=100)


def benchmark(task_name: str, core: str = "transformer-xl", scale: PresetScale = "quick", **task: Any) -> RunConfig:
    """Return the run of a task of the state-tracking benchmark; `task`: options of the task. Published models have no
    curriculum and at most 100,000 steps."""
    if scale == "quick":
        train = StreamTrainConfig(
            steps=5000, batch=128, segment=40, learning_rate=2e-3, warmup=300, decay="cosine",
            curriculum="length=3..40", valid_batch=50,
        )  # fmt: skip
        return short_memory_run(task_name, core, train, heads=4)
    if scale == "laptop":
        train = StreamTrainConfig(
            steps=3000, batch=256, segment=40, learning_rate=2e-3, warmup=300, decay="cosine", optimizer="adamw",
            weight_decay=0.01, max_grad_norm=PAPER_CLIP, curriculum="length=3..40", curriculum_accuracy=95,
            validate_every=250, checkpoint_every=250, valid_batch=50, stopping_threshold=99.95,
        )  # fmt: skip
    else:
        train = StreamTrainConfig(
            steps=100_000, batch=256, segment=40, learning_rate=2e-3, warmup=10_000, decay="cosine",
            optimizer="adamw", weight_decay=0.01, validate_every=5000, checkpoint_every=1000, valid_batch=50,
            stopping_threshold=99.95,
        )  # fmt: skip
    config, _ = task_type(task_name)
    base = base_run(
        task_name=task_name, task=config(valid_min_length=40, valid_length=256, valid_episodes=500, **task),
        layers=2, width=64 if scale == "laptop" else 128, heads=4, train=train,
    )  # fmt: skip
    return with_core(base, core)
