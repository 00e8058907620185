"""Which sites are recorded: by name, by tensor class, or by the user's own predicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
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
        self._has_failed = False  # a function of the user's: it may do so for each of many sites

    def has_class(self, tensor_class: str) -> bool:
        """Whether any site of this tensor class can be recorded."""
        return tensor_class in self._classes

    def has(self, site: Site, tell: Callable[[str], None] | None = None) -> bool:
        """Whether this site is recorded.

        If a function of the user's fails, it is, and that is told, or raised.
        """
        if site.tensor_class not in self._classes:
            return False
        try:
            is_included = not self._include or any(test(site) for test in self._include)
            return is_included and not any(test(site) for test in self._exclude)
        except BacklightError as error:
            if tell is None:
                raise
            if not self._has_failed:
                self._has_failed = True
                tell(str(error))
            return True


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
        return partial(_ask, option, pattern)
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise BacklightError(
            f"{option}={pattern!r} is no regular expression ({error}): correct it, "
            "or pass a function of the site."
        ) from None
    return lambda site: compiled.search(site.name) is not None


def _ask(option: str, pattern: Callable[[Site], bool], site: Site) -> bool:
    try:
        return bool(pattern(site))
    except Exception as error:
        name = getattr(pattern, "__qualname__", type(pattern).__name__)
        raise BacklightError(
            f"The function {name} given as {option}= failed for the site {site.name!r} "
            f"({type(error).__name__}: {error}): sites that it fails for are recorded."
        ) from error


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
