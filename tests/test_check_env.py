"""The checker of games: it finds every defect that is put into a good game, and nothing in good ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conftest import our_games
from sightline.envs.games import checking
from sightline.envs.games.checking import Finding, check_game, play
from sightline.envs.games.contract import Game, Observation
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import TextActions
from sightline.errors import BadInput
from sightline_tasks.drawing import Canvas

GAMES = our_games()
HERE = __name__


class Sides(Game):
    """Three rounds of pointing to the side on which a square is; it also lies high or low, which does not matter."""

    action_names: tuple[str, ...] = ("left", "right")
    asked: tuple[str, ...] = ("side", "height")

    def __init__(self, **options: Any) -> None:
        super().__init__((32, 32), **options)
        self.side, self.height, self.round, self.hits = "left", "high", 1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.round, self.hits = 1, 0
        self.deal()
        return self._observation(), self._info(False)

    def deal(self) -> None:
        across, down = self.np_random.integers(0, 2, 2)
        self.side, self.height = ("left", "right")[across], ("high", "low")[down]

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        hit = self.action_names[action] == self.side
        self.hits += hit
        self.round += 1
        self.deal()
        return self._observation(), float(hit), self.round > 3, False, self._info(self.hits == 3)

    def text(self) -> str:
        return f"Point left or right, to where the square is: high or low does not matter. Round {self.round} of 3."

    def draw(self) -> np.ndarray:
        canvas = Canvas(self.render_size, (0, 0, 0))
        x, y = 0.5 * (self.side == "right"), 0.5 * (self.height == "low")
        canvas.rectangle(x + 0.1, y + 0.1, x + 0.4, y + 0.4, (255, 255, 255))
        return canvas.pixels()

    def facts(self) -> dict[str, str]:
        return {"side": self.side, "height": self.height}

    def legal_actions(self) -> tuple[str, ...]:
        return self.action_names

    def oracle(self) -> str | None:
        return self.side

    def caption(self) -> str:
        return f"The square is {self.height} on the {self.side}."


class Unseeded(Sides):
    def deal(self) -> None:
        super().deal()
        self.light = np.random.random()

    def draw(self) -> np.ndarray:
        return np.maximum(super().draw(), np.uint8(200 * self.light))


class SeedOfTheProcess(Sides):
    """Every copy is sure of itself, but another one deals differently."""

    copies = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        SeedOfTheProcess.copies += 1
        self.number = SeedOfTheProcess.copies

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"deal": self.number}


class AlwaysTheSame(Sides):
    def deal(self) -> None:
        self.side, self.height = ("left", "right")[self.round % 2], ("high", "low")[self.round // 2 % 2]


class StaleText(Sides):
    """The reference's defect: the words of the last episode stand in the first prompt of the next."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said = ""

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.said += " " + self.action_names[action]
        return super().step(action)

    def text(self) -> str:
        return super().text() + f" You said:{self.said}."

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        shown = super().reset(seed=seed)
        self.said = ""
        return shown


class StaleInfo(Sides):
    """Only whoever plays an episode to its end leaves a trace, and only in the info."""

    ended = 0

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.ended += self.round == 3
        return super().step(action)

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"ended": self.ended}


class StaleWhenLeft(Sides):
    """Only an episode that was left before its end leaves a trace."""

    left = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self.left = 1 < self.round <= 3
        return super().reset(seed=seed)

    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"left": self.left}


class DeadPicture(Sides):
    def draw(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)


class HalfAPicture(Sides):
    """Shows the height, but nothing of the side."""

    def draw(self) -> np.ndarray:
        return np.full((32, 32, 3), 200 * (self.height == "low"), np.uint8)


class TellsTheAnswer(Sides):
    def text(self) -> str:
        return super().text() + f" Hint: action number {self.action_names.index(self.side)}."


class TellsTheAnswerAmongOtherThings(Sides):
    """No two prompts are equal, and yet all of them give the answer away."""

    def text(self) -> str:
        return f"Draw no. {self.np_random.bit_generator.state['state']['state']}: the {self.side}."


class ManyWords(Sides):
    """No two prompts are equal, but all of them name both sides: no defect."""

    def text(self) -> str:
        return f"Draw no. {self.np_random.bit_generator.state['state']['state']}: left or right, high or low?"


class TellsAFact(Sides):
    def text(self) -> str:
        return f"The square is {self.height}; on which side? Round {self.round} of 3."


class TellsAFactLater(Sides):
    def text(self) -> str:
        return super().text() if self.round == 1 else f"It is {self.height} now. Round {self.round}."


class UnknownLegalAction(Sides):
    def legal_actions(self) -> tuple[str, ...]:
        return (*self.action_names, "up")


class NothingLegal(Sides):
    def legal_actions(self) -> tuple[str, ...]:
        return () if self.round == 2 else self.action_names


class OracleBreaksTheRules(Sides):
    def legal_actions(self) -> tuple[str, ...]:
        return ("left",)


class PoorOracle(Sides):
    def oracle(self) -> str | None:
        return "left" if self.side == "right" else "right"


class SameNames(Sides):
    action_names = ("left", "Left ")


class LacksAFact(Sides):
    def facts(self) -> dict[str, str]:
        return {"side": self.side}


class SuccessInWords(Sides):
    def _info(self, success: bool) -> dict[str, Any]:
        return super()._info(success) | {"success": str(success)}


class Endless(Sides):
    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class Explodes(Sides):
    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.round == 3:
            raise ValueError("the simulator\nexploded")
        return super().step(action)


class PaysNothing(Sides):
    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float("nan"), terminated, truncated, info


class WrongPictureSize(Sides):
    def draw(self) -> np.ndarray:
        return super().draw().repeat(2, axis=0)


DEFECTS: dict[type[Sides], tuple[str, str]] = {
    Unseeded: ("equal seeds", "the picture differs"),
    SeedOfTheProcess: ("equal seeds", "the info differs"),
    AlwaysTheSame: ("other seeds", "the same episode"),
    StaleText: ("last episode", "the text differs from that of a fresh copy"),
    StaleInfo: ("last episode", "the info differs from that of a fresh copy"),
    StaleWhenLeft: ("last episode", "after half an episode"),
    DeadPicture: ("picture", "looks the same for two states"),
    HalfAPicture: ("picture", "side is"),
    TellsTheAnswer: ("answer in words", "the text alone says what to do"),
    TellsTheAnswerAmongOtherThings: ("answer in words", "which actions the text mentions"),
    TellsAFact: ("facts in words", "the text says height at the start"),
    TellsAFactLater: ("facts in words", "the text says height later"),
    UnknownLegalAction: ("legal actions", "'up'"),
    NothingLegal: ("legal actions", "nothing is legal"),
    OracleBreaksTheRules: ("legal actions", "the oracle says 'right'"),
    PoorOracle: ("oracle", "won 0 of 12"),
    SameNames: ("action names", "read the same"),
    LacksAFact: ("infos", "'height'"),
    SuccessInWords: ("infos", "is 'False' (text), neither true nor false"),
    Endless: ("ends", "24 of 24 episodes had not ended"),
    Explodes: ("no exception", "ValueError: the simulator exploded"),
    PaysNothing: ("no exception", "the reward of step 1 is nan"),
    WrongPictureSize: ("gymnasium", "observation"),
}
ALSO_FAIL = {
    Unseeded: {"gymnasium"},
    PaysNothing: {"gymnasium"},  # which takes it for a reward that is another one each time
    StaleText: {"gymnasium"},
    StaleWhenLeft: {"gymnasium"},
    AlwaysTheSame: {"answer in words"},  # the round, which is told, says what comes
    TellsTheAnswerAmongOtherThings: {"facts in words"},  # the answer is a fact here
    Endless: {"oracle"},
}
"""What else must then be wrong as well."""


def game(kind: type[Game]) -> Callable[[], Any]:
    return lambda: TextActions(kind())


def failed(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.detail for finding in findings if not finding.passed}


@pytest.mark.parametrize("kind", DEFECTS, ids=lambda kind: kind.__name__)
def test_every_defect_is_found_by_its_own_check(kind: type[Sides], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MAX_STEPS", 50)
    name, detail = DEFECTS[kind]
    found = failed(check_game(game(kind), episodes=12))
    assert detail in found[name]
    assert set(found) - ALSO_FAIL.get(kind, set()) == {name}


@pytest.mark.parametrize("kind", [Sides, ManyWords])
def test_a_good_game_has_no_defect(kind: type[Sides]) -> None:
    findings = check_game(game(kind), episodes=12, round_trip=lambda name, names: name)
    assert not failed(findings)
    assert len({finding.name for finding in findings}) == len(findings) == 16
    by_name = {finding.name: finding for finding in findings}
    assert (by_name["oracle"].won, by_name["oracle"].played) == (12, 12)
    assert by_name["random play"].played == 12 and 0 <= by_name["random play"].won <= 6  # type: ignore[operator]


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("words", [False, True])
def test_our_games_have_no_defect(name: str, words: bool) -> None:
    findings = check_game(GameMaker(name, text_only=words), episodes=8)
    assert not failed(findings)
    assert findings[-1].name == "oracle" and findings[-1].won


@pytest.mark.parametrize(
    ("maker", "checks"),
    [
        (GameMaker("CartPole-v1", prompt="Balance.", actions=("push left", "push right")), 14),
        (GameMaker("FrozenLake-v1", prompt="Walk.", actions=("left", "down", "right", "up")), 14),
        (GameMaker("blackjack", prompt="{text} Please."), 15),
    ],
)
def test_other_environments_can_be_checked(maker: GameMaker, checks: int) -> None:
    findings = check_game(maker, episodes=4)
    assert not failed(findings)
    assert len(findings) == checks


def test_the_same_map_every_time_is_no_game_to_learn_from() -> None:
    maker = GameMaker("FrozenLake-v1", {"is_slippery": False}, "Walk.", ("left", "down", "right", "up"))
    assert set(failed(check_game(maker, episodes=4))) == {"other seeds"}


def test_replies_that_are_not_read_as_written_are_found() -> None:
    def first_match(name: str, names: tuple[str, ...]) -> str | None:
        return next((known for known in names if known in name), None)

    class Numbers(Sides):
        action_names = ("1", "10")

        def oracle(self) -> str | None:
            return "1" if self.side == "left" else "10"

        def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
            hit = (action == 0) == (self.side == "left")
            observation, _, terminated, truncated, _ = super().step(action)
            self.hits += hit
            return observation, float(hit), terminated, truncated, self._info(self.hits == 3)

    found = failed(check_game(game(Numbers), episodes=12, round_trip=first_match))
    assert found == {"replies": "from a reply with the action '10', '1' is read"}
    assert "nothing is read" in failed(check_game(game(Numbers), 12, round_trip=lambda *_: None))["replies"]
    assert not failed(check_game(game(Numbers), 12, round_trip=lambda name, names: name))


def untimed(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.name != "time"]


def test_findings_do_not_depend_on_chance() -> None:
    first, second, other = (untimed(check_game(game(Sides), 12, seed)) for seed in (0, 0, 40))
    assert first == second != other


def test_infos_are_kept_as_they_were_when_they_were_shown() -> None:
    class Live(Sides):
        """Its infos all hold one and the same list."""

        said: list[int] = []

        def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
            self.said.append(int(action))
            return super().step(action)

        def _info(self, success: bool) -> dict[str, Any]:
            return super()._info(success) | {"said": self.said}

    episode = play(game(Live)(), 0, lambda moment: "right")
    assert [moment.info["said"] for moment in episode] == [[], [1], [1, 1], [1, 1, 1]]
    assert [moment.over for moment in episode] == [False, False, False, True]
    assert episode[-1].best is None and None not in [moment.best for moment in episode[:-1]]


def test_too_few_episodes_are_refused() -> None:
    with pytest.raises(BadInput, match="episodes=1"):
        check_game(game(Sides), episodes=1)


def test_the_command_prints_a_line_for_each_check(sightline: Any) -> None:
    done = sightline("check-env", "frozenlake", "env_options.size=3", "--episodes", 4)
    lines = done.out.splitlines()
    assert done.code == 0 and not done.err
    assert all(line.startswith("ok  ") for line in lines)
    assert lines[-1].endswith("sightline train role=agent env=frozenlake env_options.size=3")
    assert lines[-2].split()[1] == "replies"
    assert lines[-3].endswith("won 4 of 4, mean return 1.00 (100 %, 95 % interval 51 to 100 %)")


def test_the_command_fails_with_what_fails(sightline: Any) -> None:
    done = sightline("check-env", f"{HERE}:DeadPicture", "--episodes", 4)
    assert done.code == 1 and not done.err
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("-- ")] == ["picture"]
    assert "looks the same for two states" in done.out


def test_the_command_gives_json(sightline: Any) -> None:
    done = sightline("check-env", "numberline", "text_only=true", "prompt={text} Go: now!", "--episodes", 3, "--json")
    found = json.loads(done.out)
    assert (found["env"], found["passed"]) == ("numberline", True)
    oracle, replies, command = found["findings"][-3:]
    assert command["detail"] == ("sightline train role=agent env=numberline text_only=true 'prompt={text} Go: now!'")
    assert (replies["name"], replies["passed"]) == ("replies", True)
    assert (oracle["name"], oracle["won"], oracle["played"]) == ("oracle", 3, 3)
    assert oracle["interval"] == pytest.approx([0.4385, 1.0], abs=1e-4)
    assert found["findings"][0]["interval"] is None


@pytest.mark.parametrize("format", ["json", "tags"])
def test_the_command_reads_every_action_from_a_reply(sightline: Any, format: str) -> None:
    names = 'actions=["10", "1"]'
    done = sightline("check-env", "CartPole-v1", "prompt=Go", names, f"replies.format={format}", "--episodes", 2)
    assert done.code == 0 and done.out.splitlines()[-2].split()[:2] == ["ok", "replies"]


def test_the_seed_is_the_recipes_unless_said_otherwise(sightline: Any) -> None:
    plain, by_key, by_option = (
        [
            line
            for line in sightline("check-env", "numberline", "--episodes", 3, *more).out.splitlines()
            if "ms" not in line
        ]
        for more in ([], ["seed=5"], ["--seed", 5])
    )
    assert plain != by_key == by_option


def test_the_command_takes_lists_and_limits(sightline: Any) -> None:
    arguments = ("prompt=Go", 'actions=["1", "10"]', "episode_steps=5", "env_options={sutton_barto_reward: true}")
    done = sightline("check-env", "CartPole-v1", *arguments, "--episodes", 2)
    assert done.code == 0, done.out
    assert "2: 1, 10" in done.out and "after 5 steps at the latest" in done.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sokobn"], "'sokoban'"),
        (["sokoban", "size=8"], "unknown key 'size'"),
        (["sokoban", "promt=x"], "'prompt'"),
        (["sokoban", "big"], "key=value"),
        (["sokoban", "actions=left"], "actions: "),
        (["sokoban", "env_options=3"], "env_options: "),
        (["sokoban", "text_only=perhaps"], "text_only: "),
        (["sokoban", "episode_steps=0"], "episode_steps: "),
        (["sokoban", "--episodes", "1"], "episodes"),
        (["CartPole-v1", "prompt=x"], "2 actions"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(sightline: Any, arguments: list[str], expected: str) -> None:
    done = sightline("check-env", *arguments)
    assert done.code == 2 and not done.out
    assert len(done.lines) == 1 and expected in done.lines[0]
