"""Devices by name, and frames that are shared out among several of them."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sightline.config.loading import for_control, load_recipe
from sightline.control.learners import policy_weights
from sightline.errors import BadInput, RunFailed, SightlineWarning
from sightline.models.device import SMALL_MODEL, choose_device, choose_devices
from sightline.models.encoder_base import TowerPair
from sightline.models.encoder_files import encoder_weights
from sightline.models.encoders import load_encoder
from sightline.models.memory import BatchSize
from sightline.models.sharing_out import shared_out
from sightline.models.uploads import Uploads
from sightline.models.vlm.loading import BUNDLED as VLMS
from sightline.models.vlm.loading import weights_known
from sightline.models.weights import count_weights
from sightline.rewards.base import Clip, RewardModel
from sightline.rewards.learned.config import CNNConfig, FittingConfig, StatesConfig
from sightline.rewards.learned.reward import EnsembleReward
from sightline.rewards.progress import ProgressReward
from sightline.rewards.wrap import wrap
from sightline.rewards.zero_shot import ZeroShotReward

PATIENCE = 60
"""Seconds after which a test gives up waiting for another thread."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`gpus(2)`: torch sees so many GPUs, on which nothing can be computed in truth."""

    for key in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "SIGHTLINE_SLOT"):
        monkeypatch.delenv(key, raising=False)

    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        zeros = torch.zeros

        def try_out(size: int, device: torch.device) -> torch.Tensor:
            if device.type == "cuda":
                if (device.index or 0) >= count:
                    raise RuntimeError("CUDA error: invalid device ordinal")
                return zeros(size)
            return zeros(size, device=device)

        monkeypatch.setattr(torch, "zeros", try_out)

    return pretend


# -- names ------------------------------------------------------------------------------------------------------------


def names_of(devices: Sequence[torch.device]) -> list[str]:
    return [str(device) for device in devices]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("auto", ["cuda:0"]),
        ("cuda", ["cuda:0"]),
        ("cuda:1", ["cuda:1"]),
        ("cuda:all", ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:2, cuda:0", ["cuda:2", "cuda:0"]),
        ("cpu:0,cpu:1", ["cpu:0", "cpu:1"]),
    ],
)
def test_devices_by_name(gpus: Callable[[int], None], names: str, expected: list[str]) -> None:
    gpus(3)
    assert names_of(choose_devices(names)) == expected


def test_without_a_gpu_auto_is_the_cpu(gpus: Callable[[int], None]) -> None:
    gpus(0)
    assert names_of(choose_devices("auto")) == ["cpu"]


@pytest.mark.parametrize("names", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("count", "environment", "expected"),
    [
        (3, {"LOCAL_RANK": "2"}, "cuda:2"),
        # A launcher may show each process a single GPU, which is counted from 0.
        (1, {"LOCAL_RANK": "2"}, "cuda:0"),
        (3, {"SIGHTLINE_SLOT": "1"}, "cuda:1"),
        (3, {"SIGHTLINE_SLOT": "4"}, "cuda:1"),
        (8, {"SIGHTLINE_SLOT": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "cuda:5"),
    ],
)
def test_each_process_of_torchrun_and_of_a_sweep_takes_its_own_gpu(
    gpus: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    names: str,
    count: int,
    environment: dict[str, str],
    expected: str,
) -> None:
    gpus(count)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert names_of(choose_devices(names)) == [expected]
    assert names_of(choose_devices("cuda:all")) == [f"cuda:{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("count", "names", "line"),
    [
        (0, "cuda", "device 'cuda' is not available here: torch sees no GPU"),
        (0, "cuda:all", "device 'cuda:all' is not available here: torch sees no GPU"),
        (1, "cuda:1", "device 'cuda:1' is not available here: torch sees 1 GPU, counted from cuda:0"),
        (2, "cuda:7", "device 'cuda:7' is not available here: torch sees 2 GPUs, counted from cuda:0"),
        (2, "cuda:0,cuda:7", "device 'cuda:7' is not available here: torch sees 2 GPUs"),
        (2, "gpu", "device 'gpu' is not available here: say auto, cpu, cuda or cuda:1; an encoder"),
        (2, "cuda:0,gpu", "device 'gpu' is not available here: say auto"),
        (2, "cuda:", "device 'cuda:' is not available here: say auto"),
        (2, "cuda:one", "device 'cuda:one' is not available here: say auto"),
        (2, "", "device '' is not available here: say auto"),
        (2, "meta", "device 'meta' is not available here: say auto"),
        (2, "cuda:1,cuda:1", "names cuda:1 twice; name each device once"),
        (2, "cuda,cuda:0", "names cuda:0 twice"),
        (2, "cpu,cpu:0", "names cpu:0 twice"),
        (2, "cpu,cuda:0", "device=cpu,cuda:0 mixes kinds of devices"),
    ],
)
def test_bad_names_are_refused_in_one_line(gpus: Callable[[int], None], count: int, names: str, line: str) -> None:
    gpus(count)
    with pytest.raises(BadInput) as caught:
        choose_devices(names)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gpu_that_is_full_says_so(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)

    def full(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 MiB.")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(BadInput, match=r"^device 'cuda:1' is not available here: CUDA out of memory\. Tried"):
        choose_devices("cuda:1")


@pytest.mark.parametrize("names", ["cuda:0,cuda:1", "cuda:all"])
def test_what_runs_on_one_device_refuses_several(gpus: Callable[[int], None], names: str) -> None:
    gpus(2)
    with pytest.raises(BadInput, match=f"^device={names} names several devices, and only the encoders"):
        choose_device(names)


# -- auto -------------------------------------------------------------------------------------------------------------


def test_auto_leaves_small_models_on_the_cpu(gpus: Callable[[int], None]) -> None:
    gpus(1)
    assert names_of(choose_devices("auto", SMALL_MODEL - 1)) == ["cpu"]
    assert names_of(choose_devices("auto", SMALL_MODEL)) == ["cuda:0"]
    assert names_of(choose_devices("auto", None)) == ["cuda:0"]
    # A device that is stated is obeyed.
    assert names_of(choose_devices("cuda", 1)) == ["cuda:0"]
    assert names_of(choose_devices("cpu", None)) == ["cpu"]


def write_weights(folder: Path, **shapes: tuple[int, ...]) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    for name, shape in shapes.items():
        save_file({"weight": np.zeros(shape, np.float16)}, folder / f"{name}.safetensors")


def test_weights_are_counted_by_the_headers_of_files(tmp_path: Path) -> None:
    write_weights(tmp_path / "parts", **{"model-00001-of-00002": (3, 4), "model-00002-of-00002": (5,)})
    assert count_weights(tmp_path / "parts") == 17
    write_weights(tmp_path / "encoder", open_clip_model=(2, 3), taught=(100,))
    assert encoder_weights(f"local-dir:{tmp_path / 'encoder'}") == 6
    # Of adapters the weights are elsewhere; other formats would have to be loaded.
    write_weights(tmp_path / "adapters", adapter_model=(2, 3))
    assert count_weights(tmp_path / "adapters") is None
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"no such thing")
    assert encoder_weights(f"hf:{tmp_path / 'damaged'}") is None
    assert encoder_weights(f"hf:{tmp_path / 'nowhere'}") is None
    assert encoder_weights("ViT-B-32/laion2b_s34b_b79k") is None and encoder_weights("hf:google/siglip") is None


def test_our_own_models_stay_on_the_cpu(gpus: Callable[[int], None]) -> None:
    gpus(1)
    for name in VLMS:
        assert 1_000_000 < (weights_known(name) or 0) < SMALL_MODEL
    assert weights_known("bundled", four_bit=True) is None, "which only a GPU computes with"
    encoder = load_encoder("bundled")
    assert encoder.where.startswith("cpu (auto: 1,0") and "weights; a GPU pays from 20,000,000 on)" in encoder.where
    assert load_encoder("bundled", device="cpu:0,cpu:1").where == "cpu:0, cpu:1 (as stated)"


@pytest.mark.parametrize(
    ("space", "hidden", "weights"),
    [
        (spaces.Box(-1, 1, (4,)), [16, 8], 5 * 16 + 17 * 8),
        (spaces.Box(0, 255, (3, 64, 64), np.uint8), [16, 8], None),
        (spaces.Dict(camera=spaces.Box(0, 255, (3, 64, 64), np.uint8), arm=spaces.Box(-1, 1, (4,))), [16, 8], None),
    ],
)
def test_policies_of_plain_layers_have_few_weights(
    space: spaces.Space[Any], hidden: list[int], weights: int | None
) -> None:
    recipe = for_control(load_recipe("cartpole", [f"learner.hidden={hidden}"]))
    assert policy_weights(recipe, space) == weights


@pytest.mark.parametrize(
    ("network", "shape", "convolves"), [(StatesConfig(hidden=(8,)), (4,), False), (CNNConfig(), (84, 84, 3), True)]
)
def test_learned_rewards_of_states_have_few_weights(
    monkeypatch: pytest.MonkeyPatch, network: Any, shape: tuple[int, ...], convolves: bool
) -> None:
    asked: list[int | None] = []

    def choose(names: str, weights: int | None) -> tuple[torch.device, ...]:
        asked.append(weights)
        return (torch.device("cpu"),)

    monkeypatch.setattr("sightline.rewards.learned.reward.choose_devices", choose)
    EnsembleReward(
        network, FittingConfig(ensemble=2), seen_shape=shape, seen_dtype=np.uint8 if convolves else np.float32
    )
    assert asked == [None if convolves else 2 * (5 * 8 + 9)]


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_results_come_in_the_order_of_the_blocks(count: int) -> None:
    results = shared_out(lambda worker, block: (block * 10, worker), ["a", "b", "c"], range(count))
    assert [result for result, _ in results] == [block * 10 for block in range(count)]


def test_a_slow_device_takes_fewer_blocks() -> None:
    others_done = threading.Event()
    of_fast = []

    def work(worker: str, block: int) -> tuple[str, int]:
        if worker == "slow":
            assert others_done.wait(PATIENCE)
        else:
            # The fast one goes on until nothing is left but what the slow one has taken.
            of_fast.append(block)
            if len(of_fast) == 9:
                others_done.set()
        return worker, block

    results = shared_out(work, ["slow", "fast"], range(10))
    assert [block for _, block in results] == list(range(10))
    assert [worker for worker, _ in results].count("slow") == 1


def test_an_error_on_one_device_ends_the_whole_call() -> None:
    failed = threading.Event()
    begun = []

    def work(worker: str, block: int) -> int:
        begun.append(block)
        if worker == "broken":
            failed.set()
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        assert failed.wait(PATIENCE)
        return block

    with pytest.raises(RuntimeError, match="illegal memory access"):
        shared_out(work, ["sound", "broken"], range(100))
    assert len(begun) < 100, "what nobody had begun is left"


# -- encoders ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["bundled", "open_clip"])
def name(request: pytest.FixtureRequest, encoder_folder: Callable[[str], Path]) -> str:
    """Name of an encoder; Hugging Face's are tried in test_encoders."""
    return "bundled" if request.param == "bundled" else f"local-dir:{encoder_folder('small')}"


def test_two_devices_embed_as_one_does(name: str, frames_of: Callable[..., np.ndarray]) -> None:
    """Bit for bit: none, one, fewer than devices, and numbers that do not divide."""
    one = load_encoder(name, device="cpu", batch_size=2)
    two = load_encoder(name, device="cpu:0,cpu:1", batch_size=2)
    for count in (0, 1, 3, 7):
        frames = frames_of(count)
        np.testing.assert_array_equal(two.embed_frames(frames), one.embed_frames(frames), strict=True)
    np.testing.assert_array_equal(two.embed_texts(["a pole"]), one.embed_texts(["a pole"]))
    two.free_text_tower()
    with pytest.raises(RuntimeError, match="freed"):
        two.embed_texts(["a pole"])
    assert two.embed_frames(frames_of(3)).shape == one.embed_frames(frames_of(3)).shape


def test_each_device_has_an_image_tower_of_its_own(frames_of: Callable[..., np.ndarray]) -> None:
    """A device that delays gets one batch, the other all the rest; both by weights of their own."""
    encoder: Any = load_encoder("bundled", device="cpu:0,cpu:1", batch_size=1)
    expected = encoder.embed_frames(frames_of(6))
    (further,) = encoder._copies
    assert further._visual is not encoder._visual and further._device == torch.device("cpu:1")
    others_done = threading.Event()
    passes: list[str] = []

    def delay(*_: Any) -> None:
        passes.append("slow")
        assert others_done.wait(PATIENCE)

    def count(*_: Any) -> None:
        passes.append("fast")
        if passes.count("fast") == 5:
            others_done.set()

    encoder._visual.register_forward_hook(count)
    further._visual.register_forward_hook(delay)
    np.testing.assert_array_equal(encoder.embed_frames(frames_of(6)), expected)
    assert sorted(passes) == [*["fast"] * 5, "slow"]


def test_an_error_on_one_device_is_the_callers(frames_of: Callable[..., np.ndarray]) -> None:
    encoder: Any = load_encoder("bundled", device="cpu:0,cpu:1", batch_size=1)

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    encoder._copies[0]._visual.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        encoder.embed_frames(frames_of(40))


def test_pictures_are_compared_with_the_taught_ones_on_one_device(frames_of: Callable[..., np.ndarray]) -> None:
    """The hook that catches a layer's output hangs at one tower."""
    encoder: Any = load_encoder("bundled", device="cpu:0,cpu:1", batch_size=2)
    alone: Any = load_encoder("bundled", device="cpu", batch_size=2)
    np.testing.assert_array_equal(encoder.unfamiliarity(frames_of(7)), alone.unfamiliarity(frames_of(7)))


def test_a_reward_on_two_devices(frames_of: Callable[..., np.ndarray]) -> None:
    words = {"goal": "a pole standing upright", "baseline": "a pole", "batch_size": 2, "warn": False}
    one = ZeroShotReward(**words, device="cpu")
    two = ZeroShotReward(**words, device="cpu:0,cpu:1")
    np.testing.assert_array_equal(two(frames_of(5)), one(frames_of(5)))


# -- frames on their way to a device ----------------------------------------------------------------------------------


def test_uploads_to_a_gpu_wait_for_the_batch_before_the_last(
    monkeypatch: pytest.MonkeyPatch, frames_of: Callable[..., np.ndarray]
) -> None:
    """A stand-in for CUDA tells in which order it is asked what."""
    log: list[str] = []

    class Event:
        def __init__(self, number: int) -> None:
            self.number = number

        def synchronize(self) -> None:
            log.append(f"wait for {self.number}")

    class Computing:
        batches = 0

        def record_event(self) -> Event:
            self.batches += 1
            return Event(self.batches)

        def wait_stream(self, stream: Any) -> None:
            log.append("compute after copy")

    class Pixels:
        device = torch.device("cpu")

        def __init__(self, frames: np.ndarray) -> None:
            assert frames.dtype == np.uint8

        def pin_memory(self) -> Pixels:
            log.append("pin")
            return self

        def to(self, device: torch.device, non_blocking: bool = False) -> Pixels:
            assert str(device) == "cuda:1" and non_blocking
            log.append("copy")
            return self

        def record_stream(self, stream: Any) -> None:
            log.append("keep until computed")

    computing = Computing()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "copies")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr("sightline.models.uploads.as_tensor", Pixels)
    uploads = Uploads(torch.device("cuda:1"))
    for _ in range(4):
        uploads.upload(frames_of(2))
        uploads.computed()
    upload = ["pin", "copy", "compute after copy", "keep until computed"]
    assert log == [*upload, *upload, "wait for 1", *upload, "wait for 2", *upload]


def test_embeddings_are_copied_to_the_host_once(
    monkeypatch: pytest.MonkeyPatch, name: str, frames_of: Callable[..., np.ndarray]
) -> None:
    encoder = load_encoder(name, device="cpu", batch_size=2)
    copies: list[tuple[int, ...]] = []
    cpu = torch.Tensor.cpu

    def count(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(tuple(tensor.shape))
        return cpu(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", count)
    embeddings = encoder.embed_frames(frames_of(7))
    assert copies == [embeddings.shape]


class OnDevice(torch.Tensor):
    """Frames that a simulator has drawn on a GPU: whoever takes them to the host fails."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        goes_to_host = getattr(function, "__name__", "") in ("cpu", "numpy", "__array__")
        if goes_to_host and args[0].dtype == torch.uint8:
            raise AssertionError("frames were taken to the host")
        return super().__torch_function__(function, types, args, kwargs or {})


def on_device(frames: np.ndarray) -> Any:
    return torch.from_numpy(frames).as_subclass(OnDevice)


def test_the_stand_in_for_frames_on_a_gpu_fails_on_the_host(frames_of: Callable[..., np.ndarray]) -> None:
    for take in (lambda frames: frames.cpu(), lambda frames: frames.numpy(), np.asarray):
        with pytest.raises(AssertionError, match="taken to the host"):
            take(on_device(frames_of(1)))


@pytest.mark.parametrize("aspect", ["crop", "pad", "squash"])
def test_frames_on_a_device_are_embedded_there(name: str, aspect: Any, frames_of: Callable[..., np.ndarray]) -> None:
    encoder: Any = load_encoder(name, device="cpu", batch_size=2, aspect=aspect)
    for frames in (frames_of(5), frames_of(3, encoder.image_size, encoder.image_size), frames_of(0)):
        embeddings = encoder.embed_frames(on_device(frames))
        assert isinstance(embeddings, torch.Tensor) and embeddings.dtype == torch.float32
        np.testing.assert_array_equal(embeddings.numpy(), encoder.embed_frames(frames))


def test_a_clip_on_a_device_is_rewarded_as_one_of_the_host(frames_of: Callable[..., np.ndarray]) -> None:
    frames = frames_of(6, 40, 80).reshape(3, 2, 40, 80, 3)
    first = np.array([[True, True], [False, False], [False, True]])
    words = {"goal": "a pole standing upright", "baseline": "a pole", "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SightlineWarning)  # of noise, which nobody was taught
        for views in (1, 2):
            for kind in (ZeroShotReward, ProgressReward):
                model = kind(**words, views=views)
                expected = model(Clip(first, frames=frames))
                np.testing.assert_array_equal(model(Clip(first, frames=on_device(frames))), expected, strict=True)


class DrawsOnDevice(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two environments that are drawn on a GPU, as a stand-in for those of simulators that run there."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    num_envs = 2
    single_observation_space = spaces.Box(-1, 1, (1,))
    single_action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (2, 1))
    action_space = spaces.MultiDiscrete([2, 2])

    def __init__(self, frames: Sequence[np.ndarray]) -> None:
        self.frames = frames
        self.time = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.time += 1
        over = np.zeros(2, bool)
        return np.full((2, 1), self.time / 100, np.float32), torch.zeros(2), over, over, {}

    def render(self) -> Any:
        return on_device(self.frames[self.time % len(self.frames)])


def test_a_vector_of_environments_that_draws_on_a_device_is_rewarded_there(
    frames_of: Callable[..., np.ndarray],
) -> None:
    """Longer than pictures are watched."""
    frames = [frames_of(2, seed=seed) for seed in range(3)]
    model = ZeroShotReward("a pole standing upright", "a pole", device="cpu", warn=False)
    env: Any = wrap(DrawsOnDevice(frames), model)
    env.reset(seed=0)
    for time in range(1, 56):
        rewards = env.step(np.zeros(2, int))[1]
        assert isinstance(rewards, torch.Tensor)
        np.testing.assert_allclose(rewards.numpy(), model(frames[time % 3]), atol=1e-6)


def test_frames_of_one_colour_on_a_device_are_warned_of() -> None:
    env: Any = wrap(
        DrawsOnDevice([np.full((2, 64, 64, 3), 7, np.uint8)]), ZeroShotReward("a pole", device="cpu", warn=False)
    )
    env.reset(seed=0)
    with pytest.warns(SightlineWarning, match=r"are of one colour, \(7, 7, 7\)"):
        list(map(env.step, np.zeros((50, 2), int)))


def test_a_model_that_does_not_know_tensors_is_given_arrays(frames_of: Callable[..., np.ndarray]) -> None:
    class Brightness(RewardModel):
        def reward(self, clip: Clip) -> np.ndarray:
            assert isinstance(clip.frames, np.ndarray)
            return clip.frames.mean((2, 3, 4)).astype(np.float32)

    env: Any = wrap(DrawsOnDevice([frames_of(2)]), Brightness())
    env.reset(seed=0)
    with pytest.raises(Exception, match="taken to the host"):
        env.step(np.zeros(2, int))


# -- memory -----------------------------------------------------------------------------------------------------------

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of 8 GiB"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(FULL),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_a_batch_that_does_not_fit_is_halved_once(error: Exception) -> None:
    batches = BatchSize(128, "encoder 'large'")
    sizes: list[int] = []

    def compute(size: int) -> str:
        sizes.append(size)
        if size > 64:
            raise error
        return "done"

    with pytest.warns(SightlineWarning, match="^encoder 'large' ran out of memory with batches of 128 .* on with 64$"):
        assert batches.fitting(compute) == "done"
    assert batches.fitting(compute) == "done" and sizes == [128, 64, 64]

    def others_fill_the_device(size: int) -> str:
        raise error

    with pytest.raises(RunFailed, match=r"^encoder 'large' ran out of memory with batches of 64 frames") as caught:
        batches.fitting(others_fill_the_device)
    assert "\n" not in str(caught.value) and "lower reward.batch_size" in str(caught.value)
    with pytest.raises(RunFailed, match="batches of 1 frames"):
        BatchSize(1, "it").fitting(others_fill_the_device)


def test_other_errors_halve_nothing() -> None:
    batches = BatchSize(128, "it")

    def fail(size: int) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        batches.fitting(fail)
    assert batches.frames == 128


def test_an_encoder_whose_batches_do_not_fit_goes_on_with_halves(frames_of: Callable[..., np.ndarray]) -> None:
    encoder: Any = load_encoder("bundled", device="cpu:0,cpu:1", batch_size=4)
    expected = load_encoder("bundled", device="cpu", batch_size=2).embed_frames(frames_of(9))

    def fill(_: Any, inputs: Any) -> None:
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError(FULL)

    for tower in (encoder, *encoder._copies):
        tower._visual.register_forward_pre_hook(fill)
    with pytest.warns(SightlineWarning, match="encoder 'bundled' ran out of memory with batches of 4 frames"):
        embeddings = encoder.embed_frames(frames_of(9))
    np.testing.assert_array_equal(embeddings, expected)


def test_a_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(TowerPair, "spread", full)
    with pytest.raises(BadInput, match=r"^encoder 'bundled' does not fit into the memory of device=cpu ") as caught:
        load_encoder("bundled", device="cpu")
    assert "\n" not in str(caught.value)
