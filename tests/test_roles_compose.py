"""Environment x who acts x who pays: every listed pair is built and stepped, and any reward pays an agent."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from conftest import our_names
from sightline.agents.resolving import played_game
from sightline.agents.rewards import TurnRewards
from sightline.agents.types import Reply, Trajectory, Turn
from sightline.config.loading import for_agent, for_control, load_recipe
from sightline.control.resolving import env_maker
from sightline.envs.games.actions import named_actions
from sightline.envs.games.contract import Observation
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import TextActions
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import Task, find_task
from sightline.errors import BadInput, RunFailed
from sightline.models.vlm.types import ChatTurn, Sample
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.shaped import ShapedReward
from sightline.rewards.success import SuccessReward
from sightline.rewards.weighted_sum import WeightedSum
from sightline_tasks.registration import METAWORLD_ID

HERE = __name__
# Questions and THOR need data of the user's, web pages a browser.
NAMES = [name for name in our_names() if name not in ("questions", "miniwob", "household-thor")]
PAIRS = [(name, role) for name in NAMES for role in find_task(name).roles]


def needs_metaworld(name: str) -> bool:
    return find_task(name).env == METAWORLD_ID and importlib.util.find_spec("metaworld") is None


# -- environments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "role"), PAIRS)
def test_every_listed_pair_of_environment_and_role_can_be_stepped(name: str, role: str) -> None:
    if needs_metaworld(name):
        pytest.skip("Meta-World is not installed")
    if role == "agent":
        env = GameMaker(name)()
        observation, info = env.reset(seed=0)
        for _ in range(3):
            assert observation.text
            assert len(observation.images) == find_task(name).frames
            action = info["legal_actions"][0]
            observation, reward, terminated, truncated, info = env.step(action)
            assert info["success"] in (True, False, None)  # which is unknown
            if terminated or truncated:
                break
    else:
        recipe = for_control(load_recipe(None, {"env": name, "goal": "a picture"}))
        env = env_maker(recipe, (32, 32))()
        env.reset(seed=0)
        for _ in range(3):
            _, reward, *_ = env.step(env.action_space.sample())
        assert np.asarray(env.render()).shape[-1] == 3
    assert np.isfinite(float(reward))
    env.close()


def test_every_task_has_words_for_its_goal() -> None:
    assert all(find_task(name).goal for name in our_names())


def test_those_for_agents_are_the_games_and_the_control_tasks_that_were_promised() -> None:
    for_agents = {name for name, role in PAIRS if role == "agent"}
    assert for_agents >= {"cartpole", "mountain-car", "pendulum", "drawer-open", "numberline", "blackjack"}


def test_an_agent_is_shown_the_last_frames_and_told_how_things_move() -> None:
    env = GameMaker("cartpole", {"render_size": (96, 96)}, episode_steps=4)()
    observation, info = env.reset(seed=0)
    before, now = observation.images
    assert np.array_equal(before, now)
    assert info["facts"]["falling"] == "no"
    inner: Any = env.unwrapped
    inner.state = np.array([0.0, 0.0, 0.0, 2.0])
    (_, shown), *_, info = env.step("left")
    assert np.array_equal(shown[0], now)
    assert not np.array_equal(shown[1], now)
    assert info["facts"] == {"cart": "middle", "leaning": "right", "falling": "right"}
    assert inner.oracle() == "right"


class Words(gymnasium.Env[Observation, str]):
    """Actions are text; what can be done changes with every turn."""

    observation_space: Any = spaces.Tuple((spaces.Text(1000), spaces.Tuple(())))
    action_space: Any = spaces.Text(100)

    def __init__(self, free: bool = False, render_mode: str | None = "rgb_array") -> None:
        self.free, self.turn, self.said = free, 0, []  # type: ignore[var-annotated]
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn, self.said = 0, []
        return self._now()

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        self.turn += 1
        observation, info = self._now()
        return observation, 1.0, self.turn == 3, False, info

    def _now(self) -> tuple[Observation, dict[str, Any]]:
        legal = () if self.free else (f"open door {self.turn}", f"take key {self.turn}")
        return Observation(f"You are in room {self.turn}.", ()), {"success": self.turn == 3, "legal_actions": legal}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def test_actions_in_words_may_change_with_every_state() -> None:
    env = GameMaker(f"{HERE}:Words")()
    assert isinstance(env, TextActions)
    _, info = env.reset(seed=0)
    for turn in range(3):
        assert info["legal_actions"] == (f"open door {turn}", f"take key {turn}")
        _, _, terminated, _, info = env.step(info["legal_actions"][0])
    assert terminated
    assert info["success"]
    inner: Any = env.unwrapped
    assert inner.said == [f"open door {turn}" for turn in range(3)]


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ((), "needs a few that are named; say what they mean"),
        ({"left": [-3.0]}, "'left' is [-3.0], which is no action of 'Pendulum-v1'"),
        (("left", "right"), "needs a few that are named"),
    ],
)
def test_actions_that_cannot_be_named_are_refused(actions: Any, said: str) -> None:
    env = gymnasium.make("Pendulum-v1")
    with pytest.raises(BadInput, match=said.replace("[", r"\[").replace("]", r"\]")):
        named_actions(env, "Pendulum-v1", actions)


def test_continuous_actions_are_played_by_their_names() -> None:
    env = GameMaker("Pendulum-v1", prompt="Swing it up.", actions={"left": [-2.0], "none": [0.0], "right": [2.0]})()
    env.reset(seed=0)
    _, gentle, *_ = env.step("none")
    env.reset(seed=0)
    _, hard, *_ = env.step("left")
    assert gentle - hard == pytest.approx(0.001 * 2.0**2)


# -- rewards -----------------------------------------------------------------------------------------------------------


def turn(
    env_reward: float = 0.0, success: bool = False, brightness: int = 0, penalty: float = 0.0, **more: Any
) -> Turn:
    return Turn(
        exchange=ChatTurn("", ()),
        prompt=None,
        sample=Sample(np.zeros(0, np.int64), np.zeros(0, np.float32), "", True),
        reply=Reply("go", None),
        played=more.pop("played", "go"),
        on_policy=True,
        legal=True,
        reward=env_reward - penalty,
        facts={},
        legal_actions=("go",),
        action_tokens=np.zeros(0, bool),
        penalty=penalty,
        env_reward=env_reward,
        success=success,
        frame=np.full((4, 4, 3), brightness, np.uint8),
        **more,
    )


def episode(*turns: Turn, success: bool = False, truncated: bool = False) -> Trajectory:
    return Trajectory(0, 0, list(turns), success=success, truncated=truncated)


class Brightness(RewardModel):
    """Mean brightness of the frame, from 0 to 255."""

    def reward(self, clip: Clip) -> np.ndarray:
        assert clip.frames is not None
        return np.asarray(clip.frames).mean(axis=(2, 3, 4)).astype(np.float32)


class Change(RewardModel):
    """Rise of the brightness since the step before, within the episode."""

    window = 2

    def reward(self, clip: Clip) -> np.ndarray:
        now = Brightness().reward(clip)
        before = np.vstack([now[:1], now[:-1]])
        return np.where(clip.first, 0, now - before).astype(np.float32)


def test_a_reward_model_pays_the_turns_less_penalties() -> None:
    played = [episode(turn(9.0, brightness=10), turn(9.0, brightness=30, penalty=0.5)), episode(turn(brightness=7))]
    TurnRewards(Brightness()).score(played)
    assert [one.rewards.tolist() for one in played] == [[10.0, 29.5], [7.0]]
    assert played[0].env_return == 17.5, "what the environment paid is reported as before"
    assert all(one.frame is None for each in played for one in each.turns)


def test_windows_stop_at_the_borders_of_episodes() -> None:
    played = [episode(turn(brightness=10), turn(brightness=30)), episode(turn(brightness=90), turn(brightness=100))]
    TurnRewards(Change()).score(played)
    assert [one.rewards.tolist() for one in played] == [[0.0, 20.0], [0.0, 10.0]]


def test_rewards_of_a_whole_episode_come_at_its_end() -> None:
    (played,) = [episode(turn(brightness=1), turn(brightness=2, penalty=0.5), turn(brightness=3))]
    TurnRewards(Brightness(), per="episode").score([played])
    assert played.rewards.tolist() == [0.0, -0.5, 6.0]


def test_a_forfeited_turn_earns_nothing_and_broken_episodes_are_left_alone() -> None:
    lost = episode(turn(brightness=5), turn(brightness=50, played=None, penalty=0.2))
    broken = episode(turn(3.0))
    broken.error = "it broke"
    TurnRewards(Brightness()).score([lost, broken])
    assert lost.rewards.tolist() == [5.0, -0.2]
    assert broken.rewards.tolist() == [3.0]


def test_success_is_paid_at_the_end_by_the_rule_of_the_task() -> None:
    won, lost = episode(turn(), turn(success=False), success=True), episode(turn(success=True), turn(success=True))
    TurnRewards(SuccessReward()).score([won, lost])
    assert [won.rewards.tolist(), lost.rewards.tolist()] == [[0.0, 1.0], [0.0, 0.0]]


def test_a_model_of_states_is_refused_for_agents() -> None:
    class States(Brightness):
        needs = frozenset({"states"})

    with pytest.raises(BadInput, match="States reads states, and an agent's environment shows pictures"):
        TurnRewards(States())


def test_a_weighted_sum() -> None:
    played = episode(turn(1.0, brightness=10), turn(2.0, brightness=20))
    TurnRewards(WeightedSum([GroundTruthReward(), Brightness()], [2.0, 0.1])).score([played])
    assert played.rewards.tolist() == pytest.approx([3.0, 6.0])


def test_shaping_adds_the_change_of_the_potential() -> None:
    """By hand: r + w (gamma Phi(s') - Phi(s)), the first state's potential left out, a terminal state's potential 0."""
    shaped = ShapedReward(GroundTruthReward(), Brightness(), gamma=0.5, weight=2.0)
    ended = episode(turn(1.0, brightness=10), turn(1.0, brightness=20), turn(1.0, brightness=40))
    cut_off = episode(turn(1.0, brightness=10), turn(1.0, brightness=20), truncated=True)
    TurnRewards(shaped).score([ended, cut_off])
    assert ended.rewards.tolist() == [1 + 2 * 5, 1 + 2 * (10 - 10), 1 + 2 * (0 - 20)]
    assert cut_off.rewards.tolist() == [1 + 2 * 5, 1 + 2 * (10 - 10)]


@pytest.mark.parametrize("seed", range(5))
def test_shaping_leaves_the_best_policy_what_it_was(seed: int) -> None:
    """Every deterministic policy of a random MDP is played out; shaped and plain returns order them alike."""
    rng = np.random.default_rng(seed)
    states, actions, horizon, gamma = 4, 2, 6, 0.9
    goes = rng.integers(0, states, (states, actions))
    pays = rng.normal(size=(states, actions)).astype(np.float32)
    potential = rng.integers(0, 255, states)
    terminal = states - 1
    shaped = ShapedReward(GroundTruthReward(), Brightness(), gamma, weight=0.01)

    def returns(policy: tuple[int, ...], model: RewardModel | None) -> float:
        state, turns = 0, []
        for _ in range(horizon):
            action = policy[state]
            reward, state = float(pays[state, action]), int(goes[state, action])
            turns.append(turn(reward, brightness=int(potential[state])))
            if state == terminal:
                break
        # A fixed horizon is part of this problem, so its end is terminal too.
        played = episode(*turns)
        if model is not None:
            TurnRewards(model).score([played])
        return float(sum(gamma**t * reward for t, reward in enumerate(played.rewards)))

    policies = list(itertools.product(range(actions), repeat=states))
    plain = np.array([returns(policy, None) for policy in policies])
    with_shaping = np.array([returns(policy, shaped) for policy in policies])
    # They differ by the potential of the first state, which no policy can change and the clip does not show: 0.
    np.testing.assert_allclose(plain, with_shaping, atol=1e-4)


def test_the_reward_block_of_an_agent() -> None:
    recipe = for_agent(load_recipe("numberline"))
    assert recipe.reward.kind == "ground_truth"
    words = for_agent(load_recipe("numberline", {"reward.kind": "zero_shot", "goal": "two equal numbers"}))
    assert words.reward.needs_words
    nested = {"kind": "sum", "terms": [{"reward": {"kind": "success"}}, {"weight": 0.1, "reward": {"kind": "shaped"}}]}
    found = for_agent(load_recipe("numberline", {"reward": nested, "goal": "equal numbers"})).reward
    assert found.needs_frames
    with pytest.raises(BadInput, match=r"terms\.0 is learned from a teacher, and only a whole reward can be"):
        load_recipe("numberline", {"reward": {"kind": "sum", "terms": [{"reward": {"kind": "learned"}}]}})
    with pytest.raises(BadInput, match=r"^rollouts\.reward is called reward\.kind now"):
        load_recipe("numberline", ["rollouts.reward=success"])


# -- success and missions of any environment ---------------------------------------------------------------------------


class Errand(gymnasium.Env[Any, Any]):
    """Says its mission as MiniGrid does, in the observation, and its success in an info of its own."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None, mission: bool = True) -> None:
        self.render_mode = render_mode
        text = spaces.Text(40)
        self.observation_space = spaces.Dict({"mission": text} if mission else {"other": spaces.Discrete(2)})
        self.action_space = spaces.Discrete(2)
        self._states_mission = mission

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal = int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        done = int(action) == self.goal
        return self._seen(), float(done), True, False, {"solved": done}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 255 * self.goal, np.uint8)

    def _seen(self) -> dict[str, Any]:
        mission = f"press the {('left', 'right')[self.goal]} button"
        return {"mission": mission} if self._states_mission else {"other": 0}


ERRAND = ("role=agent", f"env={__name__}:Errand", "prompt=You have to {mission}.", "actions=[left,right]")


def test_the_mission_of_an_episode_is_told_to_the_agent() -> None:
    make = GameMaker(f"{__name__}:Errand", {}, "You have to {mission}: {actions}.", ("left", "right"))
    env = make()
    told = {env.reset(seed=seed)[0].text for seed in range(20)}
    assert told == {f"You have to press the {side} button: left, right." for side in ("left", "right")}
    with pytest.raises(RunFailed, match=r"states no mission.*leave \{mission\} out of prompt"):
        GameMaker(f"{__name__}:Errand", {"mission": False}, "Do {mission}", ("left", "right"))().reset(seed=0)


@pytest.mark.parametrize("stated", ["solved", "reward"])
def test_success_is_read_from_an_info_or_the_reward(stated: str) -> None:
    env = GameMaker(f"{__name__}:Errand", {}, "Go.", ("left", "right"), success_from=stated)()
    for seed in range(8):
        env.reset(seed=seed)
        right = ("left", "right")[env.unwrapped.goal]  # type: ignore[attr-defined]
        assert env.step(right)[4]["success"] is True
        env.reset(seed=seed)
        assert env.step("left" if right == "right" else "right")[4]["success"] is False


def test_success_by_a_function_is_that_of_the_task_for_both_roles() -> None:
    task = Task(
        "small", "CartPole-v1", success_from=lambda reward, info: reward > 0.5, prompt="Go.", actions=("l", "r")
    )
    env = EnvMaker(task.env, success_from=task.success_from)()
    env.reset(seed=0)
    assert env.step(0)[4]["success"] is True
    unknown = EnvMaker("CartPole-v1", success_from="won")()
    unknown.reset(seed=0)
    with pytest.raises(RunFailed, match=r"states no info 'won'.*success_from=reward"):
        unknown.step(0)


def test_another_success_makes_another_panel() -> None:
    recipes = [for_agent(load_recipe(None, [*ERRAND, *more])) for more in ([], ["success_from=solved"])]
    assert len({played_game(recipe) for recipe in recipes}) == 2
