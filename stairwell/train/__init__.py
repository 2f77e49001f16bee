"""Training: one loop over objectives, feeds and validations, with checkpoints, curricula and several processes."""
