"""What the tables and figures of Fan et al. 2020 share: for each data set the task, the sizes and the training at both
scales, and what has to be said about them.

At paper scale the hyperparameters are those of table 9 and of sections 7.1, 7.4 and 7.6 (arXiv version 3); at laptop
scale all the models of a table have one recipe.
"""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import Column, Scale, Variant
from stairwell.experiments.measures import LargestSolved, Metric, Sample
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core
from stairwell.runs.presets.state_tracking import STATEMENTS

ACCURACY = (Metric("test accuracy (%)", "accuracy"),)
REACH = LargestSolved(
    "longest programs at 90%", "statements", (4, 5, 6, 8, 10, 13, 16, 20, 25, 31, 39, 49, 61, 76, 95, 100)
)  # fmt: skip
UPDATES_NOT_PRINTED = (
    "The number of steps is not printed: 50,000, as in the released configuration. Neither is the number of runs: one "
    "seed. Section 7.6 ends runs with a tenth of the learning rate but does not say for how long on these tasks: ours "
    "have no such end."
)
NOT_PRINTED = (
    "No hyperparameters are printed for this task; those of the random walk were taken, its 10,000 training sequences "
    "and the second paper's 50,000 updates included. One seed, and no last updates at a tenth of the rate."
)
LSTM_IS_OURS = "The paper has no LSTM here; ours has as many weights as the others."
KEYS_EACH = (
    "Feedback has its own key and value projections in every layer, which gives it the weights of the Transformer."
)
KEYS_SHARED = "Feedback shares one pair of key and value projections among its layers and has that much fewer weights."
WALKING = (
    "The LSTM has one layer of width 112, with two it learns far slower, and is trained with a rate of 0.01 too. A "
    "training ends early when 99.8% of a validation's answers are right."
)
# The papers train without a curriculum.
PLAIN: dict[str, Any] = {"curriculum": "", "curriculum_accuracy": 96.0}


def walking_lstms(setting: RunConfig, scale: Scale, numbers: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """The LSTM of the random walk; on a laptop with the rate of the others and with a higher one."""
    if scale == "paper":
        return (Variant("LSTM", with_core(setting, "lstm"), numbers),)
    size: dict[str, Any] = {"layers": 1, "width": 112}
    return (
        Variant("LSTM", with_core(setting, "lstm", **size), numbers),
        Variant("LSTM, rate 0.01", with_core(setting, "lstm", train={"learning_rate": 1e-2}, **size), numbers),
    )


def algorithmic_columns(scale: Scale, metric: str) -> tuple[Column, ...]:
    if scale == "paper":
        return (Metric(f"test {metric} (%)", metric),)
    return (Metric(f"test {metric} at {STATEMENTS} statements (%)", metric, task={"statements": STATEMENTS}), REACH)


def of_100(scale: Scale, *numbers: str) -> tuple[str, ...]:
    """The paper's numbers, which are of programs of 100 statements."""
    return numbers if scale == "paper" else (*(f"{number} (100 statements)" for number in numbers), "")


WIKITEXT_DATA: dict[Scale, str] = {
    "laptop": "WikiText-2 (`stairwell data get wikitext-2`)",
    "paper": "WikiText-103 (`stairwell data get wikitext-103`)",
}
WIKITEXT_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: WikiText-2 instead of WikiText-103, its 10,000 most frequent words, one plain softmax, models "
        "of 2 million weights, 2,200 updates of 16 rows of 64 tokens.",
    ),
    "paper": (
        "The adaptive embeddings' cutoffs are not printed; 20,000, 40,000 and 200,000 as in the work the paper cites "
        "give the printed numbers of weights. The rate of the last sublayer's dropout is not printed: the embedding's, "
        "after the last norm.",
    ),
}
WITH_LINE_ENDS = (
    "Trained without line ends and fine-tuned with them, as section 7.6 tells; scores are of the text with line ends."
)
FAR = {"memory": 2048, "adaptive_span": True, "span_loss": 1e-5}
FAR_SMALL = {"memory": 256, "adaptive_span": True, "span_loss": 1e-5}
ENWIK8_DATA = "enwik8 (`stairwell data get enwik8`)"
ENWIK8_SAMPLE = 500_000


def bits_per_byte(scale: Scale) -> tuple[Column, Column]:
    """On the valid and the test split."""
    if scale == "paper":
        return (
            Metric("valid bits per byte", "bits_per_character", "valid"),
            Metric("test bits per byte", "bits_per_character"),
        )
    return (
        Sample("valid bits per byte", "bits_per_character", "valid", ENWIK8_SAMPLE),
        Sample("test bits per byte", "bits_per_character", "test", ENWIK8_SAMPLE),
    )


CHAR_PTB_DATA = "the Penn Treebank by characters (ptb.char.train.txt, ptb.char.valid.txt and ptb.char.test.txt)"
CHAR_PTB_SYMBOLS = 50
BITS = Metric("test bits per character", "bits_per_character")
NO_NUMBERS = "The figure's numbers are not in the paper's text; only its conclusion can be compared."
CHAR_PTB_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: 4 layers of width 128 instead of 6 of 384, 0.8 million weights instead of 10.7, a span of 64 "
        "characters instead of 512, 500 updates of 32 rows of 64 characters and 50 at a tenth of the rate instead "
        "of 15,000 of 2,048 rows of 128 and 1,000.",
        "All models have the same number of weights: Feedback shares one pair of key and value projections and has a "
        "wider feed-forward instead.",
        NO_NUMBERS,
    ),
    "paper": (
        "Feedback has its own key and value projections in every layer: only so it has the printed 10.7 million "
        "weights.",
        "Training stops when the validation loss does not fall any more; the paper does not say how long it waited: "
        "four validations, 2,000 updates.",
        NO_NUMBERS,
    ),
}
