# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Tasks: what Proxmox runs in a worker process of its own session.
#
# Everything that a task prints, on stdout and stderr, ends on the caller's stdout; only its last error goes to stderr.
package PctStandin::Task;

use v5.36;

use Exporter qw(import);
use File::Path ();
use POSIX ();

our @EXPORT_OK = qw(last_task run_task task_end warn_in_task);

my $LOGS = '/var/log/pve/tasks';

my $warnings = 0;
my $last_task;

# Run `code` as a task; tell whether it succeeded. The log has its last line alone.
sub run_task ($code, $type = 'unknown', $id = '') {
    pipe my $reader, my $writer or die "unable to create pipe - $!\n";
    local $SIG{PIPE} = 'IGNORE';
    my $worker = fork // die "unable to fork worker - $!\n";
    if (!$worker) {
        close $reader;
        POSIX::setsid();
        $SIG{PIPE} = 'DEFAULT';
        $SIG{INT} = $SIG{QUIT} = $SIG{TERM} = sub ($) { die "received interrupt\n" };
        open STDERR, '>&', \*STDOUT;
        STDOUT->autoflush(1);
        STDERR->autoflush(1);
        my $error = eval { $code->(); 1 } ? '' : "$@";
        my $message = $error =~ s/\n+\z//r =~ s/\n/ /gr;
        $message ||= "Task finished with $warnings warning(s)!" if $warnings;
        print {$writer} "$message\n" if length $message;
        close $writer;
        POSIX::_exit($error eq '' ? 0 : 255);
    }
    close $writer;
    local $SIG{INT} = local $SIG{QUIT} = local $SIG{TERM} = sub ($) { kill 'TERM', -$worker };
    my $message = '';
    1 while sysread $reader, $message, 4096, length $message or $!{EINTR};
    1 while waitpid($worker, 0) < 0 && $!{EINTR};
    my $succeeded = $? == 0;
    print STDERR $message;
    chomp $message;
    my ($count) = $message =~ /^Task finished with (\d+) warning/;
    my $node = (POSIX::uname())[1] =~ s/\..*//r;
    $last_task = sprintf 'UPID:%s:%08X:%08X:%08X:%s:%s:root@pam:', $node, $worker, 0, time, $type, $id;
    File::Path::make_path($LOGS);
    if (open my $log, '>', "$LOGS/$last_task") {
        print $log $succeeded ? $count ? "TASK WARNINGS: $count\n" : "TASK OK\n" : "TASK ERROR: $message\n";
    }
    return $succeeded;
}

# The UPID of the task that this process has run.
sub last_task () { return $last_task }

# The last line of a task's log, undef without such a task.
sub task_end ($upid) {
    return undef if $upid !~ /^UPID:[\w:@.-]+\z/ || !open my $log, '<', "$LOGS/$upid";
    my @lines = <$log>;
    chomp @lines;
    return $lines[-1];
}

sub warn_in_task ($text) {
    print STDERR "WARN: $text\n";
    $warnings++;
}

1;
