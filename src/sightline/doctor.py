"""Checks of what works on this machine, and how to fix what does not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from sightline import registry
from sightline.config.blocks import Plugin
from sightline.config.bundled import hidden_recipes, packages_of_recipes
from sightline.errors import BadInput, reason_of
from sightline.requirements import install_command, misfit, misfits, requirements
from sightline.runs.working_folder import SAFE

if TYPE_CHECKING:
    from sightline.models.chat.messages import ChatModel

_RENDER = (
    "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom size=\".1\"/></worldbody></mujoco>');"
    "d = mujoco.MjData(m); mujoco.mj_forward(m, d); r = mujoco.Renderer(m, 32, 32); r.update_scene(d); r.render();"
    "from sightline.envs.rendering import opengl_renderer; print(opengl_renderer()); r.close()"
)
_GL_PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6", "glfw": "libglfw3 (and it needs a display)"}
_EXTRAS = {
    "sb3_contrib": "contrib",
    "metaworld": "metaworld",
    "minigrid": "minigrid",
    "miniwob": "miniwob",
    "playwright": "miniwob",
    "alfworld": "alfworld",
    "textworld": "alfworld",
    "peft": "lora",
    "bitsandbytes": "quantised",
    "vllm": "vllm",
    "h5py": "datasets",
    "pyarrow": "labels",
    "wandb": "wandb",
}
"""Module -> the extra that brings it, but for MuJoCo, which is tried, and the clients of chat models, which their
providers name."""
_PYGLET = (
    "import pyglet; pyglet.options['headless'] = True; from pyglet import gl; pyglet.window.Window(8, 8, visible=False)"
)


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    works: bool
    detail: str
    fix: str = ""


def examine(say: Callable[[str], None] = lambda line: None) -> list[Check]:
    """Look at Python, packages, processor, GPU, pictures, rendering back ends, videos, models, extras, plug-ins, keys.

    A check that fails in a way that nobody thought of is a finding like others, so that the rest is still looked at.

    Args:
        say: is told what is looked at next; some of it takes seconds.

    Raises:
        FileNotFoundError: no folder for temporary files can be written to.
    """
    tempfile.gettempdir()  # torch cannot be loaded without; left half loaded, it would end this process as it leaves
    checks = [Check("python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    say("versions of packages")
    checks += _packages()
    say("processor and GPU")
    checks += [_tried("processor", _processor), _tried("gpu", _gpu)]
    say("pictures of our own tasks and of Gymnasium's")
    checks += [_tried("own tasks", _own_pictures), _classic_control()]
    if importlib.util.find_spec("mujoco") is None:
        checks.append(Check("mujoco", False, "not installed (an extra)", _install("mujoco")))
    else:
        if misfits(requirements("mujoco")):
            checks.append(_version_of_mujoco())
        for name in _GL_PACKAGES:
            say(f"MuJoCo's pictures, by {name}")
            checks.append(_tried(f"mujoco with {name}", partial(_mujoco_back_end, name)))
    say("pyglet's pictures")
    checks.append(_tried("pyglet", _pyglet))
    say("videos")
    checks.append(_tried("videos", _videos))
    say("the bundled encoders")
    checks += [_bundled_encoders(), _tried("model cache", _model_cache)]
    say("extras, plug-ins and keys")
    return [*checks, *_extras(), *_plugins(), _keys(), _retiring_models()]


def _tried(name: str, check: Callable[[], Check]) -> Check:
    """A check, or what it raised: packages may be missing, broken, or of another version."""
    try:
        return check()
    except Exception as error:
        fix = "reinstall the package that is named, or Sightline with all it needs"
        return Check(name, False, reason_of(error), fix)


def _packages() -> list[Check]:
    """Versions of all that Sightline requires, one finding for each that does not fit."""
    needed = requirements()
    if not needed:
        return [Check("packages", False, "Sightline is not installed", "pip install -e . in Sightline's own folder")]
    checks = []
    for requirement in needed:
        fault = misfit(requirement)
        if fault is not None:
            detail = f"{fault} ({requirement.specifier} fits)"
            checks.append(Check(requirement.name, False, detail, install_command([requirement])))
    if not checks:
        return [Check("packages", True, f"all {len(needed)} that Sightline requires, in versions that fit")]
    return checks


def _processor() -> Check:
    import psutil
    import torch

    memory = psutil.virtual_memory()
    detail = f"{os.cpu_count()} cores, {memory.available / 2**30:.0f} of {memory.total / 2**30:.0f} GiB free"
    return Check("processor", True, f"{detail}, torch {torch.__version__}")


def _gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("gpu", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    if torch.backends.mps.is_available():
        return Check("gpu", True, "Apple MPS")
    return Check("gpu", False, "none found", "not needed for the bundled recipes; large encoders are slow without one")


def _own_pictures() -> Check:
    import gymnasium
    import numpy as np

    from sightline.envs.tasks import find_task

    env = gymnasium.make(find_task("cartpole").env, render_mode="rgb_array")
    env.reset(seed=0)
    frame = np.asarray(env.render())
    env.close()
    return Check("own tasks", frame.ndim == 3, "drawn by Pillow; no OpenGL needed")


def _classic_control() -> Check:
    """Pictures by pygame, which comes in two packages that bring the same module."""
    installed = []
    for name in ("pygame", "pygame-ce"):
        version = _version(name)
        if version:
            installed.append(f"{name} {version}")
    if importlib.util.find_spec("pygame") is None:
        return Check("classic control", False, "pygame is missing", "pip install 'gymnasium[classic-control]'")
    if len(installed) == 2:
        fix = "keep one: pip uninstall pygame pygame-ce, then pip install pygame-ce"
        return Check("classic control", False, f"{' and '.join(installed)} overwrite each other's files", fix)
    # A package may have left no word of its version.
    package = installed[0] if installed else "pygame"
    return Check("classic control", True, f"Gymnasium's Pendulum, Acrobot and friends, by {package}")


def _mujoco_back_end(name: str) -> Check:
    """Try rendering in a process of its own: a missing library can end it."""
    from sightline.envs.egl import GPU_UNUSED, gpus_here
    from sightline.envs.rendering import is_software  # needs Gymnasium, which may be what is missing

    # The variable chooses the back end; it is read as MuJoCo is imported.
    environment = os.environ | SAFE | {"MUJOCO_GL": name}
    try:
        process = subprocess.run(
            [sys.executable, "-c", _RENDER], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(f"mujoco with {name}", False, "hung", "use another back end: MUJOCO_GL=osmesa")
    if process.returncode == 0:
        renderer = process.stdout.strip()
        how = "renders in software, which is slow," if is_software(renderer) else "renders"
        return Check(f"mujoco with {name}", True, f"{how} by {renderer}; chosen by MUJOCO_GL={name}")
    # Exceptions that are ignored come later, while what had failed is cleared away.
    lines = process.stderr.partition("Exception ignored in")[0].strip().splitlines()
    last_line = lines[-1] if lines else f"ended with code {process.returncode}"
    error, _, message = last_line.partition(": ")
    reason = (message or error)[:90]
    if name == "osmesa" and "NoneType" in reason:  # PyOpenGL finds no library, and goes on with nothing
        reason = "the library OSMesa is missing"
    elif name == "glfw" and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        reason = "there is no display"
    elif "Failed to open display" in process.stderr:
        reason = f"the display {os.environ.get('DISPLAY', '')} cannot be opened"
    fix = f"on Debian or Ubuntu: apt-get install {_GL_PACKAGES[name]}"
    if name == "egl" and gpus_here():
        fix = GPU_UNUSED
    return Check(f"mujoco with {name}", False, reason, fix)


def _version_of_mujoco() -> Check:
    fault = misfits(requirements("mujoco"))[0]
    return Check("mujoco", False, f"{fault} ({fault.versions} fits)", _install("mujoco"))


def _pyglet() -> Check:
    """Try drawing without a display, in a process of its own: some packages' environments draw by pyglet."""
    version = _version("pyglet")
    if version is None:
        fix = "only environments that draw by it need it; their packages bring it"
        return Check("pyglet", False, "not installed", fix)
    process = subprocess.run(
        [sys.executable, "-c", _PYGLET],
        env=os.environ | SAFE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if process.returncode == 0:
        return Check("pyglet", True, f"{version} draws without a display; set PYGLET_HEADLESS=1")
    lines = process.stderr.strip().splitlines() or [f"ended with code {process.returncode}"]
    reason = lines[-1][:90]
    return Check(
        "pyglet",
        False,
        f"{version} cannot draw without a display: {reason}",
        f"on Debian or Ubuntu: apt-get install {_GL_PACKAGES['egl']}",
    )


def _videos() -> Check:
    import imageio_ffmpeg

    try:
        return Check("videos", True, f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}")
    except (RuntimeError, OSError) as error:
        # The variable takes the place of the FFmpeg that comes with the package.
        program = os.environ.get("IMAGEIO_FFMPEG_EXE")
        if program:
            return Check("videos", False, f"IMAGEIO_FFMPEG_EXE names '{program}', which does not run", "unset it")
        return Check("videos", False, str(error), "pip install --force-reinstall imageio-ffmpeg, or say videos=false")


def _bundled_encoders() -> Check:
    try:
        from sightline.models.encoder_files import BUNDLED
        from sightline.models.encoders import load_encoder

        sizes = [load_encoder(name, device="cpu").image_size for name in BUNDLED]
    except ImportError as error:
        return Check("bundled encoders", False, reason_of(error), "install the package that is named")
    except Exception as error:
        return Check("bundled encoders", False, str(error), "reinstall Sightline: its files are damaged")
    parts = [f"{name} reads {size}x{size} pictures" for name, size in zip(BUNDLED, sizes, strict=True)]
    return Check("bundled encoders", True, ", ".join(parts))


def _model_cache() -> Check:
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    network = "offline (HF_HUB_OFFLINE)" if HF_HUB_OFFLINE else "fetched when first used"
    return Check("model cache", True, f"{HF_HUB_CACHE}; other encoders are {network}")


def _extras() -> list[Check]:
    modules = dict(_EXTRAS)
    for provider in _providers():
        # Not every provider says what it needs.
        module = getattr(provider, "package", "")
        if module:
            modules[module] = getattr(provider, "extra", "")
    return [_check_extra(module, extra) for module, extra in modules.items()]


def _check_extra(module: str, extra: str) -> Check:
    """Whether a module is there, in a version that fits."""
    if not _is_there(module):
        if extra:
            return Check(module, False, "not installed (an extra)", _install(extra))
        return Check(module, False, "not installed", f"install the package that holds {module}")
    # Packages are named as their modules are, but for the hyphens.
    package = re.sub("[._]", "-", module)
    for requirement in requirements(extra):
        if re.sub("[._]", "-", requirement.name) != package:
            continue
        fault = misfit(requirement)
        if fault is not None and fault.installed:
            return Check(module, False, f"{fault} ({fault.versions} fits)", install_command([requirement]))
    version = _version(package)
    if not version:
        return Check(module, True, "installed")
    return Check(module, True, f"installed, {version}")


def _plugins() -> list[Check]:
    """All that others bring, by entry points of their packages."""
    entries = [entry for entry in registry.entry_points("gymnasium") if not registry.is_of_sightline(entry)]
    checks = [
        _tried(f"environments of {registry.package_of(entry)}", partial(_registration, entry)) for entry in entries
    ]
    # Each is imported, since an entry point says nothing about whether its module works.
    for kind in registry.BUILT_IN:
        names = [name for name in registry.names(kind) if not registry.is_own(kind, name)]
        checks += [_tried(f"{kind} {name}", partial(_plugin, kind, name)) for name in names]
        checks += [_hidden(f"{kind} {name}", lines) for name, lines in registry.hidden(kind).items()]
    for package in packages_of_recipes():
        if package.fault:
            checks.append(Check(f"recipes of {package.name}", False, "cannot be found", package.fault))
        elif package.name != registry.OWN:
            checks.append(Check(f"recipes of {package.name}", True, f"{len(package.files)} recipes"))
    return checks + [_hidden(f"recipe {name}", lines) for name, lines in hidden_recipes().items()]


def _registration(entry: metadata.EntryPoint) -> Check:
    """What a package registers with Gymnasium."""
    faults = registry.faults_of_registration(entry)
    name = f"environments of {registry.package_of(entry)}"
    if faults:
        return Check(name, False, "a plug-in that fails", "; ".join(faults))
    return Check(name, True, f"{entry.module}, a plug-in")


def _plugin(kind: registry.Kind, name: str) -> Check:
    """Whether a plug-in can be imported and is of the type that its kind asks for."""
    import sightline
    from sightline.envs.naming import find_environment
    from sightline.envs.tasks import find_task
    from sightline.models.chat.config import find_provider

    try:
        if kind == "env":
            find_environment(find_task(name).env)
        elif kind == "provider":
            find_provider(name)
        else:
            Plugin(kind, name).block({}, getattr(sightline, f"{kind.capitalize()}Config"))
    except BadInput as error:
        return Check(f"{kind} {name}", False, "a plug-in that fails", str(error))
    return Check(f"{kind} {name}", True, "a plug-in")


def _hidden(name: str, lines: Sequence[str]) -> Check:
    """What is not used, since another package has something of that name."""
    return Check(name, False, "of several packages", "; ".join(lines))


def _providers() -> list[type[ChatModel]]:
    """Classes of chat models, but for those whose package fails."""
    providers = []
    for name in registry.names("provider"):
        with contextlib.suppress(BadInput):  # reported by `_plugins`
            providers.append(registry.find("provider", name))
    return providers


def _install(extra: str) -> str:
    """The command that installs an extra, beside an installation from a checkout, too."""
    # Without an installation there is nothing but the checkout.
    if requirements():
        return f"pip install 'sightline[{extra}]'"
    return f"pip install -e '.[{extra}]' in Sightline's own folder"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that should hold it is not there
        return False


def _keys() -> Check:
    names = dict.fromkeys(getattr(provider, "key_env", "") for provider in _providers())
    set_names = [name for name in names if name and os.environ.get(name)]
    fix = "only hosted chat models need one; every other teacher works without"
    return Check("keys", bool(set_names), ", ".join(set_names) or "none set", fix)


def _retiring_models() -> Check:
    """Chat models whose end was announced."""
    from sightline.models.chat.retiring import AS_OF, RETIREMENTS

    ends = [f"{retirement.model} ({retirement.on:%d %B %Y})" for retirement in RETIREMENTS]
    return Check("models that end", True, f"announced by {AS_OF:%d %B %Y}: {', '.join(ends)}")
