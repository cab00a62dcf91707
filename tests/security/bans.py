"""What no file of the package may do, each as a search through its syntax tree that yields what it found."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

Found = Iterator[tuple[int, str]]
Ban = Callable[[ast.Module], Found]

SERIALIZERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib", "yaml"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}
IMPORTERS = {
    "import_module",
    "__import__",
    "run_module",
    "run_path",
    "resolve_name",
    "spec_from_file_location",
    "locate",
}
SENDERS = {"text", "exec_driver_sql", "Statement", "DDL", "literal_column"}
FROZEN_OR_VOLATILE = re.compile(
    r"\b(now\s*\(|clock_timestamp|transaction_timestamp|current_timestamp|localtimestamp|timeofday\s*\()", re.I
)
CLOCKS = {
    "time": {"time", "time_ns", "localtime", "gmtime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def serializers(tree: ast.Module) -> Found:
    """Reading back with any of these runs what was written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if _root(alias.name) in SERIALIZERS)
        if isinstance(node, ast.ImportFrom) and _root(node.module or "") in SERIALIZERS:
            yield node.lineno, node.module or ""


def evaluators(tree: ast.Module) -> Found:
    """Code from text. `re.compile` and its like are methods, and not meant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in EVALUATORS:
            yield node.lineno, node.id


def importers(tree: ast.Module) -> Found:
    """A module by a name that is a value; all that imports by name is told apart by its file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in IMPORTERS:
            yield node.lineno, _called(node)


def new_classes(tree: ast.Module) -> Found:
    """Classes made from values, and exceptions found by name, with which an error could be built again."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and node.args[1:]:
            yield node.lineno, "type(...)"
        if isinstance(node, ast.Name) and node.id in ("builtins", "__builtins__"):
            yield node.lineno, node.id
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _called_name(node.value) == "globals":
            yield node.lineno, "globals()[...]"
        if isinstance(node, ast.Attribute) and node.attr in ("__subclasses__", "modules"):
            yield node.lineno, node.attr


def sql_at_call_time(tree: ast.Module) -> Found:
    """SQL put together within a function. At the level of a module there are no values yet."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _called(node) in SENDERS and node.args and _is_put_together(node.args[0]):
                yield node.lineno, ast.unparse(node)


def _is_put_together(sql: ast.expr) -> bool:
    if isinstance(sql, ast.Name):
        return not sql.id.isupper()
    return not isinstance(sql, ast.Constant)


def wrong_times_in_sql(tree: ast.Module) -> Found:
    """`now()` stands still in a transaction; `clock_timestamp()` is no index condition."""
    docs = {id(doc) for node in ast.walk(tree) if (doc := _docstring(node))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from _wrong_times(node.lineno, node.value)
        if isinstance(node, ast.Attribute) and _called_name(node.value) == "func":
            yield from _wrong_times(node.lineno, node.attr + "()")


def _wrong_times(line: int, text: str) -> Found:
    if FROZEN_OR_VOLATILE.search(re.sub(r"--.*|datetime\.now\(", "", text)):
        yield line, text[:60]


def our_clocks(tree: ast.Module) -> Found:
    """Only the database's clock counts; durations are measured by `time.monotonic`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS.get(_called_name(node.value), ()):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in CLOCKS["time"])


def _root(module: str) -> str:
    return module.partition(".")[0]


def _docstring(node: ast.AST) -> ast.Constant | None:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value
    return None


def _called(node: ast.Call) -> str:
    return _called_name(node.func)


def _called_name(node: ast.expr) -> str:
    """The last part of a dotted name, also of one that is called."""
    if isinstance(node, ast.Call):
        return _called_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
