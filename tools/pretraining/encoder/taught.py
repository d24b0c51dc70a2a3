"""Write the statistics of an encoder's training pictures into its folder (`sightline.models.familiarity`).

    PYTHONPATH=tools python -m pretraining.encoder.taught --worlds bundled

Pictures are drawn afresh as in training. Prints how far held-out pictures of the same worlds are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pretraining.encoder.train import IMAGE_SIZE, WORLDS
from sightline.models.bundled_encoder import BundledEncoder
from sightline.models.encoder_files import bundled_folder
from sightline.models.encoders import load_encoder
from sightline.models.familiarity import TaughtPictures

COUNT = 4000
"""Pictures of each world."""


def write_statistics(folder: Path, worlds: str, seed: int) -> np.ndarray:
    """Fit and write them; returns the distances of held-out pictures, a quarter of them all."""
    encoder = load_encoder(f"local-dir:{folder}", device="cpu")
    assert isinstance(encoder, BundledEncoder)
    taught = WORLDS[worlds]
    count = COUNT * len(taught.shares)
    equal = (1 / len(taught.shares),) * len(taught.shares)
    scenes = taught.sample(count, IMAGE_SIZE, np.random.default_rng(seed), shares=equal)
    features = encoder.features(scenes.frames)
    kept = np.arange(count) % 4 > 0
    statistics = TaughtPictures.fit(features[kept], scenes.world[kept], features[~kept])
    statistics.save(folder)
    return statistics.distance(features[~kept])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", choices=WORLDS, default="bundled")
    parser.add_argument("--folder", type=Path, help="of the encoder; default: the bundled one")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = {"bundled": "bundled", "deformables": "bundled-deformables"}
    place = arguments.folder or bundled_folder(names[arguments.worlds])
    distances = write_statistics(place, arguments.worlds, arguments.seed)
    quantiles = ", ".join(f"{share:.0%} {np.quantile(distances, share):.2f}" for share in (0.5, 0.9, 0.99, 1.0))
    print(f"{place}: distances of {len(distances)} held-out pictures: {quantiles}")
