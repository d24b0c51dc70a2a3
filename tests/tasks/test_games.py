"""NumberLine, EZPoints and Points24, and what every game of cards and numbers promises."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sightline.envs.games.contract import Game
from sightline.errors import BadInput
from sightline.evaluation.statistics import wilson
from sightline_tasks.games.blackjack import Blackjack
from sightline_tasks.games.cards import PALE, RANKS, TABLE, Card
from sightline_tasks.games.ez_points import EZPoints
from sightline_tasks.games.formulas import value
from sightline_tasks.games.number_line import NumberLine
from sightline_tasks.games.points24 import Points24

GAMES: dict[str, Callable[..., Game]] = {
    "NumberLine": NumberLine,
    "EZPoints": EZPoints,
    "Points24": Points24,
    "Blackjack": Blackjack,
}
SMALL = (32, 32)
each_game = pytest.mark.parametrize("make", GAMES.values(), ids=GAMES)


def act(game: Game, name: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    return game.step(np.int64(game.action_names.index(name)))


def play(game: Game, policy: Callable[[Game], str], seed: int) -> tuple[float, int, dict[str, Any]]:
    """Return, steps and last info of an episode."""
    game.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, info = act(game, policy(game))
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return total, steps, info


def as_the_oracle(game: Game) -> str:
    name = game.oracle()
    assert name is not None and name in game.legal_actions()
    return name


def at_random(rng: np.random.Generator) -> Callable[[Game], str]:
    return lambda game: game.action_names[int(rng.integers(len(game.action_names)))]


def legally_at_random(rng: np.random.Generator) -> Callable[[Game], str]:
    return lambda game: game.legal_actions()[int(rng.integers(len(game.legal_actions())))]


def deal(game: EZPoints | Points24, ranks: str) -> None:
    """Begin an episode with these cards."""
    game.reset(seed=0)
    game.cards = [Card(rank, "♠") for rank in ranks.split()]


# --- every game


@each_game
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_accepts_them(make: Callable[..., Game], legacy: bool) -> None:
    check_env(make(legacy=legacy, render_size=(40, 56)))


@each_game
def test_equal_seeds_and_actions_give_equal_episodes(make: Callable[..., Game]) -> None:
    def episode(seed: int) -> list[Any]:
        game, rng = make(), np.random.default_rng(seed)
        (text, (picture,)), info = game.reset(seed=seed)
        seen: list[Any] = [(text, picture.tobytes(), info)]
        over = False
        while not over:
            (text, (picture,)), reward, terminated, truncated, info = act(game, at_random(rng)(game))
            seen.append((text, picture.tobytes(), reward, terminated, truncated, info))
            over = terminated or truncated
        return seen

    assert episode(3) == episode(3)
    assert len({episode(seed)[0][1] for seed in range(12)}) > 6


@each_game
def test_a_copy_goes_on_alike_and_on_its_own(make: Callable[..., Game]) -> None:
    game = make()
    game.reset(seed=5)
    act(game, game.action_names[-2])
    twin, before = copy.deepcopy(game), game.draw()
    (_, (picture,)), *outcome = act(twin, twin.action_names[-1])
    assert np.array_equal(game.draw(), before)
    (_, (again,)), *same = act(game, game.action_names[-1])
    assert outcome == same and np.array_equal(picture, again)
    assert game.reset()[0][0] == twin.reset()[0][0] and game.facts() == twin.facts()


@each_game
def test_what_is_to_be_seen_is_not_told(make: Callable[..., Game]) -> None:
    """All deals have the same words, and neither facts nor the next action are among them."""
    game = make()
    assert len({game.reset(seed=seed)[0].text for seed in range(20)}) == 1
    assert set(game.facts()) == set(game.asked) and game.asked


@each_game
def test_facts_change_exactly_with_the_picture(make: Callable[..., Game]) -> None:
    game, facts_of = make(), {}
    for seed in range(40):
        game.reset(seed=seed)
        facts_of.setdefault(game.draw().tobytes(), set()).add(tuple(game.facts().items()))
    assert len(facts_of) > 10 and all(len(facts) == 1 for facts in facts_of.values())


@each_game
def test_infos_hold_the_state_of_their_picture(make: Callable[..., Game]) -> None:
    game = make()
    _, info = game.reset(seed=1)
    assert {"success", "legal_actions", "facts", "kind"} <= set(info) and info["success"] is False
    assert set(info["legal_actions"]) <= set(game.action_names) and info["legal_actions"] == game.legal_actions()
    assert info["facts"] == game.facts()
    assert all(fact in game.caption() for fact in ", ".join(info["facts"].values()).split(", "))
    assert make(legacy=True).legal_actions() == game.action_names


@each_game
def test_every_rank_and_number_looks_different_in_small_pictures(make: Callable[..., Game]) -> None:
    """Also on a grid of 12 by 12 means, as a small model would see it."""
    game, seen = make(), {}
    for seed in range(60):
        game.reset(seed=seed)
        coarse = game.draw().reshape(12, 8, 12, 8, 3).mean(axis=(1, 3))
        seen[tuple(game.facts().items())] = coarse
    pictures = np.stack(list(seen.values()))
    apart = np.abs(pictures[:, None] - pictures[None]).max(axis=(2, 3, 4)) + 1000 * np.eye(len(pictures))
    assert apart.min() > 10


# --- NumberLine


def test_number_line_is_won_by_its_oracle_without_a_wrong_step() -> None:
    game = NumberLine()
    for seed in range(100):
        game.reset(seed=seed)
        distance = abs(game.current - game.target)
        total, steps, info = play(game, as_the_oracle, seed)
        assert (total, steps, info["success"], info["kind"]) == (1.0, distance, True, str(distance))


def test_number_line_rewards_and_its_own_time_limit() -> None:
    game = NumberLine()
    game.reset(seed=0)
    game.current, game.target = 1, 3
    steps = [act(game, name)[1:4] for name in ("-", "-", "+", "-", "+", "+")]
    assert [reward for reward, _, _ in steps] == [-1, -1, 0, -1, 0, 0]
    assert game.current == 2 and not any(over for _, *overs in steps for over in overs)
    assert [act(game, name)[1:4] for name in "--+"] == [(-1, False, False), (-1, False, False), (0, False, False)]
    assert act(game, "-")[1:4] == (-1, False, True)

    game.reset(seed=0)
    game.current, game.target, game._steps = 1, 2, 9
    *_, reward, terminated, truncated, info = act(game, "+")
    assert (reward, terminated, truncated, info["success"]) == (1, True, False, True)


def test_number_line_legal_moves_stay_on_the_line() -> None:
    game = NumberLine(max_position=3)
    game.target = 1
    for game.current, legal in ((0, ("+",)), (2, ("-", "+")), (3, ("-",)), (1, ())):
        assert game.legal_actions() == legal


def starts(game: NumberLine, count: int = 3600) -> Counter[tuple[int, int]]:
    rng = np.random.default_rng(0)
    game._np_random = rng
    return Counter(game._unequal_numbers() for _ in range(count))


def test_number_line_starts() -> None:
    even = starts(NumberLine())
    assert len(even) == 30 and max(even.values()) < 1.4 * 120 and min(even.values()) > 0.6 * 120
    legacy = starts(NumberLine(legacy=True))
    distances = Counter[int]()
    for (target, current), count in legacy.items():
        distances[abs(target - current)] += count
    for distance, of_36 in {1: 14, 2: 8, 3: 6, 4: 6, 5: 2}.items():
        assert distances[distance] == pytest.approx(100 * of_36, abs=4 * np.sqrt(100 * of_36))
    assert legacy[1, 5] > 1.5 * legacy[0, 5] and legacy[5, 5] == 0  # an equal 5 becomes 1, never 5


def test_number_line_at_random_scores_as_the_reference() -> None:
    game, rng = NumberLine(legacy=True, render_size=SMALL), np.random.default_rng(0)
    played = [play(game, at_random(rng), seed) for seed in range(1500)]
    low, high = wilson(sum(total > 0 for total, _, _ in played), len(played))
    assert low <= 0.281 <= high
    low, high = wilson(sum(info["success"] for _, _, info in played), len(played))
    assert low <= 0.61 <= high
    assert np.mean([total for total, _, _ in played]) == pytest.approx(-2.45, abs=0.3)
    assert np.mean([steps for _, steps, _ in played]) == pytest.approx(6.2, abs=0.3)


def test_a_long_number_line_stays_inside_its_picture() -> None:
    game = NumberLine(max_position=100_000)
    game.current = game.target = 100_000
    picture = game.draw()
    assert (picture[:, -1] == 255).all() and (picture[0] == 255).all() and (picture[-1] == 255).all()
    with pytest.raises(BadInput, match="max_position=0"):
        NumberLine(max_position=0)


# --- EZPoints and Points24


@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize(
    "make", [EZPoints, lambda: EZPoints(deals="pairs"), lambda: EZPoints(target=20, deals="pairs"), Points24]
)
def test_points_are_won_by_their_oracles(make: Callable[[], EZPoints | Points24]) -> None:
    game = make()
    for seed in range(60):
        total, steps, info = play(game, as_the_oracle, seed)
        assert (total, info["success"], info["mistakes"]) == (10.0, True, 0)
        assert steps == 4 if isinstance(game, EZPoints) else steps >= 8


def test_points24_with_faces_of_their_own() -> None:
    game = Points24(faces_as_10=False, render_size=SMALL)
    assert len(game.action_names) == 20 and len(Points24.action_names) == 17
    deal(game, "K J 2 A")
    assert game.numbers == [13, 11, 2, 1] and "K as 13" in game.text()
    assert all(play(game, as_the_oracle, seed)[2]["success"] for seed in range(20))


def test_a_formula_step_by_step() -> None:
    game = EZPoints()
    deal(game, "K 2")
    for name, reward, formula in (
        ("10", 0, "10"),
        ("10", -1, "10_"),
        ("3", -1, "10__"),
        ("+", 0, "10__+"),
        ("2", 0, "10__+2"),
    ):
        observation, got, terminated, truncated, info = act(game, name)
        assert (got, terminated, truncated, info["success"]) == (reward, False, False, False)
        assert observation.text.endswith(f"Formula so far: {formula}")
        assert info["facts"] == {"cards": "K, 2"} and info["kind"] == "2+10"
    assert info["mistakes"] == 2 and game.legal_actions() == ("=",)
    *_, reward, terminated, truncated, info = act(game, "=")
    assert (reward, terminated, truncated, info["success"], info["legal_actions"]) == (10, True, False, True, ())
    assert game.reset(seed=1)[1]["mistakes"] == 0


@pytest.mark.parametrize("names", ["=", "2 =", "2 + =", "10 * 2 =", "+ 2 10 =", "2 10 =", "2 + 10 + =", "2 - 10 ="])
def test_wrong_formulas_end_the_game(names: str) -> None:
    game = Points24(target=12) if "-" in names else EZPoints()
    deal(game, "2 Q")
    *_, (_, reward, terminated, truncated, info) = [act(game, name) for name in names.split()]
    assert (reward, terminated, truncated, info["success"]) == (-1, True, False, False)


def test_a_right_value_of_too_few_numbers_is_wrong() -> None:
    game = Points24()
    deal(game, "3 8 A A")
    for name in ("3", "*", "8", "*"):
        act(game, name)
    twin = copy.deepcopy(game)
    game.formula.pop()
    assert act(game, "=")[1] == -1 and value(game.formula) == 24
    assert [act(twin, name)[1] for name in ("1", "/", "1", "=")] == [0, 0, 0, 10]


@pytest.mark.parametrize(("make", "longest"), [(EZPoints, 5), (Points24, 20)])
def test_a_formula_that_is_too_long_truncates(make: Callable[[], EZPoints | Points24], longest: int) -> None:
    game = make()
    game.reset(seed=0)
    for _ in range(longest + 1):
        assert act(game, "+")[1:4] == (0, False, False)
    assert game.oracle() is None and game.legal_actions() == ("=",)
    assert act(game, "=")[1:4] == (-1, False, True)


def test_no_room_is_left_by_too_many_mistakes() -> None:
    game = EZPoints()
    deal(game, "2 Q")
    for _ in range(2):
        act(game, "9")
    assert game.oracle() == "2" and game.legal_actions() == ("2", "10")
    act(game, "9")
    assert game.oracle() is None and game.legal_actions() == ("=",)


def test_legal_actions_follow_the_syntax() -> None:
    game = Points24()
    deal(game, "A 2 3 3")
    expected = {
        "": "1 2 3 (",
        "(": "1 2 3 (",
        "( 1": "+ - * / )",
        "( 1 )": "+ - * /",
        "( 1 + 3": "+ - * / )",
        "( 1 + 3 ) * 2": "+ - * /",
        "( 1 + 3 ) * ( 2 * 3": ")",
        "( 1 + 3 ) * ( 2 * 3 )": "=",
        "1 - 3 * 3 *": "2 (",
        "1 2": "=",
        "1 / ( 3 - 3": "+ - * /",
    }
    for formula, legal in expected.items():
        game.formula = formula.split()
        assert game.legal_actions() == tuple(name for name in game.action_names if name in legal.split())
    ez = EZPoints()
    deal(ez, "2 Q")
    for formula, legal in {"": "2 10", "2": "+ *", "2 *": "10", "2 * 10": "=", "+": "=", "2 10": "="}.items():
        ez.formula = formula.split()
        assert ez.legal_actions() == tuple(name for name in ez.action_names if name in legal.split())


@pytest.mark.when_changed("tasks")
@pytest.mark.parametrize("make", [EZPoints, Points24])
def test_who_acts_legally_closes_a_whole_formula(make: Callable[..., EZPoints | Points24]) -> None:
    game, rng = make(render_size=SMALL), np.random.default_rng(0)
    for seed in range(100):
        _, _, info = play(game, legally_at_random(rng), seed)
        assert info["mistakes"] == 0 and game._closed
        assert len(game.formula) <= game.max_tokens
        if value(game.formula) is None:  # only a division by zero is left to go wrong
            assert "/" in game.formula
        else:
            assert not game.free_numbers


def test_the_oracle_completes_what_was_written() -> None:
    game = Points24()
    deal(game, "3 3 8 8")
    for formula, following in (
        ("", "8"),
        ("8 / ( 3 -", "8"),
        ("8 / ( 3 - 8 / 3 )", "="),
        ("8 / ( 3 +", None),
        ("3 3", None),
    ):
        game.formula = formula.split()
        assert game.oracle() == following


def kinds(game: EZPoints, count: int) -> Counter[str]:
    seen = Counter[str]()
    game.reset(seed=0)
    for _ in range(count):
        game.cards = game.deal()
        assert set(game.kind()) & set("+*") and value(game.kind()) == 12
        seen[game.kind()] += 1
    return seen


def test_deals_of_ez_points() -> None:
    reference = kinds(EZPoints(), 4800)
    # of 48 deals, by the first rank: 2 to 9 and four tens; 2, 3, 4 and 6 have two partners
    expected = {"2+10": 2 + 16, "3+9": 2 + 4, "4+8": 2 + 4, "5+7": 8, "6+6": 2, "2*6": 4, "3*4": 4}
    assert set(reference) == set(expected)
    for kind, of_48 in expected.items():
        assert reference[kind] == pytest.approx(100 * of_48, abs=4 * np.sqrt(100 * of_48))
    pairs = kinds(EZPoints(deals="pairs"), 2000)
    for kind in expected:
        of_20 = 5 if "*" in kind else 2
        assert pairs[kind] == pytest.approx(100 * of_20, abs=4 * np.sqrt(100 * of_20))


def test_a_ten_of_ez_points_has_every_rank() -> None:
    game = EZPoints(deals="pairs")
    game.reset(seed=0)
    assert {card.rank for _ in range(500) for card in game.deal()} == set(RANKS) - {"A"}


@pytest.mark.when_changed("tasks")
def test_bad_arguments_are_refused() -> None:
    with pytest.raises(BadInput, match="deals='all'"):
        EZPoints(deals="all")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="target=101"):
        EZPoints(target=101)
    with pytest.raises(BadInput, match="target=100000"):
        Points24(target=100_000).reset(seed=0)


@pytest.mark.when_changed("tasks")
def test_deals_of_points24() -> None:
    legacy, solvable = Points24(legacy=True, render_size=SMALL), Points24(render_size=SMALL)
    won = 0
    for seed in range(300):
        legacy.reset(seed=seed)
        won += legacy.oracle() is not None
        solvable.reset(seed=seed)
        assert solvable.oracle() is not None
    low, high = wilson(won, 300)
    assert low <= 0.731 <= high


@pytest.mark.when_changed("tasks")
def test_points_at_random_score_as_the_reference() -> None:
    for game, rate, episodes in (
        (EZPoints(legacy=True, render_size=SMALL), 0.0006, 2000),
        (Points24(legacy=True, render_size=SMALL), 0.0, 200),
    ):
        rng = np.random.default_rng(0)
        wins = sum(play(game, at_random(rng), seed)[2]["success"] for seed in range(episodes))
        low, high = wilson(wins, episodes)
        assert low <= rate <= high and high < 0.02


@pytest.mark.parametrize("make", [EZPoints, Points24])
def test_the_prompt_is_that_of_the_picture(make: Callable[[], EZPoints | Points24]) -> None:
    """One who believes the formula in the words, over many episodes without a seed, wins every one."""
    game = make()
    observation, info = game.reset(seed=0)
    won = []
    while len(won) < 25:
        told = re.search(r"Formula so far: (\S+)$", observation.text)
        assert told is not None
        believer = make()
        believer.reset(seed=0)
        believer.cards = [Card(rank, "♠") for rank in info["facts"]["cards"].split(", ")]
        believer.formula = [] if told[1] == "empty" else re.findall(r"\d+|\D", told[1])
        observation, _, terminated, _, info = act(game, as_the_oracle(believer))
        assert np.array_equal(observation.images[0], game.draw()) and observation.text == game.text()
        if terminated:
            won.append(info["success"])
            observation, info = game.reset()
            assert observation.text.endswith("Formula so far: empty")
    assert all(won)


@pytest.mark.parametrize("make", [EZPoints, Points24])
@pytest.mark.parametrize("size", [(96, 96), (300, 300), (64, 160), (160, 64)])
def test_long_formulas_stay_inside(make: Callable[..., EZPoints | Points24], size: tuple[int, int]) -> None:
    game = make(render_size=size)
    game.reset(seed=0)
    pictures = set()
    for length in range(game.max_tokens + 2):
        game.formula = ["10" if place % 2 == 0 else "*" for place in range(length)]
        picture = game.draw()
        pictures.add(picture.tobytes())
        border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
        assert (border == TABLE).all()
        if length:
            assert (np.abs(picture[picture.shape[0] // 2 :].astype(int) - PALE).sum(axis=-1) < 150).any()
    assert len(pictures) == game.max_tokens + 2
