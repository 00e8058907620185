from collections.abc import Callable, Mapping, Sequence
from typing import Any

COLUMNS: tuple[str, ...]
DTYPES: tuple[str, ...]

def connect(
    tensor: type,
    parameter: type,
    is_neg: Callable[[Any], bool],
    storage_of: Callable[[Any], Any],
    first_byte: Callable[[Any], int],
    size: Callable[[Any], int],
    thread_count: Callable[[], int],
    dtypes: Mapping[Any, int],
    exchange: object | None,
    /,
) -> None: ...
def pack_rows(
    rows: list[dict[str, Any]], names: tuple[str, ...], kinds: bytes, /
) -> tuple[int, bytes, bytes, bytes] | None: ...
def fingerprint(tensor: Any, /) -> int: ...
def fingerprints(tensors: Sequence[Any], /) -> list[int]: ...
def write_message(
    descriptor: int,
    pattern: bytes,
    places: tuple[int, int, int, int],
    rows: tuple[int, bytes, bytes, bytes],
    schema_crc: int,
    number: int,
    /,
) -> int: ...
def use_lanes(most: int, /) -> int: ...
def xla_handler() -> object: ...

class Table:
    def observe(
        self, tensor: Any, site: int, quantity: int, order: int, iteration: int, unit_dim: int, /
    ) -> int: ...
    def observe_marked(
        self, tensor: Any, site: int, quantity: int, order: int, iteration: int, /
    ) -> tuple[int, int]: ...
    def observe_many(
        self, items: Sequence[tuple[Any, ...]], order: int, iteration: int, /
    ) -> list[int]: ...
    def repeat(self, row: int, order: int, iteration: int, site: int, /) -> None: ...
    def pack(
        self, step: int, quantities: tuple[str, ...], backwards: tuple[str, ...], /
    ) -> tuple[int, bytes, bytes, bytes]: ...
    def is_finite(self) -> bool: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...
