"""The page as one HTML file, for a notebook's output and for an exported run."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from backlight.errors import BacklightError
from backlight.serve.app import NO_BUNDLE, STATIC

_EMBEDDED: Final = "embedded"
# Nothing is loaded from anywhere: what the file has not got, it does not show.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'; script-src {scripts}"
)


def single_file(
    *,
    title: str = "Backlight",
    parts: Iterable[str] = (),
    allows_frames: bool = False,
    page: str = "embedded",
) -> Iterable[str]:
    """The pieces of the page's HTML, with `parts` put in before its script.

    `page` is the viewer's, or `labEmbedded` for the lab's.

    Where other pages are shown in frames inside of it, those get its policy too, so it must let
    their scripts run; else only the page's own script may.
    """
    script = _safe(embedded_text(f"{page}.js"))
    scripts = "'unsafe-inline' 'unsafe-eval'" if allows_frames else _hash_of(script)
    yield "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
    policy = html.escape(_POLICY.format(scripts=scripts))
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
    yield "<meta name='color-scheme' content='light dark'>\n"
    yield f"<title>{html.escape(title)}</title>\n"
    yield f"<style>{embedded_text(f'{page}.css')}</style>\n</head>\n<body>\n<div id='app'></div>\n"
    yield from parts
    yield f"<script type='module'>{script}</script>\n</body>\n</html>\n"


def place_of(run: str, view: str, **selection: Any) -> str:
    """The address of a view of a run, as the page writes it behind its own.

    >>> place_of("digits/first try", "tensor", site="0:out.0", step=3, kind=None)
    '#/digits/first%20try/tensor?site=0%3Aout.0&step=3'
    """
    told = {name: value for name, value in selection.items() if value is not None}
    query = urlencode(told, doseq=True)
    return f"#/{quote(run)}/{quote(view)}" + (f"?{query}" if query else "")


def embedded_text(name: str, static: Path = STATIC) -> str:
    """A file of the page that is built for this."""
    try:
        return (static / _EMBEDDED / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BacklightError(NO_BUNDLE) from None


def _safe(script: str) -> str:
    r"""A script that does not end, in HTML, before its end.

    >>> _safe("const end = '</script>';")
    "const end = '<\\/script>';"
    """
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash_of(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
