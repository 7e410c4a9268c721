"""The step that the README gives for GitHub Actions, run by bash and curl against a server of our own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from service.domain import RunStatus
from service.ingest.payload import Conclusion, RunPayload
from service.ingest.upload import read_run

DATA = Path(__file__).parent / "data"
STEP = (DATA / "github_actions_step.yml").read_text()
VALUES = {
    "vars.LIKEWISE_URL": "",
    "secrets.LIKEWISE_TOKEN": "s3cret",
    "toJSON(github.repository)": '"o/n"',
    "toJSON(github.event.pull_request.head.sha || github.sha)": json.dumps("a" * 40),
    "toJSON(github.head_ref || github.ref_name)": json.dumps("odd\"; $(touch hacked) 'name@<>"),
    "github.event.pull_request.number || 'null'": "null",
    "toJSON(format('{0}', github.run_id))": '"123"',
    "github.run_attempt": "2",
    "toJSON(github.job)": '"unit"',
    "toJSON(job.status)": '"failure"',
}
pytestmark = pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="needs curl and bash")


class Recorder(ThreadingHTTPServer):
    """Keeps the last request."""

    path = ""
    token = ""
    body: Message | None = None


class Handler(BaseHTTPRequestHandler):
    """Takes a multipart request."""

    server: Recorder

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        self.server.path = self.path
        self.server.token = self.headers["Authorization"]
        self.server.body = BytesParser(policy=HTTP).parsebytes(head + raw)
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def recording() -> Iterator[Recorder]:
    server = Recorder(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def filled(text: str) -> str:
    """The text with every expression of GitHub's replaced, as the runner does before it starts a shell."""
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: VALUES[found[1]], text)


def environment_and_script() -> tuple[dict[str, str], str]:
    head, _, script = STEP.partition("  run: |\n")
    folded = re.search(r"METADATA: >-\n((?: {6}.*\n)+)", head)
    assert folded is not None
    metadata = " ".join(line.strip() for line in filled(folded[1]).splitlines())
    assert "${{" not in script
    assert "if: always()" in head
    return {"METADATA": metadata, "LIKEWISE_TOKEN": filled("${{ secrets.LIKEWISE_TOKEN }}")}, script.replace(
        "\n    ", "\n"
    )


def send(folder: Path) -> tuple[Recorder, RunPayload]:
    variables, script = environment_and_script()
    with recording() as server:
        variables["LIKEWISE_URL"] = f"http://127.0.0.1:{server.server_port}"
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=kept | variables, timeout=60, check=True)
    assert server.body is not None
    parts = {"metadata": [], "files": []}  # type: dict[str, list[tuple[str, bytes]]]
    for part in server.body.iter_parts():  # type: ignore[attr-defined]
        parts[part.get_param("name", header="content-disposition")].append(
            (part.get_filename(), part.get_payload(decode=True))
        )
    [(_, metadata)] = parts["metadata"]
    return server, RunPayload.of(metadata, parts["files"])


def test_the_step_sends_what_the_interface_expects(tmp_path: Path) -> None:
    (tmp_path / "reports" / "deep").mkdir(parents=True)
    shutil.copy(DATA / "pytest.xml", tmp_path / "reports" / "a b,c;d.xml")
    shutil.copy(DATA / "ctest.xml", tmp_path / "reports" / "deep" / "ctest.xml")
    server, payload = send(tmp_path)
    assert (server.path, server.token) == ("/v1/runs", "Bearer s3cret")
    metadata = payload.metadata
    assert (metadata.project, metadata.sha, metadata.run_id, metadata.attempt, metadata.job) == (
        "o/n",
        "a" * 40,
        "123",
        2,
        "unit",
    )
    assert metadata.branch == "odd\"; $(touch hacked) 'name@<>"
    assert metadata.conclusion is Conclusion.FAILURE
    assert not (tmp_path / "hacked").exists()
    assert [file.name for file in payload.files] == ["reports/a b,c;d.xml", "reports/deep/ctest.xml"]
    assert payload.files[0].content == (DATA / "pytest.xml").read_bytes()
    assert len(read_run(payload).cases) == 9


def test_the_step_sends_a_run_that_left_no_report(tmp_path: Path) -> None:
    _, payload = send(tmp_path)
    assert payload.files == ()
    assert read_run(payload).status is RunStatus.LOST
