"""Figure 6 of Fan et al. 2020: Maze Navigation Easy and Water Maze."""

from __future__ import annotations

from stairwell.experiments.measures import LastEpisodes
from stairwell.experiments.papers.feedback.agents import EASY, MAZE_NOTES, RETURN, WATER, WATER_NOTES, agents
from stairwell.experiments.study import FEEDBACK, Maker, Scale, Study

COLUMNS = (LastEpisodes("return, last 500 episodes"), RETURN)


def easy(scale: Scale) -> Study:
    return Study(
        name="feedback.figure6.maze-easy",
        title="Maze Navigation Easy",
        paper=f"{FEEDBACK}, figure 6 (left)",
        scale=scale,
        columns=COLUMNS,
        rows=agents(EASY[scale], EASY[scale].memory),
        seeds=2 if scale == "laptop" else 10,
        claim="without orientation a Transformer is not far behind Feedback; an LSTM is much worse",
        notes=MAZE_NOTES[scale],
    )


def water(scale: Scale) -> Study:
    return Study(
        name="feedback.figure6.water-maze",
        title="Water Maze",
        paper=f"{FEEDBACK}, figure 6 (right)",
        scale=scale,
        columns=COLUMNS,
        rows=agents(WATER[scale], WATER[scale].memory),
        seeds=2 if scale == "laptop" else 10,
        claim="Feedback converges to a higher reward than a Transformer and an LSTM",
        notes=WATER_NOTES[scale],
    )


STUDIES: dict[str, Maker] = {
    "feedback.figure6.maze-easy": easy,
    "feedback.figure6.water-maze": water,
}
