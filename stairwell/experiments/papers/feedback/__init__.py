"""Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory" (arXiv 2002.09402, version 3).

"Transformer" is the paper's, with relative positions and a cache: Transformer-XL."""
