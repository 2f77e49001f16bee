"""Embeddings: worked by hand, and of about unit variance however wide the model or the cluster is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stairwell.cores.lstm import LSTMConfig
from stairwell.models import LanguageModel, LanguageModelConfig

WORDS, CUTOFFS = 900, (300, 600)


def model_of(width: int, **options: object) -> LanguageModel:
    torch.manual_seed(0)
    core = LSTMConfig(width=width, layers=1)
    return LanguageModel(LanguageModelConfig(core=core, inputs=WORDS, **options)).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [4, 64])
@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_is_a_row_of_the_table_times_the_root_of_the_width(width: int, tied: bool) -> None:
    model = model_of(width, tied=tied)
    table = model.state_dict()["embedding.vectors"].numpy()
    words = np.arange(WORDS)
    found = model.embedding(torch.from_numpy(words)).detach().numpy()
    np.testing.assert_allclose(found, table[words] * math.sqrt(width), rtol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_an_adaptive_embedding_is_projected_and_scaled_by_its_clusters_width(tied: bool) -> None:
    model = model_of(64, tied=tied, adaptive=CUTOFFS)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    found = model.embedding(torch.arange(WORDS)).detach().numpy()
    for cluster, (first, width) in enumerate(zip((0, *CUTOFFS), (64, 16, 4), strict=True)):
        table = weights[f"embedding.vectors.tables.{cluster}"]
        projection = weights[f"embedding.vectors.projections.{cluster}"]
        assert table.shape == (300, width)
        by_hand = table @ projection.T * math.sqrt(width)
        np.testing.assert_allclose(found[first : first + 300], by_hand, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("width", [16, 64, 256])
@pytest.mark.parametrize("adaptive", [(), CUTOFFS])
def test_what_the_core_reads_has_about_unit_variance_at_first(width: int, adaptive: tuple[int, ...]) -> None:
    model = model_of(width, adaptive=adaptive)
    embedded = model.embedding(torch.arange(WORDS)).detach()
    for cluster in embedded.split(300):
        assert 0.7 < cluster.std() < 1.4
