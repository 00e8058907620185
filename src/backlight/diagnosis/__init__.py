"""Says what is wrong with a run, where, since when, and why it thinks so."""
