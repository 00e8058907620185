"""docs/format.md says what is written; every version is read; other tools read it too."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_runs import write_sample_run

import backlight
from backlight.schema import FORMAT_VERSION, TABLES, sketch_key
from backlight.store.compact import compact
from backlight.store.layout import BY_STEP_FOLDER, PARTS_FOLDER, TILES_FOLDER
from backlight.store.reader import RunReader
from backlight.store.streams import SEGMENT_BYTES

GOLDEN = Path(__file__).parent / "golden"
PAGE = (Path(__file__).parent.parent / "docs" / "format.md").read_text(encoding="utf-8")


def test_the_page_has_every_column_and_its_type() -> None:
    sections = re.split(r"^### `(\w+)`$", PAGE, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert found.keys() == TABLES.keys()
    for table, schema in TABLES.items():
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", found[table], flags=re.MULTILINE)
        assert [name for name, _ in rows] == schema.names
        for name, said in rows:
            field = schema.field(name)
            type_ = str(field.type).replace("list<item: ", "list<")
            assert said.strip() == type_ + (", may be null" if field.nullable else "")


def test_the_page_says_the_version_the_files_and_the_sketch() -> None:
    version = ".".join(map(str, FORMAT_VERSION))
    assert f"version **{version}**" in PAGE
    assert f"| {version} |" in PAGE
    for folder in (BY_STEP_FOLDER, PARTS_FOLDER, TILES_FOLDER, "graphs", "values", "damaged"):
        assert f"`{folder}/" in PAGE
    assert f"{SEGMENT_BYTES >> 20} MB" in PAGE
    mantissa, exponent = 1.6, 3
    said = 4 * (exponent + 1074) + int(4 * (mantissa - 1)) + 1  # the formula of the page
    assert "`4 (e + 1074) + floor(4 (m - 1)) + 1`" in PAGE
    assert sketch_key(mantissa * 2**exponent) == said


def content(path: Path) -> dict[str, Any]:
    reader = RunReader(path)
    reader.refresh()
    assert reader.problems == []
    tables, own = reader.snapshot.tables, list(reader.snapshot.own)
    return {
        "stats": sorted(map(repr, tables["stats"].drop_columns(["own"]).to_pylist())),
        "sites": reader.sites().to_pylist(),
        "heatmap": repr(reader.heatmap().to_pylist()),
        "history": repr(reader.history(1).drop_columns(own).to_pylist()),
        "sketches": reader.sketches(0).to_pylist(),
        "notes": [(row["step"], row["text"]) for row in reader.notes().to_pylist()],
        "loss": repr(reader.scalars()["value"].to_pylist()),
    }


@pytest.mark.parametrize("version", ["1.0", "1.1-streams", "1.1-parts", "1.2", "1.3"])
def test_every_version_is_read(version: str, tmp_path: Path) -> None:
    path = tmp_path / "golden" / "run"
    shutil.copytree(GOLDEN / version, path)
    found = content(path)
    # Known numbers, so that a change of what is read is noticed in whatever version it is.
    assert len(found["stats"]) == 36
    assert found["notes"] == [(1, "a note")]
    history = backlight.open(path).stats("embed:out.0", quantity="value", steps=0).rows()
    assert (history[0]["count"], history[0]["shape"]) == (256, [16, 16])
    assert history[0]["mean"] == EXPECTED_MEAN
    assert found == content(GOLDEN / "1.0")
    compact(path)
    assert found == content(path)


def test_own_statistics_are_columns_in_streams_and_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "golden" / "run"
    shutil.copytree(GOLDEN / "1.3", path)

    def own() -> list[Any]:
        columns = ("step", "order", "kurtosis", "min_abs")
        return [[row[name] for name in columns] for row in backlight.open(path).stats()]

    found = own()
    # Step 0 was written before they were asked for, in a segment without their column.
    assert {tuple(row[2:]) for row in found if row[0] == 0} == {(None, None)}
    later = [row for row in found if row[0] > 0]
    assert [row[2] for row in later] == [step + order / 4 for step, order, *_ in later]
    assert [row[3] for row in later] == [None if row[1] % 2 else 0.5 for row in later]
    compact(path)
    assert own() == found
    heatmap = RunReader(path)
    heatmap.refresh()
    shown = [row["value"] or 0 for row in heatmap.heatmap(statistic="kurtosis").to_pylist()]
    values = backlight.open(path).stats(quantity="value")
    assert max(shown) == max(row["kurtosis"] or 0 for row in values) > 0


EXPECTED_MEAN = -0.17157283795733716


def test_there_is_a_golden_run_of_every_version() -> None:
    minors = {folder.name.split("-")[0] for folder in GOLDEN.iterdir()}
    assert {f"{FORMAT_VERSION[0]}.{minor}" for minor in range(FORMAT_VERSION[1] + 1)} <= minors


PLAIN = {
    "duckdb": """
import duckdb
table = duckdb.sql("SELECT * FROM 'stats/*.parquet' ORDER BY step, \\"order\\"")
rows = [dict(zip(table.columns, row)) for row in table.fetchall()]
""",
    "polars": """
import polars
frame = polars.scan_parquet("stats/*.parquet").sort("step", "order").collect()
rows = frame.to_dicts()
""",
    "pandas": """
import pandas
from pathlib import Path
frame = pandas.concat(pandas.read_parquet(file) for file in Path("stats").glob("*.parquet"))
frame = frame.sort_values(["step", "order"])
rows = frame.to_dict("records")
""",
}
# In a process that cannot import Backlight.
GUARD = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "backlight":
            raise ImportError("Backlight is not installed")
sys.meta_path.insert(0, Nowhere())
"""
SHOW = """
assert "backlight" not in sys.modules
names = ("step", "site", "quantity", "count", "mean", "abs_max")
for row in rows:
    sketch = list(zip(map(int, row["sketch_keys"]), map(int, row["sketch_counts"])))
    print([row[name] if isinstance(row[name], str) else float(row[name]) for name in names], sketch)
"""


@pytest.mark.parametrize("tool", PLAIN)
def test_other_tools_read_the_same_without_backlight(root: Path, tool: str) -> None:
    path = write_sample_run(root, steps=5, sites=6)
    compact(path)
    code = GUARD + PLAIN[tool] + SHOW
    done = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    opened = backlight.open(path)
    names = ("step", "site", "quantity", "count", "mean", "abs_max")
    expected = [
        str([row[n] if isinstance(row[n], str) else float(row[n]) for n in names])
        + f" {list(zip(sketch.keys.tolist(), sketch.counts.tolist(), strict=True))}"
        for row, sketch in zip(opened.stats(), opened.sketches(), strict=True)
    ]
    assert done.stdout.splitlines() == expected
    assert len(expected) > 20


def test_an_observation_takes_at_most_400_bytes(root: Path) -> None:
    from backlight.store.usage import measure

    path = write_sample_run(root, steps=200, sites=20)
    compact(path)
    each = measure(path).bytes_per_observation
    assert each is not None and each < 150
