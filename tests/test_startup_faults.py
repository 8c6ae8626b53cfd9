"""Starts that cannot succeed, each a process: one clear line and exit code 2. And starts that must."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fakes import loglikelihood
from test_cli import ENV, FakeServer, body, fake_server
from test_model import fail_with
from tiny_folders import save_adapter, save_model

from mlxscore_server.default_model import DEFAULT_MODEL_NAME
from mlxscore_server.descriptors import raise_limit
from mlxscore_server.server import bind
from mlxscore_server.settings import Settings
from mlxscore_server.tokens import Encoder


@dataclass(frozen=True)
class Fault:
    """How to make a folder that is at fault; what the line must say, after which flag."""

    make: Callable[[Path], list[str]]
    flag: str
    said: str


def model_of(folder: Path) -> list[str]:
    return ["--model", str(folder)]


def cut_off(folder: Path) -> list[str]:
    weights = save_model(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return model_of(folder)


def no_json(folder: Path) -> list[str]:
    (save_model(folder) / "config.json").write_text('{"model_type": "llama",')
    return model_of(folder)


def lacks_keys(folder: Path) -> list[str]:
    config = json.loads((save_model(folder) / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    return model_of(folder)


def no_type(folder: Path) -> list[str]:
    (save_model(folder) / "config.json").write_text('{"hidden_size": 64}')
    return model_of(folder)


def cut_off_tokenizer(folder: Path) -> list[str]:
    tokenizer = save_model(folder) / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1000])
    return model_of(folder)


def larger_tokenizer(folder: Path) -> list[str]:
    return model_of(save_model(folder, vocab_size=100))


def other_adapter(folder: Path) -> list[str]:
    """Of a model that is wider."""
    save_model(folder, hidden_size=128)
    return [*model_of(folder), "--adapter-path", str(save_adapter(folder / "lora"))]


def cut_off_adapter(folder: Path) -> list[str]:
    save_model(folder)
    weights = save_adapter(folder / "lora") / "adapters.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    return [*model_of(folder), "--adapter-path", str(folder / "lora")]


def no_cache(folder: Path) -> list[str]:
    folder.touch()
    return ["--cache-dir", str(folder / "cache")]


FAULTS = [
    Fault(cut_off, "--model", "model.safetensors is damaged or cut off"),
    Fault(lacks_keys, "--model", "config.json lacks 'hidden_size'"),
    Fault(larger_tokenizer, "--model", "its tokenizer does not fit its weights"),
    Fault(other_adapter, "--adapter-path", "does not fit the model"),
    Fault(no_cache, "", "cannot prepare the default model"),
]
# More of the same kind, for which no process is started.
ALSO = [
    Fault(no_json, "--model", "config.json is not JSON"),
    Fault(no_type, "--model", "config.json has no model_type"),
    Fault(cut_off_tokenizer, "--model", "cannot be loaded"),
    Fault(cut_off_adapter, "--adapter-path", "adapters.safetensors is damaged or cut off"),
]


@pytest.fixture(scope="module")
def starts(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All of them at once, while the first is waited for."""
    root = tmp_path_factory.mktemp("starts")
    command = [sys.executable, "-m", "mlxscore_server.cli", "--port", "0", "--log-level", "error"]
    with ExitStack() as stack:
        found: dict[str, subprocess.Popen[str]] = {}
        for fault in FAULTS:
            name = fault.make.__name__
            flags = fault.make(root / name)
            process = subprocess.Popen(
                [*command, *flags], stderr=subprocess.PIPE, text=True, env=ENV
            )
            found[name] = stack.enter_context(process)
            stack.callback(process.kill)
        yield found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.make.__name__)
def test_a_fault_is_one_line_and_exit_code_2(
    fault: Fault, starts: dict[str, subprocess.Popen[str]]
) -> None:
    process = starts[fault.make.__name__]
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2, log
    line = log.splitlines()[-1]
    assert line.startswith(f"mlxscore-server: error: {fault.flag}")
    assert fault.said in line
    assert log.count("error: ") == 1
    assert "Traceback" not in log


@pytest.mark.parametrize("fault", ALSO, ids=lambda fault: fault.make.__name__)
def test_another_fault_is_one_line_too(fault: Fault, tmp_path: Path) -> None:
    flags = fault.make(tmp_path / "m")
    line = fail_with(
        **{
            flag.removeprefix("--").replace("-", "_"): value
            for flag, value in zip(flags[::2], flags[1::2], strict=True)
        }
    )
    assert line.startswith(fault.flag)
    assert fault.said in line


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    with bind(Settings(port=0)) as listener, fake_server("slow", "--port", "0") as server:
        port = listener.getsockname()[1]
        server.url()
        with fake_server("slow", "--port", str(port)) as second:
            assert second.end() == 2
            assert len(second.lines) == 1
            assert f"127.0.0.1:{port}: Address already in use (--host, --port)" in second.lines[0]


def test_added_tokens_beyond_the_weights_are_no_misfit(tmp_path: Path) -> None:
    """As gemma3's tokenizer has them for images, where its text model's weights end before."""
    from tiny_tokenizers import byte_level

    tokenizer = byte_level()
    plain = Encoder(tokenizer, num_embeddings=len(tokenizer), max_model_len=None).largest_text_id
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    encoder = Encoder(tokenizer, num_embeddings=len(tokenizer) - 1, max_model_len=None)
    assert encoder.largest_text_id == plain < len(tokenizer) - 1


def is_served(url: str) -> bool:
    response = httpx.post(f"{url}/score", json=body("b"), timeout=30)
    (score,) = response.json()["results"][0]["scores"]
    return score["loglikelihood"] == loglikelihood("b")


def url_once(server: FakeServer, text: str) -> str:
    """Where it listens, once its log holds the text too; the one may come before the other."""
    while not all(any(part in line for line in server.lines) for part in ("listening on ", text)):
        server.until("")  # the next line
    (line,) = (line for line in server.lines if "listening on " in line)
    return line.split("listening on ")[1].strip()


def test_two_starts_at_once_on_a_cold_cache_convert_once(tmp_path: Path) -> None:
    flags = ("--cache-dir", str(tmp_path))
    with fake_server("cold", *flags) as first:
        urls = [url_once(first, "converting")]  # it goes on once a line comes in
        with fake_server("cold", *flags) as second:
            urls.append(url_once(second, "Another process is preparing the default model"))
            first.let_go()
            first.until("ready")
            second.until("ready")
            assert all(map(is_served, urls))
            assert not any("onverting" in line for line in second.lines)
    assert sorted(os.listdir(tmp_path)) == [DEFAULT_MODEL_NAME, "default-model.lock"]


def test_after_kill_9_in_a_conversion_the_next_start_is_clean(tmp_path: Path) -> None:
    flags = ("--cache-dir", str(tmp_path))
    with fake_server("cold", *flags) as killed:
        killed.until("converting")
        killed.process.kill()
        killed.process.wait()
    assert any(name.startswith(".default-model-") for name in os.listdir(tmp_path))
    with fake_server("cold", *flags) as server:
        url = url_once(server, "converting")
        server.let_go()
        server.until("ready")
        assert is_served(url)
    assert sorted(os.listdir(tmp_path)) == [DEFAULT_MODEL_NAME, "default-model.lock"]
    with fake_server("cold", *flags) as again:
        again.until("ready")
        assert not any("onverting" in line for line in again.lines)


def test_a_disk_without_room_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # what the child inherits
    try:
        server = fake_server("cold", "--cache-dir", str(tmp_path))
        entered = server.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    try:
        assert entered.end() == 2
        line = entered.lines[-1]
        assert f"error: cannot prepare the default model in {tmp_path}: File too large" in line
        assert not any(name.startswith(".default-model-") for name in os.listdir(tmp_path))
    finally:
        server.__exit__(None, None, None)


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raised = raise_limit()
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert now == (raised if raised is not None else resource.RLIM_INFINITY)
        assert raised is None or raised > 256
        assert hard == resource.RLIM_INFINITY or raised is None or raised <= hard
        assert raise_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
