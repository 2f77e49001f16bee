"""Speculation: a small Feedback model drafts for a large Transformer-XL, against the Transformer alone, in one run.

Both are trained here, on the sources of Python's own library, byte by byte: nothing is set up so that they agree. The
target has 25 million parameters, 100 MB in float32, three times a usual last-level cache: writing one token is bound by
reading them. How well it has learned matters to acceptance, not to its speed; the losses of both are recorded along.
The trainings are kept in runs/bench-speculation and taken up again if they were stopped.

Greedily, what is written must be the same with and without a draft; nothing is printed otherwise.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.speed import spread
from stairwell import LanguageModel
from stairwell.decode import Session, sample, speculate
from stairwell.runs.launch import fit, load
from stairwell.runs.presets import preset
from stairwell.train import Run

FOLDER = Path("runs/bench-speculation")
COMMON = {"train.decay": "cosine", "train.valid_tokens": "100000", "train.segment": "64", "train.log_every": "20"}
TARGET = {
    "core.width": "512", "core.layers": "8", "core.heads": "8", "core.memory": "128", "train.batch": "8",
    "train.steps": "800", "train.learning_rate": "5e-4", "train.warmup": "100", "train.validate_every": "250",
    "train.checkpoint_every": "50",
}  # fmt: skip
DRAFT = {
    "core.width": "128", "core.layers": "2", "core.heads": "4", "core.memory": "64", "train.batch": "32",
    "train.steps": "1500", "train.learning_rate": "2e-3", "train.warmup": "100",
}  # fmt: skip
CASES = ("greedy", "sampling", "transformers")
LENGTHS = (2, 4, 7)
PROMPT, TOKENS, ROUNDS = 200, 256, 5
ALONE = "target alone"


@dataclass
class Written:
    """What one way of writing did."""

    tokens: Tensor
    drafted: int = 0
    calls: int = 0  # of the target


Way = Callable[[int], Written]  # from a seed


def trained(name: str, options: dict[str, str], core: str) -> tuple[LanguageModel, Any, float]:
    """The model of a training, its task, and its loss on the validation split in bits a byte."""
    folder = FOLDER / name
    fit(preset(f"lm/{core}").with_options({**COMMON, **options}), folder)
    model, task = load(folder, "cpu")
    return model, task, Run(folder).load_model()[1]["valid"]["bits_per_character"]


def alone(target: LanguageModel, prompt: Tensor, temperature: float) -> Way:
    def write(seed: int) -> Written:
        session = Session(target, target.init_state(1))
        generator = torch.Generator().manual_seed(seed)
        return Written(sample(session, prompt, TOKENS, temperature, generator=generator))

    return write


def drafted(target: LanguageModel, draft: LanguageModel, prompt: Tensor, temperature: float, length: int) -> Way:
    def write(seed: int) -> Written:
        generator = torch.Generator().manual_seed(seed)
        said = speculate(target, draft, prompt, TOKENS, length, temperature, generator=generator)
        return Written(said.tokens, said.drafted, said.rounds)

    return write


def by_transformers(target: Any, draft: Any, prompt: Tensor, length: int | None) -> Way:
    """Greedily, by `generate`, with the draft as its assistant or without."""
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False}
    if length is not None:
        options["assistant_model"] = draft

    def write(seed: int) -> Written:
        done = Written(prompt)

        def count(module: Any, given: Any, named: dict[str, Any], output: Any) -> None:
            done.calls += 1
            done.drafted += output.logits.shape[1] - 1

        draft.generation_config.update(
            num_assistant_tokens=length or 1,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        hook = target.register_forward_hook(count, with_kwargs=True)
        done.tokens = target.generate(prompt, **options)[:, prompt.shape[1] :]
        hook.remove()
        return done

    return write


def ways(case: str, target: LanguageModel, draft: LanguageModel, prompt: Tensor) -> dict[str, Way]:
    if case == "transformers":
        from stairwell.hf import StairwellConfig, StairwellForCausalLM

        both = []
        for model in (target, draft):
            made = StairwellForCausalLM(StairwellConfig.of(model.config))
            made.model.load_state_dict(model.state_dict())
            both.append(made.eval())
        found = {ALONE: by_transformers(*both, prompt, None)}
        return found | {f"draft of {length}": by_transformers(*both, prompt, length) for length in LENGTHS}
    temperature = 0.0 if case == "greedy" else 1.0
    found = {ALONE: alone(target, prompt, temperature)}
    return found | {f"draft of {k}": drafted(target, draft, prompt, temperature, k) for k in LENGTHS}


def measure_case(
    case: str, target: LanguageModel, draft: LanguageModel, prompts: Sequence[Tensor], about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Everybody writes after every prompt, in turns, so that a slow moment of the machine hits all."""
    seconds: dict[str, list[float]] = {}
    done: dict[str, list[Written]] = {}
    for seed, prompt in enumerate(prompts):
        for name, write in ways(case, target, draft, prompt).items():
            if not seed:
                write(seed)  # until everything is warm
            began = time.perf_counter()
            written = write(seed)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            done.setdefault(name, []).append(written)
            if case != "sampling" and not torch.equal(written.tokens, done[ALONE][-1].tokens):
                sys.exit(f"{case}: with a {name} something else is written")
    rates = {name: TOKENS / statistics.median(taken) for name, taken in seconds.items()}
    records = []
    for name, taken in seconds.items():
        counts = {"drafted": sum(one.drafted for one in done[name]), "calls": sum(one.calls for one in done[name])}
        total = TOKENS * len(prompts)
        record = {"case": case, "what": name, "tokens_per_second": round(rates[name], 1), "spread": spread(taken)}
        if name != ALONE:
            # Each call adds a token of the target's own; all others were drafted.
            record["acceptance"] = round((total - counts["calls"]) / counts["drafted"], 3)
            record["tokens_per_call"] = round(total / counts["calls"], 2)
        records.append({**record, "over_alone": round(rates[name] / rates[ALONE], 2), "prompts": len(prompts), **about})
    return records


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    target, task, target_bits = trained("target", TARGET, "transformer-xl")
    draft, _, draft_bits = trained("draft", DRAFT, "feedback")
    prompts = [row[None] for row in next(iter(task.batches("test", ROUNDS, PROMPT))).tokens]
    about = {"tokens": TOKENS}
    for name, model, bits in (("target", target, target_bits), ("draft", draft, draft_bits)):
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        about |= {f"{name}_megabytes": round(size / 1e6, 1), f"{name}_bits": round(bits, 3)}
    return [record for case in cases for record in measure_case(case, target, draft, prompts, about)]
