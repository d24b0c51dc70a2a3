"""All seeds of a run (streams of random numbers), and panels of evaluation seeds: fixed, hashed lists.

The `validation` panel chooses checkpoints (`evaluation.episodes`), the `test` panel is reported
(`evaluation.test_episodes`). Intervals: `statistics.py`.

Two evaluations are comparable if their panels have the same hash. The hash covers everything that changes the
episodes or their success: the environment, its arguments, the time limit and the success rule, as `describe_env`
formats them.

How seeds are derived
=====================

All chance of a run comes from the recipe's `seed`, below `s`, but for two things: evaluation, whose panels and
intervals are the same for every run, and what a chat model that teaches samples, which is new each time and is kept in
the label store. A stream is made anew from numbers that name its place (episode, chunk, round), so that a resumed run
draws the same; what cannot be made so, SB3's generators, is saved in every checkpoint (`control/state.py`).
`[a, b]` is the entropy of a `numpy.random.SeedSequence` or `default_rng`.

    what is drawn                                    from                                where
    -- policies on states ------------------------------------------------------------------------------------------
    episode e of environment n, in training          [s, n, e] -> reset(seed=...)        envs/frame_vector.py
    first weights, exploration, noise on actions,    SB3's seed=s: the global            control/learners.py
      batches of replay, order of minibatches          generators of Python, NumPy
                                                       and torch, and the action space's
    questions about random play (`label`)            s: episodes, actions and pairs      control/offline_labelling.py
    -- learned rewards ---------------------------------------------------------------------------------------------
    first weights of the networks                    torch.manual_seed(s), forked        rewards/learned/reward.py
    segments of a chunk that may be asked about      [s, chunk]                          preferences/pebble.py
    questions of a round                             [s, questions so far]               preferences/rounds.py
    order of labels in a fit                         s + questions so far                rewards/learned/fitting.py
    labels that are held out of a fit                0                                   rewards/learned/fitting.py
    states that novelty is compared with             [s, states so far]                  rewards/novelty.py
    answers and slips of a scripted teacher          SHA-256 of its seed and question    teachers/scripted.py
    -- agents: update u, attempt a of dynamic sampling, member m of a group ------------------------------------------
    tasks of an update                               [crc32("training"), s, u(, a)]      agents/training.py
      the environment's episode                      the task's seed -> reset(seed=...)  agents/rollouts.py
      tokens of a reply                              [1, s, u, task, m, turn]            agents/samplers/policy.py
      an action in place of an unreadable reply      [2, s, u, task, m, turn]            agents/rollouts.py
      seed of a reply on a server                    [3, s, u, task, m, turn]            agents/samplers/
    order of sequences in an epoch                   [s, u, epoch]                       agents/sequences.py
    demonstrations: tasks; what is played            [s, 1, episode]; [s, 2]             agents/demos.py
    order of demonstrations of a file                s                                   agents/warm_start.py
    adapters and value head                          torch.manual_seed(s), forked        models/vlm/model.py
    -- evaluation, whatever s is -----------------------------------------------------------------------------------
    episodes of a panel                              [crc32(panel's name), panel's seed] here
      an agent's replies, where they are sampled     [1, task, 0, turn]                  agents/samplers/policy.py
      seed of a reply on a server                    [3, task, 0, turn]                  agents/samplers/
      shuffled pictures                              SHA-256 of task, 0, turn            agents/evaluation.py
      random play                                    [2, task, turn]                     agents/evaluation.py
      an action in place of an unreadable reply      [2, task, 0, turn]                  agents/rollouts.py
    bootstrap of intervals                           0                                   evaluation/statistics.py
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EvalSeeds:
    """Panel: the seeds of the episodes of an evaluation.

    Attributes:
        name: the panel's purpose; different names give different seeds.
        env: the environment and its changes, as `describe_env` formats them.
        seeds: one for each episode.
    """

    name: str
    env: str
    seeds: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Hash of the panel, 12 hexadecimal digits, over its environment and seeds."""
        text = json.dumps([self.env, self.seeds])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.name}-{len(self.seeds)}-{self.digest}"


def describe_env(env: str, **changes: Any) -> str:
    """Describe the environment of a panel: its name, and with it all changes to the game.

    Args:
        changes: whatever else decides about episodes and their success. What is None, empty or False changes nothing
            and is left out, so that panels of plain environments keep their hashes.

    Returns:
        Equal text for equal values, in whatever order and on whatever machine they are given.
    """
    plain = {name: _plain(value) for name, value in changes.items() if value}
    if not plain:
        return env
    return f"{env} {json.dumps(plain, sort_keys=True)}"


def _plain(value: Any) -> Any:
    """Convert a value to plain JSON data; objects without a JSON form become their `repr` without addresses."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        plain = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else json.dumps(_plain(key))
            plain[name] = _plain(item)
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=json.dumps)
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if hasattr(value, "__qualname__"):  # classes and functions
        return f"{value.__module__}.{value.__qualname__}"
    # An address differs from process to process.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def make_panel(name: str, env: str, episodes: int, seed: int = 0) -> EvalSeeds:
    """Make the panel of that name: the same on every machine, and apart from the training seeds (by other hashes).

    Args:
        env: the environment and its changes, as `describe_env` formats them.
    """
    # Panels of several names are apart, and none of them is a sequence that training draws from.
    sequence = np.random.SeedSequence([zlib.crc32(name.encode()), seed])
    seeds = sequence.generate_state(episodes, np.uint32)
    return EvalSeeds(name, env, tuple(int(s) for s in seeds))
