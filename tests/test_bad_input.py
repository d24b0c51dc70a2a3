"""Bad command lines end in one line that names what is wrong: some of those that `benchmarks/bad_input.py` tries."""

from __future__ import annotations

from pathlib import Path

import pytest

import bad_lines
from sightline.config.loading import load_recipe
from sightline.errors import BadInput, printable

WITHOUT_RUNS = [
    each
    for each in bad_lines.all_lines()
    if each.damage is None and not each.alone and not {"words", "taught", "agent", "kept", "serve"} & set(each.words)
]
SOME = WITHOUT_RUNS[:: len(WITHOUT_RUNS) // 40]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "world"
    bad_lines.build(folder, runs=False)
    return folder


@pytest.mark.parametrize("each", SOME, ids=str)
def test_a_bad_line_is_refused(world: Path, each: bad_lines.Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIGHTLINE_DEBUG", raising=False)
    ended = bad_lines.carry_out(each, world)
    assert not ended.wrong, f"{each}: {ended.err}"


def test_there_are_hundreds_and_all_differ() -> None:
    lines = bad_lines.all_lines()
    assert len(lines) >= 400
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["learner=5", "learner.chunk=16"], "learner=5 and learner.chunk=16 exclude each other; leave one out"),
        (["videos=false", "videos.every=64"], "videos=False and videos.every=64 exclude each other; leave one out"),
        (["reward.kind=learned", "reward.teacher={}", "reward.teacher.kind=nobody"], "reward.teacher.kind cannot be"),
        (
            ["reward.kind=learned", "reward.teacher={kind: chat}", "reward.teacher.kind=scripted"],
            "reward.teacher says kind: chat, and reward.teacher.kind says another; leave one out",
        ),
        (["alpha=0.5"], "unknown key 'alpha'; did you mean 'reward.alpha'?"),
        (["gamma=0.9"], "unknown key 'gamma'; did you mean 'learner.gamma'?"),
        (["policy.model=x"], "'policy' is a key of role=agent, and this recipe has role=control"),
        (["reward..alpha=1"], "'reward.' is no key: a name is missing before or after its dots"),
        ([f"steps={10**400}"], "steps: is too large"),
        (["wandb="], "wandb: is empty"),
        (["goal="], "goal: a sentence is empty; write what the picture should show"),
        (["goal=['']"], "goal.0: a sentence is empty; write what the picture should show"),
        (["evaluation.test_episodes=1000000000"], "evaluation.test_episodes: must be less than or equal to 1000000"),
        ([f"learner.hidden=[{10**400}]"], "learner.hidden: is too large"),
        (["reward.kind=learned", "reward.frame_size=[64]"], "reward.frame_size: has too few values"),
        (["reward.kind=learned", "reward.frame_size=[64,64,3]"], "reward.frame_size: must have 2 values, not 3"),
        (["reward.kind=sum", "reward.terms=[]"], "reward.terms: is empty"),
        (["reward.kind=sum", "reward.terms=[{weight: much}]"], "reward.terms.0.weight: must be a number"),
        (["reward.kind=learned", "reward.model={kind: cnn, channels: []}"], "reward.model.channels: is empty"),
    ],
)
def test_what_is_wrong_with_keys(overrides: list[str], expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_recipe("cartpole", overrides)
    assert str(refused.value).startswith(expected)


def test_a_whole_block_comes_before_its_keys() -> None:
    recipe = load_recipe("cartpole", ["learner.gamma=0.5", "learner.algorithm=PPO", "learner={chunk: 16}"])
    learner = recipe.model_dump()["learner"]
    assert (learner["algorithm"], learner["gamma"], learner["chunk"]) == ("PPO", 0.5, 16)


def test_messages_are_one_line_of_a_terminal() -> None:
    assert printable("é – 'a\nb' \x1b[2J") == r"é – 'a\nb' \x1b[2J"
    assert printable(f"'{'x' * 5000}' is long; no") == f"'{'x' * 59}…x' is long; no"
    path = f"/home/{'x' * 200}/run"
    assert printable(f"'{path}' is there") == f"'{path}' is there"


def test_the_folder_is_put_back(world: Path) -> None:
    before = bad_lines.contents(world)
    bad_lines.carry_out(bad_lines.line("train", "cartpole", "--run-dir", "photos/up.png"), world)
    assert bad_lines.contents(world) == before
