"""The training loop with other objectives, batch sources and validations, and their contracts."""

from __future__ import annotations

import multiprocessing
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stairwell import FeedbackConfig, LanguageModelConfig, LSTMConfig
from stairwell.models import IGNORE_INDEX, LanguageModel
from stairwell.runs.run import Run
from stairwell.tensor_files import load_tensors
from stairwell.train import (
    CrossEntropy,
    Objective,
    Outcome,
    Phase,
    StreamTrainConfig,
    Trainer,
    evaluate,
    stream_trainer,
)
from stairwell.train.distributed import Distributed
from tests.commands import assert_same_tensors, read_metrics
from tests.train.test_distributed import free_port
from tests.train.test_loop import experiment, trainer

pytestmark = pytest.mark.quick

PACKAGE = Path(__file__).parents[2] / "stairwell" / "train"


@pytest.mark.parametrize(
    "name", ["loop", "objective", "checkpoint", "optimizers", "distributed", "training_folder", "curriculum"]
)
def test_the_loop_does_not_depend_on_what_is_learned(name: str) -> None:
    source = (PACKAGE / f"{name}.py").read_text()
    protocols = r"\.base import (Batch|BatchSource|Split)(, (BatchSource|Split))*$"
    foreign = rf"stairwell\.(models|tasks(?!{protocols})|text|data|cores)|train\.streams|IGNORE_INDEX|\"accuracy\""
    assert not re.search(foreign, source, re.MULTILINE)


@dataclass(frozen=True)
class Frames:
    """A batch of observations of a toy policy and its targets."""

    observations: Tensor  # (B, T)
    targets: Tensor  # (B, T)

    @property
    def terms(self) -> int:
        return self.observations.numel()

    size = terms

    def parts(self, count: int) -> list[Frames]:
        return [Frames(*tensors) for tensors in zip(self.observations.chunk(count), self.targets.chunk(count))]

    def to(self, device: torch.device | str) -> Frames:
        return Frames(self.observations.to(device), self.targets.to(device))


class Rollouts:
    """A batch source that makes a new rollout with the current policy at every third read."""

    def __init__(self, policy: nn.Module, indices: range, batch: int, seed: int) -> None:
        self.policy, self.indices, self.seed, self.reads = policy, indices, seed, 0
        self.frames = torch.zeros(len(indices), 0)

    def read(self, length: int) -> Frames:
        if self.reads % 3 == 0:
            noise = [torch.Generator().manual_seed(hash((self.seed, index, self.reads))) for index in self.indices]
            self.frames = torch.stack([torch.rand(length, generator=rng) for rng in noise])
            with torch.no_grad():  # observations depend on the policy
                self.frames = self.frames + 0.1 * self.policy(self.frames[..., None])[..., 0]
        self.reads += 1
        return Frames(self.frames.roll(self.reads, 1), torch.sin(3 * self.frames.roll(self.reads, 1)))

    def change(self, **options: Any) -> None:
        raise ValueError("nothing to change")

    def position(self) -> dict[str, Any]:
        return {"streams": [None for _ in self.indices], "reads": self.reads, "tensors": {"frames": self.frames}}

    def seek(self, position: dict[str, Any]) -> None:
        assert len(position["streams"]) == len(self.indices)
        self.reads, self.frames = position["reads"], position["tensors"]["frames"]


class GaussianLikelihood(Objective):
    """The likelihood of an error with a learned variance, a parameter of the objective."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.size = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Frames) -> Outcome:
        error = self.model(batch.observations[..., None])[..., 0] - batch.targets
        loss = error.square() * (-self.size).exp() + self.size
        return Outcome(loss.sum(), {"error": error.detach().abs().sum()})


class Score:
    primary_metric, higher_is_better = "score", True

    def __call__(self, model: nn.Module, split: str) -> dict[str, float]:
        x = torch.linspace(0, 1, 50)
        with torch.no_grad():
            return {"score": -float((model(x[:, None])[:, 0] - torch.sin(3 * x)).square().mean())}


def agent(folder: Path, world: Distributed | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
    settings = {
        "steps": 40,
        "batch": 4,
        "segment": 5,
        "log_every": 1,
        "validate_every": 10,
        "checkpoint_every": 10,
        **options,
    }
    config = StreamTrainConfig(**{"learning_rate": 0.01, "warmup": 0, **settings})
    phase = Phase(lambda indices, batch, seed: Rollouts(policy, indices, batch, seed), Score())
    return Trainer(GaussianLikelihood(policy), [phase], config, Run(folder), world)


def test_a_custom_objective_batch_source_and_validation_learn(tmp_path: Path) -> None:
    scores = agent(tmp_path, steps=200, accumulate=2).run()
    lines = read_metrics(tmp_path)
    assert scores["score"] == lines[-1]["valid"]["score"] > lines[10]["valid"]["score"]
    assert lines[0]["tokens"] == 20 and "accuracy" not in lines[0]
    assert [line["error"] for line in lines if "error" in line][-1] < lines[0]["error"]
    best = max(line["valid"]["score"] for line in lines if "valid" in line)
    assert Run(tmp_path).load_model()[1]["valid"]["score"] == best


def test_a_rollout_and_parameters_of_the_objective_resume_bit_for_bit(tmp_path: Path) -> None:
    """Stopped at step 20, within a rollout of an older policy."""
    agent(tmp_path / "whole").run()
    agent(tmp_path / "stopped", steps=20).run()
    resumed = agent(tmp_path / "stopped")
    resumed.resume()
    resumed.run()
    assert_same_tensors(tmp_path / "stopped", tmp_path / "whole")
    tensors, _, _ = Run(tmp_path / "whole").load_checkpoint()
    assert {"objective.size", "batch_source.frames", "model.0.weight", "optimizer.exp_avg.size"} <= set(tensors)
    assert tensors["objective.size"] != 0


def train_rank(rank: int, port: str, folder: Path, options: dict[str, Any]) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    with Distributed.connect(torch.device("cpu")) as world:
        trained = agent(folder, world, **options)
        if Run(folder).checkpoints():
            trained.resume()
        trained.model[2].p = 0.0  # dropout masks differ between processes
        trained.run()
        trained.close()


def two_agents(folder: Path, **options: Any) -> None:
    fork, port = multiprocessing.get_context("fork"), free_port()
    ranks = [fork.Process(target=train_rank, args=(rank, port, folder, options)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_two_processes_share_any_batch_source_and_each_can_resume_the_other(tmp_path: Path) -> None:
    def alone(folder: Path, **options: Any) -> None:
        trained = agent(folder, **options)
        if Run(folder).checkpoints():
            trained.resume()
        trained.model[2].p = 0.0
        trained.run()

    alone(tmp_path / "one")
    two_agents(tmp_path / "two")
    two_agents(tmp_path / "two-one", steps=20)
    alone(tmp_path / "two-one")
    alone(tmp_path / "one-two", steps=20)
    two_agents(tmp_path / "one-two")
    whole = Run(tmp_path / "one").load_checkpoint()[0]
    for name in ("two", "two-one", "one-two"):
        tensors = Run(tmp_path / name).load_checkpoint()[0]
        same = {name: tensor for name, tensor in whole.items() if not name.startswith("rng.")}
        torch.testing.assert_close({name: tensors[name] for name in same}, same, rtol=1e-3, atol=1e-5)


def test_a_curriculum_is_rejected_without_the_metric_correct(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to change"):
        agent(tmp_path, curriculum="length=2..4")

    trained = agent(tmp_path)
    trained.curriculum = trained.curriculum.parse("length=2..4")
    with pytest.raises(ValueError, match="a curriculum needs an objective with the metric `correct`"):
        trained.train_step()


def test_a_custom_objective_trains_on_the_streams_of_a_task(tmp_path: Path) -> None:
    class Doubled(CrossEntropy):
        def forward(self, batch: Any) -> Outcome:
            outcome = super().forward(batch)
            return Outcome(2 * outcome.loss, outcome.metrics)

    trained, losses = experiment("parity/lstm"), []
    for objective in (CrossEntropy, Doubled):
        tasks = trained.make_tasks()
        model = trained.make_model(tasks[0])
        run = stream_trainer(model, tasks, trained.train, Run(tmp_path / objective.__name__), objective=objective)
        run.run()
        losses.append(read_metrics(run.folder.path)[0]["loss"])
    assert losses[1] == pytest.approx(2 * losses[0])


@pytest.mark.parametrize("adaptive", ["", "1"])
def test_a_large_vocabulary_is_scored_and_advances_a_curriculum(
    adaptive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are the same with logits in blocks, and exist for an adaptive softmax."""
    options = {"train__curriculum": "length=2..3", "train__curriculum_accuracy": 20, "train__steps": 25}
    options |= {"model__adaptive": adaptive}
    whole = trainer(tmp_path / "whole", "parity/lstm", **options)
    whole.run()
    monkeypatch.setattr("stairwell.models.language.MAX_LOGITS", 6)  # three tokens at a time
    blocks = trainer(tmp_path / "blocks", "parity/lstm", **options)
    blocks.run()
    ours, theirs = read_metrics(tmp_path / "blocks"), read_metrics(tmp_path / "whole")
    assert [line["stage"]["length"] for line in ours if "stage" in line] == [2] * 19 + [3] * 6
    assert [line["accuracy"] for line in ours if "stage" in line] == [
        line["accuracy"] for line in theirs if "stage" in line
    ]
    assert ours[-1]["valid"]["accuracy"] == theirs[-1]["valid"]["accuracy"] > 20


def test_the_accuracy_of_an_evaluation_is_that_of_the_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path, "s5/lstm", task__length=20, task__valid_episodes=20)
    task, model = run.validation.task, run.model
    correct, total = 0, 0
    with torch.no_grad():
        for batch in task.batches("valid", 1, 10_000):
            logits, _ = model.eval()(batch.tokens, model.init_state(1), batch.start)
            scored = batch.targets != IGNORE_INDEX
            correct += int((logits.argmax(-1) == batch.targets)[scored].sum())
            total += int(scored.sum())
    assert 0 < correct < total
    for limit in (1 << 24, 500):
        monkeypatch.setattr("stairwell.models.language.MAX_LOGITS", limit)
        assert evaluate(model, task, "valid", 1, 64)["accuracy"] == pytest.approx(100 * correct / total)


def test_gradient_accumulation_keeps_the_state_of_every_stream(tmp_path: Path) -> None:
    parts = trainer(tmp_path / "parts", "random-walk/lstm", train__accumulate=2)
    whole = trainer(tmp_path / "whole", "random-walk/lstm")
    for run in (parts, whole):
        run.train_step(), run.train_step()
    ours, theirs = parts.objective.stream_state(), whole.objective.stream_state()
    assert ours is not None and theirs is not None and len(parts.objective.states) == 2
    for (name, a), (_, b) in zip(ours.tensors(), theirs.tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


def test_a_run_saves_the_parameters_of_the_model_only(tmp_path: Path) -> None:
    trained = agent(tmp_path, steps=3)
    trained.run()
    tensors, _ = load_tensors(tmp_path / "model.safetensors")
    assert set(tensors) == set(trained.model.state_dict())
    assert isinstance(trainer(tmp_path / "lm", "parity/lstm").model, LanguageModel)


def test_the_accuracy_of_a_stream_is_in_percent() -> None:
    objective = CrossEntropy(
        LanguageModel(LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3), inputs=3))
    )
    assert objective.summary({"correct": 3.0}, 4) == {"accuracy": 75.0}


def test_only_models_that_skip_parameters_are_reported_as_such() -> None:
    def skips(**model: Any) -> bool:
        return CrossEntropy(
            LanguageModel(
                LanguageModelConfig(
                    **{"core": FeedbackConfig(width=8, heads=2, layers=2, memory=3), "inputs": 30, **model}
                )
            )
        ).skips_parameters

    assert skips(adaptive=(10, 20))
    assert skips(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3, layer_drop=0.2))
    assert not skips() and not skips(core=LSTMConfig(width=8))
