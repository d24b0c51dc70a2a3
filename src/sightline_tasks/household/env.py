"""Household: fetch, clean, heat, cool, slice and place things in a house that is seen in pictures, or told in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sightline.envs.frames import Size
from sightline.envs.games.contract import Game, Observation
from sightline.envs.tasks import Task
from sightline.errors import BadInput, one_of
from sightline_tasks.household.files import FILE, read_game
from sightline_tasks.household.goals import KINDS, Goal, expert, find_target
from sightline_tasks.household.pictures import draw_world
from sightline_tasks.household.scenes import LAYOUTS, SEEN, Layouts, Scene, draw_game, kind_of, room_of, scenes
from sightline_tasks.household.world import NOTHING_HAPPENS, Household, Place, Thing, World

RULES = (
    "You are in a house and can go to furniture and appliances, open and close them, take one thing at a time and move "
    "it elsewhere; clean things at a sinkbasin, heat them with a microwave, cool them with a fridge, slice them with a "
    "knife, and use a lamp. "
)


class HouseholdGame(Game):
    """One of ALFWorld's tasks, by ALFWorld's rules, in rooms of our own making or in its own game files.

    With `words`, the answer to the last command is part of the text, and the commands that have a meaning now are the
    actions, as in ALFWorld. Without, only the picture says what came of a command; the actions are the same in all of
    an episode, and short (`take mug`, `open`, `go to drawer 2`), so that they give nothing away.

    Reward: 1 when the task is done, which ends the episode; with `shaped`, each condition of the goal that becomes true
    pays its share already, and costs it if it is undone. `kind` is that of the task. The time limit of the registration
    (50 steps) truncates.

    Args:
        tasks: kinds of tasks to draw from, by ALFWorld's names; None for all six.
        held_out: play in the rooms that are never trained in.
        sliced: let things be sliced first.
        rooms: of each kind (kitchen, bathroom, …) that are seen; any number, for all are drawn. The six that are held
            out stay the same.
        layouts: `own`: rooms of our making; `alfworld`: the floor plans of the package of that name, which has to be
            installed.
        words: see above.
        shaped: see above.
        recall: tell where the agent has not been yet, which no picture shows; the first of these places is the thought
            before a demonstrated action.
        games: a file `game.tw-pddl`, or a folder whose files of that name are played, instead of drawn games.
        render_size: height and width of the pictures.
        render_mode: `rgb_array` or None.

    Raises:
        BadInput: an unknown task, one that no room allows, a file that is no game, a folder without any, floor plans
            that are not installed.
    """

    action_names = ()
    asked = ("place", "contents", "holding", "target")

    def __init__(
        self,
        tasks: Sequence[str] | str | None = None,
        held_out: bool = False,
        sliced: bool = False,
        rooms: int = SEEN,
        layouts: Layouts = "own",
        words: bool = True,
        shaped: bool = False,
        recall: bool = False,
        games: str | None = None,
        render_size: Size = (96, 96),
        render_mode: str | None = "rgb_array",
    ) -> None:
        super().__init__(render_size, render_mode)
        if isinstance(tasks, str):
            tasks = (tasks,)
        self._tasks = tuple(one_of("tasks", task, KINDS) for task in tasks or KINDS)
        if sliced:
            self._tasks = tuple(task for task in self._tasks if task != "look_at_obj_in_light")
            if not self._tasks:
                raise BadInput("sliced: no room has both a knife and a lamp; leave out look_at_obj_in_light")
        self.held_out = held_out
        self.sliced = sliced
        self.words = words
        self.shaped = shaped
        self.recall = recall
        self.layouts = one_of("layouts", layouts, LAYOUTS)
        if rooms < 1 or (rooms != SEEN and layouts != "own"):
            raise BadInput(f"rooms={rooms}: say 1 or more, with layouts=own; there are 24 floor plans of each kind")
        self._rooms = rooms
        # A task that cannot be drawn is refused now, not in the middle of training.
        for task in self._tasks:
            if not scenes(held_out, task, sliced, layouts, rooms):
                room = "room" if layouts == "own" else "floor plan"
                raise BadInput(f"{task}: no {room} allows it; leave it out of tasks")
        self._files: list[Path] = []
        if games is not None:
            self._files = _game_files(Path(games))
        self._scene: Scene | None = None
        self.goal = Goal("pick_and_place_simple", "", "")
        self.world = World(Household({}, {}, {}, {}))
        self.sentence = ""
        self._answer = ""
        self._visited: set[str] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        if self._files:
            self._scene = None
            household, self.goal = read_game(self._files[int(self.np_random.integers(len(self._files)))])
        else:
            self._scene, household, self.goal = draw_game(
                self.np_random, self._tasks, self.held_out, self.sliced, self.layouts, self._rooms
            )
        self.world = World(household)
        sentences = self.goal.sentences
        self.sentence = sentences[int(self.np_random.integers(len(sentences)))]
        # As in ALFWorld, only the first text lists the places.
        self._answer = self.world.introduction()
        self._visited = {place.name for place in self.world.here}
        return self._observation(), self._info(self.goal.is_done(self.world))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        # Shaped rewards pay the difference of what was true before and after.
        before = self.goal.conditions(self.world)
        command = str(action)
        if not self.words:
            command = self._whole_command(command)
        self._answer = self.world.do(command)
        self._visited |= {place.name for place in self.world.here}
        after = self.goal.conditions(self.world)
        done = after == 1.0
        reward = after - before if self.shaped else float(done)
        return self._observation(), reward, done, False, self._info(done)

    def text(self) -> str:
        text = f"{RULES}Your task is to: {self.sentence}."
        if self.words:
            text += f"\n{self._answer}"
        if self.recall:
            # The places that remain rather than those that are done with: choosing is then reading off.
            text += f"\nYou have not been at: {', '.join(self.unvisited()) or 'nothing'}."
        return text

    def unvisited(self) -> list[str]:
        """Places where the agent has not been yet, in the order in which they are listed."""
        return [name for name in self.world.household.places if name not in self._visited]

    def thoughts(self) -> str | None:
        """Where to look next, if nothing better is known: the first place where the agent has not been."""
        if not self.recall:
            return None
        return f"not seen yet: {next(iter(self.unvisited()), 'nothing')}"

    def draw(self) -> Any:
        return draw_world(self.world, self.render_size)

    def facts(self) -> dict[str, str]:
        things = self.world.household.things
        places = [self._describe_place(place) for place in self.world.here]
        contents = [self._describe_thing(things[name]) for name in self.world.in_sight()]
        holding = "nothing"
        if self.world.held is not None:
            holding = self._describe_thing(things[self.world.held])
        kind, is_here = find_target(self.world, self.goal)
        whereabouts = "here" if is_here else "elsewhere"
        return {
            "place": "; ".join(places) or "middle of the room",
            "contents": ", ".join(contents) or "nothing",
            "holding": holding,
            "target": f"{kind}, {whereabouts}",
        }

    def _describe_place(self, place: Place) -> str:
        if not place.openable:
            return place.name
        if place.name in self.world.opened:
            return f"{place.name}, open"
        return f"{place.name}, closed"

    def _describe_thing(self, thing: Thing) -> str:
        words = [state for state in ("hot", "cool", "clean", "sliced") if thing.name in self.world.states[state]]
        if thing.name in self.world.states["toggled"]:
            words.append("lit")
        return " ".join([*words, thing.kind])

    def legal_actions(self) -> tuple[str, ...]:
        if self.goal.is_done(self.world):
            return ()
        if self.words:
            return tuple(self.world.commands())
        return self._short_commands()

    def oracle(self) -> str | None:
        command = expert(self.world, self.goal)
        if command is None or self.words:
            return command
        return self.shortened(command)

    def caption(self) -> str:
        facts = self.facts()
        return f"You are at: {facts['place']}. There you see: {facts['contents']}. You hold: {facts['holding']}."

    def _info(self, success: bool) -> dict[str, Any]:
        info = super()._info(success)
        info["kind"] = self.goal.task
        info["conditions"] = self.goal.conditions(self.world)
        return info

    # -- short commands --------------------------------------------------------------------------------------------

    def _short_commands(self) -> tuple[str, ...]:
        household = self.world.household
        if self._scene is None:
            kinds = {thing.kind for thing in household.things.values()}
        else:
            # What a room of this kind can have, whatever is there now: a list of what is there would tell it.
            kinds = set(room_of(self._scene).things)
        commands = ["clean", "close", "cool", "heat", "open", "put", "use"]
        if self.goal.sliced:
            commands.append(f"slice {self.goal.thing}")
        commands += [f"take {kind}" for kind in sorted(kinds)]
        commands += [f"go to {name}" for name in household.places]
        return tuple(commands)

    def _whole_command(self, short: str) -> str:
        """The command that a short one stands for in this state; one that means nothing if there is none.

        Of things that are alike in name, it means the one that the task needs: the loaf that is not sliced yet.
        """
        if short not in self._short_commands():
            return NOTHING_HAPPENS
        candidates = [command for command in self.world.commands() if self.shortened(command) == short]
        if not candidates:
            return NOTHING_HAPPENS
        if len(candidates) > 1:
            best = expert(self.world, self.goal)
            if best in candidates:
                return best
        return candidates[0]

    def shortened(self, command: str) -> str:
        """`take mug 2 from shelf 1` -> `take mug`, and so on."""
        verb, _, rest = command.partition(" ")
        if verb == "move":
            return "put"
        if verb in ("take", "slice"):
            return f"{verb} {kind_of(rest.partition(' from ')[0].partition(' with ')[0])}"
        if verb == "go":
            return command
        return verb


def _game_files(place: Path) -> list[Path]:
    """The game files of a folder, in the order of their names; or the one that is named.

    Raises:
        BadInput: there are none, or the first is no game.
    """
    files = [place]
    if not place.is_file():
        files = sorted(place.rglob(FILE))
    if not files:
        raise BadInput(f"games: there is no {FILE} in '{place}'; say a folder of ALFWorld's data")
    # A folder of other data is noticed before training; each file is read when it is played.
    read_game(files[0])
    return files


TASK = Task(
    name="household",
    env="sightline/Household-v0",
    goal=("the task of the house is done",),
    baseline=("a room with furniture",),
    success="end",
    is_game=True,
    text_actions=True,
    summary="ALFWorld's six household tasks, in pictures and words.",
)
