"""Train (`train`) and measure (`check`) the `embedded` estimator, a small CLIP for the drawn scenes."""
