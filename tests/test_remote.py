"""The viewer behind a real reverse proxy, under a prefix, as behind a notebook server's."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest
from browser import chromium, viewer, watched_page
from playwright.sync_api import expect
from small_runs import record

PREFIX = "/some/prefix/"


@contextmanager
def proxy(to: str) -> Iterator[str]:
    """Passes on what is asked below the prefix, and nothing else; a stream as it comes."""
    host = urlsplit(to).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            if not self.path.startswith(PREFIX):
                self.send_error(404)
                return
            behind = http.client.HTTPConnection(host, timeout=60)
            behind.request("GET", "/" + self.path.removeprefix(PREFIX), headers={"Host": host})
            answer = behind.getresponse()
            self.send_response(answer.status)
            for name in ("content-type", "content-security-policy", "cache-control"):
                self.send_header(name, answer.getheader(name, ""))
            self.end_headers()
            try:
                while piece := answer.read1(1 << 16):
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                pass  # the browser has left
            finally:
                behind.close()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_the_page_works_under_a_prefix(root: Path) -> None:
    record(root, steps=4)
    with viewer(root) as address, proxy(address) as outside, chromium() as browser:
        assert httpx.get(outside.replace(PREFIX, "/")).status_code == 404
        with watched_page(browser, outside) as (page, _):
            page.goto(outside)
            page.get_by_text("small").first.click()
            page.goto(f"{outside}#/tests/small/graph")
            page.locator("main canvas").first.wait_for()
            record(root, name="later", steps=2)
            page.goto(f"{outside}#/")
            expect(page.get_by_text("later").first).to_be_visible()


@pytest.mark.slow
def test_the_frame_of_a_custom_view_has_a_policy_of_its_own(root: Path) -> None:
    with viewer(root) as address:
        policies = [
            httpx.get(address + path).headers["content-security-policy"]
            for path in ("", "api/custom/frame")
        ]
    assert "script-src 'self'" in policies[0] and "unsafe-eval" not in policies[0]
    assert policies[1].startswith("sandbox allow-scripts; default-src 'none'")
    assert "connect-src" not in policies[1]
