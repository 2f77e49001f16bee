"""Summarization of articles in a few sentences (Fan et al., arXiv 2002.09402, section 6.3).

The first 400 words of an article are read, as in the paper (See et al., 2017). The primary metric is the loss or ROUGE
(rouge-score, with stemming).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from stairwell.errors import UserError
from stairwell.tasks import text_scores
from stairwell.tasks.pair_task import PairConfig, PairTask

NAME_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")
WORD = re.compile(r"\w+|[^\w\s]+")


def split_words(program: str) -> list[str]:
    """Return the words of a program, with names split into their parts. Joined by spaces they get the same tokens as
    the words of a summary: byte pairs have one token for ` name` and another for the end of `user_name`."""
    return WORD.findall(NAME_PARTS.sub(" ", program))


@dataclass(frozen=True, kw_only=True)
class SummarizationConfig(PairConfig):
    path: str = ""
    "Folder with train.jsonl, valid.jsonl, ... (or csv, tsv, or parallel text files), or one such table."
    source: str = "source"
    "Column of the article, or suffix of its files."
    target: str = "target"
    "Column of the summary, or suffix of its files."
    words: int = 400
    "Number of words to read of an article; 0: all."
    split_names: bool = False
    "Whether to split names in programs, such as getUserName and get_user_name, into words."
    max_source_length: int = 1024
    max_target_length: int = 256
    primary_metric: Literal["loss", "rougeL"] = "loss"
    "Metric that the best model is chosen by."
    decode_examples: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words < 0:
            raise UserError(f"words must be 0 or more, not {self.words}")


class Summarization(PairTask):
    config: SummarizationConfig
    config_type = SummarizationConfig
    verb: ClassVar[str] = "summarize"
    metric: ClassVar[str] = "rougeL"
    # The paper's 3-gram blocking. The length of a summary does not depend on the length of the article.
    search_defaults: ClassVar[dict[str, Any]] = {"no_repeat_ngram_size": 3, "max_length_ratio": 0.0}

    def normalize_source(self, line: str) -> str:
        words = split_words(line) if self.config.split_names else line.split()
        return self.normalize(" ".join(words[: self.config.words or None]))

    def _source_options(self) -> list[Any]:
        return [self.config.words, self.config.split_names]

    def text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return text_scores.rouge(hypotheses, references)

    def detailed_text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return dict(self.text_metrics(hypotheses, references))
