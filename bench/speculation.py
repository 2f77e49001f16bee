"""Speculative decoding: a small Feedback model drafts for a large Transformer-XL, compared with the target alone.

Both are trained here, byte-level, on the sources of Python's standard library. The target has 25 million parameters,
100 MB in float32, three times a typical last-level cache, so generating one token is limited by memory bandwidth. How
well the models are trained affects acceptance, not speed; the losses of wrapped are recorded. The runs are stored in
runs/bench-speculation and resumed if they were interrupted.

With greedy decoding the output must be the same with and without a draft; otherwise the benchmark stops.
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
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.presets import preset
from stairwell.runs.run import Run

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
class Generation:
    """Output and counts of one generation."""

    tokens: Tensor
    drafted: int = 0
    calls: int = 0  # calls of the target


Method = Callable[[int], Generation]  # from a seed


def trained(name: str, options: dict[str, str], core: str) -> tuple[LanguageModel, Any, float]:
    """Train or load a model. Return it, its task and its validation loss in bits per byte."""
    folder = FOLDER / name
    fit(preset(f"lm/{core}").with_options({**COMMON, **options}), folder)
    model, task = load(folder, "cpu")
    return model, task, Run(folder).load_model()[1]["valid"]["bits_per_character"]


def alone(target: LanguageModel, prompt: Tensor, temperature: float) -> Method:
    def generate(seed: int) -> Generation:
        session = Session(target, target.init_state(1))
        generator = torch.Generator().manual_seed(seed)
        return Generation(sample(session, prompt, TOKENS, temperature, generator=generator))

    return generate


def drafted(target: LanguageModel, draft: LanguageModel, prompt: Tensor, temperature: float, length: int) -> Method:
    def generate(seed: int) -> Generation:
        generator = torch.Generator().manual_seed(seed)
        result = speculate(target, draft, prompt, TOKENS, length, temperature, generator=generator)
        return Generation(result.tokens, result.drafted, result.rounds)

    return generate


def by_transformers(target: Any, draft: Any, prompt: Tensor, length: int | None) -> Method:
    """Return greedy decoding by transformers' `generate`, with the draft as its assistant or without."""
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False}
    if length is not None:
        options["assistant_model"] = draft

    def generate(seed: int) -> Generation:
        result = Generation(prompt)

        def count(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            result.calls += 1
            result.drafted += output.logits.shape[1] - 1

        draft.generation_config.update(
            num_assistant_tokens=length or 1,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        hook = target.register_forward_hook(count, with_kwargs=True)
        result.tokens = target.generate(prompt, **options)[:, prompt.shape[1] :]
        hook.remove()
        return result

    return generate


def methods(case: str, target: LanguageModel, draft: LanguageModel, prompt: Tensor) -> dict[str, Method]:
    if case == "transformers":
        from stairwell.hf import StairwellConfig, StairwellForCausalLM

        wrapped = []
        for model in (target, draft):
            causal_lm = StairwellForCausalLM(StairwellConfig.of(model.config))
            causal_lm.model.load_state_dict(model.state_dict())
            wrapped.append(causal_lm.eval())
        methods_by_name = {ALONE: by_transformers(*wrapped, prompt, None)}
        return methods_by_name | {f"draft of {length}": by_transformers(*wrapped, prompt, length) for length in LENGTHS}
    temperature = 0.0 if case == "greedy" else 1.0
    methods_by_name = {ALONE: alone(target, prompt, temperature)}
    return methods_by_name | {f"draft of {k}": drafted(target, draft, prompt, temperature, k) for k in LENGTHS}


def measure_case(
    case: str, target: LanguageModel, draft: LanguageModel, prompts: Sequence[Tensor], about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run all methods on every prompt, interleaved, so that a slow phase of the machine affects all."""
    seconds: dict[str, list[float]] = {}
    generations: dict[str, list[Generation]] = {}
    for seed, prompt in enumerate(prompts):
        for name, generate in methods(case, target, draft, prompt).items():
            if not seed:
                generate(seed)  # warm-up
            started = time.perf_counter()
            generation = generate(seed)
            seconds.setdefault(name, []).append(time.perf_counter() - started)
            generations.setdefault(name, []).append(generation)
            if case != "sampling" and not torch.equal(generation.tokens, generations[ALONE][-1].tokens):
                sys.exit(f"{case}: the output with a {name} differs from that of the target alone")
    rates = {name: TOKENS / statistics.median(taken) for name, taken in seconds.items()}
    records = []
    for name, taken in seconds.items():
        counts = {
            "drafted": sum(generation.drafted for generation in generations[name]),
            "calls": sum(generation.calls for generation in generations[name]),
        }
        total = TOKENS * len(prompts)
        record = {"case": case, "what": name, "tokens_per_second": round(rates[name], 1), "spread": spread(taken)}
        if name != ALONE:
            # Each call adds one token of the target; all others were drafted.
            record["acceptance"] = round((total - counts["calls"]) / counts["drafted"], 3)
            record["tokens_per_call"] = round(total / counts["calls"], 2)
        records.append({**record, "over_alone": round(rates[name] / rates[ALONE], 2), "prompts": len(prompts), **about})
    return records


def measure(cases: Sequence[str] = CASES) -> list[dict[str, Any]]:
    target, task, target_bits = trained("target", TARGET, "transformer-xl")
    draft, _, draft_bits = trained("draft", DRAFT, "feedback")
    prompts = [prompt[None] for prompt in next(iter(task.batches("test", ROUNDS, PROMPT))).tokens]
    about = {"tokens": TOKENS}
    for name, model, bits in (("target", target, target_bits), ("draft", draft, draft_bits)):
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        about |= {f"{name}_megabytes": round(size / 1e6, 1), f"{name}_bits": round(bits, 3)}
    return [record for case in cases for record in measure_case(case, target, draft, prompts, about)]
