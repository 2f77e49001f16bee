"""Decoding: a session that reads streams token by token at a flat cost, and greedy, sample and beam over it.

session = Session(model, model.init_state(1))
tokens = sample(session, prompt, 100, temperature=0.8, generator=torch.Generator().manual_seed(0))
"""

from stairwell.decode.search import Hypothesis, beam, greedy, sample, sampler, stream
from stairwell.decode.session import Session
from stairwell.decode.speculate import Speculated, speculate

__all__ = ["Hypothesis", "Session", "Speculated", "beam", "greedy", "sample", "sampler", "speculate", "stream"]
