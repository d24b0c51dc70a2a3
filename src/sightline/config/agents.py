"""Recipe blocks of an agent: the vision-language model that plays, its replies, rollouts, updates and evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from sightline.config.basics import Address, Episodes, Fraction, Strict, addresses_of

TrainablePart = Literal["vision", "projector", "language"]
WeightType = Literal["auto", "float32", "bfloat16"]


class LoRA(Strict):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) instead of all weights; needs the extra `lora`.

    Added in `models/vlm/parts.with_adapters`; saved alone (`VLM.save`), merged for vLLM (`VLM.merge_and_save`) and when
    a folder of adapters is loaded (`loading._load_model`).
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Linear layers to adapt, by the last part of their names; `all-linear`: all those of parts that are not frozen."""


class VLLM(Strict):
    """Settings of vLLM where it samples the replies, in the process and on the GPU that the policy learns on."""

    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the GPU's memory for vLLM's copy of the weights and its cache; the learner has the rest."""
    max_length: PositiveInt | None = None
    """Tokens of a prompt, pictures included, and its reply, at most; default: as many as the model can read."""
    compiled: bool = True
    """Compile the model and record CUDA graphs; false starts sooner, takes less memory, and samples more slowly."""


class PolicyServer(Strict):
    """Servers that sample the replies: vLLM's, or others with its interface (`agents/samplers/server.py`)."""

    url: Address | Annotated[tuple[Address, ...], Field(min_length=1)] = "http://localhost:8000/v1"
    """Address of the server, up to and with `/v1`; or of several, which share the replies. A run that goes on may be
    given others."""
    model: str | None = None
    """Name that the model is served under; default: the only one."""
    weights: str | None = None
    """Folder that this machine and the servers all see, for new weights; default: a temporary one, for servers on this
    machine."""
    concurrency: PositiveInt = 64
    """Requests that each server is given at the same time."""
    timeout: PositiveFloat = 300.0
    """Seconds that a whole reply, or the loading of weights, may take."""
    key_env: str | None = None
    """Environment variable with a key, where the server asks for one."""
    insecure_http: bool = False
    """Ask a server on another machine by plain http, without a key."""

    @property
    def addresses(self) -> list[str]:
        """Address of each server."""
        return addresses_of(self.url)

    @model_validator(mode="after")
    def _names_each_once(self) -> PolicyServer:
        addresses_of(self.url)
        return self


class ModelConfig(Strict):
    """The model that plays and learns."""

    model: str = "bundled"
    """`bundled`, `bundled-rooms` (households and BabyAI), `bundled-cards` (sums and plans), `owner/name` on the Hugging
    Face hub, or a folder."""
    lora: LoRA | None = None
    """Adapters to be trained instead of the weights."""
    freeze: tuple[TrainablePart, ...] = ()
    """Parts that do not learn."""
    dtype: WeightType = "auto"
    """Data type of the weights. `auto`: float32, on a GPU with bfloat16 arithmetic; bfloat16 for weights that only
    carry LoRA, also on a CPU with AMX or AVX512-BF16, for models of 20 million weights on: a run's recipe says so."""
    four_bit: bool = False
    """Load the weights in 4 bits (NF4, Dettmers et al. 2023); needs the extra `quantised`, a GPU and `lora`."""
    gradient_checkpointing: bool = False
    """Spend time instead of memory: activations are computed again in the backward pass."""
    sampler: Literal["transformers", "vllm", "server"] = "transformers"
    """What samples the replies: the model itself, vLLM in this process (needs its package and a GPU), or a server; the
    last two are for one process."""
    vllm: VLLM = VLLM()
    """How vLLM shares the GPU, for `sampler=vllm`."""
    server: PolicyServer = PolicyServer()
    """Where the server is, for `sampler=server`."""


class Replies(Strict):
    """Format of the replies, and what follows an invalid action: a reply that cannot be parsed, or an illegal action.

    What is left open of the format follows the card of `policy.model`, if that states one (`models/vlm/card.py`).
    """

    format: Literal["json", "tags"] = "json"
    """`json`: one object whose last key is `action`; `tags`: <name>…</name>, the last of them <action>."""
    facts: bool = True
    """Ask for what it sees in the picture; whether that is true is measured."""
    thoughts: bool = True
    """Ask for thoughts before the action."""
    fields: dict[str, str] = {}
    """Keys of a reply in their order, each with a hint of what to write (or none), instead of facts, thoughts, action:
    {plan: what to do first and next, holding: "", action: one action}. `action` is needed; names of facts that the game
    asks for are facts, the rest is thoughts."""
    memory: str | None = None
    """Key of `fields` whose text is shown again in the next turn's prompt: what the model has written down for itself,
    in place of earlier turns or beside them (`rollouts.window`)."""
    max_tokens: PositiveInt = 256
    """Tokens of a reply, at most; a reply that is cut off counts as unparsable."""
    unparsable: Literal["random", "forfeit"] = "random"
    """Move played if no action can be parsed: a random legal one (which the policy is not credited with), or none, and
    the episode is lost (set a penalty too, or forfeiting is the better choice where moves have a cost)."""
    illegal: Literal["play", "random", "forfeit"] = "play"
    """Move played instead of an illegal action, as for `unparsable`; `play` leaves it to the game."""
    penalty: NonNegativeFloat = 0.0
    """Penalty on the reward of a turn whose reply was unparsable or illegal. Only with a penalty is a reply credited
    with what a random move in its place led to."""

    @model_validator(mode="after")
    def _fields_can_be_read(self) -> Replies:
        if self.fields and "action" not in self.fields:
            raise ValueError(
                f"fields: {', '.join(self.fields)} are no reply without 'action'; add it, mostly at the end"
            )
        # Names are read back however a model spells them, so they have to differ in more than their spelling.
        plain = [re.sub(r"\W+", "_", name).strip("_").casefold() for name in self.fields]
        if "" in plain or len(set(plain)) < len(plain):
            raise ValueError("fields: names need letters, and must differ in more than case and punctuation")
        if self.memory is not None and (self.memory == "action" or self.memory not in self.fields):
            raise ValueError(
                f"memory: '{self.memory}' is not a key to write notes under; add it to replies.fields, before 'action'"
            )
        return self

    def asks(self, facts: Iterable[str]) -> tuple[str, ...]:
        """Those of a game's facts that a reply should state."""
        if self.fields:
            return tuple(name for name in facts if name in self.fields)
        if not self.facts:
            return ()
        return tuple(facts)


class Update(Strict):
    """Settings of the optimiser and the policy loss."""

    learning_rate: PositiveFloat = 1e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule over the run's turns, for any number of processes; `linear` and `cosine` end at zero."""
    epochs: PositiveInt = 2
    """Epochs: passes over the turns of an update."""
    minibatch: PositiveInt = 128
    """Turns of an optimiser step, over all processes."""
    micro_batch: PositiveInt = 64
    """Turns of a forward pass; halved by itself when memory runs out. Changes no result but rounding."""
    ratio: Literal["turn", "token", "sequence"] = "turn"
    """Clipped ratio: of a turn's probability (RL4VLM, arXiv 2405.10292), of each token's (VL-DAC, 2508.04280), or the
    geometric mean of a turn's tokens (GSPO, 2507.18071), for which `clip_low` and `clip_high` are about 1000 times as
    narrow. A turn's is a product over all of its tokens: take `token` for replies of hundreds of them."""
    importance_cap: Annotated[float, Field(ge=1)] | None = None
    """Correct for a sampler whose probabilities differ from the learner's, as those of vLLM, servers and bfloat16 do:
    losses are multiplied by their ratio, at most this (2 is usual)."""
    thought_weight: Fraction = 0.5
    """Weight of the tokens that are not the action (RL4VLM's lambda): 0 leaves them to the KL term, 1 all alike. Where
    a reply names nothing as its action, all of its tokens have weight 1."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: PositiveFloat = 0.2
    kl_thoughts: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the model before RL, on tokens but the action: keeps statements true."""
    kl_actions: NonNegativeFloat = 0.0
    """Weight of the KL divergence on the tokens of the action."""
    entropy: NonNegativeFloat = 0.0
    """Weight of the entropy among the legal actions (not among all tokens, which spoils the format). It acts in turns
    that are learned from: without `all_turns`, the fewer groups teach something, the larger it has to be."""
    all_turns: bool = False
    """Learn also from groups whose episodes all ended alike: their advantages are 0, but KL and entropy act there as
    well. So no policy settles, or drifts away from the model before RL, where nothing tells its actions apart. Costs a
    pass over all turns."""
    max_grad_norm: PositiveFloat = 1.0
    weight_decay: NonNegativeFloat = 0.0

    @property
    def needs_reference(self) -> bool:
        """True if the loss has a KL term, which needs the reference model (the weights before RL)."""
        return bool(self.kl_thoughts or self.kl_actions)


class Rollouts(Strict):
    """Rollouts between two updates: whole episodes."""

    tasks: PositiveInt = 32
    """Task seeds; each is played by as many episodes as the algorithm's `group` says."""
    dynamic_sampling: NonNegativeInt = 0
    """Times, at most, that other tasks are played in place of those whose episodes all ended alike and teach nothing
    (DAPO, Yu et al. 2025, arXiv 2503.14476). Their turns count."""
    parallel: PositiveInt | None = None
    """Episodes played at the same time, over all processes; the place of a finished one is taken by the next. Changes
    no result but rounding. Default: 256 of a small model in a small game, where a turn then costs less; else 64."""
    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0
    """Sample among so many of the most probable tokens; 0: among all. What was kept is kept in learning, too, so
    log-probabilities are those of what was sampled from."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the most probable tokens that together have this probability."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Sample among tokens at least this share as probable as the most probable one."""
    window: PositiveInt = 1
    """Turns that the model is shown: the present one, and what was seen and replied before."""
    prompt_tokens: PositiveInt | None = None
    """Tokens of a prompt, at most: earlier turns of the window are left out, the oldest first, until it has no more.
    The present turn is always shown."""
    staleness: NonNegativeInt | None = None
    """Asynchronous rollouts, for `policy.sampler=server`: play on while the model learns, with weights that are at most
    so many updates old when an episode is learned from. 0 waits for each update, with the same result as none."""
    rewards: Literal["turn", "episode"] = "turn"
    """`turn`: each turn has its reward; `episode`: their sum is that of an episode's last turn."""
    episode_steps: PositiveInt | None = None
    """Time limit of an episode in training, if another than in evaluation: once a pole has fallen, the rest of its
    episode teaches little."""
    train_env_options: dict[str, Any] = {}
    """Options of the environment that differ in training from those of evaluation."""


class WarmStart(Strict):
    """Supervised learning from demonstrations before RL."""

    demos: str | None = None
    """A folder written by `sightline demos`, or a JSON file in LLaVA's form (`conversations`, and `image` in a folder
    beside it); default: they are made on the way by the game's own best play."""
    image_folder: str | None = None
    """Folder that the pictures of such a JSON file are in; default: its own, or `images` beside it."""
    samples: PositiveInt = 20_000
    """Turns to learn from."""
    epochs: PositiveInt | None = None
    """Passes over the demonstrations of `demos`, instead of a number of samples."""
    env_options: dict[str, Any] = {}
    """Options of the environment over those of training, while the demonstrations are made: other scenes, an easier
    level, or a demonstrator that plays otherwise."""
    batch: PositiveInt = 64
    learning_rate: PositiveFloat = 1e-3
    """The highest."""
    schedule: Literal["one_cycle", "constant", "linear", "cosine"] = "one_cycle"
    """Learning rate schedule over the updates, after the rise; `one_cycle` (Smith and Topin, arXiv 1708.07120) ends at
    a 250 000th of the highest rate, `linear` and `cosine` at zero."""
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the updates in which the learning rate rises, with `one_cycle` from a 25th."""
    weight_decay: NonNegativeFloat = 0.01
    stop_at: Fraction | None = None
    """Stop as soon as the perception accuracy on held-out replies (share of facts stated correctly) reaches this;
    a run that never gets there says so."""
    explore: Fraction = 0.3
    """Share of random moves between the demonstrated ones, so that recovery from mistakes is shown. As the two below,
    it is of demonstrations that are made, not of `demos`."""
    later_turns: Fraction = 1.0
    """Share of the turns after a game's first that are demonstrated; less of them where the first holds the plan, and
    the rest follows it."""
    mistakes: Fraction = 0.0
    """Share of demonstrations that end with any legal action instead of the best one, so that others are still tried in
    RL. 1 teaches only to see, and needs no game that knows its best play."""

    @model_validator(mode="after")
    def _demonstrations_are_made_or_read(self) -> WarmStart:
        if self.epochs is not None and self.demos is None:
            raise ValueError("epochs are passes over warm_start.demos, of which there are none; say warm_start.samples")
        if self.image_folder is not None and self.demos is None:
            raise ValueError("image_folder: warm_start.demos is the file whose pictures are there, and there is none")
        if self.env_options and self.demos is not None:
            raise ValueError("env_options: warm_start.demos exist already, whatever they were made with; leave one out")
        return self


class AgentEvaluation(Strict):
    """Episodes on fixed panels of seeds."""

    every: PositiveInt | None = None
    """Turns between evaluations on the validation panel; default: a tenth of the run."""
    episodes: Episodes = 64
    """Episodes of the validation panel."""
    test_episodes: Episodes = 200
    """Episodes of the test panel, played at the end by the chosen checkpoint with real, blank and shuffled pictures."""
    parallel: PositiveInt = 64
    """Episodes played at the same time; changes no result but rounding."""
    temperature: NonNegativeFloat = 0.0
    """Of sampling; 0 is greedy: the most probable token. Where a game does not show what was done before, such as where
    the agent has looked, greedy play returns to the same state for ever, and the best play needs chance."""
    unparsable: Literal["forfeit", "random"] = "forfeit"
    """Move played if no action can be parsed: none, and the episode is lost; or a random legal one, which every table
    of the results then says first."""
    stop_at: Fraction | None = None
    """End the run as soon as the validation score (episodes won without a mistake, times true replies) reaches this."""


class AlarmSettings(Strict):
    """Thresholds of the warnings that a run is going wrong."""

    unparsable: Fraction = 0.25
    """Share of replies that cannot be read."""
    illegal: Fraction = 0.5
    """Share of replies whose action is not legal."""
    perception_drop: Fraction = 0.2
    """Drop of perception accuracy (share of facts that are stated correctly) below its best."""
    entropy_floor: NonNegativeFloat = 0.01
    """Entropy per token, in nats."""
    repeated_thoughts: Fraction = 0.95
    """Share of the most frequent thoughts among those in different states."""
    kl_ceiling: PositiveFloat = 10.0
    """KL divergence from the model before RL, per reply, in nats."""
    kl_step_ceiling: PositiveFloat = 1.0
    """KL divergence from the model that sampled, per reply, in nats, averaged over the steps of one update; one update
    above it is enough for the warning."""
    mismatch_ceiling: PositiveFloat = 0.5
    """Distance of the sampler's probabilities from the learner's (`update/mismatch`); one update above it is enough."""
    patience: NonNegativeInt = 3
    """Updates in a row before a warning."""
