"""Private attributes of other libraries: each stands in one place, and a version that lacks one is told from the rest.

A library may rename them in any release. So `.ci/run` and the lanes `lowest` and `newest` run these tests first when a
bound moves: their messages name the missing attribute and the file that needs it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sightline.control import replay, sb3
from sightline.models.vlm.caching import PreallocatedLayer


def private_uses(module: Path) -> dict[str, set[str]]:
    """Private attributes that each function of a module uses, by the annotation of the object they belong to."""
    uses: dict[str, set[str]] = {}
    for function in ast.walk(ast.parse(module.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        kinds = {argument.arg: ast.unparse(argument.annotation or ast.Name("")) for argument in function.args.args}
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and isinstance(node.value, ast.Name):
                uses.setdefault(kinds.get(node.value.id, node.value.id), set()).add(node.attr)
    return uses


SB3_USES = private_uses(Path(sb3.__file__))
LEARNERS: dict[str, tuple[type[BaseAlgorithm], ...]] = {
    "BaseAlgorithm": (PPO, DQN),
    "OnPolicyAlgorithm": (PPO,),
    "OffPolicyAlgorithm": (DQN,),
}


def missing(held_by: Any, names: set[str] | tuple[str, ...], library: str, user: str) -> list[str]:
    version = importlib.metadata.version(library)
    holder = getattr(held_by, "__name__", type(held_by).__name__)
    return [
        f"{holder} of {library} {version} has no '{name}', which {user} uses"
        for name in sorted(names)
        if not hasattr(held_by, name)
    ]


def test_every_use_of_stable_baselines3_is_looked_at() -> None:
    assert set(SB3_USES) == set(LEARNERS)
    assert sum(map(len, SB3_USES.values())) >= 6


@pytest.mark.parametrize("kind", sorted(SB3_USES))
def test_learners_have_what_is_used_of_them(kind: str) -> None:
    env = gymnasium.make("CartPole-v1")
    for algorithm in LEARNERS[kind]:
        learner = algorithm("MlpPolicy", env, device="cpu")
        assert not missing(learner, SB3_USES[kind], "stable-baselines3", "sightline/control/sb3.py")


def test_a_missing_attribute_is_named() -> None:
    env = gymnasium.make("CartPole-v1")
    lines = missing(DQN("MlpPolicy", env, device="cpu"), {"_gone"}, "stable-baselines3", "a file")
    assert lines[0].startswith("DQN of stable-baselines3 ") and lines[0].endswith("has no '_gone', which a file uses")


def test_the_replay_buffer_has_what_ours_overrides_and_calls() -> None:
    # Called through `self`, which only a look at the class tells from our own.
    uses = {name for name in inherited_of(Path(replay.__file__)) if not name.startswith("__")}
    assert "_normalize_reward" in uses
    assert not missing(ReplayBuffer, uses | {"_get_samples", "add", "sample"}, "stable-baselines3", "control/replay.py")


def inherited_of(module: Path) -> set[str]:
    """Private methods that a module calls on `self` and does not define."""
    tree = ast.parse(module.read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assigned = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }
    return {name for name in called - defined - assigned if name.startswith("_")}


def test_layers_of_caches_have_what_ours_override_and_read() -> None:
    layer, user = DynamicLayer(), "sightline/models/vlm/caching.py"  # type: ignore[no-untyped-call]
    used = ("update", "lazy_initialization", "is_initialized", "keys", "values", "reorder_cache")
    assert not missing(layer, used, "transformers", user)
    assert not missing(DynamicCache(), ("layers", "reorder_cache"), "transformers", user)
    # Ours is called as the library calls its own.
    theirs = list(inspect.signature(DynamicLayer.update).parameters)[:3]
    assert theirs == list(inspect.signature(PreallocatedLayer.update).parameters)[:3]


def test_trees_of_tensors_take_our_records() -> None:
    """FSDP finds the tensors of a module's output through a private module of torch."""
    from torch.utils import _pytree

    assert not missing(_pytree, ("register_pytree_node", "tree_flatten"), "torch", "sightline/models/vlm/scoring.py")


@pytest.mark.skipif(importlib.util.find_spec("metaworld") is None, reason="pip install 'sightline[metaworld]'")
def test_meta_world_has_what_is_used_of_it() -> None:
    from sightline.envs.making import EnvMaker
    from sightline_tasks.control import metaworld

    env = EnvMaker("sightline/MetaWorld-v0", {"task": "drawer-open"}, frame_size=None, render=False)()
    env.reset(seed=0)
    source = ast.parse(Path(metaworld.__file__).read_text())
    used = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and ast.unparse(node.value).endswith("inner")
    }
    assert "_target_pos" in used
    assert not missing(env.unwrapped._inner, used, "metaworld", "sightline_tasks/control/metaworld.py")  # type: ignore[attr-defined]
