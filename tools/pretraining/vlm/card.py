"""Measure a bundled vision-language model on held-out states and panels, and write its model card.

PYTHONPATH=tools python -m pretraining.vlm.card FOLDER --command "…" --seconds 2000 [--model bundled-rooms]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretraining.vlm.curriculum import CURRICULA, PLAN, exercises, maker_of, task_of
from pretraining.vlm.exercise import PLANNED, REPLIES, Exercise
from pretraining.vlm.train import HELD_OUT_SEED
from sightline.agents.evaluation import MID_GREY, play_eval_seeds, random_play, summary
from sightline.agents.parsing import read_reply
from sightline.agents.rollouts import RolloutWorker
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.types import same_text
from sightline.config.yaml import write_yaml
from sightline.envs.tasks import find_task
from sightline.evaluation.seeds import make_panel
from sightline.evaluation.statistics import wilson
from sightline.images import Picture
from sightline.models.vlm.model import VLM, load_vlm
from sightline.models.vlm.types import ChatTurn, TokenSequence, TurnSpan

SAMPLES, EPISODES = 200, 100
"""States of each game that are read, and episodes of each game that are played."""
MAX_TOKENS = 48
MOST_TURNS = 30
ENOUGH = 20
"""States with the same prompt that say how often facts come with it."""


@dataclass(frozen=True)
class Portrait:
    """What a card says besides numbers."""

    about: str
    """How the model was made, with places for `parameters`, `megabytes`, `seconds` and `commands`."""
    note: str
    """What is to be known of the numbers."""
    thoughts: str
    """How far it can think."""


PORTRAITS = {
    "bundled": Portrait(
        about="""# The bundled vision-language model

A LLaVA of stock transformers classes: a SigLIP tower for 96x96 pictures in patches of 16, and a Llama, three layers of
128 numbers each. {parameters:,} parameters, {megabytes:.1f} MB (float16). Its byte-level BPE tokenizer reads any text,
and the phrases of our games' prompts and replies as one token each.

**For trying Sightline on a laptop, offline, in minutes. It knows six games and CartPole, all drawn by us, and is
not for science.**

## Training

- Pictures: states of our games at 96x96, met by playing without skill; in half and more of the card games the cards are
  any cards, not only those of deals that can be won. Of CartPole two, before and after a push, with any pole.
- Replies: what the picture shows, told truly, then an action of the right form drawn from fixed habits ("+" more often
  than "-", "stand" more often than "hit"), right or wrong. Skill is left to reinforcement learning.
- Loss: cross-entropy of the reply; where two pictures differ by fractions of a pixel (CartPole), also the error of
  linear readouts of position, angle and turn, which are thrown away afterwards: words alone teach the eyes too slowly.
- Commands, one thread each, {seconds} s in all:

{commands}

  The curriculum grew meanwhile: the first was run without CartPole; the second, with a change of 0.5 degrees as the
  least that is called falling; the third, before the shares were what they are.
""",
        note="(States of small games recur: NumberLine has 36 pictures, so held-out states are not held-out pictures.)",
        thoughts="Think: its replies have no thoughts, only facts and an action.",
    ),
    "bundled-rooms": Portrait(
        about="""# The bundled vision-language model of households and grids

A LLaVA of stock transformers classes: a SigLIP tower for 96x96 pictures in patches of 12, three layers, and a Llama of
five, with 128 numbers each. {parameters:,} parameters, {megabytes:.1f} MB (float16). Its name is `bundled-rooms`. Its
byte-level BPE tokenizer reads any text; things, places and the phrases of these prompts and replies are one token each.

**For trying Sightline on a laptop, offline, in minutes. It knows the household (short commands, `words=false`) and
BabyAI's single rooms as their agent sees them, and is not for science.**

## Training

- Pictures: rooms of the household, a thousand of each kind and none of those held out, and BabyAI's GoToObj, GoToLocal
  and PutNextLocal at 96x96, met by strolling; 35 % of the games are told in words instead (`text_only`). In half of the
  household's the prompt says where the agent has not been (`recall`).
- Replies: what the picture shows, told truly, then an action that does something there, whatever the goal is: take what
  lies there, open what is closed, go forward where nothing is in the way. With `recall` it goes where the agent has not
  been, in three of ten cases to the first of these places, which the reply names before (`thoughts`). Other skill is
  left to demonstrations and reinforcement learning.
- Looking for what a word names: the fact `target` says where that is which the task or mission names, and these change
  from state to state.
- Loss: cross-entropy of the reply; and each picture token is pulled towards the embeddings of the words for what its
  cell shows, how it looks, and where it is.
- Commands, {seconds} s in all on one or two threads:

{commands}

  The lessons changed meanwhile. In the first, actions were any that the prompt names; until the third, BabyAI was seen
  as a whole; the fifth to seventh asked about rooms ("Is there a mug here?"); in the eighth and ninth the household's
  `target` had no name. The fourth to sixth were stopped after 500, 500 and 750 updates. The seventh and the eleventh
  added a layer (`building.with_a_matching_layer`). Until the twelfth (Q) there were 24 rooms of each kind, and no
  `recall`. Of 200 states without it, as its predecessor had them, both tell all facts truly in 97 % (24 rooms), of more
  rooms 94 and 95 %; with it 31 % before and 96 % after. From the next on, lessons with `recall` go where the agent has
  not been; from S on they name the first of these places, in S and T under the key `unseen`, later as `thoughts`.
  T was stopped after 500 updates.
""",
        note="""(Prompts of the household hardly ever recur, so its floor is not known. Held-out states are met in the
rooms of training; games played are `pick_and_place_simple` in seen rooms without `recall`, and GoToObj.)""",
        thoughts="""Think: its replies have no thoughts, only facts and an action; but with `recall`, where the thought
  is the first place where the agent has not been.""",
    ),
    "bundled-cards": Portrait(
        about="""# The bundled vision-language model of cards

A LLaVA of stock transformers classes: a SigLIP tower for 96x96 pictures in patches of 16, three layers, and a Llama of
four, with 128 numbers each. {parameters:,} parameters, {megabytes:.1f} MB (float16). Its name is `bundled-cards`. It
began as `bundled` with one more layer (`building.with_a_matching_layer`), and forgot that one's other games.

**For trying Sightline on a laptop, offline, in minutes. It adds up hands of Blackjack (`env_options.total`) and tries
to make 24 on paper (Points24 with a plan), and is not for science.**

## Training

- Pictures: both games at 96x96, met by playing without skill; four of five hands of Blackjack are any cards, up to six.
- Replies: what the picture shows, told truly. Of Blackjack what the hand is worth, card by card, and an action from
  fixed habits. Of Points24 one to ten attempts, in which two numbers at random and a sign at random make a third until
  one is left, and the formula of the last attempt, whatever it makes. Skill is left to demonstrations and reinforcement
  learning.
- A fifth of all hands of Points24 is kept for evaluation (`env_options.held_out`): no plan is made of them. What their
  cards look like it knows, from `bundled`, which was shown all hands and formulas at random.
- Loss: cross-entropy of the reply.
- Command, {seconds} s with two processes on two cores:

{commands}
""",
        note="""(`blackjack-total` is Blackjack with `total=true`, `points24-plan` Points24 with a plan. Hands hardly
ever recur among the 4 000 states of which the floors are estimated, so they are too low.)""",
        thoughts="Plan with skill: it tries what comes.",
    ),
}


def measure(vlm: VLM, games: Iterable[str]) -> dict[str, dict[str, Any]]:
    """All numbers of the card, by game."""
    return {game: _reading(vlm, game) | _playing(vlm, game) for game in games}


def _shown(seed: int, game: str, count: int) -> list[Exercise]:
    """States of a game that are seen, not told."""
    return list(islice((one for one in exercises(seed, {game: 1.0}) if one.pictures), count))


def _reading(vlm: VLM, game: str) -> dict[str, Any]:
    """How the model reads held-out states, and how much of that it owes to the pictures."""
    shown = _shown(HELD_OUT_SEED, game, SAMPLES)
    others = np.random.default_rng(HELD_OUT_SEED).permutation(SAMPLES)
    blank = [replace(one, pictures=tuple(np.full_like(p, MID_GREY) for p in one.pictures)) for one in shown]
    shuffled = [replace(one, pictures=shown[other].pictures) for one, other in zip(shown, others, strict=True)]
    true_facts, true_replies, parsed, facts = 0, 0, 0, 0
    always = maker_of(game)().get_wrapper_attr("action_names")
    for lesson, text in zip(shown, _replies(vlm, shown), strict=True):
        names = lesson.actions or always
        reply = read_reply(text, lesson.replies, names, tuple(lesson.facts))
        true = [same_text(reply.stated.get(name, ""), fact) for name, fact in lesson.facts.items()]
        true_facts, facts = true_facts + sum(true), facts + len(true)
        true_replies, parsed = true_replies + all(true), parsed + (reply.failure is None)
    return {
        "true_facts": true_facts / facts,
        "true_replies": true_replies / SAMPLES,
        "true_replies_interval": wilson(true_replies, SAMPLES),
        "parsed": parsed / SAMPLES,
        "loss": _loss(vlm, shown),
        "loss_blank": _loss(vlm, blank),
        "loss_shuffled": _loss(vlm, shuffled),
        "floor": _blind_floor(game, shown),
    }


def _replies(vlm: VLM, shown: Sequence[Exercise]) -> list[str]:
    prompts = [vlm.encode([ChatTurn(one.prompt, tuple(map(Picture, one.pictures)))]) for one in shown]
    found = []
    for start in range(0, len(prompts), 64):
        found += vlm.generate(prompts[start : start + 64], None, max_tokens=_max_tokens(shown[0].game))
    return [sample.text for sample in found]


def _loss(vlm: VLM, shown: Sequence[Exercise]) -> float:
    """Mean negative log-probability, in nats, of the true facts of a reply."""
    total = 0.0
    for start in range(0, len(shown), 64):
        passages = [_facts_of(vlm, one) for one in shown[start : start + 64]]
        with torch.no_grad():
            total -= float(vlm.score(passages).logprobs.sum())
    return total / len(shown)


def _facts_of(vlm: VLM, lesson: Exercise) -> TokenSequence:
    """The reply as far as it says what is seen."""
    reply = np.array(lesson.told_facts(vlm.tokens.encode), np.int64)
    prompt = vlm.encode([ChatTurn(lesson.prompt, tuple(map(Picture, lesson.pictures)))])
    return TokenSequence(prompt, reply, (TurnSpan(len(prompt.ids), len(prompt.ids) + len(reply)),))


def _blind_floor(game: str, shown: Sequence[Exercise]) -> float | None:
    """The least loss, in nats, that is possible without the picture for one who knows how often each combination of
    facts comes with a prompt: its entropy, estimated from many states. None where no prompt comes often enough."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for lesson in _shown(HELD_OUT_SEED + 1, game, 20 * SAMPLES):
        counts[lesson.prompt][json.dumps(lesson.facts)] += 1
    found = []
    for lesson in shown:
        of_prompt = counts[lesson.prompt]
        total = sum(of_prompt.values())
        if total >= ENOUGH:  # rare formulas say nothing about how often facts come with them
            entropy = -sum(n / total * np.log(n / total) for n in of_prompt.values())
            found.append(float(entropy))
    return float(np.mean(found)) if found else None


def _max_tokens(game: str) -> int:
    return PLANNED.max_tokens if game == PLAN else MAX_TOKENS


def _playing(vlm: VLM, game: str) -> dict[str, Any]:
    """How it plays before it has learned to: greedily, and sampled at temperature 1."""
    make = maker_of(game, MOST_TURNS)
    panel, rule = make_panel("card", game, EPISODES), find_task(task_of(game)).success
    table = RolloutWorker(make, PLANNED if game == PLAN else REPLIES, vlm=vlm, success=rule)
    greedy, sampled = (
        summary(play_eval_seeds(table, PolicySampler(vlm, temperature, _max_tokens(game)), panel), panel, rule)
        for temperature in (0.0, 1.0)
    )
    at_random = random_play(table, panel)["success_rate"]
    table.close()
    names = ("success_rate", "ci_low", "ci_high", "clean")
    played = {"played": greedy, "sampled": sampled}
    return {way: {name: found[name] for name in names} for way, found in played.items()} | {"random": at_random}


def write_card(
    folder: Path,
    portrait: Portrait,
    measured: dict[str, dict[str, Any]],
    parameters: int,
    commands: Sequence[str],
    seconds: int,
) -> None:
    """Write `README.md` beside the weights."""
    megabytes = (folder / "model.safetensors").stat().st_size / 1e6
    rows = [_reading_row(game, numbers) for game, numbers in measured.items()]
    plays = [_playing_row(game, numbers) for game, numbers in measured.items()]
    about = portrait.about.format(
        parameters=parameters,
        megabytes=megabytes,
        seconds=seconds,
        commands="\n".join(f"      {command}" for command in commands),
    )
    header = write_yaml({"sightline": {"replies": {"format": REPLIES.format, "thoughts": REPLIES.thoughts}}})
    text = f"""---
{header}---

{about}
## Held-out numbers

{SAMPLES} states of each game, met with another seed, printed by `pretraining.vlm.card`. Replies are greedy;
brackets are 95 % intervals (Wilson). The loss is that of the true facts, in nats per reply; the floor is what no one
can go below without looking (the entropy of the facts, given the prompt).

| game | replies with all facts true | facts true | readable | loss | blank | shuffled | floor without looking |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

{portrait.note}

What it plays before reinforcement learning, in {EPISODES} episodes of at most {MOST_TURNS} turns: greedily, sampled
at temperature 1, and random play beside it. Actions of lessons are drawn at random, so what is the most probable one is
a matter of hairs, and greedy play no skill. Clean is without mistakes or illegal moves:

| game | greedy | clean | sampled | clean | random play |
|---|---|---|---|---|---|
{chr(10).join(plays)}

## What it cannot do

- See anything but these drawings at this size, or read other prompts than those of our games in the JSON form: it has
  seen no other text.
- {portrait.thoughts}
- Read earlier turns: it was trained with one turn at a time (`rollouts.window=1`).
"""
    (folder / "README.md").write_text(text)


def _reading_row(game: str, numbers: dict[str, Any]) -> str:
    low, high = numbers["true_replies_interval"]
    floor = "—" if numbers["floor"] is None else f"{numbers['floor']:.2f}"
    return (
        f"| {game} | {numbers['true_replies']:.3f} [{low:.3f}, {high:.3f}] | {numbers['true_facts']:.3f} "
        f"| {numbers['parsed']:.3f} | {numbers['loss']:.2f} | {numbers['loss_blank']:.2f} "
        f"| {numbers['loss_shuffled']:.2f} | {floor} |"
    )


def _playing_row(game: str, numbers: dict[str, Any]) -> str:
    cells = [
        f"{one['success_rate']:.3f} [{one['ci_low']:.3f}, {one['ci_high']:.3f}] | {one['clean']:.3f}"
        for one in (numbers["played"], numbers["sampled"])
    ]
    return f"| {game} | {' | '.join(cells)} | {numbers['random']:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", action="append", required=True, help="how the model was trained; once per stage")
    parser.add_argument("--seconds", type=int, required=True, help="how long that took")
    parser.add_argument("--model", choices=PORTRAITS, default="bundled", help="which one it is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vlm = load_vlm(str(arguments.folder), device="cpu")
    measured = measure(vlm, CURRICULA[arguments.model])
    print(json.dumps(measured, indent=2))
    parameters = sum(parameter.numel() for parameter in vlm.model.parameters())
    portrait = PORTRAITS[arguments.model]
    write_card(arguments.folder, portrait, measured, parameters, arguments.command, arguments.seconds)


if __name__ == "__main__":
    main()
