# SPDX-License-Identifier: Apache-2.0
"""The command line: what each command prints, its exit status, and that its help names everything there is."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorbackend
from tensorbackend import __main__ as command_line
from tensorbackend.backends import disk_cache
from tensorbackend.commands import bench, cache, info

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> disk_cache.DiskCache:
    """A cache folder with a sound library and a damaged one, which the commands look at."""
    made = disk_cache.DiskCache(tmp_path / "cache")
    for key in ("aa" * 32, "bb" * 32):
        with made.workspace() as work:
            (work / "k.so").write_bytes(b"library")
            (work / "k.c").write_text(f"void tb_{key[:4]}(void) {{\n}}\n")
            made.put_source(key, work / "k.c")
            made.put([key], work / "k.so")
    (made.folder / f"{'bb' * 32}.so").write_bytes(b"cut")
    monkeypatch.setattr(disk_cache, "cache_for_reading", lambda: [made])
    return made


def refused(words: list[str], capsys: pytest.CaptureFixture, message: str) -> None:
    """Run a command line that is to end as wrong usage, with a message, and nothing else done."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(words)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "") and re.search(message, said.err)


def test_without_a_command_it_prints_its_help(capsys) -> None:
    assert command_line.main([]) == 2
    printed = capsys.readouterr().out
    assert all(name in printed for name in command_line.COMMANDS)


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_every_command_has_a_help_page(name, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main([name, "--help"])
    assert ended.value.code == 0
    assert name in capsys.readouterr().out


def test_an_unknown_command_names_those_there_are(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["inof"])
    assert ended.value.code == 2
    assert "info" in capsys.readouterr().err


def test_launch_takes_a_time_alone_as_its_timeout(capsys) -> None:
    for text in ("-1", "nan", "soon"):
        expected = f"'{text}' given, expected a number of seconds, more than 0"
        refused(["launch", "-n", "1", f"--timeout={text}", __file__], capsys, expected)


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tensorbackend", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, tensorbackend.__version__)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_is_told_in_a_line() -> None:
    words = [sys.executable, "-m", "tensorbackend", "cache", "size"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, "standard output: No space left on device\n")


# the conformance suite


@pytest.mark.parametrize("package", ["pytest", "hypothesis"])
def test_conformance_says_what_to_install(monkeypatch, package) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match="pip install pytest hypothesis"):
        runpy.run_module("tensorbackend.conformance", run_name="__main__")


# info


def test_info_names_versions_compiler_cache_and_settings(capsys) -> None:
    with tensorbackend.using(debug=3):
        assert command_line.main(["info"]) == 0
    printed = capsys.readouterr().out
    for text in (tensorbackend.__version__, np.__version__, "compiler", "folder", "TB_DEBUG", "cpu"):
        assert text in printed


def test_info_says_how_to_get_what_is_missing(monkeypatch, capsys) -> None:
    monkeypatch.setitem(info.LIBRARIES, "no_such_library", "nothing")
    monkeypatch.setattr(info.toolchain, "find_compiler", lambda: None)
    assert command_line.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "pip install no_such_library" in printed
    assert "apt-get install gcc" in printed


def test_info_survives_a_driver_that_cannot_be_imported(monkeypatch, tmp_path, capsys) -> None:
    (tmp_path / "cupy.py").write_text("raise RuntimeError('no device')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert command_line.main(["info"]) == 0
    assert "cannot be imported: no device" in capsys.readouterr().out


# cache


def test_cache_size_and_list(folder, capsys) -> None:
    assert command_line.main(["cache"]) == 0
    assert "2 kernels" in capsys.readouterr().out
    assert command_line.main(["cache", "list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[-1] for line in printed) == ["tb_aaaa", "tb_bbbb"]
    assert command_line.main(["cache", "list", "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_cache_verify_finds_the_damaged_one(folder, capsys) -> None:
    assert command_line.main(["cache", "verify"]) == 1
    assert capsys.readouterr().out.count("damaged") == 1
    (folder.folder / f"{'bb' * 32}.so").unlink()
    assert command_line.main(["cache", "verify"]) == 0


def test_cache_clear_leaves_an_empty_folder_that_works(folder, capsys) -> None:
    assert command_line.main(["cache", "clear"]) == 0
    assert "removed 2 kernels" in capsys.readouterr().out
    assert folder.entries() == []
    with folder.workspace() as work:
        (work / "k.so").write_bytes(b"library")
        folder.put(["cc" * 32], work / "k.so")
    assert [entry.key for entry in folder.entries()] == ["cc" * 32]


@pytest.mark.parametrize(("action", "method"), [("clear", "clear"), ("verify", "damaged")])
def test_cache_says_which_file_its_rights_keep(folder, monkeypatch, capsys, action, method) -> None:
    def refused(self) -> None:
        raise PermissionError(13, "Permission denied", str(self.folder / "plans"))

    monkeypatch.setattr(disk_cache.DiskCache, method, refused)
    assert command_line.main(["cache", action]) == 1
    assert capsys.readouterr().err == f"{folder.folder / 'plans'}: Permission denied\n"


@pytest.mark.parametrize("words", [["cache", "list"], ["explain", __file__]])
def test_no_fewer_than_none_are_shown(capsys, words) -> None:
    refused([*words, "-n", "-1"], capsys, "-1 given, expected 0 or more")


@pytest.mark.parametrize("number", ["0", "-2", "many"])
def test_launch_starts_one_process_or_more(capsys, number) -> None:
    refused(["launch", "-n", number, __file__], capsys, f"argument -n: '?{number}'? given, expected 1 or more")


def test_cache_without_a_folder_is_a_failure(monkeypatch, capsys) -> None:
    monkeypatch.setattr(disk_cache, "cache_for_reading", lambda: [])
    assert command_line.main(["cache", "size"]) == 1
    assert "TB_CACHE" in capsys.readouterr().err


def test_sizes_read_well() -> None:
    assert [cache.size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == [
        "0 bytes", "1023 bytes", "1.5 KiB", "5.0 MiB", "3.0 GiB",
    ]  # fmt: skip


MODEL = """
import tensorbackend as tb
be = tb.gen_backend("cpu", jit=False)
x, y = be.ones((2, 3), name="x"), be.empty((2, 3))
loss = be.tanh(x) * 2
def step():
    y[:] = x + 1
def grow(by):
    y[:] = x * by
program = be.capture(lambda a: be.evaluate(be.exp(a)), x)
"""


@pytest.mark.parametrize("expression, kernel", [
    ("loss", "ew_tanh_mul_f32"), ("step", "ew_add_f32"), ("step()", "ew_add_f32"), ("be.exp(x)", "ew_exp_f32"),
    ("program(x)", "ew_exp_f32"),
])  # fmt: skip
def test_explain_takes_an_expression_of_a_file(capsys, tmp_path, expression, kernel) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    assert command_line.main(["explain", f"{tmp_path / 'model.py'}:{expression}"]) == 0
    assert kernel in capsys.readouterr().out


@pytest.mark.parametrize("expression, message", [
    ("nothing", "no name 'nothing'; the file has"), ("be.exp(", "never closed|EOF"), ("x", "expected an op-tree"),
    ("program", r"such as 'program\(x\)'"), ("grow", r"takes arguments.*'grow\(x\)'"), ("", "no expression after"),
])  # fmt: skip
def test_explain_says_what_is_wrong_with_an_expression(capsys, tmp_path, expression, message) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    assert command_line.main(["explain", f"{tmp_path / 'model.py'}:{expression}"]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_explain_says_that_its_page_cannot_be_written_before_anything_runs(capsys, tmp_path) -> None:
    (tmp_path / "says.py").write_text("print('it ran')")
    for page, message in ((tmp_path / "nowhere" / "page.html", "no folder .*nowhere"), (tmp_path, "is a folder")):
        refused(["explain", str(tmp_path / "says.py"), "--html", str(page)], capsys, f"argument --html: .*{message}")


def test_explain_shows_what_ran_before_ctrl_c(capsys, tmp_path, caplog) -> None:
    (tmp_path / "endless.py").write_text(f"{MODEL}\nbe.evaluate(be.tanh(x))\nraise KeyboardInterrupt\n")
    assert command_line.main(["explain", str(tmp_path / "endless.py")]) == 0
    assert "tanh(x)" in capsys.readouterr().out and "endless.py: interrupted" in caplog.text


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch, capsys) -> None:
    def run(options: object) -> Iterator[str]:
        yield "half of it"
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", run)
    assert command_line.main(["info"]) == 130
    assert capsys.readouterr() == ("half of it\n", "interrupted\n")


# bench


NO_FAMILIES = {"compare", "cores", "distributed", "scaling"}
"""Scripts of the benchmarks' folder that measure no rivals, so that they have other options."""


def test_bench_lists_every_script_that_compares(capsys) -> None:
    described = re.findall(r"python benchmarks/(\w+)\.py", (ROOT / "benchmarks" / "README.md").read_text("utf-8"))
    assert command_line.main(["bench", "--list"]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(set(described) - NO_FAMILIES)


def test_an_unknown_family_names_the_nearest(capsys) -> None:
    assert command_line.main(["bench", "elementwize"]) == 1
    assert "elementwise" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [["elementwise"], ["--report", "page.html"]], ids=["family", "report"])
def test_bench_says_that_families_are_in_the_checkout(monkeypatch, tmp_path, capsys, asked) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["bench", *asked]) == 1
    assert capsys.readouterr().err.strip() == bench.NO_FAMILIES


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys) -> None:
    (tmp_path / "fails.py").write_text("import sys\nsys.exit('measured')")
    monkeypatch.setattr(bench, "families", lambda: {"fails": tmp_path / "fails.py"})
    for page, why in ((tmp_path / "nowhere" / "page.html", "no folder"), (tmp_path, "is a folder")):
        refused(["bench", "--report", str(page)], capsys, f"argument --report: .*{why}")


def test_bench_says_which_backends_there_are(capsys) -> None:
    assert command_line.main(["bench", "--backend", "cpu:fast"]) == 1
    assert "'cpu'" in capsys.readouterr().err
    refused(["bench", "--backend", "nothing", "--report", "page.html"], capsys, "'nothing' given, expected one of cpu")


@pytest.mark.parametrize("option", ["--threads=0", "--threads=x", "--json=/nowhere/x.json"])
def test_bench_refuses_by_its_own_options(capsys, option) -> None:
    refused(["bench", option], capsys, f"tensorbackend bench: error: argument {option.partition('=')[0]}: ")


def test_what_follows_a_family_goes_to_its_script(monkeypatch, tmp_path) -> None:
    (tmp_path / "echo.py").write_text("import sys\nsys.exit(sys.argv[1:] != ['--quick', '--only', 'x'])")
    monkeypatch.setattr(bench, "families", lambda: {"echo": tmp_path / "echo.py"})
    assert command_line.main(["bench", "echo", "--quick", "--only", "x"]) == 0
    assert command_line.main(["bench", "echo", "--slow"]) == 1


def test_options_before_a_family_go_to_its_script(monkeypatch, tmp_path) -> None:
    wanted = ["--backend=cpu", "--threads=2", "--json=x.json", "--quick"]
    (tmp_path / "echo.py").write_text(f"import sys\nsys.exit(sys.argv[1:] != {wanted})")
    monkeypatch.setattr(bench, "families", lambda: {"echo": tmp_path / "echo.py"})
    words = ["--quick", "--backend", "cpu", "--threads", "2", "--json", "x.json"]
    assert command_line.main(["bench", *words, "echo"]) == 0
    assert command_line.main(["bench", *words[1:], "echo", "--quick"]) == 0


def test_the_built_in_set_is_right_on_the_interpreter() -> None:
    be = tensorbackend.Backend.allocate_backend("cpu", jit=False)
    for case in list(bench.cases(be)):
        contenders = [make() for make in case.makers.values()]
        for contender in contenders:
            contender.call()
            np.testing.assert_allclose(contender.result(), case.expected(), rtol=1e-4, atol=1e-4)
