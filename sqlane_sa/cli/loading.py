"""Finding the queue that `module:queue` names."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from types import ModuleType

from sqlane_sa.cli.options import Place
from sqlane_sa.cli.problems import VARIABLE, Problem
from sqlane_sa.queue import Queue

EXAMPLE = "app.jobs:queue"


def queue_at(path: str | None, place: Place) -> Queue:
    """The queue that `path` names; without one, one without definitions where the options say."""
    return named_queue(path, place) if path else place.queue()


def named_queue(path: str, place: Place) -> Queue:
    """The queue that `path` names; prefix and schema of the command line may only repeat its own. Raises `Problem`."""
    queue = load_queue(path)
    for option, given, own in (
        ("--prefix", place.prefix, queue.tables.prefix),
        ("--schema", place.schema, queue.tables.schema),
    ):
        if given is not None and given != own:
            raise Problem(
                f"{option} {given} contradicts {path}, which has {own!r}; leave the option out, or change the Queue()"
            )
    return queue


def load_queue(path: str) -> Queue:
    """Import the module, with the current folder on the path, and return its queue. Raises `Problem`."""
    module_name, attribute = _split(path)
    _add_current_folder()
    module = _imported(module_name)
    found: object = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Problem(f"the module {_named(module)} has no {attribute!r}; {_queues_in(module)}") from None
    if not isinstance(found, Queue):
        raise Problem(f"{path} is no Queue but {_kind(found)}; {_queues_in(module)}")
    return found


def _split(path: str) -> tuple[str, str]:
    module, colon, attribute = path.partition(":")
    if module.endswith(".py") or "/" in module or os.sep in module:
        dotted = module.removesuffix(".py").strip("./" + os.sep).replace(os.sep, ".").replace("/", ".")
        raise Problem(f"{module!r} is a path; name the module in Python's way: {dotted}:{attribute or 'queue'}")
    names = [*module.split("."), *attribute.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise Problem(f"{path!r} does not name a queue; write module:attribute, for example {EXAMPLE}")
    return module, attribute


def _add_current_folder() -> None:
    """In front, as for a script that lies here."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_or_holds(error.name, name):
            raise Problem(
                f"there is no module {error.name!r} in {os.getcwd()} or the installed packages; "
                "run the command in the folder that holds it"
            ) from error
        last_line = " ".join(traceback.format_exception_only(error)[-1].split())
        raise Problem(
            f"importing {name} failed at {_place(error)}: {last_line} ({VARIABLE}=1 shows the whole traceback)"
        ) from error


def _is_or_holds(missing: str | None, name: str) -> bool:
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _place(error: BaseException) -> str:
    """The last line of the user's own code; or of whatever code, when none was reached."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_relative(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    frames = [frame for frame in frames if frame.filename != importlib.__file__ and frame.filename != __file__]
    own = [frame for frame in frames if not frame.filename.startswith(_library_folders())]
    last = (own or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{_relative(last.filename)}:{last.lineno}"


def _library_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _relative(filename: str) -> str:
    return filename.removeprefix(os.getcwd() + os.sep)


def _named(module: ModuleType) -> str:
    """With its file: it may be another one of the same name."""
    return f"{module.__name__!r} ({_relative(str(getattr(module, '__file__', None) or 'a folder'))})"


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"


def _queues_in(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, Queue)]
    return f"did you mean {' or '.join(names)}?" if names else f"name a Queue(), for example {EXAMPLE}"
