"""A process that has imported what a rank imports, and forks ranks that go on from there.

    python [options of the job's own interpreter] warm.py DESCRIPTOR TASK

It runs under the job's interpreter, where Medevac may not be installed: it needs nothing but the standard library. The
keeper is at the other end of the descriptor. Each of its orders comes with a descriptor of its own, over which the new
rank says its pid and waits for leave to go on; when that one closes, the rank is gone.

What is imported is what stands at the top of the script, and what optimizers would import later by themselves. A module
that asks for a variable of one rank or attempt while it is imported is left to the ranks, since all of them would get
the same answer. Where a fork would not be as good as a start (CUDA is initialised, a thread runs) it refuses to work.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import fnmatch
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

ROOM = "MEDEVAC_WARM_ROOM"
"""A variable whose value is overwritten with the variables of the rank: /proc/<pid>/environ, by which an attempt's
processes are found, holds what a process was started with."""

OWN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    *("MEDEVAC_*", "TORCHELASTIC_*", "GROUP_*", "ROLE_*"),
)
"""Variables that differ from rank to rank, or from attempt to attempt."""

LATER = {"torch": ("torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.tensor")}
"""What a training imports after its first lines: the first optimizer imports torch._dynamo."""

LAUNCHER = "medevac.torch.run"

WORKS, RESTS = 0.02, 0.04
"""Seconds of work, and of rest after each while it imports: the training beside it has the cores. A nice value would
do, but cannot be taken back without a privilege."""

_PARENT_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BIGGEST = 1 << 18


def is_own(name: str) -> bool:
    """Whether a variable belongs to one rank or attempt."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in OWN)


class Watched(os._Environ):  # type: ignore[type-arg] # noqa: SLF001 - os.environ's own class, to be its stand-in
    """`os.environ` that remembers which variables of a rank were asked for."""

    asked: set[str] = set()

    def __getitem__(self, key: str) -> str:
        try:
            return str(super().__getitem__(key))
        except KeyError:  # what is there is the same for all: whoever copies the whole environment asks for nothing
            if is_own(key):
                Watched.asked.add(key)
            raise


def top_level_imports(source: str) -> list[tuple[str, str]]:
    """What a script imports unconditionally, in its order: module and name in it. Raises SyntaxError."""
    found: list[tuple[str, str]] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name.strip("*")) for alias in node.names]
    return [one for one in dict.fromkeys(found) if one[0] not in {"__future__", "__main__"}]


class Warm:
    """`task`: the job's `argv` behind the interpreter's options, `cwd`, more `imports`, modules to `leave`."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.argv: list[str] = task["argv"]
        self.refused = ""
        self._task = task
        self._draws: dict[str, Any] = {}
        self._files: dict[str, int] = {}

    def prepare(self, rests: float = RESTS) -> list[str]:
        """Import everything, slowly; `refused` says why this process is of no use. Returns the modules that should be
        left to the ranks and were not, for a process that starts over without them.
        """
        os.chdir(self._task["cwd"])
        self._look_like_the_job()
        os.environ.__class__ = Watched
        signal.signal(signal.SIGPROF, lambda *_: time.sleep(rests))
        signal.setitimer(signal.ITIMER_PROF, WORKS, WORKS)
        try:
            left = self._import_all()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            os.environ.__class__ = os._Environ  # noqa: SLF001 - as it was
        gc.collect()
        gc.freeze()
        self.refused = self.refused or unfit()
        return left

    def _look_like_the_job(self) -> None:
        """`sys.argv` and `sys.path` as the interpreter makes them for the script."""
        sys.argv = self.argv[1:] if self.argv[0] == "-m" else list(self.argv)
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = str(Path.cwd() if self.argv[0] == "-m" else Path(self.argv[0]).resolve().parent)

    def _import_all(self) -> list[str]:
        """Returns the modules that must be left to the ranks."""
        bring_in("numpy.random")
        drawn = draws()
        left = []
        for name, attribute in self._wanted():
            if any(f"{name}.".startswith(f"{other}.") for other in self._task["leave"]):
                continue
            Watched.asked.clear()
            bring_in(name, attribute)
            if Watched.asked:
                left.append(name)
        self._draws = {name: state for name, state in draws().items() if not same(state, drawn.get(name))}
        self._files = {path: changed for path in own_files() if (changed := modified(path))}
        return left

    def _wanted(self) -> list[tuple[str, str]]:
        try:
            found = [one for path in self._scripts() for one in top_level_imports(path.read_text(encoding="utf-8"))]
        except (OSError, ImportError, SyntaxError, ValueError) as problem:
            self.refused = f"{self.argv[0]} cannot be read: {problem}"
            return []
        found += [tuple(one) for one in self._task["imports"]]
        tops = {name.partition(".")[0] for name, _ in found}
        return [*found, *((more, "") for top, later in LATER.items() if top in tops for more in later)]

    def _scripts(self) -> list[Path]:
        """What is run: the script, or the module and, for a launcher of ranks, the script among its arguments."""
        if self.argv[0] != "-m":
            return [Path(self.argv[0])]
        spec = importlib.util.find_spec(self.argv[1])
        module = Path(spec.origin if spec and spec.origin else self.argv[1])
        theirs = next((Path(word) for word in self.argv[2:] if word.endswith(".py")), None)
        return [module, theirs] if theirs and self.argv[1] == LAUNCHER else [module]

    def serve(self, link: socket.socket) -> dict[str, Any] | None:
        """Fork a rank for each order. Returns in the rank, with its order; None when no more orders come."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(link, _BIGGEST, 1)
            if not data:
                return None
            order: dict[str, Any] = json.loads(data)
            with socket.socket(fileno=descriptors[0]) as keeper:
                stale = next((path for path, then in self._files.items() if modified(path) != then), "")
                if stale or self.refused:
                    with contextlib.suppress(OSError):
                        keeper.send(json.dumps({"problem": self.refused or f"{stale} has changed"}).encode())
                elif self._forked(keeper, order):
                    link.close()
                    self._draw_anew()
                    return order

    def _forked(self, keeper: socket.socket, order: dict[str, Any]) -> bool:
        """True in the new rank. It is an orphan at first, so that the keeper, a sub-reaper, becomes its parent."""
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return False
        if os.fork():
            os._exit(0)
        belong_to(order["keeper"])
        os.setsid() if order["session"] else os.setpgid(0, 0)
        if not leave_to_go_on(keeper):
            os._exit(128 + signal.SIGKILL)
        return True

    def _draw_anew(self) -> None:
        """Generators that nobody had seeded differ from process to process, those that somebody had do not."""
        if "random" in self._draws:
            random.setstate(self._draws["random"])
        if "numpy.random" not in self._draws and "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()

    def run(self, order: dict[str, Any]) -> None:
        """Become the rank: what `python script` does, from its first line on."""
        become(order)
        atexit.register(gc.unfreeze)  # or libraries complain of what was never collected
        entitle([sys.executable, *self.argv])
        if self.argv[0] == "-m":
            runpy.run_module(self.argv[1], run_name="__main__", alter_sys=True)
            return
        path = str(Path(self.argv[0]).absolute())
        main = types.ModuleType("__main__")
        main.__file__, main.__builtins__ = path, __builtins__  # type: ignore[attr-defined]
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        sys.modules["__main__"] = main
        sys.excepthook = functools.partial(_say_of, path)
        exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)  # noqa: S102 - the job's own script


def _say_of(path: str, kind: type[BaseException], problem: BaseException, trace: types.TracebackType | None) -> None:
    """The traceback from the script on, as the interpreter would have it."""
    found = trace
    while found and found.tb_frame.f_code.co_filename != path:
        found = found.tb_next
    sys.__excepthook__(kind, problem.with_traceback(found or trace), found or trace)


def bring_in(name: str, attribute: str = "") -> None:
    """Import it if that works. What fails here fails in the script, and is said there."""
    with contextlib.suppress(BaseException):  # a stranger's module may raise anything, SystemExit too
        found = importlib.import_module(name)
        if attribute and not hasattr(found, attribute):  # asking loads what a package loads lazily
            importlib.import_module(f"{name}.{attribute}")


def unfit() -> str:
    """Why a fork of this process would not be as good as a start; "" for none. A first fork ends OpenBLAS's threads."""
    pid = os.fork()
    if not pid:
        torch = sys.modules.get("torch")
        os._exit(int(bool(torch and torch.cuda._is_in_bad_fork())))  # noqa: SLF001 - what torch itself asks
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        return "CUDA was initialised by an import, and a fork cannot use it"
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names or len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - only their number
        return f"an import started a thread ({', '.join(names) or 'of a library'}), which a fork would not have"
    return ""


def draws() -> dict[str, Any]:
    """The state of generators that modules may have seeded while they were imported."""
    found: dict[str, Any] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        found["numpy.random"] = sys.modules["numpy.random"].get_state(legacy=False)
    return found


def same(one: Any, other: Any) -> bool:
    """Equality of generator states, arrays among them."""
    return repr(one) == repr(other)


def own_files() -> list[str]:
    """Source files of imported modules that are no installed ones: they may be edited while the job runs."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    installed = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
    return [path for path in paths if path and not path.startswith(installed) and path != __file__]


def modified(path: str) -> int:
    """When a file was changed last, 0 for none."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def leave_to_go_on(keeper: socket.socket) -> bool:
    """Say our pid and wait for leave; False where nobody waits for this rank any more."""
    try:
        keeper.send(json.dumps({"pid": os.getpid()}).encode())
        return bool(keeper.recv(1))
    except OSError:
        return False


def belong_to(keeper: int) -> None:
    """Be the keeper's child, and end when it ends."""
    deadline = time.monotonic() + _PARENT_SECONDS
    while os.getppid() != keeper and time.monotonic() < deadline:
        time.sleep(0.0005)
    die_with(keeper)


def die_with(parent: int) -> None:
    """Be killed when the parent dies; at once if it has died already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def become(order: dict[str, Any]) -> None:
    """Output, environment and signals of the rank."""
    for target, path in enumerate((os.devnull, order["out"], order["err"])):
        if path:
            flags = os.O_RDONLY if target == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            source = os.open(path, flags, 0o600)
            os.dup2(source, target)
            os.close(source)
    for number in (signal.SIGHUP, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    show({name: value for name, value in order["env"].items() if is_own(name)})
    os.environ.clear()
    os.environ.update(order["env"])


def show(variables: dict[str, str]) -> None:
    """Write variables over the room for them in /proc/self/environ, as many as it takes."""
    start, end = (int(field) for field in _stat()[47:49])  # env_start and env_end of proc(5), counted behind the name
    at = ctypes.string_at(start, end - start).find(f"\0{ROOM}=".encode()) + 1
    length = len(f"{ROOM}={os.environ.get(ROOM, '')}")
    if at == 0 or length <= len(ROOM) + 1:
        return
    text = b""
    for name, value in sorted(variables.items(), key=lambda one: not one[0].startswith("MEDEVAC_")):
        entry = f"{name}={value}".encode() + b"\0"
        text += entry if len(text) + len(entry) < length else b""
    ctypes.memmove(start + at, text.ljust(length, b"\0"), length)


def entitle(argv: list[str]) -> None:
    """Have the rank's own command in /proc/self/cmdline, which is as long as the one of the warm process."""
    start, end = (int(field) for field in _stat()[45:47])  # arg_start and arg_end
    text = b"".join(os.fsencode(word) + b"\0" for word in argv)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _stat() -> list[str]:
    return Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()


def main() -> None:
    """See the module."""
    link, inheritable = socket.socket(fileno=int(sys.argv[-2])), True
    os.set_inheritable(link.fileno(), inheritable)  # a start over keeps it
    task = json.loads(sys.argv[-1])
    die_with(task["keeper"])
    began = time.monotonic()
    warm = Warm(task)
    if left := warm.prepare():  # what has been imported cannot be taken back
        again = json.dumps({**task, "leave": [*task["leave"], *left]})
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], again])  # noqa: S606 - this very program
    os.set_inheritable(link.fileno(), not inheritable)
    told = {"refused": warm.refused, "modules": len(sys.modules), "seconds": time.monotonic() - began}
    link.send(json.dumps({**told, "left": task["leave"]}).encode())
    order = warm.serve(link)
    if order is not None:
        warm.run(order)


if __name__ == "__main__":
    main()
