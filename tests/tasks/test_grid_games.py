"""Sokoban and FrozenLake: rules, levels and oracles against searches and sums written here anew."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import BadInput
from sightline_tasks.games.frozen_lake import FrozenLake
from sightline_tasks.games.sokoban import Sokoban

SHIFTS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Place = tuple[int, int]


def spoken(text: str) -> list[Place]:
    """`row 2, column 3; …` read back."""
    return [(int(p.split()[1].rstrip(",")), int(p.split()[3])) for p in text.split("; ")]


def do(env: Any, action: str) -> tuple[float, bool, dict[str, Any]]:
    _, reward, terminated, _, info = env.step(np.int64(env.action_names.index(action)))
    return reward, terminated, info


def sokoban(drawing: str, **options: Any) -> Sokoban:
    """A level as it is usually written: # wall, @ player, $ box, . target, * box on target, + player on target."""
    rows = drawing.split()
    env = Sokoban(size=len(rows), **options)
    cells = "".join(rows)
    env._walls = frozenset(i for i, c in enumerate(cells) if c == "#")
    env._targets = frozenset(i for i, c in enumerate(cells) if c in ".*+")
    env._state = (
        cells.translate(str.maketrans("+", "@")).index("@"),
        frozenset(i for i, c in enumerate(cells) if c in "$*"),
    )
    env._distances, env._search_complete = env._play_backwards([i for i, c in enumerate(cells) if c != "#"])
    return env


def fewest_moves(env: Sokoban) -> int | None:
    """Breadth-first search over the present level, from what the game says of itself in words."""
    walls = {divmod(cell, env.size) for cell in env._walls}
    facts = env.facts()
    (player,), boxes, targets = ([(r - 1, c - 1) for r, c in spoken(facts[f])] for f in ("player", "boxes", "targets"))
    start = (player, frozenset(boxes))
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        (at, lying), moves = queue.popleft()
        if lying == frozenset(targets):
            return moves
        for down, right in SHIFTS.values():
            to, behind = (at[0] + down, at[1] + right), (at[0] + 2 * down, at[1] + 2 * right)
            if to in walls or (to in lying and (behind in walls or behind in lying)):
                continue
            reached = (to, lying - {to} | {behind} if to in lying else lying)
            if reached not in seen:
                seen.add(reached)
                queue.append((reached, moves + 1))
    return None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(5, 1), (6, 1), (6, 2), (7, 1)]))
def test_sokobans_levels_can_be_solved_and_the_oracle_takes_the_shortest_way(seed: int, level: tuple[int, int]) -> None:
    env = Sokoban(*level)
    _, info = env.reset(seed=seed)
    facts = info["facts"]
    assert not info["success"]
    assert not set(spoken(facts["boxes"])) & set(spoken(facts["targets"]))
    assert len(spoken(facts["boxes"])) == len(spoken(facts["targets"])) == level[1]
    moves = fewest_moves(env)
    assert moves is not None and 1 <= moves <= 30
    taken, solved = 0, False
    while not solved:
        _, solved, info = do(env, str(env.oracle()))
        taken += 1
    assert taken == moves
    assert info["success"] and env.oracle() is None and info["legal_actions"] == ()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.sampled_from(sorted(SHIFTS)), max_size=25))
def test_the_oracle_knows_wherever_play_has_led(seed: int, actions: list[str]) -> None:
    env = Sokoban(size=6, boxes=2)
    env.reset(seed=seed)
    for action in actions:
        do(env, action)
        moves = fewest_moves(env)
        advice = env.oracle()
        assert (advice is None) == (not moves), "no advice where the level is dead or solved, else some"
        if not moves:
            return


@pytest.mark.parametrize("limit", [1, 30, 200])
def test_a_short_search_still_leads_home(limit: int) -> None:
    env = Sokoban(size=7, boxes=2, search_limit=max(limit, 200))
    env.reset(seed=4)
    env._distances, env.search_limit = {s: d for s, d in env._distances.items() if d <= limit}, 5000
    env._search_complete = False
    for action in ("up", "down", "left", "right"):
        do(env, action)
    solved = False
    for _ in range(200):
        advice = env.oracle()
        assert advice is not None
        _, solved, _ = do(env, advice)
        if solved:
            break
    assert solved


def test_a_box_is_pushed_and_never_pulled() -> None:
    env = sokoban("####### #.____# #_@$__# #_____# #_____# #_____# #######")
    assert spoken(env.facts()["boxes"]) == [(3, 4)]
    assert do(env, "right")[0] == pytest.approx(-0.1)
    assert env.facts()["player"] == "row 3, column 4" and env.facts()["boxes"] == "row 3, column 5"
    do(env, "left")
    assert env.facts()["player"] == "row 3, column 3" and env.facts()["boxes"] == "row 3, column 5"


@pytest.mark.parametrize("level", ["##### #___# #_@$# #.__# #####", "###### #____# #@$$_# #..__# #____# ######"])
def test_what_does_not_give_way_changes_nothing_but_costs(level: str) -> None:
    env = sokoban(level)
    before, picture = env.facts(), env.draw()
    reward, over, info = do(env, "right")
    assert (reward, over, info["success"]) == (pytest.approx(-0.1), False, False)
    assert env.facts() == before and (env.draw() == picture).all()


def test_sokobans_rewards_by_hand() -> None:
    env = sokoban("###### #____# #@$._# #_$__# #_.__# ######")
    assert do(env, "right")[0] == pytest.approx(-0.1 + 1)  # onto the first target
    assert do(env, "right")[0] == pytest.approx(-0.1 - 1)  # and over it
    env = sokoban("###### #____# #@*__# #____# #____# ######")
    assert do(env, "right")[0] == pytest.approx(-0.1 - 1)
    env = sokoban("###### #@___# #_$__# #_.__# #____# ######")
    assert do(env, "right")[:2] == (pytest.approx(-0.1), False)
    assert do(env, "down")[:2] == (pytest.approx(-0.1 + 1 + 10), True)


def test_a_dead_level_has_no_advice() -> None:
    env = sokoban("###### #_$@_# #____# #__.## #____# ######")
    do(env, "left")  # pushes the box into the corner
    assert env.facts()["boxes"] == "row 2, column 2"
    assert env.oracle() is None and fewest_moves(env) is None
    assert env.legal_actions() == env.action_names


@pytest.mark.parametrize("pixels", [96, 300, 150])
def test_everything_is_drawn_where_the_facts_say(pixels: int) -> None:
    from sightline_tasks.games import frozen_lake, sokoban

    def colour(picture: np.ndarray, at: Place, size: int, x: float = 0.5, y: float = 0.5) -> list[int]:
        return list(picture[int((at[0] - 1 + y) * pixels / size), int((at[1] - 1 + x) * pixels / size)])

    for seed in range(10):
        env: Any = Sokoban(size=6, boxes=2, render_size=(pixels, pixels))
        env.reset(seed=seed)
        facts, picture = env.facts(), env.draw()
        (player,) = spoken(facts["player"])
        assert colour(picture, player, 6) == list(sokoban.PLAYER)
        assert all(colour(picture, box, 6) == list(sokoban.BOX) for box in spoken(facts["boxes"]))
        assert all(colour(picture, cell, 6, 0.5, 0.14) == list(sokoban.TARGET) for cell in spoken(facts["targets"]))
        assert colour(picture, (1, 1), 6) == list(sokoban.WALL)
        env = FrozenLake(render_size=(pixels, pixels))
        env.reset(seed=seed)
        (player,), (goal,) = (spoken(env.facts()[fact]) for fact in ("player", "goal"))
        picture = env.draw()
        assert colour(picture, player, 4, 0.5, 0.84) == list(frozen_lake.PLAYER)
        assert colour(picture, goal, 4, 0.5, 0.27) == list(frozen_lake.FLAG)
        holes = spoken(env.caption().rpartition("Holes: ")[2].rstrip("."))
        assert len(holes) == 4
        assert all(colour(picture, hole, 4) == list(frozen_lake.WATER) for hole in holes)


def steps_over_ice(env: FrozenLake) -> int | None:
    """Breadth-first search from what the game says in words."""
    (player,), (goal,) = (spoken(env.facts()[fact]) for fact in ("player", "goal"))
    holes = set() if env._hole_count == 0 else set(spoken(env.caption().rpartition("Holes: ")[2].rstrip(".")))
    seen, queue = {player}, deque([(player, 0)])
    while queue:
        at, steps = queue.popleft()
        if at == goal:
            return steps
        for down, right in SHIFTS.values():
            to = (at[0] + down, at[1] + right)
            if min(to) >= 1 and max(to) <= env.size and to not in holes | seen:
                seen.add(to)
                queue.append((to, steps + 1))
    return None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(4, None), (2, 0), (3, 4), (8, 20), (5, 0)]))
def test_every_lake_can_be_crossed_by_the_shortest_way(seed: int, lake: tuple[int, int | None]) -> None:
    env = FrozenLake(*lake)
    env.reset(seed=seed)
    steps = steps_over_ice(env)
    assert steps is not None and steps >= 2
    rewards, over = [], False
    while not over:
        reward, over, info = do(env, str(env.oracle()))
        rewards.append(reward)
    assert rewards == [0.0] * (steps - 1) + [1.0]
    assert info["success"] and info["legal_actions"] == () and env.oracle() is None


def test_a_hole_ends_the_episode_without_reward_and_an_edge_does_nothing() -> None:
    with pytest.raises(BadInput, match="use 0 to 1"):
        FrozenLake(size=2, holes=2)  # no path goes around a corner
    assert FrozenLake(size=2, holes=1).reset(seed=0)
    env = FrozenLake(size=3, holes=1)
    env.reset(seed=0)
    env._player, env._goal, env._holes = 0, 8, frozenset([1])
    assert do(env, "up") == (0.0, False, {"success": False, "legal_actions": env.action_names, "facts": env.facts()})
    assert env.facts()["player"] == "row 1, column 1"
    reward, over, info = do(env, "right")
    assert (reward, over, info["success"], info["legal_actions"]) == (0.0, True, False, ())
    assert env.oracle() is None


def test_slippery_ice_goes_astray_as_often_as_it_should() -> None:
    env = FrozenLake(size=3, holes=0, slippery=True)
    env.reset(seed=0)
    ends = dict.fromkeys(SHIFTS, 0)
    for _ in range(3000):
        env._player, env._goal = 4, 0
        do(env, "left")
        ends[{1: "up", 3: "left", 5: "right", 7: "down"}[env._player]] += 1
    assert ends["right"] == 0
    assert all(900 < ends[way] < 1100 for way in ("up", "left", "down"))  # 1000 +- 4 standard deviations


def test_on_slippery_ice_no_other_first_step_is_better_than_the_oracles() -> None:
    """Howard's criterion (1960): a policy is optimal if no single deviation from it gains anything."""
    env = FrozenLake(size=4, slippery=True)
    env.reset(seed=3)
    goal, holes, cells = env._goal, env._holes, range(16)

    def outcomes(cell: int, action: str) -> list[int]:
        row, column = divmod(cell, 4)
        across = [s for n, s in SHIFTS.items() if (n in ("up", "down")) != (action in ("up", "down"))]
        moved = [(row + down, column + right) for down, right in [SHIFTS[action], *across]]
        return [min(max(r, 0), 3) * 4 + min(max(c, 0), 3) for r, c in moved]

    policy = {}
    for cell in cells:
        env._player = cell
        policy[cell] = env.oracle()
    equations, arrived = np.eye(16), np.zeros(16)
    arrived[goal] = 1
    for cell in cells:
        if policy[cell] is not None:
            for to in outcomes(cell, str(policy[cell])):
                equations[cell, to] -= 0.999 / 3
    chance = np.linalg.solve(equations, arrived)
    open_cells = [cell for cell in cells if cell != goal and cell not in holes]
    assert chance[open_cells].max() > 0.2
    for cell in open_cells:
        best = max(0.999 * np.mean([chance[to] for to in outcomes(cell, action)]) for action in SHIFTS)
        assert chance[cell] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_what_is_said_in_words_tells_states_apart_as_the_picture_does(kind: Any) -> None:
    env = kind()
    words: dict[bytes, str] = {}
    for seed in range(30):
        env.reset(seed=seed)
        words[env.draw().tobytes()] = env.caption()
        for action in ("up", "left", "down", "right"):
            if env.legal_actions():
                do(env, action)
                words.setdefault(env.draw().tobytes(), env.caption())
    assert len(set(words.values())) == len(words) > 30


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_levels_of_one_generator_are_new_each_time(kind: Any) -> None:
    env = kind()
    env.reset(seed=0)
    pictures = [env.reset()[0].images[0] for _ in range(5)]
    assert all((a != b).any() for a, b in pairwise(pictures))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (Sokoban, {"size": 4}, "5 to 12"),
        (Sokoban, {"size": 6, "boxes": 9}, "1 to 3"),
        (Sokoban, {"boxes": 0}, "boxes=0"),
        (Sokoban, {"search_limit": 0}, "search_limit"),
        (Sokoban, {"size": 12, "render_size": (59, 96)}, "60 pixels"),
        (FrozenLake, {"size": 1}, "2 to 16"),
        (FrozenLake, {"holes": 9}, "0 to 8"),
        (FrozenLake, {"size": 16, "render_size": (64, 64)}, "80 pixels"),
    ],
)
def test_levels_that_cannot_be_are_refused_in_one_line(kind: Any, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        kind(**options)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_search_that_is_too_short_for_any_level_says_so() -> None:
    with pytest.raises(BadInput, match="search_limit=1 is too low"):
        Sokoban(search_limit=1).reset(seed=0)
