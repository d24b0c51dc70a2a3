"""Make any environment, take its frames and step many of it at once.

Importing this registers our environments with Gymnasium, as `import sightline` does once Gymnasium is imported. What
other packages register follows when an environment is first looked for (`sightline.envs.naming`), in a module that they
name as an entry point:

    [project.entry-points."sightline.gymnasium"]
    my_package = "my_package.registration"
"""

import gymnasium

from sightline import registry

for _id, _entry_point, _steps in (
    ("sightline/MiniWoB-v0", "games.miniwob:MiniWoB", 20),
    ("sightline/Questions-v0", "games.questions:Questions", None),
    ("sightline/BabyAI-v0", "games.babyai:BabyAI", None),  # each level has a limit of its own
):
    # A module that is loaded again, as notebooks do, would be warned of for each of them.
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=f"sightline.envs.{_entry_point}", max_episode_steps=_steps)

registry.register_environments(own=True)
