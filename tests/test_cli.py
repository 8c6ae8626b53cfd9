"""The command, each run a process: flags, what is missing, signals, exit codes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fake_server import HOLD
from fakes import DIE, loglikelihood

from mlxscore_server.errors import StartupError
from mlxscore_server.server import bind
from mlxscore_server.settings import Settings

TESTS = Path(__file__).parent
# Not this machine's own settings.
ENV = {key: value for key, value in os.environ.items() if not key.startswith("MLXSCORE_")}


def command(
    *flags: str, first: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `mlxscore-server`, after the statement `first`; print its heavy imports at the end."""
    program = f"import sys; {first}\nfrom mlxscore_server.cli import main\nmain(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env=ENV | (env or {}),
    )


def test_help_is_fast_and_tidy() -> None:
    watch = (
        "import atexit; atexit.register(lambda: print('HEAVY', "
        "sorted({'mlx', 'mlx_lm', 'transformers', 'fastapi', 'uvicorn', 'numpy'} & set(sys.modules))))"
    )
    done = command("--help", first=watch)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in done.stdout
        if isinstance(field.default, int | float):
            assert f"(default: {field.default})" in " ".join(done.stdout.split())
    assert "None" not in done.stdout
    assert "factory" not in done.stdout
    assert done.stderr == ""


def test_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mlxscore-server ")


def test_the_default_model_s_folder_is_printed(default_model_dir: Path, tmp_path: Path) -> None:
    done = command("--print-default-model", "--cache-dir", str(default_model_dir.parent))
    assert (done.returncode, done.stdout) == (0, f"{default_model_dir}\n"), done.stderr
    (tmp_path / "file").touch()
    done = command("--print-default-model", "--cache-dir", str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: cannot prepare the default model" in done.stderr


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        (["--port", "abc"], {}, ["--port should be a valid integer", "'abc'"]),
        (["--port", "99999"], {}, ["--port should be less than or equal to 65535", "'99999'"]),
        (["--port=99999"], {"MLXSCORE_PORT": "1"}, ["--port should"]),
        ([], {"MLXSCORE_PORT": "99999"}, ["MLXSCORE_PORT should"]),
        (["--dtype", "int8"], {}, ["--dtype should be 'auto', 'float32'", "'int8'"]),
        (["--max-batch-tokens", "0"], {}, ["--max-batch-tokens should be greater"]),
        (["--bogus", "3"], {}, ["unrecognized arguments: --bogus 3", "--help"]),
        (["--max-log", "3"], {}, ["unrecognized arguments: --max-log 3"]),
        (["serve"], {}, ["unrecognized arguments: serve"]),
        (["--port"], {}, ["--port", "expected one argument"]),
        (["--host", "no such host", "--blas", "/nowhere"], {}, ["error: "]),
    ],
)
def test_a_bad_flag_is_one_line_and_exit_code_2(
    flags: list[str], env: dict[str, str], said: list[str]
) -> None:
    done = command(*flags, env=env)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("mlxscore-server: error: ")
    for part in said:
        assert part in line


def test_each_bad_flag_has_its_line() -> None:
    done = command("--port", "abc", "--log-level", "loud")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2


def test_flags_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxscore_server import cli

    monkeypatch.setenv("MLXSCORE_PORT", "81")
    monkeypatch.setenv("MLXSCORE_MAX_LOGPROBS", "7")
    settings = cli._settings(["--model", "X", "--port", "0", "--max-model-len=12"])
    assert (settings.model, settings.port, settings.max_logprobs) == ("X", 0, 7)
    assert settings.max_model_len == 12


@pytest.mark.parametrize(
    "package", ["pydantic_settings", "platformdirs", "fastapi", "uvicorn", "mlx", "mlx_lm", "numpy"]
)
def test_without_the_extra_one_line_says_what_to_install(package: str) -> None:
    # In a child of the child the BLAS would be probed for: not what this is about.
    first = (
        f"sys.modules[{package!r}] = None; import mlxscore_server.blas as b; "
        "b.load_blas = lambda *a: None"
        if package not in ("pydantic_settings", "platformdirs")
        else f"sys.modules[{package!r}] = None"
    )
    done = command("--port", "0", first=first)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"{package} is not installed" in line or "cannot be loaded" in line
    assert "pip install 'mlxscore[server]'" in line
    assert "mlxscore[server-cuda]" in line


def test_binding() -> None:
    with bind(Settings(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartupError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use"):
            bind(Settings(port=port))
    for host in ("no.such.host.invalid", "300.1.1.1", "a" * 300, "203.0.113.7"):
        with pytest.raises(StartupError, match="cannot listen on"):
            bind(Settings(host=host, port=0))
    with bind(Settings(host="localhost", port=0)) as listener:
        assert listener.family == socket.AF_INET


class FakeServer:
    """tests/fake_server.py as a process whose log is read line by line."""

    def __init__(self, how: str, *flags: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "fake_server.py"), how, "--port", "0", *flags],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENV,
        )

    def until(self, text: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"the process ended without {text!r}: {self.lines}")

    def url(self) -> str:
        return self.until("listening on ").split("listening on ")[1].strip()

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """The exit code; the rest of the log is in `lines`."""
        assert self.process.stderr is not None
        self.lines += self.process.stderr.readlines()
        return self.process.wait(timeout=30)


@contextmanager
def fake_server(how: str, *flags: str) -> Iterator[FakeServer]:
    server = FakeServer(how, *flags)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        for pipe in (server.process.stdin, server.process.stderr):
            if pipe is not None:
                pipe.close()


def body(continuation: str) -> dict[str, object]:
    return {"items": [{"context": "a", "continuation": continuation}]}


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_queued_finish(sign: signal.Signals) -> None:
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")

        async def main() -> None:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                assert (await client.get("/health")).status_code == 200  # and an idle connection
                held = asyncio.create_task(client.post("/score", json=body(chr(HOLD))))
                await asyncio.to_thread(server.until, "held")
                texts = [f"text {i}" for i in range(20)]
                queued = [
                    asyncio.create_task(
                        client.post("/score", json={**body(text), "top_logprobs": 20})
                    )
                    for text in texts
                ]
                for _ in texts:
                    await asyncio.to_thread(server.until, "queued")
                server.process.send_signal(sign)
                await asyncio.to_thread(server.until, "stopping")
                health = await client.get("/health")
                assert (health.status_code, health.json()) == (503, {"status": "draining"})
                refused = await client.post("/score", json=body("b"))
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
                server.let_go()
                assert (await held).status_code == 200
                for text, task in zip(texts, queued, strict=True):
                    response = await task
                    assert response.status_code == 200, response.text
                    (score,) = response.json()["results"][0]["scores"]
                    assert score["loglikelihood"] == loglikelihood(text)

        asyncio.run(main())
        assert server.end() == 0
        assert not [line for line in server.lines if "Traceback" in line or "ERROR" in line]


def test_what_outlasts_the_drain_is_told_so_and_the_process_ends() -> None:
    with fake_server("ok", "--drain-timeout", "0") as server:
        url = server.url()
        server.until("ready")

        async def main() -> None:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                held = asyncio.create_task(client.post("/score", json=body(chr(HOLD))))
                await asyncio.to_thread(server.until, "held")
                queued = asyncio.create_task(client.post("/score", json=body("b")))
                await asyncio.to_thread(server.until, "queued")
                server.process.send_signal(signal.SIGTERM)
                response = await queued
                assert response.status_code == 503
                assert response.json()["error"]["code"] == "engine_stopped"
                # The held one never lets go; its caller is told so as well.
                assert (await held).status_code == 503

        asyncio.run(main())
        assert server.end() == 0
        assert not [line for line in server.lines if "Traceback" in line]


def test_a_second_signal_ends_at_once() -> None:
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")

        async def main() -> None:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                held = asyncio.create_task(client.post("/score", json=body(chr(HOLD))))
                await asyncio.to_thread(server.until, "held")
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.until, "stopping")
                server.process.send_signal(signal.SIGTERM)
                with pytest.raises(httpx.TransportError):
                    await held

        asyncio.run(main())
        assert server.end() == 128 + signal.SIGTERM


def test_it_listens_while_the_model_loads_and_can_be_stopped_then() -> None:
    with fake_server("slow") as server:
        url = server.url()
        health = httpx.get(f"{url}/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        response = httpx.post(f"{url}/score", json=body("b"))
        assert response.status_code == 503
        assert response.headers["retry-after"]
        server.let_go()
        server.until("ready")
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    with fake_server("slow") as server:
        server.until("loading")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


@pytest.mark.parametrize(
    ("how", "said"),
    [("bad", "there is no such model"), ("broken", "the model cannot be loaded: KeyError")],
)
def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_2(how: str, said: str) -> None:
    with fake_server(how) as server:
        assert server.end() == 2
        assert server.lines[-1].startswith("mlxscore-server: error: ")
        assert said in server.lines[-1]
        assert not [line for line in server.lines if "Traceback" in line]


def test_the_death_of_the_scoring_thread_ends_the_process() -> None:
    with fake_server("ok") as server:
        url = server.url()
        server.until("ready")
        response = httpx.post(f"{url}/score", json=body(chr(DIE)), timeout=30)
        assert response.status_code == 503
        assert json.loads(response.content)["error"]["code"] == "engine_stopped"
        assert server.end() == 1


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    with bind(Settings(port=0)) as listener:
        port = listener.getsockname()[1]
        with fake_server("ok", "--port", str(port)) as server:
            assert server.end() == 2
            assert len(server.lines) == 1
            assert f"cannot listen on 127.0.0.1:{port}" in server.lines[0]
