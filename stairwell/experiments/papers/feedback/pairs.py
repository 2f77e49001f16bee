"""What the translations and summaries of Fan et al. 2020 share: table 8's sizes, the trainings, what has to be said."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from stairwell.cores import config_type
from stairwell.experiments.experiment import Place, Row, Scale
from stairwell.experiments.measures import Metric, WritingSpeed
from stairwell.models import Seq2SeqConfig
from stairwell.runs.config import RunConfig
from stairwell.runs.families import see_target
from stairwell.tasks import summarization, translation
from stairwell.train.config import PairTrainConfig

WORDS_A_SECOND = WritingSpeed("words/s, beam 5")
BLEU = Metric("test BLEU", "bleu", tuned=True)
VALID_BLEU = Metric("valid BLEU", "bleu", "valid", tuned=True)
VALID_LOSS = Metric("valid loss (nats per token)", "loss", "valid", tuned=True)
SPLIT_BLEU = Metric("test BLEU, compounds split", "bleu_compounds_split", tuned=True)
ROUGE = Metric("test ROUGE-L", "rougeL", tuned=True)


@dataclass(frozen=True, kw_only=True)
class PairSetting:
    """An encoder and a decoder of equal width, heads and inner width."""

    task_name: str
    task: Any
    train: PairTrainConfig
    width: int
    heads: int
    inner: int
    encoder: int
    dropout: float
    norm: Literal["pre", "post"]

    def experiment(
        self,
        core_name: str,
        layers: int,
        encoder: int | None = None,
        layer_drop: float = 0.0,
        core: dict[str, Any] | None = None,
        **train: Any,
    ) -> RunConfig:
        """A decoder of some depth; of the encoder's depth only where it is not the setting's; `core` are further
        options of the decoder. A Transformer's decoder attends to the current token, as is usual."""
        own = {"attend_to_current": True} if core_name == "transformer-xl" else {}
        decoder = config_type(core_name)(
            **{
                "width": self.width, "heads": self.heads, "inner": self.inner, "layers": layers, "norm": self.norm,
                "residual_dropout": self.dropout, **own, **(core or {}),
            }
        )  # fmt: skip
        model = Seq2SeqConfig(
            encoder_layers=encoder or self.encoder, encoder_heads=self.heads, encoder_inner=self.inner,
            encoder_norm=self.norm, encoder_dropout=self.dropout, embedding_dropout=self.dropout,
            encoder_layer_drop=layer_drop,
        )  # fmt: skip
        return RunConfig(
            task_name=self.task_name,
            core_name=core_name,
            core=see_target(decoder, self.task),
            task=self.task,
            model=model,
            train=dataclasses.replace(self.train, **train),
        )


MULTI30K = PairSetting(
    task_name="translation",
    task=translation.Config(
        source="de", target="en", lowercase=True, vocabulary=5000, max_source_length=128, max_target_length=64
    ),
    train=PairTrainConfig(
        steps=3000, batch=512, batch_tokens=2048, learning_rate=3e-3, warmup=600, decay="inverse-sqrt", beta2=0.98,
        label_smoothing=0.1, validate_every=300, checkpoint_every=300, average=5,
    ),
    width=128, heads=4, inner=256, encoder=4, dropout=0.3, norm="pre",
)  # fmt: skip
LONG = PairTrainConfig(
    steps=300_000, batch=4096, batch_tokens=25_000, learning_rate=5e-4, warmup=4000, decay="inverse-sqrt", beta2=0.98,
    label_smoothing=0.1, validate_every=1000, checkpoint_every=1000, average=10,
)  # fmt: skip
WMT: dict[Scale, PairSetting] = {
    "laptop": MULTI30K,
    "paper": PairSetting(
        task_name="translation",
        task=translation.Config(source="en", target="de", vocabulary=32_000, max_target_length=256),
        train=LONG, width=1024, heads=16, inner=4096, encoder=6, dropout=0.3, norm="post",
    ),
}  # fmt: skip
IWSLT: dict[Scale, PairSetting] = {
    "laptop": MULTI30K,
    "paper": PairSetting(
        task_name="translation",
        task=translation.Config(source="de", target="en", vocabulary=10_000, max_target_length=256),
        train=dataclasses.replace(LONG, steps=50_000, batch_tokens=4096),
        width=512, heads=4, inner=1024, encoder=6, dropout=0.3, norm="post",
    ),
}  # fmt: skip
SUMMARIES: dict[Scale, PairSetting] = {
    "laptop": PairSetting(
        task_name="summarization",
        task=summarization.Config(words=0, max_source_length=256, max_target_length=48, vocabulary=8000),
        train=dataclasses.replace(MULTI30K.train, batch_tokens=8192, learning_rate=2e-3, warmup=800),
        width=128, heads=4, inner=256, encoder=4, dropout=0.2, norm="pre",
    ),
    "paper": PairSetting(
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
    "laptop": "functions and their docstrings, as `stairwell data docstrings` writes them",
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


def by_depth(setting: PairSetting, depths: tuple[int, ...], printed: dict[str, tuple[str, ...]]) -> tuple[Row, ...]:
    """Both decoders at every depth, the encoder unchanged; `printed` are the paper's numbers where it prints them."""
    rows = []
    for core, model in (("transformer-xl", "Transformer"), ("feedback", "Feedback")):
        for depth in depths:
            name = f"{model}, {depth} layer{'s' if depth > 1 else ''}"
            place = Place(DEPTH, model, depth)
            rows.append(Row(name, setting.experiment(core, depth), printed.get(name, ()), (place,)))
    return tuple(rows)
