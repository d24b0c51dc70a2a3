"""The reward lab: what is compared, where episodes come from, what is scored, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from conftest import Finished
from sightline.cli.lab import _text
from sightline.datasets.episode import Episode
from sightline.datasets.pictures import PictureWriter
from sightline.datasets.stored import StoredEpisode
from sightline.envs.making import EnvMaker
from sightline.errors import BadInput, RunFailed
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Question, RecordedTeacher, Segment, preference
from sightline.models.encoders import load_encoder, shared_encoders
from sightline.reward_lab import instructions
from sightline.reward_lab.changes import halved_and_back, through_jpeg
from sightline.reward_lab.contenders import Contender, contenders, load_task, parse_reward, parse_rewards
from sightline.reward_lab.features import FeatureStore
from sightline.reward_lab.frame_file import FrameFile
from sightline.reward_lab.instructions import Instructions
from sightline.reward_lab.measures.fooling import fooling
from sightline.reward_lab.measures.ranking import kendall_tau
from sightline.reward_lab.measures.success_detection import auroc
from sightline.reward_lab.measures.table import FAILED, HALF_DONE, SUCCESSFUL, UNJUDGED
from sightline.reward_lab.pictures import labelled_pictures, sorted_pictures, video
from sightline.reward_lab.running import PLAY, LabData, play_sources, ranking, read_sentences
from sightline.reward_lab.scoring import ReadyReward, build_rewards, score
from sightline.reward_lab.sources import Source, beside_the_goal
from sightline.reward_lab.stored_pairs import preference_accuracy, read_pairs
from sightline.rewards.base import Clip, RewardModel, windows
from sightline.rewards.config import RewardSetup
from small_datasets import small_episode

# -- what is compared --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("own", ("own", [])),
        ("red=goal=a red car", ("red", ["goal=a red car"])),
        ("x=goal=a pole, upright,reward.alpha=0,0.5", ("x", ["goal=a pole, upright", "reward.alpha=0,0.5"])),
        ("x=goal='a pole, goal=up',baseline=a cart", ("x", ["goal='a pole, goal=up'", "baseline=a cart"])),
        ("x=env_options={camera: side, look=plain: 1}", ("x", ["env_options={camera: side, look=plain: 1}"])),
    ],
)
def test_rewards_are_read(text: str, expected: tuple[str, list[str]]) -> None:
    assert parse_reward(text) == expected


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (["goal=a red car"], "say NAME=key=value"),
        (["=goal=a red car"], "say NAME=key=value"),
        (["x=learner.gamma=0.9"], "learner.gamma is no key of a reward"),
        (["x=reward.alfa=0.9"], "reward 'x'.*alfa"),
        (["x=reward.alpha=2"], "reward 'x'.*alpha"),
        (["x", "x=goal=a red car"], "two rewards are called 'x'"),
        (["x=reward.kind=learned"], "learned in a run"),
    ],
)
def test_rewards_that_are_refused(rewards: list[str], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        contenders("cartpole", [], parse_rewards(rewards))


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(BadInput, match="no environment 'nothing'"):
        contenders("nothing", [], {})
    with pytest.raises(BadInput, match="for an agent"):
        contenders("numberline", [], {})
    with pytest.raises(BadInput, match=r"gamma.* is no key of a reward"):
        contenders("cartpole", ["learner.gamma=0.9,0.99"], {})


def test_lists_make_several_rewards() -> None:
    rewards = parse_rewards(["own", "red=goal=a red car,reward.alpha=0.5"])
    found = contenders("cartpole", ["reward.alpha=0,1"], rewards)
    assert [contender.name for contender in found] == ["own alpha=0", "own alpha=1", "red"]
    alphas = [contender.recipe.reward.words_alpha for contender in found]
    assert alphas == [0, 1, 0.5]
    assert found[2].recipe.goal == ("a red car",) and found[0].recipe.baseline == ("pole and cart",)


def test_sentences_are_goals_with_all_their_signs() -> None:
    sentences = ('it\'s a "pole", upright', "a cart")
    found = contenders("cartpole", [], {}, sentences)
    assert [contender.recipe.goal for contender in found] == [(sentence,) for sentence in sentences]


def test_a_task_without_a_recipe_has_its_own_words() -> None:
    (own,) = contenders("mountain-car-textured", [], {})
    assert own.recipe.goal == ("a car at the peak of the mountain, next to the yellow flag",)
    assert load_task("Pendulum-v1", ["goal=a rod"]).env == "Pendulum-v1"
    assert load_task("env=Pendulum-v1", ["goal=a rod"]).env == "Pendulum-v1"  # as `sightline train` takes it


# -- scoring -----------------------------------------------------------------------------------------------------------


class Brightness(RewardModel):
    """Mean of a frame, from 0 to 1; its feature is kept."""

    keeps_features = True

    def __init__(self) -> None:
        self.embedded = 0

    def embed(self, clip: Clip) -> np.ndarray:
        assert isinstance(clip.frames, np.ndarray)
        self.embedded += len(clip.frames)
        return np.asarray(clip.frames.mean(axis=(2, 3, 4), dtype=np.float32)[..., None] / 255)

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return np.asarray(features[..., 0])


class Rise(Brightness):
    """How much brighter a frame is than the one before."""

    window = 2

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        before = windows(features[..., 0], clip.first, 2)[:, :, 0]
        return np.asarray(features[..., 0] - before)


class Broken(RewardModel):
    """Gives no number."""

    def reward(self, clip: Clip) -> np.ndarray:
        return np.full(clip.shape, np.nan, np.float32)


LEVELS = ([10, 20, 40, 80], [200, 100, 50])
"""Grey levels of the frames of two episodes."""


def episodes(levels: Any = LEVELS) -> Iterator[Episode]:
    for number, of_episode in enumerate(levels):
        frames = np.stack([np.full((4, 4, 3), level, np.uint8) for level in of_episode])
        truth = np.array(of_episode, np.float32) ** 2
        yield Episode("hand", frames=frames, env_reward=truth, success=truth > 2000, seed=number)


def hand(levels: Any = LEVELS, **options: Any) -> Source:
    return Source("hand", lambda *_: episodes(levels), plays=False, **options)


def ready(name: str, model: RewardModel, env: str = "nowhere", source: str | None = "grey") -> ReadyReward:
    (base,) = contenders("cartpole", [], {})
    block = type("Block", (type(base.recipe.reward),), {"feature_source": property(lambda self: source)})
    recipe = base.recipe.model_copy(update={"reward": block()})
    return ReadyReward(Contender(name, recipe), RewardSetup(model), EnvMaker(env, {"look": env}))


def test_numbers_by_hand(tmp_path: Path) -> None:
    scores = score([ready("grey", Brightness()), ready("rise", Rise())], [hand()], FeatureStore(tmp_path))
    levels = np.array([level for of_episode in LEVELS for level in of_episode])
    np.testing.assert_allclose(scores.rewards["grey"], levels / 255, rtol=1e-6)
    rises = [0, 10, 20, 40, 0, -100, -50]  # an episode's first frame has none before it
    np.testing.assert_allclose(scores.rewards["rise"], np.array(rises) / 255, atol=1e-7)
    frames = scores.of("grey")
    assert frames.episode.tolist() == [0, 0, 0, 0, 1, 1, 1] and frames.step.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert frames.truth is not None and frames.truth.tolist() == (levels**2).tolist()
    assert frames.success is not None and frames.success.tolist() == (levels**2 > 2000).tolist()


def test_frames_as_they_are_not(tmp_path: Path) -> None:
    gradient = np.tile(np.arange(8, dtype=np.uint8)[None, :, None], (4, 1, 3))
    frames = np.stack([gradient, gradient * 2])
    source = Source("hand", lambda *_: iter([Episode("hand", frames=frames)]), plays=False)
    scores = score([ready("grey", Brightness()), ready("rise", Rise())], [source], FeatureStore(tmp_path))
    changed = scores.changed["grey"]
    assert changed["blank"].tolist() == [0, 0]
    assert sorted(changed["shuffled"]) == sorted(scores.rewards["grey"])
    # Columns 0 … 7 become 0, 0 … 6, whose mean is 21 / 8; of the second frame none is moved.
    assert changed["shifted"][0] == pytest.approx(21 / 8 / 255) and np.isnan(changed["shifted"][1])
    assert changed["same"][0] == scores.rewards["grey"][0]
    assert scores.changed["rise"]["blank"].tolist() == [0, 0]
    assert np.isnan(scores.changed["rise"]["shifted"]).all()


def test_frames_are_embedded_once(tmp_path: Path) -> None:
    models = [Brightness(), Brightness(), Rise()]
    rewards = [ready(str(number), model) for number, model in enumerate(models)]
    store = FeatureStore(tmp_path)
    score(rewards, [hand()], store, variants=False)
    assert store.embedded == sum(model.embedded for model in models) == 7
    again = FeatureStore(tmp_path)
    scores = score([ready("other", Brightness())], [hand()], again, variants=False)
    assert again.embedded == 0 and scores.rewards["other"][0] == pytest.approx(10 / 255)
    # Features of another source are others, and a damaged file is made again.
    score([ready("other", Brightness(), source="another")], [hand()], again, variants=False)
    assert again.embedded == 7
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(b"damaged")
    np.save(next(tmp_path.rglob("*.npy")), np.zeros((1, 1, 1), np.float32))  # of other frames
    scores = score([ready("other", Brightness())], [hand()], again, variants=False)
    assert again.embedded == 14 and scores.rewards["other"][0] == pytest.approx(10 / 255)


def test_small_changes_of_frames() -> None:
    # Black and white columns in turn: half as wide they are grey, but for the edges.
    columns = np.tile(np.array([0, 255] * 4, np.uint8)[None, :, None], (8, 1, 3))
    frames = np.stack([columns, np.full_like(columns, 90)])[:, None]
    halved = halved_and_back(frames)
    assert halved.shape == frames.shape and np.ptp(halved[0, 0, :, 2:-2]) <= 70 and (halved[1] == 90).all()
    kept = through_jpeg(frames).astype(int)
    # Grey comes back as it was; colours of each frame stay with it.
    assert np.abs(kept[1] - 90).max() <= 1 and 0 < np.abs(kept[0] - frames[0]).max() < 90
    assert (halved_and_back(frames[:1, :, :1, :1]) == 0).all()


class Forgetful(Rise):
    """Looks back by one row, whatever episode that is of."""

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        values = features[..., 0]
        return values - np.concatenate([np.zeros_like(values[:1]), values[:-1]])


def test_episodes_do_not_hear_of_each_other(tmp_path: Path) -> None:
    scores = score([ready("rise", Forgetful())], [hand()], FeatureStore(tmp_path))
    np.testing.assert_allclose(scores.rewards["rise"] * 255, [10, 10, 20, 40, 200, -100, -50], atol=1e-4)


def test_numbers_do_not_depend_on_order_nor_on_what_else_is_scored(tmp_path: Path) -> None:
    one, two = ready("one", Brightness()), ready("two", Rise())
    both = score([one, two], [hand()], FeatureStore(tmp_path / "a"))
    turned = score([two, one], [hand()], FeatureStore(tmp_path / "b"))
    few = score([two], [hand(LEVELS[:1])], FeatureStore(tmp_path / "c"))
    for name in ("one", "two"):
        np.testing.assert_array_equal(both.rewards[name], turned.rewards[name])
    assert list(both.rewards) == ["one", "two"] and list(turned.rewards) == ["two", "one"]
    np.testing.assert_array_equal(few.rewards["two"], both.rewards["two"][:4])


def test_what_is_not_stated_is_no_failure(tmp_path: Path) -> None:
    def read(*_: object) -> Iterator[Episode]:
        for number, episode in enumerate(episodes([[10, 60], [250, 251], [70, 20]])):
            yield replace(episode, success=None) if number == 1 else episode

    source = Source("hand", read)
    scores = score([ready("grey", Brightness())], [source], FeatureStore(tmp_path / "a"))
    frames = scores.of("grey")
    assert frames.is_stated.tolist() == [True, True, False, False, True, True]
    # Successes 60 and 70 beside 10 and 20; the frames of the second episode are brighter than all, and do not count.
    assert auroc(frames).value == 1.0 and auroc(frames).n == 4
    assert fooling(frames).details["frames"] == [5, 0]
    none_stated = score([ready("grey", Brightness())], [beside_the_goal(source)], FeatureStore(tmp_path / "b"))
    assert none_stated.of("grey").is_stated.all() and auroc(none_stated.of("grey")).value == 0.5


def test_quality_is_the_word_of_the_data_set_or_else_success(tmp_path: Path) -> None:
    def read(*_: object) -> Iterator[Episode]:
        levels = [[10, 20], [90, 100], [30, 40], [1, 2], [60, 80]]
        words = ["failure", "successful", "suboptimal", "odd", None]
        for number, (episode, word) in enumerate(zip(episodes(levels), words, strict=True)):
            stated = replace(episode, success=None) if number < 4 else episode
            yield StoredEpisode.of(stated, quality=word)

    scores = score([ready("grey", Brightness())], [Source("set", read, plays=False)], FeatureStore(tmp_path))
    assert scores.frames.quality is not None
    assert scores.frames.quality.tolist() == [FAILED, SUCCESSFUL, HALF_DONE, UNJUDGED, SUCCESSFUL]
    measure = kendall_tau(scores.of("grey"))
    # Five of six pairs have different quality and are in order: 5 / sqrt(6 * 5).
    assert measure.n == 4 and measure.value == pytest.approx(5 / 30**0.5)
    without = score([ready("grey", Brightness())], [hand()], FeatureStore(tmp_path))
    assert without.frames.quality is None


class Likes(Brightness):
    """Likes one grey level."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level

    def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
        return np.asarray(-np.abs(features[..., 0] * 255 - self.level))


def test_episodes_under_the_instructions_of_their_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["15", "150", None, "15"]
    of_set = [replace(one, instruction=words[i]) for i, one in enumerate(episodes([[10, 20], [200, 100], [50], [149]]))]
    monkeypatch.setattr(instructions, "read_dataset", lambda folder, frames: iter(of_set))
    monkeypatch.setattr(instructions, "under_goal", lambda reward, goal, name: ready(name, Likes(float(goal))))
    base = ready("grey", Likes(0))
    lines: list[str] = []
    found = Instructions(tmp_path / "set", [base], lines.append)
    assert not lines
    source = Source("set", lambda *_: iter(of_set), plays=False)
    scores = score([base, *found.rewards], [hand(), source], FeatureStore(tmp_path / "features"))
    margin = found.margin("grey", scores)
    # Two episodes are paid most under their own words, and the last one under the other: (1 + 1 - 1) / 3.
    assert margin is not None and margin.n == 3 and margin.value == pytest.approx(1 / 3)
    assert found.margin("another", scores) is None
    monkeypatch.setattr("sightline.reward_lab.instructions.MOST_INSTRUCTIONS", 1)
    assert Instructions(tmp_path / "set", [base], lines.append).rewards == []
    assert lines[0].endswith("beyond the first 1: 1")


def test_the_lab_tries_the_instructions_of_a_data_set(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    with PictureWriter(tmp_path / "set") as writer:
        for number in range(5):
            writer.add(small_episode(number))
    done = sightline("lab", "cartpole", "--dataset", tmp_path / "set", "--json")
    margin = json.loads(done.out)["rewards"]["own"]["confusion_margin"]
    assert margin["n"] == 4 and -1 <= margin["value"] <= 1  # one of five has no instruction
    same = sightline("lab", "cartpole", "baseline=sit down", "--dataset", tmp_path / "set", "--json")
    assert "same words" in json.loads(same.out)["confusion_margin"]["undefined"]


def test_a_data_set_of_pictures_is_a_folder_of_pictures_too(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    with PictureWriter(tmp_path / "set") as writer:
        for number in range(4):
            writer.add(small_episode(number, instruction=None))
    found = [
        json.loads(sightline("lab", "cartpole", option, tmp_path / "set", "--json").out)
        for option in ("--pictures", "--dataset")
    ]
    assert found[0]["episodes"] == 4 and found[0]["rewards"] == found[1]["rewards"]


def test_parts_of_one_episode_are_joined(tmp_path: Path) -> None:
    joined = score([ready("rise", Rise())], [hand(joined=True)], FeatureStore(tmp_path))
    np.testing.assert_allclose(joined.rewards["rise"] * 255, [0, 10, 20, 40, 120, -100, -50], atol=1e-4)
    assert joined.frames.sources == ["hand"] and joined.frames.step.tolist() == list(range(7))


def test_stills_are_alone(tmp_path: Path) -> None:
    scores = score([ready("rise", Rise())], [hand(still=True)], FeatureStore(tmp_path))
    assert scores.rewards["rise"].tolist() == [0.0] * 7
    assert scores.frames.episode.tolist() == list(range(7)) and len(scores.frames.sources) == 7


def test_a_reward_of_several_pictures_is_doubted_where_they_stand_alone(tmp_path: Path) -> None:
    class Last(Brightness):
        scope = sl.Scope("window", 2)

    rewards = [ready("one", Brightness()), ready("last", Last(), source=None)]
    assert not score(rewards, [hand()], FeatureStore(tmp_path)).warnings
    (doubt,) = score(rewards, [hand(), hand(still=True)], FeatureStore(tmp_path)).warnings
    assert "reward 'last' is of several pictures in their order" in doubt and "hand one by one" in doubt


def test_a_reward_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    scores = score([ready("good", Brightness()), ready("bad", Broken(), source=None)], [hand()], FeatureStore(tmp_path))
    assert "not finite" in scores.failures["bad"] and "4 of 4" in scores.failures["bad"]
    assert scores.of("bad").missing == 7 and scores.of("good").missing == 0
    with pytest.raises(RunFailed, match=r"reward 'bad': .*not finite"):
        score([ready("bad", Broken(), source=None)], [hand()], FeatureStore(tmp_path))


def test_frames_are_found_again(tmp_path: Path) -> None:
    shown = FrameFile(tmp_path / "frames")
    group = [ready("one", Brightness()), ready("two", Brightness(), "beside")]
    score(group, [hand(), hand([[7]])], FeatureStore(tmp_path), shown=shown)
    assert len(shown) == 8 and [shown[row][0, 0, 0] for row in (7, 0, 3, 6)] == [7, 10, 80, 50]
    shown.append(np.full((1, 2, 3, 3), 9, np.uint8))
    assert shown[8].shape == (2, 3, 3) and shown[0].shape == (4, 4, 3)
    shown.close()


def test_an_own_reward_that_is_no_number_is_counted(tmp_path: Path) -> None:
    source = Source("hand", lambda *_: (replace(episode, env_reward=None) for episode in episodes()))
    scores = score([ready("grey", Brightness())], [source], FeatureStore(tmp_path))
    assert scores.frames.truth is None and "number at some step: 2" in scores.warnings[0]


def test_there_must_be_frames(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no frames"):
        score([ready("grey", Brightness())], [], FeatureStore(tmp_path))


def test_pictures_may_differ_and_states_may_not(tmp_path: Path) -> None:
    def read(make: EnvMaker, shrink: object) -> Iterator[Episode]:
        factor = 2 if make.env_id == "elsewhere" else 1
        for episode in episodes():
            assert episode.env_reward is not None
            yield replace(episode, env_reward=episode.env_reward * factor)

    source = Source("play", read)
    alike = [ready("one", Brightness()), ready("two", Brightness(), "beside")]
    assert len(score(alike, [source], FeatureStore(tmp_path)).rewards) == 2
    with pytest.raises(BadInput, match=r"'three'.*another way"):
        score([*alike, ready("three", Brightness(), "elsewhere")], [source], FeatureStore(tmp_path))


def test_encoders_are_shared() -> None:
    with shared_encoders():
        first = load_encoder("bundled")
        first.free_text_tower()
        assert load_encoder("bundled") is first and load_encoder("bundled", aspect="pad") is not first
        assert first.embed_texts(["a pole"]).shape[0] == 1
    assert load_encoder("bundled") is not first


# -- files -------------------------------------------------------------------------------------------------------------


def write_picture(file: Path, level: int, size: int = 4) -> None:
    Image.fromarray(np.full((size, size, 3), level, np.uint8)).save(file)


def write_table(folder: Path, *rows: tuple[str, ...]) -> None:
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_pictures_with_a_table(tmp_path: Path) -> None:
    for number in range(4):
        write_picture(tmp_path / f"{number}.png", 10 * number, size=4 + 4 * (number == 3))
    write_picture(tmp_path / "nameless.png", 0)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    rows = [("0.png", "yes"), ("1.png", "0"), ("2.png", "perhaps"), ("3.png", "1"), ("gone.png", "1")]
    write_table(tmp_path, ("file", "success"), *rows, ("broken.png", "no"), ("../labels.csv", "no"))
    warnings: list[str] = []
    source = labelled_pictures(tmp_path, warnings.append)
    read = list(source.episodes(EnvMaker("none"), np.array))
    assert source.still and [episode.frames.shape for episode in read if episode.frames is not None] == [
        *((2, 4, 4, 3), (1, 8, 8, 3))
    ]
    assert [episode.success.tolist() for episode in read if episode.success is not None] == [[True, False], [True]]
    assert len(warnings) == 4
    assert "no picture in its folder: 2, the first 'gone.png'" in warnings[0]
    assert "no label" in warnings[1] and ": 1, the first '2.png'" in warnings[1]
    assert "no row for them: 1, the first 'nameless.png'" in warnings[2]
    assert "cannot be read: 1, the first 'broken.png'" in warnings[3]


def test_pictures_of_episodes_are_in_order(tmp_path: Path) -> None:
    for number in range(4):
        write_picture(tmp_path / f"{number}.png", 10 * number)
    rows = [("3.png", "0.5", "b", "1"), ("1.png", "2", "a", "7"), ("0.png", "1", "a", "2"), ("2.png", "", "b", "0")]
    write_table(tmp_path, ("file", "truth", "episode", "step"), *rows)
    source = labelled_pictures(tmp_path, print)
    first, second = source.episodes(EnvMaker("none"), np.array)
    assert not source.still and first.frames is not None and first.env_reward is not None
    assert first.frames[:, 0, 0, 0].tolist() == [30] and first.env_reward.tolist() == [0.5]
    assert second.frames is not None and second.frames[:, 0, 0, 0].tolist() == [0, 10]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [("file", "colour"), ("0.png", "red")],
            r"no columns file and success .*, but file, colour \(parted by commas\)",
        ),
        ([("file", "success", "success"), ("0.png", "1", "0")], "has 2 columns 'success'; rename or remove all but"),
        ([("file", "truth"), ("0.png", "inf")], "no row that names a picture"),
        ([("file", "success"), ("gone.png", "1")], "no row that names a picture"),
        ([("file", "success")], "has no rows"),
    ],
)
def test_tables_that_are_refused(rows: list[tuple[str, ...]], expected: str, tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png", 0)
    write_table(tmp_path, *rows)
    with pytest.raises(BadInput, match=expected):
        labelled_pictures(tmp_path, print)


def test_a_picture_that_is_named_twice_is_counted(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png", 0)
    write_table(tmp_path, ("file", "success"), ("0.png", "1"), ("0.png", "0"))
    said: list[str] = []
    labelled_pictures(tmp_path, said.append)
    assert len(said) == 1 and "name a picture once more" in said[0] and ": 1, the first '0.png'" in said[0]


def test_a_table_as_a_spreadsheet_saves_it(tmp_path: Path) -> None:
    for number in range(2):
        write_picture(tmp_path / f"{number}.png", 10 * number)
    lines = ["\ufefffile; truth ;note", '0.png;0,5;"two', 'lines"', "1.png;-1,25e1;a, b", ""]
    (tmp_path / "labels.CSV").write_bytes("\r\n".join(lines).encode())
    said: list[str] = []
    (episode,) = labelled_pictures(tmp_path, said.append).episodes(EnvMaker("none"), np.array)
    assert episode.env_reward is not None and episode.env_reward.tolist() == [0.5, -12.5] and not said


def test_cells_that_say_nothing_are_counted(tmp_path: Path) -> None:
    for number in range(4):
        write_picture(tmp_path / f"{number}.png", 10 * number)
    rows = [("0.png", "1", "0.5"), ("1.png", "maybe", "0.5"), ("2.png", "0", "1e300"), ("3.png", "0", "")]
    write_table(tmp_path, ("file", "success", "truth"), *rows)
    said: list[str] = []
    first, second, third = labelled_pictures(tmp_path, said.append).episodes(EnvMaker("none"), np.array)
    assert len(said) == 2
    assert "success (yes, no, 1, 0, …) cannot be read, and is unknown: 1, the first '1.png'" in said[0]
    assert "truth is no finite number, and is unknown: 1, the first '2.png'" in said[1]
    # What is known of a picture stays known.
    assert first.success is not None and first.success.tolist() == [True] and second.success is None
    assert third.success is not None and third.success.tolist() == [False, False]


def test_steps_that_say_no_order_are_counted(tmp_path: Path) -> None:
    for number in range(6):
        write_picture(tmp_path / f"{number}.png", 10 * number)
    rows = [("0.png", "1", "a", "1"), ("1.png", "1", "a", "one"), ("2.png", "1", "a", "0"), ("3.png", "0", "a", "1")]
    write_table(
        tmp_path, ("file", "success", "episode", "step"), *rows, ("4.png", "0", "", "3"), ("5.png", "0", "a", "inf")
    )
    said: list[str] = []
    (episode,) = labelled_pictures(tmp_path, said.append).episodes(EnvMaker("none"), np.array)
    assert episode.frames is not None and episode.frames[:, 0, 0, 0].tolist() == [20, 0, 30]
    assert len(said) == 2
    assert "left out, since no episode and step can be read: 3, the first '1.png'" in said[0]
    assert "with the step of another one of their episode: 1, the first '3.png'" in said[1]
    # Steps alone order nothing.
    write_table(tmp_path, ("file", "success", "step"), *((name, success, step) for name, success, _, step in rows))
    said.clear()
    assert labelled_pictures(tmp_path, said.append).still and "each picture stands alone" in said[0]


def test_an_episode_whose_success_is_known_in_part(tmp_path: Path) -> None:
    for number in range(2):
        write_picture(tmp_path / f"{number}.png", 10 * number)
    write_table(
        tmp_path,
        ("file", "label", "success", "truth", "episode"),
        ("0.png", "0", "1", "2", "a"),
        ("1.png", "0", "", "3", "a"),
    )
    said: list[str] = []
    (episode,) = labelled_pictures(tmp_path, said.append).episodes(EnvMaker("none"), np.array)
    assert episode.success is None and episode.env_reward is not None and episode.env_reward.tolist() == [2, 3]
    assert "in 2 columns, of which success counts (success, label)" in said[0]
    assert said[1] == "episode 'a': the success of some pictures is unknown, and counts as unknown of all"


def test_what_would_not_be_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--camera chooses one of the cameras of --dataset, and no data set"):
        LabData(camera="side")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BadInput, match="are the same folder"):
        LabData(goal_pictures=tmp_path, other_pictures=tmp_path / "link")


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no CSV file"):
        labelled_pictures(tmp_path, print)
    with pytest.raises(BadInput, match="no folder"):
        labelled_pictures(tmp_path / "gone", print)
    with pytest.raises(BadInput, match=r"--goal-pictures.*holds no pictures"):
        sorted_pictures(tmp_path, "--goal-pictures", True, print)
    with pytest.raises(BadInput, match="--goal-pictures: there is no folder"):
        sorted_pictures(tmp_path / "gone", "--goal-pictures", True, print)
    with pytest.raises(BadInput, match="--video: there is no file"):
        video(tmp_path / "gone.mp4")


def test_a_video_is_one_episode_and_progress_its_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.reward_lab.pictures.STILLS", 2)
    pictures = [Image.fromarray(np.full((8, 8, 3), 50 * number, np.uint8)) for number in range(5)]
    pictures[0].save(tmp_path / "film.gif", save_all=True, append_images=pictures[1:])
    source = video(tmp_path / "film.gif")
    scores = score([ready("grey", Brightness())], [source], FeatureStore(tmp_path / "store"))
    assert scores.frames.sources == ["film.gif"]
    assert scores.frames.truth is not None and scores.frames.truth.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(scores.rewards["grey"] * 255, [0, 50, 100, 150, 200], atol=1.5)


def test_sentences_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "goals.txt"
    file.write_text("a pole\n\n  a cart \na pole\n")
    assert read_sentences(file) == ("a pole", "a cart")
    file.write_text("\n")
    with pytest.raises(BadInput, match="holds no sentence"):
        read_sentences(file)
    with pytest.raises(BadInput, match="cannot be read"):
        read_sentences(tmp_path)


def test_sentences_are_ranked_by_one_half_and_judged_by_the_other(tmp_path: Path) -> None:
    # Stills; a success is bright in the half that ranks, and dark in the half that is held out.
    bright = [[250], [1], [251], [2], [252], [3]]

    def read(make: EnvMaker, shrink: object) -> Iterator[Episode]:
        for number, levels in enumerate(bright):
            (episode,) = episodes([levels])
            yield replace(episode, success=np.array([number < 4]))

    class Dark(Brightness):
        def score(self, features: np.ndarray, clip: Clip) -> np.ndarray:
            return np.asarray(-features[..., 0])

    rewards = [ready("dark", Dark()), ready("grey", Brightness())]
    scores = score(rewards, [Source("hand", read, still=True)], FeatureStore(tmp_path))
    first, second = ranking(["dark", "grey"], scores)
    # Of the successes 250, 1, 251, 2 the halves have 250, 251 and 1, 2; of the others, 252 and 3.
    assert (first["reward"], first["chosen_by"]["value"], first["held_out"]["value"]) == ("dark", 1.0, 1.0)
    assert (second["reward"], second["chosen_by"]["value"], second["held_out"]["value"]) == ("grey", 0.0, 0.0)


def test_pairs_that_somebody_has_judged(tmp_path: Path) -> None:
    segments = [Segment.of_frames(np.full((2, 8, 8, 3), level, np.uint8)) for level in (10, 20, 20, 200)]
    answers = [(0, 1, 1.0), (1, 2, 0.0), (3, 0, 0.0), (3, 1, 1.0), (0, 3, 0.5)]
    with LabelStore(tmp_path / "store") as store:
        for first, second, value in answers:
            question = Question("compare", (segments[first], segments[second]), ("bright",))
            store.record(question, RecordedTeacher("anna", "anna"), preference(value), Context("run", "cartpole"))
    warnings: list[str] = []
    judged = read_pairs(tmp_path / "store", False, warnings.append)
    assert "prefer neither: 1" in warnings[0] and len(judged.pairs) == 4
    before = hand(LEVELS[:1])
    scores = score([ready("grey", Brightness())], [before, judged.source], FeatureStore(tmp_path / "features"))
    found = preference_accuracy(scores.of("grey"), judged)
    # Right twice, a tie (equal pictures are one segment), and wrong once.
    assert found.value == pytest.approx((2 + 0.5) / 4) and found.n == 4 and found.details["ties"] == 0.25
    with pytest.raises(BadInput, match="neither a run nor a label store"):
        read_pairs(tmp_path, False, print)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_contract_of_the_command(sightline: Callable[..., Finished], tmp_path: Path) -> None:
    out = tmp_path / "lab"
    arguments = ("lab", "cartpole", "--episodes", "1", "--out", out, "--json")
    done = sightline(*arguments)
    document = json.loads(done.out)
    own = document["rewards"]["own"]
    for name in ("spearman", "epic", "auroc"):
        assert {"value", "low", "high"} <= own[name].keys()
        assert document[name] == own[name]  # of one reward, at the top level, too
    assert document["sources"] == {"random": 1, "scripted": 1, "states": 61 * 25}
    assert own["auroc"]["value"] > 0.9 and abs(own["controls"]["shuffled"]["spearman"]["value"]) < 0.1
    assert document["embedded"] > 0
    changes = {name: measure["value"] for name, measure in own["sensitivity"].items()}
    assert changes["same"] == 0 and 0 < changes["jpeg"] < changes["halved"] < 0.5
    kept = json.loads((out / "lab.json").read_text())
    assert kept["rewards"] == document["rewards"]
    # Other words embed nothing.
    two = sightline(*arguments, "--reward", "own", "--reward", "left=goal=the cart at the left edge")
    again = json.loads(two.out)
    assert again["embedded"] == 0 and again["rewards"]["own"] == own
    assert "spearman" not in again and again["rewards"]["left"]["auroc"]["value"] < own["auroc"]["value"]


def test_from_python_with_a_model_of_ones_own(tmp_path: Path) -> None:
    for number in range(8):
        write_picture(tmp_path / f"{number}.png", 10 * number, 64)
    rows = [(f"{number}.png", str(number > 5)) for number in range(8)]
    write_table(tmp_path, ("file", "success"), *rows)
    rewards = {"own": {}, "words": {"goal": "it's a pole, upright"}, "grey": Brightness()}
    document = sl.lab("cartpole", rewards, pictures=tmp_path, baseline="a cart, and a pole")
    assert document["sources"] == {"pictures": 8} and list(document["rewards"]) == ["own", "words", "grey"]
    assert document["rewards"]["grey"]["auroc"]["value"] == 1.0
    words = document["rewards"]["words"]
    assert words["goal"] == ["it's a pole, upright"] and words["baseline"] == ["a cart, and a pole"]
    with pytest.raises(BadInput, match="must be a mapping of recipe keys, or a RewardModel, not str"):
        sl.lab("cartpole", {"own": "a red car"})  # type: ignore[dict-item]


def test_play_that_is_asked_for_and_not_there_is_refused() -> None:
    (own,) = build_rewards(contenders("Pendulum-v1", ["goal=a rod"], {}))
    assert [source.name for source in play_sources(own, PLAY, 1, 0)] == ["random"]
    with pytest.raises(BadInput, match="--play scripted: 'Pendulum-v1' has no script that plays it"):
        play_sources(own, ("random", "scripted"), 1, 0)
    with pytest.raises(BadInput, match="--play goal: 'Pendulum-v1' has no states that show its goal"):
        play_sources(own, ("goal",), 1, 0)


def test_play_that_is_left_out_beside_files_is_said(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png", 0)
    write_table(tmp_path, ("file", "success"), ("0.png", "1"))
    own = ready("own", Brightness(), env="Pendulum-v1")
    for play, said in ((("random",), 1), (PLAY, 0)):
        lines: list[str] = []
        (source,) = LabData(pictures=tmp_path, play=play).sources(own, None, lines.append)
        assert source.name == "pictures" and len(lines) == said


def test_a_control_that_was_not_tried_says_so() -> None:
    measure = {"value": 0.5, "low": None, "no_interval": "few"}
    words = {"goal": ["up"], "failure": None, "auroc": measure, "controls": {"nonsense": {"auroc": measure}}}
    judge = {"goal": ["up"], "failure": None, "auroc": measure, "controls": {"blank": {"auroc": measure}}}
    document = {"sources": {"random": 1}, "episodes": 1, "frames": 12, "rewards": {"words": words, "judge": judge}}
    lines = list(_text(document))
    assert lines[0] == "12 frames of 1 episode (random 1)"
    assert [line.split("  ")[-1].strip() for line in lines[2:5]] == ["of nonsense", "0.50", "not tried"]
    document["rewards"] = {"judge": judge}
    assert "of nonsense" not in "".join(_text(document))
