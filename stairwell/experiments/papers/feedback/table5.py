"""Table 5 of Fan et al. 2020: speed of training and of inference."""

from __future__ import annotations

from stairwell.experiments.measures import DecodingSpeed, TrainingSpeed
from stairwell.experiments.papers.feedback.settings import WIKITEXT, WIKITEXT_DATA, WIKITEXT_NOTES
from stairwell.experiments.study import FEEDBACK, Maker, Row, Scale, Study


def table5(scale: Scale) -> Study:
    setting, small = WIKITEXT[scale], scale == "laptop"
    budget = 1 << 22 if small else 1 << 31
    short = {"steps": 100, "finetune_steps": 0, "log_every": 10, "validate_every": 0, "valid_tokens": 20_000}
    memory = 64 if small else 512
    return Study(
        name="feedback.table5",
        title="Speed of training and of inference, words",
        paper=f"{FEEDBACK}, table 5",
        scale=scale,
        columns=(
            TrainingSpeed("training (tokens/s)"),
            DecodingSpeed(f"inference, states of {budget >> 20} MB (tokens/s)", budget),
        ),
        rows=(
            Row("Transformer", setting.experiment("transformer-xl", train=short, memory=memory), ("296K", "592")),
            Row("Feedback", setting.experiment("feedback", train=short, memory=memory), ("84.4K", "2176")),
        ),
        claim="Feedback trains three and a half times slower and generates almost four times faster",
        notes=(
            *WIKITEXT_NOTES[scale],
            "100 updates, for the speed alone. Both models have the same sizes and span. Inference is with as many "
            "rows as have states of equal size in all: Feedback's has one vector a token instead of one a layer.",
            "The paper's numbers are of GPUs that it does not name; only the ratio of the two rows can be compared. "
            "Its rows on translation and reinforcement learning are no language modelling and are left out.",
        ),
        data=WIKITEXT_DATA[scale],
    )


STUDIES: dict[str, Maker] = {
    "feedback.table5": table5,
}
