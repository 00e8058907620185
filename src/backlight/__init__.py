"""Backlight shows what happens inside a neural network while it trains."""

from backlight._version import __version__ as __version__
from backlight.api import check as check
from backlight.api import diagnose as diagnose
from backlight.api import lab as lab
from backlight.api import open as open
from backlight.api import tap as tap
from backlight.api import watch as watch
from backlight.errors import BacklightError as BacklightError
from backlight.errors import BacklightWarning as BacklightWarning
from backlight.errors import StopTraining as StopTraining
