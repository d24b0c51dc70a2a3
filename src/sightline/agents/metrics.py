"""What an update is told by: numbers of what was played, and of how the model was changed.

The two that matter most stand side by side: success, and whether what the replies say of the pictures is true. An agent
that is paid for success alone learns to win while what it states and thinks turns into noise ("thought collapse", Wei
et al., "GTR", ICCV 2025, arXiv 2503.08525; "template collapse", RAGEN-2, arXiv 2604.06268).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sightline.agents.algorithms.returns import RewardKind, all_alike, is_whole, rewards_of
from sightline.agents.losses import Sums
from sightline.agents.types import Failure, Trajectory, Turn

Metrics = dict[str, float | None]
"""Numbers by name; None where there was nothing to measure."""


def rollout_metrics(trajectories: Sequence[Trajectory], reward: RewardKind = "game") -> Metrics:
    """What was played for an update. Episodes that broke count in `rollout/errors` alone.

    Shares are between 0 and 1. Of episodes: `success`, `truncated`, `forfeited`; of turns: `truthful_replies` (all
    facts stated as they are), `illegal`, `unparsable` and `unparsable_*` (for each `Failure`), `cut_off`; of all facts
    that could be seen: `truthful`. `return` and `return_std` are over episodes, `reward` and `reward_std` over turns,
    `length` in turns and `reply_tokens` in tokens are means, `entropy` is the mean of -log p of the sampled tokens in
    nats, `states` and `errors` are counted.

    `zero_variance` is the share of groups (episodes with the same seed) whose returns do not differ; None without
    groups of two. `repeated_thoughts` is the share of the states with thoughts in which the commonest thoughts were
    had, None with fewer than two such states. `informative` see `informativeness`.

    Args:
        reward: which rewards `zero_variance` looks at: those that the algorithm sees.
    """
    whole = [episode for episode in trajectories if is_whole(episode)]
    turns = [turn for episode in whole for turn in episode.turns]
    returns = [float(episode.rewards.sum()) for episode in whole]
    rewards = [turn.reward for turn in turns]
    truths = [turn.truths for turn in turns if turn.facts]
    logprobs = [logprob for turn in turns for logprob in turn.sample.logprobs]
    values: Metrics = {
        "success": _mean([episode.success for episode in whole]),
        "return": _mean(returns),
        "return_std": _deviation(returns),
        "reward": _mean(rewards),
        "reward_std": _deviation(rewards),
        "length": _mean([len(episode.turns) for episode in whole]),
        "truncated": _mean([episode.truncated for episode in whole]),
        "forfeited": _mean([any(turn.played is None for turn in episode.turns) for episode in whole]),
        "truthful": _ratio(sum(true for true, _ in truths), sum(of for _, of in truths)),
        "truthful_replies": _mean([true == of for true, of in truths]),
        "illegal": _mean([turn.reply.action is not None and not turn.legal for turn in turns]),
        "unparsable": _mean([turn.reply.failure is not None for turn in turns]),
        "reply_tokens": _mean([len(turn.sample.ids) for turn in turns]),
        "cut_off": _mean([not turn.sample.finished for turn in turns]),
        "entropy": _mean([-logprob for logprob in logprobs]),
        "states": float(len({turn.state for turn in turns})),
        "repeated_thoughts": repeated_thoughts(turns),
        "informative": informativeness(turns),
        "zero_variance": _zero_variance(whole, reward),
        "errors": float(sum(episode.error is not None for episode in trajectories)),
    }
    for failure in Failure:
        values[f"unparsable_{failure.name.lower()}"] = _mean([turn.reply.failure is failure for turn in turns])
    return {f"rollout/{name}": value for name, value in values.items()}


def repeated_thoughts(turns: Sequence[Turn]) -> float | None:
    """The share of the states with thoughts in which the commonest thoughts were had; None with fewer than two states.

    1: the same is thought whatever is seen. Blanks and capital letters make no difference.
    """
    states: dict[str, set[str]] = defaultdict(set)
    for turn in turns:
        if thoughts := _words(turn.reply.thoughts):
            states[thoughts].add(turn.state)
    every = set().union(*states.values())
    return max(map(len, states.values())) / len(every) if len(every) > 1 else None


def informativeness(turns: Sequence[Turn]) -> float | None:
    """How much of which state it is can be told from what is said (facts and thoughts), from 0 to 1.

    That is the mutual information of states and texts over the entropy of states, both as counted. It falls when the
    same is said everywhere (template collapse, RAGEN-2, arXiv 2604.06268). Where every text is said only once it is 1
    whatever is said, so it shows collapse and does not show truth. None with fewer than two states, or if nothing is
    said anywhere.
    """
    states = [turn.state for turn in turns]
    texts = [_said(turn) for turn in turns]
    if len(set(states)) < 2 or not any(texts):
        return None
    together = _entropy(list(zip(states, texts, strict=True)))
    return max(0.0, (_entropy(states) + _entropy(texts) - together) / _entropy(states))


def _said(turn: Turn) -> str:
    stated = [f"{name}: {text}" for name, text in sorted(turn.reply.stated.items())]
    return _words("\n".join([*stated, turn.reply.thoughts]))


def _words(text: str) -> str:
    return " ".join(text.split()).casefold()


def _entropy(values: Sequence[object]) -> float:
    """Of the counted shares, in nats."""
    shares = np.array(list(Counter(values).values())) / len(values)
    return float(-(shares * np.log(shares)).sum())


def _zero_variance(whole: Sequence[Trajectory], reward: RewardKind) -> float | None:
    groups: dict[int, list[float]] = defaultdict(list)
    for episode in whole:
        groups[episode.seed].append(float(rewards_of(episode, reward).sum()))
    return _mean([all_alike(np.array(returns)) for returns in groups.values() if len(returns) > 1])


def added(parts: Iterable[Sums]) -> Sums:
    """Measurements of several forward passes or processes as if they were one: sums, and the larger of what ends in
    `_max`."""
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            if name.endswith("_max"):
                total[name] = max(total.get(name, value), value)
            else:
                total[name] = total.get(name, 0.0) + value
    return total


def update_metrics(sums: Mapping[str, float]) -> Metrics:
    """What added measurements of losses say.

    For each turn: `loss`, `policy_loss`, `value_loss`, and in nats `kl_old` (from the model that played) and
    `kl_reference` (from the model before RL). For each sampled token: `entropy` in nats, `mismatch`. For each ratio of
    probabilities (of turns or tokens, whatever is clipped): `ratio`, `ratio_max`, the share that is `clipped`. For each
    turn with a choice: `choice_entropy` in nats. `explained_variance`: the share of the variance of returns that the
    values foresaw, 1 is best, 0 is as good as their mean.
    """
    values: Metrics = {
        "loss": _of(sums, "loss", "turns"),
        "policy_loss": _of(sums, "policy_loss", "turns"),
        "value_loss": _of(sums, "value_loss", "values"),
        "ratio": _of(sums, "ratio", "ratios"),
        "ratio_max": sums.get("ratio_max"),
        "clipped": _of(sums, "clipped", "ratios"),
        "kl_old": _of(sums, "kl_old", "turns"),
        "kl_reference": _of(sums, "kl_reference", "kl_reference_turns"),
        "entropy": _of(sums, "entropy", "tokens"),
        "choice_entropy": _of(sums, "choice_entropy", "choices"),
        "explained_variance": _explained(sums),
        "mismatch": _of(sums, "mismatch", "mismatch_tokens"),
        "mismatch_max": sums.get("mismatch_max"),
    }
    return {f"update/{name}": value for name, value in values.items()}


def _of(sums: Mapping[str, float], name: str, count: str) -> float | None:
    return _ratio(sums.get(name, 0.0), sums.get(count, 0.0))


def _explained(sums: Mapping[str, float]) -> float | None:
    count = sums.get("values", 0.0)
    if not count:
        return None
    of_returns = sums["returns_squared"] / count - (sums["returns"] / count) ** 2
    of_errors = sums["errors_squared"] / count - (sums["errors"] / count) ** 2
    return 1 - of_errors / of_returns if of_returns > 1e-12 else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values)) if len(values) else None
