"""Which sites are recorded: by name, by tensor class, or by the user's own predicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from backlight.errors import BacklightError
from backlight.schema import TENSOR_CLASSES, Site

Pattern: TypeAlias = str | Callable[[Site], bool]


class Selection:
    r"""Says yes to a site that is included and not excluded.

    >>> site = Site(0, "blocks.3.attn:out.0", "output", "blocks.3.attn", "Attention", "out.0")
    >>> Selection(include=r"attn").has(site), Selection(exclude=[r"^blocks\.3"]).has(site)
    (True, False)
    >>> Selection(classes={"parameter"}).has(site)
    False
    """

    def __init__(
        self,
        *,
        include: Pattern | Iterable[Pattern] | None = None,
        exclude: Pattern | Iterable[Pattern] | None = None,
        classes: Collection[str] | None = None,
    ) -> None:
        self._include = _tests("include", include)
        self._exclude = _tests("exclude", exclude)
        self._classes = _known_classes(classes)

    def has_class(self, tensor_class: str) -> bool:
        """Whether any site of this tensor class can be recorded."""
        return tensor_class in self._classes

    def has(self, site: Site) -> bool:
        """Whether this site is recorded."""
        return (
            site.tensor_class in self._classes
            and (not self._include or any(test(site) for test in self._include))
            and not any(test(site) for test in self._exclude)
        )


def _tests(
    option: str, patterns: Pattern | Iterable[Pattern] | None
) -> list[Callable[[Site], bool]]:
    if patterns is None:
        return []
    if isinstance(patterns, str) or callable(patterns):
        patterns = [patterns]
    if not isinstance(patterns, Iterable):
        raise BacklightError(
            f"{option}={patterns!r} chooses no sites: pass a regular expression, a function of "
            "the site, or several of them."
        )
    return [_test(option, pattern) for pattern in patterns]


def _test(option: str, pattern: Pattern) -> Callable[[Site], bool]:
    if callable(pattern):
        return pattern
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise BacklightError(
            f"{option}={pattern!r} is no regular expression ({error}): correct it, "
            "or pass a function of the site."
        ) from None
    return lambda site: compiled.search(site.name) is not None


def _known_classes(classes: Collection[str] | None) -> frozenset[str]:
    if classes is None:
        return frozenset(TENSOR_CLASSES)
    if not isinstance(classes, Collection):
        raise BacklightError(
            f"classes={classes!r} is no set: use a set of {', '.join(TENSOR_CLASSES)}."
        )
    unknown = set(classes) - set(TENSOR_CLASSES) if not isinstance(classes, str) else {classes}
    if unknown:
        raise BacklightError(
            f"classes has {', '.join(map(repr, sorted(unknown, key=str)))}: "
            f"use a set of {', '.join(TENSOR_CLASSES)}."
        )
    return frozenset(classes)
