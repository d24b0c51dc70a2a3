"""How fast is an update beside TRL's GRPOTrainer, and how much memory does it take?

    pip install trl
    python benchmarks/trl_grpo.py rounds memory

Both learn by GRPO from one-turn games of NumberLine: 32 prompts with a picture, 8 replies to each, one optimiser step
of all 256. Same bundled model, float32, one thread, no KL term, no gradient checkpointing, same prompt ids (checked),
same token limit, reward for a correct move. An update is everything between two optimiser steps: reading prompts,
sampling, rewards, forward and backward passes. The learning rate is so small that both say what the model says.

- `rounds`: in turn an update of TRL and one of ours, on the same prompts, so that drifts of the machine hit both;
  the first two rounds do not count. Twice: as it comes, where groups whose replies are all right or all wrong teach
  nothing, and we read them no more; and with random rewards, so that every reply is learned from.
- `memory`: peak memory of some updates of either in a process of its own, less what it had before them.

Results go to benchmarks/results/trl_grpo.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image

from running import keep, sized
from sightline.agents.agent_setup import build
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.resolving import game_maker, resolve
from sightline.agents.rollouts import EpisodeTask
from sightline.config.loading import for_agent, load_recipe
from sightline.models.vlm.types import Prompt

FILE = "trl_grpo.json"
PROMPTS, REPLIES = sized(32, 8), 8
RATE = 1e-7
RECIPE = (
    *("env=numberline", "role=agent", "episode_steps=1", "replies.thoughts=false", "replies.max_tokens=24"),
    *("algorithm.kind=grpo", f"algorithm.group={REPLIES}", f"rollouts.tasks={PROMPTS}", "rollouts.parallel=256"),
    *("update.epochs=1", "update.minibatch=256", "update.thought_weight=1", f"update.learning_rate={RATE}"),
    *("threads=1", "device=cpu"),
)
Rewards = Callable[[Sequence[Any]], list[float]]


def seeds_of(update: int) -> range:
    """Task seeds of an update: games that no other update has."""
    return range(update * PROMPTS, (update + 1) * PROMPTS)


class Ours:
    """Updates of ours.

    Args:
        random_rewards: replaces the game's rewards by random ones.
    """

    def __init__(self, random_rewards: bool) -> None:
        self.setup = build(resolve(for_agent(load_recipe(None, list(RECIPE)))))
        self.setup.engine.prepare(self.setup.vlm)
        self._worker, self._sampler = self.setup.rollout_worker(training=True), self.setup.sampler(training=True)
        self._learner, self._random = self.setup.learner(), random_rewards

    def update(self, number: int) -> list[Prompt]:
        """One update; the prompts that it read."""
        tasks = [EpisodeTask(seed, member) for seed in seeds_of(number) for member in range(REPLIES)]
        episodes = self._worker.play(self._sampler, tasks, (number,))
        if self._random:
            chance = np.random.default_rng(number)
            for episode in episodes:
                episode.turns[0].reward = float(chance.random())
        self._learner.compute_values(episodes)
        self._learner.learn(episodes, self._learner.compute_advantages(episodes), number, 0.0)
        return [prompt for episode in episodes[::REPLIES] if (prompt := episode.turns[0].prompt) is not None]


class Theirs:
    """Updates of TRL, on the prompts of the same games.

    Args:
        ours: for the prompts' words and pictures.
        updates: how many there will be.
        after: called after each, with its number; its time does not count.
    """

    def __init__(self, ours: Ours, updates: int, random_rewards: bool, after: Callable[[int], None]) -> None:
        import datasets
        import transformers
        import trl

        hugging_face: Any = transformers  # their types change with their versions
        library: Any = trl

        recipe = ours.setup.recipe
        self._folder = tempfile.TemporaryDirectory()
        ours.setup.vlm.save(self._folder.name)
        game = game_maker(recipe, training=True)()
        names, asked = game.get_wrapper_attr("action_names"), game.get_wrapper_attr("asked")
        rows: dict[str, list[Any]] = {"prompt": [], "image": [], "seed": []}
        for seed in range(updates * PROMPTS):
            observation, _ = game.reset(seed=seed)
            text = prompt_text(observation.text, recipe.replies, asked, names)
            rows["prompt"].append([{"role": "user", "content": text}])
            rows["image"].append(Image.fromarray(observation.images[-1]))
            rows["seed"].append(seed)
        chance = np.random.default_rng(0)

        def reward(prompts: Sequence[Any], completions: Sequence[Any], seed: Sequence[int], **_: Any) -> list[float]:
            if random_rewards:
                return [float(one) for one in chance.random(len(completions))]
            found = []
            for said, which in zip(completions, seed, strict=True):
                game.reset(seed=int(which))
                action = read_reply(said[0]["content"], recipe.replies, names, asked, True).action
                found.append(float(game.step(action)[1]) if action else 0.0)
            return found

        size = recipe.update.micro_batch
        settings = library.GRPOConfig(
            output_dir=self._folder.name,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=PROMPTS * REPLIES // size,
            num_generations=REPLIES,
            max_completion_length=recipe.replies.max_tokens,
            max_steps=updates,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            shuffle_dataset=False,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        self.seconds: list[float] = []
        theirs = self

        class Clock(hugging_face.TrainerCallback):  # type: ignore[misc]
            """Times each update, and has ours follow it."""

            began = 0.0

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.began = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                theirs.seconds.append(time.perf_counter() - self.began)
                after(len(theirs.seconds) - 1)
                self.began = time.perf_counter()

        self.prompt_ids: list[Any] = []

        class Watched(library.GRPOTrainer):  # type: ignore[misc]
            """Remembers the prompts that were read."""

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                made = super()._generate_and_score_completions(inputs)
                kept = zip(made["prompt_ids"], made["prompt_mask"], strict=True)
                theirs.prompt_ids.append([ids[mask.bool()].tolist() for ids, mask in kept])
                return made

        self._trainer = Watched(
            model=hugging_face.AutoModelForImageTextToText.from_pretrained(self._folder.name, dtype=torch.float32),
            reward_funcs=reward,
            args=settings,
            train_dataset=datasets.Dataset.from_dict(rows),
            processing_class=hugging_face.AutoProcessor.from_pretrained(self._folder.name, padding_side="left"),
            callbacks=[Clock()],
        )

    def train(self) -> None:
        """All updates."""
        self._trainer.train()


def rounds(count: int, random_rewards: bool) -> dict[str, Any]:
    """Seconds of an update of either, in turn, and their ratio."""
    ours = Ours(random_rewards)
    seconds: list[float] = []
    read: list[list[Prompt]] = []

    def follow(number: int) -> None:
        began = time.perf_counter()
        read.append(ours.update(number))
        seconds.append(time.perf_counter() - began)

    theirs = Theirs(ours, count + 2, random_rewards, follow)
    theirs.train()
    for mine, others in zip(read, theirs.prompt_ids, strict=True):
        # theirs are shuffled for the passes
        assert {tuple(prompt.ids.tolist()) for prompt in mine} == {tuple(ids) for ids in others}, "other prompts"
    ratios = [other / mine for other, mine in zip(theirs.seconds[2:], seconds[2:], strict=True)]
    return {
        name: {"median": median(values), "least": min(values), "most": max(values)}
        for name, values in (("TRL, s", theirs.seconds[2:]), ("ours, s", seconds[2:]), ("ratio", ratios))
    }


def memory(way: str, updates: int) -> float:
    """Peak memory of some updates in this process, MiB, less that before the first."""
    ours = Ours(random_rewards=True)
    theirs = Theirs(ours, updates, True, lambda number: None)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten (Linux)
    before = _memory("VmRSS")
    if way == "trl":
        theirs.train()
    else:
        for number in range(updates):
            ours.update(number)
    return _memory("VmHWM") - before


def _memory(what: str) -> float:
    """Present (`VmRSS`) or peak (`VmHWM`) memory of this process, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["rounds", "memory"])
    parser.add_argument("--rounds", type=int, default=sized(12, 1))
    parser.add_argument("--of", choices=["trl", "ours"], help=argparse.SUPPRESS)  # for the processes of `memory`
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # names that the libraries will change
    if given.of:
        print(json.dumps(memory(given.of, 3)))
        return
    if importlib.util.find_spec("trl") is None:
        raise SystemExit("needs trl (pip install trl)")
    import transformers
    import trl

    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    if "rounds" in given.parts:
        found = {name: rounds(given.rounds, value) for name, value in (("as it comes", False), ("all learned", True))}
        keep(FILE, "rounds", versions | found)
        for name, measured in found.items():
            for what, spread in measured.items():
                print(f"{name}, {what}: {spread['median']:.2f} [{spread['least']:.2f}, {spread['most']:.2f}]")
    if "memory" in given.parts:
        command = [sys.executable, __file__, "memory", "--of"]
        peaks = {
            way: json.loads(subprocess.run([*command, way], stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
            for way in ("trl", "ours")
        }
        keep(FILE, "memory", versions | {f"{way}, MiB": peak for way, peak in peaks.items()})
        print(peaks)


if __name__ == "__main__":
    main()
