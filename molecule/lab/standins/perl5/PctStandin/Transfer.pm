# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# `pct push` and `pct pull`: a task that joins the container's namespaces and copies.
#
# Faithful to the real one in its faults: the copy's result is not looked at, so a full disk leaves a truncated file
# and no message, and the caller exits 0 whatever the task says.
package PctStandin::Transfer;

use v5.36;

use Exporter qw(import);
use Fcntl qw(O_CREAT O_EXCL O_RDONLY O_TRUNC O_WRONLY);
use POSIX ();

our @EXPORT_OK = qw(pull push_file);

my %SETNS = (x86_64 => 308, aarch64 => 268, riscv64 => 268);
my $CLONE_NEWNS = 0x00020000;
my $CLONE_NEWUSER = 0x10000000;

sub push_file ($pid, $unprivileged, $source, $target, $how) {
    sysopen my $from, $source, O_RDONLY or die "failed to open $source for reading\n";
    join_namespaces($pid, $unprivileged);
    copy($from, create_file($target, $how));
}

sub pull ($pid, $source, $target, $how) {
    my $to = create_file($target, $how);
    join_namespaces($pid, 0);
    open my $from, '<', $source or die "failed to open $source: $!\n";
    copy($from, $to);
}

sub join_namespaces ($pid, $unprivileged) {
    sysopen my $mounts, "/proc/$pid/ns/mnt", O_RDONLY or die "failed to open the container's mount namespace\n";
    my $users;
    if ($unprivileged) {
        sysopen $users, "/proc/$pid/ns/user", O_RDONLY or die "failed to open the container's user namespace\n";
    }
    setns($mounts, $CLONE_NEWNS) or die "failed to enter the container's mount namespace\n";
    chdir '/' or die "failed to change to container root directory\n";
    if ($unprivileged) {
        setns($users, $CLONE_NEWUSER) or die "failed to enter the container's user namespace\n";
        POSIX::setgid(0) or die "setgid failed: $!\n";
        POSIX::setuid(0) or die "setuid failed: $!\n";
    }
}

sub setns ($file, $kind) {
    my $machine = (POSIX::uname())[4];
    my $number = $SETNS{$machine} // die "setns is not known for $machine\n";
    return syscall($number, fileno $file, $kind) == 0;
}

# `how` is {perms, user, group}; the mode is not masked, and a file that exists keeps what is not asked for.
sub create_file ($path, $how) {
    my $uid = id_of($how->{user}, 'uid', sub ($name) { scalar getpwnam $name });
    my $gid = id_of($how->{group}, 'gid', sub ($name) { scalar getgrnam $name });
    my $mode = $how->{perms};
    if (defined $mode) {
        $mode = "0$mode" if $mode !~ /^0/;
        my ($number, $unparsed) = POSIX::strtoul($mode, 0);
        die "invalid mode: '$mode'\n" if $unparsed > 0;
        $mode = $number;
    }
    my $file;
    if (sysopen $file, $path, O_WRONLY | O_CREAT | O_EXCL, 0) {
        $mode //= 0666 & ~umask;
    } else {
        sysopen $file, $path, O_WRONLY | O_CREAT | O_TRUNC or die "failed to create file: $path: $!\n";
    }
    chmod $mode, $file if defined $mode;
    if (defined $uid || defined $gid) {
        my ($old_uid, $old_gid) = (stat $file)[4, 5];
        chown $uid // $old_uid, $gid // $old_gid, $file or die "failed to change file owner: $!\n";
    }
    return $file;
}

sub id_of ($name, $what, $look_up) {
    return $name if !defined $name || $name =~ /^\d+$/;
    return $look_up->($name) // die "failed to get $what for: $name\n";
}

sub copy ($from, $to) {
    while (sysread $from, my $buffer, 2 * 1024**2) {
        for (my $done = 0; $done < length $buffer;) {
            $done += syswrite($to, $buffer, length($buffer) - $done, $done) // return;
        }
    }
}

1;
