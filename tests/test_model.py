"""Loading: what a model's folder may hold, what the flags do, and one clear line where it fails."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import with_engine
from tiny_folders import save_adapter, save_model

from mlxscore_client.wire import ModelCard
from mlxscore_server.engine import Engine
from mlxscore_server.errors import StartupError
from mlxscore_server.model import load
from mlxscore_server.row import Row
from mlxscore_server.settings import Settings

ROWS = [Row(np.array([5, 6, 7, 8, 9], np.int32), 1), Row(np.array([9, 8], np.int32), 1)]


def score_with(**flags: Any) -> tuple[np.ndarray[Any, Any], ModelCard]:
    settings = Settings(**flags)

    async def use(engine: Engine) -> tuple[np.ndarray[Any, Any], ModelCard]:
        scores = (await engine.score(ROWS)).scores
        return np.concatenate([score.logprobs for score in scores]), engine.loaded.card

    return with_engine(lambda: load(settings), use)


def fail_with(**flags: Any) -> str:
    """The one line with which the start ends."""

    async def use(engine: Engine) -> None:
        await asyncio.sleep(0)

    settings = Settings(**flags)
    with pytest.raises(StartupError) as caught:
        with_engine(lambda: load(settings), use)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_folder_and_its_card(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mine")
    _, card = score_with(model=str(folder))
    assert (card.id, card.root) == ("mine", "mine")
    assert (card.max_model_len, card.dtype, card.head_dtype) == (512, "float32", "float32")
    assert card.quantization is None
    assert card.vocab_size == json.loads((folder / "config.json").read_text())["vocab_size"]
    assert (card.bos_token_id, card.eos_token_id, card.adds_bos) == (0, 1, False)


def test_names_and_limits_are_the_operators(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mine")
    _, card = score_with(model=str(folder), served_model_name="scorer", max_model_len=64)
    assert (card.id, card.root, card.max_model_len) == ("scorer", "mine", 64)


def test_half_precision_weights_become_float32_on_the_cpu(tmp_path: Path) -> None:
    import mlx.core as mx

    half = save_model(tmp_path / "half", dtype=mx.bfloat16)
    scores, card = score_with(model=str(half))
    assert card.dtype == "float32"
    kept, kept_card = score_with(model=str(half), dtype="bfloat16")
    assert kept_card.dtype == "bfloat16"
    assert card.system_fingerprint != kept_card.system_fingerprint
    assert 0 < np.abs(scores - kept).max() < 0.2


def test_the_heads_precision_is_stated(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path / "mine"))
    exact, card = score_with(model=folder, dtype="bfloat16")
    rounded, other = score_with(model=folder, dtype="bfloat16", head_dtype="model")
    assert (card.head_dtype, other.head_dtype) == ("float32", "bfloat16")
    assert card.system_fingerprint != other.system_fingerprint
    assert 0 < np.abs(exact - rounded).max() < 0.2


def test_quantised_weights_load_as_they_are(tmp_path: Path) -> None:
    import mlx.core as mx

    folder = save_model(tmp_path / "q4", quantize=True, dtype=mx.bfloat16)
    _, card = score_with(model=str(folder))
    assert card.quantization == {"group_size": 32, "bits": 4}
    assert card.self_check.padding == "left-padded"


def test_an_adapter_changes_the_scores_and_the_fingerprint(tmp_path: Path) -> None:
    folder, adapter = save_model(tmp_path / "base"), save_adapter(tmp_path / "lora")
    plain, card = score_with(model=str(folder))
    adapted, other = score_with(model=str(folder), adapter_path=adapter)
    assert np.abs(plain - adapted).max() > 0.01
    assert card.system_fingerprint != other.system_fingerprint
    assert "no adapter_config.json" in fail_with(model=str(folder), adapter_path=tmp_path)


def test_a_recurrent_model_says_that_it_is_not_padded(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mamba", "mamba")
    _, card = score_with(model=str(folder))
    assert card.self_check.padding == "equal-length"
    assert card.self_check.reason is not None
    assert card.max_model_len is None


@pytest.mark.parametrize("name", ["typo", "./typo", "/no/such/folder", "~/no-such-folder"])
def test_a_name_that_is_no_folder_is_not_looked_up_on_a_hub(name: str) -> None:
    assert "no such folder" in fail_with(model=name)


def test_a_path_below_a_folder_that_exists_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "no such folder" in fail_with(model="models/typo")


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    # What HF_HUB_OFFLINE sets; read when the library is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "cannot be fetched" in fail_with(model="no-such-organisation/no-such-model")


def test_folders_that_hold_no_whole_model(tmp_path: Path) -> None:
    assert "no config.json" in fail_with(model=str(tmp_path))
    folder = save_model(tmp_path / "m")
    assert "is a file" in fail_with(model=str(folder / "config.json"))
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 7, 100, len(whole) // 2):
        (folder / "model.safetensors").write_bytes(whole[:size])
        assert fail_with(model=str(folder))
    (folder / "model.safetensors").unlink()
    assert "no model*.safetensors" in fail_with(model=str(folder))


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"model_type": "no_such_architecture"}'])
def test_configs_that_are_none(tmp_path: Path, config: str) -> None:
    folder = save_model(tmp_path / "m")
    (folder / "config.json").write_text(config)
    assert fail_with(model=str(folder))


def test_weights_of_another_model(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert fail_with(model=str(folder))
