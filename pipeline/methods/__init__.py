"""What training methods could say of the pairs before any training: columns from frozen embeddings (METHODS 1.11)."""
