"""Rollout metrics and update metrics.

The two that matter most are success and perception accuracy: the share of correctly stated facts. An agent that is
rewarded for success alone learns to win while its statements and thoughts turn into noise ("thought collapse", Wei
et al., "GTR", ICCV 2025, arXiv 2503.08525; "template collapse", RAGEN-2, arXiv 2604.06268).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sightline.agents.algorithms.returns import all_equal, is_complete
from sightline.agents.losses import Sums
from sightline.agents.types import Failure, Trajectory, Turn
from sightline.evaluation.episode_stats import known_success

MetricValues = dict[str, float | None]
"""Metrics by name; None where there was nothing to measure."""


def rollout_metrics(trajectories: Sequence[Trajectory]) -> MetricValues:
    """Metrics of the episodes of one update. Episodes that broke count in `rollout/errors` alone.

    Shares are between 0 and 1. Of episodes: `success` (None if nobody states it), `truncated`, `forfeited`; of turns:
    `truthful_replies` (all facts stated correctly), `illegal`, `unparsable` and `unparsable_*` (for each `Failure`),
    `cut_off`; of all visible facts: `truthful`, the perception accuracy. `return` and `return_std` are over episodes,
    `reward` and `reward_std` over turns, `length` in turns and `reply_tokens` in tokens are means, `entropy` is the
    mean of -log p of the sampled tokens in nats, `states`, `errors` and `restarts` (None for none) are counts.

    `zero_variance` is the share of groups (episodes with the same seed) with equal returns; None without groups of two.
    `repeated_thoughts` and `informative`: see the functions of that name, `informativeness` for the latter.
    `return` is that of the environment's own rewards; `reward` is what the policy learns from.
    """
    complete = [episode for episode in trajectories if is_complete(episode)]
    returns = [episode.env_return for episode in complete]
    turns: list[Turn] = []
    for episode in complete:
        turns += episode.turns
    rewards = [turn.reward for turn in turns]
    replies_cut_off = [not turn.sample.finished for turn in turns]
    illegal = [turn.reply.action is not None and not turn.legal for turn in turns]
    # (facts stated correctly, facts) of the turns that show any.
    perception = [turn.perception for turn in turns if turn.facts]
    stated_correctly = [correct for correct, _ in perception]
    visible = [facts for _, facts in perception]
    # -log p of every sampled token: their mean estimates the policy's entropy.
    surprisals: list[float] = []
    for turn in turns:
        surprisals += [-logprob for logprob in turn.sample.logprobs]
    values: MetricValues = {
        "success": _mean(known_success([episode.success for episode in complete])),
        "return": _mean(returns),
        "return_std": _deviation(returns),
        "reward": _mean(rewards),
        "reward_std": _deviation(rewards),
        "length": _mean([len(episode.turns) for episode in complete]),
        "truncated": _mean([episode.truncated for episode in complete]),
        "forfeited": _mean([episode.forfeited for episode in complete]),
        "truthful": _ratio(sum(stated_correctly), sum(visible)),
        "truthful_replies": _mean([correct == facts for correct, facts in perception]),
        "illegal": _mean(illegal),
        "unparsable": _mean([turn.reply.failure is not None for turn in turns]),
        "reply_tokens": _mean([len(turn.sample.ids) for turn in turns]),
        "cut_off": _mean(replies_cut_off),
        "entropy": _mean(surprisals),
        "states": float(len({turn.state for turn in turns})),
        "repeated_thoughts": repeated_thoughts(turns),
        "informative": informativeness(turns),
        "zero_variance": _zero_variance(complete),
        "errors": float(sum(episode.error is not None for episode in trajectories)),
        "restarts": float(sum(episode.restarts for episode in trajectories)) or None,
    }
    for failure in Failure:
        failed = [turn.reply.failure is failure for turn in turns]
        values[f"unparsable_{failure.name.lower()}"] = _mean(failed)
    return {f"rollout/{name}": value for name, value in values.items()}


def _zero_variance(episodes: Sequence[Trajectory]) -> float | None:
    """Share of the groups of two or more whose episodes all have the same return: no algorithm learns from those by
    comparing."""
    groups: dict[int, list[float]] = defaultdict(list)
    for episode in episodes:
        groups[episode.seed].append(float(episode.rewards.sum()))
    return _mean([all_equal(np.array(returns)) for returns in groups.values() if len(returns) > 1])


def repeated_thoughts(turns: Sequence[Turn]) -> float | None:
    """Share of the states with thoughts in which the most common thoughts occurred; None with fewer than two states.

    1: the thoughts are the same whatever the picture shows. Whitespace and case are ignored.
    """
    states: dict[str, set[str]] = defaultdict(set)  # thoughts -> states in which they occurred
    for turn in turns:
        if thoughts := _normalised(turn.reply.thoughts):
            states[thoughts].add(turn.state)
    all_states = set().union(*states.values())
    if len(all_states) < 2:
        return None
    most_common = max(map(len, states.values()))
    return most_common / len(all_states)


def informativeness(turns: Sequence[Turn]) -> float | None:
    """Mutual information between states and reply texts (facts and thoughts) over the entropy of states, 0 to 1.

    Both are estimated by counting. It falls when replies are the same everywhere (template collapse, RAGEN-2, arXiv
    2604.06268). Where every text occurs only once it is 1 whatever the text, so it shows collapse and does not show
    truth. None with fewer than two states, or if all texts are empty.
    """
    states = [turn.state for turn in turns]
    texts = [_reply_text(turn) for turn in turns]
    if len(set(states)) < 2 or not any(texts):
        return None
    # I(state; text) = H(state) + H(text) - H(state, text)
    joint = _entropy(list(zip(states, texts, strict=True)))
    mutual_information = _entropy(states) + _entropy(texts) - joint
    return max(0.0, mutual_information / _entropy(states))


def _reply_text(turn: Turn) -> str:
    """Facts and thoughts of a reply, without its action: that depends on the state even where nothing is seen."""
    facts = [f"{name}: {text}" for name, text in sorted(turn.reply.stated.items())]
    return _normalised("\n".join([*facts, turn.reply.thoughts]))


def _normalised(text: str) -> str:
    return " ".join(text.split()).casefold()


def _entropy(values: Sequence[object]) -> float:
    """Entropy of the empirical distribution, in nats."""
    shares = np.array(list(Counter(values).values())) / len(values)
    return float(-(shares * np.log(shares)).sum())


def merge_sums(parts: Iterable[Sums]) -> Sums:
    """Merge the sums of several forward passes or processes: add them up; take the maximum of those named `…_max`."""
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            if name.endswith("_max"):
                total[name] = max(total.get(name, value), value)
            else:
                total[name] = total.get(name, 0.0) + value
    return total


def update_metrics(sums: Mapping[str, float]) -> MetricValues:
    """Means of merged sums of losses.

    For each turn: `loss`, `policy_loss`, `value_loss`, and in nats `kl_old` (KL from the model that sampled) and
    `kl_reference` (KL to the model before RL). For each sampled token: `entropy` in nats, `mismatch`. For each
    importance ratio (of turns or tokens, whatever is clipped): `ratio`, `ratio_max`, the share that is `clipped`, and
    `importance`, the weight that corrects for the sampler. For each turn with a choice: `choice_entropy` in nats.
    `explained_variance`: share of the variance of returns that the values predict; 1 is best, 0 is as good as their
    mean.
    """
    # Only with a correction for the sampler are there such weights.
    importance = _of(sums, "importance", "ratios") if "importance" in sums else None
    values: MetricValues = {
        "loss": _of(sums, "loss", "turns"),
        "policy_loss": _of(sums, "policy_loss", "turns"),
        "value_loss": _of(sums, "value_loss", "values"),
        "ratio": _of(sums, "ratio", "ratios"),
        "ratio_max": sums.get("ratio_max"),
        "clipped": _of(sums, "clipped", "ratios"),
        "importance": importance,
        "kl_old": _of(sums, "kl_old", "turns"),
        "kl_reference": _of(sums, "kl_reference", "kl_reference_turns"),
        "entropy": _of(sums, "entropy", "tokens"),
        "choice_entropy": _of(sums, "choice_entropy", "choices"),
        "explained_variance": _explained_variance(sums),
        "mismatch": _of(sums, "mismatch", "mismatch_tokens"),
        "mismatch_max": sums.get("mismatch_max"),
    }
    return {f"update/{name}": value for name, value in values.items()}


def _of(sums: Mapping[str, float], name: str, count: str) -> float | None:
    return _ratio(sums.get(name, 0.0), sums.get(count, 0.0))


def _explained_variance(sums: Mapping[str, float]) -> float | None:
    count = sums.get("values", 0.0)
    if not count:
        return None
    # Var(x) = E[x^2] - E[x]^2, from sums that can be merged over passes and processes
    return_variance = sums["returns_squared"] / count - (sums["returns"] / count) ** 2
    error_variance = sums["errors_squared"] / count - (sums["errors"] / count) ** 2
    if not return_variance > 1e-12:
        return None  # there is nothing to explain
    return 1 - error_variance / return_variance


def _ratio(part: float, whole: float) -> float | None:
    if not whole:
        return None
    return part / whole


def _mean(values: Sequence[float] | np.ndarray | None) -> float | None:
    if values is None or not len(values):
        return None
    return float(np.mean(values))


def _deviation(values: Sequence[float]) -> float | None:
    if not len(values):
        return None
    return float(np.std(values))
