"""The tables of a run: the one contract between whoever writes a run and whoever reads it.

A run is a folder, `<root>/<project>/<run>/`, that holds `run.json` and one folder for each table
below. A table is a series of Arrow IPC streams, `<table>/<rank>-<segment>.arrows`; its rows are the
union of all of them.

>>> STATS.field("mean").type
DataType(double)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import frexp
from typing import Any, Final

import pyarrow as pa

FORMAT_VERSION: Final = (1, 3)
"""(major, minor). A reader refuses a newer major version and reads every older one."""

RUN_FILE: Final = "run.json"

TENSOR_CLASSES: Final = ("input", "output", "parameter", "buffer", "optimizer", "tensor")
"""What kind of place a site is: where a module's input or output, a parameter, … is seen."""

QUANTITIES: Final = ("value", "grad", "grad_applied", "update")
"""What is observed at a site. `grad_applied` and `update` exist for parameters only."""

STATISTICS: Final = ("mean", "std", "min", "max", "abs_mean", "abs_max", "rms")
"""Statistics over the finite elements of a tensor; null where it has none."""

COUNTS: Final = ("count", "zeros", "nans", "infs")
"""Numbers of elements: all of them, and those that are 0, NaN, or plus or minus infinity."""

UNIT_STATISTICS: Final = ("units", "dead_units", "constant_units", "batch_std")
"""For activations with a batch: how many units (channels or features) there are, how many are 0 for
the whole batch, how many are the same for every sample, and the mean over positions of the standard
deviation over the batch. Null where there is no batch to speak of."""


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


STATS: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("iteration", pa.int32()),
        _required("order", pa.int32()),  # position among the observations of this step
        _required("site", pa.int32()),
        _required("quantity", pa.utf8()),
        _required("backward", pa.utf8()),  # which backward pass, where the user names them
        _required("dtype", pa.utf8()),
        _required("shape", pa.list_(pa.int64())),
        *(_required(name, pa.int64()) for name in COUNTS),
        *(pa.field(name, pa.float64()) for name in STATISTICS),
        pa.field("units", pa.int32()),
        pa.field("dead_units", pa.int32()),
        pa.field("constant_units", pa.int32()),
        pa.field("batch_std", pa.float64()),
        _required("sketch_keys", pa.list_(pa.int16())),
        _required("sketch_counts", pa.list_(pa.uint32())),
        pa.field("own", pa.list_(pa.float64())),  # in the order of run.json's `statistics`
    ]
)

PLAIN_STATS: Final = pa.schema([field for field in STATS if field.name != "own"])
"""What is written of a run that has no statistics of its own."""

SITES: Final = pa.schema(
    [
        _required("site", pa.int32()),  # dense from 0, unique within a rank
        _required("name", pa.utf8()),
        _required("tensor_class", pa.utf8()),
        _required("module", pa.utf8()),  # qualified name; "" is the root module
        _required("module_class", pa.utf8()),
        _required("place", pa.utf8()),  # "out.0", "weight", "exp_avg": the name within the module
        _required("call", pa.int32()),  # 1 for the first call of the module in an iteration
        _required("node", pa.utf8()),  # what the graph shows; several sites are roles of one node
        _required("role", pa.utf8()),
        _required("kind", pa.utf8()),  # of a named tensor: input, hidden, target, loss or helper
        _required("aliases", pa.list_(pa.utf8())),  # other names of the same tensor (tied weights)
        _required("first_step", pa.int64()),
    ]
)

STEPS: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("kind", pa.utf8()),
        _required("recorded", pa.bool_()),
        _required("reason", pa.utf8()),
        _required("iterations", pa.int32()),
        pa.field("batch_size", pa.int64()),
        _required("graph", pa.utf8()),  # names graphs/<graph>.json; empty where none was walked
        _required("started_at", pa.float64()),  # seconds since the epoch
        _required("duration_secs", pa.float64()),
        _required("recording_secs", pa.float64()),  # the part of the duration that recording took
        pa.field("loss", pa.float64()),  # that the step's last backward pass started from
        pa.field("learning_rate", pa.float64()),  # of the first group of the first optimizer
    ]
)

SCALARS: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("name", pa.utf8()),
        _required("value", pa.float64()),
        _required("logged_at", pa.float64()),
    ]
)

NOTES: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("text", pa.utf8()),
        _required("written_at", pa.float64()),
    ]
)

EVENTS: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("kind", pa.utf8()),  # nonfinite, spike, condition, exception, end, …
        _required("site", pa.int32()),  # -1 where it is about no single site
        _required("text", pa.utf8()),
        _required("happened_at", pa.float64()),
    ]
)

SAMPLES: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("iteration", pa.int32()),
        _required("site", pa.int32()),
        _required("quantity", pa.utf8()),
        _required("backward", pa.utf8()),
        _required("sample", pa.int32()),  # position in the batch
        pa.field("data_index", pa.int64()),  # position in the user's data set, where given
        pa.field("mean", pa.float64()),
        pa.field("abs_mean", pa.float64()),
        pa.field("std", pa.float64()),
        pa.field("abs_max", pa.float64()),
    ]
)

CALLS: Final = pa.schema(
    [
        _required("step", pa.int64()),
        _required("iteration", pa.int32()),
        _required("order", pa.int32()),
        _required("function", pa.utf8()),  # torch.nn.functional.cross_entropy
        _required("module", pa.utf8()),  # the module whose forward it ran in; "" is the loop itself
        _required("arguments", pa.utf8()),  # JSON: each argument's shape, dtype, range or value
        _required("result", pa.utf8()),  # JSON, in the same way
        _required("source", pa.utf8()),  # file:line of the user's code
        _required("code", pa.utf8()),  # that line
    ]
)

TABLES: Final[dict[str, pa.Schema]] = {
    "stats": STATS,
    "sites": SITES,
    "steps": STEPS,
    "scalars": SCALARS,
    "notes": NOTES,
    "events": EVENTS,
    "samples": SAMPLES,
    "calls": CALLS,
}

_NOT_OWN: Final = frozenset(
    {*STATS.names, "rank", "name", "tensor_class", "norm", "update_ratio", "scalar", "block"}
    | {"abs", "log10", "is_finite", "previous", "usual", "and", "or", "not", "value"}
)


def is_own_name(name: str) -> bool:
    """Whether a statistic of the user's own can have this name: a word that means nothing yet.

    >>> is_own_name("kurtosis"), is_own_name("mean"), is_own_name("zero_share"), is_own_name("a b")
    (True, False, False, False)
    """
    return name.isidentifier() and name.isascii() and name not in _NOT_OWN and name[-6:] != "_share"


SKETCH_BIAS: Final = 1074
"""The exponent of the smallest float64 is -1074; adding this makes every exponent at least 0."""


def sketch_key(value: float) -> int:
    """The bin of the sketch that a finite value other than 0 falls into.

    A bin is a sign, a power of two and the two mantissa bits after the leading one. Keys grow with
    the value, and are the same whatever dtype the value came from.

    >>> sketch_key(1.0), sketch_key(1.25), sketch_key(-1.0), sketch_key(2.0)
    (4297, 4298, -4297, 4301)
    """
    mantissa, exponent = frexp(abs(value))  # a mantissa from 0.5 to 1
    quarter = int(mantissa * 8.0) - 4
    magnitude = (exponent - 1 + SKETCH_BIAS) * 4 + quarter + 1
    return magnitude if value > 0 else -magnitude


def sketch_edges(key: int) -> tuple[float, float]:
    """The bounds of a bin, as (low, high) with low < high.

    >>> sketch_edges(sketch_key(1.3))
    (1.25, 1.5)
    >>> sketch_edges(sketch_key(-1.3))
    (-1.5, -1.25)
    """
    exponent, quarter = divmod(abs(key) - 1, 4)
    unit = 2.0 ** (exponent - SKETCH_BIAS)
    low, high = unit * (1 + quarter / 4), unit * (1 + (quarter + 1) / 4)
    return (low, high) if key > 0 else (-high, -low)


@dataclass(frozen=True, slots=True)
class Site:
    """A named place where a tensor is seen.

    >>> Site(0, "relu#2:out.0", "output", "relu", "ReLU", "out.0", call=2).name
    'relu#2:out.0'
    """

    site: int
    name: str
    tensor_class: str
    module: str
    module_class: str
    place: str
    call: int = 1
    node: str = ""
    role: str = ""
    kind: str = ""
    aliases: tuple[str, ...] = ()
    first_step: int = 0


@dataclass(slots=True)
class RunInfo:
    """What `run.json` says about a run.

    `ended_at` and `ended` ("finished", "failed") are null while the run is written; a run that is
    not ended and whose writer (`host`, `pid`, `pid_started`) is gone was stopped.
    """

    format: tuple[int, int]
    id: str
    project: str
    name: str
    created_at: float
    host: str
    pid: int
    pid_started: float
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    modules: list[dict[str, Any]] = field(default_factory=list)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    anomalies: dict[str, str] = field(default_factory=dict)
    statistics: list[dict[str, str]] = field(default_factory=list)
    recorder: dict[str, Any] = field(default_factory=dict)
    ended_at: float | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A statistic that speaks for a finding, to be looked at or drawn.

    `site` is a site's name, or "" where it is about the run; `values` are those at `steps`.
    """

    site: str
    quantity: str
    statistic: str
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that was diagnosed: what, where, since when, how sure, and why.

    `because_of` and `explains` name other findings of the same run by their `id`.

    >>> finding = Finding("lr_too_high", "optimizer", 3, 0.9, "The loss rises.", "Lower it.")
    >>> Finding.from_json(finding.to_json()) == finding
    True
    """

    fault: str
    where: str
    step: int
    score: float
    why: str
    try_this: str
    evidence: tuple[Evidence, ...] = ()
    source: str = ""
    because_of: str | None = None
    explains: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """What other findings call this one."""
        return f"{self.fault}@{self.where}"

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {"id": self.id, **asdict(self)}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Finding:
        """The finding that `to_json` wrote; keys that are not known are left out."""
        evidence = tuple(
            Evidence(**{**each, "steps": tuple(each["steps"]), "values": tuple(each["values"])})
            for each in told.get("evidence", ())
        )
        known = {key: told[key] for key in cls.__slots__ if key in told}
        return cls(**{**known, "evidence": evidence, "explains": tuple(told.get("explains", ()))})
