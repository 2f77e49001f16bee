"""Export a trained model as one C file and its header: parameters and one step, in C99 without allocation.

    export_c(model, "model.c", task)        writes model.c and model.h

The step description of a core (`stairwell.cores.step`) is interpreted at export: the file is a straight sequence of
layer applications with constant sizes (`transformer.py`). LSTM and DeltaNet have no description and templates of their
own. `tokens.py` and `agent.py` add what is around a core. The templates are the functions of the C file.
"""

from stairwell.export.c.export import C_FILE, CModel, export_c, header_path, symbol_prefix

__all__ = ["C_FILE", "CModel", "export_c", "header_path", "symbol_prefix"]
