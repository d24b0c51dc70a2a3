"""Panels played by scripted agents: what is measured, and that blind ones are found out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sightline.agents.evaluation import (
    PICTURE_CONDITIONS,
    BlankTexts,
    ShuffledPictures,
    ShuffledTexts,
    blank_picture,
    collect_pictures,
    collect_texts,
    evaluate_policy,
    oracle_play,
    play_eval_seeds,
    progress_lines,
    random_play,
    summary,
)
from sightline.agents.rollouts import EpisodeTask, RolloutWorker, StateWords
from sightline.agents.trajectory_log import LOGGED_EPISODES, tokens_of, trajectory_log, write_trajectory_log
from sightline.agents.types import Advantages, Failure, Trajectory
from sightline.config.agents import Replies
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import TextActions
from sightline.evaluation.episode_stats import describe, describe_kind
from sightline.evaluation.seeds import EvalSeeds, make_panel
from sightline.images import Picture
from sightline.models.vlm.types import ChatTurn
from sightline.reports.agent_block import comparison_rows
from sightline.reports.verdicts import looking_verdict, next_steps
from sightline.runs.folder import RunFolder
from sightline_tasks.games.number_line import NumberLine
from small_runs import Scripted, looks, seen
from small_trajectories import episode, turn

NUMBERLINE = GameMaker("numberline")
PANEL = make_panel("test", "numberline", 60)
OTHER_PLAYS = ("blank", "shuffled", "random", "oracle", "control")


def worker(parallel: int = 16, make: Callable[[], Any] = NUMBERLINE, **replies: Any) -> RolloutWorker:
    return RolloutWorker(make, Replies(**replies), parallel=parallel)


def plain(trajectories: Sequence[Trajectory]) -> str:
    return json.dumps(trajectory_log(trajectories)[0])


def test_one_that_looks_is_perfect_and_blind_at_chance() -> None:
    numbers = evaluate_policy(worker(), Scripted(looks), PANEL)
    assert (numbers["success_rate"], numbers["truthful"], numbers["truthful_replies"]) == (1, 1, 1)
    assert (numbers["clean"], numbers["kinds_mean"], numbers["score"]) == (1, 1, 1)
    assert (numbers["illegal"], numbers["unparsable"], numbers["errors"], numbers["episodes"]) == (0, 0, 0, 60)
    assert numbers["panel"] == str(PANEL)
    for look in ("blank", "shuffled"):
        blind = numbers[look]
        assert blind["ci_high"] < numbers["ci_low"]
        assert blind["truthful_replies"] < 0.2
        assert blind["panel"] == numbers["panel"]
    assert numbers["oracle"]["success_rate"] == 1
    assert numbers["oracle"]["return"] == numbers["return"]  # no step leads away
    assert numbers["random"]["ci_high"] < 1
    assert numbers["random"]["truthful"] is None and numbers["random"]["unparsable"] is None


def test_an_evaluation_says_what_it_plays_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 29.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr("sightline.agents.evaluation.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    lines: list[str] = []
    after_turns = progress_lines(lines.append, 8)("blank words")
    for _ in range(3):
        after_turns(600)
    assert lines == ["blank words: 8 episodes are played", "blank words: 1,200 turns so far, 31 s"]


def test_pictures_are_kept_of_the_episodes_that_are_logged() -> None:
    played = play_eval_seeds(worker(parallel=64), Scripted(looks), PANEL)
    kept = [all(picture.pixels.size for turn in one.turns for picture in turn.exchange.pictures) for one in played]
    assert kept == [index < LOGGED_EPISODES for index in range(60)]
    assert all(turn.state for one in played for turn in one.turns)


def reads(exchange: ChatTurn) -> str:
    """Plays what the words say; "+" where they say nothing."""
    told = re.search(r"target number is (\d) and the current number is (\d)", exchange.text)
    action = "-" if told and told[1] < told[2] else "+"
    return json.dumps({"thoughts": "", "action": action})


IN_WORDS = GameMaker("numberline", text_only=True)


def test_one_that_reads_is_perfect_and_no_better_than_a_rule_with_other_words_or_none() -> None:
    numbers = evaluate_policy(worker(make=IN_WORDS, facts=False), Scripted(reads), PANEL)
    assert numbers["control"] == "words" and numbers["success_rate"] == 1
    plus = evaluate_policy(worker(make=IN_WORDS, facts=False), Scripted(lambda exchange: '{"action": "+"}'), PANEL)
    assert numbers["blank"]["success_rate"] == plus["success_rate"] < 0.8  # it reads nothing, so it plays "+"
    assert numbers["shuffled"]["ci_high"] < numbers["ci_low"]
    verdict = looking_verdict(numbers, text_only=True)
    assert verdict is not None and (verdict.question, verdict.answer) == ("Does it read?", "Yes")
    assert "with words of other states" in verdict.because and "picture" not in verdict.because
    assert [row.name for row in comparison_rows(numbers)][:3] == [
        *("Real words", "No words of the state", "Words of other states")
    ]


def test_one_that_does_not_read_is_told_so() -> None:
    """Every condition is played: each turn of the control is one more question."""
    asked = list[ChatTurn]()

    def plus(exchange: ChatTurn) -> str:
        asked.append(exchange)
        return '{"thoughts": "", "action": "+"}'

    numbers = evaluate_policy(worker(make=IN_WORDS, facts=False), Scripted(plus), PANEL)
    assert numbers["blank"]["success_rate"] == numbers["shuffled"]["success_rate"] == numbers["success_rate"]
    assert len(asked) == 3 * round(numbers["length"] * 60)
    verdict = looking_verdict(numbers, text_only=True)
    assert verdict is not None and (verdict.question, verdict.answer, verdict.good) == ("Does it read?", "No", False)
    advice = next_steps({"text_only": True}, numbers, [])
    assert any("no rule without reading" in line for line in advice) and not any("eyes" in line for line in advice)


def test_words_of_the_control_are_the_rules_alone_or_those_of_another_state() -> None:
    game = worker(make=IN_WORDS)
    pool = collect_texts(game, PANEL)
    assert len(pool) == 36  # six positions of two numbers; a game that is over shows them, too
    task = EpisodeTask(3)
    rules = BlankTexts(pool)(pool[0], task, 0)
    assert "Bring the current number" in rules.text and not re.search(r"target number is \d", rules.text)
    others = {ShuffledTexts(pool)(pool[0], task, turn) for turn in range(400)}
    assert others <= set(pool) - {pool[0]} and len(others) > 20
    assert ShuffledTexts(pool[:1])(pool[0], task, 0) == BlankTexts(pool[:1])(pool[0], task, 0) == StateWords("")
    assert {words.actions for words in pool} == {()}  # those of the game are the same in every state


def test_names_of_actions_tell_of_the_state_too() -> None:
    first = StateWords("Rules. You are in the kitchen.", ("look", "open the fridge"))
    second = StateWords("Rules. You are in the hall.", ("look", "go to the kitchen"))
    over = StateWords("Rules. You have won.")
    task = EpisodeTask(3)
    blank = BlankTexts((first, second, over))
    assert blank(first, task, 0) == StateWords("Rules. You ", ("look",)) and blank(over, task, 0).actions == ()
    assert {ShuffledTexts((first, second))(first, task, turn) for turn in range(9)} == {second}


def test_controls_of_a_game_in_words_show_no_action_of_the_state() -> None:
    """A household lists what can be done in each state, which tells where one is and what one holds."""
    asked = list[str]()

    def silent(exchange: ChatTurn) -> str:
        asked.append(exchange.text)
        return '{"thoughts": "", "action": "look"}'

    game = worker(make=GameMaker("household", text_only=True), facts=False)
    panel = make_panel("words", "household", 3)
    play_eval_seeds(game, Scripted(silent), panel, medium="words")
    assert any(re.search(r"The action is one of .*go to", text) for text in asked)
    asked.clear()
    play_eval_seeds(game, Scripted(silent), panel, "blank", medium="words")
    assert asked and not any("go to" in text.partition("The action is one of")[2] for text in asked)


def test_the_words_of_controls_do_not_depend_on_what_is_played_at_once_or_before() -> None:
    panel = make_panel("order", "numberline", 12)
    backwards = EvalSeeds(panel.name, panel.env, panel.seeds[::-1])
    once = play_eval_seeds(worker(1, IN_WORDS), Scripted(reads), panel, "shuffled", medium="words")
    back = play_eval_seeds(worker(64, IN_WORDS), Scripted(reads), backwards, "shuffled", medium="words")
    assert plain(once) == plain(back[::-1])


def test_kinds_of_tasks_are_lines_of_their_own() -> None:
    assert describe_kind({"episodes": 12, "success_rate": 0.5, "clean": 0.25}) == (
        "success 50 % of 12 episodes, 25 % without a mistake"
    )
    assert describe_kind({"episodes": 2, "success_rate": None, "clean": None}) == "2 episodes, success not stated"


def test_one_that_does_not_look_is_the_same_whatever_is_shown() -> None:
    say = '{"current": "0", "target": "5", "action": "+"}'
    numbers = evaluate_policy(worker(), Scripted(lambda exchange: say), PANEL)
    real = {key: value for key, value in numbers.items() if key not in OTHER_PLAYS}
    assert real == numbers["blank"] == numbers["shuffled"]
    assert 0.2 < real["success_rate"] < 0.8


@pytest.mark.parametrize("look", PICTURE_CONDITIONS)
def test_how_many_are_played_at_once_changes_nothing(look: Any) -> None:
    panel = make_panel("order", "numberline", 20)
    alone = plain(play_eval_seeds(worker(1), Scripted(looks), panel, look))
    for parallel in (8, 64):
        assert plain(play_eval_seeds(worker(parallel), Scripted(looks), panel, look)) == alone


@pytest.mark.parametrize("look", PICTURE_CONDITIONS)
def test_the_order_of_seeds_changes_nothing(look: Any) -> None:
    panel = make_panel("order", "numberline", 12)
    backwards = EvalSeeds(panel.name, panel.env, panel.seeds[::-1])
    forth, back = (play_eval_seeds(worker(), Scripted(looks), one, look) for one in (panel, backwards))
    assert plain(forth) == plain(back[::-1])


def test_a_table_is_used_again_without_a_trace() -> None:
    panel, one = make_panel("again", "blackjack", 10), worker(make=GameMaker("blackjack"))
    stand = Scripted(lambda exchange: '{"action": "stand"}')
    first = plain(play_eval_seeds(one, stand, panel))
    evaluate_policy(one, stand, panel)
    assert plain(play_eval_seeds(one, stand, panel)) == first


def test_panels_stay_what_they_are() -> None:
    """A changed panel makes earlier results incomparable."""
    assert str(make_panel("test", "numberline", 200)) == "test-200-d6b47162f0bb"
    assert make_panel("test", "numberline", 2).seeds != make_panel("validation", "numberline", 2).seeds
    assert make_panel("test", "numberline", 200).seeds[:60] == PANEL.seeds


def test_intervals_by_independent_arithmetic() -> None:
    won = [episode([1.0], success=number < 7) for number in range(10)]
    numbers = summary(won, PANEL)
    # Wilson's interval holds the rates p whose distance from 0.7 is 1.96 standard errors at p.
    for bound in (numbers["ci_low"], numbers["ci_high"]):
        assert abs(0.7 - bound) / math.sqrt(bound * (1 - bound) / 10) == pytest.approx(1.959964, abs=1e-5)
    assert numbers["return"] == numbers["return_ci_low"] == numbers["return_ci_high"] == 1


def test_every_number_of_a_summary() -> None:
    facts = {"current": "1", "target": "2"}
    true, half = {"current": " 1 ", "target": "2"}, {"current": "1", "target": "5"}
    won = Trajectory(1, 0, [turn(1.0, stated=true, facts=facts), turn(0.5, stated=half, facts=facts)], True, kind="a")
    illegal = Trajectory(2, 0, [turn(-1.0, legal=False, stated=true, facts=facts)], True, kind="a")
    counted = Trajectory(3, 0, [turn(facts=facts, stated=true)], True, kind="b", mistakes=1)
    silent = Trajectory(4, 0, [turn(action=None, failure=Failure.EMPTY, facts=facts)], False, kind="b")
    broken = Trajectory(5, 0, [turn(9.0)], True, kind="c", error="OSError: gone")
    numbers = summary([won, illegal, counted, silent, broken], PANEL)
    assert (numbers["episodes"], numbers["errors"]) == (4, 1)
    assert numbers["success_rate"] == 3 / 4
    assert numbers["clean"] == 1 / 4
    assert numbers["return"] == (1.5 - 1 + 0 + 0) / 4
    assert numbers["length"] == 5 / 4
    assert numbers["truthful"] == 7 / 10
    assert numbers["truthful_replies"] == 3 / 5
    assert (numbers["illegal"], numbers["unparsable"]) == (1 / 5, 1 / 5)
    assert numbers["kinds"] == {
        "a": {"episodes": 2, "success_rate": 1.0, "clean": 0.5},
        "b": {"episodes": 2, "success_rate": 0.5, "clean": 0.0},
    }
    assert numbers["kinds_mean"] == 1 / 4
    assert numbers["score"] == pytest.approx(1 / 4 * 3 / 5)
    line = describe(numbers)
    assert (
        "success 75 %" in line
        and "without mistakes 25 %" in line
        and "1 episodes broke (the first: OSError: gone)" in line
    )
    json.dumps(numbers, allow_nan=False)


def test_without_kinds_or_facts_the_score_is_what_was_won_without_mistakes() -> None:
    numbers = summary([episode([0.0], success=True), episode([0.0])], PANEL)
    assert (numbers["kinds"], numbers["kinds_mean"], numbers["truthful_replies"]) == (None, None, None)
    assert numbers["score"] == numbers["clean"] == 0.5
    assert "true replies" not in describe(numbers)


def test_nothing_is_measured_of_episodes_that_all_broke() -> None:
    numbers = summary([Trajectory(1, 0, error="OSError: gone")] * 2, PANEL)
    assert numbers["errors"] == 2 and numbers["score"] == 0
    assert all(numbers[name] is None for name in ("success_rate", "ci_low", "return", "clean", "illegal", "length"))
    assert describe(numbers) == "all 2 episodes broke: OSError: gone"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("xyz"), st.booleans()), min_size=1, max_size=12))
def test_summaries_keep_their_bounds(drawn: list[tuple[bool, str, bool]]) -> None:
    played = [episode([1.0, 0.0], success=won, kind=kind, error="no" if broke else None) for won, kind, broke in drawn]
    numbers = summary(played, PANEL)
    assert numbers["episodes"] + numbers["errors"] == len(drawn)
    assert 0 <= numbers["score"] <= 1
    if numbers["episodes"]:
        assert numbers["ci_low"] <= numbers["success_rate"] <= numbers["ci_high"]
        assert numbers["clean"] <= numbers["success_rate"]
        assert sum(kind["episodes"] for kind in numbers["kinds"].values()) == numbers["episodes"]


# -- looks -------------------------------------------------------------------------------------------------------------


def test_a_blank_picture_keeps_its_size() -> None:
    shown = blank_picture(Picture(np.zeros((40, 60, 3), np.uint8)), EpisodeTask(1), 0).pixels
    assert shown.shape == (40, 60, 3) and shown.dtype == np.uint8 and (shown == 128).all()


def test_shuffled_pictures_are_of_other_states_and_even() -> None:
    pool = collect_pictures(worker(), PANEL)
    assert {picture.digest for picture in pool} <= set(seen())
    look, real = ShuffledPictures(pool), pool[3]
    shown = [look(real, EpisodeTask(seed), turn_number).digest for seed in range(300) for turn_number in range(10)]
    assert real.digest not in shown
    counts = np.unique(shown, return_counts=True)[1]
    expected = 3000 / (len(pool) - 1)
    assert len(counts) == len(pool) - 1
    assert ((counts - expected) ** 2 / expected).sum() < 2 * len(pool)  # chi squared, with much room


def test_without_another_picture_of_its_size_a_grey_one_is_shown() -> None:
    small, large = (Picture(np.zeros((side, side, 3), np.uint8)) for side in (32, 40))
    for pool in ((), (small,), (small, large)):
        assert (ShuffledPictures(pool)(small, EpisodeTask(0), 0).pixels == 128).all()


def test_the_pool_is_bounded() -> None:
    panel = make_panel("pool", "blackjack", 400)
    pool = collect_pictures(worker(make=GameMaker("blackjack")), panel)
    assert 500 <= len(pool) <= 520
    assert len({picture.digest for picture in pool}) == len(pool)


# -- what is compared with ---------------------------------------------------------------------------------------------


def test_play_at_random_by_independent_arithmetic() -> None:
    """On a line of 0 and 1 there is one pair, one legal step, and it leads there."""
    one_step = GameMaker("numberline", {"max_position": 1})
    numbers = random_play(worker(make=one_step), make_panel("test", "numberline", 5))
    assert (numbers["success_rate"], numbers["return"], numbers["length"], numbers["illegal"]) == (1, 1, 1, 0)
    assert set(numbers) == set(summary([], PANEL))


def test_play_at_random_is_the_same_again_and_no_legal_action_is_left_out() -> None:
    one = worker()
    assert random_play(one, PANEL) == random_play(one, PANEL) == random_play(worker(1), PANEL)
    assert random_play(one, PANEL)["return"] < oracle_play(one, PANEL)["return"]  # type: ignore[index]


def test_the_oracle_plays_every_kind() -> None:
    numbers = oracle_play(worker(make=GameMaker("ezpoints")), make_panel("test", "ezpoints", 30))
    assert numbers is not None
    assert numbers["success_rate"] == numbers["clean"] == numbers["score"] == 1
    assert len(numbers["kinds"]) > 3 and numbers["return"] == 10


class Breaking(NumberLine):
    """Breaks whenever an episode leads through one."""

    def step(self, action: np.int64) -> Any:
        if self._steps and self.current == 1:
            raise OSError("gone")
        return super().step(action)


def test_games_that_break_are_counted() -> None:
    numbers = evaluate_policy(worker(make=lambda: TextActions(Breaking())), Scripted(looks), PANEL)
    for found in (numbers, numbers["blank"], numbers["random"], numbers["oracle"]):
        assert found["errors"] > 0 and found["errors"] + found["episodes"] == 60
    assert numbers["success_rate"] == 1


def test_a_game_without_best_play_has_no_oracle() -> None:
    make = GameMaker("CartPole-v1", prompt="balance", actions=("left", "right"), episode_steps=3)
    numbers = evaluate_policy(
        worker(make=make), Scripted(lambda e: '{"action": "left"}'), make_panel("t", "CartPole-v1", 2)
    )
    assert numbers["oracle"] is None and numbers["random"]["episodes"] == 2


# -- records -----------------------------------------------------------------------------------------------------------


class Letters:
    """A vocabulary of letters, as far as recording needs a model."""

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        return [(number, number + 1) if letter else (number, number) for number, letter in enumerate(ids)]


def test_records_are_plain_and_whole(tmp_path: Path) -> None:
    panel = make_panel("records", "numberline", 4)
    played = play_eval_seeds(worker(), Scripted(looks), panel, "shuffled")
    advantages = [Advantages(np.full(len(one.turns), 0.5)) for one in played]
    records, pictures = trajectory_log(played, advantages)
    for name in ("update-0004", "update-0008"):
        write_trajectory_log(RunFolder(tmp_path), name, records, pictures)
    read = json.loads((tmp_path / "trajectories" / "update-0004.json").read_text())["episodes"]
    assert [one["seed"] for one in read] == list(panel.seeds)
    first, said = read[0]["turns"][0], played[0].turns[0]
    assert first["prompt"] == said.exchange.text and first["reply"] == said.sample.text
    assert first["action"] == said.reply.action and first["facts"] == said.facts
    assert first["true"] == {name: said.reply.stated[name] == fact for name, fact in said.facts.items()}
    named = {digest for one in read for t in one["turns"] for digest in t["pictures"]}
    kept = {file.stem: file for file in (tmp_path / "trajectories" / "pictures").iterdir()}
    assert set(kept) == named == set(pictures)
    for digest, file in kept.items():
        assert Picture(np.array(Image.open(file))).digest == digest
    assert not list(tmp_path.rglob("*.writing"))


def test_tokens_make_up_the_reply_whatever_there_is_of_them() -> None:
    said = play_eval_seeds(worker(), Scripted(looks), make_panel("tokens", "numberline", 1))[0].turns[0]
    tokens = tokens_of(said, 0.25, None)
    assert "".join(text for text, *_ in tokens) == said.sample.text
    assert [(text, kind) for text, _, _, kind in tokens if kind == "action"] == [(said.reply.action, "action")]
    assert all(logprob is None and advantage == 0.25 for _, logprob, advantage, _ in tokens)
    spelled = turn(ids=[1, 1, 1, 1, 0])  # "text", and what ends it
    spelled.action_tokens[:] = [False, False, True, True, False]
    letters: Any = Letters()
    assert tokens_of(spelled, None, letters) == [
        *(("t", -0.5, None, "thought"), ("e", -0.5, None, "thought"), ("x", -0.5, None, "action")),
        *(("t", -0.5, None, "action"), ("", -0.5, None, "thought")),
    ]
    spelled.sample.ids[:] = [0, 0, 1, 1, 0]  # two tokens for one letter
    assert "".join(text for text, *_ in tokens_of(spelled, None, letters)) == "text"


def test_advantages_and_values_are_told_where_there_are_any() -> None:
    policy = partial(turn, prompt=object())
    one = Trajectory(1, 0, [policy(value=2.0), policy(on_policy=False), turn(value=3.0)], True)
    with_values = Advantages(np.array([1.0, -1.0, math.inf]), np.zeros(3))
    turns = trajectory_log([one], [with_values])[0][0]["turns"]
    assert [t["advantage"] for t in turns] == [1.0, -1.0, None]
    assert [t["tokens"][0][2] for t in turns] == [1.0, None, None]  # nothing is learned where another decided
    assert [t["value"] for t in turns] == [2.0, 0.0, 3.0]
    for advantages in ([Advantages(np.ones(3))], [None], None):
        assert {t["value"] for t in trajectory_log([one], advantages)[0][0]["turns"]} == {None}
    assert trajectory_log([one])[0][0]["turns"][0]["advantage"] is None


def test_what_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    odd = episode([math.inf], seed=7)
    odd.turns[0].reply.stated["\ud800"] = "half of a pair"
    records, pictures = trajectory_log([odd, Trajectory(8, 0, error="OSError: </script>")])
    write_trajectory_log(RunFolder(tmp_path), "update-0001", records, pictures)
    read = json.loads((tmp_path / "trajectories" / "update-0001.json").read_text())["episodes"]
    assert read[0]["return"] is None and read[1]["error"] == "OSError: </script>" and read[1]["turns"] == []
    with pytest.raises(ValueError, match="cannot name a file"):
        write_trajectory_log(RunFolder(tmp_path), "../up", records, pictures)
