"""Tensors become rows of the `stats` table: exact statistics and a sketch."""

from backlight.reduce.reducer import Reducer as Reducer
