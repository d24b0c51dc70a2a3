"""The command of the reward lab."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sightline.cli.output import AsJson, Trust, in_home, print_json
from sightline.cli.people import people_in_words

COLUMNS = (
    ("Spearman", ("spearman",)),
    ("EPIC distance", ("epic",)),
    ("AUROC", ("auroc",)),
    ("preferences", ("preference_accuracy",)),
    ("of nonsense", ("controls", "nonsense", "auroc")),
    ("noise", ("noise",)),
)
"""Columns of the table: their titles, and where their measures are."""
NONSENSE = 4
"""Place of the column of controls."""
NOT_TRIED = "not tried"
"""Of a reward whose goal is not exchanged, since all would have to be asked again, or since it has no words."""
LONGEST_NAME = 60


def lab(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task, a recipe, or any Gymnasium id.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key.sub=value]...",
            help="Of all rewards; a list (a,b) makes several of each.",
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=key=value,…",
            help="A reward to compare: the recipe with another goal, baseline, reward.… or env_options.…; again and "
            "again. Default: the recipe's own.",
        ),
    ] = None,
    sentences: Annotated[
        Path | None, typer.Option(help="A file with a goal on each line; each is tried, and they are ranked.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Episodes of random and scripted play, and of each --run; states and goals are always whole, and 0 "
            "leaves them out. Default: 10, or none beside files.",
        ),
    ] = None,
    play: Annotated[
        list[str] | None,
        typer.Option(
            help="random, scripted (by its own script), states (its grid) or goal (as its task shows it); default: all."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all chance.")] = 0,
    run: Annotated[
        list[Path] | None, typer.Option(help="A run folder, whose policy plays too, and half at random.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="A folder of pictures with a CSV file: file, success (or label) or truth, episode, step."),
    ] = None,
    goal_pictures: Annotated[Path | None, typer.Option(help="A folder of pictures that show the goal.")] = None,
    other_pictures: Annotated[
        Path | None, typer.Option(help="A folder of pictures that do not; default: those of play.")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="A video, of which progress is the ground truth.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A label store, or a run that has one: is what was preferred paid more?")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="A data set of episodes: of sightline collect, LeRobot, Minari or vlmrm.")
    ] = None,
    camera: Annotated[str | None, typer.Option(help="Which of several cameras of --dataset.")] = None,
    states: Annotated[
        Path | None,
        typer.Option(
            help="A file of numpy.save with states in rows, for set_state(qpos, qvel) or the attribute state."
        ),
    ] = None,
    paraphrases: Annotated[
        Path | None, typer.Option(help="A file with other words for the same goal, one on each line.")
    ] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=key=value,…",
            help="The same states drawn with other env_options: --view side=camera=side; again and again.",
        ),
    ] = None,
    true_reward: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The ground truth of (states, actions, next_states), for EPIC of transitions; or FILE.py:FUNCTION.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for lab.json, its page and kept embeddings.", callback=in_home)
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Judge rewards before training: sightline lab cartpole --reward own --reward "red=goal=a red car"

    A comma ends a value where key= comes next. Values that are lists make several rewards, with the quoting of
    'sightline sweep': --reward "a=reward.alpha=0,0.5,1".
    """
    from sightline.reward_lab.contenders import parse_rewards
    from sightline.reward_lab.running import PLAY, LabData, read_sentences, run_lab

    files = (pictures, goal_pictures, other_pictures, video, labels, dataset)
    data = LabData(episodes, tuple(play or PLAY), seed, tuple(run or ()), *files, camera, states, trust)
    goals = read_sentences(sentences) if sentences else ()
    other_words: tuple[str, ...] = ()
    if paraphrases:
        other_words = read_sentences(paraphrases, "--paraphrases")
    views = parse_rewards(view or [], "--view")
    shows = sys.stderr.isatty()
    show = _progress if shows else lambda source, frames: None
    document = run_lab(
        task,
        overrides or [],
        parse_rewards(reward or []),
        goals,
        data,
        out=out,
        show=show,
        paraphrases=other_words,
        views=views,
        true_reward=true_reward,
    )
    if shows:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    for line in document["warnings"]:
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        print_json(document)
        return
    for line in _text(document):
        typer.echo(line)


def _text(document: dict[str, Any]) -> Iterator[str]:
    """The result for a terminal: what it rests on, a row for each reward, and what is undefined."""
    from sightline.reports.pages import by_text

    sources = ", ".join(f"{name} {count}" for name, count in document["sources"].items())
    plural = "" if document["episodes"] == 1 else "s"
    yield f"{document['frames']:,} frames of {document['episodes']:,} episode{plural} ({sources})"
    if "people" in document:
        yield from people_in_words(document["people"])
    yield ""
    rewards = document["rewards"]
    rows = [("", *(title for title, _ in COLUMNS))]
    for name, reward in rewards.items():
        short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        cells = [_cell(_value_at(reward, path)) for _, path in COLUMNS]
        if "controls" in reward and "nonsense" not in reward["controls"]:
            cells[NONSENSE] = NOT_TRIED
        rows.append((short, *cells))
    # Columns of nothing but blanks, of rewards that have no controls, are left out.
    filled = [column for column in zip(*rows, strict=True) if {*column[1:]} - {"", NOT_TRIED}]
    widths = [max(map(len, column)) for column in filled]
    for row in zip(*filled, strict=True):
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from by_text(list(_gaps(rewards)))
    if all("show the goal" in reward["auroc"].get("undefined", "") for reward in rewards.values()):
        yield "to see whether it finds the goal, give a dozen pictures of it (--goal-pictures DIR) and of others"
    yield from _alterations(rewards)
    for name, reward in rewards.items():
        distance = reward.get("epic_of_transitions")
        if distance is not None:
            yield f"{name}: {_of_transitions(distance)}"
    for place, row in enumerate(document.get("ranking", ()), 1):
        yield f"{place:>3}. AUROC {_cell(row['held_out'])} of the half that is held out: {row['reward']}"
    if "page" in document:
        yield f"page        {document['page']}"


def _gaps(rewards: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The name of a reward and a text, for each of its chief measures without a value or an interval."""
    for name, reward in rewards.items():
        if reward["failure"]:
            yield name, reward["failure"]
            continue
        for title, path in COLUMNS[:3]:
            measure = _value_at(reward, path)
            if measure is None:
                continue
            if measure["value"] is None:
                yield name, f"{title} is undefined: {measure['undefined']}"
            elif measure["low"] is None:
                yield name, f"{title} has no interval: {measure['no_interval']}"


def _alterations(rewards: dict[str, Any]) -> Iterator[str]:
    """A line for the paraphrases and one for the views of each reward."""
    for name, reward in rewards.items():
        for kind, title in (("paraphrases", "other words"), ("views", "other views")):
            block = reward.get(kind)
            if not block:
                continue
            line = f"{name}: {len(block['each'])} {title}: spread {_cell(block['spread'])}"
            area = block["auroc"]
            if area["low"] is not None:
                line += f", AUROC {area['low']:.2f} to {area['high']:.2f}"
            yield line


def _of_transitions(distance: dict[str, Any]) -> str:
    if distance["value"] is None:
        return f"EPIC of transitions is undefined: {distance['undefined']}"
    of = distance["details"]
    over = f"{distance['n']:,} of {of['coverage']}, background {of['background']}, discount {of['discount']:g}"
    return f"EPIC of transitions {_cell(distance)} over {over}"


def _value_at(reward: dict[str, Any], path: Sequence[str]) -> dict[str, Any] | None:
    """The measure at a path; None if it was not taken."""
    place: Any = reward
    for key in path:
        if key not in place:
            return None
        place = place[key]
    found: dict[str, Any] = place
    return found


def _cell(measure: dict[str, Any] | None) -> str:
    if measure is None:
        return ""
    if measure["value"] is None:
        return "–"
    if measure["low"] is None:
        return f"{measure['value']:.2f}"
    return f"{measure['value']:.2f} [{measure['low']:.2f}, {measure['high']:.2f}]"


def _progress(source: str, frames: int) -> None:
    """One line on a terminal, which is overwritten."""
    print(f"\r\033[K{source}: {frames:,} frames", end="", file=sys.stderr, flush=True)
