"""A user's own anomalies: a small language, said once for the trainer and for the reader."""
