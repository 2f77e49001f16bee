"""Translation: sentences of one language into another (Fan et al., arXiv 2002.09402, sections 4.2.1 and 6.2).

Byte pairs are learned from the training pairs of both languages together, or of each alone. A model is judged by its
loss or by BLEU (sacrebleu, 13a; lower-cased if the model knows lower case only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from stairwell import configs
from stairwell.errors import UserError
from stairwell.tasks import text_scores
from stairwell.tasks.pair_task import PairTask


@dataclass(frozen=True, kw_only=True)
class Config(configs.Config):
    path: str = ""
    "a folder with train.de, train.en, ... or with tables (jsonl, csv, tsv); not needed if source and target are files"
    source: str = "de"
    "the source: the ending of its files, a file's name, or a column of a table"
    target: str = "en"
    "the target: the ending of its files, a file's name, or a column of a table"
    test: str = ""
    "how the names of the test files begin, if there are several"
    lowercase: bool = False
    "read and write lower case only"
    vocabulary: int = 8000
    "number of byte pairs"
    joint: bool = True
    "one vocabulary for source and target"
    max_source_length: int = 256
    "tokens of a source; in training longer ones are left out, in use they are cut"
    max_target_length: int = 128
    "tokens of a target; in training longer ones are left out"
    primary_metric: Literal["loss", "bleu"] = "loss"
    "what the best model is chosen by"
    sample: int = 200
    "how many sentences to translate, greedily, at every validation; 0: none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)


class Translation(PairTask):
    verb: ClassVar[str] = "translate"
    metric: ClassVar[str] = "bleu"

    def rate(self, said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
        return {"bleu": text_scores.bleu(said, wanted, self.config.lowercase)[0]}

    def judge(self, said: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
        cased, signature = text_scores.bleu(said, wanted)
        lower, lower_signature = text_scores.bleu(said, wanted, lowercase=True)
        chrf, chrf_signature = text_scores.chrf(said, wanted)
        return {
            "bleu": lower if self.config.lowercase else cased,
            "bleu_cased": cased,
            "bleu_lowercase": lower,
            "bleu_compounds_split": text_scores.compound_bleu(said, wanted, self.config.lowercase),
            "chrf++": chrf,
            "signature_cased": signature,
            "signature_lowercase": lower_signature,
            "signature_chrf++": chrf_signature,
        }


def check(config: Any) -> None:
    for name in ("vocabulary", "max_source_length", "max_target_length"):
        if getattr(config, name) < 1:
            raise UserError(f"{name} must be at least 1, not {getattr(config, name)}")
    if config.vocabulary < 256:
        raise UserError(f"vocabulary must be at least 256, the number of bytes, not {config.vocabulary}")
    if config.sample < 0:
        raise UserError(f"sample must be 0 or more, not {config.sample}")
    if config.primary_metric != "loss" and not config.sample:
        raise UserError(f"a primary_metric of {config.primary_metric} needs a sample to be written: --task.sample 200")
