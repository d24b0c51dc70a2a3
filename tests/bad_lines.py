"""Bad command lines, a table for every command, and how one is judged: the test takes a few, the benchmark all.

A line is carried out in a folder that `build` fills: pictures, recipes and models that are none, and tiny runs of every
role. It must end with the code that it states, in one line on stderr that names what is wrong, with nothing made and
nothing changed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conftest import TINY, TINY_ON_POLICY

SECONDS, WAITING = 60, 300
"""Processor time that a line may take, and time at all: the machine may be busy."""
RAW = re.compile(
    r"\w*(?<!Run)(?:Error|Exception)\b|\bErrno\b|has no attribute|NoneType|Traceback|Input should|Value error|"
    r"[Vv]alidation|pydantic|<class|object at 0x|\bself\b|subscriptable|unhashable|positional argument|--debug"
)
"""Words of Python and of libraries that say nothing to a user."""


@dataclass(frozen=True)
class Line:
    """A command line that is wrong.

    Attributes:
        words: what stands after `sightline`.
        names: what the message must name.
        codes: exit codes that are right; 0 among them for what a command can do without.
        stdin: what is piped into the command.
        alone: it needs a process of its own.
        damage: a file of a run, and what is done to it before.
        theirs: a word of Python's is right, because it quotes what other people's code said.
    """

    words: tuple[str, ...]
    names: str = ""
    codes: tuple[int, ...] = (2,)
    stdin: bytes | None = None
    alone: bool = False
    damage: tuple[str, str] | None = None
    theirs: bool = False

    @property
    def command(self) -> str:
        return " ".join(self.words[: 2 if self.words[:1] == ("label",) else 1])

    def __str__(self) -> str:
        shown = " ".join(word if len(word) <= 80 else f"{word[:77]}…" for word in self.words)
        damage = "" if self.damage is None else f"   ({self.damage[0]}: {self.damage[1]})"
        return "sightline " + shown.encode("unicode_escape").decode() + damage


def line(*words: str, **about: Any) -> Line:
    return Line(words, **about)


# -- what keys may not be ----------------------------------------------------------------------------------------------

NOT_A_NUMBER = (".nan", ".inf", "1e400", "yes", "many", "[1]", "{a: 1}", "", "12:30", "0x", "½", "1,5")
BAD = {
    "count": ("0", "-1", "1.5", "null", *NOT_A_NUMBER),
    "count or null": ("0", "-1", "1.5", *NOT_A_NUMBER),
    "count from 0": ("-1", "0.5", "null", *NOT_A_NUMBER),
    "positive": ("0", "-0.1", "-.inf", "null", *NOT_A_NUMBER),
    "from 0": ("-0.1", "-1e-9", "null", *NOT_A_NUMBER),
    "number": ("null", "-.inf", *NOT_A_NUMBER),
    "share": ("-0.01", "1.01", "50%", "null", *NOT_A_NUMBER),
    "flag": ("2", "-1", "maybe", "[true]", "{a: true}", "null", ".nan", "ja", ""),
    "word": ("unheard-of", "3", "null", "[a]", "{a: b}", "yes", "", " "),
    "map": ("3", "text", "[1]", "yes", "null", ".nan"),
    "text": ("3", "[a]", "{a: b}", "yes", ".nan"),
    "sizes": ("0", "[0, 64]", "[64]", "[64, 64, 64]", "[64, wide]", "{a: 1}", "[-1, 64]", "[1.5, 64]", "yes", "64x64"),
    "widths": ("0", "[0]", "[-16]", "[16, wide]", "[1.5]", "{a: 1}", "yes", "null", "16,16"),
}
"""Kind of key -> values that it may not have."""

CONTROL_KEYS = {
    "steps": "count",
    "envs": "count",
    "seed": "count from 0",
    "threads": "count",
    "episode_steps": "count or null",
    "step_timeout": "positive",
    "workers": "word",
    "tensorboard": "flag",
    "videos": "word",
    "videos.final": "flag",
    "videos.every": "count or null",
    "env_options": "map",
    "checkpoints": "map",
    "checkpoints.every": "count or null",
    "checkpoints.keep": "count",
    "evaluation": "map",
    "evaluation.every": "count or null",
    "evaluation.episodes": "count",
    "evaluation.test_episodes": "count",
    "evaluation.background": "word",
    "rescale_observations": "flag",
    "reward": "map",
    "reward.kind": "word",
    "reward.encoder": "word",
    "reward.alpha": "share",
    "reward.batch_size": "count",
    "reward.dtype": "word",
    "reward.aspect": "word",
    "reward.device": "word",
    "reward.views": "count",
    "reward.combine": "word",
    "reward.keep_embeddings": "flag",
    "learner": "map",
    "learner.algorithm": "word",
    "learner.learning_rate": "positive",
    "learner.learning_rate_end": "share",
    "learner.gamma": "share",
    "learner.chunk": "count",
    "learner.hidden": "widths",
    "learner.options": "map",
    "learner.buffer_size": "count",
    "learner.batch_size": "count",
    "learner.tau": "share",
    "learner.learning_starts": "count from 0",
    "learner.gradient_steps": "count",
    "device": "word",
}
"""Keys of a policy that learns from words -> their kind."""
ON_POLICY_KEYS = {
    "learner.epochs": "count",
    "learner.clip_range": "positive",
    "learner.ent_coef": "from 0",
    "learner.vf_coef": "from 0",
    "learner.max_grad_norm": "positive",
    "learner.gae_lambda": "share",
    "learner.frames_every": "count",
    "learner.standardise_rewards": "flag",
    "learner.action_cost": "from 0",
    "learner.initial_std": "positive",
}
TAUGHT_KEYS = {
    "reward.teacher": "map",
    "reward.teacher.kind": "word",
    "reward.teacher.beta": "positive",
    "reward.teacher.gamma": "positive",
    "reward.teacher.skip": "from 0",
    "reward.teacher.mistake": "share",
    "reward.feedback": "map",
    "reward.feedback.kind": "word",
    "reward.feedback.sampler": "word",
    "reward.feedback.candidates": "count",
    "reward.feedback.noise": "positive",
    "reward.feedback.ties": "flag",
    "reward.model": "map",
    "reward.model.kind": "word",
    "reward.model.hidden": "widths",
    "reward.segment": "count",
    "reward.explore": "count from 0",
    "reward.every": "count",
    "reward.questions": "count from 0",
    "reward.schedule": "word",
    "reward.budget": "map",
    "reward.budget.questions": "count",
    "reward.budget.money": "positive",
    "reward.lag": "flag",
    "reward.pool": "count",
    "reward.scale": "positive",
    "reward.reset_updates": "count from 0",
    "reward.frame_size": "sizes",
    "reward.fitting.ensemble": "count",
    "reward.fitting.epochs": "count",
    "reward.fitting.held_out": "share",
    "reward.fitting.learning_rate": "positive",
    "reward.labels_any_goal": "flag",
}
CHAT_KEYS = {
    "reward.teacher.provider": "word",
    "reward.teacher.stages": "count",
    "reward.teacher.votes": "count",
    "reward.teacher.frames": "count",
    "reward.teacher.temperature": "from 0",
    "reward.teacher.max_tokens": "count",
    "reward.teacher.concurrency": "count",
    "reward.teacher.requests_per_minute": "positive",
    "reward.teacher.timeout": "positive",
    "reward.teacher.retries": "count from 0",
    "reward.teacher.quota": "word",
    "reward.teacher.options": "map",
    "reward.teacher.headers": "map",
    "reward.teacher.input_price": "from 0",
}
AGENT_KEYS = {
    "steps": "count from 0",
    "actions": "flag",
    "text_only": "flag",
    "policy": "map",
    "policy.dtype": "word",
    "policy.sampler": "word",
    "policy.four_bit": "flag",
    "policy.freeze": "word",
    "policy.lora": "word",
    "policy.lora.rank": "count",
    "policy.lora.alpha": "positive",
    "policy.vllm.memory_share": "share",
    "policy.server.concurrency": "count",
    "replies": "map",
    "replies.format": "word",
    "replies.facts": "flag",
    "replies.fields": "map",
    "replies.max_tokens": "count",
    "replies.unparsable": "word",
    "replies.illegal": "word",
    "replies.penalty": "from 0",
    "reward.kind": "word",
    "algorithm": "map",
    "algorithm.kind": "word",
    "rollouts": "map",
    "rollouts.tasks": "count",
    "rollouts.parallel": "count",
    "rollouts.temperature": "positive",
    "rollouts.top_k": "count from 0",
    "rollouts.top_p": "share",
    "rollouts.min_p": "share",
    "rollouts.window": "count",
    "rollouts.rewards": "word",
    "update": "map",
    "update.learning_rate": "positive",
    "update.schedule": "word",
    "update.epochs": "count",
    "update.minibatch": "count",
    "update.ratio": "word",
    "update.thought_weight": "share",
    "update.clip_low": "share",
    "update.kl_actions": "from 0",
    "update.entropy": "from 0",
    "update.all_turns": "flag",
    "warm_start": "word",
    "warm_start.samples": "count",
    "warm_start.explore": "share",
    "warm_start.learning_rate": "positive",
    "evaluation.temperature": "from 0",
    "evaluation.unparsable": "word",
    "evaluation.stop_at": "share",
    "alarms": "map",
    "alarms.unparsable": "share",
    "alarms.patience": "count from 0",
    "engine": "word",
}
VALID = {
    *(("reward.alpha", "null"), ("learner.tau", "null"), ("videos", "yes"), ("evaluation.background", "yes")),
    *(("reward.lag", "null"), ("reward.teacher.beta", "null"), ("reward.budget.money", "null")),
    *(("policy.lora", "null"), ("warm_start", "null"), ("evaluation.stop_at", "null"), ("step_timeout", "null")),
    *(("reward.teacher.requests_per_minute", "null"), ("learner.batch_size", "null"), ("reward.alpha", "")),
}
"""Keys that may have one of these values after all."""

WORDS = ("cartpole", *TINY)
ON_POLICY = ("cartpole", "learner.algorithm=PPO", *TINY_ON_POLICY)
TAUGHT = (
    *("cartpole-preferences", *TINY, "steps=96", "evaluation.every=32", "reward.teacher.kind=scripted"),
    *("reward.model.kind=states", "reward.explore=32", "reward.every=32", "reward.questions=3", "reward.pool=20"),
    *("reward.fitting.epochs=2", "reward.reset_updates=1"),
)
CHAT = (
    *(word for word in TAUGHT if not word.startswith("reward.teacher")),
    *("reward.teacher.kind=chat", "reward.teacher.model=m", "reward.teacher.url=http://localhost:9/v1"),
    "reward.lag=false",
)
AGENT = (
    *("numberline", "steps=8", "tensorboard=false", "evaluation.stop_at=null", "evaluation.episodes=2"),
    *("evaluation.test_episodes=2", "rollouts.tasks=1", "update.epochs=1", "update.minibatch=8"),
    *("warm_start.samples=8", "warm_start.batch=8", "env_options.max_position=2", "replies.max_tokens=16"),
)
"""Recipes of a second or two, if one of these lines is taken for good."""
OTHER_GAME = (*(word for word in AGENT if not word.startswith("env_options")), "env_options={}")
"""The agent's recipe, for an environment that has other options."""


def bad_values(keys: dict[str, str], recipe: Sequence[str], each: int) -> Iterator[Line]:
    """So many of the bad values of each key; the next key goes on where the last of its kind stopped."""
    turn = dict.fromkeys(BAD, 0)
    for key, kind in keys.items():
        for _ in range(each):
            value = BAD[kind][turn[kind] % len(BAD[kind])]
            turn[kind] += 1
            # What the recipe says of the key's own block, or of its parts, would hide it.
            others = (word for word in recipe if not _overlaps(word.partition("=")[0], key))
            if (key, value) not in VALID:
                yield line("train", *others, f"{key}={value}", names=key.rpartition(".")[2])


def _overlaps(one: str, other: str) -> bool:
    """Whether one key is a part of the other."""
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


# -- the lines ---------------------------------------------------------------------------------------------------------

WHAT_IS_NO_RECIPE = (
    *("none.yaml", "folder", "empty.yaml", "binary.yaml", "latin.yaml", "broken.yaml", "twice.yaml", "list.yaml"),
    *("itself.yaml", "tag.yaml", "deep.yaml", "huge.yaml", "number.yaml", "words", "photos/up.png", "cartpoel"),
    *(
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        "car\x00tpole",
        "a\nb",
        "\x1b[31mred",
        "x" * 300,
    ),
)
"""Names of the folder that `build` fills, and some that are not there."""


def training() -> Iterator[Line]:
    for name in WHAT_IS_NO_RECIPE:
        if "\0" not in name:
            yield line("train", name)
    for text in (b"", b"\xff\xfe", b"env: [", b"cartpole", b"- env", b"env: cartpole\nenv: cartpole"):
        yield line("train", "-", stdin=text, names="stdin")
    for option in (
        ("--steps", "3"),
        ("--run-dir",),
        ("--json=3",),
        ("--resume=yes",),
        ("-x",),
        ("--",),
        ("--run-dir=",),
    ):
        yield line("train", "cartpole", *(("no-such",) if option == ("--",) else ()), *option)
    yield line("train")
    yield line("train", "cartpole", "steps")
    yield line("train", "cartpole", "=3")
    yield line("train", "cartpole", "steps==3", names="steps")
    yield line("train", "cartpole", "steps =3", names="steps")
    yield line("train", "cartpole", "steps.x=3", names="steps")
    yield line("train", "cartpole", ".steps=3")
    yield line("train", "cartpole", "reward.=3", names="reward")
    yield line("train", "cartpole", "reward..alpha=0.5", names="reward")
    yield line("train", "cartpole", "Steps=3", names="steps")
    yield line("train", "cartpole", "seeds=3", names="'seed'")
    yield line("train", "cartpole", "reward.encodr=bundled", names="'encoder'")
    yield line("train", "cartpole", "learner.lr=0.1", names="learner.lr")
    yield line("train", "cartpole", "policy.model=bundled", names="policy")
    yield line("train", "cartpole", "update.epochs=2", names="update")
    yield line("train", "cartpole", "teacher.kind=chat", names="teacher")
    yield line("train", "numberline", "learner.gamma=0.9", names="learner")
    yield line("train", "numberline", "envs=4", names="envs")
    yield line("train", "cartpole", "role=player", names="role")
    yield line("train", "cartpole", "role=agent")
    yield line("train", "numberline", "role=control")
    yield line("train", "cartpole", "cartpole")
    yield line("train", "cartpole", "mountain-car")
    yield line("train", "cartpole", "steps=3\nseed=4", names="steps")
    yield line("train", "cartpole", "st\u200beps=3")
    yield line("train", "cartpole", "stèps=3", names="'steps'")
    yield line("train", "cartpole", f"steps={10**400}", names="steps")
    yield line("train", "cartpole", f"seed={2**32}", names="seed")
    yield line("train", "cartpole", f"steps={'9' * 5000}", names="steps")
    yield line("train", "cartpole", f"{'k' * 5000}=3")
    for value in (
        "",
        " ",
        "[]",
        "null",
        "3",
        "[3]",
        "{a: b}",
        "['']",
        "[a, null]",
        "true",
        "[[a]]",
        "\x00",
        "x" * 10_001,
    ):
        if "\0" not in value and value not in ("3", "{a: b}", "true"):  # which are sentences
            yield line("train", *WORDS, f"goal={value}", names="goal")
    yield line("train", *WORDS, "goal=pole and cart", names="same words")
    yield line("train", *WORDS, "goal=" + "a pole very " * 40 + "upright", names="shorten it")
    yield line("train", *WORDS, "baseline=[1, 2]", names="baseline")
    yield line("train", *WORDS, "baseline= ", names="baseline")
    for env in (
        "",
        "cartpol",
        "CartPole-v9",
        "no_such:Env",
        "os:path",
        "os:nothing",
        ":",
        "a:",
        ":b",
        "a:b:c",
    ):
        yield line("train", *WORDS, f"env={env}", "goal=a pole", names="env" if not env else "")
    for env in (
        "ALE/Pong-v5",
        "FetchReach-v4",
        "photos",
        "none.py:Env",
        "broken.py:Env",
        "empty.py:Env",
        "raises.py:Env",
    ):
        yield line(
            "train",
            f"env={env}",
            "goal=a pole",
            "baseline=null",
            theirs="raises" in env or "broken" in env,
            codes=(1, 2),
        )
    for env in ("3", "[cartpole]", "null", "{a: b}", "a\nb", "\x1b[2J", "../cartpole", "x" * 5000):
        yield line("train", *WORDS, f"env={env}", "goal=a pole")
    for options in ("{size: 3}", "{render_mode: human}", "{look: none}", "{1: 2}", "{look: {a: b}}", "{look: null}"):
        yield line("train", *WORDS, f"env_options={options}", names="env_options")
    yield line("train", *WORDS, "training_options={size: 3}", names="training_options")
    yield line("train", *WORDS, "observation_keys=[image]", names="observation_keys")
    for encoder in ("bundeld", "local-dir:none", "local-dir:folder", "local-dir:photos", "local-dir:damaged-encoder"):
        yield line("train", *WORDS, f"reward.encoder={encoder}", names=encoder.rpartition(":")[2], codes=(1, 2))
    yield line("train", *WORDS, "reward.encoder=local-dir:no-weights", codes=(1, 2), names="no-weights")
    for encoder in ("local-dir:", "ViT-B-33/openai", "ViT-B-32/opnai", "hf:", "/", "words"):
        yield line("train", *WORDS, f"reward.encoder={encoder}")
    yield line("train", *WORDS, "reward.alpha=0.5", "baseline=null", names="alpha")
    yield line("train", *WORDS, "success_from=nothing", names="success")
    yield line("train", *WORDS, "replay=none", names="none")
    yield line("train", *WORDS, "replay=words", names="words")
    yield line("train", *WORDS, "replay=folder", names="folder")
    yield line("train", *WORDS, "wandb=", names="wandb")
    yield line("train", *WORDS, "device=cuda:99", names="device")
    yield line("train", *WORDS, "learner.algorithm=SAC", names="learner.algorithm")
    yield line("train", *WORDS, "learner.algorithm=sb3_contrib.NONE", names="sb3_contrib")
    yield line("train", *WORDS, "learner.algorithm=os.path", names="os.path")
    yield line("train", *WORDS, "learner.options={no_such: 3}", names="no_such")
    yield line("train", *WORDS, "learner.options={learning_rate: 3}", names="learning_rate")
    yield line("train", *WORDS, "learner.buffer_size=10", names="learner.buffer_size")
    yield line("train", *WORDS, "learner.hidden=[1000000000]", names="learner.hidden", codes=(1, 2))
    yield line("train", *WORDS, "evaluation.test_episodes=1000000000", names="test_episodes")
    yield line("train", *WORDS, f"learner.hidden=[{10**400}]", names="learner.hidden")
    yield line("train", *WORDS, "envs=1000000", "steps=2000000", names="envs", codes=(1, 2))
    yield line("train", *WORDS, "learner.action_noise=much", names="action_noise")
    yield line("train", *WORDS, "learner.action_noise={kind: pink, sigma: 1}", names="action_noise")
    yield line("train", *WORDS, "step_timeout=3", names="workers")
    for kind in ("zeroshot", "words", "learnt", "my_module:Reward", "sightline", ":", "none.py:Reward"):
        yield line("train", "cartpole", f"reward.kind={kind}", names=kind.partition(":")[0])
    yield line("train", "cartpole", "reward.kind=sum", names="reward.terms")
    yield line("train", "cartpole", "reward.kind=sum", "reward.terms=[]", names="terms")
    yield line("train", "cartpole", "reward.kind=sum", "reward.terms=[{weight: much}]", names="weight")
    yield line("train", "cartpole", "reward.kind=sum", "reward.terms=[{reward: {kind: none}}]", names="kind")
    yield line("train", "cartpole", "reward.kind=shaped", "reward.potential.kind=none", names="potential")
    yield line("train", "cartpole", "reward.kind=image_text_matching", "reward.model=none", codes=(1, 2))
    for key, value in (
        *(("api_key", "sk-1234567890abcdef1234567890abcdef"), ("url", "http://u:secret@localhost/v1")),
        *(("url", "localhost"), ("url", "ftp://localhost"), ("url", "http://"), ("url", "http://example.com/v1")),
        *(("model", ""), ("provider", "opena")),
        *(("swap", "[true]"), ("votes", "3"), ("options", "{api_key: sk-1234567890abcdef1234567890abcdef}")),
        *(("query", "{a: [b]}"), ("headers", "{a: 1}")),
    ):
        yield line("train", *CHAT, f"reward.teacher.{key}={value}", names=key)
    for key, value in (("headers.x", "$NO_SUCH_VARIABLE"), ("key_env", "NO_SUCH_VARIABLE")):
        yield line("train", *CHAT, f"reward.teacher.{key}={value}", names="NO_SUCH_VARIABLE")
    yield line("train", "cartpole-preferences", "reward.teacher={kind: chat}", names="model")
    yield line("train", *TAUGHT, "reward.teacher={}", "reward.teacher.kind=nobody", names="teacher")
    yield line("train", *TAUGHT, "reward.teacher=scripted", names="reward.teacher")
    yield line("train", *WORDS, "learner=5", names="learner=5")
    yield line("train", "numbers.yaml", "learner.gamma=0.9", names="learner")
    yield line("train", *TAUGHT, "reward.pool=2", names="pool")
    yield line("train", *TAUGHT, "reward.questions=0", names="labels_from")
    yield line("train", *TAUGHT, "reward.explore=1000", names="explore")
    yield line("train", *TAUGHT, "reward.segment=9", names="segment")
    yield line("train", *TAUGHT, "reward.budget.money=1", names="money")
    yield line("train", *TAUGHT, "reward.labels_from=none", names="none")
    yield line("train", *TAUGHT, "reward.labels_from=words", names="words")
    yield line("train", *TAUGHT, "reward.labels_from=photos/up.png", names="up.png")
    yield line("train", *TAUGHT, "reward.labels=photos/up.png", names="up.png")
    yield line("train", *TAUGHT, "reward.feedback.kind=ladder", "reward.feedback.size=1", names="size")
    yield line("train", *TAUGHT, "reward.feedback.kind=ratings", "reward.feedback.levels=9", names="levels")
    yield line("train", *TAUGHT, "reward.model.kind=cnn", "reward.model.channels=[]", names="channels")
    yield line("train", *TAUGHT, "reward.model.kind=cnn", "reward.model.size=[2, 2]", names="size")
    yield from bad_values(CONTROL_KEYS, WORDS, 3)
    yield from bad_values(ON_POLICY_KEYS, ON_POLICY, 1)
    yield from bad_values(TAUGHT_KEYS, TAUGHT, 1)
    yield from bad_values(CHAT_KEYS, CHAT, 1)


def training_agents() -> Iterator[Line]:
    for model in ("none", "folder", "photos/up.png", "bundeld", "", "/", "no-one/nothing", "damaged-encoder", "words"):
        yield line("train", *AGENT, f"policy.model={model}", codes=(1, 2))
    yield line("train", *AGENT, "env=cartpol", names="'cartpole'")
    yield line("train", *OTHER_GAME, "env=Pendulum-v1", names="actions")
    yield line("train", *OTHER_GAME, "env=cartpole", "actions=[left]", names="actions")
    yield line("train", *OTHER_GAME, "env=cartpole", "actions=[left, left]", names="left")
    yield line("train", *OTHER_GAME, "env=cartpole", "actions=[yes, no]", names="actions")
    yield line("train", *OTHER_GAME, "env=cartpole", "actions={left: [a]}", names="actions")
    yield line("train", *AGENT, "env_options.max_position=0", names="max_position")
    yield line("train", *AGENT, "env_options.max_position=far", names="max_position")
    yield line("train", *AGENT, "env_options.no_such=3", names="no_such")
    yield line("train", *AGENT, "rollouts.train_env_options.no_such=3", names="no_such")
    yield line("train", *AGENT, "replies.fields={plan: x}", names="action")
    yield line("train", *AGENT, "replies.fields.action=x y z", names="action", codes=(0, 2))
    yield line("train", *AGENT, "replies.memory=notes", names="notes")
    yield line("train", *AGENT, "prompt=<image>", names="<image>")
    yield line("train", *AGENT, "policy.sampler=server", names="server", codes=(1, 2))
    yield line("train", *AGENT, "policy.sampler=server", "policy.server.url=no address", names="url")
    yield line("train", *AGENT, "policy.sampler=vllm", codes=(1, 2))
    yield line("train", *AGENT, "policy.sampler=vllm", "rollouts.top_k=3", names="top_k")
    yield line("train", *AGENT, "rollouts.staleness=2", names="staleness")
    yield line("train", *AGENT, "rollouts.prompt_tokens=9", names="prompt_tokens")
    yield line("train", *AGENT, "rollouts.dynamic_sampling=2", names="dynamic_sampling")
    yield line("train", *AGENT, "update.ratio=sequence", names="clip")
    yield line("train", *AGENT, "algorithm.kind=grpo", "algorithm.group=1", names="group")
    yield line("train", *AGENT, "algorithm.kind=grpo", "algorithm.groups=4", names="'group'")
    yield line("train", *AGENT, "warm_start.epochs=2", names="epochs")
    for demos in ("none", "folder", "photos/up.png", "broken.json", "words", "list.json"):
        yield line("train", *AGENT, f"warm_start.demos={demos}", names=demos)
    yield line("train", *AGENT, "engine=ddp", names="torchrun")
    yield line("train", *AGENT, "policy.lora={rank: 4, targets: [none]}", names="none")
    yield line("train", *AGENT, "policy.freeze=[head]", names="freeze")
    yield line("train", *AGENT, "policy.freeze=[vision, projector, language]", names="freeze")
    yield from bad_values(AGENT_KEYS, AGENT, 1)


def resuming() -> Iterator[Line]:
    for place in (
        "none",
        "folder",
        "photos/up.png",
        "broken.yaml",
        "half",
        "taught/labels",
        ".",
        "/dev/null",
        "x" * 300,
    ):
        yield line("train", "--resume", "--run-dir", place)
    yield line("train", "--resume")
    yield line("train", "cartpole", "--resume", names="cartpole")
    yield line("train", "--resume-or-start", "cartpole", names="--run-dir")
    yield line("train", *WORDS, "--resume", "--run-dir", "agent", names="agent")
    yield line("train", *WORDS, "seed=9", "--resume", "--run-dir", "words", names="seed")
    yield line("train", "steps=3", "--resume", "--run-dir", "words", names="steps")
    yield line("train", "steps=many", "--resume", "--run-dir", "words", names="steps")
    yield line("train", "stepz=3", "--resume", "--run-dir", "words", names="stepz")
    yield line("train", *WORDS, "--run-dir", "words", names="exists already")
    yield line("train", *WORDS, "--run-dir", "photos/up.png", names="exists already")
    yield line("train", *WORDS, "--run-dir", "photos/up.png/run", names="up.png")
    yield line("train", *WORDS, "--run-dir", "/dev/null/run", names="/dev/null")
    yield line("train", *WORDS, "--run-dir", "/proc/run", codes=(1, 2), names="/proc/run")
    for how in HOW:
        yield line("train", "--resume", "--run-dir", "words", damage=("words/recipe.yaml", how), codes=(2,))
    for file in ("words/run.json", "words/metrics.jsonl", "words/checkpoints/step-*/*", "words/untrained.json"):
        for how in ("empty", "cut", "noise", "gone", "folder", "list"):
            yield line("train", "steps=512", "--resume", "--run-dir", "words", damage=(file, how), codes=(0, 1, 2))


def evaluating() -> Iterator[Line]:
    for place in (
        "none",
        "folder",
        "photos/up.png",
        "half",
        "taught/labels",
        "cartpole",
        "x" * 300,
        "",
        "a\nb",
        "pipe",
    ):
        yield line("evaluate", place)
    for options in (("0",), ("-1",), ("1.5",), ("many",), ("nan",), ("",), ()):
        yield line("evaluate", "words", "--episodes", *options, names="--episodes")
    yield line("evaluate", "words", "--episodes", "1000000000", names="--episodes")
    for seed in ("-1", str(2**32), "1.5", "x"):
        yield line("evaluate", "words", "--seed", seed, names="--seed")
    yield line("evaluate")
    yield line("evaluate", "words", "words")
    yield line("evaluate", "words", "steps=3", names="steps")
    yield line("evaluate", "words", "episode_steps=0", names="episode_steps")
    yield line("evaluate", "words", "env_options.no_such=3", names="no_such")
    yield line("evaluate", "words", "--no-such", names="--no-such")
    yield line("evaluate", "words", "--url", "http://localhost:9/v1", names="--model")
    yield line("evaluate", "agent", "stepz=3", names="stepz")
    yield line("evaluate", "cartpole", "--model", "bundled", names="role=agent")
    yield line("evaluate", "numberlin", "--model", "bundled", names="'numberline'")
    yield line("evaluate", "numberline", names="--model")
    for model in ("none", "folder", "photos/up.png", "words", "damaged-encoder", "", " ", "bundeld", "no-one/nothing"):
        yield line("evaluate", "numberline", "--model", model, "--episodes", "1", codes=(1, 2))
    yield line("evaluate", "numberline", "--provider", "openai", names="--model")
    yield line("evaluate", "numberline", "--provider", "opena", "--model", "m", names="'openai'")
    for url in (
        "no address",
        "ftp://localhost",
        "http://",
        "http://user:password@localhost/v1",
        "http://example.com/v1",
    ):
        yield line("evaluate", "numberline", "--model", "m", "--url", url)
    yield line("evaluate", "numberline", "--model", "m", "--url", "http://localhost:9/v1", codes=(1, 2), alone=True)
    for how in HOW:
        yield line("evaluate", "words", "--episodes", "1", damage=("words/recipe.yaml", how))
    for file in ("words/checkpoints/best-*/*", "agent/checkpoints/best-*/*"):
        for how in ("empty", "cut", "noise", "gone", "folder", "list"):
            yield line("evaluate", file.partition("/")[0], "--episodes", "1", damage=(file, how))


def reporting() -> Iterator[Line]:
    for place in (
        "none",
        "folder",
        "photos/up.png",
        "taught/labels",
        "cartpole",
        "x" * 300,
        "",
        "a\nb",
        "pipe",
    ):
        yield line("report", place)
    yield line("report", "half", codes=(0, 2))
    yield line("report")
    yield line("report", "words", "none", names="none")
    yield line("report", "words", "words", names="words", codes=(0, 2))
    yield line("report", "words", "photos/up.png", names="up.png")
    yield line("report", "words", "--out")
    for out in ("folder", "none/page.html", "/dev/full", "photos/up.png/page.html", "", "pipe"):
        yield line("report", "words", "--out", out, names="--out")
    yield line("report", "words", "seed=3", names="seed=3")
    yield line("report", "words", "--json", "--no-such", names="--no-such")
    for file in (
        "words/run.json",
        "words/metrics.jsonl",
        "words/result.json",
        "agent/result.json",
        "agent/metrics.jsonl",
    ):
        for how in ("cut", "noise", "folder", "list"):
            yield line("report", file.partition("/")[0], damage=(file, how), codes=(0, 1))
    for how in HOW:
        yield line("report", "words", damage=("words/recipe.yaml", how), codes=(1, 2))


def scoring() -> Iterator[Line]:
    goal = ("--goal", "a pole upright on the cart")
    for file in (
        *("none.png", "folder", "empty.png", "cut.png", "text.png", "broken.gif", "broken.mp4", "none.mp4", "pipe"),
        *("x" * 300, "", "a\nb.png", "bomb.png", "words", "list.json", "/dev/null"),
    ):
        yield line("score", file, *goal)
    yield line("score")
    yield line("score", *goal)
    yield line("score", "photos", names="--goal")
    yield line("score", "photos", "--goal")
    yield line("score", "photos", "--goal", "", names="goal")
    yield line("score", "photos", "--goal", "x" * 20_000, names="goal")
    yield line("score", "photos", "--goal", "a pole very " * 40, names="shorten it")
    yield line("score", "photos", *goal, "--baseline", "", names="baseline")
    yield line("score", "photos", *goal, "--baseline", goal[1], names="same words")
    yield line("score", "photos", *goal, "--alpha", "0.5", names="baseline")
    for alpha in ("-0.1", "1.1", "nan", "inf", "half", "", "1e400"):
        yield line("score", "photos", *goal, "--baseline", "a cart", "--alpha", alpha, names="alpha")
    for model in (
        "bundeld",
        "",
        "none",
        "local-dir:none",
        "local-dir:folder",
        "ViT-B-32/x",
    ):
        yield line("score", "photos", *goal, "--model", model)
    yield line("score", "photos", *goal, "--model", "local-dir:damaged-encoder", names="damaged-encoder", codes=(1,))
    yield line("score", "photos", *goal, "--aspect", "stretch", names="--aspect")
    for option in ("--csv", "--plot"):
        for place in ("folder", "none/x", "/dev/full", "photos/up.png", ""):
            yield line("score", "photos", *goal, option, place, names=option)
    yield line("score", "photos", *goal, "--csv", "out", "--plot", "./out", names="two files")
    yield line("score", "photos/up.png", "photos/up.png", *goal, "--goal3", "x", names="--goal3")


def labelling() -> Iterator[Line]:
    yield line("label", "no-such", names="no-such")
    for command in ("stats", "fit"):
        for place in ("none", "folder", "photos/up.png", "words", "x" * 300, "", "damaged-store", "pipe"):
            yield line("label", command, place)
        yield line("label", command)
    yield line("label", "stats", "taught", "--run", "none", names="none")
    yield line("label", "stats", "taught", "--html", "folder", names="--html")
    yield line("label", "stats", "taught", "--html", "none/x.html", names="--html")
    yield line("label", "fit", "taught", "stepz=3", names="stepz")
    yield line("label", "fit", "taught", "reward.kind=zero_shot", names="reward.kind")
    yield line("label", "fit", "taught", "goal=something else", names="goal")
    yield line("label", "fit", "taught", "--out", "words", names="--out")
    yield line("label", "fit", "taught", "--out", "photos/up.png", names="--out")
    yield line("label", "fit", "taught", "reward.fitting.epochs=0", names="epochs")
    for target in ("words", "photos/up.png", "", "photos/up.png/x.parquet", "list.json"):
        yield line("label", "export", "taught", target)
    yield line("label", "export", "taught")
    yield line("label", "export", "none", "x.parquet", names="none")
    yield line("label", "export", "taught", "x.parquet", "--run", "none", names="none")
    for file in (
        "none",
        "folder",
        "photos/up.png",
        "broken.pkl",
        "broken.parquet",
        "empty.pkl",
        "evil.pkl",
        "words",
        "",
    ):
        yield line("label", "import", file, "--into", "new-store", "--goal", "a pole")
    yield line("label", "import", "--into", "new-store")
    yield line("label", "import", "broken.pkl", names="--into")
    yield line("label", "import", "broken.pkl", "--into", "photos/up.png")
    yield line("label", "import", "broken.pkl", "--into", "new-store", "--goal", "", names="goal")
    for place in ("none", "folder", "photos/up.png", "words", "", "pipe", "damaged-store"):
        yield line("label", "run", place)
    for questions in ("0", "-1", "many"):
        yield line("label", "run", "taught", "--questions", questions, names="--questions")
    yield line("label", "run", "taught", "stepz=3", names="stepz")
    yield line("label", "run", "taught", "reward.teacher.kind=nobody", names="teacher")
    yield line("label", "run", "taught", "reward.kind=zero_shot", names="reward")
    yield line("label", "run", "new-store", "env=cartpol", names="'cartpole'")
    yield line("label", "run", "agent", names="agent")
    for place in ("none", "folder", "photos/up.png", "words", "damaged-store"):
        yield line("label", "serve", place, "--port", "0")
    for port in ("-1", "65536", "http", ""):
        yield line("label", "serve", "taught", "--port", port, names="--port")
    yield line("label", "serve", "taught", "--port", "0", "--name", "", names="name")
    yield line("label", "serve", "taught", "--port", "0", "--camera", "top", names="--camera")
    yield line("label", "serve", "taught", "--port", "0", "--ask", "success", "--camera", "top", names="--camera")


def checking() -> Iterator[Line]:
    for env in (
        "cartpol",
        "",
        "none.py:Env",
        "raises.py:Env",
        "os:path",
        "CartPole-v9",
        "3",
        "a\nb",
        "words",
        "x" * 300,
    ):
        yield line("check-env", env, codes=(1, 2), theirs="raises" in env)
    yield line("check-env")
    for episodes in ("0", "1", "-3", "many", "1e9"):
        yield line("check-env", "cartpole", "--episodes", episodes, names="--episodes")
    for seed in ("-1", str(2**32), "x"):
        yield line("check-env", "cartpole", "--seed", seed, names="seed")
    yield line("check-env", "cartpole", "stepz=3", names="stepz")
    yield line("check-env", "cartpole", "env_options.no_such=3", names="no_such")
    yield line("check-env", "cartpole", "role=player", names="role")
    yield line("check-env", "numberline", "actions=[left", names="actions")
    yield line("check-env", "numberline", "env_options.max_position=-1", names="max_position")
    yield line("check-env", "cartpole", "goal", names="key=value")


def demonstrating() -> Iterator[Line]:
    for recipe in ("cartpole", "numberlin", "", "none.yaml", "broken.yaml", "words", "folder", "3", "a\nb"):
        yield line("demos", recipe, "--out", "new-demos")
    yield line("demos", "numberline", names="--out")
    yield line("demos", "--out", "new-demos")
    for turns in ("0", "-1", "many"):
        yield line("demos", "numberline", "--turns", turns, "--out", "new-demos", names="--turns")
    for seed in ("-1", str(2**32)):
        yield line("demos", "numberline", "--seed", seed, "--out", "new-demos", names="seed")
    for out in ("words", "photos/up.png", "photos/up.png/x", "/dev/null/x", ""):
        yield line("demos", "numberline", "--turns", "2", "--out", out)
    yield line("demos", "numberline", "env_options.no_such=3", "--out", "new-demos", names="no_such")
    yield line("demos", "numberline", "warm_start.explore=2", "--out", "new-demos", names="explore")
    yield line("demos", "numberline", "replies.format=xml", "--out", "new-demos", names="format")
    yield line("demos", "frozenlake", "env_options.map=none", "--out", "new-demos")


def sweeping() -> Iterator[Line]:
    yield line("sweep", "cartpole", "seed=0..1", names="--run-dir")
    for key in ("seed=3", "seed=1..0", "seed=0..99999", "seed=0,,1", "seed=0,0", "seed=a,b", "stepz=1,2", "seed"):
        yield line("sweep", "cartpole", key, "--run-dir", "new-sweep")
    yield line("sweep", "cartpole", "reward.alpha=0,2", "--run-dir", "new-sweep", names="alpha")
    yield line("sweep", "cartpole", "seed=0,1", "seed=2,3", "--run-dir", "new-sweep", names="seed")
    yield line("sweep", "cartpole", "env=cartpol,cartpoe", "--run-dir", "new-sweep", names="cartpol")
    yield line("sweep", "--run-dir", "new-sweep")
    yield line("sweep", "none.yaml", "seed=0,1", "--run-dir", "new-sweep", names="none.yaml")
    yield line("sweep", "-", "seed=0,1", "--run-dir", "new-sweep", names="stdin", stdin=b"env: cartpole")
    for place in ("words", "photos/up.png", "folder/../photos/up.png/x", ""):
        yield line("sweep", *WORDS, "seed=0,1", "--run-dir", place)
    for processes in ("0", "-1", "many"):
        yield line("sweep", "cartpole", "seed=0,1", "--processes", processes, "--run-dir", "new", names="--processes")
    yield line("sweep", "cartpole", "seed=0,1", "--per-run", "2", "--run-dir", "new-sweep", names="--per-run")
    yield line("sweep", "cartpole", "seed=0,1", "--per-run", "0", "--run-dir", "new-sweep", names="--per-run")


def relabelling() -> Iterator[Line]:
    goal = ("--goal", "the cart at the left edge")
    for place in ("none", "folder", "photos/up.png", "words", "agent", "", "half"):
        yield line("relabel", place, *goal)
    yield line("relabel", "kept", names="--goal")
    yield line("relabel", "kept", "--goal", "", names="goal")
    yield line("relabel", "kept", *goal, "--baseline", goal[1], names="same words")
    for alpha in ("2", "-1", "nan", "x"):
        yield line("relabel", "kept", *goal, "--baseline", "cart", "--alpha", alpha, names="alpha")
    yield line("relabel", "kept", *goal, "--alpha", "0.5", names="baseline")
    yield line("relabel", "kept", *goal, "--run-dir", "words", "--train", names="words")
    yield line("relabel", "kept", *goal, "steps=3", names="--train")
    yield line("relabel", "kept", *goal, "stepz=3", "--train", names="stepz")
    yield line("relabel", "kept", *goal, "steps=many", "--train", names="steps")
    for how in ("empty", "cut", "noise", "gone"):
        yield line("relabel", "kept", *goal, damage=("kept/replay/*", how))


def the_rest() -> Iterator[Line]:
    yield line("trian", names="'train'")
    yield line("Train", names="'train'")
    yield line("--no-such", names="--no-such")
    yield line("", "train")
    yield line("models", "zzz", names="zzz")
    yield line("models", "ViT-B-33", names="'ViT-B-32'")
    yield line("models", "a", "b", names="b")
    for name in ("bundeld", "local-dir:none", "ViT-B-32/none", "hf:", "", "hf:no-one/nothing"):
        yield line("models", "--fetch", name, codes=(2,) if name != "hf:no-one/nothing" else (1,))
    for command in ("recipes", "tasks", "doctor"):
        yield line(command, "x", names="x")
        yield line(command, "--no-such", names="--no-such")
    for config in (
        "none.yaml",
        "broken.yaml",
        "list.yaml",
        "folder",
        "binary.yaml",
        "empty.yaml",
        "cartpole",
        "deep.yaml",
    ):
        yield line("convert", config)
    yield line("convert")
    yield line("convert", "-", stdin=b"env_name: [", names="stdin")
    yield line("convert", "-", stdin=b"env_name: 3\nreward: 4\nrl: 5\nlogging: 6\n")
    yield line("convert", "-", stdin=b"env_name: CartPole-v1\nreward: {name: none}\nrl: {}\nlogging: {}\n")


def all_lines() -> list[Line]:
    """Every bad line."""
    parts = (training, training_agents, resuming, evaluating, reporting, scoring, labelling, checking, demonstrating)
    return [each for part in (*parts, sweeping, relabelling, the_rest) for each in part()]


# -- the folder that they are carried out in ---------------------------------------------------------------------------

HOW = ("empty", "cut", "noise", "gone", "folder", "list")
"""What is done to a file of a run."""


def build(folder: Path, runs: bool = True) -> None:
    """Fill a folder with what the lines speak of; the runs take half a minute."""
    from PIL import Image

    from sightline_tasks.control.cartpole import LOOKS, draw_cartpole

    for name in ("photos", "folder", "half", "damaged-store", "damaged-encoder", "no-weights"):
        (folder / name).mkdir(parents=True)
    for name, angle in (("up", 0.0), ("down", 3.0)):
        Image.fromarray(draw_cartpole(0, angle, (64, 64), LOOKS["plain"])).save(folder / "photos" / f"{name}.png")
    picture = (folder / "photos" / "up.png").read_bytes()
    noise = np.random.default_rng(0).bytes(3000)
    contents: dict[str, bytes] = {
        "empty.yaml": b"",
        "binary.yaml": noise,
        "latin.yaml": "env: cartpole\ngoal: Stäbe\n".encode("latin-1"),
        "broken.yaml": b"env: [cartpole\nsteps: 3",
        "twice.yaml": b"env: cartpole\nsteps: 3\nsteps: 4\n",
        "list.yaml": b"- env: cartpole\n",
        "number.yaml": b"3",
        "numbers.yaml": b"env: cartpole\nlearner: 5\n",
        "itself.yaml": b"env: &a [*a]\n",
        "tag.yaml": b"env: !!python/object/apply:os.mkdir [executed]\n",
        "deep.yaml": b"[" * 5000,
        "huge.yaml": b"a: " + b"x" * 1_500_000,
        "broken.json": b'{"a": ',
        "list.json": b"[1, 2]",
        "empty.png": b"",
        "cut.png": picture[: len(picture) // 2],
        "text.png": b"no picture",
        "bomb.png": _promise(60_000, 60_000),
        "broken.gif": b"GIF89a" + noise[:50],
        "broken.mp4": noise,
        "broken.pkl": noise,
        "empty.pkl": b"",
        "evil.pkl": b"cos\nmkdir\n(S'executed'\ntR.",
        "broken.parquet": b"PAR1" + noise + b"PAR1",
        "broken.py": b"class Env(:\n",
        "empty.py": b"",
        "raises.py": b"import gymnasium\n\nclass Env(gymnasium.Env):\n    def __init__(self, **o):\n        1 / 0\n",
        "half/recipe.yaml": b"format: 1\nenv: cartpole\n",
        "damaged-store/labels.sqlite": noise,
        "damaged-encoder/open_clip_config.json": b'{"model_cfg": 3}',
        "damaged-encoder/config.json": b"[]",
        "no-weights/open_clip_config.json": b'{"model_cfg": {"embed_dim": 8}, "preprocess_cfg": {}}',
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    if runs:
        _train(folder)


def _promise(width: int, height: int) -> bytes:
    """A PNG that promises a huge picture and holds none."""
    import struct
    import zlib

    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


def _train(folder: Path) -> None:
    """A tiny run of every role, and one that kept its embeddings."""
    from sightline.config.loading import load_recipe
    from sightline.roles import complete, train

    runs = {"words": WORDS, "taught": TAUGHT, "agent": AGENT, "kept": (*WORDS, "reward.keep_embeddings=true")}
    for name, (recipe, *overrides) in runs.items():
        train(complete(load_recipe(recipe, overrides)), folder / name, name, resume=False)


def damage(folder: Path, file: str, how: str) -> None:
    """Do something to all files of that pattern."""
    for place in sorted(folder.glob(file)):
        content = place.read_bytes()
        place.unlink()
        match how:
            case "empty":
                place.write_bytes(b"")
            case "cut":
                place.write_bytes(content[: len(content) // 2])
            case "noise":
                place.write_bytes(np.random.default_rng(1).bytes(len(content)))
            case "folder":
                place.mkdir()
            case "list":
                place.write_bytes(b"[1, null]")


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder: name -> size and time of the last change, which are nothing for folders.

    Without the files that SQLite makes beside a database to read it.
    """
    stats = {}
    for place in folder.rglob("*"):
        if place.name.endswith(("-wal", "-shm")):
            continue
        stat = place.lstat()
        stats[str(place.relative_to(folder))] = (0, 0) if place.is_dir() else (stat.st_size, stat.st_mtime_ns)
    return stats


# -- carrying out and judging ------------------------------------------------------------------------------------------


class Overdue(BaseException):
    """A line has taken too long."""


@dataclass(frozen=True)
class Ended:
    """How a line has ended.

    Attributes:
        wrong: what is wrong with it, in a word or two each.
    """

    line: Line
    code: int
    err: str
    wrong: tuple[str, ...]


def carry_out(each: Line, folder: Path) -> Ended:
    """Carry out a line in a folder, which is as it was before in the end, and judge it."""
    beside = folder.with_name(f"{folder.name}-whole")
    if each.damage is not None:
        run = each.damage[0].partition("/")[0]
        shutil.copytree(folder / run, beside)
        damage(folder, *each.damage)
    before = contents(folder)
    code, err = (_in_a_process if each.alone else _here)(each, folder)
    after = contents(folder)
    wrong = judge(each, code, err)
    left = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if left and code == 2:
        wrong.append(f"left behind or changed: {', '.join(left[:3])}")
    for name in sorted(after.keys() - before.keys(), reverse=True):
        place = folder / name
        place.rmdir() if place.is_dir() else place.unlink()
    if each.damage is not None:
        shutil.rmtree(folder / run)
        beside.rename(folder / run)
    return Ended(each, code, err, tuple(wrong))


def judge(each: Line, code: int, err: str) -> list[str]:
    """What is wrong with how a line has ended."""
    lines = err.splitlines()
    said = [text for text in lines if text.startswith("sightline: ")]
    wrong = []
    if code == OVERDUE:
        return ["hangs"]
    if "Traceback" in err:
        wrong.append("traceback")
    if code not in each.codes:
        wrong.append("accepted" if code == 0 else f"code {code}")
    if code == 2 and len(lines) != 1:
        wrong.append(f"{len(lines)} lines")
    if code in (1, 2) and (len(said) != 1 or lines[-1:] != said):
        wrong.append("no last line of ours")
    if not each.theirs and RAW.search(" ".join(said)):
        wrong.append("raw name")
    if code and each.names and each.names not in " ".join(said):
        wrong.append(f"does not name {each.names}")
    return wrong


OVERDUE = -1000
"""Code of a line that has not ended in time."""


def _here(each: Line, folder: Path) -> tuple[int, str]:
    """In this process."""
    from sightline.cli.commands import main

    out, err, code, before = io.StringIO(), io.StringIO(), 0, Path.cwd()
    argv, stdin, path, environment = sys.argv, sys.stdin, list(sys.path), dict(os.environ)
    overdue = False

    def stop(*_: Any) -> None:
        nonlocal overdue
        overdue = True
        raise Overdue

    sys.argv = ["sightline", *each.words]
    sys.stdin = io.TextIOWrapper(io.BytesIO(each.stdin or b""), encoding="utf-8")
    limits = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, WAITING))
    handlers = {number: signal.signal(number, stop) for _, number, _ in limits}
    for timer, _, seconds in limits:
        signal.setitimer(timer, seconds)
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    except Overdue:
        pass
    finally:
        for timer, number, _ in limits:
            signal.setitimer(timer, 0)
            signal.signal(number, handlers[number])
        os.chdir(before)
        sys.argv, sys.stdin, sys.path[:] = argv, stdin, path
        os.environ.clear()
        os.environ.update(environment)
    return (OVERDUE if overdue else code), err.getvalue()


def _in_a_process(each: Line, folder: Path) -> tuple[int, str]:
    """In a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sightline", *each.words],
            input=each.stdin or b"",
            capture_output=True,
            cwd=folder,
            timeout=WAITING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return OVERDUE, ""
    return done.returncode, done.stderr.decode(errors="replace")
