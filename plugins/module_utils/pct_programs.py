# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that one command in a container consists of: Perl on the node (every Proxmox node has it), sh inside."""

from __future__ import annotations

import posixpath
import re
import secrets
import shlex

# Runs on the node as `perl -e ENTER MARK VMID ENTRY LOCKED INSIDE TEXT END WAY...`; WAY is the argv that leads inside.
# It asks what `pct exec` asks (is the container here, does it run) and what that leaves out (locked, frozen), each
# time, so nothing that it knew can be out of date. Then it stays beside the command: when whoever reads the output
# has gone (a pipe without a reader is ready to be read), or by a signal, END ends the command, which neither ssh, pct
# nor lxc-attach would do.
ENTER = r"""
use strict;
my ($mark, $vmid, $entry, $locked, $inside, $text, $end, @way) = @ARGV;
my $quick = $entry eq "quick";
$0 = "gpuops.sglang.pct $vmid";
$ENV{PATH} .= ":/usr/sbin:/usr/bin:/sbin:/bin";
sub refuse { print STDERR "@_\n"; exit 255 }
if ($> == 0) {
    if (open my $conf, "<", "/etc/pve/lxc/$vmid.conf") {
        while (<$conf>) {
            last if /^\[/;
            refuse("CT is locked ($1)") if /^lock:\s*(\S+)/ and $locked eq "refuse";
        }
    } elsif ($quick) {
        opendir my $nodes, "/etc/pve/nodes";  # glob would load a library, even where it is not reached
        my ($there) = grep { -e "/etc/pve/nodes/$_/lxc/$vmid.conf" } $nodes ? readdir $nodes : ();
        refuse("moved to $there") if $there;
        refuse("no /etc/pve") unless -d "/etc/pve";
        refuse("no cluster file system") unless -d "/etc/pve/lxc";
        refuse("Configuration file 'lxc/$vmid.conf' does not exist");
    }
    if (open my $info, "-|", "lxc-info", "-n", $vmid, "-spH") {
        my ($state, $init) = map { /(\w+)$/ } <$info>;
        $state //= "STOPPED";
        refuse("container is $state") if $state =~ /^FR/ or $quick && $state ne "RUNNING";
        # root of the container is another user, and who does not own a pipe can not open it as /dev/stdin
        if ($init and open my $map, "<", "/proc/$init/uid_map") {
            my ($root) = map { /^\s*0\s+(\d+)/ } <$map>;
            chown $root, -1, grep { -p $_ } *STDIN, *STDOUT, *STDERR if $root;
        }
    }
} elsif ($quick) {
    refuse("please run as root");
}
pipe my $wake, my $waker;
my $end_it;
$SIG{CHLD} = sub { syswrite $waker, "." };
$SIG{$_} = sub { $end_it = 1; syswrite $waker, "." } for qw(HUP INT TERM);
my $pid = fork // refuse("fork: $!");
if (!$pid) {
    exec { $way[0] } @way, "/bin/sh", "-c", $inside, $mark, $text;
    print STDERR "$way[0]: $!\n";
    exit 127;
}
my @outputs = grep { -p $_ } *STDOUT, *STDERR;
until ($end_it) {
    exit($? & 127 ? 128 + ($? & 127) : $? >> 8) if waitpid($pid, 1) == $pid;
    vec(my $watched = "", fileno $wake, 1) = 1;
    vec($watched, fileno $_, 1) = 1 for @outputs;
    next if select($watched, undef, undef, 1) < 1;
    sysread $wake, my $read, 99 if vec $watched, fileno $wake, 1;
    $end_it = 1 if grep { vec $watched, fileno $_, 1 } @outputs;
}
$SIG{CHLD} = "DEFAULT";
open STDIN, "<", "/dev/null";
open STDOUT, ">", "/dev/null";
open STDERR, ">", "/dev/null";
kill "TERM", $pid;
for (1 .. 5) {
    system { $way[0] } @way, "/bin/sh", "-c", $end, substr $mark, 4;
    last if waitpid($pid, 1) == $pid;
    sleep 1;
}
exit 255;
"""

# Runs in the container as `sh -c INSIDE MARK TEXT`, by entry. The marks tell what the command said from what pct or ssh
# said. pct hands in the node's environment and SIGPIPE ignored; with lxc-attach there is nothing to undo, and each
# program more would be felt. 255 is ssh's own exit code: it travels as 254 and a mark. One line, as END reads one.
_INSIDE = "; ".join((
    'echo "$0.started" >&2',
    'HOME=~root; cd "$HOME" 2>/dev/null || { HOME=/; cd /; }',
    "USER=root LOGNAME=root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "[ ! -t 1 ] || stty -onlcr <&1 2>/dev/null",  # the node's terminal makes CR LF too
    'text=$(printf %b. "$1")',
    "RUN; code=$?",
    "[ $code = 255 ] || exit $code",
    'echo "$0.255" >&2; exit 254',
))  # fmt: skip
INSIDE = {
    "quick": _INSIDE.replace("RUN", 'export HOME USER LOGNAME PATH; unset OLDPWD; /bin/sh -c "${text%.}"'),
    "strict": _INSIDE.replace(
        "RUN",
        'run=env; env --default-signal=PIPE true 2>/dev/null && run="env --default-signal=PIPE";'
        ' $run -i HOME="$HOME" USER=$USER LOGNAME=$LOGNAME PATH=$PATH TERM="${TERM:-linux}" container=lxc'
        ' /bin/sh -c "${text%.}"',
    ),
}

# Runs in the container as `sh -c END MARK-WITHOUT-ITS-PREFIX`, or it would find itself: ends the sh that carries the
# mark with all its descendants, first by SIGTERM, after 3 s by SIGKILL. They are stopped while they are looked for, or
# they could start more meanwhile. What has become a daemon is left alone.
END = r"""
all=
for dir in /proc/[0-9]*; do
    line=; read -r line <$dir/cmdline
    case $line in *"pct-$0"*) all="$all ${dir#/proc/} " ;; esac
done 2>/dev/null
grow() {
    kill -STOP $all 2>/dev/null
    more=yes
    while [ "$more" ]; do
        more=
        for dir in /proc/[0-9]*; do
            pid=${dir#/proc/}; line=; read -r line <$dir/stat
            set -- ${line##*) }
            case $all in *" $pid "*) ;; *" ${2:-none} "*) kill -STOP "$pid"; all="$all $pid "; more=yes ;; esac
        done 2>/dev/null
    done
}
alive() {
    for pid in $all; do
        line=; read -r line <"/proc/$pid/stat"
        case ${line##*) } in ""|Z*) ;; *) return 0 ;; esac
    done 2>/dev/null
    return 1
}
grow
for signal in TERM KILL; do
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        alive || exit 0
        [ $signal = TERM ] && [ $try != 1 ] || kill -$signal $all 2>/dev/null
        kill -CONT $all 2>/dev/null
        sleep 0.2 2>/dev/null || sleep 1
        grow
    done
done
exit 1
"""

# Both run in the container. The copy is written beside its place and counts when its size and sum are right,
# because a full disk may end a copy without an error. Like sftp, PUT follows a link and keeps the mode and owner of
# a file that is there; a new one gets {mode}, less the umask.
PUT = r"""to={path}
if [ -L "$to" ]; then
    to=$(readlink -f "$to" && echo .) || {{ echo "it is a link to nowhere" >&2; exit 1; }}; to=${{to%??}}
fi
if [ -d "$to" ]; then echo "it is a directory" >&2; exit 1; fi
if [ ! -d "${{to%/*}}/" ]; then echo "there is no directory ${{to%/*}}" >&2; exit 1; fi
part=${{to%/*}}/{part}; mask=$(umask); umask 077
if cat >"$part" && sum=$(cksum <"$part"); then
    if [ "${{sum#* }}" != {size} ]; then echo "${{sum#* }} of {size} bytes arrived" >&2
    elif [ "$sum" != "{sum}" ]; then echo "what arrived is not what was sent" >&2
    else
        mode=$(printf %o $((0{mode:o} & ~0$mask))); owner=
        if [ -e "$to" ]; then mode=$(stat -c %a "$to"); owner=$(stat -c %u:%g "$to"); fi
        if [ "$owner" ]; then chown $owner "$part"; fi && chmod $mode "$part" && mv -f "$part" "$to" && exit 0
    fi
fi
rm -f "$part"; exit 1"""
FETCH = r"""if [ -d {path} ]; then echo "it is a directory" >&2; exit 1; fi
mode=$(stat -Lc %a {path}) && sum=$(cksum <{path}) || exit
echo "mode, sum: $mode $sum" >&2; head -c ${{sum#* }} <{path}"""  # no more than was summed: a log grows meanwhile


def escaped(text: str) -> str:
    """`text` for `printf %b`, in ASCII: pct decodes arguments by the node's locale, which spoils anything else.

    Two backslashes in a row would be one to fish, if that is the login shell of the node.
    """
    raw = text.encode(errors="surrogateescape")
    return re.sub(rb"[\x80-\xff\\]", lambda byte: b"\\0%03o" % byte.group()[0], raw).decode("ascii")


def put_script(path: str, sum_: str, mode: int = 0o644) -> str:
    """A script that makes `path` of its stdin, whole or not at all; `sum_` is what cksum says of stdin."""
    part = f".gpuops-{secrets.token_hex(8)}"
    return PUT.format(path=shlex.quote(_anchored(path)), part=part, size=sum_.split()[1], sum=sum_, mode=mode)


def fetch_script(path: str) -> str:
    """A script that writes `path` to stdout, and its mode and what cksum says to stderr, see `sent`."""
    return FETCH.format(path=shlex.quote(_anchored(path)))


def sent(stderr: bytes) -> tuple[int, int, str]:
    """The mode and size of the file of `fetch_script`, -1 if it did not say, and what cksum says of what was sent."""
    said = re.search(rb"^mode, sum: (\d+) (\d+ (\d+))", stderr, re.MULTILINE)
    return (int(said.group(1), 8), int(said.group(3)), said.group(2).decode()) if said else (0, -1, "")


def _anchored(path: str) -> str:
    """`path` with a folder before its name, so that it can not be taken for an option."""
    return path if posixpath.isabs(path) else f"./{path}"
