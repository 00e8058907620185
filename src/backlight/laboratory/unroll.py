"""Runs a recurrent module step by step, so that each moment is a layer of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Tap = Callable[[int, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class RecurrentCall:
    """What a recurrent module is called with."""

    sequence: Any
    state: Any = None

    @staticmethod
    def of(args: Sequence[Any], keywords: Mapping[str, Any]) -> RecurrentCall:
        """The call, whether its arguments have names or not."""
        given = dict(zip(("input", "hx"), args, strict=False)) | dict(keywords)
        return RecurrentCall(given.get("input"), given.get("hx"))

    def time(self, module: nn.RNNBase) -> int:
        """The dimension that counts moments; without a batch it is the first."""
        return 1 if module.batch_first and self.sequence.dim() == 3 else 0

    def moments(self, module: nn.RNNBase) -> int:
        """How many steps the sequence has."""
        return int(self.sequence.shape[self.time(module)])


def can_unroll(module: nn.Module, call: RecurrentCall) -> bool:
    """Whether a module's call can be run step by step."""
    return (
        isinstance(module, nn.RNNBase)
        and not module.bidirectional
        and isinstance(call.sequence, torch.Tensor)
        # Between layers, dropout draws other numbers step by step.
        and not (module.dropout and module.training and module.num_layers > 1)
    )


def unrolled(module: nn.RNNBase, call: RecurrentCall, tap: Tap) -> tuple[torch.Tensor, Any]:
    """The module's output and its last state, with each moment's output seen by `tap`.

    >>> rnn = nn.GRU(3, 4, batch_first=True)
    >>> sequence, seen = torch.randn(1, 5, 3), []
    >>> call = RecurrentCall(sequence)
    >>> output, _ = unrolled(rnn, call, lambda t, out: seen.append(t) or out)
    >>> torch.allclose(output, rnn(sequence)[0], atol=1e-6), seen
    (True, [0, 1, 2, 3, 4])
    """
    sequence, state, time = call.sequence, call.state, call.time(module)
    outputs = []
    for moment in range(call.moments(module)):
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
