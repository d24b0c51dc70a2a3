"""Ids of our environments. Importing this registers them with Gymnasium."""

import gymnasium

CARTPOLE_ID = "sightline/CartPole-v0"
CARTPOLE_CONTINUOUS_ID = "sightline/CartPoleContinuous-v0"
MOUNTAIN_CAR_ID = "sightline/MountainCar-v0"
METAWORLD_ID = "sightline/MetaWorld-v0"
HUMANOID_ID = "sightline/Humanoid-v0"
CLOTH_ID = "sightline/FoldCloth-v0"
ROPE_ID = "sightline/StraightenRope-v0"
WATER_ID = "sightline/PassWater-v0"

_VECTORISED = {HUMANOID_ID: "sightline_tasks.humanoid.env:HumanoidVector"}
"""Environments that simulate many of themselves at once."""

for _id, _entry_point, _steps in (
    (CARTPOLE_ID, "control.cartpole:CartPole", 200),
    (CARTPOLE_CONTINUOUS_ID, "control.cartpole_continuous:CartPoleContinuous", 100),
    (MOUNTAIN_CAR_ID, "control.mountain_car:MountainCar", 200),
    (METAWORLD_ID, "control.metaworld:MetaWorld", 500),
    (HUMANOID_ID, "humanoid.env:Humanoid", 50),
    (CLOTH_ID, "deformables.cloth:FoldCloth", 20),
    (ROPE_ID, "deformables.rope:StraightenRope", 40),
    (WATER_ID, "deformables.water:PassWater", 50),
    ("sightline/NumberLine-v0", "games.number_line:NumberLine", None),  # this and the next three end by themselves
    ("sightline/EZPoints-v0", "games.ez_points:EZPoints", None),
    ("sightline/Points24-v0", "games.points24:Points24", None),
    ("sightline/Blackjack-v0", "games.blackjack:Blackjack", None),
    ("sightline/Sokoban-v0", "games.sokoban:Sokoban", 60),
    ("sightline/FrozenLake-v0", "games.frozen_lake:FrozenLake", 100),
    ("sightline/Household-v0", "household.env:HouseholdGame", 50),
    ("sightline/HouseholdThor-v0", "household.thor:thor_game", None),  # ALFWorld's configuration limits it
):
    # A module that is loaded again, as notebooks do, would be warned of for each of them.
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point=f"sightline_tasks.{_entry_point}",
            vector_entry_point=_VECTORISED.get(_id),
            max_episode_steps=_steps,
        )
