"""The house stands as docs/architecture.md says: imports point down its layers, and its tree is the real one."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sightline.registry import BUILT_IN

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sightline"
TASKS = ROOT / "src" / "sightline_tasks"
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
TREES = {module: ast.parse(module.read_text()) for module in PACKAGE.rglob("*.py")}
BOTH = TREES | {module: ast.parse(module.read_text()) for module in TASKS.rglob("*.py")}


def layers() -> dict[str, int]:
    """Room -> its floor, 0 at the top, as the document's second block lists them."""
    listed = re.findall(r"```\n(.*?)```", DOCUMENT, flags=re.DOTALL)[1]
    return {room.strip(): floor for floor, line in enumerate(listed.strip().splitlines()) for room in line.split(",")}


def imports(module: Path) -> Iterator[str]:
    """Rooms of sightline that a module imports, wherever in it; those for type checking only are left out."""
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("sightline."):
                yield name.split(".")[1]


def room(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_down() -> None:
    floors = layers()
    modules = [m for m in PACKAGE.rglob("*.py") if room(m) not in ("__init__", "__main__")]
    arrows = [(module, target) for module in modules for target in imports(module) if target != room(module)]
    wrong = [(str(module), target) for module, target in arrows if floors[target] < floors[room(module)]]
    assert not wrong


def test_rooms_of_one_floor_do_not_go_in_circles() -> None:
    wanted = {(room(module), target) for module in PACKAGE.rglob("*.py") for target in imports(module)}
    both_ways = {(a, b) for a, b in wanted if a != b and (b, a) in wanted}
    assert not both_ways


def test_trainers_leave_checkpoints_and_reports_to_the_session() -> None:
    of_the_session = re.compile(r"sightline\.(runs\.checkpoints|reports)\b")
    for module, tree in TREES.items():
        if room(module) in ("control", "agents"):
            assert not of_the_session.search(ast.unparse(tree)), module


def test_the_tree_is_documented() -> None:
    rooms = {room(module) for module in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    tree = re.findall(r"```\n(.*?)```", DOCUMENT, flags=re.DOTALL)[0]
    documented = {name.removesuffix(".py").removesuffix("/") for name in re.findall(r"^  (\S+)", tree, re.MULTILINE)}
    assert rooms == documented


def packages(tree: ast.AST) -> set[str]:
    """Packages that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[0] for name in names}


def test_the_package_needs_nothing_beside_it() -> None:
    beside = {path.stem for folder in ("tools", "benchmarks", "tests") for path in (ROOT / folder).iterdir()}
    for module, tree in BOTH.items():
        assert not beside & packages(tree), module


def test_the_core_knows_our_tasks_by_entry_points_alone() -> None:
    """Neither an import nor the text of one, such as `"sightline_tasks.control.cartpole:TASK"`."""
    for module, tree in TREES.items():
        assert "sightline_tasks" not in packages(tree), module
        assert not [text for text in strings(tree) if re.match(r"sightline_tasks[.:]", text)], module


def references(node: ast.AST) -> Counter[str]:
    """Names by which a piece of code uses functions and classes: as they are, of a module, imported under another name,
    or in the text of an entry point (`"module:Name"`). An import by its own name is no use."""
    found: Counter[str] = Counter()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found[part.id] += 1
        elif isinstance(part, ast.Attribute):
            found[part.attr] += 1
        elif isinstance(part, ast.alias) and part.asname:
            found[part.name] += 1
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and re.fullmatch(r"[\w.]+:\w+", part.value):
            found[part.value.split(":")[1]] += 1
    return found


def test_everything_public_is_used() -> None:
    """Code that only tests, benchmarks or tools use belongs to them."""
    everywhere = sum((references(tree) for tree in BOTH.values()), Counter[str]())
    unused = set()
    for tree in BOTH.values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                is_command = any(re.search(r"\.(command|callback)\(", ast.unparse(one)) for one in node.decorator_list)
                if not is_command and everywhere[node.name] == references(node)[node.name]:
                    unused.add(node.name)
    assert not unused


def test_no_two_classes_share_a_name() -> None:
    names = Counter(node.name for tree in BOTH.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def strings(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def questions(node: ast.AST) -> tuple[set[str], set[str]]:
    """Classes, and names of kinds, that a piece of code tells apart."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]) | ast.MatchClass(cls=classes):
            return set(references(classes)), set()
        case ast.Compare():  # also `type(x) is X`
            is_about_kinds = re.search(r"\b(kind|provider)\b", ast.unparse(node))
            return set(references(node)), strings(node) if is_about_kinds else set()
        case ast.match_case():
            return set(), strings(node.pattern)
    return set(), set()


def test_nobody_asks_which_plugin_it_has() -> None:
    """The core asks what a plug-in needs and can do, so that those of others work like ours.

    Not meant are the roles of recipes (control, agent), the kinds of questions (compare, rate, score), environments,
    which are said by name, and learners, which are no plug-ins: DQN, SAC and `auto` are told apart in control/, all
    others come as `module.Class`.
    """
    of_classes: dict[str, set[Path]] = {}
    of_names: dict[str, set[Path]] = {}
    for kind, plugins in BUILT_IN.items():
        for name, target in plugins.items() if kind != "env" else ():
            module, _, block = target.partition(":")
            owner = PACKAGE.parent / f"{module.replace('.', '/')}.py"
            of_classes.setdefault(block, set()).add(owner)
            of_names.setdefault(name, set()).add(owner)
    wrong = []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            classes, names = questions(node)
            wrong += [
                f"{module.relative_to(ROOT)}: {one}" for one in classes if module not in of_classes.get(one, {module})
            ]
            wrong += [
                f"{module.relative_to(ROOT)}: '{one}'" for one in names if module not in of_names.get(one, {module})
            ]
    assert not wrong


def test_the_registry_is_the_only_table_of_plugins() -> None:
    tables = []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            texts = {item.value for item in items if isinstance(item, ast.Constant)}
            # What a server gives may be progress or success, which are kinds of rewards, too.
            if module not in (PACKAGE / "registry.py", PACKAGE / "rewards" / "servers" / "protocols.py"):
                tables += [
                    f"{module.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]
                    for kind, plugins in BUILT_IN.items()
                    if kind != "env" and len(texts & set(plugins)) > 1
                ]
    assert not tables


def test_heavy_libraries_are_not_needed_for_help() -> None:
    heavy = {"torch", "transformers", "open_clip", "matplotlib", "stable_baselines3", "gymnasium", "pydantic", "numpy"}
    bodies = [node for file in (PACKAGE / "cli").glob("*.py") for node in ast.parse(file.read_text()).body]
    at_import = [node for node in bodies if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name.split(".")[0] for node in at_import if isinstance(node, ast.Import) for alias in node.names}
    names |= {(node.module or "").split(".")[0] for node in at_import if isinstance(node, ast.ImportFrom)}
    assert not names & heavy
