"""Each of more than a hundred odd environments is trained on rightly, or refused in the line that is written here."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import odd_environments
from conftest import Finished
from odd_environments import OneAtATime

LITTLE = (
    *("steps=32", "envs=2", "episode_steps=12", "videos=false", "tensorboard=false", "checkpoints.every=32"),
    *("evaluation.every=32", "evaluation.episodes=1", "evaluation.test_episodes=1", "learner.chunk=8"),
    *("learner.hidden=[16]", "learner.batch_size=16", "learner.learning_starts=16", "learner.gradient_steps=2"),
)
OWN = ("reward.kind=ground_truth",)
OLD = "is of the old API of gym: write a function that converts it, as by shimmy"
NOT_A_TRUTH = "should say whether a state is a success"

TRAINED = {
    # Name -> what is said of it on the way; empty where nothing has to be.
    **dict.fromkeys(("Walk", "FromOne", "OneAction", "Halves", "Doubles", "Grid"), ""),
    "Levers": "are 2 choices at once, learned as one of 6 combinations",
    "Switches": "are 3 choices at once, learned as one of 8 combinations",
    "ActsInPairs": "are 2 choices at once, learned as one of 4 combinations",
    "Steps": "are rounded to whole numbers (int8)",
    "Jammed": "have low = high in 1 of 2 numbers, which are left as they are",
    **dict.fromkeys(("Room", "RoomAndFloor", "Lights", "Scalar", "SeesHalves", "SeesDoubles", "SeesTruths"), ""),
    **dict.fromkeys(("SaysSinglesGivesDoubles", "SeesWholeNumbers", "Ram", "Parts", "NestedParts", "Pair"), ""),
    "Robot": "the policy reads image (24x24 picture as 1728 numbers from 0 to 1) and state (2 numbers)",
    "RobotInFloats": "",
    "Mission": "the policy reads place (2 numbers); left out: mission (text)",
    **dict.fromkeys(("Camera40", "CameraChannelsFirst", "CameraGrey"), ""),
    "CameraStacked": "the policy reads a 40x40 picture of 12 channels, convolutions",
    "CameraInFloats": "the policy reads a 40x40 picture, rounded to 256 levels, convolutions",
    **dict.fromkeys(("SeesList", "SeesTensor", "LeavesItsBounds", "OneBuffer"), ""),
    **dict.fromkeys(("Transparent", "DrawsFloats", "DrawsGrey", "DrawsOne", "DrawsTensor", "DrawsReadOnly"), ""),
    **dict.fromkeys(("DrawsFlipped", "OneCanvas", "DrawsAfterReset", "DrawsUnasked"), ""),
    **dict.fromkeys(("PaysArray", "PaysTensor", "PaysHalf", "PaysTruth", "PaysNothing"), ""),
    **dict.fromkeys(("NoInfo", "SuccessArray", "SuccessAtTheEnd", "ChangingInfo", "InfoWithCode"), ""),
    **dict.fromkeys(("EndsAtOnce", "NeverEnds", "EndsInNumbers", "SeedsEverybody", "RaisesInClose"), ""),
    **dict.fromkeys(("LeavesInClose", "NoMetadata", "SlowFilm", "MovesTheWorkingFolder", "Prints"), ""),
}
"""Environments that are learned from, by their own rewards and from words."""

BY_WORDS_ALONE = ("PaysVector", "PaysNone", "PaysText", "PaysNaN", "PaysInfinity")
"""Environments whose own reward is of no use, which words do not need."""

BY_STATES_ALONE = {
    "DrawsLargeFloats": (1, "rendered float32[24, 24, 3] with values from 30 to 250; frames must be uint8[H, W, 3]"),
    "DrawsWholeNumbers": (1, "rendered int64[24, 24, 3]; frames must be uint8[H, W, 3]"),
    "DrawsNone": (1, "render() returned nothing; its constructor must take render_mode='rgb_array'"),
    "DrawsTwo": (1, "rendered uint8[2, 24, 24, 3]; frames must be"),
    "DrawsText": (1, "rendered the text '|..x..|'"),
    "Grows": (1, "rendered frames of 24x24 first and now one of 25x25; keep to one size (at step 4"),
    "CannotDraw": (1, "could not render: KeyError: 'texture' (odd_environments.py:"),
    "CannotDrawLater": (1, "could not render: KeyError: 'texture' (odd_environments.py:"),
    "NoPictures": (2, "renders no frames; its constructor must take render_mode='rgb_array'"),
}
"""Environments whose pictures are of no use, which their own rewards do not need; and the line where words are used."""

REFUSED = {
    "Boundless": (2, "have no finite bounds (-inf to inf), between which learners explore; give action_space finite"),
    "NearlyBoundless": (2, "have no finite bounds (-3e+38 to 3e+38)"),
    "NoActions": (2, "are empty (shape [0]), so there is nothing to choose"),
    "ActsInParts": (2, "hold numbers (Box) beside choices, and a learner draws the one or the other"),
    "Speaks": (
        2,
        "are words, which a policy on states cannot choose; have a model play it: role=agent, with sightline",
    ),
    "ActsInSequence": (2, "are of the kind Sequence; learners take Discrete, Box, MultiDiscrete or MultiBinary"),
    "SeesNothing": (2, "are empty; a policy on states needs a fixed number of numbers"),
    "Reads": (2, "are text; a policy on states needs a fixed number of numbers"),
    "SeesSequence": (2, "observations of 'odd_environments:SeesSequence' are of the kind Sequence"),
    "SeesGraph": (2, "are of the kind Graph"),
    "SeesOneTooMany": (2, "gave an observation of shape [3] where its observation_space says [2]; fix the environment"),
    "SeesNone": (2, "gave an observation that is not an array of numbers: None"),
    "SeesNaN": (1, "returned an observation with NaN in it (at step 3 of the episode with seed"),
    "SeesInfinity": (1, "returned an observation with an infinite number in it (at step 3"),
    "InfoOfText": (2, "returned an info that is a str; it must be a dictionary"),
    "SaysFalse": (2, f"{NOT_A_TRUTH} and is 'False' (text), neither true nor false; make it True or False, or say"),
    "SuccessNaN": (2, f"{NOT_A_TRUTH} and is nan (a float)"),
    "SuccessInParts": (2, f"{NOT_A_TRUTH} and is {{'arm': True}} (a dict)"),
    "EndsInArrays": (2, "returned terminated=array([False, False]); it must be True or False"),
    "FourTuple": (2, "step() of 'odd_environments:FourTuple' returned a tuple of 4; it must return (observation, "),
    "SixTuple": (2, "step() of 'odd_environments:SixTuple' returned a tuple of 6"),
    "ObservationAlone": (2, OLD),
    "OldGym": (2, "is an environment of the old API of gym; write a function that converts it, as by shimmy"),
    "NoSeed": (2, "takes no seed and options; write it as reset(self, *, seed=None, options=None)"),
    "RaisesInReset": (1, "failed in reset(seed=0): KeyError: 'no map' (odd_environments.py:"),
    "RaisesInStep": (1, "failed in step(): ZeroDivisionError: the simulator exploded (odd_environments.py:"),
    "LeavesInStep": (1, "failed in step(): SystemExit (odd_environments.py:"),
    "LeavesInReset": (
        1,
        "'odd_environments:LeavesInReset' failed in reset(seed=0): SystemExit: 0 (odd_environments.py:",
    ),
    "NoSpaces": (2, "must have an observation_space of gymnasium.spaces, and has none"),
    "ManyAtOnce": (2, "simulates several environments at once (ManyAtOnce); name what makes a single one"),
    "OneAtATime": (1, "cannot create multiple emulator instances per process (odd_environments.py:"),
}
"""Environments that cannot be learned from as they are: exit code and line."""

TOLD = {
    "Black": "are of one colour, (0, 0, 0); look at some of them; a renderer may need another display driver",
    "LooksAway": "are the same, though what is observed changes; look at some of them",
    "IgnoresSeed": "panels are not fixed: two resets with seed 0 gave another observation",
}
"""Environments from whose pictures or episodes little can be learned, which is told before training begins."""

Train = Callable[..., Finished]


@pytest.fixture
def train(sightline: Train, encoder_folder: Callable[[str], Path], tmp_path: Path) -> Iterator[Train]:
    """`train(name)` by its own rewards; `train(name, words_pay=True)` from words, by a small random encoder."""
    words = ("goal=a pole at the left edge", "baseline=a pole", f"reward.encoder=local-dir:{encoder_folder('small')}")

    def run(name: str, words_pay: bool = False) -> Finished:
        reward = words if words_pay else OWN
        folder = tmp_path / ("words" if words_pay else "own")
        return sightline("train", f"env=odd_environments:{name}", *LITTLE, *reward, "--run-dir", folder)

    where = Path.cwd()
    yield run
    os.chdir(where)
    OneAtATime.alive = 0


def check_trained(done: Finished, run: Path, said: str = "") -> None:
    assert done.code == 0, done.err
    assert said in done.err
    result = json.loads((run / "result.json").read_text())
    assert result["episodes"] == 1
    assert "NaN" not in (run / "metrics.jsonl").read_text()


def check_refused(done: Finished, code: int, said: str) -> None:
    assert done.code == code, done.err
    *_, last = done.lines
    assert last.startswith("sightline: ")
    assert said in last
    assert "Traceback" not in done.err


def test_every_odd_environment_is_spoken_of_here() -> None:
    classes = {name for name, one in vars(odd_environments).items() if inspect.isclass(one)}
    spoken_of = {*TRAINED, *BY_WORDS_ALONE, *BY_STATES_ALONE, *REFUSED, *TOLD}
    assert classes - {"Any"} == spoken_of
    assert len(spoken_of) > 100


@pytest.mark.parametrize("words_pay", [False, True], ids=["own", "words"])
@pytest.mark.parametrize("name", TRAINED)
def test_what_can_be_learned_from_is(name: str, words_pay: bool, train: Train, tmp_path: Path) -> None:
    done = train(name, words_pay)
    check_trained(done, tmp_path / ("words" if words_pay else "own"), TRAINED[name])
    assert "nothing can be learned from these pictures" not in done.err
    assert "panels are not fixed" not in done.err


@pytest.mark.parametrize("name", TOLD)
def test_what_little_can_be_learned_from_is_told_before_training(name: str, train: Train, tmp_path: Path) -> None:
    done = train(name, words_pay=True)
    check_trained(done, tmp_path / "words", TOLD[name])
    warned = next(i for i, line in enumerate(done.lines) if TOLD[name] in line)
    assert warned < next(i for i, line in enumerate(done.lines) if line.startswith("step "))


@pytest.mark.parametrize("name", BY_WORDS_ALONE)
def test_an_own_reward_of_no_use_matters_only_where_it_is_learned_from(name: str, train: Train, tmp_path: Path) -> None:
    said = "own reward is not one finite number, and counts as 0; nothing is learned from it"
    check_trained(train(name, words_pay=True), tmp_path / "words", said)
    check_refused(train(name), 1, "returned a reward that is")


@pytest.mark.parametrize("name", BY_STATES_ALONE)
def test_pictures_of_no_use_matter_only_where_words_pay(name: str, train: Train, tmp_path: Path) -> None:
    check_trained(train(name), tmp_path / "own")
    check_refused(train(name, words_pay=True), *BY_STATES_ALONE[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_learned_from_is_refused_in_a_line(name: str, train: Train) -> None:
    check_refused(train(name, words_pay=name != "OneAtATime"), *REFUSED[name])


def test_a_vector_of_rewards_names_what_makes_one_number_of_it(train: Train) -> None:
    check_refused(train("PaysVector"), 1, "mo_gymnasium.wrappers.LinearReward makes one number of a vector")
