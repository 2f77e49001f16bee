"""What a training came to, to show a colleague: one HTML file that needs nothing else, a PNG for a README.

`gather` reads run folders, `write_html` and `write_png` show them; `summary` makes a table of them and
`primary_metric` a sentence.
"""

from stairwell.report.collect import Attention, Belief, Curves, RunReport, Validation, gather
from stairwell.report.compare import primary_metric, summary
from stairwell.report.page import check_report, write_html, write_stream_pngs
from stairwell.report.picture import write_png
from stairwell.report.sweep import Panel, Point, write_sweep_png
from stairwell.report.table import Table

__all__ = [
    "Attention",
    "Belief",
    "Curves",
    "Panel",
    "Point",
    "RunReport",
    "Table",
    "Validation",
    "check_report",
    "gather",
    "primary_metric",
    "summary",
    "write_html",
    "write_png",
    "write_stream_pngs",
    "write_sweep_png",
]
