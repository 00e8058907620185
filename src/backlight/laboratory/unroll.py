"""Runs a recurrent module step by step, so that each moment is a layer of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Tap = Callable[[int, torch.Tensor], torch.Tensor]


def can_unroll(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether a module's call can be run step by step."""
    return (
        isinstance(module, nn.RNNBase)
        and not module.bidirectional
        and bool(args)
        and isinstance(args[0], torch.Tensor)
        and args[0].dim() == 3
        # Between layers, dropout draws other numbers step by step.
        and not (module.dropout and module.training and module.num_layers > 1)
    )


def moments(module: nn.RNNBase, sequence: torch.Tensor) -> int:
    """How many steps a sequence has."""
    return int(sequence.shape[1 if module.batch_first else 0])


def unrolled(module: nn.RNNBase, args: tuple[Any, ...], tap: Tap) -> tuple[torch.Tensor, Any]:
    """The module's output and its last state, with each moment's output seen by `tap`.

    >>> rnn = nn.GRU(3, 4, batch_first=True)
    >>> sequence, seen = torch.randn(1, 5, 3), []
    >>> output, _ = unrolled(rnn, (sequence,), lambda t, out: seen.append(t) or out)
    >>> torch.allclose(output, rnn(sequence)[0], atol=1e-6), seen
    (True, [0, 1, 2, 3, 4])
    """
    sequence, time = args[0], 1 if module.batch_first else 0
    state = args[1] if len(args) > 1 else None
    outputs = []
    for moment in range(moments(module, sequence)):
        at = sequence.narrow(time, moment, 1)
        output, state = module.forward(at) if state is None else module.forward(at, state)
        output = tap(moment, output)
        state = _with_hidden(state, output, time)
        outputs.append(output)
    return torch.cat(outputs, time), state


def _with_hidden(state: Any, output: torch.Tensor, time: int) -> Any:
    """The state, in which the last layer's hidden one is what `tap` returned."""
    hidden = state[0] if isinstance(state, tuple) else state
    own = output.movedim(time, 0)
    hidden = torch.cat([hidden[:-1], own])
    return (hidden, *state[1:]) if isinstance(state, tuple) else hidden
