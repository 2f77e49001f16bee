"""A sequence-to-sequence model with any core as its decoder.

The encoder reads a source once; its output is a static part of the decoder's state, which is the cache. By default, the
last token of the target vocabulary is the end token and also the start token, as in stairwell's own runs.
Letters: B sequences, J source tokens, T target tokens, D width, V target vocabulary size.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from stairwell import configs
from stairwell.cores.core import SourceState
from stairwell.hf.base import PretrainedCoreConfig, StairwellModel, core_fields
from stairwell.hf.cache import StateCache, check_cache
from stairwell.hf.padding import mask_as_bool
from stairwell.models import IGNORE_INDEX, Seq2Seq, Seq2SeqConfig
from stairwell.models.encoder import EncoderConfig

OPTIONS = ("joint", "tied", "start_embedding", "embedding_dropout", "output_dropout")
ENCODER = tuple(field.name for field in dataclasses.fields(EncoderConfig))


class StairwellSeq2SeqConfig(PretrainedCoreConfig):
    """`core` and `core_options` define the decoder, `encoder_options` the encoder, as on the command line."""

    model_type = "stairwell-seq2seq"

    encoder_options: dict | None = None
    vocab_size: int = 256  # of the target
    source_vocab_size: int | None = None  # default: vocab_size
    joint: bool = True
    tied: str = "all"
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = None  # default: the last token, also for end and padding

    def __post_init__(self, **kwargs: Any) -> None:
        self.encoder_options = dict(self.encoder_options or {})
        self.source_vocab_size = self.source_vocab_size or self.vocab_size
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, self.vocab_size - 1)
        super().__post_init__(**kwargs)

    def model_config(self) -> Seq2SeqConfig:
        encoder = configs.from_json(EncoderConfig, dict(self.encoder_options or {}), "encoder_options")
        own: dict[str, Any] = {name: getattr(self, name) for name in OPTIONS} | dataclasses.asdict(encoder)
        own |= {"sources": self.source_vocab_size or self.vocab_size, "targets": self.vocab_size}
        return Seq2SeqConfig(core=self.core_config(), **own)

    @classmethod
    def of(cls, config: Seq2SeqConfig, **options: Any) -> StairwellSeq2SeqConfig:
        """Return the config of transformers for a model's config."""
        own: dict[str, Any] = {name: getattr(config, name) for name in OPTIONS}
        own["encoder_options"] = {name: getattr(config, name) for name in ENCODER}
        own |= {"vocab_size": config.targets, "source_vocab_size": config.sources}
        return cls(**core_fields(config.core), **own, **options)


class SourceEncoder(nn.Module):
    """The encoder with the interface that generation calls."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Return the encoded source (B, J, D). input_ids, attention_mask (B, J)"""
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else mask_as_bool(attention_mask)
        # Positions count from the first real token, whichever side is padded.
        order = mask.long().argsort(dim=1, descending=True, stable=True)
        hidden = self.model.encode(input_ids.gather(1, order), mask.gather(1, order))
        back = order.argsort(dim=1)[..., None].expand_as(hidden)
        return BaseModelOutput(last_hidden_state=hidden.gather(1, back))  # type: ignore[arg-type]


class StairwellForSeq2SeqLM(StairwellModel):
    config_class = StairwellSeq2SeqConfig
    config: StairwellSeq2SeqConfig
    _no_split_modules = ["Seq2Seq"]  # noqa: RUF012

    def __init__(self, config: StairwellSeq2SeqConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = Seq2Seq(config.model_config())
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> SourceEncoder:
        return SourceEncoder(self.model)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the labels shifted right, after the start token. (B, T) -> (B, T)"""
        start: Any = self.config.decoder_start_token_id
        shifted = torch.cat([labels.new_full((len(labels), 1), start), labels[:, :-1]], 1)
        return shifted.masked_fill(shifted == IGNORE_INDEX, start)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """Return logits (B, T, V).

        input_ids, attention_mask (B, J), or encoder_outputs; decoder_input_ids (B, T), default: the shifted labels;
        decoder_attention_mask (B, all target tokens so far); labels (B, T), -100 where no loss is computed"""
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids or labels are required")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        cache = check_cache(past_key_values)
        if encoder_outputs is None and not cache.is_initialized:
            if input_ids is None:
                raise ValueError("input_ids or encoder_outputs are required: there is no source in the cache")
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)

        def init_state() -> SourceState:
            source = encoder_outputs[0]
            mask = mask_as_bool(source.new_ones(source.shape[:2]) if attention_mask is None else attention_mask)
            source = source.masked_fill(~mask[..., None], 0)
            decoder = self.model.core.init_state(len(source))
            return SourceState(decoder=decoder, source=source, source_mask=mask)

        if self.training:
            self.model.core.clamp_spans()
        keep = logits_to_keep if labels is None else 0
        logits = cache.read(self.model, decoder_input_ids, init_state, decoder_attention_mask, keep, use_cache)
        loss = None
        if labels is not None:
            sums = F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
            )
            loss = sums / (num_items_in_batch if num_items_in_batch is not None else (labels != IGNORE_INDEX).sum())
            if self.training:
                loss = loss + self.span_loss((labels != IGNORE_INDEX).sum(), num_items_in_batch)
        # Without a cache, generation passes all tokens again, so none may be returned.
        output = Seq2SeqLMOutput(
            loss=loss,  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            past_key_values=cache if use_cache else None,  # type: ignore[arg-type]
            encoder_last_hidden_state=encoder_outputs[0] if encoder_outputs is not None else None,
        )
        return output.to_tuple() if return_dict is False else output
