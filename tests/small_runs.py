"""Runs of agents as they lie on disk, made of real episodes of scripted play, without training anything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sightline.agents.evaluation import evaluate_policy, play_eval_seeds, summary
from sightline.agents.rollouts import RolloutWorker
from sightline.agents.samplers import Completion, Conversation, Key, only_text
from sightline.agents.trajectory_log import trajectory_log, write_trajectory_log
from sightline.agents.types import Advantages, Trajectory
from sightline.config.agents import Replies
from sightline.config.recipe import AgentRecipe
from sightline.envs.games.making import GameMaker
from sightline.evaluation.seeds import make_panel
from sightline.images import Picture
from sightline.models.vlm.types import ChatTurn, Prompt, Sample
from sightline.replies import COMMON, Thinking
from sightline.runs.folder import RunFolder, write_recipe
from sightline_tasks.games.number_line import NumberLine

EVIL = "</script><img src=x onerror=alert(1)>"
RECIPE = AgentRecipe(description="Number line, learned by looking", env="numberline", steps=4000, seed=3)


@cache
def seen() -> dict[str, tuple[int, int]]:
    """What every picture of the number line shows: digest -> (current, target)."""
    game, shown = NumberLine(), {}
    for game.current in range(6):
        for game.target in range(6):
            shown[Picture(game.draw()).digest] = (game.current, game.target)
    assert len(shown) == 36
    return shown


def looks(exchange: ChatTurn) -> str:
    """Plays what the picture says; guesses where it says nothing."""
    current, target = seen().get(exchange.pictures[0].digest, (2, 3))
    return json.dumps({"current": str(current), "target": str(target), "action": "+" if current < target else "-"})


@dataclass(frozen=True)
class Scripted:
    """A sampler that replies with what a function says of the last turn; no tokens, so nothing is learned from it."""

    function: Callable[[ChatTurn], str]

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        return [only_text(self.function(conversation[-1])) for conversation in conversations]


@dataclass
class Words:
    """As much of a model as tables and records need: its tokens are words and signs."""

    vocabulary: list[str] = field(default_factory=lambda: [""])
    thinking: Thinking = COMMON

    @property
    def tokens(self) -> Words:
        return self

    def encode(self, text: Any) -> Any:
        if not isinstance(text, str):
            return Prompt(np.zeros(1, np.int64))
        pieces = re.findall(rf"{re.escape(EVIL)}|\s*\w+|\s*[^\w\s]|\s+", text)
        self.vocabulary += [piece for piece in dict.fromkeys(pieces) if piece not in self.vocabulary]
        return [self.vocabulary.index(piece) for piece in pieces]

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        ends = np.cumsum([len(self.vocabulary[token]) for token in ids])
        return [(int(end) - len(self.vocabulary[token]), int(end)) for token, end in zip(ids, ends, strict=True)]


@dataclass(frozen=True)
class Faulty:
    """Looks, and thinks aloud, but in a share of turns it lies, errs, or says something that is no reply."""

    words: Words
    faults: float = 0.0

    def generate(
        self, conversations: Sequence[Sequence[ChatTurn]], keys: Sequence[tuple[int, ...]]
    ) -> list[Completion]:
        return [self._reply(conversation[-1], key) for conversation, key in zip(conversations, keys, strict=True)]

    def _reply(self, exchange: ChatTurn, key: tuple[int, ...]) -> Completion:
        chance = np.random.default_rng((9, *key))
        said = json.loads(looks(exchange))
        action = said.pop("action")
        fault = chance.choice(["lie", "wrong", "nonsense"]) if chance.random() < self.faults else ""
        if fault == "lie":
            said["current"] = str((int(said["current"]) + 2) % 6)
        side = "below" if action == "+" else "above"
        said["thoughts"] = f"The current number {said['current']} is {side} the target {said['target']}, so I go there."
        said["action"] = {"+": "-", "-": "+"}[action] if fault == "wrong" else action
        text = f"I would rather not say.{EVIL}" if fault == "nonsense" else json.dumps(said)
        ids = [*self.words.encode(text), 0]
        logprobs = -chance.exponential(0.3, len(ids)).astype(np.float32)
        return Completion(Sample(np.array(ids), logprobs, text, True), Prompt(np.array(ids)))


def scripted_worker(words: Words, parallel: int = 16) -> RolloutWorker:
    vlm: Any = words
    return RolloutWorker(GameMaker("numberline"), Replies(), parallel=parallel, vlm=vlm)


def fabricate_run(path: Path, episodes: int = 12, updates: Sequence[int] = (1, 4)) -> RunFolder:
    """A run folder of a scripted agent that was said to have learned.

    The last episode of every update broke down.
    """
    path.mkdir(parents=True)
    run, words = RunFolder(path), Words()
    worker, panel = scripted_worker(words), make_panel("test", "numberline", episodes)
    vlm: Any = words

    def keep(look: str, played: list[Trajectory]) -> None:
        write_trajectory_log(run, f"test-{look}", *trajectory_log(played, None, vlm))

    result = {"chosen_step": 3600, "chosen_update": 9, **evaluate_policy(worker, Faulty(words, 0.05), panel, keep)}
    result["untrained"] = summary(play_eval_seeds(worker, Faulty(words, 0.8), panel), panel)
    result["seconds"] = 1234.0
    for update in updates:
        played = play_eval_seeds(
            worker, Faulty(words, 0.5 / update), make_panel(f"update {update}", "numberline", episodes)
        )
        mean = np.mean([one.rewards.sum() for one in played])
        advantages = [Advantages(one.rewards[::-1].cumsum()[::-1] - mean, np.zeros(len(one.turns))) for one in played]
        played[-1].error = f"OSError: the simulator is gone {EVIL}"
        write_trajectory_log(run, f"update-{update:04d}", *trajectory_log(played, advantages, vlm))
    worker.close()
    write_recipe(run, RECIPE)
    run.write_json("result.json", result)
    run.write_json("versions.json", {"sightline": "0.3", "torch": "2.9.0"})
    warning = "the same thoughts are had in 97% of all states; raise <b>update.kl_thoughts</b>"
    run.write_json("warnings.json", {"warnings": [warning]})
    run.write_text("command.txt", "sightline train numberline seed=3\n")
    run.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in [{"format": 1}, *fabricated_metrics()]))
    return run


def fabricated_metrics() -> list[dict[str, Any]]:
    """Ten updates of 400 turns, validated at every other."""
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = []
    for update in range(11):
        learned = 1 - np.exp(-update / 3)
        if update:
            line = {"step": 400 * update, "rollout/success": 0.3 + 0.6 * learned + rng.normal(0, 0.03)}
            line |= {"rollout/truthful": 0.6 + 0.37 * learned, "rollout/truthful_replies": 0.4 + 0.55 * learned}
            line |= {"rollout/return": 3 * learned - 2, "rollout/illegal": 0.2 * (1 - learned)}
            line |= {"rollout/unparsable": 0.1 * (1 - learned), "rollout/reply_tokens": 31 + rng.normal(0, 0.5)}
            line |= {"update/kl_reference": 0.3 * update, "update/kl_old": 0.02, "update/entropy": 0.5 - 0.03 * update}
            line |= {"update/learning_rate": 1e-4 * (1 - update / 10)}
            lines.append(line)
        if update % 2 == 0:
            rate = 0.35 + 0.6 * learned
            line = {"step": 400 * update, "evaluation/success_rate": rate, "evaluation/score": 0.9 * rate}
            line |= {"evaluation/ci_low": rate - 0.1, "evaluation/ci_high": min(1.0, rate + 0.08)}
            lines.append(line | {"evaluation/truthful_replies": 0.45 + 0.5 * learned})
    return lines
