"""Translators of others, of a given size with random parameters: Hugging Face's Marian, and the same in CTranslate2.

CTranslate2 gets the parameters of the Marian model, so the two must find targets of the same probability.
Symbols: the last one begins a target and pads; `END` ends it and is forbidden here, so that all targets are as long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

END = 0
Write = Callable[[], list[float]]  # writes a target for every source; the log-probability of each


def marian_model(width: int, heads: int, encoder_layers: int, decoder_layers: int, symbols: int) -> Any:
    from transformers import MarianConfig, MarianMTModel

    sizes: dict[str, Any] = {"vocab_size": symbols, "d_model": width, "max_position_embeddings": 256}
    for part, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        sizes |= {f"{part}_layers": layers, f"{part}_attention_heads": heads, f"{part}_ffn_dim": 4 * width}
    special = {"eos_token_id": END, "pad_token_id": symbols - 1, "decoder_start_token_id": symbols - 1}
    config = MarianConfig(
        **sizes, **special, activation_function="relu", scale_embedding=True, forced_eos_token_id=None
    )
    torch.manual_seed(0)
    return MarianMTModel(config).eval()


def marian_writes(model: Any, source: Tensor, mask: Tensor, tokens: int, beam: int) -> Write:
    options: dict[str, Any] = {"num_beams": beam, "min_new_tokens": tokens, "max_new_tokens": tokens}
    options |= {"do_sample": False, "length_penalty": 0.0, "return_dict_in_generate": True, "output_scores": True}

    def write() -> list[float]:
        written = model.generate(source, attention_mask=mask.long(), **options)
        assert written.sequences.shape == (len(source), tokens + 1)  # and the beginning
        return written.sequences_scores.tolist()

    return write


def ctranslate2_writes(marian: Any, folder: Path, source: Tensor, mask: Tensor, tokens: int, beam: int) -> Write:
    """The same by CTranslate2, from a model that is made in `folder`."""
    import ctranslate2

    save_for_ctranslate2(marian, folder)
    threads = torch.get_num_threads()
    translator = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=threads)
    sources = [[str(token) for token in row[there].tolist()] for row, there in zip(source, mask)]
    options: dict[str, Any] = {"beam_size": beam, "min_decoding_length": tokens, "max_decoding_length": tokens}
    options |= {"length_penalty": 0.0, "return_scores": True}

    def write() -> list[float]:
        written = translator.translate_batch(sources, **options)
        assert all(len(one.hypotheses[0]) == tokens for one in written)
        return [one.scores[0] for one in written]

    return write


def save_for_ctranslate2(marian: Any, folder: Path) -> None:
    from ctranslate2.specs import TransformerSpec

    config, model = marian.config, marian.model
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.encoder_attention_heads, pre_norm=False
    )
    for part, given in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        part.position_encodings.encodings = numbers(given.embed_positions.weight)
        for layer, own in zip(part.layer, given.layers):
            attention = own.self_attn
            set_linear(layer.self_attention.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
            set_linear(layer.self_attention.linear[1], attention.out_proj)
            set_norm(layer.self_attention.layer_norm, own.self_attn_layer_norm)
            if part is spec.decoder:
                attention = own.encoder_attn
                set_linear(layer.attention.linear[0], attention.q_proj)
                set_linear(layer.attention.linear[1], attention.k_proj, attention.v_proj)
                set_linear(layer.attention.linear[2], attention.out_proj)
                set_norm(layer.attention.layer_norm, own.encoder_attn_layer_norm)
            set_linear(layer.ffn.linear_0, own.fc1)
            set_linear(layer.ffn.linear_1, own.fc2)
            set_norm(layer.ffn.layer_norm, own.final_layer_norm)
    spec.encoder.embeddings[0].weight = numbers(model.encoder.embed_tokens.weight)
    spec.decoder.embeddings.weight = numbers(model.decoder.embed_tokens.weight)
    spec.decoder.projection.weight = numbers(marian.lm_head.weight)
    spec.decoder.projection.bias = numbers(marian.final_logits_bias[0])
    symbols = [str(symbol) for symbol in range(config.vocab_size)]
    spec.config.unk_token, spec.config.eos_token = symbols[1], symbols[END]
    spec.config.bos_token = spec.config.decoder_start_token = symbols[config.decoder_start_token_id]
    spec.register_source_vocabulary(symbols)
    spec.register_target_vocabulary(symbols)
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def set_linear(spec: Any, *linears: nn.Linear) -> None:
    """One product of several that read the same."""
    spec.weight = numbers(torch.cat([linear.weight for linear in linears]))
    spec.bias = numbers(torch.cat([linear.bias for linear in linears]))


def set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = numbers(norm.weight), numbers(norm.bias)


def numbers(parameter: Tensor) -> Any:
    return parameter.detach().numpy()
