"""Export trained models: an HTML file that runs them in a browser, ONNX, and `torch.export`.

export_html([PageModel("Feedback", model, task)], "page.html")
export_onnx(model, "model.onnx")

`engine.js` runs the model and `vocabulary.js` encodes text; `tracking_page.js` and `text_page.js` are two pages. On the
third, `agent_page.js`, agents play the environments of `env_*.js`; `recorded_page.js` shows recorded episodes. The page
of translators and summarizers, `translation_page.js`, searches with `translator.js` and `seq2seq_engine.js`.
`step.py` exports one decoding step, with named states as inputs and outputs, `agent_step.py` one step of an agent, and
`seq2seq_step.py` the encoder and the decoding step of a translator or summarizer.
"""

from stairwell.export.agent_page import PageAgent, agents_of_runs, export_agent_html
from stairwell.export.agent_step import AgentStep, export_agent_onnx, export_agent_torch
from stairwell.export.html import PAGE, PageModel, export_html, from_runs
from stairwell.export.seq2seq_step import export_seq2seq_onnx, export_seq2seq_torch
from stairwell.export.step import GRAPH, ONNX, StepModule, export_onnx, export_torch
from stairwell.export.translation_page import PageTranslator, export_translation_html, translators_of_runs

__all__ = [
    "GRAPH",
    "ONNX",
    "PAGE",
    "AgentStep",
    "PageAgent",
    "PageModel",
    "PageTranslator",
    "StepModule",
    "agents_of_runs",
    "export_agent_html",
    "export_agent_onnx",
    "export_agent_torch",
    "export_html",
    "export_onnx",
    "export_seq2seq_onnx",
    "export_seq2seq_torch",
    "export_torch",
    "export_translation_html",
    "from_runs",
    "translators_of_runs",
]
