"""A trained model in other people's hands: one HTML file that holds its parameters and runs it; its step as a graph.

export_html([Shown("Feedback", model, task)], "page.html")
export_onnx(model, "model.onnx")

`engine.js` runs the model, `vocabulary.js` knows text and ids, `track.js` and `write.js` are the two kinds of page.
`step.py` writes a step, with named states in and out, for onnxruntime and `torch.export`.
"""

from stairwell.export.html import PAGE, Shown, export_html, from_runs
from stairwell.export.step import GRAPH, ONNX, Step, export_onnx, export_torch

__all__ = ["GRAPH", "ONNX", "PAGE", "Shown", "Step", "export_html", "export_onnx", "export_torch", "from_runs"]
