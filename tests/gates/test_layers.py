"""Who may import whom, read from the source by `ast`: the one rule that keeps the rooms apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import octavo

ROOT = Path(octavo.__file__).parent

# What a room may import of Octavo besides itself. A room that is missing here may import nothing.
VALUES = {"octavo.types", "octavo.errors", "octavo.units", "octavo.params", "octavo.grammar"}
VALUES |= {"octavo.averages", "octavo.schemas"}
LEDGER = {"octavo.memory", "octavo.step", "octavo.retention", "octavo.scheduler", "octavo.inspect"}
LEDGER |= {"octavo.speculation"}
BYTES = {"octavo.executor", "octavo.kernels", "octavo.model", "octavo.sampling", "octavo.text"}
BYTES |= {"octavo.tools"}
ENGINE = {"octavo.engine", "octavo.conversations", "octavo.serving"} | BYTES
ALLOWED: dict[str, set[str]] = {
    "octavo.types": {"octavo.params"},
    "octavo.params": {"octavo.errors", "octavo.grammar"},
    "octavo.grammar": {"octavo.errors", "octavo.schemas"},
    "octavo.schemas": {"octavo.errors"},
    "octavo.errors": set(),
    "octavo.averages": set(),
    "octavo.units": {"octavo.errors"},
    "octavo.setting": {"octavo.errors", "octavo.units"},
    "octavo.config": {"octavo.errors", "octavo.files", "octavo.setting", "octavo.tools", "octavo.units"},
    "octavo.fields": {"octavo.errors"},
    "octavo.database": set(),
    "octavo.files": {"octavo.database", "octavo.errors"},
    "octavo.helper_process": set(),
    "octavo.helper_worker": set(),
    "octavo.sse_reader": set(),
    "octavo.tenants": VALUES | {"octavo.files", "octavo.memory"},
    "octavo.memory": VALUES,
    "octavo.step": VALUES | {"octavo.memory"},
    "octavo.retention": VALUES | {"octavo.memory", "octavo.step"},
    "octavo.speculation": {"octavo.averages", "octavo.step"},
    "octavo.scheduler": VALUES | {"octavo.memory", "octavo.step", "octavo.retention", "octavo.speculation"},
    "octavo.inspect": VALUES
    | {
        "octavo.routing.reports",
        "octavo.memory",
        "octavo.step",
        "octavo.retention",
        "octavo.scheduler",
        "octavo.speculation",
    },
    "octavo.kernels": VALUES | {"octavo._native"},
    # Rooms of a room stand before it: the first one that a module is in counts.
    "octavo.model.files": VALUES | {"octavo.fields", "octavo.kernels", "octavo._native"},
    "octavo.model.quantised": VALUES | {"octavo.fields", "octavo.kernels", "octavo.model.files"},
    "octavo.model.hub": VALUES | {"octavo.fields", "octavo.files", "octavo.model.files"},
    "octavo.model.families": VALUES
    | {"octavo.fields", "octavo.kernels", "octavo.model.rope", "octavo.model.spec"},
    "octavo.model": VALUES
    | {"octavo.fields", "octavo.files", "octavo.kernels", "octavo.text", "octavo._native"},
    "octavo.sampling": VALUES
    | {"octavo.helper_process", "octavo.helper_worker", "octavo.kernels", "octavo._native"},
    "octavo.tools": VALUES,
    "octavo.text": VALUES
    | {"octavo.fields", "octavo.helper_process", "octavo.helper_worker", "octavo.tools"},
    "octavo.executor": VALUES
    | {"octavo.database", "octavo.files", "octavo.kernels", "octavo.model", "octavo.sampling"},
    # The one room that knows torch and Triton; `octavo.engine.backends` opens it, and only on demand.
    "octavo.device": VALUES | {"octavo.executor", "octavo.kernels", "octavo.model", "octavo.sampling"},
    "octavo.sim": VALUES | LEDGER,
    # The one room that knows ZeroMQ, which one module of it imports, and only on demand.
    "octavo.kv_events": VALUES | {"octavo.config", "octavo.memory"},
    # Of memory it knows places and names, of a replica its reports.
    "octavo.routing": VALUES | {"octavo.memory.changes", "octavo.memory.names"},
    "octavo.conversations": VALUES
    | {"octavo.engine", "octavo.config", "octavo.database", "octavo.files", "octavo.inspect"}
    | {"octavo.retention", "octavo.routing.slots"},
    "octavo.engine": VALUES
    | LEDGER
    | BYTES
    | {"octavo.config", "octavo.database", "octavo.device", "octavo.files", "octavo.tenants"}
    | {"octavo.kv_events.identity", "octavo.routing.reports", "octavo._native"},
    # Puts an engine together, and is what programs and the server call of it.
    "octavo.serving": VALUES
    | LEDGER
    | BYTES
    | {"octavo.engine", "octavo.conversations", "octavo.config", "octavo.database", "octavo.files"}
    | {
        "octavo.kv_events",
        "octavo.setting",
        "octavo.__version__",
        "octavo.routing",
        "octavo.tenants",
        "octavo._native",
    },
    # What programs import; nothing below imports it, and the server is no client of it.
    "octavo.api": VALUES
    | {"octavo.engine", "octavo.conversations", "octavo.serving", "octavo.config", "octavo.setting"}
    | {"octavo.text", "octavo.tools"},
    "octavo.server": VALUES
    | {
        "octavo.kv_events.identity",
        "octavo.engine",
        "octavo.conversations",
        "octavo.serving",
        "octavo.config",
        "octavo.setting",
        "octavo.routing",
    }
    | {"octavo.tenants", "octavo.tools", "octavo.files"}
    | {"octavo.helper_process", "octavo.helper_worker", "octavo.__version__"},
    # Many servers as one; the files whose names begin with ray_ are the ones that import Ray.
    "octavo.cluster": VALUES
    | {"octavo.config", "octavo.engine", "octavo.files", "octavo.routing", "octavo.server", "octavo.serving"}
    | {"octavo.conversations", "octavo.memory.names", "octavo.sampling"}
    | {"octavo.model.hub", "octavo.setting", "octavo.text.named_templates"},
    "octavo.bench": VALUES
    | LEDGER
    | ENGINE
    | {"octavo.api", "octavo.config", "octavo.routing", "octavo.setting", "octavo.sim", "octavo.sse_reader"}
    | {"octavo._native"},
    "octavo.cli": VALUES
    | ENGINE
    | {"octavo.bench", "octavo.cluster", "octavo.config", "octavo.files", "octavo.server"}
    | {"octavo.setting", "octavo.tenants"}
    | {"octavo.api", "octavo.memory", "octavo.routing.slots", "octavo.sse_reader", "octavo._native"}
    | {"octavo.__version__"},
    # The one room that knows Dynamo, which one module of it imports; nothing opens it.
    "octavo.dynamo": VALUES
    | {"octavo.cli", "octavo.config", "octavo.engine", "octavo.model", "octavo.serving", "octavo.setting"}
    | {"octavo.tools"},
}
# Rooms that decide: no arrays, no clock, no thread, no socket. Time is an argument.
PURE = (*sorted(LEDGER), "octavo.routing", "octavo.averages", "octavo.types", "octavo.errors", "octavo.units")
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


def test_rooms_import_only_what_lies_below_them() -> None:
    wrong = []
    for module, path in modules().items():
        room = next((room for room in ALLOWED if within(module, {room})), None)
        if room is None:
            continue
        for name in imports_of(path):
            if within(name, {"octavo"}) and name != "octavo" and not within(name, ALLOWED[room] | {room}):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_rooms_that_decide_know_no_array_clock_thread_or_socket() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if within(module, set(PURE))
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
