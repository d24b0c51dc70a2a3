"""Environments of strangers as games: success that nobody states, oracles that know little, rewards, infos, actions and
words in other forms; each is played rightly or refused in a line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import odd_games
import sightline as sl
from odd_games import Levers, NewWords, OldWords, Scores
from sightline.agents.evaluation import evaluate_policy, oracle_play, play_eval_seeds, random_play, summary
from sightline.agents.metrics import rollout_metrics
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.config.agents import Replies
from sightline.envs.games.checking import Finding, check_game, states_success
from sightline.envs.games.making import GameMaker
from sightline.errors import BadInput, RunFailed
from sightline.evaluation.episode_stats import describe
from sightline.evaluation.seeds import make_panel
from small_runs import Scripted

PANEL = make_panel("test", "coins", 6)
TASKS = [EpisodeTask(seed) for seed in range(3)]
NAMES = ("low", "high")


def coins(cls: str = "Coins", actions: Any = NAMES, **options: Any) -> GameMaker:
    ignores_reward = options.pop("ignores_reward", False)
    return GameMaker(f"odd_games:{cls}", options, "Go.", actions, ignores_reward=ignores_reward)


def worker(make: Any, **replies: Any) -> RolloutWorker:
    return RolloutWorker(make, Replies(facts=False, **replies), parallel=4)


def says(action: str) -> Scripted:
    return Scripted(lambda exchange: f'{{"thoughts": "", "action": "{action}"}}')


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


# -- success that nobody states ----------------------------------------------------------------------------------------


def test_success_that_nobody_states_is_unknown_in_every_number() -> None:
    numbers = evaluate_policy(worker(coins()), says("high"), PANEL)
    for block in (numbers, numbers["blank"], numbers["random"]):
        rates = ("success_rate", "ci_low", "ci_high", "success_any", "success_end", "clean", "kinds_mean", "score")
        assert {name: block[name] for name in rates} == dict.fromkeys(rates)
        assert (block["episodes"], block["errors"]) == (6, 0)
    assert numbers["return"] == 3.0 and numbers["oracle"] is None
    assert describe(numbers) == "return 3.00 [3.00, 3.00], reward 1.000"


def test_turns_episodes_and_updates_do_not_say_what_they_do_not_know() -> None:
    played = play_eval_seeds(worker(coins()), says("low"), PANEL)
    assert {turn.success for one in played for turn in one.turns} == {one.success for one in played} == {None}
    assert rollout_metrics(played)["rollout/success"] is None
    forfeited = play_eval_seeds(worker(coins()), says("nonsense"), PANEL)
    assert {one.success for one in forfeited} == {None}
    assert summary(forfeited, PANEL)["success_rate"] is None


@pytest.mark.parametrize("states", ["end", "won", "always"])
def test_success_that_is_stated_now_and_then_is_stated(states: str) -> None:
    make = coins(states=states)
    for action, rate in (("high", 1.0), ("low", 0.0)):
        played = play_eval_seeds(worker(make), says(action), PANEL)
        numbers = summary(played, PANEL)
        # Whoever states it of successes alone has not said anything yet.
        expected = None if (states, action) == ("won", "low") else rate
        assert numbers["success_rate"] == numbers["score"] == rollout_metrics(played)["rollout/success"] == expected
    mixed = summary([*play_eval_seeds(worker(make), says("high"), PANEL), *played], PANEL)
    assert mixed["success_rate"] == 0.5 and mixed["clean"] == 0.5


def test_a_forfeit_is_a_failure_where_success_is_stated_at_all() -> None:
    forfeited = play_eval_seeds(worker(coins(states="always")), says("nonsense"), PANEL)
    assert {one.success for one in forfeited} == {False}
    assert summary(forfeited, PANEL)["success_rate"] == 0


def test_success_in_words_is_refused_wherever_it_is_met() -> None:
    for play in (lambda make: random_play(worker(make), PANEL), lambda make: worker(make).play(says("low"), TASKS)):
        with pytest.raises(BadInput, match="'False' \\(text\\), neither true nor false"):
            play(coins(info="words"))


def test_the_check_says_that_nobody_states_success() -> None:
    found = by_name(check_game(coins(), episodes=4))
    assert all(finding.passed for finding in found.values()), found
    assert "is not stated" in found["success"].detail and "success_from=reward" in found["success"].detail
    assert found["random play"].won is None and "won" not in found["random play"].detail
    assert "mean return" in found["random play"].detail
    stated = by_name(check_game(coins(states="end"), episodes=4))
    assert stated["success"].detail == "is stated in some states, at the end of 4 of 4 episodes"
    assert stated["random play"].played == 4


def test_what_needs_success_is_refused_before_training(sightline: Any, tmp_path: Path) -> None:
    arguments = ["env=odd_games:Coins", "prompt=Go.", "actions=[low,high]", "role=agent", "steps=8"]
    for key in ("reward.kind=success", "reward.kind=sparse", "evaluation.stop_at=0.9"):
        done = sightline("train", *arguments, key, "--run-dir", tmp_path / "run")
        assert done.code == 2 and len(done.lines) == 1
        assert "does not state it" in done.lines[0] and "success_from=reward" in done.lines[0]
    assert states_success(coins(states="end")(), 0) and not states_success(coins()(), 0)


SMALL = (
    "role=agent",
    "prompt=Go.",
    "actions=[low,high]",
    "steps=12",
    "rollouts.tasks=2",
    "rollouts.parallel=2",
    "replies.thoughts=false",
    "replies.facts=false",
    "replies.max_tokens=16",
    "evaluation.episodes=2",
    "evaluation.test_episodes=2",
    "evaluation.every=6",
    "videos=false",
    "tensorboard=false",
)


def test_a_run_without_success_is_chosen_by_return_and_reported(sightline: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sightline("train", *SMALL, "env=odd_games:Coins", "--run-dir", run, "--json")
    assert done.code == 0, done.err
    assert "the checkpoint with the highest return is chosen" in done.err
    result = json.loads(done.out)
    assert result["success_rate"] is None and result["untrained"]["success_rate"] is None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["evaluation/return"] for line in lines if "evaluation/return" in line}
    best = max(scores.values())
    assert scores[result["chosen_step"]] == best
    assert not any("success" in key for line in lines for key in line)
    assert "success" not in re.sub("success_from|does not state success|in the info 'success'", "", done.err)
    report = (run / "report.html").read_text()
    assert "Success rate" not in report and "Compared with" in report
    records = json.loads((run / "trajectories" / "test-real.json").read_text())["episodes"]
    assert {record["success"] for record in records} == {None}


# -- oracles -----------------------------------------------------------------------------------------------------------


def test_an_oracle_that_knows_nothing_is_none() -> None:
    make = GameMaker("odd_games:HalfAnOracle", {"known": 0})
    assert oracle_play(worker(make), PANEL) is None
    assert "oracle" not in by_name(check_game(make, episodes=4))


def test_an_oracle_that_knows_in_part_is_shown_for_that_part() -> None:
    make = GameMaker("odd_games:HalfAnOracle", {"known": 2})
    numbers = oracle_play(worker(make), PANEL)
    assert numbers is not None and 0 < numbers["episodes"] < 6, "half of the episodes begin where it knows nothing"
    assert 0 < numbers["replaced"] < 1
    assert describe(numbers).startswith(f"random moves in place of {100 * numbers['replaced']:.0f} % of its moves")
    found = by_name(check_game(make, episodes=6))["oracle"]
    assert found.played is not None and found.played < 6
    assert "in which it knows no move" in found.detail and "of its moves are random" in found.detail
    everything = oracle_play(worker(GameMaker("odd_games:HalfAnOracle", {"known": 5})), PANEL)
    assert everything is not None and (everything["episodes"], everything["replaced"]) == (6, 0)


def test_levels_whose_best_play_is_unknown_have_no_oracle(sightline: Any) -> None:
    pytest.importorskip("minigrid")
    done = sightline("check-env", "babyai", "env_options.level=MiniGrid-DoorKey-5x5-v0", "--episodes", 2)
    assert done.code == 0, done.out
    assert "oracle" not in [line.split()[1] for line in done.out.splitlines()]


# -- rewards and infos -------------------------------------------------------------------------------------------------


def test_the_environments_own_reward_may_be_an_array_of_one() -> None:
    assert summary(play_eval_seeds(worker(coins(reward="array")), says("high"), PANEL), PANEL)["return"] == 3.0


@pytest.mark.parametrize("reward", ["none", "vector"])
def test_a_reward_that_is_no_number_is_refused_where_it_is_learned_from(reward: str) -> None:
    game = coins(reward=reward)()
    game.reset(seed=0)
    with pytest.raises(BadInput, match=r"which is no number; return one, let mo_gymnasium.wrappers.LinearReward"):
        game.step("high")
    game = coins(reward=reward, ignores_reward=True)()
    game.reset(seed=0)
    assert game.step("high")[1] == 0.0


@pytest.mark.parametrize(
    ("info", "legal"), [("mask", ("high",)), ("truths", ("low",)), ("numbers", ("high",)), ("nothing", NAMES)]
)
def test_legal_actions_in_every_common_form(info: str, legal: Any) -> None:
    assert coins(info=info)().reset(seed=0)[1]["legal_actions"] == legal


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ("long mask", "the info 'action_mask' of 'odd_games:Coins' is array([ True"),
        ("wrong number", "the info 'legal_actions' of 'odd_games:Coins' is [7]"),
        ("no list", "the info 'legal_actions' of 'odd_games:Coins' is 3"),
    ],
)
def test_legal_actions_that_fit_no_action_are_refused(info: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        coins(info=info)().reset(seed=0)
    assert expected in str(caught.value) and "it must hold" in str(caught.value) and "\n" not in str(caught.value)


def test_infos_that_cannot_be_copied_or_compared_are_no_defect() -> None:
    findings = check_game(coins(info="function"), episodes=3)
    assert [finding for finding in findings if not finding.passed] == []


def test_a_mask_is_of_the_environments_actions_though_only_some_have_names() -> None:
    game = coins("Levers", {"one": 1, "three": 3}, kind="from 1")()
    assert game.reset(seed=0)[1]["legal_actions"] == ("one",)


def test_errors_of_a_game_keep_their_class_and_place() -> None:
    played = worker(coins("Angry")).play(says("high"), TASKS)
    source = Path(str(odd_games.__file__)).read_text()
    line = [number for number, text in enumerate(source.splitlines(), 1) if "too short" in text]
    assert played[0].error == f"ZeroDivisionError: the pole is too short (odd_games.py:{line[0]})"
    found = check_game(coins("Angry"), episodes=2)
    assert any("ZeroDivisionError" in finding.detail and "odd_games.py" in finding.detail for finding in found)
    with pytest.raises(RunFailed, match=r"reset\(\) of 'odd_games:Angry' failed: KeyError: 'no map' \(odd_games.py"):
        coins("Angry", states="reset")()


# -- actions by name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("from 1", 3, 3),
        ("from 1", 2.0, 2),
        ("MultiDiscrete", [1, 2], [1, 2]),
        ("MultiBinary", [0, 1], [0, 1]),
        ("Box", 0.4, [0.4]),
        ("Box", [-0.4], [-0.4]),
        ("whole", [5, 0], [5, 0]),
        ("Dict", {"grip": 1, "move": [0.5, -1]}, {"grip": 1, "move": [0.5, -1]}),
        ("Tuple", [0, [1, 0]], (0, [1, 0])),
    ],
)
def test_values_of_actions_reach_the_environment(kind: str, value: Any, expected: Any) -> None:
    game = coins("Levers", {"a": value, "b": value}, kind=kind)()
    game.reset(seed=0)
    game.step("a")
    assert isinstance(game.unwrapped, Levers)
    taken = game.unwrapped.taken
    if isinstance(expected, dict):
        assert taken.keys() == expected.keys() and all(np.array_equal(taken[key], expected[key]) for key in taken)
    elif isinstance(expected, tuple):
        assert all(map(np.array_equal, taken, expected))
    else:
        assert np.allclose(taken, expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("from 1", 1.5),
        ("from 1", 0),
        ("from 1", True),
        ("from 1", "2"),
        ("from 1", None),
        ("from 1", [1, 2]),
        ("MultiDiscrete", [1, 2.5]),
        ("MultiDiscrete", [1, 3]),
        ("MultiBinary", [0, 2]),
        ("MultiBinary", 1),
        ("Box", 0.5),
        ("Box", [0.1, 0.1]),
        ("Box", "left"),
        ("Box", float("nan")),
        ("whole", [0.5, 1]),
        ("Dict", {"grip": 1}),
        ("Dict", 1),
        ("Tuple", [0]),
    ],
)
def test_values_that_are_no_action_are_refused_and_not_rounded(kind: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        coins("Levers", {"a": value}, kind=kind)()
    assert f"actions: 'a' is {value!r}, which is no action of" in str(caught.value)
    assert "written as in actions={left: " in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["MultiDiscrete", "MultiBinary", "Box", "whole", "Dict", "Tuple"])
def test_the_example_of_a_line_is_taken_as_it_stands(kind: str) -> None:
    from sightline.config.loading import for_agent, load_recipe

    with pytest.raises(BadInput) as caught:
        coins("Levers", (), kind=kind)()
    example = str(caught.value).partition("say what they mean: ")[2]
    recipe = for_agent(load_recipe(None, ["role=agent", "env=x", example]))
    coins("Levers", recipe.actions, kind=kind)().reset(seed=0)


def test_names_that_an_environment_has_for_its_actions_are_taken() -> None:
    make = coins("Meanings", ())
    assert make().get_wrapper_attr("action_names") == ("NOOP", "FIRE")
    assert by_name(check_game(make, episodes=2))["action names"].detail.endswith("get_action_meanings())")


def test_minigrid_by_its_own_names() -> None:
    pytest.importorskip("minigrid")
    make = GameMaker("minigrid:MiniGrid-GoToDoor-5x5-v0", prompt="{mission}: {actions}")
    game = make()
    observation, info = game.reset(seed=1)
    assert observation.text == f"{game.unwrapped.mission}: left, right, forward, pickup, drop, toggle, done"
    assert info["success"] is None and len(observation.images) == 1
    game.close()


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OldWords, NewWords, Scores])
def test_environments_of_words_need_not_be_gymnasiums(kind: Any) -> None:
    game = sl.text_game(kind, commands=["north", "south"])
    (observation, info), (again, _) = game.reset(seed=4), game.reset(seed=4)
    assert observation.text == again.text and info["success"] in (None, False)
    way = observation.text.removesuffix(".").split()[-1]
    wrong = {"north": "south", "south": "north"}[way]
    first, last = game.step(wrong), game.step(way)
    # The score so far is 1, then 3.
    assert [result[1] for result in (first, last)] == ([1.0, 2.0] if kind is Scores else [0.0, 1.0])
    assert (first[2], last[2], last[3], last[4]["success"]) == (False, True, False, True)
    game.reset(seed=4)
    results = [game.step(wrong) for _ in range(9)]
    assert results[-1][2:4] == ((True, False) if kind is Scores else (False, True)), "a time limit is no end"


def test_old_words_pass_the_checks_of_games() -> None:
    findings = check_game(GameMaker("odd_games:old_words"), episodes=6)
    assert [finding for finding in findings if not finding.passed] == []


def test_checks_send_commands_only() -> None:
    findings = check_game(GameMaker("odd_games:spoken_numbers"), episodes=4)
    assert [finding for finding in findings if not finding.passed and finding.name != "picture"] == []


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(BadInput, match="make gave a int, which has no reset"):
        sl.text_game(lambda: 3)


@pytest.mark.parametrize(("acts", "expected"), [("words", "is played in words"), ("numbers", "observes words")])
def test_words_without_text_game_are_told_of_it(acts: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        GameMaker("odd_games:Spoken", {"acts": acts}, "Go.", NAMES if acts == "numbers" else ())()
    assert expected in str(caught.value) and "sl.text_game(" in str(caught.value)
    assert os.linesep not in str(caught.value)
