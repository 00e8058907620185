"""Where tensors are seen: hooks on modules, tensors and optimizers."""
