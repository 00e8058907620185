from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

_H = TypeVar("_H", bound=Held)

COLUMNS: tuple[str, ...]
STEP_COLUMNS: tuple[str, ...]
SCALAR_COLUMNS: tuple[str, ...]
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
def connect_sight(
    ordered_dict: type,
    graph_task: Callable[[], int],
    tracing_state: Callable[[], Any],
    threads_apart: dict[int, int],
    /,
) -> None: ...
def are_held(places: list[_H], /) -> bool: ...
def has_strangers(found: Mapping[int, tuple[Callable[[], Any], Any]], /) -> bool: ...
def sizes_differ(sizes: list[tuple[Callable[[], Any], int]], /) -> bool: ...
def find_held(places: list[_H], /) -> list[tuple[_H, Any]] | None: ...
def hook_held(places: list[_H], key: Any, /) -> list[_H]: ...
def unhook_held(places: list[_H], /) -> list[_H]: ...
def pack_rows(
    rows: list[dict[str, Any]], names: tuple[str, ...], kinds: bytes, /
) -> tuple[int, bytes, bytes, bytes] | None: ...
def fingerprint(tensor: Any, /) -> int: ...
def fingerprints(tensors: Sequence[Any], /) -> list[int]: ...
def use_lanes(most: int, /) -> int: ...
def xla_handler() -> object: ...

class Table:
    order: int
    def observe(
        self,
        tensor: Any,
        site: int,
        quantity: int,
        order: int,
        iteration: int,
        unit_dim: int,
        batch_dim: int = 0,
        /,
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

class Sink:
    descriptor: int
    has_links: bool
    looked_at: float
    size_bytes: int
    messages: int
    def __init__(
        self,
        pattern: bytes,
        places: tuple[int, int, int, int],
        schema_crc: int,
        full_bytes: int,
        /,
    ) -> None: ...
    def write(self, rows: tuple[int, bytes, bytes, bytes], /) -> None: ...
    def let_go(self) -> tuple[int, int]: ...

class Seen:
    row: int | None
    units: int
    has_sights: bool
    def __init__(
        self,
        observer: Sights,
        tensor: Any,
        mark: tuple[int, int] | None,
        row: int | None,
        units: int,
        /,
    ) -> None: ...
    def __call__(self, grad: Any, /) -> None: ...
    def is_again(self, tensor: Any, mark: tuple[int, int] | None, /) -> bool: ...
    def add_sight(self, site: int, iteration: int, /) -> None: ...
    def take_sights(self) -> list[tuple[int, int]]: ...

class Sights:
    recording_secs: float
    step: int
    iteration: int
    update_iteration: int
    grad_code: int
    is_open: bool
    has_backward: bool
    is_native: bool
    is_plain: bool
    is_quick: bool
    def see(self, tensor: Any, site: int, units: int, /) -> bool: ...
    def before_update(self, trained: Sequence[tuple[Held, Any]], /) -> bool: ...
    def after_update(
        self, trained: Sequence[tuple[Held, Any]], states: Mapping[Any, Any] | None, /
    ) -> bool: ...
    def use(self, table: Table, seen: dict[int, Seen], hooked: set[tuple[int, int]], /) -> None: ...

class Held:
    site: int
    before: Any
    states: dict[str, int]
    is_before_known: bool
    hooks: Any
    key: Any
    hooked: int
    has_others: bool
    is_first_hook: bool
    has_been_made: bool
    made: int | None
    def __init__(
        self,
        observer: Sights,
        owner: Callable[[], Any],
        shelf: str,
        place: str,
        identity: int,
        site: int,
        /,
    ) -> None: ...
    def __call__(self, grad: Any, /) -> None: ...
    def note_made(self, fingerprint: int | None, /) -> None: ...

class Call:
    module: str
    module_class: str
    number: int
    is_recomputed: bool
    places: dict[str, tuple[int, int, int]]
    def __init__(
        self, module: str, module_class: str, number: int, is_recomputed: bool, /
    ) -> None: ...

class Callee:
    reference: Callable[[], Any]
    calls: list[Call]
    round: int
    times: int
    takes_keywords: int
    def __init__(self, reference: Callable[[], Any], calls: list[Call], /) -> None: ...

class CallHooks:
    _sights: Sights | None
    _callees: dict[int, Callee]
    _modules: list[Any]
    _open: list[Call]
    entered: list[tuple[str, int]]
    course: Course | None
    hooks_secs: float
    _hooks: tuple[tuple[Any, Any], ...]
    _is_listening: bool
    _is_set: bool
    _round: int
    _rounds_since: int
    _thread: int
    is_quick: bool
    def before(self, module: Any, args: Any, /) -> None: ...
    def after(self, module: Any, args: Any, /, *rest: Any) -> None: ...

class Ear:
    def __init__(
        self,
        original: Callable[..., Any],
        listeners: dict[Any, int],
        tell: Callable[[Any], None],
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Likeness:
    left: int
    def __init__(
        self,
        calls: CallHooks,
        sights: Sights,
        names: Any,
        seen_named: dict[Any, Any],
        found_losses: dict[Any, Any],
        named_tensors: dict[Any, Any],
        stranded: Collection[Any],
        loaded: dict[str, Any],
        updates: dict[Any, Any],
        /,
    ) -> None: ...
    def expect(
        self,
        held: list[_H],
        sizes: list[tuple[Callable[[], Any], int]],
        unhooked: list[_H],
        key: Any,
        identities: list[int],
        trained: list[_H],
        rules: Any,
        generation: int,
        capture: Any,
        loss_site: int,
        has_states: bool,
        left: int,
        /,
    ) -> None: ...
    def end(self) -> None: ...
    def take_end(self) -> bool: ...
    def take_begun(self) -> int: ...

class Course:
    step: int
    is_open: bool
    is_plain: bool
    is_captured: bool
    reason: str | None
    ends_alike: bool
    is_writing: bool
    is_over: bool
    must_send: bool
    sees_loss: bool
    iterations: int
    passes: int
    losses: int
    loss_iteration: int
    loss: float | None
    started: float
    started_at: float
    recording_secs: float
    sent_at: float
    leased_steps: int
    leased_secs: float
    observations: int
    written_secs: float
    root: Any
    optimizer: Any
    @property
    def waiting(self) -> int: ...
    @property
    def passed_steps(self) -> int: ...
    @property
    def ended_steps(self) -> int: ...
    @property
    def taken_scalars(self) -> int: ...
    def __init__(self, **given: Any) -> None: ...
    def on_forward(self, module: Any, args: Any, /) -> None: ...
    def on_loss(self, tensor: Any, /) -> None: ...
    def before_update(self, optimizer: Any, args: Any, kwargs: Any, /) -> None: ...
    def after_update(self, optimizer: Any, args: Any, kwargs: Any, /) -> None: ...
    def log(self, scalars: dict[str, Any], /) -> bool: ...
    def compare_by(self, likeness: Likeness, /) -> None: ...
    def may_end(
        self,
        entered: list[tuple[str, int]],
        in_modes: list[tuple[Any, bool]],
        leaf_hooks: list[Any],
        new_sites: list[Any],
        other_rows: list[Any],
        quantities: tuple[str, ...],
        backwards: tuple[str, ...],
        graph: str,
        reason: str,
        with_gradients: list[_H],
        stats: Any,
        steps: Any,
        scalars: Any,
        gap: int,
        /,
    ) -> None: ...
    def learn_name(self, name: str, /) -> None: ...
    def take_steps(self) -> tuple[list[tuple[float, float, bool]], list[dict[str, Any]]]: ...
    def take_scalars(self) -> tuple[list[tuple[str, float]], list[dict[str, Any]]]: ...
