"""What the translations and summaries of Fan et al. 2020 share: table 8's sizes, the trainings, what has to be said."""

from __future__ import annotations

from stairwell.experiments.experiment import SweepPoint, Variant
from stairwell.experiments.measures import Metric, TranslationSpeed
from stairwell.runs.config import RunConfig
from stairwell.runs.presets import decoder_run

WORDS_A_SECOND = TranslationSpeed("words/s, beam 5")
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
