# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines that start a server, and those that only look so."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils import processes
from ansible_collections.gpuops.sglang.plugins.module_utils.server_command import ServerCommand, server_command


@pytest.mark.parametrize(
    ("text", "flags", "serve", "from_path", "words"),
    [
        ("python -m sglang.launch_server --tp 2", (), False, True, ("--tp", "2")),
        ("/opt/a/bin/python3.12 -m sglang.launch_server", (), False, True, ()),
        ("../venv/bin/python3 -m sglang.launch_server", (), False, True, ()),
        ("python3.13t -um sglang.launch_server -x", ("-u",), False, True, ("-x",)),
        ("python -u -X dev -Wignore -msglang.launch_server", ("-u", "-Xdev", "-Wignore"), False, True, ()),
        ("python -I -m sglang.launch_server", ("-I",), False, False, ()),
        ("python -BP -m sglang.launch_server", ("-B", "-P"), False, False, ()),
        ("python -W I -m sglang.launch_server", ("-WI",), False, True, ()),
        ("python --check-hash-based-pycs never -m sglang.launch_server", (), False, True, ()),
        ("/v/bin/python /v/bin/sglang serve M --port 1", (), True, False, ("M", "--port", "1")),
        ("python sglang serve", (), True, False, ()),
        ("python3.11-dbg -m sglang.launch_server", (), False, True, ()),
        ("python -m sglang.cli.main serve M", (), True, True, ("M",)),
        ("python -m debugpy --listen 5678 -m sglang.launch_server -m", (), False, True, ("-m",)),
        ("python -O -m cProfile -o f -m sglang.launch_server --tp 2", ("-O",), False, True, ("--tp", "2")),
        ("python /v/bin/coverage run -m sglang.launch_server", (), False, True, ()),
        ("python sglang/launch_server.py", (), False, False, ()),
        ("python -O /v/sglang/launch_server.py --tp 2", ("-O",), False, False, ("--tp", "2")),
    ],
)
def test_a_server(text: str, flags: tuple[str, ...], serve: bool, from_path: bool, words: tuple[str, ...]) -> None:
    argv = text.split()
    assert server_command(argv) == ServerCommand(argv[0], flags, serve, from_path, words)


OTHERS = [
    "python my_sglang_proxy.py",
    "python my_sglang_proxy.py -m sglang.launch_server",
    "python -m my_sglang_proxy -m sglang.launch_server",
    "python -m sglang.launch_server_wrapper",
    "python -m sglang.bench_serving sglang serve",
    "python -c print() -m sglang.launch_server",
    "python -m",
    "python -mX sglang.launch_server",
    "python - -m sglang.launch_server",
    "python -m cProfile my_sglang_proxy.py",
    "python -m cProfile -m my_sglang_proxy -m sglang.launch_server",
    "python -m cProfile -m",
    "python -m sglang.cli.main generate",
    "python launch_server.py",
    "python",
    "python /v/bin/sglang generate M",
    "python /v/bin/sglang",
    "python /srv/launch_server.py",
    "vim sglang.log",
    "vim -m sglang.launch_server",
    "tail -f sglang serve",
    "tmux new-session -d python -m sglang.launch_server",
    "bash -c python -m sglang.launch_server",
    "timeout 60 python -m sglang.launch_server",
    "grep sglang serve",
    "pythonista -m sglang.launch_server",
    "sglang::scheduler",
]


@pytest.mark.parametrize("text", OTHERS)
def test_what_has_the_words_and_is_no_server(text: str) -> None:
    assert server_command(text.split()) is None
    assert server_command([text]) is None
    assert server_command([]) is None


def test_a_script_beside_it_and_another_name() -> None:
    for script in ("launch_server.py", "./launch_server.py"):
        assert server_command(["python", script], folder=lambda: "/x/sglang")
        assert server_command(["python", script], folder=lambda: "/x/other") is None
    one = server_command(["llm", "-m", "sglang.launch_server"], "/usr/bin/python3.11")
    assert one and one.python == "/usr/bin/python3.11"
    assert server_command(["llm", "-m", "sglang.launch_server"], "/usr/bin/vim") is None


def make(proc: Path, pid: int, parent: int, text: str, cgroup: str = "/") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (x) S {parent} {' '.join(map(str, range(5, 22)))} 0 23 24\n")
    (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in text.split()))
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


def test_the_servers_of_a_host(tmp_path: Path) -> None:
    server = "python -m sglang.launch_server --model-path m"
    make(tmp_path, 5, 1, server)
    make(tmp_path, 6, 5, server)  # forked
    make(tmp_path, 7, 1, "/v/bin/python /v/bin/sglang serve m")
    make(tmp_path, 8, 1, server, "/lxc/129/ns/init.scope")
    make(tmp_path, 9, 1, "llm -m sglang.launch_server")
    (tmp_path / "9/exe").symlink_to("/usr/bin/python3.11 (deleted)")
    make(tmp_path, 10, 1, "python launch_server.py")
    (tmp_path / "10/cwd").symlink_to("/x/sglang")
    for pid, text in enumerate(OTHERS, 20):
        make(tmp_path, pid, 1, text)
    (tmp_path / "self").mkdir()
    assert [one.pid for one in processes.servers(tmp_path)] == [5, 7, 9, 10]
    assert processes.with_descendants(5, tmp_path) == [5, 6]
    assert processes.command_of(7, tmp_path) == ["/v/bin/python", "/v/bin/sglang", "serve", "m"]
    assert (processes.command_of(99, tmp_path), processes.parent_of(99, tmp_path)) == ([], 0)


def test_an_empty_word_is_one(tmp_path: Path) -> None:
    make(tmp_path, 5, 1, "")
    (tmp_path / "5/cmdline").write_bytes(b"python\0-m\0sglang.launch_server\0--x\0\0")
    assert processes.command_of(5, tmp_path)[-2:] == ["--x", ""]
