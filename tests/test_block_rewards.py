"""Episodes of agents are scored while they are played, and nothing large is kept of what was played."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shown_frames import GOLDEN, Embedded, Shown, code
from sightline.agents import rewards as rewards_module
from sightline.agents.evaluation import play_eval_seeds, summary
from sightline.agents.rewards import BlockRewards, TurnRewards
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.agents.trajectory_log import LOGGED_EPISODES
from sightline.agents.types import Trajectory
from sightline.config.agents import Replies
from sightline.envs.games.making import GameMaker
from sightline.evaluation.seeds import EvalSeeds
from sightline.images import Picture
from sightline.rewards.base import RewardModel, frame_shrinker
from sightline.rewards.ground_truth import GroundTruthReward
from sightline.rewards.progress import ProgressReward
from sightline.rewards.shaped import ShapedReward
from sightline.rewards.zero_shot import ZeroShotReward
from small_runs import Scripted
from test_roles_compose import Brightness, Change, episode, turn

MODELS: dict[str, Callable[[], RewardModel]] = {
    "of one frame": Brightness,
    "of two": Change,
    "shaped": lambda: ShapedReward(GroundTruthReward(), Brightness(), gamma=0.5, weight=2.0),
    "of eight, by features": lambda: ProgressReward("a pole", device="cpu"),
    "of a prefix": lambda: Shown(hued=False),
    "of a prefix, by features": lambda: Embedded(hued=False),
}


def some_episodes() -> list[Trajectory]:
    """Episodes of one to twelve turns; some are cut off, some forfeited in the end, and one breaks down."""
    rng = np.random.default_rng(3)
    played = []
    for number in range(9):
        turns = [turn(float(rng.normal()), brightness=int(rng.integers(256))) for _ in range(int(rng.integers(1, 13)))]
        if number % 3 == 0:
            turns.append(turn(0.0, played=None, penalty=0.25))
        played.append(episode(*turns, success=number % 2 == 0, truncated=number % 4 == 1))
        played[-1].reset_frame = np.full((4, 4, 3), number, np.uint8)
    played[-1].error = "it broke"
    return played


def played_beside_each_other(episodes: list[Trajectory], blocks: BlockRewards) -> int:
    """Play four episodes at a time, turn by turn; gives the greatest number of frames that were kept."""
    whole = [list(one.turns) for one in episodes]
    waiting, active, most = list(range(len(episodes))), list[int](), 0
    for one in episodes:
        one.turns = []
    while waiting or active:
        while waiting and len(active) < 4:
            active.append(waiting.pop(0))
        for index in list(active):
            one = episodes[index]
            one.turns.append(whole[index][len(one.turns)])
            blocks.take(index, one)
            if len(one.turns) == len(whole[index]):
                blocks.end(index, one)
                active.remove(index)
        most = max(most, sum(kept.frame is not None for one in episodes for kept in one.turns))
    blocks.score()
    return most


@pytest.mark.parametrize("per", ["turn", "episode"])
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_blocks_give_the_rewards_of_whole_episodes(
    monkeypatch: pytest.MonkeyPatch, model: str, per: Any, size: int
) -> None:
    monkeypatch.setattr(rewards_module, "BLOCK_TURNS", size)
    rewards = TurnRewards(MODELS[model](), per)
    at_once, in_blocks = some_episodes(), some_episodes()
    rewards.score(at_once)
    most = played_beside_each_other(in_blocks, BlockRewards(rewards))
    for one, other in zip(at_once, in_blocks, strict=True):
        np.testing.assert_allclose(other.rewards, one.rewards, atol=1e-5)
    assert all(kept.frame is None for one in in_blocks for kept in one.turns)
    if size == 3:
        # a block, one turn of each episode that may be its last, and what windows reach back to
        assert most <= 3 + 4 + 4 * (rewards.model.window - 1)


def test_frames_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards_module, "BLOCK_BYTES", 5 * 4 * 4 * 3)
    assert played_beside_each_other(some_episodes(), BlockRewards(TurnRewards(Brightness()))) <= 5 + 4


LARGE = GameMaker("small_envs:Large", prompt="Wait.", actions=("stay", "go"))
PANEL = EvalSeeds("panel", "clock", tuple(range(LOGGED_EPISODES + 8)))


def waits(turn: Any) -> str:
    return '{"thoughts": "", "action": "stay"}'


def test_an_evaluation_keeps_nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ZeroShotReward("a pole", device="cpu")
    shrink = frame_shrinker(model)
    taken: list[tuple[int, ...]] = []
    take = BlockRewards.take

    def watched(self: BlockRewards, index: int, played: Trajectory) -> None:
        newest = played.turns[-1]
        assert newest.frame is not None
        taken.append(newest.frame.shape)
        for picture in newest.exchange.pictures:
            assert "pixels" not in vars(picture) or not picture.pixels.size
        take(self, index, played)

    monkeypatch.setattr(BlockRewards, "take", watched)
    options: Any = {"parallel": 8, "keeps_frames": True}
    small, whole = (RolloutWorker(LARGE, Replies(), **options, shrink=how) for how in (shrink, None))
    rewards = TurnRewards(model)
    played = play_eval_seeds(small, Scripted(waits), PANEL, rewards=rewards)
    assert set(taken) == {(64, 64, 3)}
    taken.clear()
    alike = play_eval_seeds(whole, Scripted(waits), PANEL, rewards=rewards)
    assert set(taken) == {(300, 400, 3)}
    for one, other in zip(played, alike, strict=True):
        np.testing.assert_allclose(one.rewards, other.rewards, atol=1e-6)  # the batches are others
    assert summary(played, PANEL)["success_rate"] == summary(alike, PANEL)["success_rate"] == 1
    shown = [one.turns[-1].exchange.pictures[0].pixels for one in played]
    assert [pixels.shape for pixels in shown] == [(300, 400, 3)] * LOGGED_EPISODES + [(0, 0, 3)] * 8
    # the last turn but one led to the last state that was replied to: the picture shows its time
    assert [int(pixels[0, 0, 0]) for pixels in shown[:3]] == [len(one.turns) - 1 for one in played[:3]]


def test_a_reward_of_a_prefix_is_shown_the_picture_before_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (3, 1000):
        monkeypatch.setattr(rewards_module, "BLOCK_TURNS", size)
        worker = RolloutWorker(LARGE, Replies(), parallel=2, keeps_frames=True)
        played = play_eval_seeds(worker, Scripted(waits), PANEL, rewards=TurnRewards(Shown(hued=False)))
        for one in played:
            steps = range(1, len(one.turns) + 1)
            assert one.rewards.tolist() == [code(GOLDEN["prefix"][step]) for step in steps]
            assert one.reset_frame is None


def test_what_rollouts_learn_from_keeps_its_pictures() -> None:
    (played,) = RolloutWorker(LARGE, Replies(), parallel=1, window=2).play(Scripted(waits), [EpisodeTask(3)])
    shown = [one.exchange.pictures[0].pixels[0, 0, 0] for one in played.turns]
    assert shown == list(range(len(played.turns)))


def test_a_packed_picture_is_the_same() -> None:
    picture = Picture(np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8))
    packed = copy.deepcopy(picture.packed())
    assert packed.digest == picture.digest
    np.testing.assert_array_equal(packed.pixels, picture.pixels)
    assert Picture(packed.pixels).digest == picture.digest
