"""Figure 6 of Fan et al. 2020: Maze Navigation Easy and Water Maze."""

from __future__ import annotations

from stairwell.experiments.experiment import Experiment, ExperimentFactory, Scale
from stairwell.experiments.papers.feedback.agents import MAZE_NOTES, WATER_LSTM_LR, WATER_NOTES, agents, maze_experiment
from stairwell.runs import presets


def easy(scale: Scale) -> Experiment:
    claim = "without orientation, a Transformer is close to Feedback and an LSTM is much worse"
    name, title, figure = "feedback.figure6.maze-easy", "Maze Navigation Easy", "figure 6 (left)"
    return maze_experiment(
        name, title, figure, claim, agents(presets.easy_maze(scale=scale), 3), MAZE_NOTES[scale], scale
    )


def water(scale: Scale) -> Experiment:
    claim = "Feedback converges to a higher reward than a Transformer and an LSTM"
    name, title, figure = "feedback.figure6.water-maze", "Water Maze", "figure 6 (right)"
    return maze_experiment(
        name,
        title,
        figure,
        claim,
        agents(presets.water_maze(scale=scale), 2, WATER_LSTM_LR[scale]),
        WATER_NOTES[scale],
        scale,
    )


EXPERIMENTS: dict[str, ExperimentFactory] = {"feedback.figure6.maze-easy": easy, "feedback.figure6.water-maze": water}
