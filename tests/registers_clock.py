"""A module whose import registers an id with Gymnasium, as packages of environments do."""

import gymnasium

gymnasium.register("registered/Clock-v0", "small_envs:Clock", max_episode_steps=5)
