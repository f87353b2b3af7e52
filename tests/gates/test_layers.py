"""Who may import whom, read from the source by `ast`: the one rule that keeps the rooms apart."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import octavo

ROOT = Path(octavo.__file__).parent

MAP = Path(__file__).parents[2] / "docs" / "architecture.md"
# What the modules at the root may import of Octavo. Of the rooms, "Rooms" in docs/architecture.md says it.
OF_MODULES: dict[str, set[str]] = {
    "types": {"params"},
    "params": {"errors", "grammar"},
    "grammar": {"errors", "schemas"},
    "schemas": {"errors"},
    "errors": set(),
    "averages": set(),
    "units": {"errors"},
    "setting": {"errors", "units"},
    "config": {"errors", "files", "setting", "tools", "units"},
    "fields": {"errors"},
    "database": set(),
    "files": {"database", "errors"},
    "helper_process": set(),
    "helper_worker": set(),
    "sse_reader": set(),
    "tenants": {"errors", "files", "memory", "params", "types", "units"},
}
# Rooms with native code, and those that name Octavo's version.
OF_ROOMS = {"_native": {"kernels", "model.files", "sampling", "serving", "bench", "cli"}}
OF_ROOMS |= {"__version__": {"serving", "server", "cli"}}


ROW = re.compile(r"^\| `([\w/]+)/` \|.*\| ([^|]*) \| [^|]* \|$", re.MULTILINE)  # the room, what it may import
GROUP = re.compile(r"^- \*([a-z ]+)\* are (.*?)[;.]", re.MULTILINE)


@cache
def groups() -> dict[str, set[str]]:
    """The names that stand for several rooms or modules, such as *values*."""
    return {name: set(re.findall(r"`(\w+)`", text)) for name, text in GROUP.findall(MAP.read_text())}


@cache
def allowed() -> dict[str, set[str]]:
    """What each room may import of Octavo besides itself. A room within a room comes before it: the first one
    that a module is in counts."""
    found = {module: set(names) for module, names in OF_MODULES.items()}
    for path, imports in ROW.findall(MAP.read_text()):
        room = path.replace("/", ".")
        names = groups()["values"] | set(re.findall(r"`([\w.]+)`", imports))
        names |= {name for name, rooms in OF_ROOMS.items() if room in rooms}
        found[room] = names.union(*(members for group, members in groups().items() if group in imports))
    return {
        f"octavo.{room}": {f"octavo.{name}" for name in found[room]}
        for room in sorted(found, key=lambda room: (-room.count("."), room))
    }


# Rooms that decide: no arrays, no clock, no thread, no socket. Time is an argument.
LEDGER = {f"octavo.{room}" for room in ("memory", "step", "retention", "scheduler", "speculation", "inspect")}
PURE = LEDGER | {"octavo.routing", "octavo.averages", "octavo.types", "octavo.errors", "octavo.units"}
IMPURE = {"numpy", "time", "threading", "asyncio", "socket", "concurrent", "multiprocessing", "datetime"}


@cache
def modules() -> dict[str, Path]:
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = ("octavo", *path.relative_to(ROOT).with_suffix("").parts)
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "octavo":
                found |= {f"octavo.{alias.name}" for alias in node.names}
    return found


def within(name: str, rooms: set[str]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def test_rooms_import_only_what_the_map_says() -> None:
    wrong, used = [], {room: set[str]() for room in allowed()}
    for module, path in modules().items():
        room = next((room for room in allowed() if within(module, {room})), None)
        if room is None:
            assert module in {"octavo", "octavo.__main__"}, f"{module} is in no row of the map"
            continue
        names = {name for name in imports_of(path) if within(name, {"octavo"}) and not within(name, {room})}
        used[room] |= names
        wrong += [
            f"{module} imports {name}" for name in names - {"octavo"} if not within(name, allowed()[room])
        ]
    assert wrong == []
    grouped = {f"octavo.{name}" for members in groups().values() for name in members}
    stale = [
        f"{room} does not import {name}"
        for room, names in allowed().items()
        for name in names - grouped
        if not any(within(one, {name}) for one in used[room])
    ]
    assert stale == [], "\n".join(stale)


def test_rooms_that_decide_know_no_array_clock_thread_or_socket() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if within(module, PURE)
        for name in imports_of(path)
        if name.split(".")[0] in IMPURE
    ]
    assert wrong == []


def test_nothing_unsafe_is_imported_anywhere() -> None:
    banned = {"pickle", "cPickle", "marshal", "shelve", "dill"}
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in imports_of(path)
        if name.split(".")[0] in banned
    ]
    assert wrong == []
    calls = [
        f"{module}: {node.func.id}()"
        for module, path in modules().items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}
    ]
    assert calls == []


def test_torch_is_imported_in_one_room_which_one_module_opens() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if not within(module, {"octavo.device"})
        for name in imports_of(path)
        if name.split(".")[0] in {"torch", "triton"}
        or (within(name, {"octavo.device"}) and module != "octavo.engine.backends")
    ]
    assert wrong == []


def test_dynamo_is_imported_in_one_room_that_none_opens() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if not within(module, {"octavo.dynamo"})
        for name in imports_of(path)
        if name.split(".")[0] == "dynamo" or within(name, {"octavo.dynamo"})
    ]
    assert wrong == []


def test_ray_is_imported_in_the_files_that_are_named_after_it() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if not module.startswith("octavo.cluster.ray_")
        for name in imports_of(path)
        if name.split(".")[0] == "ray"
    ]
    assert wrong == []


def test_the_whole_cpu_path_never_loads_torch() -> None:
    code = (
        "import sys, octavo, octavo.serving.start, octavo.api.llm, octavo.api.async_llm, "
        "octavo.server.app, octavo.server.run, octavo.cli.main, octavo.sim.driver; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_import_octavo_is_nearly_free() -> None:
    code = "import sys; before = set(sys.modules); import octavo; print(sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(ast.literal_eval(run.stdout))
    assert not {name for name in loaded if name.split(".")[0] in {"numpy", "starlette", "tokenizers", "rich"}}


def test_no_circle_of_imports_inside_a_room() -> None:
    """`TYPE_CHECKING` hides none: whoever reads one file of a circle must read all."""
    names = modules()
    graph = {module: {name for name in imports_of(path) if name in names} for module, path in names.items()}
    wrong = []
    for room in sorted({module.split(".")[1] for module in names if module.count(".") > 1}):
        inside = {m: graph[m] - {m} for m in graph if within(m, {f"octavo.{room}"})}
        free = True
        while free:  # files that import no other one of those that are left stand in no circle
            free = [module for module, imported in inside.items() if not imported & inside.keys()]
            for module in free:
                del inside[module]
        wrong += sorted(inside)
    assert wrong == []


def test_the_scheduler_is_handed_to_no_collaborator() -> None:
    """The engine owns it; what others need of it are leaves, or a view that is made of them."""
    wrong = []
    for module, path in modules().items():
        if not within(module, LEDGER):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.arg) and node.annotation is not None:
                if "Scheduler" in ast.unparse(node.annotation).replace("SchedulerConfig", ""):
                    wrong.append(f"{module}: {node.arg}")
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Scheduler":
                wrong.append(f"{module}: {ast.unparse(node.target)}")
    assert wrong == []
