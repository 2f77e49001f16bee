"""Presets of translation and summarization. At paper scale the sizes are those of table 8 of Fan et al. 2020."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from stairwell.models import Seq2SeqConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.presets.build import PresetScale, attend_to_target, base_run, small_run, with_core
from stairwell.tasks.summarization import SummarizationConfig
from stairwell.tasks.translation import TranslationConfig
from stairwell.train.config import PairTrainConfig

# Sizes and dropout for about 30,000 sentence pairs; larger corpora need more width.
SMALL_CORE: dict[str, Any] = {"inner": 256, "residual_dropout": 0.3}
SMALL_MODEL: dict[str, Any] = {
    "encoder_layers": 4, "encoder_inner": 256, "encoder_dropout": 0.3, "embedding_dropout": 0.3,
}  # fmt: skip


def translation(core: str) -> RunConfig:
    return small_run(
        "translation", core, width=128, heads=4, memory=128, context=128, chunk=16, core=SMALL_CORE, model=SMALL_MODEL,
        train=PairTrainConfig(
            steps=10000, batch=512, batch_tokens=4096, learning_rate=3e-3, warmup=1000, decay="inverse-sqrt",
            beta2=0.98, label_smoothing=0.1, validate_every=500, checkpoint_every=500, average=10,
        ),
    )  # fmt: skip


def summarization(core: str) -> RunConfig:
    return small_run(
        "summarization", core, width=128, heads=4, memory=256, context=256, chunk=16, core=SMALL_CORE,
        model=SMALL_MODEL,
        train=PairTrainConfig(
            steps=4000, batch=64, batch_tokens=8192, learning_rate=2e-3, warmup=500, decay="inverse-sqrt",
            beta2=0.98, label_smoothing=0.1, validate_every=250, checkpoint_every=250, average=5,
        ),
    )  # fmt: skip


def seq2seq_run(
    *, task_name: str, task: Any, train: PairTrainConfig, width: int, heads: int, inner: int, encoder: int,
    dropout: float, norm: Literal["pre", "post"],
) -> RunConfig:  # fmt: skip
    """Return a run whose encoder and decoder have equal width, heads and inner width."""
    model = Seq2SeqConfig(
        encoder_layers=encoder, encoder_heads=heads, encoder_inner=inner, encoder_norm=norm, encoder_dropout=dropout,
        embedding_dropout=dropout,
    )  # fmt: skip
    core = {"inner": inner, "norm": norm, "residual_dropout": dropout}
    return base_run(
        task_name=task_name, task=task, train=train, layers=1, width=width, heads=heads, core=core, model=model
    )


def decoder_run(
    base: RunConfig,
    core_name: str,
    layers: int,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    **core: Any,
) -> RunConfig:  # fmt: skip
    """Return a run with another decoder. A Transformer decoder attends to the current token, as is usual."""
    current: dict[str, Any] = {"attend_to_current": True} if core_name == "transformer-xl" else {}
    run = with_core(base, core_name, train=train, layers=layers, **current, **core).replace(model=model)
    return attend_to_target(run)


LAPTOP_TRAIN = PairTrainConfig(
    steps=3000, batch=512, batch_tokens=2048, learning_rate=3e-3, warmup=600, decay="inverse-sqrt", beta2=0.98,
    label_smoothing=0.1, validate_every=300, checkpoint_every=300, average=5,
)  # fmt: skip
PAPER_TRAIN = PairTrainConfig(
    steps=300_000, batch=4096, batch_tokens=25_000, learning_rate=5e-4, warmup=4000, decay="inverse-sqrt", beta2=0.98,
    label_smoothing=0.1, validate_every=1000, checkpoint_every=1000, average=10,
)  # fmt: skip


def multi30k() -> RunConfig:
    task = TranslationConfig(
        source="de", target="en", lowercase=True, vocabulary=5000, max_source_length=128, max_target_length=64
    )
    return seq2seq_run(
        task_name="translation", task=task, train=LAPTOP_TRAIN, width=128, heads=4, inner=256, encoder=4, dropout=0.3,
        norm="pre",
    )  # fmt: skip


def wmt(scale: PresetScale) -> RunConfig:
    """Return the run on WMT English to German; on Multi30k at laptop scale."""
    if scale == "laptop":
        return multi30k()
    task = TranslationConfig(source="en", target="de", vocabulary=32_000, max_target_length=256)
    return seq2seq_run(
        task_name="translation", task=task, train=PAPER_TRAIN, width=1024, heads=16, inner=4096, encoder=6,
        dropout=0.3, norm="post",
    )  # fmt: skip


def iwslt(scale: PresetScale) -> RunConfig:
    """Return the run on IWSLT German to English; on Multi30k at laptop scale."""
    if scale == "laptop":
        return multi30k()
    return seq2seq_run(
        task_name="translation",
        task=TranslationConfig(source="de", target="en", vocabulary=10_000, max_target_length=256),
        train=dataclasses.replace(PAPER_TRAIN, steps=50_000, batch_tokens=4096),
        width=512, heads=4, inner=1024, encoder=6, dropout=0.3, norm="post",
    )  # fmt: skip


def summaries(scale: PresetScale) -> RunConfig:
    """Return the run on CNN-DailyMail; on docstrings at laptop scale."""
    if scale == "laptop":
        return seq2seq_run(
            task_name="summarization",
            task=SummarizationConfig(words=0, max_source_length=256, max_target_length=48, vocabulary=8000),
            train=dataclasses.replace(LAPTOP_TRAIN, batch_tokens=8192, learning_rate=2e-3, warmup=800),
            width=128, heads=4, inner=256, encoder=4, dropout=0.2, norm="pre",
        )  # fmt: skip
    return seq2seq_run(
        task_name="summarization", task=SummarizationConfig(vocabulary=32_000),
        train=dataclasses.replace(PAPER_TRAIN, steps=100_000), width=512, heads=8, inner=2048, encoder=6, dropout=0.3,
        norm="post",
    )  # fmt: skip
