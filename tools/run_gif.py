"""Write a run's two videos, before and after training, beside each other as a GIF; or those after training of several
runs: python tools/run_gif.py RUN [RUN …] OUT. With `--options robot=shown` an episode of random actions and one of the
chosen policy are filmed anew, in an environment that has these options besides the run's."""

from __future__ import annotations

import argparse
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import yaml
from PIL import Image

from sightline.api import Run
from sightline.envs.making import EnvMaker
from sightline.envs.tasks import find_task

FRAMES_PER_SECOND, PAUSE = 15, 12
"""Of the GIF; and frames for which the end is shown."""


def filmed(run: Path, options: list[str], seed: int = 0) -> list[np.ndarray]:
    """An episode of random actions, and one of the chosen policy: uint8[T, H, W, 3] each."""
    recipe, policy = Run(run).recipe, Run(run).policy()
    task = find_task(recipe.env)
    given = {name: yaml.safe_load(value) for name, _, value in (option.partition("=") for option in options)}
    make = EnvMaker(task.env, task.env_options | recipe.env_options | given, recipe.episode_steps, (224, 224))
    films = []
    for chosen in (False, True):
        env = make()
        state, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        film, over = [env.render()], False
        while not over:
            action = policy.predict(state, deterministic=True)[0] if chosen else env.action_space.sample()
            state, _, terminated, truncated, _ = env.step(action)
            film.append(env.render())
            over = terminated or truncated
        films.append(np.stack(film))  # type: ignore[arg-type]
        env.close()
    return films


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("out", type=Path)
    parser.add_argument("--height", type=int, default=200)
    parser.add_argument("--fps", type=float, default=33, help="of the videos")
    parser.add_argument("--options", nargs="+", default=[], metavar="NAME=VALUE", help="of the environment")
    given = parser.parse_args()
    names = ("untrained", "chosen") if len(given.runs) == 1 else ("chosen",)
    if given.options:
        films = [film for run in given.runs for film in filmed(run, given.options)]
    else:
        films = [iio.imread(run / "videos" / f"{name}.mp4") for run in given.runs for name in names]
    length = max(map(len, films))
    times = np.arange(0, length, given.fps / FRAMES_PER_SECOND).astype(int).tolist() + [length - 1] * PAUSE
    pictures = []
    for time in times:
        both = np.concatenate([film[min(time, len(film) - 1)] for film in films], axis=1)
        image = Image.fromarray(both)
        size = (round(image.width * given.height / image.height), given.height)
        pictures.append(image.resize(size, Image.Resampling.LANCZOS))
    # One palette for all frames: colours must not flicker.
    palette = pictures[-1].quantize(128)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    frames[0].save(
        given.out,
        save_all=True,
        append_images=frames[1:],
        duration=round(1000 / FRAMES_PER_SECOND),
        loop=0,
        optimize=True,
    )


if __name__ == "__main__":
    main()
