"""Ju et al. 2021, "Staircase Attention for Recurrent Processing of Sequences" (arXiv 2106.04279)."""
