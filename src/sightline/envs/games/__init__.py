"""Games for agents that look at a picture and act by naming an action: Gymnasium environments that know their rules,
what can be seen in their pictures, and how to play."""
