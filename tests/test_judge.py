"""A judge's rewards: what is asked, which numbers replies mean, and that none is made up."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sightline as sl
from fault_server import Asked, Fault, FaultServer, as_json, hangs_up, refusal, says, status
from sightline.cli.commands import app
from sightline.config.loading import load_recipe
from sightline.errors import BadInput, RunFailed
from sightline.images import Picture
from sightline.models.chat.local import LocalModel
from sightline.models.chat.messages import ChatReply, ChatRequest, Token
from sightline.rewards.base import Clip, RewardStream
from sightline.rewards.config import RewardContext, build_reward
from sightline.rewards.judge import JudgeReward
from sightline.rewards.judging.forms import Probability, Scale, Shuffled, YesNo, bundled_prompt, read_percents
from sightline.rewards.scopes import Past
from sightline.rewards.shaped import ShapedReward
from sightline.rewards.weighted_sum import WeightedSum, WeightedSumConfig
from sightline.runs.trust import check_trusted

GOAL = "a pole upright"


def frames(*values: int) -> np.ndarray:
    """uint8[N, 8, 8, 3], plain pictures of these values."""
    return np.stack([np.full((8, 8, 3), value, np.uint8) for value in values])


def clip(values: list[list[int]], first: list[list[bool]] | None = None, **arrays: Any) -> Clip:
    """A clip of T steps and N environments of plain pictures; by default one episode."""
    pictures = np.stack([frames(*row) for row in values])
    begins = np.zeros(pictures.shape[:2], bool)
    begins[0] = True
    return Clip(begins if first is None else np.array(first), frames=pictures, **arrays)


def by_brightness(asked: Asked) -> str:
    """The number of the scale that the last picture's value is."""
    return str(round(float(asked.pictures[-1].mean())))


def judge(server: FaultServer, **settings: Any) -> JudgeReward:
    return JudgeReward(GOAL, "m", url=server.url, **{"retries": 0, "highest": 255} | settings)


# -- numbers of replies ------------------------------------------------------------------------------------------------


def completion(text: str, *alternatives: tuple[str, float]) -> Fault:
    """A chat completion of one token with its log-probabilities."""
    others = [{"token": token, "logprob": logprob} for token, logprob in alternatives]
    token = {"token": text, "logprob": 0.0, "top_logprobs": others}
    choice = {"message": {"content": text}, "finish_reason": "length", "logprobs": {"content": [token]}}
    return as_json({"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 1}})


def test_yes_no_is_the_log_probability_of_yes_among_yes_and_no() -> None:
    stated = [("True", math.log(0.3)), ("False", math.log(0.1)), ("I", math.log(0.6))]
    with FaultServer(faults=[completion("I", *stated)]) as server:
        (reward,) = judge(server, form="yes_no")(frames(1))
        (asked,) = server.asked
    assert reward == pytest.approx(math.log(0.3 / 0.4), abs=1e-6)
    assert asked.body["max_tokens"] == 1 and asked.body["top_logprobs"] == 20 and asked.body["temperature"] == 0


def test_a_probability_is_that_of_yes_among_all_words() -> None:
    """Of 0.6, 0.1 and 0.1, yes has three quarters."""
    prompt = Probability.parse("[user]\n{pictures} {goal}?\n\n[choices]\nup\nleft\nright\n")
    logprobs = np.log([0.6, 0.1, 0.1])
    assert Probability(prompt, [GOAL], []).value_of(logprobs) == pytest.approx(0.75)
    assert YesNo(prompt, [GOAL], []).value_of(logprobs) == pytest.approx(math.log(0.75))


def test_a_word_with_and_without_its_space_is_one_word_and_capitals_are_another() -> None:
    stated = [("True", math.log(0.3)), (" True", math.log(0.2)), ("true", math.log(0.4)), ("False", math.log(0.1))]
    with FaultServer(faults=[completion("True", *stated)]) as server:
        (reward,) = judge(server, form="yes_no")(frames(1))
    assert reward == pytest.approx(math.log(0.5 / 0.6), abs=1e-6)


@pytest.mark.parametrize(
    "stated",
    [
        [("True", -0.1), ("I", -3.0)],
        [("True", -0.1), ("False", -9999.0)],
        [("True", -0.1), ("False", -math.inf)],
        [("False", -0.1)],
    ],
    ids=["outside of the most probable", "vLLM's stand-in", "minus infinity", "yes outside"],
)
def test_what_a_server_does_not_state_is_no_number(stated: list[tuple[str, float]]) -> None:
    form = YesNo(YesNo.parse(bundled_prompt("yes_no")), (GOAL,), ())
    reading = form.read(ChatReply("True", tokens=(Token("True", tuple(stated)),)), 1, 1)
    assert reading.value is None and "is not among the" in reading.reason
    assert form.read(ChatReply("True"), 1, 1).reason == "the server gives no log-probabilities"


def test_a_scale_is_the_mean_over_what_might_have_been_said() -> None:
    digits = {"0": 0.1, "7": 0.5, "9": 0.4}
    with FaultServer(says("7"), digits=digits) as server:
        (reward,) = judge(server, highest=9)(frames(1))
    assert reward == pytest.approx((0.5 * 7 + 0.4 * 9) / 9, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7 / 9), ("**7**", 7 / 9), ("I see a pole.\n3", 3 / 9), ("7 or 8", None), ("12", None)]
)
def test_without_probabilities_the_number_is_read(text: str, value: float | None) -> None:
    form = Scale(Scale.parse(bundled_prompt("scale")), (GOAL,), (), 9)
    assert form.read(ChatReply(text), 1, 1).value == value


def test_percentages_are_all_there_or_none_counts() -> None:
    assert read_percents('Well: {"1": 40, "2": "75%", "3": 0}', 3) == [40, 75, 0]
    for text, told in (
        ('{"1": 40, "3": 0}', "no percentages for picture 2 of 3"),
        ('{"1": 40, "2": 10}', "no percentages for picture 3 of 3"),
        ('{"1": 40, "2": 10, "2": 20, "3": 0}', "2 percentages for picture 2"),
        ('{"1": 40, "2": 120, "3": 0}', "picture 2 no percentage from 0 to 100"),
        ('{"1": 40, "2": "high", "3": 0}', "picture 2 no percentage"),
        ('{"1": 40, "2": 10, "3": ', "no JSON object"),
        ("40, 10, 0", "no JSON object"),
    ):
        assert told in read_percents(text, 3), text


def shown_numbers(asked: Asked) -> str:
    """The true percentage of each numbered picture, which is its value; the first picture has no number."""
    values = [round(float(picture.mean())) for picture in asked.pictures[1:]]
    return json.dumps({str(number): value for number, value in enumerate(values, 1)})


def test_shuffled_pictures_are_put_back_in_order() -> None:
    # The last picture of each window has the value of its step.
    shown = clip([[value] for value in (0, 50, 20, 90, 30)])
    with FaultServer(shown_numbers) as server:
        rewards = judge(server, form="shuffled", over="window", window=5, orders=2)(shown)
        longest = max(server.asked, key=lambda asked: len(asked.pictures))
        orders = {tuple(int(p.mean()) for p in a.pictures) for a in server.asked if len(a.pictures) == 5}
    np.testing.assert_allclose(rewards[:, 0], [0, 0.5, 0.2, 0.9, 0.3], atol=1e-6)
    assert len(orders) == 2, "the two orders differ"
    assert longest.pictures[0].mean() == 0 and sorted(
        longest.body["response_format"]["json_schema"]["schema"]["required"]
    ) == list("1234")


def test_a_list_with_a_gap_is_asked_again_in_another_order() -> None:
    gaps = iter(['{"1": 10, "3": 30}'])

    def reply(asked: Asked) -> str:
        if len(asked.pictures) == 4:
            return next(gaps, None) or shown_numbers(asked)
        return shown_numbers(asked)

    with FaultServer(reply) as server:
        model = judge(server, form="shuffled", over="window", window=4, every=9)
        rewards = model(clip([[value] for value in (0, 50, 20, 90)]))
        whole = [asked for asked in server.asked if len(asked.pictures) == 4]
    assert rewards[-1, 0] == pytest.approx(0.9)
    assert len(whole) == 2 and model.costs()["unanswered"] == 0
    assert [p.mean() for p in whole[0].pictures] != [p.mean() for p in whole[1].pictures]


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_each_picture_is_asked_about_with_its_colours() -> None:
    red = np.zeros((1, 8, 8, 3), np.uint8)
    red[..., 0] = 200
    with FaultServer(says("5")) as server:
        judge(server)(red)
        (asked,) = server.asked
    assert asked.pictures[0][0, 0].tolist() == [200, 0, 0], "red, not blue"
    assert f"shows this: {GOAL}." in asked.texts[-1]


def test_rewards_are_of_their_own_steps_and_of_no_later_ones() -> None:
    """A failure is not paid like success because it is the best of its episode."""
    with FaultServer(by_brightness) as server:
        low = judge(server)(clip([[1], [2], [3]]))
        longer = judge(server)(clip([[1], [2], [3], [250]]))
        one = judge(server)(clip([[7]]))
        same = judge(server)(clip([[4], [4], [4]]))
    np.testing.assert_allclose(low[:, 0], np.array([1, 2, 3]) / 255, atol=1e-6)
    np.testing.assert_array_equal(longer[:3], low)
    assert one.shape == (1, 1) and one[0, 0] == pytest.approx(7 / 255)
    np.testing.assert_allclose(same, 4 / 255, atol=1e-6)


def test_every_third_step_is_asked_and_the_rest_lies_between() -> None:
    values = [[10], [20], [99], [99], [50], [99], [99], [80]]
    with FaultServer(by_brightness) as server:
        rewards = judge(server, every=3)(clip(values))
        shown = sorted(round(float(asked.pictures[0].mean())) for asked in server.asked)
    assert shown == [10, 20, 50, 80]
    np.testing.assert_allclose(255 * rewards[:, 0], [10, 20, 30, 40, 50, 60, 70, 80], atol=1e-4)


def test_differences_telescope_within_an_episode() -> None:
    first = [[True], [False], [False], [True], [False]]
    with FaultServer(by_brightness) as server:
        rewards = judge(server, output="difference")(clip([[10], [30], [25], [200], [210]], first))
    np.testing.assert_allclose(255 * rewards[:, 0], [0, 20, -5, 0, 10], atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"every": 4},
        {"every": 4, "output": "difference"},
        {"output": "difference"},
        {"over": "window", "window": 3},
        {"over": "window", "window": 3, "frames": 2, "every": 2, "output": "difference"},
        {"over": "window", "window": 2, "every": "end"},
        {"over": "prefix", "frames": 3},
        {"over": "prefix", "frames": 4, "every": 4, "output": "difference"},
        {"over": "prefix", "frames": 2, "every": "end"},
    ],
)
def test_chunks_are_rewarded_like_the_whole(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    first = np.zeros((16, 2), bool)
    first[0] = first[4, 0] = first[12, 1] = True
    pictures = frames(*rng.permutation(256)[:32]).reshape(16, 2, 8, 8, 3)
    ended = np.roll(first, -1, axis=0)
    whole = Clip(first, frames=pictures, ended=ended)
    with FaultServer(by_brightness) as server:
        at_once = RewardStream(judge(server, **settings))(whole)
        asked_at_once = len(server.asked)
        stream = RewardStream(judge(server, **settings))
        parts = [stream(whole[slice(begin, begin + 4)]) for begin in range(0, 16, 4)]
        asked_in_parts = len(server.asked) - asked_at_once
    np.testing.assert_array_equal(np.concatenate(parts), at_once)
    assert asked_in_parts == asked_at_once, "nothing is asked twice at the borders of chunks"


def test_at_the_end_of_an_episode_its_value_is_paid_and_nothing_before() -> None:
    first = [[True], [False], [True], [False]]
    ended = np.array([[False], [True], [False], [False]])
    with FaultServer(by_brightness) as server:
        rewards = judge(server, every="end")(clip([[10], [30], [50], [70]], first, ended=ended))
        assert len(server.asked) == 1
        with pytest.raises(BadInput, match="needs to know where episodes end"):
            judge(server, every="end")(frames(1))
    np.testing.assert_allclose(255 * rewards[:, 0], [0, 30, 0, 0], atol=1e-4)


def test_a_window_stops_at_the_beginning_of_its_episode() -> None:
    first = [[True], [False], [True], [False], [False]]
    with FaultServer(by_brightness) as server:
        judge(server, over="window", window=3, frames=2)(clip([[1], [2], [3], [4], [5]], first))
        shown = sorted([int(picture.mean()) for picture in asked.pictures] for asked in server.asked)
    assert shown == [[1], [1, 2], [3], [3, 4], [3, 5]], "the first and the last of each window"


def prefixes(asked: Sequence[Asked]) -> list[list[int]]:
    """The values of the pictures of each question."""
    return sorted([int(picture.mean()) for picture in one.pictures] for one in asked)


def an_episode(*values: int) -> Clip:
    """A clip of an episode of plain pictures, the first of which is the reset frame."""
    first = np.array([[True]] + [[False]] * (len(values) - 2))
    past = Past.of_resets(0, first[0], frames(values[0]))
    return Clip(first, frames=frames(*values[1:])[:, None], ended=np.roll(first, -1, axis=0), past=past)


def test_a_prefix_shows_the_reset_frame_and_the_present_one() -> None:
    with FaultServer(by_brightness) as server:
        rewards = judge(server, over="prefix", frames=4)(an_episode(50, 1, 2, 3, 4, 5, 6, 7))
        shown = prefixes(server.asked)
        server.asked.clear()
        at_the_end = judge(server, over="prefix", frames=3, every="end")(an_episode(50, 1, 2, 3, 4, 5, 6, 7))
        assert prefixes(server.asked) == [[50, 4, 7]]
    assert shown == sorted([[50, 1], [50, 1, 2], [50, 1, 2, 3], [50, 2, 4], [50, 2, 4, 5], [50, 2, 4, 6], [50, 4, 7]])
    np.testing.assert_allclose(255 * rewards[:, 0], [1, 2, 3, 4, 5, 6, 7], atol=1e-4)
    np.testing.assert_allclose(255 * at_the_end[:, 0], [0, 0, 0, 0, 0, 0, 7], atol=1e-4)


def test_the_first_of_shuffled_pictures_is_the_reset_frame() -> None:
    with FaultServer(shown_numbers) as server:
        rewards = judge(server, form="shuffled", over="prefix", frames=4)(an_episode(7, 50, 20, 90, 30))
        assert {int(asked.pictures[0].mean()) for asked in server.asked} == {7}
    np.testing.assert_allclose(rewards[:, 0], [0.5, 0.2, 0.9, 0.3], atol=1e-6)


@pytest.mark.parametrize("every", [1, 3])
def test_differences_of_a_prefix_add_up_to_the_last_value_less_that_of_the_reset_frame(every: int) -> None:
    with FaultServer(by_brightness) as server:
        rewards = judge(server, over="prefix", every=every, output="difference")(an_episode(40, 99, 99, 60, 99, 99, 90))
    assert 255 * rewards.sum() == pytest.approx(90 - 40, abs=1e-3)
    if every == 3:
        np.testing.assert_allclose(255 * np.cumsum(rewards), [20 / 3, 40 / 3, 20, 30, 40, 50], atol=1e-3)


def test_as_a_potential_it_is_paid_and_taken_back() -> None:
    class Nothing(JudgeReward):
        def reward(self, clip: Clip) -> np.ndarray:
            return np.zeros(clip.shape, np.float32)

    with FaultServer(by_brightness) as server:
        nothing = Nothing(GOAL, "m", url=server.url)
        rewards = ShapedReward(nothing, judge(server), gamma=1.0)(clip([[10], [30], [25]]))
    np.testing.assert_allclose(255 * rewards[:, 0], [10, 20, -5], atol=1e-4)


# -- no answer ---------------------------------------------------------------------------------------------------------


def test_a_missing_answer_is_counted_and_lies_between_its_neighbours() -> None:
    def reply(asked: Asked) -> str:
        return "no idea" if asked.pictures[0].mean() == 99 else by_brightness(asked)

    with FaultServer(reply) as server:
        model = judge(server)
        rewards = model(clip([[10, 99], [99, 99], [30, 99]]))
    np.testing.assert_allclose(255 * rewards[:, 0], [10, 20, 30], atol=1e-4)
    np.testing.assert_allclose(255 * rewards[:, 1], 20, atol=1e-4)  # nothing is known: the mean claims nothing
    assert model.costs()["unanswered"] == 1 and model.costs()["asked"] == 3, "equal pictures are one question"


def test_refusals_are_missing_answers_too() -> None:
    with FaultServer(by_brightness, faults=[refusal]) as server:
        model = judge(server, concurrency=1)
        model(frames(1, 2, 3))
    assert model.costs()["unanswered"] == 1


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    with FaultServer(says("no idea")) as server, pytest.raises(RunFailed, match="no answer to any of 3 steps"):
        judge(server)(frames(1, 2, 3))


def test_too_many_missing_answers_stop_the_run() -> None:
    def reply(asked: Asked) -> str:
        return "no idea" if asked.pictures[0].mean() < 10 else by_brightness(asked)

    with FaultServer(reply) as server:
        judge(server, missing=0.25)(frames(*range(5, 65)))
        with pytest.raises(
            RunFailed, match=r"no answer to 5 of 60 questions, most often because .*none of the answers"
        ):
            judge(server, missing=0.05)(frames(*range(5, 65)))


@pytest.mark.parametrize("fault", [status(500, "out of order"), status(400, "too large"), hangs_up])
def test_a_server_that_cannot_be_asked_stops_the_run_in_one_line(fault: Fault) -> None:
    with (
        FaultServer(faults=[fault] * 9) as server,
        pytest.raises(RunFailed, match=r"judge at .* cannot be asked") as told,
    ):
        judge(server)(frames(1))
    assert "\n" not in str(told.value)


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_nothing_is_paid_for_twice(tmp_path: Path) -> None:
    with FaultServer(by_brightness) as server:
        first = judge(server, folder=tmp_path, input_price=1e6, output_price=1e6)
        before = first(frames(1, 2, 3, 2))
        again = judge(server, folder=tmp_path)
        np.testing.assert_array_equal(again(frames(1, 2, 3, 2)), before)
        assert len(server.asked) == 3
        spent = again.costs()
        assert spent["requests"] == 3 and spent["output_tokens"] == 3
        assert spent["money"] == pytest.approx(spent["input_tokens"] + 3)
        for other in (
            {"form": "scale", "highest": 254},
            {"prompt": "[user]\n{pictures} {goal}?\n"},
            {"temperature": 1},
        ):
            judge(server, folder=tmp_path, **other)(frames(1))
        assert len(server.asked) == 6, "other words, other answers"


def test_two_judges_of_one_reward_are_each_paid_once(tmp_path: Path) -> None:
    """What one has spent, or left unanswered, is not counted for the other; what both ask is asked twice."""
    with FaultServer(by_brightness) as server:
        one = {"kind": "judge", "url": server.url, "model": "m", "highest": 255, "input_price": 1e6}
        block = WeightedSumConfig(
            terms=[{"reward": one}, {"reward": one, "weight": 2}, {"reward": {"kind": "shaped", "potential": one}}]
        )
        rewards = []
        for _ in range(2):
            context = RewardContext((GOAL,), (), 0, False, lambda size, states: frames(0)[0], tmp_path)
            model = build_reward(block, context).model
            rewards.append(model.reward(clip([[10], [30]], env_reward=np.ones((2, 1), np.float32))))
        assert len(server.asked) == 6, "what was built again asks nothing"
    spent = model.costs()
    assert spent["asked"] == 6 and spent["requests"] == 6
    assert spent["money"] == spent["input_tokens"]
    np.testing.assert_array_equal(rewards[0], rewards[1])


def test_a_note_in_a_prompt_changes_no_answer(tmp_path: Path) -> None:
    with FaultServer(by_brightness) as server:
        for note in ("", "A note.\n"):
            judge(server, folder=tmp_path, prompt=f"{note}[user]\n{{pictures}} {{goal}} {{highest}}?\n")(frames(1))
        assert len(server.asked) == 1


# -- a model in this process -------------------------------------------------------------------------------------------

BUNDLED: dict[str, Any] = {"provider": "local", "options": {"device": "cpu", "batch_size": 4}}


def bundled(**settings: Any) -> JudgeReward:
    return JudgeReward(GOAL, "bundled", **BUNDLED | settings)


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)


def test_a_local_scale_is_the_mean_over_its_digits() -> None:
    shown = noise(3)
    rewards = bundled()(shown)
    # Independently: the probabilities of the first token of a reply.
    model = LocalModel("bundled", {"device": "cpu"})
    vlm = model._load()
    form = Scale(Scale.parse(bundled_prompt("scale")), (GOAL,), (), 9)
    for frame, reward in zip(shown, rewards, strict=True):
        request, _ = form.request([Picture(frame)], 0)
        from sightline.models.chat.local import _prompt

        (sample,) = vlm.generate([_prompt(vlm, request)], None, 1.0, 1, alternatives=len(vlm.tokens.banned))
        chances = {token: math.exp(logprob) for token, logprob in sample.alternatives[0]}
        digits = [chances.get(vlm.tokens.encode(str(digit))[0], 0.0) for digit in range(10)]
        mean = sum(digit * chance for digit, chance in enumerate(digits)) / sum(digits)
        assert reward == pytest.approx(mean / 9, abs=1e-4)


def test_a_local_judge_is_deterministic_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    shown = noise(11)
    whole = bundled(folder=tmp_path)(shown)
    np.testing.assert_array_equal(bundled()(shown), whole)
    again = bundled(folder=tmp_path)
    np.testing.assert_array_equal(again(shown), whole)
    assert again.costs()["asked"] == 11, "what was computed is kept"


YES_NO = "[user]\n{pictures} Is it {goal}?\n\n[choices]\n1\n0\n"


def test_local_yes_and_no_are_single_tokens_where_they_stand() -> None:
    (plain,) = bundled(form="yes_no", prompt=YES_NO)(noise(1))
    (begun,) = bundled(form="yes_no", prompt=YES_NO + "\n[reply]\nIt is\n")(noise(1))
    assert plain <= 0 and begun <= 0 and plain != begun
    with pytest.raises(BadInput, match="'True' is not one token of this model"):
        bundled(form="yes_no")(noise(1))
    same = YES_NO.replace("1\n0", "1\n1")
    with pytest.raises(BadInput, match="are the same token"):
        bundled(form="yes_no", prompt=same)(noise(1))


def test_a_choice_is_found_with_what_stands_before_it() -> None:
    """ " True" after words and "True" after a template are different tokens of most models."""
    from sightline.models.chat.local import _choice_tokens

    class Spaces:
        """Tokens with their spaces before them, as GPT-2's are."""

        ids = {"The": 1, " answer": 2, "True": 3, " True": 4, "False": 5, " False": 6, " ": 7, '"': 8}

        def encode(self, text: str) -> list[int]:
            found = []
            while text:
                piece = max((piece for piece in self.ids if text.startswith(piece)), key=len)
                found.append(self.ids[piece])
                text = text[len(piece) :]
            return found

    class Model:
        tokens = Spaces()

    assert _choice_tokens(Model(), "", ["True", "False"]) == ([], [3, 5])  # type: ignore[arg-type]
    assert _choice_tokens(Model(), "The answer", ["True", "False"]) == ([1, 2], [4, 6])  # type: ignore[arg-type]
    # Behind an opening quote there is no space.
    assert _choice_tokens(Model(), 'The "', ["True", "False"]) == ([1, 7, 8], [3, 5])  # type: ignore[arg-type]


def test_the_beginning_of_a_reply_is_sent_where_it_can_be() -> None:
    prompt = "[user]\n{pictures} {goal} {highest}?\n\n[reply]\nIt is\n"
    with FaultServer(by_brightness) as server:
        judge(server, prompt=prompt)(frames(3))
        (asked,) = server.asked
    assert asked.body["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}
    assert asked.body["continue_final_message"] is True and asked.body["add_generation_prompt"] is False
    with pytest.raises(BadInput, match="provider=gemini cannot be sent the beginning of a reply"):
        JudgeReward(GOAL, "m", provider="gemini", prompt=prompt)


# -- recipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"form": "shuffled"}, "say over=prefix or over=window"),
        ({"every": "end", "output": "difference"}, "leave out every=end"),
        ({"form": "yes_no", "prompt": "[user]\n{pictures}\n"}, r"needs a section \[choices\]"),
        ({"prompt": "[user]\n{goal}\n"}, r"shows no \{pictures\}"),
        (
            {"prompt": "[user]\n{pictures} {form}\n"},
            r"no variable \{form\} here; known: pictures, goal, baseline, highest",
        ),
        ({"form": "shuffled", "over": "window", "prompt": "[user]\n{pictures}\n"}, r"needs a section \[picture\]"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(keys: dict[str, Any], told: str) -> None:
    settings = {f"reward.{key}": value for key, value in keys.items()}
    with pytest.raises(BadInput, match=told):
        load_recipe(None, {"env": "cartpole", "reward.kind": "judge", "reward.model": "m"} | settings)


def test_words_are_needed() -> None:
    with pytest.raises(BadInput, match="there is no goal"):
        JudgeReward((), "m")


def test_show_prompt_prints_what_a_judge_is_asked() -> None:
    with FaultServer(by_brightness) as server:
        JudgeReward("pole vertically upright on top of the cart", "m", url=server.url, highest=255)(frames(1))
        (asked,) = server.asked
    keys = ["env=cartpole", "reward.kind=judge", "reward.model=m", "reward.highest=255"]
    printed = CliRunner().invoke(app, ["label", "show-prompt", *keys])
    assert printed.stdout == f"[user]\n[picture]\n{asked.texts[0]}\n"
    assert ChatRequest(("x",), beginning="y").text == "x\ny"


def test_shuffled_forms_show_the_first_picture_without_a_number() -> None:
    form = Shuffled(Shuffled.parse(bundled_prompt("shuffled")), (GOAL,), ())
    request, last = form.request([Picture(frame) for frame in frames(1, 2, 3)], 0)
    text = request.text
    assert text.index("[picture]") < text.index("Picture 1:") < text.index("Picture 2:") and "Picture 3" not in text
    shown = [int(part.pixels.mean()) for part in request.parts if isinstance(part, Picture)]
    assert shown[0] == 1 and shown[last] == 3


# -- runs --------------------------------------------------------------------------------------------------------------


def start(run: Path, reward: dict[str, Any], **further: Any) -> sl.Run:
    keys = {"envs": 2, "learner.chunk": 16, "learner.learning_starts": 16, "learner.algorithm": "DQN", "videos": False}
    evaluation = {"evaluation.episodes": 1, "evaluation.test_episodes": 1, "evaluation.background": False}
    words = {"goal": GOAL, "checkpoints.every": 32, "steps": 128, "episode_steps": 20, "reward.kind": "judge"}
    size = {"reward.frame_size": [32, 32]}
    return sl.train("cartpole", run_dir=run, progress=False, **keys, **evaluation, **words, **size, **reward, **further)


def rewards_of(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["rollout/reward"] for row in rows if "rollout/reward" in row]


def test_a_run_goes_on_where_its_server_died_and_asks_nothing_twice(tmp_path: Path) -> None:
    with FaultServer(by_brightness) as server:
        keys = {"reward.model": "m", "reward.url": server.url, "reward.retries": 0, "reward.highest": 255}
        start(tmp_path / "whole", keys | {"reward.every": 4})
        needed = len(server.asked)
        server.lives = needed + 30
        with pytest.raises(RunFailed, match="cannot be asked"):
            start(tmp_path / "run", keys | {"reward.every": 4})
        answered = server.lives - needed
        server.lives = math.inf
        before = len(server.asked)
        sl.train(run_dir=tmp_path / "run", resume=True, progress=False)
        asked_then = len(server.asked) - before
    assert rewards_of(tmp_path / "run") == rewards_of(tmp_path / "whole")
    assert answered + asked_then == needed + 1, "but for the request by which the connection is checked, again"


@pytest.mark.parametrize("kind", [{"reward.every": "end"}, {"reward.over": "window", "reward.every": 4}])
def test_a_run_of_what_no_single_picture_shows_has_no_landscape(tmp_path: Path, kind: dict[str, Any]) -> None:
    with FaultServer(by_brightness) as server:
        keys = {"reward.model": "m", "reward.url": server.url, "reward.retries": 0, "reward.highest": 255}
        run = start(tmp_path / "run", keys | kind)
    assert (run.path / "result.json").is_file() and not (run.path / "landscape.json").exists()
    assert "was not measured over the states" in (run.path / "report.html").read_text()


@pytest.mark.parametrize(
    ("settings", "is_of_stills"),
    [
        ({"every": 3}, True),
        ({"every": "end"}, False),
        ({"output": "difference"}, False),
        ({"over": "window", "window": 2}, False),
        ({"over": "prefix"}, False),
    ],
)
def test_which_judges_need_more_than_one_picture(settings: dict[str, Any], is_of_stills: bool) -> None:
    model = bundled(**settings)
    assert model.judges_stills == is_of_stills
    of_steps = bundled()
    assert WeightedSum([of_steps, model], [1, 1]).judges_stills == is_of_stills
    assert ShapedReward(of_steps, model).judges_stills == is_of_stills


def test_a_run_by_the_bundled_judge_is_the_same_each_time(tmp_path: Path) -> None:
    local = {"reward.model": "bundled", "reward.provider": "local", "reward.every": 8}
    for name in ("one", "other"):
        start(tmp_path / name, local)
    assert rewards_of(tmp_path / "one") == rewards_of(tmp_path / "other")


def test_a_strangers_run_asks_no_server_when_it_is_evaluated(tmp_path: Path) -> None:
    recipe: Any = load_recipe(
        None, {"env": "cartpole", "reward.kind": "judge", "reward.model": "m", "reward.url": "https://elsewhere/v1"}
    )
    with pytest.raises(BadInput, match="a server that would be asked"):
        check_trusted(recipe, tmp_path, asks=False)
    check_trusted(recipe, tmp_path, asks=False, scores=False)


def test_a_chunk_goes_on_from_the_last_step_of_the_one_before() -> None:
    values = [[10], [20], [30], [40], [50], [60], [90]]
    with FaultServer(by_brightness) as server:
        stream = RewardStream(judge(server, every=5))
        first, second = (stream(clip(values)[part]) for part in (slice(0, 3), slice(3, 7)))
    np.testing.assert_allclose(255 * first[:, 0], [10, 20, 30], atol=1e-4)
    np.testing.assert_allclose(255 * second[:, 0], [45, 60, 75, 90], atol=1e-4)


def test_an_end_without_an_answer_has_the_mean_of_the_others() -> None:
    ended = np.ones((1, 3), bool)
    with FaultServer(lambda asked: "?" if asked.pictures[0].mean() == 99 else by_brightness(asked)) as server:
        rewards = judge(server, every="end")(clip([[10, 99, 30]], ended=ended))
    np.testing.assert_allclose(255 * rewards[0], [10, 20, 30], atol=1e-4)
