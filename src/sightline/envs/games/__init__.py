"""Games for agents that see a picture and act by naming an action: Gymnasium environments that state their rules, the
facts that their pictures show, the legal actions, and a best action."""
