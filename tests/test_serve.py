from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
import torch
from graph_runs import block_tree, write_graph_run
from sample_runs import SampleRun, write_sample_run
from torch import nn

import backlight
from backlight.errors import BacklightError
from backlight.schema import TABLES
from backlight.serve.app import NO_BUNDLE
from backlight.serve.graphs import Graphs
from backlight.serve.live import Hub
from backlight.serve.security import access_for, host_name
from backlight.serve.server import Viewer, bind, open_viewer
from backlight.store.reader import RunReader

ODD = "<b>[red]ü 日本 %2F?#&'\""
WAIT_SECS = 20.0


@contextmanager
def serving(root: Path, **options: Any) -> Iterator[Viewer]:
    """A real server on a free port, in a thread."""
    viewer = open_viewer(root, port=0, **options)
    is_ready = threading.Event()
    viewer.server.on_ready = is_ready.set
    thread = threading.Thread(target=viewer.run)
    thread.start()
    try:
        assert is_ready.wait(WAIT_SECS)
        yield viewer
    finally:
        viewer.stop()
        thread.join(WAIT_SECS)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Backlight</title>")
    (folder / "assets" / "index-C0FFEE.js").write_text("export const a = 1;\n" * 200)
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "assets" / "link.txt").symlink_to(folder.parent / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_sample_run(root, project="demo", name="first", steps=120, sites=12, with_nan=True)
    write_sample_run(root, project=ODD.replace("/", ""), name=ODD, steps=3, sites=4)
    write_graph_run(root, block_tree(3), name="graph", steps=4, iterations=2)
    broken = root / "demo" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def viewer(root: Path, static: Path) -> Iterator[Viewer]:
    with serving(root, static=static) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def client(viewer: Viewer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=viewer.url, timeout=WAIT_SECS) as client:
        yield client


def table(response: httpx.Response) -> pa.Table:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.apache.arrow.stream"
    return pa.ipc.open_stream(response.content).read_all()


def get_json(client: httpx.Client, path: str) -> dict[str, Any]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


SUMMARY = (
    "id project name status created_at updated_at ended_at age_secs step steps recorded_steps "
    "loss loss_curve recording_share faults"
).split()


def test_runs_are_listed_newest_first(client: httpx.Client, root: Path) -> None:
    answer = get_json(client, "api/runs")
    assert answer["root"] == str(root)
    assert [run["name"] for run in answer["runs"]] == ["graph", ODD, "first"]
    assert set(answer["runs"][0]) == set(SUMMARY)
    (problem,) = answer["problems"]
    assert "broken" in problem


def test_nan_in_json_is_a_string(client: httpx.Client) -> None:
    summary = get_json(client, "api/runs/demo/first")["summary"]
    assert summary["loss"] == "NaN"
    assert summary["loss_curve"][-1] is None


def test_a_run_says_what_there_is(client: httpx.Client) -> None:
    answer = get_json(client, "api/runs/demo/first")
    assert set(answer["summary"]) == set(SUMMARY)
    assert answer["config"]["optimizer"] == {"name": "AdamW", "betas": [0.9, 0.95]}
    assert answer["modules"][1].keys() == {"name", "class", "parameters", "extra"}
    assert answer["scalar_names"] == ["loss", "lr"]
    assert answer["quantities"] == ["value", "grad", "grad_applied", "update"]
    assert answer["rows"].keys() == TABLES.keys()
    assert answer["rows"]["steps"] == 120
    assert answer["problems"] == []


def test_a_name_of_any_kind_is_found(client: httpx.Client) -> None:
    (listed,) = (run for run in get_json(client, "api/runs")["runs"] if run["name"] == ODD)
    path = f"{quote(listed['project'], safe='')}/{quote(listed['name'], safe='')}"
    assert get_json(client, f"api/runs/{path}")["summary"]["id"] == listed["id"]
    assert table(client.get(f"api/runs/{path}/sites")).num_rows == 4


def test_the_tables(client: httpx.Client) -> None:
    run = "api/runs/demo/first"
    assert table(client.get(f"{run}/sites")).num_rows == 12
    recorded = [*range(100), *range(100, 120, 2)]
    steps = table(client.get(f"{run}/steps"))
    assert steps["step"].to_pylist() == recorded
    assert steps["place"].to_pylist() == list(range(len(recorded)))
    assert table(client.get(f"{run}/steps?after=115"))["step"].to_pylist() == [116, 118]
    scalars = table(client.get(f"{run}/scalars?points=20"))
    assert scalars.schema.names == ["step", "name", "value", "logged_at", "kind"]
    assert json.loads(scalars.schema.metadata[b"settled"]) == 119
    assert table(client.get(f"{run}/scalars?after=118"))["step"].to_pylist() == [119, 119]
    (note,) = get_json(client, f"{run}/notes")["notes"]
    assert note.keys() == {"step", "text", "written_at"}
    heatmap = table(client.get(f"{run}/heatmap?quantity=grad&statistic=rms&columns=5&first=9"))
    columns = json.loads(heatmap.schema.metadata[b"columns"])
    assert len(columns) == 5
    assert columns[0][0] == 9
    assert json.loads(heatmap.schema.metadata[b"fullest"]) == 21
    history = table(client.get(f"{run}/sites/1/history?quantity=grad&points=10"))
    assert {"step", "iteration", "mean", "dtype", "shape", "kind"} <= set(history.schema.names)
    assert table(client.get(f"{run}/sites/1/sketches?columns=4")).num_rows == 4


def test_the_graph_of_a_step(client: httpx.Client) -> None:
    run = "api/runs/demo/graph"
    steps = table(client.get(f"{run}/steps"))
    (signature,) = set(steps["graph"].to_pylist())
    assert steps["iterations"].to_pylist() == [2, 2, 2, 2]
    graph = get_json(client, f"{run}/graph?step=3")
    assert (graph["signature"], graph["step"], graph["kind"]) == (signature, 3, "test")
    assert get_json(client, f"{run}/graph") == graph
    assert graph["nodes"][0] == [0, "tensor", "x", "x", "input"]
    assert ["embed", 1, 0] in graph["calls"]
    assert [0, graph["nodes"][-1][0]] not in graph["edges"]["autograd"]


class NowAndThen(nn.Module):
    """A cell that some iterations give more to than the first did."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.cell, self.aux = nn.Linear(3, 4), nn.GRUCell(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, state: torch.Tensor, *, is_first: bool) -> torch.Tensor:
        """The state after another iteration."""
        seen = self.enc(x) if is_first else self.enc(x) + self.aux(state)
        return self.cell(seen, state)


def test_nodes_are_in_the_order_of_an_iteration(tmp_path: Path) -> None:
    model = NowAndThen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        backlight.watch(model, optimizer, root=tmp_path, project="p", name="late", every=1) as run,
        run.step(),
    ):
        state = torch.zeros(2, 4)
        for number in range(3):
            with run.iteration():
                state = model(torch.ones(2, 3), state, is_first=number == 0)
                state = run.tensor("state", state)
        state.sum().backward()
        optimizer.step()
    reader = RunReader(tmp_path / "p" / "late")
    reader.refresh()
    names = {row["site"]: row["name"] for row in reader.sites().to_pylist()}
    graph = Graphs().at(reader, 0)
    order = [names[site] for site, *_ in graph["nodes"]]
    assert sorted(order) == sorted(set(order))
    place = {name: order.index(name) for name in ("enc:out.0", "aux:in.0", "cell:in.0", "state")}
    assert sorted(place, key=place.__getitem__) == list(place)
    assert order.index("aux:out.0") < order.index("cell:in.0")


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_memory_comes_after_what_makes_it(tmp_path: Path, iterations: int) -> None:
    cell = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with (
        backlight.watch(cell, optimizer, root=tmp_path, project="p", name="kept", every=1) as run,
        run.step(),
    ):
        state = run.tensor("state", torch.zeros(2, 4), is_initial=True)
        for _ in range(iterations):
            with run.iteration():
                state = run.tensor("state", cell(state))
        state.sum().backward()
        optimizer.step()
    reader = RunReader(tmp_path / "p" / "kept")
    reader.refresh()
    names = {row["site"]: row["name"] for row in reader.sites().to_pylist()}
    order = [names[site] for site, *_ in Graphs().at(reader, 0)["nodes"]]
    assert order.index("(model):in.0") < order.index("(model):out.0") < order.index("state")


def test_one_step_at_all_sites(client: httpx.Client) -> None:
    run = "api/runs/demo/graph"
    rows = table(client.get(f"{run}/moment?step=1&quantity=grad&statistic=norm"))
    rms = table(client.get(f"{run}/moment?step=1&quantity=grad"))
    assert set(rows["iteration"].to_pylist()) == {0, 1}
    assert rows["shape"][0].as_py() == [16, 16]
    pairs = zip(rows["value"].to_pylist(), rms["value"].to_pylist(), strict=True)
    assert all(norm == pytest.approx(16 * rms) for norm, rms in pairs)
    dead = table(client.get(f"{run}/moment?step=1&statistic=dead_share"))
    assert {0.0, None} <= set(dead["value"].to_pylist())
    assert table(client.get(f"{run}/moment?step=77")).num_rows == 0


def test_a_graph_that_cannot_be_read_is_one_sentence(root: Path, client: httpx.Client) -> None:
    path = write_graph_run(root, block_tree(1), name="torn", steps=1)
    (file,) = (path / "graphs").iterdir()
    for text in ("{", "[]", '{"nodes": [1]}', '{"nodes": []}'):
        file.write_text(text)
        response = client.get("api/runs/demo/torn/graph?step=0")
        assert response.status_code == 400
        assert file.name in response.json()["error"]
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("api/runs/demo/nothing", 404),
        ("api/runs/demo", 404),
        ("api/runs/demo/broken", 400),
        ("api/runs/demo/broken/events", 400),
        ("api/runs/demo/nothing/events", 404),
        ("api/runs/demo/..%2F..%2Fetc", 404),
        ("api/runs/..%2F..%2Fetc/passwd", 404),
        ("api/runs/%2e%2e/%2e%2e/sites", 404),
        ("api/runs/demo/first%00/sites", 404),
        ("api/runs/%FF/%FE", 404),
        ("api/runs/demo/first/secrets", 404),
        ("api/nothing", 404),
        ("api/runs/demo/first/sites/99999/history", 404),
        ("api/runs/demo/first/sites/-1/history", 404),
        ("api/runs/demo/first/sites/one/sketches", 404),
        (f"api/runs/demo/first/sites/{'9' * 5000}/history", 404),
        ("api/runs/demo/first/steps?after=soon", 400),
        ("api/runs/demo/first/steps?after=1e3", 400),
        (f"api/runs/demo/first/steps?after={'9' * 30}", 400),
        ("api/runs/demo/first/scalars?points=0", 400),
        ("api/runs/demo/first/scalars?points=", 400),
        ("api/runs/demo/first/heatmap?quantity=weight", 400),
        ("api/runs/demo/first/heatmap?statistic=1;drop", 400),
        ("api/runs/demo/first/heatmap?columns=-5", 400),
        ("api/runs/demo/first/heatmap?first=x", 400),
        ("api/runs/demo/first/graph", 404),
        ("api/runs/demo/first/graph?step=5", 404),
        ("api/runs/demo/graph/graph?step=99", 404),
        ("api/runs/demo/graph/graph?step=now", 400),
        ("api/runs/demo/first/moment", 400),
        ("api/runs/demo/first/moment?step=1&quantity=weight", 400),
        ("api/runs/demo/first/moment?step=1&statistic=loud", 400),
        ("api/runs/demo/first/sites/1/history?quantity=x", 400),
        ("api/runs/demo/first/sites/1/sketches?columns=0", 400),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    client: httpx.Client, path: str, status: int
) -> None:
    response = client.get(path)
    assert response.status_code == status, response.text
    (error,) = response.json().values()
    assert error.endswith(".")
    assert "\n" not in error
    assert "Traceback" not in error


def test_only_reading_is_allowed(client: httpx.Client) -> None:
    for method in ("POST", "PUT", "DELETE"):
        response = client.request(method, "api/runs")
        assert response.status_code == 405
        assert "error" in response.json()


def raw_get(viewer: Viewer, path: str, **headers: str) -> tuple[int, bytes]:
    """A request whose path nobody tidies up on the way."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", viewer.socket.getsockname()[1], timeout=WAIT_SECS
    )
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "/assets/..%2f..%2fsecret.txt",
        "/assets/..%5c..%5csecret.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/assets/link.txt",
        "/assets/%00",
        "/assets/" + "a" * 5000,
    ],
)
def test_nothing_outside_of_the_page_is_served(viewer: Viewer, path: str) -> None:
    status, body = raw_get(viewer, path)
    assert status == 404
    assert b"secret" not in body.replace(b"secret.txt", b"")


def test_the_page_and_its_assets(client: httpx.Client) -> None:
    page = client.get("")
    assert page.status_code == 200
    assert "<title>Backlight</title>" in page.text
    assert page.headers["cache-control"] == "no-cache"
    script = client.get("assets/index-C0FFEE.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["content-encoding"] == "gzip"
    missing = client.get("assets/index-gone.js")
    assert missing.status_code == 404
    assert missing.headers["cache-control"] == "no-store"


def test_every_answer_protects_the_page(client: httpx.Client) -> None:
    for path in ("", "api/runs", "api/nothing", "assets/index-C0FFEE.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert client.get("api/runs").headers["cache-control"] == "no-store"


def test_large_answers_are_compressed_and_small_ones_are_not(client: httpx.Client) -> None:
    assert client.get("api/runs/demo/first/heatmap").headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get("api/runs/demo/first/notes").headers
    plain = client.get("api/runs/demo/first/heatmap", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:7", "127.9.9.9"]
)
def test_this_machine_is_known_by_its_names(client: httpx.Client, host: str) -> None:
    assert client.get("api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "127.1"]
)
def test_other_names_are_refused(client: httpx.Client, host: str) -> None:
    for path in ("", "api/runs", "assets/index-C0FFEE.js", "api/events"):
        response = client.get(path, headers={"host": host})
        assert response.status_code == 403
        assert "--allow-host" in response.json()["error"]


def test_without_a_bundle_the_page_says_what_to_do(root: Path, tmp_path: Path) -> None:
    with serving(root, static=tmp_path / "none") as viewer:
        response = httpx.get(viewer.url)
        assert response.status_code == 503
        assert response.text.strip() == NO_BUNDLE
        assert httpx.get(viewer.url + "api/runs").status_code == 200


def test_others_need_the_token_once(root: Path, static: Path) -> None:
    with serving(root, static=static, host="0.0.0.0") as viewer:
        port = viewer.socket.getsockname()[1]
        token = viewer.url.partition("?token=")[2]
        assert len(token) >= 32
        base = f"http://127.0.0.1:{port}/"
        with httpx.Client(base_url=base, follow_redirects=True) as browser:
            for path in ("", "api/runs", "assets/index-C0FFEE.js", "?token=", "?token=x"):
                assert browser.get(path).status_code == 401
            assert browser.get("", headers={"host": "evil.example"}).status_code == 403
            page = browser.get(f"?token={token}")
            assert page.status_code == 200
            assert "token" not in str(page.url)
            assert browser.get("api/runs").status_code == 200
        assert httpx.get(f"{base}api/runs?token={token}").status_code == 200
        first = httpx.get(f"{base}?token={token}")
        assert "httponly" in first.headers["set-cookie"].lower()
        assert first.headers["location"] == "./"


def test_a_name_that_was_allowed_needs_the_token(root: Path, static: Path) -> None:
    with serving(root, static=static, allow_hosts=["Proxy.Example"]) as viewer:
        base, _, token = viewer.url.partition("?token=")
        assert httpx.get(base + "api/runs").status_code == 200
        headers = {"host": "proxy.example"}
        assert httpx.get(base + "api/runs", headers=headers).status_code == 401
        shown = httpx.get(f"{base}api/runs?token={token}", headers=headers)
        assert shown.status_code == 200


def test_a_wildcard_answers_to_addresses_only() -> None:
    access = access_for("0.0.0.0")
    assert access.allows("192.168.0.7")
    assert not access.allows("rebound.example")
    assert not access_for("192.168.0.7").allows("192.168.0.8")
    assert host_name("[fe80::1]:80") == "fe80::1"


def test_a_port_in_use_is_one_sentence() -> None:
    taken = bind("127.0.0.1", 0)
    try:
        with pytest.raises(BacklightError, match=r"Port \d+ is in use: pass another --port"):
            bind("127.0.0.1", taken.getsockname()[1])
    finally:
        taken.close()


def test_without_a_port_the_next_free_one_is_taken() -> None:
    first, second = bind("127.0.0.1", None), bind("127.0.0.1", None)
    try:
        assert first.getsockname()[1] != second.getsockname()[1]
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_a_host_that_cannot_be_listened_on_is_one_sentence(host: str) -> None:
    with pytest.raises(BacklightError, match="listen on"):
        bind(host, 0)


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def wait_until(is_true: Any) -> None:
    deadline = time.monotonic() + WAIT_SECS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_that_grows_sends_events(tmp_path: Path, static: Path) -> None:
    run = SampleRun(tmp_path, "p", "r", sites=4, seed=0)
    with serving(tmp_path, static=static) as viewer, httpx.Client(base_url=viewer.url) as client:
        with client.stream("GET", "api/runs/p/r/events", timeout=WAIT_SECS) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert "content-encoding" not in response.headers
            stream = events(response)
            first = next(stream)
            assert first["rows"]["steps"] == 0
            assert set(first["summary"]) == set(SUMMARY)
            run.append_step(0)
            seen = next(state for state in stream if state["rows"]["steps"] == 1)
            assert seen["summary"]["step"] == 0
            run.end("failed")
            assert any(state["summary"]["status"] == "failed" for state in stream)
        with client.stream("GET", "api/events", timeout=WAIT_SECS) as response:
            stream = events(response)
            assert [each["id"] for each in next(stream)["runs"]] == ["p/r"]
            write_sample_run(tmp_path, project="p", name="new", steps=1, sites=1)
            assert any(len(state["runs"]) == 2 for state in stream)


def test_listeners_share_a_watcher_that_ends_with_the_last(tmp_path: Path, static: Path) -> None:
    write_sample_run(tmp_path, project="p", name="r", steps=1, sites=1)
    with serving(tmp_path, static=static) as viewer, httpx.Client(base_url=viewer.url) as client:
        hub = viewer.server.hub
        assert hub.names == []
        with client.stream("GET", "api/runs/p/r/events") as one:
            stream = events(one)
            next(stream)
            with client.stream("GET", "api/runs/p/r/events") as two:
                second = events(two)
                next(second)
                assert hub.names == ["p/r"]
            wait_until(lambda: len(hub._channels["p/r"]._mailboxes) == 1)
        wait_until(lambda: hub.names == [])


def test_nothing_runs_when_nobody_listens() -> None:
    async def listen_and_leave() -> None:
        hub = Hub()
        channel, mailbox = hub.join("x", lambda: {"step": 1})
        assert await mailbox.get() == 'event: change\ndata: {"step":1}\n\n'
        (watcher,) = asyncio.all_tasks() - {asyncio.current_task()}
        hub.leave("x", channel, mailbox)
        await asyncio.wait({watcher}, timeout=WAIT_SECS)
        assert watcher.cancelled()
        assert hub.names == []

    asyncio.run(listen_and_leave())


def test_a_run_that_is_removed_ends_its_events(tmp_path: Path, static: Path) -> None:
    path = write_sample_run(tmp_path, project="p", name="r", steps=1, sites=1)
    with serving(tmp_path, static=static) as viewer, httpx.Client(base_url=viewer.url) as client:
        with client.stream("GET", "api/runs/p/r/events", timeout=WAIT_SECS) as response:
            stream = events(response)
            next(stream)
            shutil.rmtree(path)
            assert all(state["rows"] for state in stream)
        assert client.get("api/runs/p/r").status_code == 404


def test_a_run_that_was_made_anew_is_read_anew(tmp_path: Path, static: Path) -> None:
    path = write_sample_run(tmp_path, project="p", name="r", steps=5, sites=2)
    with serving(tmp_path, static=static) as viewer, httpx.Client(base_url=viewer.url) as client:
        assert get_json(client, "api/runs/p/r")["rows"]["steps"] == 5
        assert get_json(client, "api/runs")["runs"][0]["steps"] == 5
        shutil.rmtree(path)
        write_sample_run(tmp_path, project="p", name="r", steps=2, sites=1)
        assert get_json(client, "api/runs/p/r")["rows"]["steps"] == 2
        assert get_json(client, "api/runs")["runs"][0]["steps"] == 2


def test_the_server_stops_while_somebody_listens(tmp_path: Path, static: Path) -> None:
    write_sample_run(tmp_path, project="p", name="r", steps=1, sites=1)
    with httpx.Client() as client:
        with serving(tmp_path, static=static) as viewer:
            response = client.send(
                client.build_request("GET", viewer.url + "api/events", timeout=WAIT_SECS),
                stream=True,
            )
            stream = events(response)
            next(stream)
        assert list(stream) == []
        response.close()


def test_many_runs_can_be_open_at_once(tmp_path: Path, static: Path) -> None:
    for number in range(9):
        write_sample_run(tmp_path, project="p", name=f"r{number}", steps=2, sites=1)
    with serving(tmp_path, static=static) as viewer, httpx.Client(base_url=viewer.url) as client:
        for _ in range(2):
            for number in range(9):
                assert get_json(client, f"api/runs/p/r{number}")["rows"]["steps"] == 2
