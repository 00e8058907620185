"""Makes of whatever a user's function returns something that the page can show.

Libraries are known by the objects they make, never imported to find out.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import struct
import zlib
from typing import Any, Final

import numpy as np

from backlight.errors import BacklightError

Picture = dict[str, Any]

_MEANT: Final = (
    "return a Plotly or Matplotlib figure, a Vega-Lite chart or dict, an image (PIL, an array or "
    "PNG bytes) or HTML"
)
_SIGNATURES: Final = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg", b"GIF8": "image/gif"}
_DOTS_PER_INCH: Final = 200


def picture_of(made: Any) -> Picture:
    """What the page shows of what a function returned.

    >>> picture_of("<b>loss</b>")
    {'kind': 'html', 'html': '<b>loss</b>'}
    >>> picture_of(np.zeros((2, 2)))["type"]
    'image/png'
    """
    for make in (_of_text, _of_bytes, _of_array, _of_plotly, _of_vega, _of_drawing, _of_html):
        picture = make(made)
        if picture is not None:
            return picture
    what = "nothing" if made is None else f"a {type(made).__name__}"
    raise BacklightError(f"visualize() returned {what}: {_MEANT}.")


def _image(data: bytes, mime: str) -> Picture:
    return {"kind": "image", "type": mime, "data": base64.b64encode(data).decode()}


def _of_text(made: Any) -> Picture | None:
    return {"kind": "html", "html": made} if isinstance(made, str) else None


def _of_bytes(made: Any) -> Picture | None:
    if not isinstance(made, (bytes, bytearray)):
        return None
    for signature, mime in _SIGNATURES.items():
        if made.startswith(signature):
            return _image(bytes(made), mime)
    raise BacklightError(f"visualize() returned bytes that are no PNG, JPEG or GIF: {_MEANT}.")


def _of_array(made: Any) -> Picture | None:
    return _image(_png(made), "image/png") if isinstance(made, np.ndarray) else None


def _of_plotly(made: Any) -> Picture | None:
    if isinstance(made, dict) and "data" in made and "layout" in made:
        return {"kind": "plotly", "figure": made}
    if not hasattr(made, "to_plotly_json"):
        return None
    return {"kind": "plotly", "figure": json.loads(made.to_json())}


def _of_vega(made: Any) -> Picture | None:
    is_chart = type(made).__module__.startswith("altair")
    spec = made.to_dict() if is_chart else made
    if not isinstance(spec, dict):
        return None
    try:
        draw = importlib.import_module("vl_convert")
    except ImportError:
        raise BacklightError(
            "A Vega-Lite chart is drawn by vl-convert-python, which is missing: "
            "`pip install vl-convert-python`."
        ) from None
    return _image(draw.vegalite_to_svg(spec).encode(), "image/svg+xml")


def _of_drawing(made: Any) -> Picture | None:
    """A Matplotlib figure, or axes of one, or an image of PIL."""
    figure = getattr(made, "figure", made)
    sink = io.BytesIO()
    if hasattr(figure, "savefig"):
        figure.savefig(sink, format="png", dpi=_DOTS_PER_INCH, bbox_inches="tight")
        return {**_image(sink.getvalue(), "image/png"), "scale": 100 / _DOTS_PER_INCH}
    if type(made).__module__.startswith("PIL."):
        made.save(sink, format="PNG")
        return _image(sink.getvalue(), "image/png")
    return None


def _of_html(made: Any) -> Picture | None:
    """What notebooks show as HTML, such as a table of pandas."""
    html = made._repr_html_() if hasattr(made, "_repr_html_") else None
    return {"kind": "html", "html": html} if isinstance(html, str) else None


def _png(pixels: Any) -> bytes:
    """An image of rows × columns, or × 3 or 4 colours: bytes, or numbers from 0 to 1."""
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if not is_image or 0 in pixels.shape:
        raise BacklightError(
            f"visualize() returned an array of shape {pixels.shape}: an image is rows × columns, "
            "or rows × columns × 3 or 4."
        )
    if pixels.dtype != np.uint8:
        pixels = (np.nan_to_num(pixels.astype(np.float64)).clip(0, 1) * 255).round()
    lines = np.ascontiguousarray(pixels.astype(np.uint8)).reshape(len(pixels), -1)
    colours = {2: 0, 3: 2, 4: 6}[2 if pixels.ndim == 2 else pixels.shape[2]]
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, colours, 0, 0, 0)
    # Each line begins with the number of its filter, 0 for none.
    body = zlib.compress(np.pad(lines, ((0, 0), (1, 0))).tobytes())
    parts = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
