"""The papers' tables and figures as experiments, and the code that runs them."""
