"""How fast is an update beside TRL's GRPOTrainer, and how much memory does it take?

    pip install trl
    python benchmarks/trl_grpo.py rounds memory
    python benchmarks/trl_grpo.py words --model ./smollm2     # a folder, as tools/smollm2.py makes it

Both learn by GRPO from one-turn games of NumberLine: 32 prompts with a picture, 8 replies to each, one optimiser step
of all 256. Same bundled model, float32, one thread, no KL term, no gradient checkpointing, same prompt ids (checked),
same token limit, reward for a correct move. An update is everything between two optimiser steps: reading prompts,
sampling, rewards, forward and backward passes; its seconds are the processor's. The learning rate is so small that
both say what the model says.

- `rounds`: in turn an update of TRL and one of ours, on the same prompts, so that drifts of the machine hit both;
  the first two rounds do not count. Twice: as it comes, where groups whose replies are all right or all wrong teach
  nothing, and we read them no more; and with random rewards, so that every reply is learned from.
- `memory`: peak memory of some updates of either in a process of its own, less what it had before them.
- `words`: updates in turn, as in `rounds`, of a language model on games told in words: 4 prompts, 8 replies to each,
  random rewards; with whole weights and with LoRA of rank 8 on queries and values, in float32 and bfloat16, and
  replies of at most 16, 32 and 128 tokens (ours refuses fewer than an answer takes). One round does not count.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from running import keep, kept, sized
from sightline.agents.agent_setup import build
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.resolving import game_maker, resolve
from sightline.agents.rollouts import EpisodeTask
from sightline.config.loading import for_agent, load_recipe
from sightline.models.vlm.types import Prompt
from tiny_families import build_family

FILE = "trl_grpo.json"
RATE = 1e-7


@dataclass(frozen=True)
class Setting:
    """What both learn from, and how.

    Attributes:
        keys: recipe keys beside those that are the same in all settings.
        prompts, replies: of an update.
        micro_batch: most replies of a forward and backward pass.
        tokens: limit of a reply.
        random_rewards: whether random numbers stand for the game's rewards, so that every reply is learned from.
        lora: whether adapters are learned.
        dtype: of the weights.
    """

    keys: tuple[str, ...] = ()
    prompts: int = sized(32, 8)
    replies: int = 8
    micro_batch: int = 64
    tokens: int = 24
    random_rewards: bool = False
    lora: bool = False
    dtype: str = "float32"

    def recipe_keys(self) -> list[str]:
        """Overrides that make our recipe of it."""
        turns = self.prompts * self.replies
        keys = [
            *("env=numberline", "role=agent", "episode_steps=1", "replies.thoughts=false"),
            *(f"replies.max_tokens={self.tokens}", "algorithm.kind=grpo", f"algorithm.group={self.replies}"),
            *(f"rollouts.tasks={self.prompts}", "rollouts.parallel=256", f"policy.dtype={self.dtype}"),
            *("update.epochs=1", f"update.minibatch={turns}", f"update.micro_batch={min(turns, self.micro_batch)}"),
            "update.thought_weight=1",
            *(f"update.learning_rate={RATE}", "threads=1", "device=cpu"),
        ]
        if self.lora:
            keys += ["policy.lora.rank=8", "policy.lora.alpha=16", "policy.lora.targets=[q_proj, v_proj]"]
        return [*keys, *self.keys]

    def seeds_of(self, update: int) -> range:
        """Task seeds of an update: games that no other update has."""
        return range(update * self.prompts, (update + 1) * self.prompts)


Rewards = Callable[[Sequence[Any]], list[float]]


class Ours:
    """Updates of ours."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.setup = build(resolve(for_agent(load_recipe(None, setting.recipe_keys()))))
        self.setup.engine.prepare(self.setup.vlm)
        self._worker, self._sampler = self.setup.rollout_worker(training=True), self.setup.sampler(training=True)
        self._learner = self.setup.learner()
        self.tokens: list[float] = []

    def update(self, number: int) -> list[Prompt]:
        """One update; the prompts that it read."""
        replies = self.setting.replies
        tasks = [EpisodeTask(seed, member) for seed in self.setting.seeds_of(number) for member in range(replies)]
        episodes = self._worker.play(self._sampler, tasks, (number,))
        self.tokens += [len(episode.turns[0].sample.ids) for episode in episodes]
        if self.setting.random_rewards:
            chance = np.random.default_rng(number)
            for episode in episodes:
                episode.turns[0].reward = float(chance.random())
        self._learner.compute_values(episodes)
        self._learner.learn(episodes, self._learner.compute_advantages(episodes), number, 0.0)
        return [prompt for episode in episodes[::replies] if (prompt := episode.turns[0].prompt) is not None]


class Theirs:
    """Updates of TRL, on the prompts of the same games.

    Args:
        ours: for the setting, the weights, and the prompts' words and pictures.
        updates: how many there will be.
        after: called after each, with its number; its time does not count.
    """

    def __init__(self, ours: Ours, updates: int, after: Callable[[int], None]) -> None:
        import datasets
        import transformers
        import trl

        hugging_face: Any = transformers  # their types change with their versions
        library: Any = trl

        setting, recipe = ours.setting, ours.setup.recipe
        self._folder = tempfile.TemporaryDirectory()
        # With adapters, both load the folder that they are added to.
        model = recipe.policy.model if setting.lora else self._folder.name
        if not setting.lora:
            ours.setup.vlm.save(model)
        game = game_maker(recipe, training=True)()
        names, asked = game.get_wrapper_attr("action_names"), game.get_wrapper_attr("asked")
        rows: dict[str, list[Any]] = {"prompt": [], "seed": []}
        if not recipe.text_only:
            rows["image"] = []
        for seed in range(updates * setting.prompts):
            observation, _ = game.reset(seed=seed)
            text = prompt_text(observation.text, recipe.replies, asked, names)
            rows["prompt"].append([{"role": "user", "content": text}])
            rows["seed"].append(seed)
            if not recipe.text_only:
                rows["image"].append(Image.fromarray(observation.images[-1]))
        chance = np.random.default_rng(0)

        def reward(prompts: Sequence[Any], completions: Sequence[Any], seed: Sequence[int], **_: Any) -> list[float]:
            if setting.random_rewards:
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
            gradient_accumulation_steps=setting.prompts * setting.replies // size,
            num_generations=setting.replies,
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
                self.began = time.process_time()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                theirs.seconds.append(time.process_time() - self.began)
                after(len(theirs.seconds) - 1)
                self.began = time.process_time()

        self.prompt_ids: list[Any] = []
        self.tokens: list[float] = []

        class Watched(library.GRPOTrainer):  # type: ignore[misc]
            """Remembers the prompts that were read."""

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                made = super()._generate_and_score_completions(inputs)
                kept = zip(made["prompt_ids"], made["prompt_mask"], strict=True)
                theirs.prompt_ids.append([ids[mask.bool()].tolist() for ids, mask in kept])
                theirs.tokens += made["completion_mask"].sum(1).tolist()
                return made

        if recipe.text_only:
            kind, reader = hugging_face.AutoModelForCausalLM, hugging_face.AutoTokenizer
        else:
            kind, reader = hugging_face.AutoModelForImageTextToText, hugging_face.AutoProcessor
        self._trainer = Watched(
            model=kind.from_pretrained(model, dtype=getattr(torch, setting.dtype)),
            reward_funcs=reward,
            args=settings,
            train_dataset=datasets.Dataset.from_dict(rows),
            processing_class=reader.from_pretrained(model, padding_side="left"),
            peft_config=adapters() if setting.lora else None,
            callbacks=[Clock()],
        )

    def train(self) -> None:
        """All updates."""
        self._trainer.train()


def adapters() -> Any:
    """The adapters of `Setting.recipe_keys`, for TRL."""
    import peft

    return peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def rounds(count: int, setting: Setting, warming: int = 2) -> dict[str, Any]:
    """Processor seconds of an update of either, in turn, their ratio, and tokens of a reply.

    Args:
        count: updates of each that count.
        setting: what is learned from, and how.
        warming: updates before them that do not count.
    """
    ours = Ours(setting)
    seconds: list[float] = []
    read: list[list[Prompt]] = []

    def follow(number: int) -> None:
        began = time.process_time()
        read.append(ours.update(number))
        seconds.append(time.process_time() - began)

    theirs = Theirs(ours, count + warming, follow)
    theirs.train()
    for mine, others in zip(read, theirs.prompt_ids, strict=True):
        # theirs are shuffled for the passes
        assert {tuple(prompt.ids.tolist()) for prompt in mine} == {tuple(ids) for ids in others}, "other prompts"
    measured = {"TRL, s": theirs.seconds[warming:], "ours, s": seconds[warming:]}
    measured["ratio"] = [other / mine for other, mine in zip(*measured.values(), strict=True)]
    tokens = {"tokens of a reply, TRL": mean(theirs.tokens), "tokens of a reply, ours": mean(ours.tokens)}
    return tokens | {
        name: {"median": median(values), "least": min(values), "most": max(values)} for name, values in measured.items()
    }


WAYS = {
    "whole weights, float32": Setting(),
    "LoRA, float32": Setting(lora=True),
    "LoRA, bfloat16": Setting(lora=True, dtype="bfloat16"),
}
TOKENS = sized((16, 32, 128), (64,))


def words(model: Path, count: int, limits: Sequence[int], ways: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of the part `words`: what was set, and what `rounds` says of it.

    Args:
        count: rounds.
        limits: tokens of a reply.
        ways: names in `WAYS`.
    """
    keys = ("text_only=true", f"policy.model={model}")
    for tokens in limits:
        for name in ways:
            way = WAYS[name]
            setting = replace(
                way, keys=keys, prompts=sized(4, 1), micro_batch=sized(16, 8), tokens=tokens, random_rewards=True
            )
            yield f"{name}, {tokens} tokens", rounds(count, setting, warming=1)


def memory(way: str, updates: int) -> float:
    """Peak memory of some updates in this process, MiB, less that before the first."""
    ours = Ours(Setting(random_rewards=True))
    theirs = Theirs(ours, updates, lambda number: None)
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


def say(name: str, row: dict[str, Any]) -> None:
    """Print a row."""
    for what, value in row.items():
        if isinstance(value, dict):
            print(f"{name}, {what}: {value['median']:.2f} [{value['least']:.2f}, {value['most']:.2f}]", flush=True)
        else:
            print(f"{name}, {what}: {value:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["rounds", "memory", "words"])
    parser.add_argument("--rounds", type=int, default=sized(12, 1))
    parser.add_argument("--model", help="of `words`: a language model's folder; default: a tiny one of random weights")
    parser.add_argument("--tokens", type=int, nargs="+", choices=TOKENS, default=TOKENS, help="of `words`: limits")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="of `words`")
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
        measured = {
            name: rounds(given.rounds, Setting(random_rewards=is_random))
            for name, is_random in (("as it comes", False), ("all learned", True))
        }
        keep(FILE, "rounds", versions | measured)
        for name, row in measured.items():
            say(name, row)
    if "words" in given.parts:
        # Rows of before stay: all of them take an hour or two.
        rows: dict[str, Any] = kept(FILE, "words").get("rows", {})
        with tempfile.TemporaryDirectory() as folder:
            model = Path(given.model or folder)
            if given.model is None:
                build_family("llama", model)
            for name, row in words(model, given.rounds, given.tokens, given.ways):
                rows[name] = row
                keep(FILE, "words", versions | {"model": model.name, "rows": rows})
                say(name, row)
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
