"""Do agents learn their games, what is that worth beside simpler play, and how fast is it?

    python benchmarks/agents.py learn --game numberline --seeds 0 1 2 3 4
    python benchmarks/agents.py learn --game ezpoints --seeds 0 1 2
    python benchmarks/agents.py learn --game blackjack --seeds 0 1 2 --per-run 2
    python benchmarks/agents.py baselines
    python benchmarks/agents.py speed
    python benchmarks/agents.py sent
    python benchmarks/agents.py parallel

- `learn`: whole `sightline sweep GAME seed=S..S` commands, one after the other: how long each takes, what the model can
  do before and after on the test panel, with real, blank and shuffled pictures, and whether that is what was asked.
  `--overrides` are added to the command; without a bundled recipe of that name it is `role=agent env=GAME`. Runs of
  before are kept, and those cut off are resumed.
- `baselines`: play at random, the game's own best play, simple rules, and the best that can be done without looking, on
  the same test panels, and exactly where that can be computed.
- `speed`: our rollouts and updates against the published way, rebuilt here from the same parts: same model, same
  weights, float32, one thread, one process.
- `sent`: how many bytes each of two processes hands to the other in an update: its share of the episodes, beside what
  these would take with their pictures, and beside the gradients.
- `parallel`: processor time of a turn, and memory, by how many episodes are played at the same time
  (`rollouts.parallel`): the same episodes for each number.

The published way ("Fine-Tuning Large Vision-Language Models as Decision-Making Agents via Reinforcement Learning", Zhai
et al., NeurIPS 2024, by its code) plays one environment. For each step it samples a reply by `generate`, batch 1, puts
it into a buffer of twice as many ids as a reply may have, and reads picture, prompt and the whole buffer once more, for
the log-probabilities of the reply and the value of the state. Its updates read one such buffer at a time, with float32
log-probabilities of the whole vocabulary at every place, and step after as many of them as ours. What made it slower
still and is no part of the idea is left out: unused scores and hidden states of `generate`, preparing pictures anew in
each update, prompts that are encoded without a cache. It samples at our temperature, so that replies are as long as
ours.

Timings on shared machines drift: every round measures all ways one after the other, ratios are taken within a round,
and medians with the least and the most over the rounds are reported. The first round warms up and does not count.

Results go to benchmarks/results/agents.json and to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
import transformers

from blackjack_rules import best_reward, odds_of, stand_always
from running import keep, kept, loaded, sightline, sized
from sightline.agents.agent_setup import AgentSetup, build
from sightline.agents.algorithms.ppo import PPO
from sightline.agents.engines.engine import SingleProcess
from sightline.agents.evaluation import oracle_play, random_play
from sightline.agents.parsing import read_reply
from sightline.agents.prompting import prompt_text
from sightline.agents.resolving import game_maker, played_game, resolve
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.agents.samplers import Completion, Conversation, Key, Sampler
from sightline.agents.sharing import gather_episodes
from sightline.agents.sizes import FEW_EPISODES
from sightline.agents.types import Advantages, Trajectory, Turn
from sightline.config.bundled import bundled_recipes
from sightline.config.loading import for_agent
from sightline.config.recipe import AgentRecipe
from sightline.envs.games.contract import Game
from sightline.evaluation.seeds import EvalSeeds, make_panel
from sightline.evaluation.statistics import bootstrap_mean, wilson
from sightline.images import Picture
from sightline.models.vlm.batches import stack
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import ChatTurn, Prompt
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import read_metrics
from sightline_tasks.games.blackjack import as_dealer, most_wins
from sightline_tasks.games.ez_points import EZPoints
from sightline_tasks.games.number_line import NumberLine
from sightline_tasks.games.points import INVALID

FILE = "agents.json"
GAMES = ("numberline", "ezpoints", "points24", "blackjack")
PLAYED_SIDE_BY_SIDE = ("numberline", "ezpoints", "blackjack", "household")
ROUNDS = sized(5, 1)
EPISODES = sized(512, 4)
"""Episodes that are played side by side, at least as many as of an update."""


def command_of(game: str, overrides: Sequence[str] = ()) -> list[str]:
    """What `sightline train` is told, but for the seed."""
    named = [game] if game in bundled_recipes() else ["role=agent", f"env={game}"]
    return [*named, *overrides]


def recipe_of(game: str, overrides: Sequence[str] = ()) -> AgentRecipe:
    """The recipe that the command means, complete."""
    return resolve(for_agent(loaded(*command_of(game, overrides))))


def how_it_was_run() -> dict[str, str]:
    """The command, and the commit whose files it used."""

    def git(*arguments: str) -> str:
        said = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        )
        return said.stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no", "--", "../src") else ""
    command = shlex.join(["python", "benchmarks/agents.py", *sys.argv[1:]])
    return {"command": command, "commit": (git("rev-parse", "--short", "HEAD") or "unknown") + changed}


# -- learn -------------------------------------------------------------------------------------------------------------

KEPT = (
    *("success_rate", "ci_low", "ci_high", "clean", "kinds_mean", "kinds", "truthful_replies", "truthful", "illegal"),
    *("unparsable", "return", "return_ci_low", "return_ci_high", "turns", "episodes", "errors", "panel", "score"),
)
LOOKS = ("blank", "shuffled", "random", "oracle")

Wish = Callable[[dict[str, Any]], bool]
WISHES: dict[str, dict[str, Wish]] = {
    "numberline": {
        "at most 240 seconds": lambda run: run["wall_seconds"] <= 240,
        "at most 60 % before RL": lambda run: run["before"]["success_rate"] <= 0.6,
        "at least 98 % after it": lambda run: run["after"]["success_rate"] >= 0.98,
        "at least 98 % of replies true": lambda run: run["after"]["truthful_replies"] >= 0.98,
    },
    "ezpoints": {
        "at most 600 seconds": lambda run: run["wall_seconds"] <= 600,
        "at least 90 % over pairs": lambda run: run["after"]["kinds_mean"] >= 0.9,
        "at least 90 % of pairs solved": lambda run: _solved_kinds(run) >= 0.9,
        "no illegal action": lambda run: run["after"]["illegal"] == 0,
        "at least 95 % of replies true": lambda run: run["after"]["truthful_replies"] >= 0.95,
    },
    "blackjack": {
        "at most 1 500 seconds": lambda run: run["wall_seconds"] <= 1500,
        "surely more than the dealer's rule": lambda run: run["after"]["ci_low"] > odds_of(as_dealer).win,
        "2 points more than with blank pictures": lambda run: _gain(run, "blank") >= 0.02,
        "2 points more than with pictures of other states": lambda run: _gain(run, "shuffled") >= 0.02,
    },
    "points24": {"at least 30 % of held-out deals": lambda run: run["after"]["success_rate"] >= 0.3},
}
"""What is asked of a run, game by game; of others nothing but to be measured."""


def _gain(run: dict[str, Any], look: str) -> float:
    """How much more is won with the pictures that belong there."""
    return float(run["after"]["success_rate"] - run[look]["success_rate"])


def _solved_kinds(run: dict[str, Any]) -> float:
    """Share of the pairs of which more than half of the episodes are won without any mistake."""
    return float(np.mean([kind["clean"] > 0.5 for kind in run["after"]["kinds"].values()]))


def learn(game: str, seeds: Sequence[int], overrides: Sequence[str], per_run: int, folder: Path) -> None:
    """Part `learn`."""
    command = command_of(game, overrides)
    runs = [_learned(game, seed, command, per_run, folder / game / str(seed)) for seed in seeds]
    wishes = WISHES.get(game, {})
    met = {name: [bool(wish(run)) for run in runs] for name, wish in wishes.items()}
    for name, each in met.items():
        print(f"{name}: {sum(each)} of {len(each)} seeds")
    mean = float(np.mean([run["after"]["success_rate"] for run in runs]))
    found = {
        "train": shlex.join(["sightline", "sweep", *command, "--per-run", str(per_run)]),
        "seeds": list(seeds),
        "mean_success_rate": mean,
        "met": met,
        "all_met": all(map(all, met.values())) if met else None,
        "runs": runs,
    }
    print(f"mean success {100 * mean:.1f} %; all of it: {found['all_met']}")
    keep(FILE, game, how_it_was_run() | found)


def _learned(game: str, seed: int, command: Sequence[str], per_run: int, folder: Path) -> dict[str, Any]:
    """One whole command, or the run that it left before: how long it took, and what came out."""
    began = time.monotonic()
    # a range of one number is the list that a sweep asks for
    told = ["sweep", *command, f"seed={seed}..{seed}", "--per-run", str(per_run), "--run-dir", str(folder)]
    (cell,) = sightline(*told)["cells"]
    seconds = time.monotonic() - began
    run_folder = RunFolder(Path(cell["run"]))
    result = json.loads((run_folder.path / "result.json").read_text())
    turns = max(int(record["step"]) for record in read_metrics(run_folder.metrics_file))
    run = {
        "seed": seed,
        "wall_seconds": max(seconds, result["seconds"]),  # a run of before knows its own, without its start
        "turns_played": turns,
        "chosen_step": result["chosen_step"],
        "before": _kept(result["untrained"]),
        "after": _kept(result),
        **{look: _kept(result.get(look)) for look in LOOKS},
    }
    print(
        f"{game}, seed {seed}: {run['wall_seconds']:.0f} s, {turns} turns, chosen at {run['chosen_step']}", flush=True
    )
    for name in ("before", "after", *LOOKS):
        print(f"  {name:<9} {_in_a_line(run[name])}", flush=True)
    return run


def _kept(numbers: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if numbers is None else {name: numbers.get(name) for name in KEPT}


def _in_a_line(numbers: dict[str, Any] | None) -> str:
    if numbers is None:
        return "–"
    low, high = 100 * numbers["ci_low"], 100 * numbers["ci_high"]
    parts = [f"success {100 * numbers['success_rate']:.1f} % [{low:.1f}, {high:.1f}]"]
    names = {"clean": "clean", "kinds_mean": "over kinds", "truthful_replies": "true replies"}
    parts += [f"{said} {100 * numbers[name]:.1f} %" for name, said in names.items() if numbers.get(name) is not None]
    return ", ".join([*parts, f"return {numbers['return']:.2f}"])


# -- baselines ---------------------------------------------------------------------------------------------------------

Rule = Callable[[Any], str]
"""A game in its present state -> the name of an action."""


def baselines() -> None:
    """Part `baselines`."""
    numbers: dict[str, Any] = how_it_was_run()
    for game in GAMES:
        recipe = recipe_of(game)
        make, panel = game_maker(recipe), make_panel("test", played_game(recipe), recipe.evaluation.test_episodes)
        worker = RolloutWorker(make, recipe.replies, parallel=1)
        rows: dict[str, Any] = {
            "random": _kept(random_play(worker, panel)),
            "oracle": _kept(oracle_play(worker, panel)),
        }
        worker.close()
        for name, rule in RULES[game].items():
            rows[name] = played_by_rule(make(), panel, rule)
        numbers[game] = {"panel": str(panel), "played": rows, "exact": EXACT[game]()}
        print(f"{game}, {panel}")
        for name, row in rows.items():
            print(f"  {name:<32} {_in_a_line(row)}")
        for name, value in numbers[game]["exact"].items():
            print(f"  exactly: {name:<40} {value}", flush=True)
    keep(FILE, "baselines", numbers)


def played_by_rule(env: Any, panel: EvalSeeds, rule: Rule) -> dict[str, Any]:
    """What a rule makes of a panel; `clean` as in `sightline.agents.evaluation.summary`."""
    game: Game = env.unwrapped
    successes, clean, returns, lengths = [], [], [], []
    kinds: dict[str, list[bool]] = {}
    for seed in panel.seeds:
        _, info = env.reset(seed=seed)
        kind, total, steps, faultless, over = str(info.get("kind", "")), 0.0, 0, True, False
        while not over:
            action = rule(game)
            faultless &= action in info["legal_actions"]
            _, reward, terminated, truncated, info = env.step(action)
            total, steps, over = total + float(reward), steps + 1, bool(terminated or truncated)
        successes.append(bool(info["success"]))
        clean.append(successes[-1] and faultless and not info.get("mistakes", 0))
        kinds.setdefault(kind, []).append(clean[-1])
        returns.append(total)
        lengths.append(steps)
    low, high = wilson(sum(successes), len(successes))
    return_low, return_high = bootstrap_mean(np.array(returns))
    return {
        "success_rate": float(np.mean(successes)),
        "ci_low": low,
        "ci_high": high,
        "clean": float(np.mean(clean)),
        "kinds_mean": float(np.mean([np.mean(each) for each in kinds.values()])) if any(kinds) else None,
        "return": float(np.mean(returns)),
        "return_ci_low": return_low,
        "return_ci_high": return_high,
        "turns": float(np.mean(lengths)),
        "episodes": len(successes),
    }


def up_and_then_down(game: NumberLine) -> str:
    """For those who do not look but count: all the way up, then all the way down."""
    return "+" if game._steps < game.max_position else "-"


def always_plus(game: EZPoints) -> str:
    """Reads the cards, and adds them."""
    first, second = (str(number) for number in game.numbers)
    return (first, "+", second, "=")[min(len(game.formula), 3)]


@dataclass(frozen=True)
class Guess:
    """What a player who sees no card of EZPoints tries: a number, and if it is accepted, a sign and the partner."""

    number: int
    sign: str
    partner: int


def by_rejections(game: EZPoints) -> str:
    """Sees no card, but learns from what the formula rejects."""
    plan, written = blind_plan()[1], [token for token in game.formula if token != INVALID]
    guess = plan[min(game.formula.count(INVALID), len(plan) - 1)]
    if len(written) == 3:
        return "="
    return (str(guess.number), guess.sign, str(guess.partner))[len(written)]


def blind_plan(guesses: int = 3) -> tuple[float, list[Guess]]:
    """The best play of EZPoints without looking: its probability to win, and its guesses, by exact search.

    A formula has room for two rejected numbers, so there are three guesses. A wrong sign cannot be taken back.
    """
    deals = ez_deals()

    def best(left: dict[tuple[int, int, str], float], guesses: int) -> tuple[float, list[Guess]]:
        plans: list[tuple[float, list[Guess]]] = [(0.0, [])]
        for number in range(1, 11) if guesses else ():
            hits = {deal: chance for deal, chance in left.items() if number in deal[:2]}
            if not hits:
                continue
            (one, other, sign), chance = max(hits.items(), key=lambda item: item[1])
            others = {deal: chance for deal, chance in left.items() if deal not in hits}
            later, plan = best(others, guesses - 1)
            plans.append((chance + later, [Guess(number, sign, other if number == one else one), *plan]))
        return max(plans, key=lambda plan: plan[0])

    return best(deals, guesses)


def ez_deals() -> dict[tuple[int, int, str], float]:
    """Smaller number, larger number, sign -> how often EZPoints deals them, by its rule."""
    deals: dict[tuple[int, int, str], float] = {}
    for rank in range(2, 14):
        number = min(rank, 10)
        partners = {"+": 12 - number} | ({"*": 12 // number} if 12 % number == 0 and 12 // number <= 10 else {})
        for sign, partner in partners.items():
            deal = (min(number, partner), max(number, partner), sign)
            deals[deal] = deals.get(deal, 0.0) + 1 / 12 / len(partners)
    return deals


def blind_number_line(plus: float, last: int = 5) -> float:
    """How often a player wins who does not look and writes + with a probability, by exact steps."""
    won = 0.0
    for target in range(last + 1):
        chances = np.ones(last + 1) / (last + 1) / last
        chances[target] = 0.0
        for _ in range(2 * last):
            after = np.zeros_like(chances)
            for place, chance in enumerate(chances):
                after[min(place + 1, last)] += plus * chance
                after[max(place - 1, 0)] += (1 - plus) * chance
            won += after[target]
            after[target] = 0.0
            chances = after
    return float(won)


RULES: dict[str, dict[str, Rule]] = {
    "numberline": {
        "always +": lambda game: "+",
        "always -": lambda game: "-",
        "blind, counting: up, then down": up_and_then_down,
    },
    "ezpoints": {"reads, always plus": always_plus, "blind, learns from rejections": by_rejections},
    "points24": {},
    "blackjack": {
        "stand always (blind)": lambda game: game.follow(stand_always),
        "hit below 17": lambda game: game.follow(as_dealer),
        "most wins": lambda game: game.follow(most_wins),
        "best reward": lambda game: game.follow(best_reward),
    },
}


def exact_number_line() -> dict[str, Any]:
    shares = {plus: blind_number_line(plus) for plus in np.linspace(0, 1, 21).tolist()}
    best = max(shares, key=lambda plus: shares[plus])
    return {
        "blind, a constant move: wins": shares[1.0],
        "blind, + or - evenly: wins": shares[0.5],
        "blind, best mixture: probability of +": best,
        "blind, best mixture: wins": shares[best],
    }


def exact_ez_points() -> dict[str, Any]:
    deals = ez_deals()
    return {
        "reads, always plus: wins": sum(chance for (_, _, sign), chance in deals.items() if sign == "+"),
        "blind, learns from rejections: wins": blind_plan()[0],
        "blind, no rejected number: wins": max(deals.values()),
    }


def exact_blackjack() -> dict[str, Any]:
    rules = {
        "stand always (blind)": stand_always,
        "hit below 17": as_dealer,
        "most wins": most_wins,
        "best reward": best_reward,
    }
    return {
        f"{name}: {said}": value
        for name, rule in rules.items()
        for said, value in zip(("wins", "mean reward"), odds_of(rule), strict=True)
    }


EXACT: dict[str, Callable[[], dict[str, Any]]] = {
    "numberline": exact_number_line,
    "ezpoints": exact_ez_points,
    "points24": dict,
    "blackjack": exact_blackjack,
}


# -- speed -------------------------------------------------------------------------------------------------------------


@dataclass
class Watching:
    """A sampler that remembers which batches it was asked for: prompts, and how many tokens were generated."""

    sampler: Sampler
    batches: list[tuple[list[Prompt], int]] = field(default_factory=list)

    def generate(self, conversations: Sequence[Conversation], keys: Sequence[Key]) -> list[Completion]:
        completions = self.sampler.generate(conversations, keys)
        prompts = [one.prompt for one in completions if one.prompt is not None]
        self.batches.append((prompts, max(len(one.sample.ids) for one in completions)))
        return completions


class Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game whose steps and resets, drawing included, are timed.

    Args:
        spent: one number, to which seconds are added.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], spent: list[float]) -> None:
        super().__init__(env)
        self._spent = spent

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        seconds, made = timed(lambda: self.env.reset(**how))
        self._spent[0] += seconds
        return made  # type: ignore[no-any-return]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seconds, made = timed(lambda: self.env.step(action))
        self._spent[0] += seconds
        return made  # type: ignore[no-any-return]


def speed(rounds: int, games: Sequence[str], published_steps: int) -> None:
    """Part `speed`."""
    torch.set_num_threads(1)
    numbers: dict[str, Any] = how_it_was_run() | {"rounds": rounds, "torch": torch.__version__}
    for game in games:
        bench = Bench(game)
        measured = [bench.round(number, published_steps) for number in range(rounds + 1)][1:]
        bench.close()
        numbers[game] = {
            "turns of our rollouts": bench.turns,
            "turns of the published way": published_steps,
            "ids of a prompt": bench.prompt_ids,
            "ids of a reply, mean": bench.reply_ids,
            "measured": {name: _spread([values[name] for values in measured]) for name in measured[0]},
        }
        print(f"\n{game}: {bench.turns[-1]} turns a round, replies of {bench.reply_ids:.1f} tokens")
        for name, spread in numbers[game]["measured"].items():
            print(f"  {name:<60} {spread['median']:8.3g}  [{spread['least']:.3g}, {spread['most']:.3g}]", flush=True)
    keep(FILE, "speed", numbers)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


class Bench:
    """One game, played and learned in our way and in the published one.

    We play as many episodes as an update of the recipe has, in groups with the same task seed if it has groups. Both
    learn by PPO with a value for each turn and without a model to stay close to, as the published way does.
    """

    def __init__(self, game: str) -> None:
        recipe = recipe_of(game, ["device=cpu", "threads=1"])
        self._tasks, self._group = recipe.rollouts.tasks, recipe.algorithm.episodes_per_task
        update = recipe.update.model_copy(update={"epochs": 1, "kl_thoughts": 0.0, "kl_actions": 0.0})
        self._recipe = recipe.model_copy(update={"algorithm": PPO(), "update": update})
        self._setup = build(self._recipe)
        self._vlm = self._setup.vlm
        self._setup.engine.prepare(self._vlm)
        self._spent = [0.0]
        make, rollouts = game_maker(self._recipe, training=True), recipe.rollouts
        self._worker = RolloutWorker(
            lambda: Timed(make(), self._spent),
            recipe.replies,
            rollouts.window,
            rollouts.parallel or FEW_EPISODES,
            self._vlm,
        )
        self._learner = self._setup.learner()
        self._published = Published(self._setup)
        self._weights = {name: values.clone() for name, values in self._vlm.scorer.state_dict().items()}
        self.turns: list[int] = []
        self.prompt_ids, self.reply_ids = 0, 0.0

    def round(self, number: int, published_steps: int) -> dict[str, float]:
        """Measure everything once, one after the other, on tasks of that round's own."""
        watching = Watching(self._setup.sampler(training=True))
        seeds = range(number * 10_000, number * 10_000 + self._tasks)
        tasks = [EpisodeTask(seed, member) for seed in seeds for member in range(self._group)]
        self._spent[0] = 0.0
        playing, played = timed(lambda: self._worker.play(watching, tasks, (number,)))
        without_games = playing - self._spent[0]
        prepared = [self._prepared(prompts, tokens) for prompts, tokens in watching.batches]
        sampling, _ = timed(lambda: self._all_bare(prepared, True))
        greedy, _ = timed(lambda: self._all_bare(prepared, False))
        published_playing, _ = timed(lambda: self._published.play(number, published_steps))
        judging, _ = timed(lambda: self._learner.compute_values(played))
        advantages = self._learner.compute_advantages(played)
        learning, _ = timed(lambda: self._learner.learn(played, advantages, 0, 0.0))
        self._restore()
        some = list(_turns(played, advantages))[:published_steps]
        published_learning, _ = timed(lambda: self._published.learn(some))
        self._restore()
        turns = sum(len(episode.turns) for episode in played)
        self._remember(played, turns)
        ours, with_values = turns / playing, turns / (playing + judging)
        theirs, updates, their_updates = (
            published_steps / published_playing,
            turns / learning,
            len(some) / published_learning,
        )
        return {
            "rollout: steps/s": ours,
            "rollout and values: steps/s": with_values,
            "rollout, published way, with values: steps/s": theirs,
            "rollout: ratio": ours / theirs,
            "rollout and values: ratio": with_values / theirs,
            "update: samples/s": updates,
            "update, published way: samples/s": their_updates,
            "update: ratio": updates / their_updates,
            "rollout: overhead over bare generate, sampling": playing / sampling - 1,
            "rollout: overhead over bare generate, greedy": playing / greedy - 1,
            "rollout but for the games: overhead over bare generate, sampling": without_games / sampling - 1,
        }

    def close(self) -> None:
        self._worker.close()
        self._published.close()
        self._setup.engine.close()

    def _prepared(self, prompts: list[Prompt], tokens: int) -> tuple[dict[str, torch.Tensor], int]:
        return stack([prompt.ids for prompt in prompts], prompts, self._vlm.tokens.pad, "left", ()), tokens

    def _all_bare(self, prepared: list[tuple[dict[str, torch.Tensor], int]], sampled: bool) -> None:
        for inputs, tokens in prepared:
            self._bare(inputs, tokens, sampled)

    def _bare(self, inputs: dict[str, torch.Tensor], tokens: int, sampled: bool) -> None:
        """Exactly so many tokens by the library alone: no random numbers of ours, no log-probabilities, no text."""
        settings = _settings(self._vlm, tokens, sampled, self._recipe.rollouts.temperature, stops=None)
        with torch.no_grad():
            made = self._vlm.model.generate(**inputs, generation_config=settings)
        assert made.shape[1] == inputs["input_ids"].shape[1] + tokens

    def _restore(self) -> None:
        self._vlm.scorer.load_state_dict(self._weights)

    def _remember(self, played: Sequence[Trajectory], turns: int) -> None:
        self.turns.append(turns)
        every = [turn for episode in played for turn in episode.turns]
        self.reply_ids = float(np.mean([len(turn.sample.ids) for turn in every]))
        self.prompt_ids = max(len(turn.prompt.ids) for turn in every if turn.prompt is not None)


@dataclass(frozen=True)
class Sampled:
    """A turn as the published way keeps it.

    Attributes:
        prompt: with its picture, as the model reads it.
        reply: int64[2 * max_tokens], filled up.
        weights: float32[2 * max_tokens], 1 for tokens of the action, the recipe's weight for thoughts, 0 beyond them.
        logprob: so weighted, as sampled.
        advantage, target: of the turn and of its value.
    """

    prompt: Prompt
    reply: torch.Tensor
    weights: torch.Tensor
    logprob: float
    advantage: float
    target: float


class Published:
    """Rollouts and updates in the published way, see the top of this file."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup, self._recipe, self._vlm = setup, setup.recipe, setup.vlm
        self._width = 2 * self._recipe.replies.max_tokens
        self._parameters = [parameter for parameter in self._vlm.scorer.parameters() if parameter.requires_grad]
        rate = self._recipe.update.learning_rate
        self._optimiser = torch.optim.AdamW(self._parameters, rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._env = game_maker(self._recipe, training=True)()
        self._stops = sorted(self._vlm.tokens.stops)

    def play(self, seed: int, steps: int) -> None:
        """Play so many steps, episode after episode."""
        names: tuple[str, ...] = self._env.get_wrapper_attr("action_names")
        asked: tuple[str, ...] = self._env.get_wrapper_attr("asked")
        chance = np.random.default_rng(seed)
        settings = _settings(
            self._vlm, self._recipe.replies.max_tokens, True, self._recipe.rollouts.temperature, self._stops
        )
        observation, _ = self._env.reset(seed=seed)
        for _ in range(steps):
            text = prompt_text(observation.text, self._recipe.replies, asked, names)
            pictures = tuple(Picture(image) for image in observation.images)
            prompt = self._vlm.encode([ChatTurn(text, pictures)])
            inputs = {"input_ids": torch.from_numpy(prompt.ids)[None], **prompt.per_picture}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            with torch.no_grad():
                made = self._vlm.model.generate(**inputs, generation_config=settings)
                ids = made[0, len(prompt.ids) :]
                reply, length = self._filled(ids), len(ids)
                logprobs, value = self._read(prompt, reply)
                logprob, said = float(logprobs[:length].sum()), float(value)
            assert np.isfinite(logprob) and np.isfinite(said)
            read = read_reply(self._vlm.decode(ids.tolist()), self._recipe.replies, names, asked, True)
            action = read.action or names[int(chance.integers(len(names)))]
            observation, _, terminated, truncated, _ = self._env.step(action)
            if terminated or truncated:
                observation, _ = self._env.reset(seed=int(chance.integers(2**31)))

    def learn(self, turns: Sequence[tuple[Turn, float, float]]) -> None:
        """One epoch over turns with their advantages and targets, one turn at a time."""
        settings = self._recipe.update
        samples = [self._sampled(*turn) for turn in turns]
        for start in range(0, len(samples), settings.minibatch):
            batch = samples[start : start + settings.minibatch]
            for sample in batch:
                logprobs, value = self._read(sample.prompt, sample.reply)
                ratio = torch.exp((sample.weights * logprobs).sum() - sample.logprob)
                clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
                policy = -torch.minimum(ratio * sample.advantage, clipped * sample.advantage)
                loss = policy + 0.5 * (value - sample.target) ** 2
                torch.autograd.backward(loss / len(batch))
            torch.nn.utils.clip_grad_norm_(self._parameters, settings.max_grad_norm)
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)

    def close(self) -> None:
        self._env.close()

    def _read(self, prompt: Prompt, reply: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities float32[2 * max_tokens] of everything in the buffer, and the value before the reply."""
        start = len(prompt.ids)
        ids = torch.cat([torch.from_numpy(prompt.ids), reply])[None]
        output = self._vlm.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **prompt.per_picture,
            use_cache=False,
            output_hidden_states=True,
        )
        logprobs = torch.log_softmax(output.logits[0].float() / self._recipe.rollouts.temperature, -1)
        of_reply = logprobs[start - 1 : -1].gather(1, reply[:, None])[:, 0]
        assert self._vlm.scorer.value_head is not None
        value = self._vlm.scorer.value_head(output.hidden_states[-1][0, start - 1][None])[0]
        return of_reply, value

    def _filled(self, ids: torch.Tensor) -> torch.Tensor:
        """A reply in a buffer of fixed width. Placeholders of pictures would be taken for pictures: they become pad."""
        reply = torch.full((self._width,), self._vlm.tokens.pad, dtype=torch.int64)
        reply[: len(ids)] = ids.masked_fill(self._vlm.tokens.banned[ids], self._vlm.tokens.pad)
        return reply

    def _sampled(self, turn: Turn, advantage: float, target: float) -> Sampled:
        assert turn.prompt is not None
        length = len(turn.sample.ids)
        weights = torch.zeros(self._width)
        weights[:length] = torch.where(torch.from_numpy(turn.action_tokens), 1.0, self._recipe.update.thought_weight)
        logprob = float((weights[:length].numpy() * turn.sample.logprobs).sum())
        reply = self._filled(torch.from_numpy(turn.sample.ids))
        return Sampled(turn.prompt, reply, weights, logprob, advantage, target)


class Counting(SingleProcess):
    """The first of two processes, which counts what it would send of its episodes."""

    world = 2

    def __init__(self) -> None:
        self.bytes = 0

    def gather(self, local: Any) -> list[Any]:
        self.bytes += len(pickle.dumps(local))
        return [local]


def sent(games: Sequence[str]) -> None:
    """Part `sent`."""
    numbers: dict[str, Any] = how_it_was_run()
    for game in games:
        recipe = recipe_of(game, ["device=cpu", "threads=1"])
        setup = build(recipe)
        worker, engine, group = setup.rollout_worker(training=True), Counting(), recipe.algorithm.episodes_per_task
        tasks = [EpisodeTask(seed, member) for seed in range(recipe.rollouts.tasks // 2) for member in range(group)]
        played = worker.play(setup.sampler(training=True), tasks)
        worker.close()
        gather_episodes(engine, played, group)
        learned = [one for one in setup.vlm.scorer.parameters() if one.requires_grad]
        found = {
            "turns of a process": sum(len(episode.turns) for episode in played),
            "bytes": engine.bytes,
            "bytes with pictures and prompts": len(pickle.dumps(played)),
            "bytes of the gradients": 4 * sum(one.numel() for one in learned),
        }
        numbers[game] = found
        print(game, found, flush=True)
    keep(FILE, "sent", numbers)


def parallel(rounds: int, games: Sequence[str], sizes: Sequence[int]) -> None:
    """Part `parallel`."""
    for game in games:
        # What is measured is a turn: the first two of an episode of the household are enough.
        short = ["rollouts.episode_steps=2"] if game == "household" else []
        setup = build(recipe_of(game, ["device=cpu", "threads=1", *short]))
        setup.engine.prepare(setup.vlm)
        play_side_by_side(setup, 8, 8)  # warms up
        measured: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for _ in range(rounds):
            for size, found in measured.items():
                found.append(play_side_by_side(setup, size, EPISODES))
        setup.engine.close()
        numbers: dict[str, Any] = {}
        for size, found in measured.items():
            # What a round leaves behind is in the peak of the next: the least is nearest to a process of its own.
            numbers[str(size)] = {
                "rounds": rounds,
                "turns": found[0]["turns"],
                "ms/turn": _spread([one["ms/turn"] for one in found]),
                "peak, MiB": min(one["peak, MiB"] for one in found),
            }
            print(game, size, numbers[str(size)], flush=True)
        how = how_it_was_run() | {"episodes": EPISODES}
        keep(FILE, "parallel", kept(FILE, "parallel") | how | {game: numbers})


def play_side_by_side(setup: AgentSetup, size: int, episodes: int) -> dict[str, float]:
    """Play the first episodes of training, so many at the same time: milliseconds of processor time a turn, and the
    peak of the process's memory meanwhile."""
    setup = replace(setup, recipe=with_parallel(setup.recipe, size))
    worker, group = setup.rollout_worker(training=True), setup.recipe.algorithm.episodes_per_task
    tasks = [EpisodeTask(*divmod(number, group)) for number in range(episodes)]
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak
    began = time.process_time()
    played = worker.play(setup.sampler(training=True), tasks)
    seconds = time.process_time() - began
    worker.close()
    turns = sum(len(episode.turns) for episode in played)
    peak = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {"turns": turns, "ms/turn": 1000 * seconds / turns, "peak, MiB": int(peak[0]) / 1024}


def with_parallel(recipe: AgentRecipe, size: int) -> AgentRecipe:
    return recipe.model_copy(update={"rollouts": recipe.rollouts.model_copy(update={"parallel": size})})


def _settings(vlm: VLM, tokens: int, sampled: bool, temperature: float, stops: list[int] | None) -> Any:
    """Nothing but these settings: the model's own, and the library's top-k of 50, are switched off."""
    library: Any = transformers  # its types change with its version
    vlm.model.generation_config = library.GenerationConfig()
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if sampled else {"do_sample": False}
    return library.GenerationConfig(max_new_tokens=tokens, eos_token_id=stops, pad_token_id=vlm.tokens.pad, **how)


def _turns(
    played: Sequence[Trajectory], advantages: Sequence[Advantages | None]
) -> Iterator[tuple[Turn, float, float]]:
    """All turns with their advantage and target, mixed."""
    found = [
        (turn, float(one.advantages[place]), float(one.returns[place]))
        for episode, one in zip(played, advantages, strict=True)
        if one is not None and one.returns is not None
        for place, turn in enumerate(episode.turns)
        if turn.prompt is not None and len(turn.sample.ids)
    ]
    for place in np.random.default_rng(0).permutation(len(found)):
        yield found[place]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came out."""
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    learning = parts.add_parser("learn", help="whole training commands")
    learning.add_argument("--game", required=True, choices=GAMES)
    learning.add_argument("--seeds", type=int, nargs="+", default=sized([0, 1, 2, 3, 4], [0]))
    learning.add_argument("--overrides", nargs="*", default=[], metavar="KEY=VALUE")
    learning.add_argument("--per-run", type=int, default=1, help="processes of a run")
    learning.add_argument("--folder", type=Path, default=Path("runs/learn"), help="where the runs go")
    parts.add_parser("baselines", help="what the results are compared with")
    timing = parts.add_parser("speed", help="ours against the published way")
    timing.add_argument("--rounds", type=int, default=ROUNDS)
    timing.add_argument("--games", nargs="+", choices=GAMES, default=["numberline", "ezpoints"])
    timing.add_argument(
        "--published-steps", type=int, default=sized(128, 4), help="steps of the published way in a round"
    )
    sending = parts.add_parser("sent", help="bytes between processes")
    sending.add_argument("--games", nargs="+", choices=GAMES, default=["numberline", "ezpoints"])
    beside = parts.add_parser("parallel", help="episodes at the same time")
    beside.add_argument("--rounds", type=int, default=sized(3, 1))
    beside.add_argument("--games", nargs="+", choices=(*GAMES, "household"), default=PLAYED_SIDE_BY_SIDE)
    beside.add_argument("--sizes", type=int, nargs="+", default=sized([64, 128, 256, 512], [2, 4]))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.part == "learn":
        learn(arguments.game, arguments.seeds, arguments.overrides, arguments.per_run, arguments.folder)
    elif arguments.part == "baselines":
        baselines()
    elif arguments.part == "sent":
        sent(arguments.games)
    elif arguments.part == "parallel":
        parallel(arguments.rounds, arguments.games, arguments.sizes)
    else:
        speed(arguments.rounds, arguments.games, arguments.published_steps)


if __name__ == "__main__":
    main()
