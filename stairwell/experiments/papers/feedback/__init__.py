"""Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory" (arXiv 2002.09402, version 3).

"Transformer" is the paper's, with relative positions and a cache: Transformer-XL."""

from . import (
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    figure9,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
)

PARTS = (table1, figure3, figure4, table2, figure5, table3, table4, table5, figure6, figure7, figure8, table6, figure9)
