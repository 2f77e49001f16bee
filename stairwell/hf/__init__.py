"""Hugging Face transformers: every core as a causal language model or as a sequence-to-sequence model.

import stairwell.hf                                                      registers the models with the Auto classes
model = AutoModelForCausalLM.from_pretrained("my-model")
model = AutoModelForSeq2SeqLM.from_pretrained("my-translator")
model = from_run("runs/lm-feedback"); to_run(model, "runs/again")        bit for bit
"""

from stairwell.errors import MissingPackage

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.models.auto import modeling_auto
except ImportError:
    raise MissingPackage("transformers is not installed", "transformers>=5.18", "accelerate>=1") from None

from stairwell.hf.cache import StateCache
from stairwell.hf.causal import StairwellConfig, StairwellForCausalLM
from stairwell.hf.convert import export_hf, from_run, to_run, vocabulary_of
from stairwell.hf.encoder_decoder import StairwellForSeq2SeqLM, StairwellSeq2SeqConfig
from stairwell.hf.tokenizers import pair_tokenizers, tokenizer

AutoConfig.register(StairwellConfig.model_type, StairwellConfig, exist_ok=True)
AutoConfig.register(StairwellSeq2SeqConfig.model_type, StairwellSeq2SeqConfig, exist_ok=True)
AutoModelForCausalLM.register(StairwellConfig, StairwellForCausalLM, exist_ok=True)
AutoModelForSeq2SeqLM.register(StairwellSeq2SeqConfig, StairwellForSeq2SeqLM, exist_ok=True)
# `register` does not add to this list, from which Trainer's label smoothing knows that labels have to be shifted.
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[StairwellConfig.model_type] = StairwellForCausalLM.__name__

__all__ = [
    "StairwellConfig",
    "StairwellForCausalLM",
    "StairwellForSeq2SeqLM",
    "StairwellSeq2SeqConfig",
    "StateCache",
    "export_hf",
    "from_run",
    "pair_tokenizers",
    "to_run",
    "tokenizer",
    "vocabulary_of",
]
