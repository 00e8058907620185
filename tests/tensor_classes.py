"""Tensors of the user's own classes."""

from __future__ import annotations

import torch


class Tagged(torch.Tensor):
    """Sees every function that is called on it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})
