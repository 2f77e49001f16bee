"""Translation from one language into another (Fan et al., arXiv 2002.09402, sections 4.2.1 and 6.2).

Byte pairs are learned from the training pairs of both languages together, or of each separately. The primary metric is
the loss or BLEU (sacrebleu, 13a; lowercased if the model is).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from stairwell.tasks import text_scores
from stairwell.tasks.pair_task import PairConfig, PairTask


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(PairConfig):
    path: str = ""
    "Folder with train.de, train.en, ... or with tables (jsonl, csv, tsv); not needed if source and target are files."
    source: str = "de"
    target: str = "en"
    primary_metric: Literal["loss", "bleu"] = "loss"
    "Metric that the best model is chosen by."


class Translation(PairTask):
    config: TranslationConfig
    config_type = TranslationConfig
    verb: ClassVar[str] = "translate"
    metric: ClassVar[str] = "bleu"

    def text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {"bleu": text_scores.bleu(hypotheses, references, self.config.lowercase)[0]}

    def detailed_text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        cased, signature = text_scores.bleu(hypotheses, references)
        lower, lower_signature = text_scores.bleu(hypotheses, references, lowercase=True)
        chrf, chrf_signature = text_scores.chrf(hypotheses, references)
        return {
            "bleu": lower if self.config.lowercase else cased,
            "bleu_cased": cased,
            "bleu_lowercase": lower,
            "bleu_compounds_split": text_scores.compound_bleu(hypotheses, references, self.config.lowercase),
            "chrf++": chrf,
            "signature_cased": signature,
            "signature_lowercase": lower_signature,
            "signature_chrf++": chrf_signature,
        }
