"""What the translations and summaries of Fan et al. 2020 share: table 8's sizes, the trainings, what has to be said."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from stairwell.experiments.experiment import Scale, SweepPoint, Variant
from stairwell.experiments.measures import Metric, TranslationSpeed
from stairwell.models import Seq2SeqConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import base_run, with_core
from stairwell.tasks import summarization, translation
from stairwell.train.config import PairTrainConfig

WORDS_A_SECOND = TranslationSpeed("words/s, beam 5")
BLEU = Metric("test BLEU", "bleu", tuned=True)
VALID_BLEU = Metric("valid BLEU", "bleu", "valid", tuned=True)
VALID_LOSS = Metric("valid loss (nats per token)", "loss", "valid", tuned=True)
SPLIT_BLEU = Metric("test BLEU, compounds split", "bleu_compounds_split", tuned=True)
ROUGE = Metric("test ROUGE-L", "rougeL", tuned=True)


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
    return dataclasses.replace(run, core=run.family.fit_core(run.core, run.task))


MULTI30K_TRAIN = PairTrainConfig(
    steps=3000, batch=512, batch_tokens=2048, learning_rate=3e-3, warmup=600, decay="inverse-sqrt", beta2=0.98,
    label_smoothing=0.1, validate_every=300, checkpoint_every=300, average=5,
)  # fmt: skip
MULTI30K = seq2seq_run(
    task_name="translation",
    task=translation.Config(
        source="de", target="en", lowercase=True, vocabulary=5000, max_source_length=128, max_target_length=64
    ),
    train=MULTI30K_TRAIN,
    width=128, heads=4, inner=256, encoder=4, dropout=0.3, norm="pre",
)  # fmt: skip
LONG = PairTrainConfig(
    steps=300_000, batch=4096, batch_tokens=25_000, learning_rate=5e-4, warmup=4000, decay="inverse-sqrt", beta2=0.98,
    label_smoothing=0.1, validate_every=1000, checkpoint_every=1000, average=10,
)  # fmt: skip
WMT: dict[Scale, RunConfig] = {
    "laptop": MULTI30K,
    "paper": seq2seq_run(
        task_name="translation",
        task=translation.Config(source="en", target="de", vocabulary=32_000, max_target_length=256),
        train=LONG, width=1024, heads=16, inner=4096, encoder=6, dropout=0.3, norm="post",
    ),
}  # fmt: skip
IWSLT: dict[Scale, RunConfig] = {
    "laptop": MULTI30K,
    "paper": seq2seq_run(
        task_name="translation",
        task=translation.Config(source="de", target="en", vocabulary=10_000, max_target_length=256),
        train=dataclasses.replace(LONG, steps=50_000, batch_tokens=4096),
        width=512, heads=4, inner=1024, encoder=6, dropout=0.3, norm="post",
    ),
}  # fmt: skip
SUMMARIES: dict[Scale, RunConfig] = {
    "laptop": seq2seq_run(
        task_name="summarization",
        task=summarization.Config(words=0, max_source_length=256, max_target_length=48, vocabulary=8000),
        train=dataclasses.replace(MULTI30K_TRAIN, batch_tokens=8192, learning_rate=2e-3, warmup=800),
        width=128, heads=4, inner=256, encoder=4, dropout=0.2, norm="pre",
    ),
    "paper": seq2seq_run(
        task_name="summarization",
        task=summarization.Config(vocabulary=32_000),
        train=dataclasses.replace(LONG, steps=100_000),
        width=512, heads=8, inner=2048, encoder=6, dropout=0.3, norm="post",
    ),
}  # fmt: skip
WMT_DATA = {
    "laptop": "Multi30k, German to English: train.de, train.en, valid.de, ... in one folder",
    "paper": "WMT16 English to German with newstest2013 and newstest2014: train.en, train.de, valid.en, ...",
}
IWSLT_DATA = {"laptop": WMT_DATA["laptop"], "paper": "IWSLT14 German to English: train.de, train.en, valid.de, ..."}
SUMMARY_DATA = {
    "laptop": "functions and their docstrings, as `python -m tools.docstrings` writes them",
    "paper": "CNN-DailyMail: train.jsonl, valid.jsonl, test.jsonl with the columns source and target",
}
DEPTH = "layers of the decoder"
TAKEN = (
    "Table 8 prints layers, widths, heads, dropout and learning rate. Taken, because not printed: dropout on the "
    "output of every sublayer and on embeddings, as in Vaswani et al. 2017; norms after each sublayer; Adam with betas "
    "0.9 and 0.98, label smoothing 0.1, 4,000 updates of warm-up, then the inverse square root; learned relative "
    "positions in both decoders, sinusoids in the encoder; the number of steps, the batch, and the average of the last "
    "ten checkpoints. The Transformer's decoder attends to the current token too.",
    "Table 8 prints a learning rate of 0.001 for WMT; with batches of 25,000 tokens and post-norm ours is 0.0005, for "
    "0.001 belongs to batches of about 400,000.",
    "Only the decoder is a Feedback Transformer; keys and values have one pair of projections for all its layers.",
)
SMALL = (
    "Multi30k has 29,000 short sentences about pictures where the papers' data have millions or 160,000; width 128, an "
    "encoder of 4 layers, 5,000 joint byte pairs, lower case. All models have this one recipe.",
    "BLEU by sacrebleu, lower-cased, 13a, with the length penalty that is best on the validation set.",
)
SMALL_SUMMARIES = (
    "The corpus is what everyone has: functions of the installed Python packages as articles, the first line of their "
    "docstrings as summaries, split by package. Width 128, an encoder of 4 layers; all models have this one recipe.",
)


def by_depth(setting: RunConfig, depths: tuple[int, ...], printed: dict[str, tuple[str, ...]]) -> tuple[Variant, ...]:
    """Both decoders at every depth, the encoder unchanged; `printed` are the paper's numbers where it prints them."""
    variants = []
    for core, model in (("transformer-xl", "Transformer"), ("feedback", "Feedback")):
        for depth in depths:
            name = f"{model}, {depth} layer{'s' if depth > 1 else ''}"
            place = SweepPoint(DEPTH, model, depth)
            variants.append(Variant(name, decoder_run(setting, core, depth), printed.get(name, ()), (place,)))
    return tuple(variants)
