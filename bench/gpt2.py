"""Peers in decoding: GPT-2 of a given size with random parameters, in Hugging Face's transformers and in CTranslate2.

CTranslate2 gets the parameters of the same model, so both must give the same logits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.marian import set_norm, to_numpy

ROOM = 64  # positions after the prompt


def gpt2_model(layers: int, width: int, heads: int, span: int, vocabulary: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": span + ROOM}
    config = GPT2Config(vocab_size=vocabulary, **sizes, bos_token_id=None, eos_token_id=None)
    return GPT2LMHeadModel(config).eval()


def transformers_step(model: Any, B: int) -> tuple[Callable[[], None], int]:
    """Return a step of decoding with a cache as long as the span, and the size of the cache in bytes.

    The cache grows by one token per step and is reset after some, so that its length is about the span."""
    from transformers import DynamicCache

    config = model.config
    span, K = config.n_positions - ROOM, config.n_embd // config.n_head
    past = torch.randn(2, config.n_layer, B, config.n_head, span, K)
    cache: Any = None
    tokens = torch.zeros(B, 1, dtype=torch.int64)

    @torch.no_grad()
    def step() -> None:
        nonlocal cache, tokens
        if cache is None or cache.get_seq_length() >= config.n_positions:
            cache = DynamicCache()
            for l in range(config.n_layer):
                cache.update(past[0, l], past[1, l], l)
        out = model(tokens, past_key_values=cache, use_cache=True)
        tokens = out.logits[:, -1:].argmax(-1)

    return step, past.numel() * past.element_size()


def ctranslate2_steps(model: Any, folder: Path, compute_type: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return generations of `ROOM` tokens and of one token after a prompt as long as the span. The difference of their
    times is that of decoding alone."""
    import ctranslate2

    if not folder.exists():
        save_for_ctranslate2(model, folder)
    threads = torch.get_num_threads()
    generator = ctranslate2.Generator(str(folder), compute_type=compute_type, inter_threads=1, intra_threads=threads)
    prompt = [str(i % model.config.vocab_size) for i in range(model.config.n_positions - ROOM)]
    if compute_type == "float32":
        check_logits(model, generator, prompt)

    def generate(tokens: int) -> Callable[[], None]:
        def run() -> None:
            options: dict[str, Any] = {"min_length": tokens, "max_length": tokens, "include_prompt_in_result": False}
            (result,) = generator.generate_batch([prompt], beam_size=1, **options)
            assert len(result.sequences[0]) == tokens

        return run

    return generate(ROOM), generate(1)


@torch.no_grad()
def check_logits(model: Any, generator: Any, prompt: list[str]) -> None:
    ours = model(torch.tensor([[int(token) for token in prompt]])).logits[0].numpy()
    theirs = np.array(generator.forward_batch([prompt]))[0]
    if not np.abs(ours - theirs).max() < 1e-3:
        raise RuntimeError("GPT-2 in CTranslate2 differs from the one in transformers")


def save_for_ctranslate2(model: Any, folder: Path) -> None:
    from ctranslate2.specs import TransformerDecoderModelSpec
    from ctranslate2.specs.common_spec import Activation

    config, own = model.config, model.transformer
    spec = TransformerDecoderModelSpec.from_config(
        config.n_layer, config.n_head, pre_norm=True, activation=Activation.GELUTanh
    )
    spec.decoder.embeddings.weight = to_numpy(own.wte.weight)
    spec.decoder.position_encodings.encodings = to_numpy(own.wpe.weight)
    spec.decoder.scale_embeddings = False
    set_norm(spec.decoder.layer_norm, own.ln_f)
    spec.decoder.projection.weight = to_numpy(model.lm_head.weight)
    for layer, block in zip(spec.decoder.layer, own.h):
        set_norm(layer.self_attention.layer_norm, block.ln_1)
        set_convolution(layer.self_attention.linear[0], block.attn.c_attn)
        set_convolution(layer.self_attention.linear[1], block.attn.c_proj)
        set_norm(layer.ffn.layer_norm, block.ln_2)
        set_convolution(layer.ffn.linear_0, block.mlp.c_fc)
        set_convolution(layer.ffn.linear_1, block.mlp.c_proj)
    vocabulary = [str(token) for token in range(config.vocab_size)]
    spec.config.unk_token = spec.config.bos_token = spec.config.eos_token = vocabulary[0]
    spec.register_vocabulary(vocabulary)
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def set_convolution(spec: Any, layer: Any) -> None:
    """Set a linear map to one of transformers' `Conv1D`, whose parameters are transposed."""
    spec.weight, spec.bias = to_numpy(layer.weight.T.contiguous()), to_numpy(layer.bias)
