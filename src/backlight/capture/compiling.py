"""Keeps torch's compiler out of Backlight's own code.

In a function that is compiled, such as a whole training step, the compiler would trace every hook
that is called there: in vain, with warnings of what it cannot trace, and against what hooks rely
on. It is told to run them as they are. Where it runs a model without any hook, the user is told.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Final

_EVAL: Final = "torch._dynamo.eval_frame"
_MANY, _SEEN = 3, -(1 << 60)
_told: Any = None  # the compiler's rules, once they have this one


def keep_out() -> None:
    """Tell the compiler, if it is loaded and does not know: that takes long, so it is not here."""
    global _told
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None or rules is _told:
        return
    _told = rules
    with suppress(Exception):  # it has no such rule in this version
        rules.add("backlight")


def rules_told() -> Any:
    """The compiler's rules that were told; None if there were none yet."""
    return _told


def is_in_compiled_call() -> bool:
    """Whether this runs inside the call of a compiled function, in the parts that are not compiled.

    When it returns, torch puts back what it noted of dispatch modes: one that came or went inside
    would leave its stack and its keys at odds, and every operation would fail.
    """
    frame = sys._getframe(1) if _EVAL in sys.modules else None
    while frame is not None:
        # Of the functions there, the one that calls a compiled function notes the keys.
        if "saved_include_set" in frame.f_code.co_varnames and frame.f_globals["__name__"] == _EVAL:
            return True
        frame = frame.f_back
    return False


class Unseen:
    """Notices that a compiled model runs without any hook.

    So it does where another model of the same classes was compiled and run before: the compiler's
    guards leave hooks out, so it takes the code that it has. A step or two may have had no forward
    pass.

    >>> unseen = Unseen()
    >>> [unseen.is_news(has_calls=False) for step in range(4)]
    [False, False, True, False]
    >>> unseen = Unseen()
    >>> [unseen.is_news(has_calls=step == 1) for step in range(4)]
    [False, False, False, False]
    """

    sentence: Final = (
        "No module of the compiled model is seen: it runs what was compiled for another model of "
        "the same classes before. Call torch.compiler.reset() before torch.compile(model)."
    )

    def __init__(self) -> None:
        self._steps = 0

    def is_news(self, *, has_calls: bool) -> bool:
        """A captured step of a compiled model ends; whether it is the third in which none was."""
        self._steps = _SEEN if has_calls else self._steps + 1
        return self._steps == _MANY
