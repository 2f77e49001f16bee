"""Decoding: a session that reads streams token by token at a flat cost, and greedy, sample and beam over it.

session = Session(model, model.init_state(1))
tokens = sample(session, prompt, 100, temperature=0.8, generator=torch.Generator().manual_seed(0))
"""

from stairwell.decode.beam import Hypothesis, beam
from stairwell.decode.search import greedy, sample, sampler, stream
from stairwell.decode.session import Session
from stairwell.decode.speculate import Speculated, speculate
from stairwell.decode.stepper import ModelStepper, Stepper, stepper

__all__ = [
    "Hypothesis",
    "ModelStepper",
    "Session",
    "Speculated",
    "Stepper",
    "beam",
    "greedy",
    "sample",
    "sampler",
    "speculate",
    "stepper",
    "stream",
]
