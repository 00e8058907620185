"""A run on disk: written by `writer`, read by `reader`."""
