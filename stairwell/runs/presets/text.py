"""Presets of language models.

At paper scale the hyperparameters are those of table 9 of Fan et al. 2020 and of tables 4 and 5 of Ju et al. 2021.
"""

from __future__ import annotations

import dataclasses

from stairwell.models import LanguageModelConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.presets.build import PresetScale, base_run, small_run, with_core
from stairwell.tasks.language import LanguageConfig
from stairwell.train.config import StreamTrainConfig


def language_model(core: str) -> RunConfig:
    return small_run(
        "lm", core, width=128, layers=3, heads=4, memory=64, context=64, chunk=16,
        train=StreamTrainConfig(
            steps=2000, batch=32, segment=64, learning_rate=1.5e-3, warmup=200, validate_every=500,
            valid_tokens=200_000,
        ),
    )  # fmt: skip


def wikitext(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the first paper's run on words of Wikipedia."""
    words = LanguageConfig(path="", unit="words", end_of_line=False)
    if scale == "laptop":
        base = base_run(
            task_name="lm", task=dataclasses.replace(words, vocabulary=10_000), layers=4, width=128, heads=4,
            dropout=0.1, model=LanguageModelConfig(tied=True, embedding_dropout=0.1),
            train=StreamTrainConfig(
                steps=2000, batch=16, segment=64, learning_rate=1.5e-3, warmup=200, max_grad_norm=0.1,
                finetune_steps=200, validate_every=200, valid_batch=16, valid_tokens=100_000,
            ),
        )  # fmt: skip
    else:
        model = LanguageModelConfig(
            tied=True, adaptive=(20_000, 40_000, 200_000), embedding_dropout=0.2, output_dropout=0.2
        )
        base = base_run(
            task_name="lm", task=words, layers=8, width=1024, heads=8, dropout=0.3, model=model,
            train=StreamTrainConfig(
                steps=200_000, batch=512, segment=256, learning_rate=7e-4, warmup=8000, max_grad_norm=0.1,
                finetune_steps=10_000, validate_every=2000, checkpoint_every=1000, valid_batch=16,
            ),
        )  # fmt: skip
    return with_core(base, core)


def small_wikitext(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the smaller one of the first paper's two models of words of Wikipedia."""
    if scale == "laptop":
        return wikitext(core, scale)
    sizes = {
        "layers": 4, "width": 512, "attention_dropout": 0.1, "relu_dropout": 0.1, "head_width": 128, "inner": 4096,
    }  # fmt: skip
    model = {"embedding_dropout": 0.1, "output_dropout": 0.1}
    return with_core(wikitext(scale=scale).replace(core=sizes, model=model), core)


def enwik8(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the first paper's run on bytes of Wikipedia."""
    if scale == "laptop":
        base = base_run(
            task_name="lm", task=LanguageConfig(path=""), layers=4, width=128, heads=4, core={"memory": 64},
            train=StreamTrainConfig(
                steps=2000, batch=32, segment=64, segment_warmup=32, learning_rate=1.5e-3, warmup=200,
                max_grad_norm=0.1, finetune_steps=200, validate_every=200, valid_batch=32, valid_tokens=100_000,
            ),
        )  # fmt: skip
    else:
        span = {"memory": 8192, "adaptive_span": True, "span_loss": 5e-7}
        base = base_run(
            task_name="lm", task=LanguageConfig(path=""), layers=12, width=512, heads=8, dropout=0.5,
            core={"head_width": 128, "inner": 4096, **span},
            train=StreamTrainConfig(
                steps=100_000, batch=1024, segment=128, segment_warmup=64, learning_rate=1.5e-3, warmup=8000,
                max_grad_norm=0.1, finetune_steps=10_000, validate_every=2000, checkpoint_every=1000, valid_batch=16,
                valid_tokens=1_000_000,
            ),
        )  # fmt: skip
    return with_core(base, core)


def char_ptb(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the first paper's run on characters of the Penn Treebank."""
    task = LanguageConfig(path="", unit="characters", separated=True, documents="none", prefix="ptb.char")
    if scale == "laptop":
        base = base_run(
            task_name="lm", task=task, layers=4, width=128, heads=4, core={"memory": 64}, dropout=0.1,
            train=StreamTrainConfig(
                steps=2000, batch=32, segment=64, learning_rate=1.5e-3, warmup=200, finetune_steps=200,
                validate_every=200, valid_batch=32, valid_tokens=50_000,
            ),
        )  # fmt: skip
    else:
        base = base_run(
            task_name="lm", task=task, layers=6, width=384, heads=4, core={"memory": 512}, dropout=0.5,
            train=StreamTrainConfig(
                steps=15_000, batch=2048, segment=128, learning_rate=1.5e-3, warmup=1000, max_grad_norm=1.0,
                finetune_steps=1000, validate_every=500, patience=4, valid_batch=16,
            ),
        )  # fmt: skip
    return with_core(base, core)


def shakespeare(core: str = "transformer-xl") -> RunConfig:
    """Return nanoGPT's recipe for a CPU, on characters."""
    base = base_run(
        task_name="lm", task=LanguageConfig(path="", unit="characters"), layers=4, width=128, heads=4,
        train=StreamTrainConfig(
            steps=2000, batch=12, segment=64, learning_rate=1e-3, warmup=100, decay="cosine", optimizer="adamw",
            beta2=0.99, weight_decay=0.1, max_grad_norm=1.0, validate_every=250, valid_batch=16,
        ),
    )  # fmt: skip
    return with_core(base, core)


def passes_run(task: LanguageConfig, width: int, scale: PresetScale) -> RunConfig:
    """Return the second paper's run on a text; `width` is that of paper scale. 8.2 million tokens at laptop scale."""
    if scale == "laptop":
        train = StreamTrainConfig(
            steps=2000, batch=32, segment=128, learning_rate=1.5e-3, warmup=200, decay="cosine", max_grad_norm=0.1,
            validate_every=250, checkpoint_every=250, valid_batch=32, valid_tokens=100_000,
        )  # fmt: skip
        return base_run(task_name="lm", task=task, layers=2, width=128, heads=4, train=train)
    train = StreamTrainConfig(
        steps=100_000, batch=512, segment=256, learning_rate=7e-4, warmup=8000, max_grad_norm=0.1,
        validate_every=2000, checkpoint_every=1000, valid_batch=16, valid_tokens=1_000_000,
    )  # fmt: skip
    return base_run(
        task_name="lm", task=task, layers=8, width=width, heads=8, dropout=0.3, train=train,
        model=LanguageModelConfig(embedding_dropout=0.2),
    )  # fmt: skip


def enwik8_passes(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the second paper's run on bytes of Wikipedia."""
    return with_core(passes_run(LanguageConfig(path=""), 512, scale), core)


def reddit(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the second paper's run on Reddit, which is not public; at laptop scale on Python's standard library."""
    path, vocabulary = ("stdlib", 4000) if scale == "laptop" else ("", 8000)
    task = LanguageConfig(path=path, unit="bpe", vocabulary=vocabulary, documents="none")
    return with_core(passes_run(task, 1024, scale), core)


def base_data(core: str = "transformer-xl", scale: PresetScale = "laptop") -> RunConfig:
    """Return the second paper's run on the BASE data, which is not public; at laptop scale on WikiText-2."""
    run = reddit(core, scale).replace(task={"path": ""})
    return run.replace(train={"steps": 80_000}) if scale == "paper" else run
