# SPDX-License-Identifier: Apache-2.0
"""Processes that fail, die, hang or are started where nothing is installed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorbackend import BackendError, distributed
from tests.distributed.conftest import ROOT, command, environment

pytestmark = pytest.mark.slow

LIMIT = 10.0
"""Seconds within which all processes are to end when one has failed."""


def test_an_error_in_one_process_ends_all(launch: Callable) -> None:
    start = time.monotonic()
    done = launch(2, "if comm.rank == 1: raise ValueError('no such luck')\ncomm.allreduce(be.ones((2, 2)))")
    assert done.returncode != 0
    assert time.monotonic() - start < LIMIT + 10  # with the start of two interpreters
    assert done.stderr.startswith("rank 1 of 2 failed:\nTraceback (most recent call last):\n")
    assert done.stderr.count("ValueError: no such luck") == 1


def test_an_error_before_the_processes_have_met_ends_all(mpi: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nfrom tensorbackend import distributed\n"
                      "if sys.argv[1] != 'x' or os.environ['PMI_RANK'] == '1':\n    raise ValueError('no luck')\n"
                      "distributed.init('cpu').barrier()\n")  # fmt: skip
    line = command(2, str(script), "x")
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f'rank 1 of 2 failed:\nTraceback (most recent call last):\n  File "{script}", line 4')
    assert done.stderr.count("ValueError: no luck") == 1


def test_an_error_whose_words_are_no_text_ends_all_too(mpi: None, tmp_path: Path) -> None:
    """A name of a file that is no UTF-8 has such letters; the launcher was told nothing, and all waited for ever."""
    script = tmp_path / "script.py"
    script.write_text("import os\nfrom tensorbackend import distributed\n"
                      "if os.environ['PMI_RANK'] == '1':\n    raise ValueError(os.fsdecode(b'no\\xff'))\n"
                      "distributed.init('cpu').barrier()\n")  # fmt: skip
    done = subprocess.run(command(2, str(script)), env=environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("rank 1 of 2 failed:\nTraceback") and "no\\udcff" in done.stderr


@pytest.mark.ci
def test_another_starter_shows_the_error_too(mpi: None, tmp_path: Path) -> None:
    """There is nobody to give last words to: they go to the standard error, and MPI ends all."""
    script = tmp_path / "script.py"
    script.write_text("import time\nfrom tensorbackend import distributed\ncomm = distributed.init('cpu')\n"
                      "if comm.rank == 1:\n    raise ValueError('no luck')\ntime.sleep(600)\n")  # fmt: skip
    mpiexec = Path(sys.executable).with_name("mpiexec")
    line = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", "2", sys.executable, str(script)]
    assert subprocess.run(line, env=environment(), capture_output=True, timeout=60).returncode != 0


@pytest.mark.parametrize(
    ("last", "words"),
    [pytest.param("sys.exit(3)", "rank 1 of 2 failed:.*SystemExit: 3", marks=pytest.mark.ci),
     ("os.kill(os.getpid(), signal.SIGINT)", "rank 1 of 2 failed:.*KeyboardInterrupt"),
     ("os._exit(3)", "a process ended without a word; status 3"),
     pytest.param("import ctypes; ctypes.string_at(0)", "Segmentation fault.*in string_at", marks=pytest.mark.ci)],
)  # fmt: skip
def test_a_process_that_leaves_early_ends_all(launch: Callable, last: str, words: str) -> None:
    done = launch(2, f"if comm.rank == 1: {last}\ncomm.allreduce(be.ones((2, 2)))\nprint('past it')")
    assert done.returncode == 1
    assert re.search(words, done.stderr, re.DOTALL), done.stderr
    assert "past it" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("n", [1, 2])
def test_a_launcher_that_is_terminated_ends_all(mpi: None, tmp_path: Path, n: int, number: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, pathlib, time\npathlib.Path(f'{os.getpid()}.pid').touch()\ntime.sleep(60)\n")
    # A launcher goes on after SIGHUP where it was started to do so, and so would one that tests under nohup start.
    words = ["env", "--default-signal=HUP", *command(n, str(script))]
    launcher = subprocess.Popen(words, env=environment(), cwd=tmp_path, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("*.pid"))) < n and time.monotonic() < until:
        time.sleep(0.05)
    launcher.send_signal(number)
    assert launcher.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == n
    until = time.monotonic() + 10
    while (there := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    assert not there


@pytest.mark.ci
def test_a_script_finds_what_it_would_find_by_itself(launch: Callable, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("here = 5")
    text = "import beside, pickle\nclass Thing: pass\nassert __name__ == '__main__' and beside.here == 5\n"
    text += "assert sys.argv == [__file__]\nassert type(pickle.loads(pickle.dumps(Thing()))) is Thing\n"
    done = launch(2, text + "sys.stdout.write('to the end\\n')")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("to the end") == 2


def test_the_first_process_gets_the_standard_input_and_others_none(mpi: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.stdout.write(repr(sys.stdin.read()) + chr(10))")
    done = subprocess.run(command(2, str(script)), env=environment(), input="words", capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert sorted(done.stdout.split()) == ["''", "'words'"], done.stderr


def test_a_hang_is_cut_and_every_position_is_told(launch: Callable) -> None:
    start = time.monotonic()
    text = "def wait_for_ever():\n    time.sleep(600)\nif comm.rank == 1: wait_for_ever()\ncomm.barrier()\n"
    done = launch(2, text, "--timeout", "3")
    assert done.returncode != 0
    assert time.monotonic() - start < 3 + LIMIT + 10
    assert re.search(r"rank 0 of 2: \d s in barrier", done.stderr), done.stderr
    assert re.search(r"rank 1 of 2: \d s in its own work", done.stderr), done.stderr
    assert "in wait_for_ever" in done.stderr


@pytest.mark.ci
def test_a_killed_process_ends_the_others_and_the_checkpoint_resumes(mpi: None, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    state = tmp_path / "state.npz"
    line = command(2, str(ROOT / "examples" / "parallel_digits.py"), "--maps", "4", "--checkpoint", str(state))
    running = subprocess.Popen([*line, "--epochs", "100000"], env=environment(), cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    try:
        for text in running.stdout:
            if text.startswith("epoch 3"):
                break
        os.kill(_ranks(running.pid)[-1], signal.SIGKILL)
        start = time.monotonic()
        assert running.wait(timeout=LIMIT) != 0
        assert time.monotonic() - start < LIMIT
    finally:
        running.kill()
        running.stdout.close()
    epoch = int(distributed.load_checkpoint(state)["epoch"])
    assert epoch >= 3
    for n in (2, 1):
        epoch += 1
        line = command(n, str(ROOT / "examples" / "parallel_digits.py"), "--maps", "4", "--checkpoint", str(state))
        done = subprocess.run([*line, "--epochs", str(epoch)], env=environment(), cwd=tmp_path, text=True,
                              capture_output=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"epoch {epoch}" in done.stdout and done.stdout.count("epoch ") == 1


def _ranks(pid: int) -> list[int]:
    """The Python processes below one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _under(int(folder.name), pid):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == sys.executable.encode() and b"launch" not in words:
                found.append(int(folder.name))
    return sorted(found)


def _under(pid: int, top: int) -> bool:
    while pid > 1 and pid != top:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == top


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan"), "soon"])
def test_timeouts_that_are_none_are_refused(timeout: object) -> None:
    """0 ended all at once, infinity the thread that watches."""
    with pytest.raises(ValueError, match="distributed_timeout"):
        distributed.init("cpu", timeout=timeout)


def test_a_launch_without_mpi_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BackendError, match=r"pip install 'tensorbackend\[mpi\]'"):
        distributed.init("cpu")


def test_a_launch_with_mpi4py_and_no_mpi_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mpi4py's wheels look for an MPI when they are imported, and raise RuntimeError where there is none."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("")
    (tmp_path / "mpi4py/MPI.py").write_text(r'raise RuntimeError("cannot load MPI library\nlibmpi.so: no such file")')
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BackendError, match=r"no MPI for mpi4py \(cannot load MPI library\)\n.*\n.*pip install"):
        distributed.init("cpu")


@pytest.mark.parametrize(
    ("rest", "words"),
    [(["-n", "2", "nowhere.py"], "no file nowhere.py"),
     (["-n", "2", "--mpiexec", "no-such-starter", __file__], "pip install 'tensorbackend[mpi]'")],
)  # fmt: skip
def test_wrong_launches_are_refused(rest: list[str], words: str) -> None:
    line = [sys.executable, "-m", "tensorbackend", "launch", *rest]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert words in done.stderr
