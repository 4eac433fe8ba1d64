"""Commands as a user types them: each mistake is one line on stderr, with an exit code of its own, and nothing is lost."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p2ptrain.cli import main
from p2ptrain.errors import ExitCode

PEER = "12D3KooWJ4F4yMuPGbr2nKQqPSD7YZjXCLYQQrQJdZGJroEdvCVt"
RUN = "3cwHdTZLoe98UV5oqWKRiT9dwJGZa67mAejamaJyeVTf"


def link(port: int, peer: str = PEER) -> str:
    return f"p2ptrain://{RUN}/{peer}@127.0.0.1:{port}"


def p2ptrain(*arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p2ptrain", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
    )


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it said on stderr."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["host", "pycod"], ExitCode.USAGE, "did you mean 'pycode'?"),
        (["host", "missing.toml"], ExitCode.USAGE, "missing.toml: No such file"),
        (["host", "pycode", "--listen", "nowhere"], ExitCode.USAGE, "--listen: 'nowhere' is not HOST:PORT"),
        (["host", "pycode", "--threads", "0"], ExitCode.USAGE, "'0' is not a whole number from 1 to 1024"),
        (["join", "hello"], ExitCode.LINK, "no join link"),
        (["join", f"p2ptrain://abc/{PEER}@127.0.0.1:1"], ExitCode.LINK, "run id 'abc' is not 32 bytes of base58"),
        (["join", f"p2ptrain://{RUN}/{PEER}@127.0.0.1:0"], ExitCode.LINK, "port"),
        (["status", "p2ptrain://"], ExitCode.LINK, "names no peer"),
        (["simulate", "pycode", "--peers", "0"], ExitCode.USAGE, "'0' is not a whole number from 1 to 5000"),
        (["simulate", "pycode", "--seconds", "-1"], ExitCode.USAGE, "'-1' is not a number"),
        (["simulate", "pycod"], ExitCode.USAGE, "did you mean 'pycode'?"),
        (["dance"], ExitCode.USAGE, "invalid choice: 'dance'"),
        ([], ExitCode.USAGE, "COMMAND"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: ExitCode, words: str
) -> None:
    exit_code, said = complaint(capsys, *arguments)
    assert exit_code == code
    assert words in said and len(said.strip().splitlines()) == 1 and "Traceback" not in said


def test_config_shows_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "pycode"]) == 0
    assert '"inner_steps": 20' in capsys.readouterr().out
    assert main(["config"]) == 0
    assert "pycode" in capsys.readouterr().out


def test_the_identity_is_where_the_user_has_it_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # BUG-L03
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    shown = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert main(["identity"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and str(tmp_path / "data" / "p2ptrain" / "peer") in shown[0]


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_an_unusable_identity_file_is_never_replaced(tmp_path: Path, content: bytes) -> None:  # BUG-L02
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    result = p2ptrain("join", link(9), "--identity-dir", str(tmp_path))
    assert result.returncode == ExitCode.IDENTITY
    assert str(path) in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert path.read_bytes() == content


def test_a_dead_link_is_one_line_per_address_with_the_reason(tmp_path: Path) -> None:  # BUG-D02
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    result = p2ptrain("join", link(port), "--identity-dir", str(tmp_path))
    assert result.returncode == ExitCode.UNREACHABLE
    assert f"127.0.0.1:{port}  refused" in result.stderr and "Traceback" not in result.stderr
    assert (tmp_path / "identity.pem").stat().st_mode & 0o777 == 0o600


def test_a_server_that_is_not_p2ptrain_is_named_as_such(tmp_path: Path) -> None:  # BUG-T04
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk_http() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=talk_http, daemon=True).start()
        result = p2ptrain("join", link(server.getsockname()[1]), "--identity-dir", str(tmp_path))
    assert result.returncode == ExitCode.INCOMPATIBLE
    assert "is not a p2ptrain port" in result.stderr and "Traceback" not in result.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:  # BUG-L07
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = p2ptrain("host", "sim-quadratic", "--listen", address, "--identity-dir", str(tmp_path))
    assert result.returncode == ExitCode.ADDRESS_IN_USE
    assert address in result.stderr and "Traceback" not in result.stderr


class Running:
    """A host in a process of its own, up when made."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "p2ptrain", "host", "sim-quadratic", "--identity-dir", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout is not None
        self.said: list[str] = []
        for line in self.process.stdout:
            self.said.append(line)
            if "p2ptrain://" in line:
                break

    @property
    def link(self) -> str:
        return "p2ptrain://" + self.said[-1].split("p2ptrain://")[1].split()[0]

    def end(self, *signals: signal.Signals) -> tuple[int, str]:
        for number in signals:
            self.process.send_signal(number)
        out, error = self.process.communicate(timeout=30)
        return self.process.returncode, out + error


@pytest.mark.swarm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_a_peer_leave_cleanly(tmp_path: Path, number: signal.Signals) -> None:  # BUG-L09
    host = Running(tmp_path)
    code, said = host.end(number)
    assert code == 0 and "Traceback" not in said
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.rglob("*.snapshot")}
    assert len(digests) == 4  # saved, one per fragment


@pytest.mark.swarm
def test_one_identity_is_used_by_one_process_only(tmp_path: Path) -> None:  # BUG-D13
    host = Running(tmp_path)
    try:
        result = p2ptrain("join", host.link, "--identity-dir", str(tmp_path))
        assert result.returncode == ExitCode.IDENTITY_IN_USE and "in use" in result.stderr
        copy = tmp_path.with_name("copy")
        copy.mkdir()
        (copy / "identity.pem").write_bytes((tmp_path / "identity.pem").read_bytes())
        os.chmod(copy / "identity.pem", 0o600)
        result = p2ptrain("join", host.link, "--identity-dir", str(copy))
        assert result.returncode == ExitCode.IDENTITY_IN_USE and "Traceback" not in result.stderr
        assert host.process.poll() is None
    finally:
        host.end(signal.SIGTERM)


@pytest.mark.swarm
def test_a_link_to_another_run_of_a_live_peer_is_refused_with_both_runs(tmp_path: Path) -> None:  # BUG-S14
    host = Running(tmp_path)
    try:
        foreign = f"p2ptrain://{RUN}/" + host.link.split("/")[-1]
        result = p2ptrain("join", foreign, "--identity-dir", str(tmp_path.with_name("other")))
        assert result.returncode == ExitCode.LINK
        assert "trains" in result.stderr and "Traceback" not in result.stderr
        status = p2ptrain("status", host.link, "--json")
        assert status.returncode == 0 and '"peers"' in status.stdout
    finally:
        host.end(signal.SIGTERM)


@pytest.mark.swarm
def test_a_corrupt_file_stops_the_command_and_is_left_as_it_is(tmp_path: Path) -> None:
    Running(tmp_path).end(signal.SIGTERM)
    path = next(tmp_path.rglob("fragment-0.snapshot"))
    path.write_bytes(path.read_bytes()[:-10])
    before = path.read_bytes()
    result = p2ptrain("host", "sim-quadratic", "--identity-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    assert result.returncode == ExitCode.STORAGE
    assert "fragment-0.snapshot" in result.stderr and "Traceback" not in result.stderr
    assert path.read_bytes() == before
