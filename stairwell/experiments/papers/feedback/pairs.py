"""Shared by translation and summarization of Fan et al. 2020: the sizes of table 8, training, notes."""

from __future__ import annotations

from stairwell.experiments.experiment import SweepPoint, Variant
from stairwell.experiments.measures import Metric, TranslationSpeed
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import decoder_run

WORDS_PER_SECOND = TranslationSpeed("words/s, beam 5")
BLEU = Metric("test BLEU", "bleu", tuned=True)
VALID_BLEU = Metric("valid BLEU", "bleu", "valid", tuned=True)
VALID_LOSS = Metric("valid loss (nats per token)", "loss", "valid", tuned=True)
SPLIT_BLEU = Metric("test BLEU, compounds split", "bleu_compounds_split", tuned=True)
ROUGE = Metric("test ROUGE-L", "rougeL", tuned=True)


WMT_DATA = {
    "laptop": "Multi30k, German to English: train.de, train.en, valid.de, ... in one folder",
    "paper": "WMT16 English to German with newstest2013 and newstest2014: train.en, train.de, valid.en, ...",
}
IWSLT_DATA = {"laptop": WMT_DATA["laptop"], "paper": "IWSLT14 German to English: train.de, train.en, valid.de, ..."}
SUMMARY_DATA = {
    "laptop": "functions and their docstrings, written by `python -m tools.docstrings`",
    "paper": "CNN-DailyMail: train.jsonl, valid.jsonl, test.jsonl with the columns source and target",
}
DEPTH = "layers of the decoder"
OUR_CHOICES = (
    "Table 8 gives layers, widths, heads, dropout and learning rate. Our choices where it gives nothing: dropout on "
    "the output of every sublayer and on embeddings, as in Vaswani et al. 2017; post-norm; Adam with betas 0.9 and "
    "0.98, label smoothing 0.1, 4,000 steps of warmup, then inverse square root decay; learned relative positions in "
    "both decoders, sinusoids in the encoder; the number of steps, the batch size, and an average of the last ten "
    "checkpoints. The Transformer decoder also attends to the current token.",
    "Table 8 gives a learning rate of 0.001 for WMT. Ours is 0.0005 for batches of 25,000 tokens and post-norm; 0.001 "
    "suits batches of about 400,000 tokens.",
    "Only the decoder is a Feedback Transformer; its layers share one pair of key and value projections.",
)
SMALL = (
    "Multi30k has 29,000 short image captions; the paper's data sets have millions of sentence pairs or 160,000. Width "
    "128, an encoder of 4 layers, 5,000 joint byte pairs, lowercased. All models have the same hyperparameters.",
    "BLEU by sacrebleu, lowercased, 13a, with the length penalty that is best on the validation set.",
)
SMALL_SUMMARIES = (
    "The corpus consists of functions of the installed Python packages as articles and the first lines of their "
    "docstrings as summaries, split by package. Width 128, an encoder of 4 layers; all models have the same "
    "hyperparameters.",
)


def by_depth(preset: RunConfig, depths: tuple[int, ...], printed: dict[str, tuple[str, ...]]) -> tuple[Variant, ...]:
    """Return both decoders at every depth with the same encoder; `printed` are the paper's numbers."""
    variants = []
    for core, model in (("transformer-xl", "Transformer"), ("feedback", "Feedback")):
        for depth in depths:
            name = f"{model}, {depth} layer{'s' if depth > 1 else ''}"
            point = SweepPoint(DEPTH, model, depth)
            variants.append(Variant(name, decoder_run(preset, core, depth), printed.get(name, ()), (point,)))
    return tuple(variants)
