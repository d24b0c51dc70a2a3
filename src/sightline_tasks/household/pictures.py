"""Pictures of a household: what the agent faces, what lies there, and what it holds.

    ┌──────────────┐
    │ place, door  │   its sign, its number in dots, and whether it is open; in the middle of the room: all signs
    ├──────────────┤
    │ ● ▲ ▬        │   what lies there, unless the door is closed
    ├──────────────┤
    │ hand:  ■     │   what is held
    └──────────────┘

Nothing is written: kinds are told by sign and colour. A corner mark says that a thing is hot (red), cool (blue) or
clean (white); a white line goes through what is sliced, and a lamp that was turned on shines.

A sign is written as the shapes that it is made of, in a square whose sides are 1, from the top left:

    box LEFT TOP RIGHT BOTTOM COLOUR; oval X Y HALF_WIDTH HALF_HEIGHT COLOUR; poly X Y X Y X Y … COLOUR
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from sightline.envs.frames import Size
from sightline_tasks.drawing import Canvas, Colour, Point
from sightline_tasks.household.scenes import number_of
from sightline_tasks.household.world import Place, Thing, World

COLOURS: dict[str, Colour] = {
    "black": (20, 20, 22),
    "blue": (40, 110, 230),
    "brown": (112, 70, 40),
    "cream": (244, 236, 214),
    "dark": (52, 48, 46),
    "floor": (232, 228, 218),
    "glow": (255, 226, 96),
    "green": (84, 158, 64),
    "grey": (120, 122, 126),
    "inside": (92, 86, 84),
    "lime": (150, 206, 96),
    "mint": (190, 230, 190),
    "navy": (44, 60, 120),
    "orange": (232, 130, 40),
    "pink": (232, 140, 170),
    "purple": (130, 80, 170),
    "red": (222, 40, 32),
    "rose": (246, 180, 200),
    "skin": (226, 178, 140),
    "sky": (120, 186, 236),
    "steel": (150, 158, 168),
    "surface": (206, 188, 156),
    "tan": (204, 150, 80),
    "teal": (40, 150, 150),
    "tray": (206, 214, 222),
    "white": (255, 255, 255),
    "wine": (110, 24, 50),
    "wood": (166, 116, 70),
    "yellow": (240, 200, 50),
}

THINGS: dict[str, str] = {
    "alarmclock": "oval .5 .55 .36 .36 red; oval .5 .55 .26 .26 white; box .48 .36 .53 .57 dark",
    "apple": "oval .5 .58 .36 .36 red; box .47 .1 .53 .28 brown",
    "book": "box .15 .12 .85 .88 navy; box .25 .12 .32 .88 yellow",
    "bowl": "poly .08 .4 .92 .4 .7 .85 .3 .85 sky",
    "box": "box .1 .2 .9 .9 tan; box .44 .2 .56 .9 brown",
    "bread": "oval .5 .5 .46 .26 tan; box .3 .34 .36 .64 brown; box .6 .34 .66 .64 brown",
    "butterknife": "box .45 .4 .55 .97 steel; box .42 .05 .58 .45 steel",
    "candle": "box .38 .4 .62 .95 cream; oval .5 .25 .09 .16 orange",
    "cd": "oval .5 .5 .42 .42 sky; oval .5 .5 .14 .14 floor",
    "cellphone": "box .3 .06 .7 .94 black; box .35 .16 .65 .78 sky",
    "cloth": "poly .1 .25 .8 .15 .92 .75 .2 .88 teal",
    "creditcard": "box .12 .28 .88 .75 orange; box .12 .38 .88 .5 black",
    "cup": "poly .2 .15 .8 .15 .68 .92 .32 .92 purple",
    "desklamp": "box .46 .4 .54 .8 dark; box .28 .74 .72 .84 dark; poly .35 .08 .65 .08 .8 .4 .2 .4 orange",
    "dishsponge": "box .12 .32 .88 .72 yellow; box .12 .62 .88 .78 green",
    "egg": "oval .5 .52 .3 .4 cream",
    "floorlamp": "box .46 .4 .54 .95 dark; box .28 .89 .72 .99 dark; poly .35 .08 .65 .08 .8 .4 .2 .4 orange",
    "fork": "box .45 .4 .55 .97 steel; poly .3 .05 .38 .05 .5 .35 .62 .05 .7 .05 .55 .5 .45 .5 steel",
    "handtowel": "box .2 .1 .8 .9 pink; box .2 .68 .8 .76 white",
    "kettle": "oval .45 .6 .34 .32 teal; box .7 .4 .98 .52 teal; box .35 .12 .55 .3 dark",
    "keychain": "oval .35 .3 .24 .24 yellow; oval .35 .3 .12 .12 floor; poly .45 .42 .55 .36 .9 .85 .78 .92 grey",
    "knife": "poly .42 .05 .62 .2 .6 .6 .42 .6 steel; box .42 .6 .58 .97 black",
    "ladle": "box .45 .4 .55 .97 dark; oval .5 .25 .28 .2 dark",
    "laptop": "box .12 .12 .88 .62 dark; box .18 .18 .82 .56 sky; box .04 .66 .96 .82 grey",
    "lettuce": "oval .5 .55 .42 .34 green; oval .4 .4 .2 .2 lime; oval .62 .6 .2 .2 lime",
    "mug": "box .15 .2 .65 .9 white; box .65 .35 .9 .45 white; box .8 .35 .9 .75 white; box .65 .65 .9 .75 white",
    "newspaper": (
        "box .12 .08 .88 .92 cream; box .2 .18 .8 .28 dark; box .2 .4 .8 .45 grey; box .2 .55 .8 .6 grey; "
        "box .2 .7 .8 .75 grey"
    ),
    "pan": "oval .38 .5 .34 .34 dark; box .65 .44 .99 .56 brown",
    "pen": "poly .2 .85 .75 .1 .88 .2 .32 .92 blue",
    "pencil": "poly .2 .85 .75 .1 .88 .2 .32 .92 yellow; poly .68 .19 .75 .1 .88 .2 .81 .29 pink",
    "peppershaker": "poly .35 .3 .65 .3 .75 .9 .25 .9 black; box .35 .15 .65 .32 grey",
    "pillow": "oval .5 .5 .46 .34 pink; oval .5 .5 .34 .22 rose",
    "plate": "oval .5 .5 .45 .45 white; oval .5 .5 .28 .28 grey",
    "pot": "box .18 .3 .82 .88 steel; box .02 .4 .98 .5 dark; box .18 .2 .82 .3 dark",
    "potato": "oval .5 .55 .42 .3 tan; oval .38 .5 .05 .05 brown; oval .62 .6 .05 .05 brown",
    "remotecontrol": "box .34 .05 .66 .95 dark; oval .5 .2 .08 .08 red; box .42 .4 .58 .8 grey",
    "saltshaker": "poly .35 .3 .65 .3 .75 .9 .25 .9 white; box .35 .15 .65 .32 grey",
    "soapbar": "oval .5 .55 .42 .26 mint",
    "soapbottle": "box .3 .35 .7 .95 green; box .42 .12 .58 .4 green; box .4 .05 .6 .18 white",
    "spatula": "box .45 .4 .55 .97 black; box .3 .05 .7 .42 grey",
    "spoon": "box .45 .4 .55 .97 steel; oval .5 .25 .17 .22 steel",
    "spraybottle": "box .3 .35 .7 .95 sky; box .42 .12 .58 .4 sky; box .4 .05 .6 .18 red; box .2 .05 .45 .14 red",
    "statue": "oval .5 .2 .15 .15 grey; poly .4 .3 .6 .3 .75 .8 .25 .8 grey; box .2 .8 .8 .95 dark",
    "tissuebox": "box .1 .4 .9 .9 teal; poly .35 .4 .5 .08 .65 .4 white",
    "toiletpaper": "box .2 .2 .75 .85 white; oval .75 .52 .14 .33 grey; oval .75 .52 .05 .12 brown",
    "tomato": "oval .5 .58 .4 .34 orange; poly .3 .2 .7 .2 .5 .42 green",
    "towel": "box .15 .08 .85 .95 blue; box .15 .3 .85 .38 white; box .15 .6 .85 .68 white",
    "vase": "poly .35 .1 .65 .1 .58 .3 .8 .65 .65 .95 .35 .95 .2 .65 .42 .3 purple",
    "watch": "box .4 .02 .6 .98 brown; oval .5 .5 .26 .26 yellow; oval .5 .5 .18 .18 white",
    "winebottle": "box .3 .35 .7 .95 wine; box .42 .12 .58 .4 wine; box .4 .05 .6 .18 black",
}
"""Kind of a thing -> its sign. One that has none is drawn as a patch in colours that depend on its name."""

PLACES: dict[str, str] = {
    "armchair": "box .2 .2 .8 .8 green; box .3 .5 .7 .7 cream; box .2 .8 .3 .95 dark; box .7 .8 .8 .95 dark",
    "bed": "box .03 .45 .97 .8 sky; box .03 .2 .15 .95 brown; box .15 .35 .4 .5 white",
    "cabinet": "box .05 .05 .95 .95 brown; box .1 .1 .48 .9 wood; box .52 .1 .9 .9 wood",
    "cart": "box .1 .2 .9 .32 steel; box .1 .55 .9 .67 steel; oval .22 .88 .1 .1 dark; oval .78 .88 .1 .1 dark",
    "coffeemachine": "box .2 .05 .8 .95 dark; box .32 .4 .68 .8 steel; oval .5 .2 .08 .08 red",
    "coffeetable": "oval .5 .4 .46 .14 brown; box .46 .45 .54 .95 brown",
    "countertop": "box 0 .25 1 .42 steel; box .05 .42 .95 .95 cream",
    "desk": "box .05 .3 .95 .45 wood; box .12 .45 .22 .95 wood; box .78 .45 .88 .95 wood; box .6 .45 .9 .8 brown",
    "diningtable": "box .05 .3 .95 .45 brown; box .12 .45 .22 .95 brown; box .78 .45 .88 .95 brown",
    "drawer": "box .05 .02 .95 .98 brown; box .12 .07 .88 .91 wood; oval .5 .5 .05 .05 dark",
    "dresser": (
        "box .05 .02 .95 .98 brown; box .12 .07 .88 .31 wood; box .12 .37 .88 .61 wood; box .12 .67 .88 .91 wood; "
        "oval .5 .2 .05 .05 dark; oval .5 .5 .05 .05 dark; oval .5 .8 .05 .05 dark"
    ),
    "fridge": "box .2 .02 .8 .98 steel; box .2 .36 .8 .4 dark; box .68 .15 .73 .32 dark; box .68 .45 .73 .7 dark",
    "garbagecan": "poly .2 .25 .8 .25 .7 .95 .3 .95 grey; box .15 .12 .85 .24 dark",
    "handtowelholder": "box .1 .2 .9 .3 steel; box .3 .3 .7 .6 pink",
    "microwave": "box .05 .2 .95 .85 dark; box .12 .3 .65 .75 sky; oval .8 .4 .06 .06 green; oval .8 .65 .06 .06 red",
    "safe": "box .1 .1 .9 .9 grey; oval .5 .5 .24 .24 dark; box .47 .3 .53 .7 steel",
    "shelf": "box .05 .15 .95 .24 wood; box .05 .5 .95 .59 wood; box .05 .85 .95 .94 wood",
    "sidetable": (
        "box .05 .3 .95 .45 orange; box .12 .45 .22 .95 orange; box .78 .45 .88 .95 orange; box .12 .6 .88 .7 orange"
    ),
    "sinkbasin": "poly .05 .45 .95 .45 .75 .95 .25 .95 steel; box .46 .08 .54 .45 grey; box .46 .08 .75 .16 grey",
    "sofa": "box .02 .2 .98 .8 navy; box .12 .5 .88 .7 cream; box .02 .8 .12 .95 dark; box .88 .8 .98 .95 dark",
    "stoveburner": "box .05 .1 .95 .9 black; oval .5 .5 .32 .32 red; oval .5 .5 .2 .2 black",
    "toilet": "box .25 .05 .75 .4 white; oval .5 .6 .36 .24 white; oval .5 .58 .22 .12 sky",
    "toiletpaperhanger": "box .1 .15 .9 .25 steel; oval .5 .5 .25 .25 white; oval .5 .5 .08 .08 brown",
    "towelholder": "box .05 .15 .95 .25 steel; box .25 .25 .75 .85 blue",
    "tvstand": "box .15 .05 .85 .55 black; box .05 .7 .95 .95 wood",
}
"""Kind of a place -> its sign."""

SCENE = 0.76
"""Share of the picture's height above the hand."""
DOT = "oval .5 .5 .5 .5 dark"
FEWEST_DOTS = 8
"""Spots for dots, so that those of different places are of one size; more where a number is greater."""
CLOSED = "box .08 .05 .92 .95 brown; box .12 .1 .88 .9 wood; box .76 .4 .82 .6 dark"
OPEN = "box .02 0 .98 1 brown; box .05 .05 .95 .95 inside"
SURFACE = "box .02 0 .98 1 surface"
SLICED = "poly .1 .8 .82 .05 .92 .15 .2 .9 white"
LIT = "oval .5 .45 .5 .5 glow"
STATES = {
    "hot": "box 0 .68 .32 1 dark; box .05 .73 .27 .95 red",
    "cool": "box 0 .68 .32 1 dark; box .05 .73 .27 .95 blue",
    "clean": "box .68 .68 1 1 dark; box .73 .73 .95 .95 white",
}


class Box(NamedTuple):
    """Rectangle of a picture, in fractions of its sides.

    Attributes:
        left, top, width, height: from 0 to 1.
        shape: width of the picture over its height, both in pixels.
    """

    left: float
    top: float
    width: float
    height: float
    shape: float = 1.0

    def part(self, left: float, top: float, width: float, height: float) -> Box:
        """Part of the rectangle, in fractions of its sides."""
        return Box(
            self.left + left * self.width,
            self.top + top * self.height,
            width * self.width,
            height * self.height,
            self.shape,
        )

    def square(self, margin: float) -> Box:
        """The largest square in the middle, smaller by a margin (a fraction of its side)."""
        width = self.width * self.shape  # in the unit of the height
        height = self.height
        side = min(width, height) * (1 - 2 * margin)
        return self.part((1 - side / width) / 2, (1 - side / height) / 2, side / width, side / height)

    def grid(self, count: int) -> list[Box]:
        """Rectangles for `count` signs, row by row, as large as they can be."""
        shape = self.width * self.shape / self.height

        def crowding(columns: int) -> float:
            """How many signs stand side by side or above each other, by whichever makes them smaller."""
            return max(columns / shape, math.ceil(count / columns))

        columns = min(range(1, count + 1), key=crowding, default=1)
        rows = max(1, math.ceil(count / columns))
        spots = []
        for index in range(count):
            row, column = divmod(index, columns)
            spots.append(self.part(column / columns, row / rows, 1 / columns, 1 / rows))
        return spots


@cache
def _shapes(sign: str) -> tuple[tuple[tuple[Point, ...], Colour], ...]:
    """Corners and colour of each shape of a sign."""
    shapes = []
    for shape in sign.split("; "):
        kind, *numbers, colour = shape.split()
        values = [float(number) for number in numbers]
        if kind == "box":
            left, top, right, bottom = values
            points = [(left, top), (right, top), (right, bottom), (left, bottom)]
        elif kind == "oval":
            x, y, half_width, half_height = values
            angles = [2 * math.pi * corner / 24 for corner in range(24)]
            points = [(x + half_width * math.cos(angle), y + half_height * math.sin(angle)) for angle in angles]
        else:
            points = list(zip(values[::2], values[1::2], strict=True))
        shapes.append((tuple(points), _rgb(colour)))
    return tuple(shapes)


def _rgb(colour: str) -> Colour:
    """A colour by its name, or by six hexadecimal digits."""
    if colour in COLOURS:
        return COLOURS[colour]
    return int(colour[:2], 16), int(colour[2:4], 16), int(colour[4:], 16)


def sign_of(kind: str, signs: Mapping[str, str]) -> str:
    """The sign of a kind, or a patch whose colours depend on its name."""
    if kind in signs:
        return signs[kind]
    digest = hashlib.blake2b(kind.encode(), digest_size=6).hexdigest()
    return f"box .1 .1 .9 .9 {digest[:6]}; box .35 .35 .65 .65 {digest[6:]}"


def boxes(world: World, size: Size) -> dict[str, Box]:
    """Where the picture shows things and places: name -> its sign's square; what is hidden is left out."""
    picture = _whole(size)
    squares: dict[str, Box] = {}
    # At a place: its sign above, and what lies there below, unless its door is closed.
    for place, area in _areas(world, picture):
        squares[place.name] = area.part(0, 0, 1, 0.4).square(0.05)
        if world.is_reachable(place):
            names = world.contents(place.name)
            spots = _inside(area).part(0.06, 0.04, 0.88, 0.92).grid(len(names))
            for name, spot in zip(names, spots, strict=True):
                squares[name] = spot.square(0.06)
    # In the middle of the room: the signs of all places.
    if not world.here:
        places = list(world.household.places)
        spots = picture.part(0.02, 0.02, 0.96, 0.72).grid(len(places))
        for name, spot in zip(places, spots, strict=True):
            squares[name] = spot.square(0.08)
    if world.held is not None:
        squares[world.held] = _tray(picture).grid(4)[1].square(0.06)
    return squares


def draw_world(world: World, size: Size) -> np.ndarray:
    """Draw what the agent sees: uint8[height, width, 3]."""
    canvas = Canvas(size, COLOURS["floor"])
    picture = _whole(size)
    for place, area in _areas(world, picture):
        _draw_door_and_dots(canvas, world, place, area)
    tray = _tray(picture)
    _draw(canvas, tray, "box 0 0 1 1 tray")
    _draw(canvas, tray.grid(4)[0].square(0.1), "oval .5 .5 .45 .45 skin")
    household = world.household
    for name, box in boxes(world, size).items():
        if name in household.places:
            _draw(canvas, box, sign_of(household.places[name].kind, PLACES))
        else:
            _draw_thing(canvas, world, household.things[name], box)
    return canvas.pixels()


def _whole(size: Size) -> Box:
    return Box(0, 0, 1, 1, size[1] / size[0])


def _areas(world: World, picture: Box) -> list[tuple[Place, Box]]:
    """The places that the agent is at, side by side above the hand."""
    count = len(world.here)
    areas = []
    for index, place in enumerate(world.here):
        areas.append((place, picture.part(index / count, 0, 1 / count, SCENE)))
    return areas


def _tray(picture: Box) -> Box:
    return picture.part(0, 0.78, 1, 0.22)


def _inside(area: Box) -> Box:
    """The part of a place's area in which things lie."""
    return area.part(0, 0.42, 1, 0.58)


def _draw(canvas: Canvas, box: Box, sign: str) -> None:
    for points, colour in _shapes(sign):
        canvas.polygon([(box.left + x * box.width, box.top + y * box.height) for x, y in points], colour)


def _draw_door_and_dots(canvas: Canvas, world: World, place: Place, area: Box) -> None:
    # Which of several it is, a room would show by where it stands.
    count = number_of(place.name)
    for spot in area.part(0.02, 0.02, 0.26, 0.36).grid(max(count, FEWEST_DOTS))[:count]:
        _draw(canvas, spot.square(0.15), DOT)
    if not world.is_reachable(place):
        sign = CLOSED
    elif place.openable:
        sign = OPEN
    else:
        sign = SURFACE
    _draw(canvas, _inside(area), sign)


def _draw_thing(canvas: Canvas, world: World, thing: Thing, box: Box) -> None:
    if thing.name in world.states["toggled"]:
        _draw(canvas, box, LIT)
    _draw(canvas, box, sign_of(thing.kind, THINGS))
    if thing.name in world.states["sliced"]:
        _draw(canvas, box, SLICED)
    # Each state has a corner of its own; hot and cool share one, since nothing is both.
    for state, mark in STATES.items():
        if thing.name in world.states[state]:
            _draw(canvas, box, mark)
