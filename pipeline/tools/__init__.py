"""Commands around a run: `plan/` predicts what it takes, `doctor` checks the installation, `adapt` fine-tunes the model."""
