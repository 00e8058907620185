"""How a run is asked for statistics, whichever framework it records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any

from backlight.capture.select import Pattern
from backlight.errors import BacklightError, Guard
from backlight.own.statistic import Kind, Statistic, block_statistics, statistic_of


class TakesStatistics:
    """A run that computes what it is asked for besides its own statistics."""

    _guard: Guard

    def statistic(
        self,
        name: str,
        function: Callable[[Any], Any] | None = None,
        *,
        kind: Kind = "signed",
        include: Pattern | Iterable[Pattern] | None = None,
        exclude: Pattern | Iterable[Pattern] | None = None,
        classes: Collection[str] | None = None,
        quantities: Collection[str] | None = None,
    ) -> None:
        """Compute a statistic of every recorded tensor, shown like those that a run has anyway.

        Args:
            name: what it is called: a word.
            function: is given a tensor or an array and returns a number; in JAX it is traced. It is
                left out for what is built in: `min_abs`, `rm4` and `rm8`.
            kind: how it is shown: `signed`, `magnitude` (on a scale of powers) or `share`.
            include: compute it only of sites whose names match one of these regular expressions, or
                for which a function of the `Site` is true.
            exclude: do not compute it of these sites, given in the same way.
            classes: compute it only of these tensor classes: input, output, parameter, buffer,
                optimizer, tensor.
            quantities: compute it only of these: value, grad, grad_applied, update.

        >>> import tempfile, torch, backlight
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with backlight.watch(model, optimizer, root=tempfile.mkdtemp(), every=1) as run:
        ...     run.statistic("greatest", lambda tensor: tensor.max(), classes={"output"})
        ...     model(torch.ones(1, 2)).sum().backward()
        ...     optimizer.step()
        >>> rows = backlight.open(run.path).stats("out", quantity="value").rows()
        >>> rows[0]["greatest"] == rows[0]["max"]
        True
        """
        chosen = {"include": include, "exclude": exclude, "classes": classes}
        self._ask(
            "statistic",
            lambda: [
                statistic_of(name, function, kind=kind, quantities=quantities, **chosen)  # type: ignore[arg-type]
            ],
        )

    def blocks(
        self,
        shape: tuple[int, int],
        format: str = "float8_e4m3fn",
        *,
        include: Pattern | Iterable[Pattern] | None = None,
        exclude: Pattern | Iterable[Pattern] | None = None,
        classes: Collection[str] | None = None,
        quantities: Collection[str] | None = None,
    ) -> None:
        """Compute what a block-scaled format would lose, for blocks of rows × columns.

        That is three statistics: how the blocks' maxima spread, and which share of the elements the
        format rounds to 0 with a scale for each block, and with one scale for all; see
        docs/numerics.md. What it is computed of is chosen as in `statistic`.

        >>> import tempfile, torch, backlight
        >>> model = torch.nn.Linear(64, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with backlight.watch(model, optimizer, root=tempfile.mkdtemp(), every=1) as run:
        ...     run.blocks((1, 32), "float8_e4m3fn", classes={"parameter"}, quantities={"value"})
        ...     model(torch.ones(1, 64)).sum().backward()
        ...     optimizer.step()
        >>> row = backlight.open(run.path).stats("weight", quantity="value").rows()[0]
        >>> row["block_lost_1x32_float8_e4m3fn"]
        0.0
        """
        chosen = {"include": include, "exclude": exclude, "classes": classes}
        self._ask(
            "blocks",
            lambda: block_statistics(shape, format, quantities=quantities, **chosen),  # type: ignore[arg-type]
        )

    def _ask(self, method: str, make: Callable[[], list[Statistic]]) -> None:
        if self._is_over(method):
            return
        try:
            statistics = make()
        except BacklightError as error:
            self._guard.mistake(str(error))
            return
        self._compute(statistics)

    @abstractmethod
    def _is_over(self, method: str) -> bool: ...

    @abstractmethod
    def _compute(self, statistics: list[Statistic]) -> None:
        """Compute these from the next step on."""
