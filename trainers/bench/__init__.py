"""Methods compared: presets of tasks, noise and methods, the papers' figures, and one table of results."""
