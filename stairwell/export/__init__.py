"""A trained model in other people's hands: one HTML file that holds its parameters and runs it.

export_html([Shown("Feedback", model, task)], "page.html")

`engine.js` runs the model, `vocabulary.js` knows text and ids, `track.js` and `write.js` are the two kinds of page.
"""

from stairwell.export.html import Shown, export_html, from_runs

__all__ = ["Shown", "export_html", "from_runs"]
