"""Summarization: an article's first words into a few sentences (Fan et al., arXiv 2002.09402, section 6.3).

The first 400 words of an article are read, as in the paper (See et al., 2017). A model is judged by its loss or by
ROUGE (rouge-score, with stemming).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from stairwell import configs
from stairwell.errors import UserError
from stairwell.tasks import text_scores, translation
from stairwell.tasks.pair_task import PairTask

WITHIN_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")
WORD = re.compile(r"\w+|[^\w\s]+")


def words_of(program: str) -> list[str]:
    """The words of a program, those within names apart. With a space in front of each they are the same symbols as the
    words of a summary: byte pairs have one symbol for ` name` and another for the end of `user_name`."""
    return WORD.findall(WITHIN_NAME.sub(" ", program))


@dataclass(frozen=True, kw_only=True)
class Config(configs.Config):
    path: str = ""
    "a folder with train.jsonl, valid.jsonl, ... (or csv, tsv, or parallel text files), or one such table"
    source: str = "source"
    "the column of the article, or the ending of its files"
    target: str = "target"
    "the column of the summary, or the ending of its files"
    test: str = ""
    "how the names of the test files begin, if there are several"
    words: int = 400
    "how many words of an article to read; 0: all"
    split_names: bool = False
    "programs: read getUserName and get_user_name as the words they are made of, and every sign apart"
    lowercase: bool = False
    "read and write lower case only"
    vocabulary: int = 8000
    "number of byte pairs"
    joint: bool = True
    "one vocabulary for article and summary"
    max_source_length: int = 1024
    "tokens of an article; in training longer ones are left out, in use they are cut"
    max_target_length: int = 256
    "tokens of a summary; in training longer ones are left out"
    primary_metric: Literal["loss", "rougeL"] = "loss"
    "what the best model is chosen by"
    sample: int = 50
    "how many summaries to write, greedily, at every validation; 0: none"

    def __post_init__(self) -> None:
        super().__post_init__()
        translation.check(self)
        if self.words < 0:
            raise UserError(f"words must be 0 or more, not {self.words}")


class Summarization(PairTask):
    verb: ClassVar[str] = "summarize"
    metric: ClassVar[str] = "rougeL"
    # The paper's 3-gram blocking; a summary is as long as summaries are, not as its article.
    search: ClassVar[dict[str, Any]] = {"block": 3, "longest_ratio": 0.0}

    def normal_source(self, line: str) -> str:
        words = words_of(line) if self.config.split_names else line.split()
        return self.normal(" ".join(words[: self.config.words or None]))

    def _reading(self) -> list[Any]:
        return [self.config.words, self.config.split_names]

    def rate(self, said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
        return text_scores.rouge(said, wanted)

    def judge(self, said: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
        return dict(self.rate(said, wanted))
