"""What the statistics mean, said once for the native kernel and the torch fallback.

- `count`, `zeros`, `nans`, `infs` count elements. A complex number counts as two: its real and its
  imaginary part.
- `mean`, `std` (over the population), `min`, `max`, `abs_mean`, `abs_max`, `rms` are over the
  finite elements, accumulated in float64, and null where there are none.
- The sketch counts the finite elements other than 0, by `schema.sketch_key`.
- `units`, `dead_units`, `constant_units`, `batch_std` are for a tensor of which a dimension, the
  first if nothing else was said, is a batch of at least two samples. A position is an index without
  the batch dimension; a unit is all positions of one channel or feature. A unit is dead if it is 0
  for every sample and position, and constant if no position of it differs between samples.
  `batch_std` is the standard deviation over the samples, averaged over the positions where it is
  finite.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

VALUE: Final = 0
GRAD: Final = 1
GRAD_APPLIED: Final = 2
UPDATE: Final = 3
"""Positions in `schema.QUANTITIES`."""

NO_UNITS: Final = -1

_CHANNELS_FIRST: Final = re.compile(
    r"(Lazy)?(Conv|ConvTranspose|BatchNorm|InstanceNorm|MaxPool|MaxUnpool|AvgPool|AdaptiveMaxPool"
    r"|AdaptiveAvgPool|FractionalMaxPool|LPPool|Dropout)[123]d"
    r"|SyncBatchNorm|GroupNorm|Upsample|PixelShuffle|PixelUnshuffle"
)


@cache
def _has_channels_first(module_class: str) -> bool:
    return _CHANNELS_FIRST.fullmatch(module_class) is not None


def unit_dim(dims: int, module_class: str = "") -> int:
    """Which dimension of an activation counts its units: channels for images, else the last one.

    >>> unit_dim(2), unit_dim(3), unit_dim(3, "Conv1d"), unit_dim(4), unit_dim(1)
    (1, 2, 1, 1, -1)
    >>> unit_dim(3, "Conv1D")  # which is a linear layer, in transformers
    2
    """
    if dims < 2:
        return NO_UNITS
    if dims >= 4 or _has_channels_first(module_class):
        return 1
    return dims - 1
