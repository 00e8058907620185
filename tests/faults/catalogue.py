"""Every program of the suite, by name."""

from __future__ import annotations

from faults import fine, flow, later, loop, losses, shapes  # noqa: F401
from faults.program import FAULTY as FAULTY
from faults.program import HEALTHY as HEALTHY
from faults.program import Program as Program
from faults.program import record as record
