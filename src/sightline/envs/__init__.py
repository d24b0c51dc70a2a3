"""Gymnasium environments: our own, any other by name, and vector environments with frames."""

import gymnasium

CARTPOLE_ID = "sightline/CartPole-v0"
CARTPOLE_CONTINUOUS_ID = "sightline/CartPoleContinuous-v0"
MOUNTAIN_CAR_ID = "sightline/MountainCar-v0"
METAWORLD_ID = "sightline/MetaWorld-v0"


def register() -> None:
    """Register our environments with Gymnasium and silence its log; calling it again changes nothing."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR + 1
    for env_id, entry_point, steps in (
        (CARTPOLE_ID, "sightline.envs.control.cartpole:CartPole", 200),
        (CARTPOLE_CONTINUOUS_ID, "sightline.envs.control.cartpole_continuous:CartPoleContinuous", 100),
        (MOUNTAIN_CAR_ID, "sightline.envs.control.mountain_car:MountainCar", 200),
        (METAWORLD_ID, "sightline.envs.control.metaworld:MetaWorld", 500),
    ):
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point, max_episode_steps=steps)
