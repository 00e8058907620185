"""The lab's page as a notebook's output, over the notebook's own channel."""

from __future__ import annotations

import json
from typing import Any, Final

from backlight.laboratory.channel import Channel
from backlight.laboratory.handlers import Lab
from backlight.notebook import PageWidget
from backlight.single_file import single_file

HEIGHT: Final = 720


class LabWidget(PageWidget):
    """The lab in a notebook. `backlight.lab` makes one."""

    def __init__(self, lab: Lab, **traits: Any) -> None:
        self.lab, self._channel = lab, Channel(lab)
        super().__init__(**{"height": HEIGHT, **traits})

    def close(self) -> None:
        """Take the page away, and let go of the model; it is as it was."""
        self.lab.close()
        super().close()

    def _reply(self, number: str, ask: str) -> tuple[int, bytes]:
        if not ask:
            page = single_file(title="Lab · Backlight", page="labEmbedded")
            return 200, "".join(page).encode()
        return self._channel.hear(number.rpartition(":")[0], json.loads(ask))
