"""Embeddings: values, and about unit variance for any width."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stairwell.cores.lstm import LSTMConfig
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.models.embedding import StartEmbedding

pytestmark = pytest.mark.quick

VOCABULARY_SIZE, CUTOFFS = 900, (300, 600)


def model_of(width: int, **options: object) -> LanguageModel:
    torch.manual_seed(0)
    core = LSTMConfig(width=width, layers=1)
    return LanguageModel(LanguageModelConfig(core=core, inputs=VOCABULARY_SIZE, **options)).double()  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [4, 64])
@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_are_scaled_by_the_root_of_the_width(width: int, tied: bool) -> None:
    model = model_of(width, tied=tied)
    table = model.state_dict()["embedding.vectors"].numpy()
    ids = np.arange(VOCABULARY_SIZE)
    actual = model.embedding(torch.from_numpy(ids)).detach().numpy()
    np.testing.assert_allclose(actual, table[ids] * math.sqrt(width), rtol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_adaptive_embeddings_are_projected_and_scaled_by_the_width_of_the_cluster(tied: bool) -> None:
    model = model_of(64, tied=tied, adaptive=CUTOFFS)
    parameters = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    actual = model.embedding(torch.arange(VOCABULARY_SIZE)).detach().numpy()
    for cluster, (first, width) in enumerate(zip((0, *CUTOFFS), (64, 16, 4), strict=True)):
        table = parameters[f"embedding.vectors.tables.{cluster}"]
        projection = parameters[f"embedding.vectors.projections.{cluster}"]
        assert table.shape == (300, width)
        expected = table @ projection.T * math.sqrt(width)
        np.testing.assert_allclose(actual[first : first + 300], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("width", [16, 64, 256])
@pytest.mark.parametrize("adaptive", [(), CUTOFFS])
def test_initial_embeddings_have_about_unit_variance(width: int, adaptive: tuple[int, ...]) -> None:
    model = model_of(width, adaptive=adaptive)
    embedded = model.embedding(torch.arange(VOCABULARY_SIZE)).detach()
    for cluster in embedded.split(300):
        assert 0.7 < cluster.std() < 1.4


def test_the_start_embedding_is_added_to_the_first_token_only() -> None:
    embedding = StartEmbedding(2)
    torch.nn.init.ones_(embedding.vector)
    since_start = torch.tensor([[0, 1, 2], [3, 0, 1]])
    assert embedding(torch.zeros(2, 3, 2), since_start)[..., 0].tolist() == [[1, 0, 0], [0, 1, 0]]
