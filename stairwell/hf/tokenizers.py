"""Vocabularies as fast tokenizers of transformers."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from stairwell import text
from stairwell.errors import UserError
from stairwell.generate import BYTE_OF
from stairwell.tasks.pair_task import PairTask

END = "</s>"


def tokenizer(vocabulary: text.Vocabulary) -> PreTrainedTokenizerFast:
    """The vocabulary as a tokenizer of transformers, for bytes, characters and byte pairs."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(vocabulary), clean_up_tokenization_spaces=False, padding_side="left"
    )


def pair_tokenizers(task: PairTask) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Of source and target, the same one if they share their symbols. Texts end in the end symbol and are cut where the
    model would cut them; an article's limit in words stays behind."""
    symbols, config = task.vocabulary, task.config
    source = _with_end(symbols.source, config.lowercase, config.max_source_length)
    return source, source if task.joint else _with_end(symbols.target, config.lowercase, config.max_target_length)


def _with_end(vocabulary: text.BPE, lowercase: bool, longest: int) -> PreTrainedTokenizerFast:
    made = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    made.add_special_tokens([END])
    # White space is one space, and one stands in front, as before any other word.
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(" ")]
    made.normalizer = normalizers.Sequence([*spaces, *([normalizers.Lowercase()] if lowercase else [])])
    made.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, vocabulary.size)])
    made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END,
        pad_token=END,
        model_max_length=longest + 1,
        clean_up_tokenization_spaces=False,
    )


def _tokenizer(vocabulary: text.Vocabulary) -> Any:
    if isinstance(vocabulary, text.BPE):
        return vocabulary.tokenizer
    if isinstance(vocabulary, text.Bytes):
        made = Tokenizer(models.BPE(vocab=dict(BYTE_OF), merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
        return made
    if isinstance(vocabulary, text.Characters):
        made = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(vocabulary.symbols)}))
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        made.decoder = decoders.Fuse()
        return made
    raise UserError(f"transformers has no tokenizer for {vocabulary.kind}; bytes, characters and bpe have one")
