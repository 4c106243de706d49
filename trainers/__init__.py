"""Robust fine-tuning from weight tables (not built yet)."""
