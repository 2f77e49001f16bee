"""Peer translators of a given size with random parameters: Hugging Face's Marian, and the same model in CTranslate2.

CTranslate2 gets the parameters of the Marian model, so both must find targets of the same probability. The last token
id starts a target and pads; `END` ends it, and is forbidden here so that all targets have the same length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

END = 0
Translate = Callable[[], list[float]]  # translates all sources; returns the log-probability of each target


def marian_model(width: int, heads: int, encoder_layers: int, decoder_layers: int, vocabulary: int) -> Any:
    from transformers import MarianConfig, MarianMTModel

    sizes: dict[str, Any] = {"vocab_size": vocabulary, "d_model": width, "max_position_embeddings": 256}
    for part, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        sizes |= {f"{part}_layers": layers, f"{part}_attention_heads": heads, f"{part}_ffn_dim": 4 * width}
    special = {"eos_token_id": END, "pad_token_id": vocabulary - 1, "decoder_start_token_id": vocabulary - 1}
    config = MarianConfig(
        **sizes, **special, activation_function="relu", scale_embedding=True, forced_eos_token_id=None
    )
    torch.manual_seed(0)
    return MarianMTModel(config).eval()


def marian_translate(model: Any, source: Tensor, mask: Tensor, tokens: int, beam: int) -> Translate:
    options: dict[str, Any] = {"num_beams": beam, "min_new_tokens": tokens, "max_new_tokens": tokens}
    options |= {"do_sample": False, "length_penalty": 0.0, "return_dict_in_generate": True, "output_scores": True}

    def translate() -> list[float]:
        outputs = model.generate(source, attention_mask=mask.long(), **options)
        assert outputs.sequences.shape == (len(source), tokens + 1)  # with the start token
        return outputs.sequences_scores.tolist()

    return translate


def ctranslate2_translate(marian: Any, folder: Path, source: Tensor, mask: Tensor, tokens: int, beam: int) -> Translate:
    """Return the same for CTranslate2, whose model is outputs to `folder`."""
    import ctranslate2

    save_for_ctranslate2(marian, folder)
    threads = torch.get_num_threads()
    translator = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=threads)
    sources = [[str(token) for token in row[present].tolist()] for row, present in zip(source, mask)]
    options: dict[str, Any] = {"beam_size": beam, "min_decoding_length": tokens, "max_decoding_length": tokens}
    options |= {"length_penalty": 0.0, "return_scores": True}

    def translate() -> list[float]:
        outputs = translator.translate_batch(sources, **options)
        assert all(len(output.hypotheses[0]) == tokens for output in outputs)
        return [output.scores[0] for output in outputs]

    return translate


def save_for_ctranslate2(marian: Any, folder: Path) -> None:
    from ctranslate2.specs import TransformerSpec

    config, model = marian.config, marian.model
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.encoder_attention_heads, pre_norm=False
    )
    for part, model_part in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        part.position_encodings.encodings = to_numpy(model_part.embed_positions.weight)
        for layer, own in zip(part.layer, model_part.layers):
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
    spec.encoder.embeddings[0].weight = to_numpy(model.encoder.embed_tokens.weight)
    spec.decoder.embeddings.weight = to_numpy(model.decoder.embed_tokens.weight)
    spec.decoder.projection.weight = to_numpy(marian.lm_head.weight)
    spec.decoder.projection.bias = to_numpy(marian.final_logits_bias[0])
    vocabulary = [str(token) for token in range(config.vocab_size)]
    spec.config.unk_token, spec.config.eos_token = vocabulary[1], vocabulary[END]
    spec.config.bos_token = spec.config.decoder_start_token = vocabulary[config.decoder_start_token_id]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def set_linear(spec: Any, *linears: nn.Linear) -> None:
    """Set one linear map to the concatenation of several with the same input."""
    spec.weight = to_numpy(torch.cat([linear.weight for linear in linears]))
    spec.bias = to_numpy(torch.cat([linear.bias for linear in linears]))


def set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = to_numpy(norm.weight), to_numpy(norm.bias)


def to_numpy(parameter: Tensor) -> Any:
    return parameter.detach().numpy()
