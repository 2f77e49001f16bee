"""Ju et al. 2021, "Staircase Attention for Recurrent Processing of Sequences" (arXiv 2106.04279)."""

from . import figure2, figure3, table1, table2, table3, table6, table7, table8, table9

PARTS = (table1, figure2, figure3, table2, table3, table6, table7, table8, table9)
