"""A stranger's folder is data: whatever stands in its files, no command runs code of it, hangs, or looks elsewhere.

Real runs, tiny, of every role. Each file in them is replaced, one at a time, by something hostile, and each command
that reads it is run. What may come out is a result (the file was not needed, or another stood in for it) or one line.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shutil
import sqlite3
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import TINY, Finished
from empty_plots import plots_made
from golden_runs import build_processor, build_vlm
from sightline.agents.training import AgentTrainer
from sightline.config.loading import load_recipe
from sightline.control.off_policy import OffPolicyTrainer
from sightline.control.state import chosen_policy, latest_learner
from sightline.errors import BadInput
from sightline.runs.checkpoints import digest
from sightline.runs.folder import RunFolder
from sightline.runs.stopping import Stopped
from sightline.runs.trust import check_trusted

Sightline = Callable[..., Finished]

WORDS = ("cartpole", *TINY, "steps=96", "checkpoints.keep=1", "evaluation.every=64", "tensorboard=true")
TAUGHT = (
    *("cartpole-preferences", *TINY, "steps=96", "checkpoints.keep=1", "evaluation.every=32"),
    *("reward.teacher.kind=scripted", "reward.model.kind=states", "reward.explore=32", "reward.every=32"),
    *("reward.questions=3", "reward.pool=20", "reward.fitting.epochs=2", "reward.reset_updates=1"),
)
AGENT = (
    *("numberline", "steps=8", "tensorboard=false", "evaluation.stop_at=null", "evaluation.episodes=2"),
    *("evaluation.test_episodes=2", "rollouts.tasks=1", "update.epochs=1", "update.minibatch=8", "checkpoints.keep=1"),
    *("warm_start.samples=8", "warm_start.batch=8", "env_options.max_position=2", "replies.max_tokens=16"),
)
ROLES = {"words": WORDS, "taught": TAUGHT, "agent": AGENT}

REPORT, EVALUATE, RESUME = (
    ("report", "RUN"),
    ("evaluate", "RUN", "--episodes", "1"),
    ("train", "--run-dir", "RUN", "--resume"),
)
STATS, EXPORT = ("label", "stats", "RUN"), ("label", "export", "RUN", "OUT")
ASK = ("label", "run", "RUN", "--questions", "1")
READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "recipe.yaml": (REPORT, EVALUATE, RESUME, ASK),
    "run.json": (REPORT, RESUME),
    "metrics.jsonl": (REPORT, RESUME),
    "result.json": (REPORT, EVALUATE),
    "untrained.json": (REPORT, RESUME),
    "checkpoints/step-": (RESUME,),
    "checkpoints/warm-": (RESUME,),
    "checkpoints/best-": (EVALUATE,),
    "replay/": (RESUME,),
    "labels/": (STATS, EXPORT, REPORT),
    "": (REPORT,),
}
"""Beginning of a file's name -> the commands that read it; the first that fits."""
PLOTTED = {"metrics.jsonl", "result.json", "landscape.json"}
"""Files whose numbers a report plots."""


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every role; the agent's model is tiny, since each command loads it."""
    from sightline.roles import complete, train

    folder = tmp_path_factory.mktemp("strangers")
    model = tmp_path_factory.mktemp("model")
    processor = build_processor()
    build_vlm(processor).save_pretrained(model)
    processor.save_pretrained(model)
    for name, (recipe, *overrides) in ROLES.items():
        if name == "agent":
            overrides.append(f"policy.model={model}")
        wanted = complete(load_recipe(recipe, overrides))
        run, _ = train(wanted, folder / name, name, resume=False)
        assert (run.path / "report.html").is_file()
    return folder


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are restored, and then stopped: what comes after is not read from the folder."""

    def stop(*arguments: Any, **named: Any) -> None:
        raise Stopped(15, None)

    for session, name in ((OffPolicyTrainer, "learn"), (AgentTrainer, "start"), (AgentTrainer, "learn")):
        monkeypatch.setattr(session, name, stop)
    monkeypatch.setattr("sightline.agents.run_evaluation.evaluate_policy", stop)


def plant(what: str, file: Path, marker: Path, outside: Path) -> None:
    """Put something hostile in the place of a file."""
    content = file.read_bytes()
    file.unlink()
    match what:
        case "pickle":
            file.write_bytes(pickle.dumps(Payload(marker)))
        case "zip":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("data.pkl", pickle.dumps(Payload(marker)))
                archive.writestr("archive/data.pkl", pickle.dumps(Payload(marker)))
                archive.writestr("rewards.npy", b"\0" * 10_000_000)
            file.write_bytes(packed.getvalue())
        case "link":
            file.symlink_to(outside)
        case "absolute path":
            file.write_text(json.dumps({"format": 1, "path": str(outside), "episodes": str(outside)}))
        case "path with ..":
            file.write_bytes(content.replace(b"safetensors", b"../../../outside") or b"../../outside")
        case "nested":
            file.write_text("[" * 100_000)
        case "bomb":
            with file.open("wb") as stream:
                stream.truncate(2**42)


def forge_manifest(file: Path, run: Path) -> None:
    """Make the checksums fit: they notice damage, and do not stop anyone."""
    if file.stat(follow_symlinks=False).st_size > 2**30 or file.is_symlink():
        return
    for manifest in (run / "checkpoints").glob("*/manifest.json"):
        try:
            document = json.loads(manifest.read_bytes())
            if file.parent == manifest.parent and file.name in document["files"]:
                document["files"][file.name] = digest(file)
            if file.parent.name == "replay" and file.name in document["shared"]:
                document["shared"][file.name] = digest(file)
            manifest.write_text(json.dumps(document))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue


def commands_for(name: str, role: str) -> Iterator[tuple[str, ...]]:
    found = next(commands for beginning, commands in READERS.items() if name.startswith(beginning))
    return (command for command in found if role == "taught" or command[0] != "label")


def check_outcome(done: Finished, what: str) -> None:
    assert done.code in (0, 1, 2, 143), what
    assert "Traceback" not in done.err, f"{what}: {done.err}"
    assert "--debug" not in done.err, f"{what}: a raw exception: {done.err}"
    assert sum(line.startswith("sightline: ") for line in done.lines) == (done.code != 0), f"{what}: {done.err}"
    assert not done.code or done.lines[-1].startswith("sightline: "), f"{what}: {done.err}"


@pytest.mark.parametrize("role", list(ROLES))
@pytest.mark.parametrize("what", ["pickle", "zip", "link", "absolute path", "path with ..", "nested", "bomb"])
def test_no_file_runs_code_or_leads_elsewhere(
    sightline: Sightline, strangers: Path, tmp_path: Path, stopping: None, role: str, what: str
) -> None:
    whole, run, marker, outside = strangers / role, tmp_path / "run", tmp_path / "executed", tmp_path / "outside"
    outside.write_bytes(b"not to be touched")
    names = [str(file.relative_to(whole)) for file in sorted(whole.rglob("*")) if file.is_file()]
    frames = [name for name in names if name.startswith(("labels/frames", "trajectories/pictures"))]
    for name in [name for name in names if name not in frames[1:]]:
        for command in commands_for(name, role):
            shutil.copytree(whole, run)
            plant(what, run / name, marker, outside)
            forge_manifest(run / name, run)
            places = {"RUN": str(run), "OUT": str(tmp_path / "export")}
            plots = plots_made(drawn=False) if name in PLOTTED else contextlib.nullcontext()
            with plots:
                done = sightline(*(places.get(part, part) for part in command))
            check_outcome(done, f"{what} as {name}: sightline {' '.join(command)}")
            assert not marker.exists(), f"{name} was executed by {command}"
            assert outside.read_bytes() == b"not to be touched"
            pages = [page.read_text() for page in run.glob("*.html") if not page.is_symlink()]
            assert not any(b64encode(outside.read_bytes()).decode() in page for page in pages), f"{name} was followed"
            assert what != "link" or done.code or name.startswith("labels/frames"), f"{name} was followed by {command}"
            shutil.rmtree(run)
            shutil.rmtree(tmp_path / "export", ignore_errors=True)


# -- code that a recipe names ------------------------------------------------------------------------------------------

EVIL = """
import os, gymnasium
os.mkdir({marker!r})
class Env(gymnasium.Env): pass
class Learner: pass
"""


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that can be imported; gives the folder that it makes if it is."""
    marker = tmp_path / "executed"
    (tmp_path / "evil_module.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    return marker


NAMED = {
    "env": {"env": "evil_module:Env"},
    "a function": {"env": "os:mkdir", "env_options": {"path": "executed"}},
    "a class": {"env": "subprocess:Popen", "env_options": {"args": ["touch", "executed"]}},
    "a module of Gymnasium's": {"env": "evil_module:Pendulum-v1"},
    "learner": {"learner": {"algorithm": "evil_module.Learner"}},
    "a learner that is none": {"learner": {"algorithm": "subprocess.Popen", "options": {"args": "touch executed"}}},
}


def rename(run: Path, said: dict[str, Any]) -> None:
    import yaml

    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    if "learner" in said:  # what one learner is told another may not take
        shared = ("chunk", "buffer_size", "learning_starts")
        said = said | {"learner": {key: recipe["learner"][key] for key in shared} | said["learner"]}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | said))


@pytest.mark.parametrize("name", list(NAMED))
@pytest.mark.parametrize("role", ["words", "taught", "agent"])
def test_code_that_a_recipe_names_is_not_imported(
    sightline: Sightline, strangers: Path, tmp_path: Path, evil: Path, name: str, role: str
) -> None:
    if role == "agent" and "learner" in name:
        return
    run = Path(shutil.copytree(strangers / role, tmp_path / "run"))
    rename(run, NAMED[name])
    key = next(iter(NAMED[name]))
    for command in (EVALUATE, RESUME, *((ASK, (*ASK, "--fresh")) if role == "taught" else ())):
        done = sightline(*(str(run) if part == "RUN" else part for part in command))
        assert (done.code, len(done.lines)) == (2, 1), done.err
        assert "names code of its own" in done.err and key in done.err and "--trust" in done.err
    assert sightline("report", run).code == 0, "to look at it is no harm"
    if role != "agent":
        for api in (chosen_policy, latest_learner):
            with pytest.raises(BadInput, match="names code of its own"):
                api(RunFolder(run))
    assert not evil.exists() and not Path("executed").exists()


def test_code_that_a_label_store_names_is_not_imported(
    sightline: Sightline, strangers: Path, tmp_path: Path, evil: Path
) -> None:
    store = Path(shutil.copytree(strangers / "taught" / "labels", tmp_path / "store"))
    with sqlite3.connect(store / "labels.sqlite") as database:
        database.execute("UPDATE labels SET task = 'evil_module:Env'")
    for options in ((), ("--fresh",)):
        done = sightline("label", "run", store, "goal=a pole", *options)
        assert (done.code, len(done.lines)) == (2, 1), done.err
        assert "names code of its own (env=evil_module:Env)" in done.err
    assert not evil.exists()


@pytest.mark.parametrize("name", ["a function", "a class", "a learner that is none"])
def test_even_if_it_is_trusted_what_is_no_environment_or_learner_is_not_called(
    sightline: Sightline, strangers: Path, tmp_path: Path, name: str
) -> None:
    run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
    rename(run, NAMED[name])
    done = sightline("evaluate", run, "--trust")
    assert (done.code, len(done.lines)) == (2, 1), done.err
    assert "neither a subclass" in done.err or "no off-policy algorithm" in done.err
    assert not Path("executed").exists()


def test_what_is_trusted_is_imported(sightline: Sightline, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = ("env=small_envs:Clock", *TINY, "goal=pole", "baseline=cart", "learner.algorithm=DQN")
    assert sightline("train", *said, "--run-dir", run).code == 0
    assert sightline("evaluate", run).code == 2
    assert sightline("evaluate", run, "--trust").code == 0
    assert sightline("train", "--run-dir", run, "--resume").code == 2
    assert sightline("train", "--run-dir", run, "--resume", "--trust").code == 0
    assert sightline("train", *said, "--run-dir", run, "--resume").code == 0, "the user has named it"
    named = sightline("train", run / "recipe.yaml", "--run-dir", run, "--resume")
    assert named.code == 2 and "--trust" in named.err, "the folder has named it, not the user"


CHAT = {"kind": "chat", "model": "m", "url": "https://stranger.example/v1"}


@pytest.mark.parametrize(
    ("teacher", "labels", "key"),
    [
        (CHAT, None, "reward.teacher.url"),
        (CHAT | {"url": None}, None, "reward.teacher.provider"),
        (CHAT | {"url": "http://localhost:1/v1", "key_env": "AWS_SECRET_ACCESS_KEY"}, None, "reward.teacher.key_env"),
        ({"kind": "scripted"}, "/tmp/elsewhere", "reward.labels"),
        ({"kind": "scripted"}, "../elsewhere", "reward.labels"),
        ({"kind": "scripted"}, "runs/mine/labels", "reward.labels"),
    ],
)
def test_neither_servers_nor_keys_nor_other_stores_are_used_for_a_stranger(
    sightline: Sightline, strangers: Path, tmp_path: Path, teacher: dict[str, Any], labels: str | None, key: str
) -> None:
    import yaml

    run = Path(shutil.copytree(strangers / "taught", tmp_path / "run"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["reward"] |= {"teacher": teacher, "labels": labels}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    for command in (("train", "--run-dir", run, "--resume"), ("label", "run", run, "--questions", "1")):
        done = sightline(*command)
        assert (done.code, len(done.lines)) == (2, 1), done.err
        assert f"({key}=" in done.err
    assert sightline("evaluate", run, "--episodes", "1").code == 0, "to evaluate, nobody is asked"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("policy.server.url=https://stranger.example/v1", "policy.server.url"),
        ("policy.server.weights=/tmp/elsewhere", "policy.server.weights"),
        ("policy.server.key_env=AWS_SECRET_ACCESS_KEY", "policy.server.key_env"),
        (
            "reward={kind: learned, teacher: {kind: chat, model: m, url: 'https://stranger.example/v1'}}",
            "reward.teacher.url",
        ),
    ],
)
def test_nor_are_those_of_a_stranger_s_agent(override: str, key: str, tmp_path: Path) -> None:
    recipe = load_recipe("numberline", [override, "policy.sampler=server"])
    with pytest.raises(BadInput, match=rf"\({re.escape(key)}="):
        check_trusted(recipe, tmp_path)
    check_trusted(recipe, tmp_path, stated_keys=[key])
    check_trusted(recipe, tmp_path, asks=False)


def test_an_encoder_beside_the_run_runs_no_code_either(
    sightline: Sightline, strangers: Path, tmp_path: Path, evil: Path
) -> None:
    """open_clip hands on what a model's own configuration says of its tokenizer."""
    import yaml

    from sightline.models.encoder_files import bundled_folder

    run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
    encoder = Path(shutil.copytree(bundled_folder(), run / "encoder"))
    config = json.loads((encoder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (encoder / "open_clip_config.json").write_text(json.dumps(config))
    (encoder / "evil_module.py").write_text((tmp_path / "evil_module.py").read_text())
    tokenizer = {"auto_map": {"AutoTokenizer": ["evil_module.Learner", None]}, "tokenizer_class": "Learner"}
    (encoder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["reward"]["encoder"] = f"local-dir:{encoder}"
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    for command in (EVALUATE, RESUME):
        done = sightline(*(str(run) if part == "RUN" else part for part in command))
        assert done.code in (1, 2), done.err
        assert not evil.exists()


@pytest.mark.parametrize("asks", ["tower", "tokenizer", "both"])
def test_nobody_is_asked_to_run_code_of_an_encoder(
    asks: str, tmp_path: Path, evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if somebody sits there who would say yes."""
    from sightline.models.encoder_files import bundled_folder
    from sightline.models.encoders import load_encoder

    encoder = Path(shutil.copytree(bundled_folder(), tmp_path / "encoder"))
    shutil.copy(tmp_path / "evil_module.py", encoder)
    strange = {"auto_map": {"AutoConfig": "evil_module.Learner", "AutoModel": "evil_module.Learner"}}
    strange |= {"model_type": "strange"}
    config = json.loads((encoder / "open_clip_config.json").read_text())
    text = config["model_cfg"]["text_cfg"]
    if asks != "tokenizer":
        text |= {"hf_model_name": str(encoder), "hf_pooler_type": "mean_pooler", "hf_proj_type": "mlp"}
        (encoder / "config.json").write_text(json.dumps(strange))
    if asks != "tower":
        tokenizer = {"auto_map": {"AutoTokenizer": ["evil_module.Learner", None]}, "tokenizer_class": "Learner"}
        (encoder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (encoder / "open_clip_config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda prompt: pytest.fail(f"it asks: {prompt}"))
    with pytest.raises(BadInput, match="needs code of its own to be run, which is never done"):
        load_encoder(f"local-dir:{encoder}", "cpu")
    assert not evil.exists()


# -- files that are well-formed and say something else -----------------------------------------------------------------


def state_file(file: Path, tree: Any, **arrays: np.ndarray) -> None:
    save_file(arrays, file, {"sightline": json.dumps({"format": 1, "state": tree})})


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("collection.safetensors", []),
        ("collection.safetensors", {}),
        (
            "collection.safetensors",
            {"archives": {"transitions": [{"name": "../../x", "start": 0, "end": 1, "digest": ""}]}},
        ),
        ("learner.safetensors", {"parameters": {}, "tensors": {}, "counters": {"__class__": 1}}),
        ("learner.safetensors", {"parameters": {"policy": {"x": 1}}, "tensors": {}, "counters": {}}),
        ("learner.safetensors", 3),
    ],
    ids=str,
)
def test_a_state_of_something_else_is_one_line(
    sightline: Sightline, strangers: Path, tmp_path: Path, stopping: None, name: str, tree: Any
) -> None:
    run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
    (file,) = (run / "checkpoints").glob(f"step-*/{name}")
    state_file(file, tree)
    forge_manifest(file, run)
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 2, done.err
    assert "does not fit" in done.lines[-1] or "not the name of an archive file" in done.lines[-1]
    assert "--debug" not in done.err


@pytest.mark.parametrize("counters", [{"num_timesteps": "many"}, {"policy": None}, {"learning_rate": 1.0}, {"new": 1}])
def test_only_counters_are_restored_as_counters(
    sightline: Sightline, strangers: Path, tmp_path: Path, stopping: None, counters: dict[str, Any]
) -> None:
    from sightline.runs.state import read_state, write_state

    run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
    (file,) = (run / "checkpoints").glob("step-*/learner.safetensors")
    state = read_state(file)
    write_state(file, state | {"counters": state["counters"] | counters})
    forge_manifest(file, run)
    done = sightline("train", "--run-dir", run, "--resume")
    assert done.code == 2, done.err
    assert "is no counter of DQN" in done.lines[-1]


@pytest.mark.parametrize("names", [{"../../outside": "0" * 64}, {"/etc/passwd": "0" * 64}, {"a": 1}, [], "a"])
def test_a_manifest_names_only_its_own_files(sightline: Sightline, strangers: Path, tmp_path: Path, names: Any) -> None:
    run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
    (manifest,) = (run / "checkpoints").glob("best-*/manifest.json")
    for part in ("files", "shared"):
        document = {"format": 1, "files": {}, "shared": {}} | {part: names}
        manifest.write_text(json.dumps(document))
        done = sightline("evaluate", run)
        assert (done.code, len(done.lines)) == (2, 1), done.err
        assert "its manifest is not valid" in done.err


def test_links_and_pipes_are_refused_wherever_they_are(sightline: Sightline, strangers: Path, tmp_path: Path) -> None:
    for place in ("videos/extra", "checkpoints/step-000000000001", "pipe"):
        run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
        os.mkfifo(run / place) if place == "pipe" else (run / place).symlink_to("/etc")
        for command in (REPORT, EVALUATE, RESUME):
            done = sightline(*(str(run) if part == "RUN" else part for part in command))
            assert (done.code, len(done.lines)) == (2, 1), done.err
            assert "a run folder holds plain files" in done.err
        shutil.rmtree(run)


def test_a_folder_of_the_old_form_is_refused_in_one_line(sightline: Sightline, strangers: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(strangers / "words", tmp_path / "run"))
    text = (run / "recipe.yaml").read_text()
    assert text.startswith("format: 1\n")
    for line, expected in (("", "no format number"), ("format: 2\n", "format 2")):
        (run / "recipe.yaml").write_text(text.replace("format: 1\n", line))
        for command in (EVALUATE, RESUME):
            done = sightline(*(str(run) if part == "RUN" else part for part in command))
            assert (done.code, len(done.lines)) == (2, 1), done.err
            assert expected in done.err
