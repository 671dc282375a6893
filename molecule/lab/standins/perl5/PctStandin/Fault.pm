# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# How pct and pvesh fail: a text for stderr and the exit status that goes with it.
#
# The real ones die in Perl's way, and the status is then whatever errno happens to hold, or 255. So the same kind of
# failure can end in 2, 4 or 255; the values here are the measured ones.
package PctStandin::Fault;

use v5.36;

use Errno qw(ECONNREFUSED EINTR ENOENT);
use Exporter qw(import);
use overload '""' => sub ($self, @) { $self->{text} }, fallback => 1;

our @EXPORT_OK = qw(fail fail_not_found fail_refused fail_lock fail_arguments);

# an unrelated errno of 0
sub fail ($text) { throw(255, $text) }

# the last system call looked for a file that is not there
sub fail_not_found ($text) { throw(ENOENT, $text) }

# nobody listened at a socket
sub fail_refused ($text) { throw(ECONNREFUSED, $text) }

# the wait for a lock was interrupted by the alarm
sub fail_lock ($text) { throw(EINTR, $text) }

# wrong arguments; {errors} are listed below the text, and the caller adds the usage line
sub fail_arguments ($text, $errors = {}) {
    throw(ENOENT, join('', "400 $text\n", map {"$_: $errors->{$_}\n"} sort keys %$errors), arguments => 1);
}

sub throw ($status, $text, %more) {
    $text .= "\n" if $text !~ /\n\z/;
    die bless { status => $status, text => $text, %more }, __PACKAGE__;
}

1;
