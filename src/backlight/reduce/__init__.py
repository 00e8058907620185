"""Tensors become rows of the `stats` table: exact statistics and a sketch."""
