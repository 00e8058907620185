"""Asks a model what watching cannot tell: small experiments on copies, before training."""
