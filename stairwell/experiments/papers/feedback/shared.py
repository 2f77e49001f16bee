"""Shared by the tables and figures of Fan et al. 2020: columns, descriptions of data, and notes for the reports.

At paper scale the hyperparameters are those of table 9 and of sections 7.1, 7.4 and 7.6 (arXiv version 3); at laptop
scale all models of a table have the same hyperparameters unless a variant's name says otherwise.
"""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import Column, Scale, Variant
from stairwell.experiments.measures import LargestSolved, Metric, PartialMetric
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import with_core
from stairwell.runs.presets.generated import STATEMENTS

ACCURACY = (Metric("test accuracy (%)", "accuracy"),)
LARGEST_SOLVED = LargestSolved(
    "longest programs at 90% accuracy (statements)", "statements",
    (4, 5, 6, 8, 10, 13, 16, 20, 25, 31, 39, 49, 61, 76, 95, 100),
)  # fmt: skip
STEPS_NOTE = (
    "The paper states neither the number of steps nor of runs. Ours have 50,000 steps, as in the released "
    "configuration, and one seed. Section 7.6 ends training with a phase at a tenth of the learning rate, without its "
    "length for these tasks; "
    "ours has no such phase."
)
HYPERPARAMETERS_NOTE = (
    "The paper gives no hyperparameters for this task. Ours are those of the random walk, with its 10,000 training "
    "sequences and the second paper's 50,000 steps; one seed, no final phase at a tenth of the learning rate."
)
LSTM_NOTE = "The paper has no LSTM here; ours has about as many parameters as the other models."
KEYS_PER_LAYER_NOTE = (
    "Feedback has its own key and value projections in every layer, which gives it as many parameters as the "
    "Transformer."
)
SHARED_KEYS_NOTE = "Feedback shares one pair of key and value projections among its layers, so it has fewer parameters."
RANDOM_WALK_LSTM_NOTE = (
    "The LSTM has one layer of width 112, because two layers learn far more slowly, and is also trained with a learning"
    " rate of 0.01. Training stops early at 99.8% validation accuracy."
)
# The papers train without a curriculum. The accuracy for the next stage is the default, which presets override.
NO_CURRICULUM: dict[str, Any] = {"curriculum": "", "curriculum_accuracy": 96.0}


def random_walk_lstms(preset: RunConfig, scale: Scale, numbers: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """Return the LSTM of the random walk; at laptop scale also with a higher learning rate."""
    if scale == "paper":
        return (Variant("LSTM", with_core(preset, "lstm"), numbers),)
    size: dict[str, Any] = {"layers": 1, "width": 112}
    return (
        Variant("LSTM", with_core(preset, "lstm", **size), numbers),
        Variant("LSTM, learning rate 0.01", with_core(preset, "lstm", train={"learning_rate": 1e-2}, **size), numbers),
    )


def algorithmic_columns(scale: Scale, metric: str) -> tuple[Column, ...]:
    """Return the columns of a table of the algorithmic task; at laptop scale also the longest programs solved."""
    if scale == "paper":
        return (Metric(f"test {metric} (%)", metric),)
    return (
        Metric(f"test {metric} at {STATEMENTS} statements (%)", metric, task={"statements": STATEMENTS}),
        LARGEST_SOLVED,
    )


def paper_numbers(scale: Scale, *numbers: str) -> tuple[str, ...]:
    """Return the paper's numbers, one per column of `algorithmic_columns`. They are for programs of 100 statements: at
    laptop scale they say so, and there is none for the second column."""
    return numbers if scale == "paper" else (*(f"{number} (100 statements)" for number in numbers), "")


WIKITEXT_DATA: dict[Scale, str] = {
    "laptop": "WikiText-2 (`stairwell data get wikitext-2`)",
    "paper": "WikiText-103 (`stairwell data get wikitext-103`)",
}
WIKITEXT_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: WikiText-2 instead of WikiText-103, its 10,000 most frequent words, a plain softmax, models "
        "of 2 million parameters, 2,200 steps of 16 streams of 64 tokens.",
    ),
    "paper": (
        "The paper does not give the cutoffs of the adaptive embeddings; 20,000, 40,000 and 200,000, as in the work "
        "that it cites, give the reported numbers of parameters. It does not give the output dropout; ours equals the "
        "embedding dropout and comes after the final norm.",
    ),
}
LINE_ENDS_NOTE = "Trained without line ends and fine-tuned with them, as in section 7.6; scores include line ends."
ADAPTIVE_SPAN = {"memory": 2048, "adaptive_span": True, "span_loss": 1e-5}
ADAPTIVE_SPAN_SMALL = {"memory": 256, "adaptive_span": True, "span_loss": 1e-5}
ENWIK8_DATA = "enwik8 (`stairwell data get enwik8`)"
ENWIK8_EVAL_BYTES = 500_000  # of each split, at laptop scale


def bits_per_byte(scale: Scale) -> tuple[Column, Column]:
    """Return columns for the validation and the test split."""
    if scale == "paper":
        return (
            Metric("valid bits per byte", "bits_per_character", "valid"),
            Metric("test bits per byte", "bits_per_character"),
        )
    return (
        PartialMetric("valid bits per byte", "bits_per_character", "valid", ENWIK8_EVAL_BYTES),
        PartialMetric("test bits per byte", "bits_per_character", "test", ENWIK8_EVAL_BYTES),
    )


CHAR_PTB_DATA = "the Penn Treebank by characters (ptb.char.train.txt, ptb.char.valid.txt and ptb.char.test.txt)"
CHAR_PTB_VOCABULARY = 50
TEST_BITS_PER_CHARACTER = Metric("test bits per character", "bits_per_character")
NO_NUMBERS_NOTE = "The paper's text does not give the figure's numbers; only its conclusion can be compared."
CHAR_PTB_NOTES: dict[Scale, tuple[str, ...]] = {
    "laptop": (
        "Laptop scale: 4 layers of width 128 instead of 6 of 384, 0.8 million parameters instead of 10.7, an attention "
        "span of 64 characters instead of 512, 2,000 steps of 32 streams of 64 characters and 200 at a tenth of "
        "the learning rate instead of 15,000 of 2,048 streams of 128 and 1,000.",
        "All models have the same number of parameters: Feedback shares one pair of key and value projections and has a"
        " wider feed-forward layer instead.",
        NO_NUMBERS_NOTE,
    ),
    "paper": (
        "Feedback has its own key and value projections in every layer, which gives the reported 10.7 million "
        "parameters.",
        "Training stops when the validation loss no longer falls. The paper does not give the patience; ours "
        "is four validations, 2,000 steps.",
        NO_NUMBERS_NOTE,
    ),
}
