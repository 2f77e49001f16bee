"""Character-level Shakespeare with nanoGPT's CPU recipe: the gain from carried memory, and from feedback.

nanoGPT's README (karpathy/nanoGPT) trains 4 layers of width 128 with blocks of 64 characters, a batch of 12, for 2,000
iterations and reports a validation loss of 1.88. Its blocks are sampled at random and no state is carried from one to
the next. Here each model is trained without and with carried state.
"""

from __future__ import annotations

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale, Variant
from stairwell.experiments.measures import Metric, TrainingSpeed
from stairwell.runs import presets
from stairwell.runs.presets import match_parameters, with_core

BLOCK = 64
CHARACTERS = 65


def shakespeare(scale: Scale) -> Experiment | None:
    if scale == "paper":
        return None
    # Both attend to 64 characters, the current one included.
    base = presets.shakespeare()
    transformer = with_core(base, "transformer-xl", memory=BLOCK - 1, attend_to_current=True)
    lstm = match_parameters(transformer, with_core(base, "lstm"), CHARACTERS)
    no_memory = {"episode": BLOCK}
    return Experiment(
        name="extra.shakespeare",
        title="Character-level Shakespeare with nanoGPT's CPU recipe",
        paper="not in the papers; nanoGPT's README",
        scale=scale,
        columns=(
            Metric("valid loss (nats per character)", "loss", "valid"),
            Metric("test loss (nats per character)", "loss"),
            TrainingSpeed("training (tokens/s)"),
        ),
        variants=(
            Variant("LSTM", lstm),
            Variant(
                "Transformer-XL, no carried memory",
                with_core(base, "transformer-xl", no_memory, memory=BLOCK - 1, attend_to_current=True),
                ("1.88", "", ""),
                paper_name="nanoGPT",
            ),
            Variant("Feedback, no carried memory", with_core(base, "feedback", no_memory, memory=BLOCK)),
            Variant("Transformer-XL", transformer),
            Variant("Feedback", with_core(base, "feedback", memory=BLOCK)),
        ),
        seeds=3,
        notes=(
            "The paper column has nanoGPT's own number (0.80 million parameters). It validates on random blocks of the "
            "last tenth of the text; the first half of that tenth is our validation split and the second half our test "
            "split. Its learning rate decays to a tenth, ours to 0.",
            "All models read 1.5 million characters. Without carried memory the text is cut into blocks of 64 "
            "characters, in training and in evaluation, as nanoGPT does; otherwise the memory of one segment is "
            "carried to the next.",
        ),
        data="the tiny Shakespeare file (1,115,394 bytes) that nanoGPT downloads",
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"extra.shakespeare": shakespeare}
