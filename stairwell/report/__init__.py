"""Reports of runs: one self-contained HTML file, and plots as PNG files.

`gather` reads run folders, `write_html` and `write_png` show them. `summary` returns a table of them and
`summary_sentence` a sentence.
"""

from stairwell.report.attention import AttentionAverage
from stairwell.report.collect import Curves, RunReport, ValidationPoint, WalkPrediction, gather
from stairwell.report.compare import differences, summary, summary_sentence
from stairwell.report.page import check_report, write_extra_pngs, write_html
from stairwell.report.plots import write_png
from stairwell.report.sweep import Panel, Point, write_sweep_png
from stairwell.report.table import Table

__all__ = [
    "AttentionAverage",
    "Curves",
    "Panel",
    "Point",
    "RunReport",
    "Table",
    "ValidationPoint",
    "WalkPrediction",
    "check_report",
    "differences",
    "gather",
    "summary",
    "summary_sentence",
    "write_extra_pngs",
    "write_html",
    "write_png",
    "write_sweep_png",
]
