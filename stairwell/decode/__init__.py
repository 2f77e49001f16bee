"""Decoding: a session that reads streams at a constant cost per token, and greedy, sampling and beam search over it.

session = Session(model, model.init_state(1))
tokens = sample(session, prompt, 100, temperature=0.8, generator=torch.Generator().manual_seed(0))
"""

from stairwell.decode.beam import Hypothesis, beam_search
from stairwell.decode.sampling import Sampling
from stairwell.decode.search import greedy, sample, sample_hypotheses, stream_tokens
from stairwell.decode.session import Session
from stairwell.decode.speculative import SpeculativeOutput, speculate
from stairwell.decode.stepper import ModelStepper, Stepper, make_stepper

__all__ = [
    "Hypothesis",
    "ModelStepper",
    "Sampling",
    "Session",
    "SpeculativeOutput",
    "Stepper",
    "beam_search",
    "greedy",
    "make_stepper",
    "sample",
    "sample_hypotheses",
    "speculate",
    "stream_tokens",
]
