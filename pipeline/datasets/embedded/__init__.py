"""The `embedded` estimator: a small CLIP for the drawn scenes, its weights and the program that trained it."""
