"""The loss functions and other functionals that the user's code calls, with their arguments."""

from backlight.capture.calls.book import FunctionCall as FunctionCall
from backlight.capture.calls.capture import CallCapture as CallCapture
