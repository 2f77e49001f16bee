"""Experiments: every table at both scales, with the sizes, hyperparameters and numbers that the papers print."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import CachedStaircaseConfig
from stairwell.cores import GlobalCachedStaircaseConfig, StaircaseConfig
from stairwell.decode import Session
from stairwell.errors import UserError
from stairwell.experiments import measures, reproduce
from stairwell.experiments.cost import blueprint, estimate, total_tokens
from stairwell.experiments.experiment import SCALES, Experiment, Scale, Variant
from stairwell.experiments.papers import CATALOG, NO_EXPERIMENTS, NOT_AT_SCALE, find_experiments
from stairwell.experiments.papers.feedback.figure3 import MEMORY
from stairwell.experiments.papers.feedback.figure8 import LAYER
from stairwell.experiments.papers.feedback.figure9 import LAYERS
from stairwell.experiments.papers.feedback.pairs import DEPTH
from stairwell.experiments.papers.feedback.table1 import on_more_variables
from stairwell.experiments.papers.staircase.shared import CHUNK, PASSES
from stairwell.layers import POSITIONS
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs import preset, presets
from stairwell.runs.config import RunConfig
from tests.train.test_loop import trainer

pytestmark = pytest.mark.quick

NAMES = list(CATALOG)
MISSING = set(NOT_AT_SCALE)
PAPER_ONLY = tuple(name for name, scale in NOT_AT_SCALE if scale == "laptop")
READING = ("lm", "translation", "summarization")


@cache
def experiment_of(name: str, scale: Scale) -> Experiment:
    experiment = CATALOG[name](scale)
    assert experiment is not None
    return experiment


def variant(name: str, model: str, scale: Scale = "paper") -> Variant:
    return next(variant for variant in experiment_of(name, scale).variants if variant.name.startswith(model))


def count_parameters(config: RunConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in blueprint(config).parameters())


def fields(value: Any, **expected: Any) -> None:
    assert {name: getattr(value, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, scale) for name in NAMES for scale in SCALES if (name, scale) not in MISSING],
)
def test_every_experiment_can_be_built_without_data(name: str, scale: Scale) -> None:
    experiment = experiment_of(name, scale)
    assert experiment.name == name and experiment.scale == scale and experiment.variants
    assert experiment.paper and experiment.title and (experiment.claim or name.startswith("extra"))
    assert experiment.notes or scale == "paper", "an experiment at laptop scale says what is smaller"
    assert all(len(variant.paper) in (0, len(experiment.columns)) for variant in experiment.variants)
    assert len({column.title for column in experiment.columns}) == len(experiment.columns)
    for each in experiment.variants:
        assert RunConfig.from_json(each.config.to_json(), name) == each.config
        assert estimate(each.config, 1e12) > 0
        if each.config.task_name not in READING:
            each.config.make_tasks()
        elif not each.config.task.path:
            assert experiment.data, "an experiment on text without a default corpus names its corpus"


def test_a_name_without_its_last_part_selects_all_parts() -> None:
    assert [experiment.name.rpartition(".")[2] for experiment in find_experiments("staircase.table1", "laptop")] == [
        "random-walk", "algorithm", "enwik8", "reddit", "base",
    ]  # fmt: skip
    assert len(find_experiments("feedback.table1", "paper")) == 7
    assert len(find_experiments("feedback.figure9", "laptop")) == 2
    assert {name.split(".")[0] for name in NAMES} == {"demo", "feedback", "staircase", "extra"}


@pytest.mark.parametrize("name", ["feedback.figure5", "feedback.figure8", "feedback.figure9.char-ptb"])
@pytest.mark.parametrize("scale", SCALES)
def test_models_of_a_figure_have_the_same_number_of_parameters(name: str, scale: Scale) -> None:
    sizes = [count_parameters(each.config) for each in experiment_of(name, scale).variants]
    assert max(sizes) <= (1.02 if scale == "laptop" else 1.025) * min(sizes)


@pytest.mark.parametrize(
    "name",
    ["feedback.figure9.wikitext-103", "staircase.table7", "staircase.table6", "staircase.table9", "staircase.table3"],
)
def test_models_of_a_table_have_the_same_number_of_parameters(name: str) -> None:
    sizes = [count_parameters(each.config) for each in experiment_of(name, "paper").variants]
    assert max(sizes) <= 1.02 * min(sizes)


def test_an_lstm_as_large_as_a_transformer() -> None:
    transformer = variant("feedback.figure5", "Transformer", "laptop").config
    lstm = presets.match_parameters(transformer, variant("feedback.table4", "Feedback", "laptop").config, 50)
    assert count_parameters(variant("feedback.figure5", "LSTM", "laptop").config) == pytest.approx(
        count_parameters(transformer), rel=0.02
    )
    assert lstm.core.inner % 8 == 0


def test_the_first_papers_hyperparameters() -> None:
    """Table 9 and section 7.6."""
    walk = variant("feedback.table1.random-walk", "Feedback").config
    fields(walk.core, layers=4, width=256, F=1024, heads=4, K=64, memory=100, attention_dropout=0.2, relu_dropout=0.2)
    fields(walk.train, segment=64, batch=512, learning_rate=1e-4, max_grad_norm=0.1, warmup=1000)
    fields(walk.task, length=100, train_episodes=10_000)
    assert variant("feedback.table1.algorithmic-3", "Feedback").config.train.steps == 50_000

    ptb = variant("feedback.figure5", "Feedback, memory").config
    fields(ptb.core, layers=6, width=384, F=1536, heads=4, K=96, memory=512, attention_dropout=0.5)
    fields(ptb.train, segment=128, batch=2048, learning_rate=1.5e-3, max_grad_norm=1.0, warmup=1000)
    fields(ptb.train, steps=15_000, finetune_steps=1000, finetune_lr_factor=0.1)
    assert ptb.train.patience and ptb.task.separated

    enwik8 = variant("feedback.table4", "Feedback").config
    fields(enwik8.core, layers=12, width=512, F=4096, heads=8, K=128, memory=8192, adaptive_span=True, span_loss=5e-7)
    fields(enwik8.core, attention_dropout=0.5, relu_dropout=0.5)
    fields(
        enwik8.train, segment=128, segment_warmup=64, batch=1024, learning_rate=1.5e-3, max_grad_norm=0.1, warmup=8000
    )
    fields(enwik8.train, steps=100_000, finetune_steps=10_000)

    small = variant("feedback.figure9.wikitext-103", "Feedback, 4").config
    fields(small.core, layers=4, width=512, F=4096, heads=8, K=128, memory=512, attention_dropout=0.1)
    fields(small.model, embedding_dropout=0.1, output_dropout=0.1, tied=True)

    for model in ("Transformer", "Feedback"):
        large = variant("feedback.table3", model).config
        fields(large.core, layers=8, width=1024, F=4096, heads=8, K=128, memory=2048, span_loss=1e-5)
        fields(large.core, attention_dropout=0.3, relu_dropout=0.3, norm="pre")
        fields(large.model, embedding_dropout=0.2, output_dropout=0.2, adaptive=(20_000, 40_000, 200_000))
        fields(large.train, segment=256, batch=512, learning_rate=7e-4, max_grad_norm=0.1, warmup=8000)
        fields(large.train, steps=200_000, finetune_steps=10_000, finetune_task="end_of_line=true")
        assert large.task.end_of_line is False


def test_the_variants_of_table_6_differ_as_printed() -> None:
    variants = experiment_of("feedback.table6", "paper").variants
    assert [each.config.core.norm for each in variants] == ["post", "post", "pre", "pre"] * 2
    assert [each.config.core.memory for each in variants] == [512, 512, 512, 2048] * 2
    grows = [each.config.train.segment_warmup > 0 for each in variants]
    assert grows == [False, True, True, False, False, True, True, True]
    assert not any(each.config.train.finetune_steps for each in variants)


def test_depth_changes_head_and_inner_width_inversely() -> None:
    for each in experiment_of("feedback.figure9.char-ptb", "paper").variants:
        core = each.config.core
        assert core.layers * core.K == 6 * 96 and core.layers * core.F == 6 * 1536


def test_the_second_papers_hyperparameters() -> None:
    """Tables 4 and 5 and appendix A."""
    walk = variant("staircase.table1.random-walk", "Staircase").config
    fields(walk.core, layers=4, width=256, heads=4, passes=8, chunk=8, attention_dropout=0.2)
    fields(walk.train, segment=128, batch=512, learning_rate=1e-4, max_grad_norm=0.1, warmup=1000, steps=50_000)
    assert walk.task.length == 400

    programs = variant("staircase.table1.algorithm", "Staircase").config
    fields(programs.core, layers=4, width=256, heads=4, passes=8, chunk=8, attention_dropout=0.2)
    fields(programs.train, segment=128, batch=256, learning_rate=1e-4, max_grad_norm=0.1, warmup=1000, steps=100_000)
    fields(programs.task, variables=3, statements=100)

    reddit = variant("staircase.table1.reddit", "Staircase").config
    fields(reddit.core, layers=8, width=1024, heads=8, passes=8, chunk=32, attention_dropout=0.3)
    fields(reddit.train, segment=256, batch=512, learning_rate=7e-4, max_grad_norm=0.1, warmup=8000, steps=100_000)
    assert reddit.model.embedding_dropout == 0.2
    assert variant("staircase.table1.base", "Staircase").config.train.steps == 80_000

    enwik8 = variant("staircase.table1.enwik8", "Staircase").config
    fields(enwik8.core, layers=8, width=512, heads=8, passes=4, chunk=64, attention_dropout=0.3)
    fields(enwik8.train, segment=256, batch=512, learning_rate=7e-4, max_grad_norm=0.1, warmup=8000, steps=100_000)


def test_the_toy_tasks_have_ten_seeds_and_five_of_cached_staircase() -> None:
    for name in ("staircase.table1.random-walk", "staircase.table1.algorithm", "staircase.table6", "staircase.table7"):
        experiment = experiment_of(name, "paper")
        for each in experiment.variants:
            assert experiment.seeds_for(each) == (5 if each.name.startswith("Cached") else 10)
            longer = each.name.startswith("Global")
            assert (each.config.train.steps == 400_000) == longer
            assert each.config.task.reset == longer
    assert experiment_of("staircase.table2", "paper").seeds == 1


def test_an_experiment_that_does_not_exist_at_a_scale_is_rejected() -> None:
    assert CATALOG["feedback.table2"]("laptop") is None
    with pytest.raises(UserError, match="does not exist at laptop scale; try --scale paper"):
        find_experiments("feedback.table2", "laptop")


@pytest.mark.parametrize(
    ("name", "layers", "inner", "heads", "width", "rate"),
    [
        ("feedback.figure7.summarization", 6, 2048, 8, 512, 0.0005),
        # Table 8 prints 0.001, which suits batches of about 400,000 tokens.
        ("feedback.figure4.translation", 6, 4096, 16, 1024, 0.0005),
        ("feedback.figure7.iwslt", 6, 1024, 4, 512, 0.0005),
    ],
)
def test_sequence_to_sequence_hyperparameters_are_those_of_table_8(
    name: str, layers: int, inner: int, heads: int, width: int, rate: float
) -> None:
    for model in ("Transformer", "Feedback"):
        config = variant(name, f"{model}, 6 layers").config
        fields(config.core, layers=layers, inner=inner, heads=heads, width=width, residual_dropout=0.3, cross=False)
        fields(config.model, encoder_layers=6, encoder_inner=inner, encoder_heads=heads, encoder_dropout=0.3)
        assert config.train.learning_rate == rate and config.train.average == 10
        assert config.core.attend_to_current == (model == "Transformer")
        assert config.core.memory == config.task.max_target_length, "the memory holds a whole target"
    deep = variant("feedback.figure4.translation", "Feedback, 2 layers, encoder of 12").config
    assert (deep.model.encoder_layers, deep.core.layers) == (12, 2) and deep.model.encoder_layer_drop > 0


def test_agents_have_the_hyperparameters_of_sections_7_2_and_7_3() -> None:
    maze, easy = variant("feedback.figure4.maze", "Feedback").config, variant("feedback.figure6.maze-easy", "Feedback")
    fields(maze.core, layers=2, width=256, heads=4, memory=200)
    fields(maze.train, algorithm="a2c", optimizer="adam", learning_rate=3e-4, ent_coef=5e-4, batch=1024, segment=100)
    fields(maze.train, gamma=0.99, gae_lambda=1.0)
    fields(easy.config.train, optimizer="rmsprop", eps=0.01, learning_rate=3e-4, batch=128)
    fields(variant("feedback.figure4.maze", "LSTM").config.core, layers=3, width=256)
    water, lstm = (variant("feedback.figure6.water-maze", model).config for model in ("Feedback", "LSTM"))
    fields(water.core, layers=2, width=64, heads=1, memory=200)
    fields(water.train, optimizer="rmsprop", eps=0.01, ent_coef=1e-4, batch=64, segment=200, learning_rate=3e-4)
    fields(lstm.core, layers=2, width=64)
    assert lstm.train.learning_rate == 4e-4
    assert abs(water.train.steps * water.train.batch * water.train.segment / 500e6 - 1) < 0.01


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", ["feedback.figure4.maze", "feedback.figure6.maze-easy", "feedback.figure6.water-maze"])
def test_agents_in_mazes_read_their_last_action_and_reward(name: str, scale: Scale) -> None:
    for each in experiment_of(name, scale).variants:
        fields(each.config.model, last_action=True, last_reward=True)


def test_rewards_are_normalized_unless_a_published_experiment_was_trained_without() -> None:
    assert preset("rl/feedback").train.normalize_rewards
    for name in NAMES:
        for each in experiment_of(name, "laptop").variants if CATALOG[name]("laptop") else ():
            if each.config.task_name == "rl":
                assert not each.config.train.normalize_rewards, name


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", ["feedback.figure4.maze", "feedback.figure6.maze-easy"])
def test_the_lstm_of_both_mazes_has_as_many_parameters_as_the_transformer(name: str, scale: Scale) -> None:
    """3 layers and 2, as in section 7.2."""
    lstm, transformer = (variant(name, model, scale).config for model in ("LSTM", "Transformer"))
    assert (lstm.core.layers, transformer.core.layers) == (3, 2)
    assert abs(count_parameters(lstm) / count_parameters(transformer) - 1) < 0.02


def test_table_8_reads_episodes_and_the_others_one_stream() -> None:
    assert {each.config.task.episode for each in experiment_of("staircase.table8", "paper").variants} == {256}
    assert {each.config.task.episode for each in experiment_of("staircase.table2", "paper").variants} == {0}


ABLATIONS_OF_TRAINING = ("feedback.table6", "extra.stale-states")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*ABLATIONS_OF_TRAINING, *PAPER_ONLY)])
def test_all_models_of_a_table_at_laptop_scale_have_the_same_training_config(name: str) -> None:
    """Except for second variants whose names say what differs: no curriculum, another learning rate, more steps."""
    variants = experiment_of(name, "laptop").variants
    second = [each for each in variants if re.search(r"no curriculum$|, learning rate |,000 steps$", each.name)]
    (shared,) = {each.config.train for each in variants if each not in second}
    for each in second:
        assert any(each.name.startswith(f"{variant.name}, ") for variant in variants if variant not in second)
        own: dict[str, Any] = {"curriculum": "", "curriculum_accuracy": 96.0}
        if ", learning rate " in each.name:
            own = {"learning_rate": float(each.name.split()[-1])}
        elif each.name.endswith(" steps"):
            own = {"steps": int(each.name.split()[-2].replace(",", ""))}
        assert each.config.train == dataclasses.replace(shared, **own)


def test_runs_with_stale_states_differ_in_windows_only() -> None:
    variants = experiment_of("extra.stale-states", "laptop").variants
    (shared,) = {dataclasses.replace(each.config.train, bptt_length=0, bptt_state="stored") for each in variants}
    assert shared.epochs == 10 and len({each.config.core for each in variants}) == 1


def test_a_curriculum_is_extended_to_five_variables() -> None:
    longer = on_more_variables("variables=1,statements=4;variables=3,statements=4..6", 5)
    assert longer == (
        "variables=1,statements=4;variables=3,statements=4;"
        "variables=5,statements=4;variables=5,statements=5;variables=5,statements=6"
    )
    curriculum = presets.algorithmic(scale="laptop").train.curriculum
    assert on_more_variables(curriculum, 3) == curriculum


def test_every_table_and_figure_of_both_papers_is_an_experiment_or_listed_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reproduce, "estimate", lambda *_: 1.0)  # it takes seconds
    papers = {"feedback": (9, 10), "staircase": (9, 3)}  # number of tables and figures
    printed = {
        f"{paper}.{kind}{number}"
        for paper, counts in papers.items()
        for kind, count in zip(("table", "figure"), counts)
        for number in range(1, count + 1)
    }
    experiment = {".".join(name.split(".")[:2]) for name in CATALOG if not name.startswith(("extra", "demo"))}
    assert experiment | set(NO_EXPERIMENTS) == printed and not experiment & set(NO_EXPERIMENTS)
    lines: list[str] = []
    reproduce.describe(lines.append)
    for name in (*CATALOG, *NO_EXPERIMENTS):
        assert any(text.startswith(f"{name}\n") for text in lines), name
    for (name, scale), why in NOT_AT_SCALE.items():
        assert CATALOG[name](scale) is None
        assert any(text.startswith(f"{name}\n") and why in text for text in lines)


def test_copy_and_reverse_with_every_type_of_position_embeddings() -> None:
    for name in ("copy", "reverse"):
        experiment, plain = (
            experiment_of(f"extra.distances.{name}", "laptop"),
            experiment_of(f"feedback.table1.{name}", "laptop"),
        )
        assert [variant.config.core.positions for variant in experiment.variants] == [*POSITIONS, *POSITIONS]
        # The learned ones are those of the paper's experiment, which need not be trained again.
        assert [experiment.variants[0].config, experiment.variants[4].config] == [
            variant.config for variant in plain.variants[1:]
        ]


# The config field of a variant's core that each axis varies.
FIELDS = {
    CHUNK: "chunk",
    PASSES: "passes",
    MEMORY: "memory",
    DEPTH: "layers",
    LAYERS: "layers",
    LAYER: "memory_composition",
}
SWEEPS = {
    "feedback.figure3": MEMORY,
    "feedback.figure4.translation": DEPTH,
    "feedback.figure7.iwslt": DEPTH,
    "feedback.figure7.summarization": DEPTH,
    "feedback.figure8": LAYER,
    "feedback.figure9.char-ptb": LAYERS,
    "feedback.figure9.wikitext-103": LAYERS,
    **{f"staircase.figure2.{task}": PASSES for task in ("random-walk", "algorithm", "enwik8", "reddit")},
    **{f"staircase.{table}": CHUNK for table in ("table3", "table6", "table7", "table8", "table9")},
}


@pytest.mark.parametrize("scale", SCALES)
def test_sweeps_vary_the_field_of_their_axis(scale: Scale) -> None:
    experiment = {name: experiment_of(name, scale) for name in NAMES if (name, scale) not in MISSING}
    assert {name: each.axes[0] for name, each in experiment.items() if each.axes} == {
        **SWEEPS,
        "extra.chunk-passes": CHUNK,
    }
    for each in experiment.values():
        for axis in each.axes:
            points = [(variant, point) for variant in each.variants if (point := variant.point(axis))]
            assert all(point.x == getattr(variant.config.core, FIELDS[axis]) for variant, point in points)
            assert all(point.printed for _, point in points) or scale == "laptop"
            # A series has a single model and more than one point.
            cores = {(point.series, variant.config.core_name) for variant, point in points}
            assert len(cores) == len({series for series, _ in cores})
            assert len({point.x for _, point in points}) > 1


def test_an_experiment_rejects_points_and_columns_that_cannot_be_plotted() -> None:
    experiment = experiment_of("feedback.figure3", "laptop")
    twice = (*experiment.variants, dataclasses.replace(experiment.variants[0], name="the same again"))
    for changes in ({"axes": ("depth",)}, {"plotted": ("loss",)}, {"variants": twice}):
        with pytest.raises(AssertionError, match=r"feedback\.figure3"):
            dataclasses.replace(experiment, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", SCALES)
def test_chunk_and_passes_are_varied_one_at_a_time(scale: Scale) -> None:
    experiment = experiment_of("extra.chunk-passes", scale)
    series: dict[tuple[str, str], list[Any]] = {}
    for each in experiment.variants:
        for point in each.points:
            series.setdefault((point.axis, each.config.core_name), []).append(each.config.core)
    by_chunk, by_passes = series[CHUNK, "staircase"], series[PASSES, "staircase"]
    cached = series[CHUNK, "cached-staircase"]
    assert {core.passes for core in by_chunk} == {4} and len({core.chunk for core in by_chunk}) == 4
    assert [core.passes for core in by_passes] == [4, 1, 2, 8] and len({core.chunk for core in by_passes}) == 1
    assert {core.compute for core in cached} == {1} and len({core.passes * core.chunk for core in cached}) == 1
    assert [core.chunk for core in cached] == [core.chunk for core in by_chunk]
    # Nothing else differs, and the variant of both series is trained once.
    plain = {dataclasses.replace(core, chunk=1, passes=1) for core in (*by_chunk, *by_passes)}
    assert len(plain) == 1 and len(experiment.variants) == 11
    assert len({(each.config.task, each.config.train) for each in experiment.variants}) == 1
    if scale == "laptop":
        assert [core.chunk for core in by_chunk] == [1, 2, 4, 8]
        assert experiment.columns[1].values[-1] == experiment.variants[0].config.task.length  # type: ignore[attr-defined]
        rate = reproduce.TYPICAL["laptop"][0] / 2  # for one core
        assert sum(estimate(each.config, rate) for each in experiment.variants) <= 4 * 3600 and experiment.seeds == 1
        base_train = variant("staircase.table1.random-walk", "Staircase", "laptop").config.train
        changed = {
            name
            for name in base_train.__dataclass_fields__
            if getattr(base_train, name) != getattr(experiment.variants[0].config.train, name)
        }
        assert changed == {"steps", "curriculum", "validate_every"}


@pytest.mark.parametrize("name", ["feedback.figure5", "feedback.figure8", "feedback.figure9.char-ptb"])
def test_character_models_train_for_2000_steps_with_three_seeds(name: str) -> None:
    experiment = experiment_of(name, "laptop")
    assert {experiment.seeds_for(each) for each in experiment.variants} == {3}
    assert {(each.config.train.steps, each.config.train.max_grad_norm) for each in experiment.variants} == {(2000, 1.0)}


@pytest.mark.parametrize("name", ["figure4.maze", "figure6.maze-easy", "figure6.water-maze"])
def test_mazes_train_for_6_million_frames_with_two_seeds(name: str) -> None:
    experiment = experiment_of(f"feedback.{name}", "laptop")
    for each in experiment.variants:
        train = each.config.train
        assert isinstance(train, AgentTrainConfig)
        frames = train.steps * train.batch * train.segment / train.optimizer_steps_per_rollout
        assert 5.9e6 < total_tokens(each.config) <= frames <= 6e6 and experiment.seeds_for(each) == 2
        assert each.config.model.last_action and each.config.model.last_reward  # type: ignore[union-attr]


def test_decoder_depths_have_three_seeds_and_dropout_equal_budgets() -> None:
    for name in ("feedback.figure4.translation", "feedback.figure7.iwslt"):
        experiment = experiment_of(name, "laptop")
        assert {experiment.seeds_for(each) for each in experiment.variants} == {3}
    settings: dict[str, set[tuple[float, bool]]] = {}
    for each in experiment_of("extra.decoder-dropout", "laptop").variants:
        core: Any = each.config.core
        settings.setdefault(each.config.core_name, set()).add((core.residual_dropout, core.locked_dropout))
    assert settings["feedback"] == settings["transformer-xl"] == {(0, False), (0.1, False), (0.3, False), (0.3, True)}


@pytest.mark.parametrize("name", ["lengths.copy", "lengths.reverse", "lengths.counting"])
def test_spread_lengths_clip_gradients_as_the_papers_do(name: str) -> None:
    for each in experiment_of(f"extra.{name}", "laptop").variants:
        assert each.config.train.max_grad_norm == 0.1


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_counting_with_a_short_memory_cannot_attend_to_a_whole_sequence(scale: Any) -> None:
    experiment = experiment_of("extra.lengths.counting", scale)
    assert len({each.name for each in experiment.variants}) == 7
    for each in experiment.variants:
        config: Any = each.config
        assert config.task.length == 200
        if config.core_name != "lstm":
            assert config.core.memory == 32
            assert (config.core.position_embeddings == 16) == (config.core.positions == "clamped")


def test_defaults_are_the_papers() -> None:
    assert (StaircaseConfig().chunk, CachedStaircaseConfig().compute) == (32, 1)
    assert (GlobalCachedStaircaseConfig().compute, GlobalCachedStaircaseConfig().distances) == (1, 512)
    assert measures.STREAMS == {False: 50, True: 16}
    assert measures.LargestSolved("", "length", ()).threshold == 90


def test_decoding_speed_counts_the_decoded_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path, "parity/feedback")
    monkeypatch.setattr(measures, "load", lambda *_: (run.model.eval(), None))
    steps: list[int] = []
    step = Session.step
    monkeypatch.setattr(Session, "step", lambda self, tokens: (steps.append(1), step(self, tokens))[1])
    measures.DecodingSpeed("", state_bytes=1, steps=7).measure(run.folder, "cpu", "auto")
    assert len(steps) == 3 + 7
