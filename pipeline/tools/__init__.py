"""Commands around a run: `plan/` predicts its cost, `doctor` checks the installation, `adapt` fine-tunes a model (`tuning`)."""
