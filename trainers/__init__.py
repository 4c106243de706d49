"""Robust fine-tuning from weight tables: data, targets, methods, the loop, and benches."""
