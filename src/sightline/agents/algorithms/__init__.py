"""RL algorithms of agents: a file each, with its recipe block and its advantages.

Their unit is the turn: one advantage for one reply, whatever its number of tokens. `losses` spreads it over the tokens.
PPO alone compares with a critic; the others compare episodes with each other, without one.
"""
