"""Exchange: runs as frames of exponent counts and back, and training statistics from elsewhere."""

from backlight.exchange.frame import frame_of as frame_of
from backlight.exchange.frame_files import read_frame as read_frame
from backlight.exchange.frame_files import write_frame as write_frame
from backlight.exchange.importing import import_frame as import_frame
from backlight.exchange.importing import import_scalars as import_scalars
from backlight.exchange.training import read_scalars as read_scalars
