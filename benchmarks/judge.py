"""What the bundled vision-language model is worth as a judge, and whether CartPole is learned from it.

    python benchmarks/judge.py lab spread learn [--tasks NAME…] [--rewards NAME…] [--seeds N…]

- `lab`: `sightline lab` of each form, in words of anybody's (the forms' own prompts) and, for CartPole, in the words
  that the model was trained on (the recipe `cartpole-judge`); beside each its controls: blank frames, frames in another
  order, a goal that means nothing, and another goal or question.
- `spread`: the share of a form's variance that lies between upright poles and others, of poles at any angle. Two forms
  that rank frames alike may differ in it: the rest is what the reward pays for nothing.
- `learn`: CartPole trained on judges' rewards, with three seeds, on the fixed panel of tests. It never terminates, so
  that standing pays by the reward alone. Controls: another question, what the judge said of other poles, a constant,
  and an untrained policy. Rows of 6 400 steps and controls are of the recipe's first length, at which one seed of three
  failed. What is done is kept, and the same command goes on.

Asked of `learn`: in the model's own words success in every seed, and in no control. Results go to
benchmarks/results/judge.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Runs find the reward of this file by its name.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

import numpy as np

from running import folder_of, keep, kept, learn_rows, sightline, sized, train
from sightline.config.loading import load_recipe
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.judge import JudgeConfig, JudgeReward
from sightline_tasks.control.cartpole import LOOKS, TRACK, UPRIGHT, draw_cartpole

FILE = "judge.json"
SEEDS = sized((0, 1, 2), (0,))
POLES = sized(600, 64)
LEAST_SUCCESS = 0.9
"""Share of test episodes of each seed in the model's own words."""
MOST_SUCCESS = 0.1
"""The same of each control."""
RECIPE = "cartpole-judge"
TESTS = ("evaluation.test_episodes=20", "evaluation.episodes=4")
"""The judge is asked about evaluations, too: about fifty pictures of each episode."""
SHORT = ("steps=6400", "evaluation.every=1600")
"""The recipe's first length, about half of what it is now."""
DIGITS = "[user]\n{pictures}\n{goal}?\n\n[choices]\n1\n0\n"
"""Yes and no for a model whose words are digits and pieces: True and False are several tokens of it."""
OTHER_GOALS = {"cartpole": "pole hanging down below the cart", "numberline": "the current number is not the target"}


class OtherPoles(RewardModel):
    """Each step is paid what the judge said of another pole, drawn at random: a judge's numbers that say nothing.

    Rewards in another order within a chunk of a run would say something: all environments begin at once with an upright
    pole, so that chunks differ in how many poles stand.
    """

    def __init__(self) -> None:
        clip, _ = poles_at_rest()
        self._values = own_judge("probability").reward(clip)[-1]
        self._rng = np.random.default_rng(0)

    def reward(self, clip: Clip) -> np.ndarray:
        """float32[T, N]."""
        return self._rng.choice(self._values, clip.shape)


class Constant(RewardModel):
    """The same for each step: whether staying in the game pays by itself."""

    needs = frozenset()

    def reward(self, clip: Clip) -> np.ndarray:
        """float32[T, N]."""
        return np.full(clip.shape, 0.5, np.float32)


def own_words() -> JudgeConfig:
    """The recipe's reward: the judge in the words of its training."""
    reward = load_recipe(RECIPE, []).reward
    assert isinstance(reward, JudgeConfig), "it is a judge's recipe"
    return reward


def other_question(prompt: str) -> str:
    """The same prompt, where "left" is yes: a pole that leans to the left is paid."""
    before, choices = prompt.split("[choices]")
    no, left, right = choices.split()
    return f"{before}[choices]\n{left}\n{no}\n{right}\n"


# -- before training ---------------------------------------------------------------------------------------------------


def rewards_of(task: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Name -> overrides of the task's recipe."""
    prompt = own_words().prompt or ""
    files = {"digits": DIGITS, "own": prompt, "other": other_question(prompt)}
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    model = ("reward.kind=judge", "reward.provider=local", "reward.model=bundled", "reward.frame_size=[96,96]")
    yes_no = (*model, "reward.form=yes_no")
    window = ("reward.over=window", "reward.window=8", "reward.frames=4")
    rewards = {
        "scale": model,
        "scale, other goal": (*model, f"goal={OTHER_GOALS[task]}"),
        "yes_no": (*yes_no, f"reward.prompt={folder / 'digits.txt'}"),
        # Its replies are written token by token, which takes longest.
        "shuffled": (*model, "reward.form=shuffled", *window, "reward.every=8"),
    }
    if task == "cartpole":
        pair = (*yes_no, "reward.over=window", "reward.window=2", "reward.frames=2")
        rewards |= {
            "own words": (*pair, f"reward.prompt={folder / 'own.txt'}"),
            "own words, other question": (*pair, f"reward.prompt={folder / 'other.txt'}"),
        }
    return rewards


def lab(task: str) -> dict[str, Any]:
    """The lab's measures and controls of each reward; its reason where a reward could not be had."""
    with tempfile.TemporaryDirectory() as folder:
        options = []
        for name, overrides in rewards_of(task, Path(folder)).items():
            options += ["--reward", f"{name}={','.join(overrides)}"]
        play = ("--play", "random", "--play", "scripted", "--episodes", sized("5", "1"))
        document = sightline("lab", task, "seed=0", *options, *play)
    return {"frames": document["frames"], "rewards": document["rewards"]}


def poles_at_rest() -> tuple[Clip, np.ndarray]:
    """Poles of any angle anywhere on the track, each twice, so that none moves; and which are upright, bool[POLES]."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(-np.pi, np.pi, POLES)
    places = rng.uniform(-TRACK, TRACK, POLES)
    frames = [draw_cartpole(*state, (96, 96), LOOKS["plain"]) for state in zip(places, angles, strict=True)]
    first = np.array([[True], [False]]).repeat(POLES, axis=1)
    return Clip(first, frames=np.stack([frames, frames])), np.abs(angles) <= UPRIGHT


def own_judge(form: str) -> JudgeReward:
    """The judge in the words of its training, asked about each step."""
    settings = own_words().model_dump(exclude={"kind", "form"}) | {"every": 1}
    return JudgeReward(["upright"], form=form, **settings)


def spread() -> dict[str, Any]:
    """Of `yes_no` and `probability` in the model's own words: variance between classes, over all variance."""
    clip, is_upright = poles_at_rest()
    shares = {}
    for form in ("yes_no", "probability"):
        values = own_judge(form).reward(clip)[-1].astype(np.float64)
        means = np.where(is_upright, values[is_upright].mean(), values[~is_upright].mean())
        shares[form] = {
            "upright": round(float(values[is_upright].mean()), 3),
            "others": round(float(values[~is_upright].mean()), 3),
            "deviation of others": round(float(values[~is_upright].std()), 3),
            "share of variance": round(float(means.var() / values.var()), 3),
        }
    return {"poles": POLES, "forms": shares}


# -- training ----------------------------------------------------------------------------------------------------------


def runs() -> dict[str, tuple[str, ...]]:
    """Name of a row -> overrides of the recipe."""
    other = json.dumps(other_question(own_words().prompt or ""))
    words = tuple(f"reward.{key}={value}" for key, value in (("form", "scale"), ("prompt", "null"), ("over", "frame")))
    return {
        "own words": (),
        "own words, 6 400 steps": SHORT,
        "control: other question": (*SHORT, f"reward.prompt={other}"),
        "control: other poles": (*SHORT, "reward={kind: 'judge:OtherPoles'}", "env_options.render_size=[96,96]"),
        "control: constant": (*SHORT, "reward={kind: 'judge:Constant'}"),
        "own words, yes_no": (*SHORT, "reward.form=yes_no"),
        "own words, difference": (*SHORT, "reward.output=difference"),
        "scale": (*SHORT, *words),
    }


def trained(name: str, seed: int) -> dict[str, Any]:
    """What a reward makes of the recipe with one seed."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(folder_of(name), (RECIPE, *TESTS, *runs()[name]), seed, Path(folder))
    facts = {part: result[part] for part in ("success_rate", "ci_low", "ci_high", "return", "wall_seconds")}
    return facts | {"untrained": {part: result["untrained"][part] for part in ("success_rate", "return")}}


def judged(rows: dict[str, Any]) -> dict[str, Any]:
    """All runs so far, and whether those in the model's own words succeed and the controls do not."""
    learned = [rows[key]["success_rate"] for seed in SEEDS if (key := f"own words, {seed}") in rows]
    controls = [run["success_rate"] for key, run in rows.items() if key.startswith("control")]
    is_learned = len(learned) == len(SEEDS) and min(learned) >= LEAST_SUCCESS
    return {"runs": rows, "met": bool(is_learned and controls and max(controls) <= MOST_SUCCESS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["lab", "spread", "learn"])
    parser.add_argument("--tasks", nargs="+", default=list(OTHER_GOALS), choices=list(OTHER_GOALS))
    parser.add_argument("--rewards", nargs="+", default=list(runs()), choices=list(runs()))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    given = parser.parse_args()
    for part in given.parts:
        if part == "lab":
            for task in given.tasks:
                keep(FILE, "lab", kept(FILE, "lab") | {task: lab(task)})
        elif part == "spread":
            keep(FILE, "spread", spread())
            print(kept(FILE, "spread"), flush=True)
        else:
            print("met:", learn_rows(FILE, given.rewards, given.seeds, trained, judged)["met"], flush=True)


if __name__ == "__main__":
    main()
