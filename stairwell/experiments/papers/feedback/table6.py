"""Table 6 of Fan et al. 2020: what the tricks bring, on words of Wikipedia."""

from __future__ import annotations

from typing import Any

from stairwell.experiments.experiment import FEEDBACK, Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric
from stairwell.experiments.papers.feedback.settings import FAR, FAR_SMALL, KEYS_SHARED, WIKITEXT_DATA, WIKITEXT_NOTES
from stairwell.runs import presets
from stairwell.runs.presets import with_core


def table6(scale: Scale) -> Experiment:
    """Rows in the paper's order: pre-norm and higher learning rate, adaptive span, growing BPTT."""
    setting, small = presets.wikitext(scale=scale), scale == "laptop"
    train: dict[str, Any] = {"finetune_steps": 0}
    numbers = {
        "Transformer": {(0, 0, 0): "22.9", (0, 0, 1): "22.9", (1, 0, 1): "21.0", (1, 1, 0): "20.6"},
        "Feedback": {(0, 0, 0): "19.7", (0, 0, 1): "19.9", (1, 0, 1): "19.6", (1, 1, 1): "19.0"},
    }
    variants: list[Variant] = []
    for model, tricks in numbers.items():
        for (pre, far, grow), number in tricks.items():
            own: dict[str, Any] = {"norm": "pre" if pre else "post", "memory": 64 if small else 512}
            if far:
                own |= FAR_SMALL if small else FAR
            changed = dict(train) if pre else {**train, "learning_rate": 5e-4 if small else 2.5e-4}
            if grow:
                changed["segment_warmup"] = setting.train.segment // 2
            words = ["pre-norm and higher rate"] * pre + ["adaptive span"] * far + ["growing BPTT"] * grow
            core = "feedback" if model == "Feedback" else "transformer-xl"
            name = f"{model}, {', '.join(words) or 'plain'}"
            variants.append(Variant(name, with_core(setting, core, train=changed, **own), (number,)))
    return Experiment(
        name="feedback.table6",
        title="Words of Wikipedia: what the tricks bring",
        paper=f"{FEEDBACK}, table 6",
        scale=scale,
        columns=(Metric("dev perplexity", "perplexity", "valid"),),
        variants=tuple(variants),
        claim="every trick helps both models or harms neither, and the gap between them stays",
        notes=(
            *WIKITEXT_NOTES[scale],
            KEYS_SHARED,
            "No fine-tuning, and so no line ends, as the table says.",
            "The paper does not print the lower learning rate: 0.00025, that of Transformer-XL on these words"
            + (", scaled to 0.0005 here, a third of ours." if small else "."),
            "Neither does it print which size: the large one, whose numbers in table 3 are what these become with "
            "fine-tuning and line ends.",
            "The shorter BPTT of the first half is not printed for words: half the segment, as on enwik8.",
            "The fourth row has no growing BPTT, as printed; its counterpart for Feedback has.",
        ),
        data=WIKITEXT_DATA[scale],
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.table6": table6}
