# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each way into a container must do alike, as data: name -> what is asked and what comes back.

Text is str where Ansible takes str; a byte that is no UTF-8 is then a surrogate, as everywhere in Ansible.
"""

from __future__ import annotations

import os
import string
from dataclasses import dataclass

ALL = bytes(range(256))
ALL_BUT_NUL = os.fsdecode(ALL[1:])
MARK = "pct-0123456789abcdef"  # what the pct connection tells its own lines by, with other digits each time


@dataclass(frozen=True)
class Command:
    """A command as Ansible gives one to /bin/sh, and its result."""

    text: str
    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0
    stdin: bytes | None = None


def around(character: str) -> list[str]:
    """Words with a character in each place that a shell may treat apart."""
    return [character, character * 2, f"a{character}b", f"{character}a", f"a{character}", f" {character} "]


# The words of one command, which come back as they went in.
WORDS: dict[str, list[str]] = {
    **{f"punctuation {character}": around(character) for character in string.punctuation},
    "space": around(" "),
    "tab": around("\t"),
    "newline": around("\n"),
    "carriage return": around("\r"),
    "CR LF": around("\r\n"),
    "escape": around("\x1b[31m"),
    "backspace and delete": around("\b\x7f"),
    "end of input and interrupt": around("\x04\x03"),
    "control characters": [chr(code) for code in range(1, 32)],
    "newlines at the end": ["a\n", "a\n\n\n", "\n\n"],
    "no words": [],
    "one empty word": [""],
    "empty words between others": ["", "a", "", "", "b", ""],
    "options of shells": ["-n", "-e", "-c", "-x", "+e", "-", "--"],
    "long options": ["--help", "--version", "--", "--a=b"],
    "options of pct": ["--keep-env", "--keep-env=0", "-k", "-keep-env", "0"],
    "options of lxc-attach": ["--clear-env", "-n", "130", "-v", "A=B", "--", "-P", "/"],
    "options of ssh": ["-o", "ProxyCommand=false", "-tt", "-l", "nobody"],
    "options of perl": ["-e", "print 1", "-s", "-x"],
    "only --": ["--"],
    "variables": ["$HOME", "${HOME}", "$1", "$@", "$#", "$$", "$?", "$!", "$0", "${x:-y}", "$((1+1))"],
    "substitutions": ["$(id)", "`id`", "$(", "`", "<(id)", "$'\\n'", '$"a"'],
    "quotes": ["'", '"', "''", '""', "'\"'", '"\'"', "it's", 'say "hi"', "'\\''", "\\'", '\\"', "'a' 'b'"],
    "backslashes": ["\\", "\\\\", "\\\\\\", "a\\", "\\n", "\\\n", "\\ ", "\\$HOME"],
    "escapes of printf": ["\\n", "\\0101", "\\c", "\\0", "\\x41", "\\u20ac", "%s", "%d", "%", "%%", "%b"],
    "patterns that match files": ["*", "/*", "/etc/host*", "?", "[a-z]*", ".*", "~", "~root", "~/x"],
    "braces": ["{a,b}", "{1..3}", "{}", "{", "}"],
    "operators": ["&&", "||", ";", ";;", "|", "&", ">", ">>x", "2>&1", "<", "<<EOF", "(", ")", "!", "!!", "!-1"],
    "words of the shell": ["if", "then", "fi", "do", "done", "case", "esac", "{", "time", "exec", "exit", "return"],
    "comments": ["#", "# a", "a # b", "a#b", "#!/bin/sh"],
    "assignments": ["A=B", "PATH=", "=", "a=b c=d", "IFS=x"],
    "dots": [".", "..", "...", "a.", "a..", ". ", "./x", "-."],
    "templates": ["{{ a }}", "{% if %}", "{# a #}", "{{", "}}"],
    "umlauts and Chinese": ["größe", "模型", "naïve façade", "模型 a"],
    "composed and decomposed": ["\u00e9", "e\u0301"],
    "emoji": ["\U0001f680", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"],
    "right to left": ["שלום", "\u202eabc"],
    "spaces of Unicode": ["\u00a0", "\u2028", "\u2029", "\u0085", "\u200b", "\ufeff", "\u3000"],
    "ends of Unicode": ["\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff"],
    "bytes that are no UTF-8": [os.fsdecode(word) for word in (b"\xff", b"\xfe\xff", b"\x80", b"a\xc3", b"\xe6\xa8")],
    "overlong UTF-8": [os.fsdecode(word) for word in (b"\xc0\x80", b"\xc0\xaf", b"\xe0\x80\xaf")],
    "surrogates in UTF-8": [os.fsdecode(word) for word in (b"\xed\xa0\x80", b"\xed\xbf\xbf")],
    "Latin-1 beside UTF-8": [os.fsdecode("größe".encode("latin-1")), "größe"],
    "every byte in one word": [ALL_BUT_NUL],
    "every byte in its own word": list(ALL_BUT_NUL),
    "what the plugin itself prints": [f"{MARK}.node", f"{MARK}.started\n", f"\n{MARK}.255\n", "$0.started"],
    "a word of 4 KiB": ["x" * 4096],
    "a word of 100,000 bytes": ["x" * 100_000],
    "10,000 words": [str(number) for number in range(10_000)],
    "1,000 empty words": [""] * 1_000,
    "500 quotes": ["'" * 500, '"' * 500],
    "4,000 letters that are no ASCII": ["ß" * 4_000],
    "4,000 newlines": ["\n" * 4_000],
}

# The value of a variable that `environment:` of a task sets.
VALUES: dict[str, str] = {
    "empty": "",
    "a word": "word",
    "spaces": "  a  b  ",
    "a single quote": "it's",
    "double quotes": 'say "hi"',
    "newlines": "one\ntwo\n\n",
    "CR LF and tab": "\r\n\t",
    "a dollar": "$HOME $(id) `id` ${x}",
    "backslashes": "\\ \\\\ \\n \\0101 \\c",
    "an equals sign": "a=b=c",
    "a hash": "# a",
    "operators": "a;b&c|d>e<f(g)",
    "a pattern": "* ? [a] ~",
    "umlauts and Chinese": "größe 模型",
    "bytes that are no UTF-8": os.fsdecode(b"\xff\xfe\x80"),
    "every byte": ALL_BUT_NUL,
    "20,000 bytes": "v" * 20_000,
}

# The data that is sent to a command.
DATA: dict[str, bytes] = {
    "one byte": b"x",
    "one NUL": b"\0",
    "one newline": b"\n",
    "no newline at the end": b"a\nb",
    "every byte": ALL,
    "every byte as a line": b"\n".join(bytes([byte]) for byte in ALL),
    "the end of a terminal's input": b"a\n\x04b\x04\x04\x03\x1a",
    "the escapes of ssh": b"\n~.\n~?\n~C\n",
    "CR LF": b"a\r\nb\r\r\n",
    "no UTF-8": b"\xff\xfe\x80\xc3",
    "what the plugin itself prints": f"{MARK}.started\n{MARK}.255\n".encode(),
    "65,536 bytes, as many as a pipe holds": ALL * 256,
    "65,537 bytes": ALL * 256 + b"x",
    "one MiB": ALL * 4096,
}

COMMANDS: dict[str, Command] = {
    # -- the text itself
    "no text": Command(""),
    "only a comment": Command("# a"),
    "a comment at the end": Command("echo a # b", b"a\n"),
    "a newline at the end": Command("echo a\n", b"a\n"),
    "newlines at the start": Command("\n\n  echo a", b"a\n"),
    "lines": Command("echo a\necho b\n", b"a\nb\n"),
    "a line that goes on": Command("echo a \\\n  b", b"a b\n"),
    "a backslash at the end": Command("echo a\\", b"a\\\n"),
    "a dot at the end": Command("echo .", b".\n"),
    "a here document": Command("cat <<'EOF'\n$HOME 'a'\nEOF", b"$HOME 'a'\n"),
    "a function": Command("f() { echo $#; }; f a 'b c'", b"2\n"),
    "a loop": Command("for i in 1 2 3; do echo $i; done", b"1\n2\n3\n"),
    "a pipe": Command("echo a | tr a b", b"b\n"),
    "a subshell": Command("(exit 3); echo $?", b"3\n"),
    "a pattern": Command("cd /etc; echo host[n]ame", b"hostname\n"),
    "arithmetic": Command("echo $((0x10 + 1))", b"17\n"),
    "its own name": Command("echo $0 $#", b"/bin/sh 0\n"),
    "a text that is no ASCII": Command("größe", b"", "/bin/sh: 1: größe: not found\n".encode(), 127),
    "a text that is no UTF-8": Command(os.fsdecode(b"echo \xff'\xfe'"), b"\xff\xfe\n"),
    # -- where and as whom
    "user": Command("id -un; id -u; id -gn", b"root\n0\nroot\n"),
    "home": Command('pwd; echo "$HOME"; echo ~', b"/root\n/root\n/root\n"),
    "login": Command('echo "$USER $LOGNAME"', b"root root\n"),
    "search path": Command('echo "$PATH"', b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"),
    "no folder from before": Command('echo "${OLDPWD-none}"', b"none\n"),
    "umask": Command("umask", b"0022\n"),
    "no terminal": Command("tty", b"not a tty\n", code=1),
    "no signal ignored or blocked": Command("grep -E '^Sig(Ign|Blk)' /proc/self/status",
                                            b"SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"),
    "no open file more": Command("ls /proc/self/fd", b"0\n1\n2\n3\n"),  # 3 is ls's own
    "niceness": Command("nice", b"0\n"),
    # -- exit codes; all of them are in a test of their own
    "exit 1": Command("exit 1", code=1),
    "exit 2": Command("exit 2", code=2),
    "exit 3 after output": Command("echo out; echo err >&2; exit 3", b"out\n", b"err\n", 3),
    "exit 4": Command("exit 4", code=4),
    "exit 126": Command("exit 126", code=126),
    "exit 127": Command("exit 127", code=127),
    "exit 128": Command("exit 128", code=128),
    "exit 254": Command("exit 254", code=254),
    "exit 256 is 0": Command("exit 256"),
    "254 with what the plugin itself prints": Command(f"echo {MARK}.255; exit 254", f"{MARK}.255\n".encode(), code=254),
    "the code of the last command": Command("true; false", code=1),
    "the first failure": Command("set -e; echo a; false; echo b", b"a\n", code=1),
    "not found": Command("/nowhere/x", b"", b"/bin/sh: 1: /nowhere/x: not found\n", 127),
    "not executable": Command("/etc/hostname", b"", b"/bin/sh: 1: /etc/hostname: Permission denied\n", 126),
    "a syntax error": Command("echo 'a", b"", b"/bin/sh: 1: Syntax error: Unterminated quoted string\n", 2),
    "a variable that is not set": Command("set -u; echo $nothing", b"", b"/bin/sh: 1: nothing: parameter not set\n", 2),
    "an exit code with data": Command("cat; exit 9", b"data", code=9, stdin=b"data"),
    # -- signals; a command that is itself ended by one is in a test of its own
    **{f"a program ended by SIG{name}": Command(f"sh -c 'kill -{name} $$'; exit $?", b"", said, code)
       for name, code, said in (
        ("HUP", 129, b"Hangup\n"), ("INT", 130, b""), ("QUIT", 131, b"Quit\n"), ("ABRT", 134, b"Aborted\n"),
        ("KILL", 137, b"Killed\n"), ("USR1", 138, b"User defined signal 1\n"), ("SEGV", 139, b"Segmentation fault\n"),
        ("PIPE", 141, b""), ("ALRM", 142, b"Alarm clock\n"), ("TERM", 143, b"Terminated\n"),
    )},
    "a signal that is caught": Command("trap 'echo caught; exit 5' TERM; kill -TERM $$", b"caught\n", code=5),
    "a signal that is ignored": Command("trap '' INT; kill -INT $$; echo on", b"on\n"),
    "a reader that leaves": Command("(yes; echo $? >&2) | head -n 1", b"y\n", b"141\n"),
    "an end that is trapped": Command("trap 'echo bye' EXIT; exit 6", b"bye\n", code=6),
    # -- stdin
    "stdin is closed": Command("exec <&-; cat", b"",
                               b"cat: -: Bad file descriptor\ncat: closing standard input: Bad file descriptor\n", 1),
    "stdin is empty": Command("cat </dev/null; echo end", b"end\n"),
    "data that nobody reads": Command("echo a", b"a\n", stdin=b"data\n"),
    "data of which one line is read": Command("read a; echo $a", b"b\n", stdin=b"b\nc\nd\n"),
    "data read by two": Command("head -c 2; echo; cat", b"ab\ncd", stdin=b"abcd"),
    "a script as data": Command("sh", b"a\n", b"b\n", 7, b"echo a; echo b >&2; exit 7"),
    "a program as data": Command("python3", b"2\n", stdin=b"print(1 + 1)\n"),
    "stdin closed while 5 MB are sent": Command("exec <&-; sleep 0.1; echo done", b"done\n", stdin=bytes(5_000_000)),
    "10 bytes read of 5 MB": Command("head -c 10", bytes(10), stdin=bytes(5_000_000)),
    "stdin by its name": Command("cat /dev/stdin", b"data", stdin=b"data"),
    # -- stdout and stderr
    "nothing": Command(":"),
    "no newline at the end": Command("printf a; printf b >&2", b"a", b"b"),
    "only newlines": Command("echo; echo; echo >&2", b"\n\n", b"\n"),
    "only stderr": Command("echo a >&2", b"", b"a\n"),
    "NUL": Command("printf 'a\\000b'; printf '\\000' >&2", b"a\0b", b"\0"),
    "carriage returns": Command("printf 'a\\r\\nb\\rc\\r\\r\\n'", b"a\r\nb\rc\r\r\n"),
    "colours": Command("printf '\\033[31ma\\033[0m'", b"\x1b[31ma\x1b[0m"),
    "no UTF-8": Command("printf '\\377\\376'; printf '\\200' >&2", b"\xff\xfe", b"\x80"),
    "every byte on stdout": Command("cat", ALL, stdin=ALL),
    "every byte on stderr": Command("cat >&2", b"", ALL, stdin=ALL),
    "stdout is closed": Command("exec >&-; echo a >&2", b"", b"a\n"),
    "stderr is closed": Command("exec 2>&-; echo a", b"a\n"),
    "both are closed": Command("exec >&- 2>&-; exit 3", code=3),
    "stdout by its name": Command("echo a >/dev/stdout", b"a\n"),
    "stderr by its name": Command("echo a | tee /dev/stderr", b"a\n", b"a\n"),
    "a line of 300,000 bytes": Command("head -c 300000 /dev/zero | tr '\\0' x", b"x" * 300_000),
    "100,000 lines": Command("yes | head -n 100000", b"y\n" * 100_000),
    "both in turn": Command("for i in 1 2 3; do echo $i; echo $i >&2; done", b"1\n2\n3\n", b"1\n2\n3\n"),
    "the lines of the plugin": Command(f"printf '{MARK}.node\\n{MARK}.started\\n'; echo {MARK}.255 >&2",
                                       f"{MARK}.node\n{MARK}.started\n".encode(), f"{MARK}.255\n".encode()),
    # -- what a connection could take for a failure of its own
    **{f"the words: {text}": Command(f'echo "{text}" >&2; exit 1', b"", f"{text}\n".encode(), 1) for text in (
        "ssh: connect to host kpro5 port 22: Connection refused", "Permission denied (publickey).",
        "Connection closed by remote host", "kex_exchange_identification: Connection reset by peer",
        "container '129' not running!", "CT is locked (backup)", "lxc-attach: 129: Failed to exec",
        "sudo: a password is required", "ipcc_send_rec[1] failed", "python3: not found", "BECOME-SUCCESS-abc",
    )},
    # -- what still runs; a process that holds nothing is in a test of its own
    "a background process that still prints": Command("(sleep 0.2; echo late) & echo now", b"now\nlate\n"),
    "a background process that is waited for": Command("(exit 4) & wait $!", code=4),
}  # fmt: skip

# Commands that get a terminal, which is both stdout and stderr.
TERMINAL: dict[str, Command] = {
    "both outputs": Command("echo a; echo b >&2; printf c", b"a\r\nb\r\nc"),
    "carriage returns": Command("printf 'a\\r\\nb\\r'", b"a\r\r\nb\r"),
    "every terminal is one": Command("test -t 0 && test -t 1 && test -t 2; echo $?", b"0\r\n"),
    "an exit code": Command("exit 254", code=254),
}

# The name of a file that is written and read again.
NAMES: dict[str, str] = {
    "a space": "a b",
    "spaces around": " a ",
    "a single quote": "it's",
    "double quotes": 'say "hi"',
    "a leading dash": "-n",
    "two leading dashes": "--help",
    "a leading dot": ".hidden",
    "a tilde": "~root",
    "a dollar": "$HOME$(id)`id`",
    "a backslash": "a\\b\\n\\0101",
    "a pattern": "a*[b]?",
    "operators": "a;b&c|d>e<f(g)#h!",
    "a colon": "host:file",
    "a carriage return": "a\rb",
    "a tab": "a\tb",
    "a percent sign": "%s%d%%",
    "umlauts and Chinese": "größe 模型",
    "no UTF-8": os.fsdecode(b"\xff\xfe\x80"),
    "255 bytes": "n" * 255,
}
NAMES_FOR_PCT: dict[str, str] = {
    # Ansible's ssh gives sftp one command a line; what it tries next writes "a" and runs "b" in the container
    "a newline": "a\nb",
    "newlines at the end": "a\n\n",
    "a backslash at the end": "a\\",  # sftp takes it for one before the closing quote
}


@dataclass(frozen=True)
class Copy:
    """The file "source" is copied between a folder of the controller, here, and one of the container, there."""

    after: dict[str, str]  # name -> type, mode and owner, in the folder it was copied to
    there: str = ""  # commands in that folder before
    here: str = ""
    to: str = "file"


PUT: dict[str, Copy] = {
    "new, from 644": Copy({"file": "file 644 0:0"}),
    "new, from 600": Copy({"file": "file 600 0:0"}, here="chmod 600 source"),
    "new, from 400": Copy({"file": "file 400 0:0"}, here="chmod 400 source"),
    "new, from 755": Copy({"file": "file 755 0:0"}, here="chmod 755 source"),
    "new, less the umask": Copy({"file": "file 755 0:0"}, here="chmod 777 source"),
    "new, without the set-user-ID bit": Copy({"file": "file 755 0:0"}, here="chmod 4755 source"),
    "new, of the login's owner": Copy({"file": "file 644 0:0"}, here="chown 12:34 source"),
    "from a link": Copy({"file": "file 600 0:0"}, here="chmod 600 source; mv source it; ln -s it source"),
    "over another mode": Copy({"file": "file 604 0:0"}, "echo old >file; chmod 604 file"),
    "over no permission": Copy({"file": "file 0 0:0"}, "echo old >file; chmod 0 file"),
    "over another owner's": Copy({"file": "file 660 12:34"}, "echo old >file; chown 12:34 file; chmod 660 file"),
    "over a longer one": Copy({"file": "file 644 0:0"}, "head -c 99999 /dev/zero >file"),
    "through a link": Copy({"file": "link it", "it": "file 600 1:2"},
                           "echo old >it; chown 1:2 it; chmod 600 it; ln -s it file"),
    "through two links": Copy({"file": "link link", "link": "link it", "it": "file 644 0:0"},
                              "echo old >it; ln -s it link; ln -s link file"),
    "through a link to nothing": Copy({"file": "link it", "it": "file 600 0:0"}, "ln -s it file", "chmod 600 source"),
    "through a link to another folder": Copy({"dir": "folder 700 0:0", "file": "link dir/it", "dir/it": "file 644 0:0"},
                                             "mkdir -m 700 dir; ln -s dir/it file"),
    "in a folder behind a link": Copy({"dir": "folder 700 0:0", "link": "link dir", "dir/file": "file 644 0:0"},
                                      "mkdir -m 700 dir; ln -s dir link", to="link/file"),
    "in a folder that gives its group": Copy({"dir": "folder 2775 5:7", "dir/file": "file 644 0:7"},
                                             "mkdir dir; chown 5:7 dir; chmod 2775 dir", to="dir/file"),
}  # fmt: skip

FETCH: dict[str, Copy] = {
    "new, from 644": Copy({"file": "file 644 0:0"}),
    "new, from 600": Copy({"file": "file 600 0:0"}, "chmod 600 source"),
    "new, from 400": Copy({"file": "file 600 0:0"}, "chmod 400 source"),  # what is fetched can be fetched again
    "new, from 0": Copy({"file": "file 200 0:0"}, "chmod 0 source"),
    "new, from 755": Copy({"file": "file 755 0:0"}, "chmod 755 source"),
    "new, less the umask": Copy({"file": "file 755 0:0"}, "chmod 777 source"),
    "new, without the set-user-ID bit": Copy({"file": "file 755 0:0"}, "chmod 4755 source"),
    "from a link": Copy({"file": "file 600 0:0"}, "chmod 600 source; mv source it; ln -s it source"),
    "over another mode": Copy({"file": "file 640 0:0"}, "chmod 600 source", "echo old >file; chmod 640 file"),
    "over another owner's": Copy({"file": "file 660 12:34"}, here="echo old >file; chown 12:34 file; chmod 660 file"),
    "over a longer one": Copy({"file": "file 644 0:0"}, here="head -c 99999 /dev/zero >file"),
    "through a link": Copy({"file": "link it", "it": "file 600 1:2"},
                           here="echo old >it; chown 1:2 it; chmod 600 it; ln -s it file"),
    "through a link to nothing": Copy({"file": "link it", "it": "file 600 0:0"}, "chmod 600 source", "ln -s it file"),
}  # fmt: skip
