"""Digests of everything observable over fixed inputs, to prove that a refactoring changed nothing."""
