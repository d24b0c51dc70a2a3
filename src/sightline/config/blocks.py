"""Recipe blocks of plug-ins: the interface of every reward, teacher, kind of feedback and algorithm.

The core never asks which plug-in it has before it; it asks what it needs, and what it can do. A block is the `kind: …`
part of a recipe, checked; `build` and its kin make the object that does the work from it, so runtime classes take plain
keyword arguments and know nothing of recipes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import PydanticCustomError, core_schema

from sightline import registry
from sightline.config.basics import Strict
from sightline.config.named_code import code_at, is_allowed, is_place
from sightline.errors import BadInput, nearest

B = TypeVar("B", bound=Strict)
Reach = tuple[str, str, str]
"""A key of the block, its value, and what that reaches: an address, a service, a folder elsewhere."""


class Plugin:
    """Annotation of a recipe's field that holds the block of a plug-in; `kind` in the document says of which, by its
    name or by `module:Class`.

    Args:
        kind: of plug-in.
        default: name of the plug-in where the document names none.
    """

    def __init__(self, kind: registry.Kind, default: str) -> None:
        self.kind = kind
        self.default = default

    def block(self, value: Any, base: type[Any] = Strict) -> type[Strict]:
        """The class of the block that a part of a document describes.

        Args:
            base: class of all blocks of this kind.

        Raises:
            BadInput: no plug-in has that name, its package cannot be imported, or it is no such block.
        """
        name = self.default
        if isinstance(value, dict):
            name = str(value.get("kind", self.default))
        # A plug-in's name may look like a place: names come first.
        if name in registry.BUILT_IN[self.kind] or name in registry.names(self.kind) or not is_place(name):
            block = registry.find(self.kind, name)
        else:
            block = _block_of_code(name)
        if not (isinstance(block, type) and issubclass(block, Strict)):
            usual = f"sl.{self.kind.capitalize()}Config"
            raise BadInput(f"the {self.kind} '{name}' is not a recipe block, a subclass of {usual}")
        if not issubclass(block, base):
            raise BadInput(f"'{name}' is no {self.kind}, whose blocks are subclasses of {base.__name__}")
        return block

    def make_default(self) -> Any:
        """The block where the document has none."""
        return self.block({})()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            functools.partial(self.check, base=source),
            serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True),
        )

    def knows(self, name: str) -> bool:
        """Whether there may be a block of that name: a plug-in, or code that is named by its place."""
        return name in registry.BUILT_IN[self.kind] or is_place(name) or name in registry.names(self.kind)

    def check(self, value: Any, base: type[Any] = Strict) -> Strict:
        """The checked block of a part of a document, or of a block that is one already.

        Args:
            value: the part, or the block.
            base: class of all blocks of this kind.

        Raises:
            ValueError: it is none; pydantic's errors are of this class too.
        """
        if isinstance(value, Strict):
            return value
        if not isinstance(value, dict):
            raise PydanticCustomError("unknown_plugin", "must be a map of keys and values")
        name = str(value.get("kind", self.default))
        if not self.knows(name):
            problem = unknown_kind(name, registry.names(self.kind))
            raise PydanticCustomError("unknown_plugin", "{problem}", {"problem": problem})
        try:
            block = self.block(value, base)
        except BadInput as error:
            raise ValueError(str(error)) from error
        return block.model_validate(value)


@dataclass(frozen=True)
class NameOf:
    """Annotation of a recipe's field that holds the name of a plug-in alone."""

    kind: registry.Kind


def plugins_of(block: BaseModel) -> Iterator[tuple[registry.Kind, str]]:
    """Kind and name of all that a checked recipe, or a block of it, names of plug-ins, wherever in it."""
    for name, field in type(block).model_fields.items():
        value = getattr(block, name)
        for part in field.metadata:
            if isinstance(part, Plugin):
                yield part.kind, value.kind
            elif isinstance(part, NameOf):
                yield part.kind, value
        inner = value if isinstance(value, list | tuple) else (value,)
        for member in inner:
            if isinstance(member, BaseModel):
                yield from plugins_of(member)


def _block_of_code(place: str) -> type[Strict]:
    """The block at `module:Class`, whose kind is that name: a block itself, or a class that gives one of its own.

    Raises:
        BadInput: it may not be imported, it cannot be, or it is no block.
    """
    if not is_allowed(place):
        raise BadInput(f"'{place}' is code of a stranger's recipe; add --trust to have it imported")
    return _imported_block(place)


@functools.cache
def _imported_block(place: str) -> type[Strict]:
    code = code_at(place)
    block = code
    make_block = getattr(code, "recipe_block", None)
    if isinstance(code, type) and make_block is not None:
        block = make_block()
    if not (isinstance(block, type) and issubclass(block, Strict)):
        raise BadInput(f"'{place}' is neither a subclass of sl.RewardModel nor a recipe block, as of sl.RewardConfig")
    # A block of its own, which states its place as its kind: a recipe that is written names it again.
    fields: Any = {"kind": (Literal[place], place)}
    return create_model(block.__name__, __base__=block, __module__=block.__module__, __doc__=block.__doc__, **fields)


def _dump(block: Strict, info: core_schema.SerializationInfo) -> dict[str, Any]:
    return block.model_dump(
        mode=info.mode,
        exclude_unset=info.exclude_unset,
        exclude_defaults=info.exclude_defaults,
        exclude_none=info.exclude_none,
    )


def unknown_kind(name: str, kinds: Sequence[str]) -> str:
    """Complaint about the name of a kind of block that there is not."""
    if name.endswith(".py"):
        return f"cannot be a file alone; say which class of it: {name[:80]}:CLASS"
    hint = nearest(name, kinds)
    if hint.startswith("; known"):  # the list of all, which is in the line already
        hint = ""
    return f"cannot be '{name[:80]}', only {', '.join(kinds)}{hint}"


def checked_block(block: type[B], fields: dict[str, Any]) -> B:
    """A block from plain keyword arguments.

    Raises:
        BadInput: in one line.
    """
    try:
        return block.model_validate(fields)
    except ValidationError as error:
        item = error.errors()[0]
        name = ".".join(map(str, item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            raise BadInput(f"{block.__name__} has no '{name}'{nearest(name, block.model_fields)}") from error
        if item["type"] == "union_tag_invalid":
            kinds = item["ctx"]["expected_tags"].replace("'", "").split(", ")
            message = unknown_kind(item["ctx"]["tag"], kinds)
        if name:
            message = f"{name}: {message}"
        raise BadInput(message) from error


@dataclass(frozen=True)
class RewardWording:
    """Wording of a reward in reports: the heading of its curve, and what its landscape shows."""

    reward: str = "Reward"
    landscape: str = "What the reward model likes"
    higher: str = "the reward is higher"
    good: str = "The reward is what you want"


@dataclass(frozen=True)
class ValueLoss:
    """Settings of the value loss: its weight, and the clip range of a value's change."""

    coefficient: float = 0.5
    clip: float | None = None


class AlgorithmBlock(Strict):
    """What the rest of a recipe may ask of its algorithm block, whichever that is.

    Algorithms subclass `sightline.agents.algorithms.base.AlgorithmConfig`, which can also compute advantages.
    """

    kind: str
    title: ClassVar[str] = ""
    """Name in reports; default: `kind`."""
    needs_values: ClassVar[bool] = False
    """True if the model must have a value head; the returns in `Advantages` are its targets."""

    @property
    def episodes_per_task(self) -> int:
        """Episodes with the same task seed: the key `group`, or 1 where episodes are not compared with each other."""
        return int(getattr(self, "group", 1))

    @property
    def value_loss(self) -> ValueLoss:
        """Settings of the value loss, asked for where the algorithm needs values."""
        return ValueLoss()

    def facts(self) -> dict[str, str]:
        """The block in a few words for a report: heading -> text."""
        facts = {"Algorithm": self.title or self.kind}
        if self.episodes_per_task > 1:
            facts["Group"] = str(self.episodes_per_task)
        return facts


Dtype = Literal["auto", "float32", "float16", "bfloat16"]
