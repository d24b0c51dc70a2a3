"""How games are made from a recipe's words: ours, those of a user, and ordinary environments with pictures."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from conftest import our_games
from sightline.envs.games.actions import check_action_names
from sightline.envs.games.contract import Game, Observation
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import caption, check_fields, has_oracle, oracle
from sightline.errors import BadInput, RunFailed
from sightline_tasks.games.frozen_lake import FrozenLake

GAMES = our_games()
HERE = __name__


class Doors(gymnasium.Env[int, int]):
    """An ordinary environment: actions 5, 6 and 7; the picture's grey tells how many steps were taken."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}

    def __init__(self, render_mode: str | None = None, says: str = "", height: int = 40) -> None:
        self.render_mode, self.says, self.height = render_mode, says, height
        self.observation_space = spaces.Discrete(100)
        self.action_space = spaces.Discrete(3, start=5)
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = []
        return 0, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.taken.append(int(action))
        return len(self.taken), 1.0, action == 7, False, self._info()

    def render(self) -> Any:
        return np.full((self.height, 50, 3), len(self.taken), np.uint8)

    def _info(self) -> dict[str, Any]:
        told: dict[str, dict[str, Any]] = {
            "names": {"legal_actions": ["cabinet 1"], "success": True},
            "numbers": {"legal_actions": np.array([5, 7]), "is_success": np.True_},
            "mask": {"action_mask": np.array([0, 1, 1], np.int8)},
            "facts": {"facts": {"steps": str(len(self.taken))}},
        }
        return told.get(self.says, {}) | {"own": 3}


class NamedDoors(Doors):
    """The same, but it names its actions and knows how to play."""

    action_names = ("1", "10", "100")
    asked = ("steps",)

    def oracle(self) -> str:
        return "10"

    def caption(self) -> str:
        return f"{len(self.taken)} steps were taken."


class Flat(Doors):
    def render(self) -> Any:
        return np.zeros(4, np.uint8)


class Lake(FrozenLake):
    """A game of a user's own."""


def lake_with_its_own_wrapper(**options: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(FrozenLake(**options), 7)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("words", [False, True])
def test_all_our_games_keep_the_contract(name: str, words: bool) -> None:
    env = GameMaker(name, {"render_size": (64, 80)}, text_only=words)()
    observation, info = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert isinstance(observation, Observation) and observation.text
    assert [image.shape for image in observation.images] == ([] if words else [(64, 80, 3)])
    names, asked = env.get_wrapper_attr("action_names"), env.get_wrapper_attr("asked")
    assert env.action_names == names and env.asked == asked  # type: ignore[attr-defined]
    assert all(env.action_space.contains(action) for action in info["legal_actions"])
    assert info["success"] is False and set(info["facts"]) == set(asked) and info["legal_actions"]
    if names:  # else every state has its own
        assert not env.action_space.contains("no such action") and set(info["legal_actions"]) <= set(names)
    advice = oracle(env)
    assert has_oracle(env) and advice in info["legal_actions"]
    assert isinstance(env.unwrapped, Game) and advice == env.unwrapped.oracle() != ""
    assert caption(env) == env.unwrapped.caption()
    assert (env.unwrapped.caption() in observation.text) == words
    observation, *_ = env.step(advice)
    assert env.observation_space.contains(observation)
    env.close()


@pytest.mark.parametrize("name", GAMES)
def test_our_games_pass_gymnasiums_whole_check_as_registered(name: str) -> None:
    from gymnasium.utils.env_checker import check_env

    GameMaker(name)().close()  # registers
    check_env(gymnasium.make(GAMES[name], disable_env_checker=True).unwrapped)


@pytest.mark.parametrize("env", ["sokoban", GAMES["sokoban"]])
def test_a_game_goes_by_its_name_and_by_its_id(env: str) -> None:
    text, _ = GameMaker(env, {"size": 8})().reset(seed=0)[0]
    assert "8 rows" in text


def test_makers_of_games_can_be_pickled() -> None:
    maker = pickle.loads(pickle.dumps(GameMaker("frozenlake", {"size": 5}, prompt="{text}!", episode_steps=3)))
    env = maker()
    assert env.unwrapped.size == 5
    assert env.reset(seed=0)[0].text.endswith("!")


def test_the_clock_truncates() -> None:
    for maker, steps in ((GameMaker("frozenlake", {"holes": 0}, episode_steps=3), 3), (GameMaker("sokoban"), 60)):
        env = maker()
        env.reset(seed=0)
        flags = [env.step("up")[2:4] for _ in range(steps)]
        assert flags == [(False, False)] * (steps - 1) + [(False, True)]


def test_a_prompt_is_filled_anew_for_every_state() -> None:
    plain, told = GameMaker("ezpoints")(), GameMaker("ezpoints", prompt='{{"do": "{actions}"}} {text}')()
    for env in (plain, told):
        env.reset(seed=0)
    for _ in range(3):
        action = oracle(plain)
        said, framed = (env.step(action)[0] for env in (plain, told))
        assert framed.text == '{"do": "' + ", ".join(plain.get_wrapper_attr("action_names")) + '"} ' + said.text
        assert (framed.images[0] == said.images[0]).all()


def test_words_come_after_the_users_prompt_and_follow_the_state() -> None:
    env = GameMaker("frozenlake", {"holes": 0}, prompt="Walk!", text_only=True)()
    observation, _ = env.reset(seed=0)
    seen = set()
    names = env.get_wrapper_attr("action_names")
    for action in (0, 2, 1, 3):
        assert observation == (f"Walk!\n{env.unwrapped.caption()}", ())
        seen.add(observation.text)
        observation, _, over, _, _ = env.step(names[action])
        assert not over
    assert len(seen) > 1


def test_a_users_own_game_needs_no_prompt() -> None:
    for name in (f"{HERE}:Lake", f"{HERE}:lake_with_its_own_wrapper"):
        env = GameMaker(name, {"size": 3})()
        observation, info = env.reset(seed=0)
        assert "3 rows" in observation.text and len(observation.images) == 1
        assert oracle(env) in info["legal_actions"]


def test_an_ordinary_environment_becomes_a_game() -> None:
    env = GameMaker(f"{HERE}:Doors", prompt="Take one of {actions}.", actions=("left", "middle", "right"))()
    assert (env.action_names, env.asked) == (("left", "middle", "right"), ())  # type: ignore[attr-defined]
    observation, info = env.reset(seed=0)
    assert observation.text == "Take one of left, middle, right."
    assert env.observation_space.contains(observation)
    assert observation.images[0].shape == (40, 50, 3) and (observation.images[0] == 0).all()
    all_actions = ("left", "middle", "right")
    assert info == {"own": 3, "success": None, "legal_actions": all_actions, "facts": {}}
    observation, reward, terminated, _, info = env.step("right")
    assert env.unwrapped.taken == [7], "numbers are counted from the space's own start"
    assert (observation.images[0] == 1).all()
    assert (reward, terminated) == (1.0, True)
    assert info["success"] is None, "an end with a reward is no win unless the environment says so"
    assert oracle(env) is None and caption(env) is None and not has_oracle(env)


@pytest.mark.parametrize(
    ("says", "legal", "success"),
    [
        ("names", ("cabinet 1",), True),
        ("numbers", ("cabinet 1", "sink"), True),
        ("mask", ("cabinet 10", "sink"), None),
        ("", ("cabinet 1", "cabinet 10", "sink"), None),
    ],
)
def test_what_an_ordinary_environment_says_of_itself_is_used(says: str, legal: Any, success: bool | None) -> None:
    env = GameMaker(f"{HERE}:Doors", {"says": says}, prompt="x", actions=("cabinet 1", "cabinet 10", "sink"))()
    info = env.reset(seed=0)[1]
    assert info["legal_actions"] == legal
    assert info["success"] is success


def test_an_ordinary_environment_may_know_more() -> None:
    env = GameMaker(f"{HERE}:NamedDoors", {"says": "facts"}, prompt="x", text_only=True)()
    assert (env.action_names, env.asked) == (("1", "10", "100"), ("steps",))  # type: ignore[attr-defined]
    observation, info = env.reset(seed=0)
    assert observation == ("x\n0 steps were taken.", ()) and info["facts"] == {"steps": "0"}
    assert oracle(env) == "10"
    assert env.step("1")[0].text == "x\n1 steps were taken."


def test_names_in_the_recipe_replace_the_environments_own() -> None:
    env = GameMaker(f"{HERE}:NamedDoors", prompt="x", actions=("a", "b", "c"))()
    assert env.action_names == ("a", "b", "c")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        (GameMaker("sokobann"), "'sokoban'"),
        (GameMaker("sokoban", {"boxs": 2}), "boxs"),
        (GameMaker("sokoban", {"boxes": 20}), "boxes=20"),
        (GameMaker("sokoban", prompt="{txt}"), "did you mean 'text'"),
        (GameMaker("sokoban", prompt="{}"), "'{}'"),
        (GameMaker("sokoban", prompt="{text.upper}"), "{text.upper}"),
        (GameMaker("sokoban", prompt="{text!r:>9}"), "{text!r:>9}"),
        (GameMaker("sokoban", prompt='{"action": {text}}'), "double literal braces"),
        (GameMaker("sokoban", prompt="{text"), "double literal braces"),
        (GameMaker("sokoban", actions=("n", "s", "w", "e")), "leave out actions"),
        (GameMaker(f"{HERE}:Doors", actions=("a", "b", "c")), "prompt="),
        (GameMaker(f"{HERE}:Doors", prompt="x"), "3 actions and does not name them"),
        (GameMaker(f"{HERE}:Doors", prompt="x", actions=("a", "b")), "2 names are given"),
        (GameMaker(f"{HERE}:Doors", prompt="{text}", actions=("a", "b", "c")), "{text}"),
        (GameMaker(f"{HERE}:Doors", prompt="x", actions=("a", " ", "c")), "with an empty name"),
        (GameMaker(f"{HERE}:Doors", prompt="x", actions=("go  in", "b", "Go in")), "'go  in' and 'Go in'"),
        (GameMaker(f"{HERE}:Doors", prompt="x", actions=("a", "b", "c"), text_only=True), "leave out text_only"),
        (GameMaker("Pendulum-v1", prompt="x"), "of the kind Box"),
        (GameMaker("small_envs:Blind", prompt="x"), "rgb_array"),
    ],
)
def test_what_cannot_be_a_game_is_said_in_one_line(maker: GameMaker, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        maker()
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_frames_that_are_none_are_refused() -> None:
    with pytest.raises(RunFailed, match=r"uint8\[H, W, 3\]"):
        GameMaker(f"{HERE}:Flat", prompt="x", actions=("a", "b", "c"))()


def test_names_that_are_parts_of_others_can_be_told_apart() -> None:
    check_action_names(("1", "10", "cabinet 1", "cabinet 10", "+", "++"), "game")


@given(st.lists(st.text(st.sampled_from("aAbß \t\n"), max_size=4), min_size=1, max_size=4))
def test_names_are_refused_exactly_if_two_read_the_same_or_one_is_empty(names: list[str]) -> None:
    plain = [" ".join(name.split()).casefold() for name in names]
    if "" in plain or len(set(plain)) < len(plain):
        with pytest.raises(BadInput):
            check_action_names(names, "game")
    else:
        check_action_names(names, "game")


@pytest.mark.parametrize("names", [(), (1, 2), (None,)])
def test_names_must_be_text(names: Any) -> None:
    with pytest.raises(BadInput):
        check_action_names(names, "game")


@given(st.text(st.sampled_from("{}textacions !:.\n"), max_size=12))
def test_every_template_that_passes_can_be_filled(template: str) -> None:
    refusal = ""
    try:
        check_fields(template, ("text", "actions"))
    except BadInput as error:
        refusal = str(error)
    if not refusal:
        template.format(text="t", actions="a")
    assert "\n" not in refusal
