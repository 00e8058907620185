DTYPES: tuple[str, ...]

class Table:
    def observe(
        self,
        order: int,
        iteration: int,
        site: int,
        quantity: int,
        unit_dim: int,
        dtype: int,
        pointer: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        threads: int,
        /,
    ) -> None: ...
    def repeat(self, order: int, site: int, /) -> None: ...
    def columns(self) -> dict[str, bytes]: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...
