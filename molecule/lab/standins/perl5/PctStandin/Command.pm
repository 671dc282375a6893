# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The sub-commands, from the command line to the exit status.
package PctStandin::Command;

use v5.36;

use Scalar::Util qw(blessed);

use PctStandin::Arguments qw(parse_arguments usage);
use PctStandin::Config qw(
    all_ids check_lock config_properties current encode_text load pending_deletions save set_values vmid_property
    with_lock
);
use PctStandin::Container qw(hotplug_device is_running pid start status stop write_lxc_config);
use PctStandin::Fault qw(fail fail_arguments fail_not_found);
use PctStandin::Program qw(complete connect_to_cluster run_program);
use PctStandin::Task qw(run_task);
use PctStandin::Transfer qw(pull push_file);

my $FLAG = { type => 'boolean', optional => 1 };
my $TEXT = { type => 'string' };
my $OPTIONAL_TEXT = { type => 'string', optional => 1 };
my $KEYS = { type => 'string', list => 1, optional => 1 };
my $SECONDS = { type => 'integer', minimum => 0, optional => 1 };
my $WORDS = { type => 'array', optional => 1 };
my $VMID = vmid_property();
my %OWNER = (user => $OPTIONAL_TEXT, group => $OPTIONAL_TEXT, perms => $OPTIONAL_TEXT);

# name => [positional parameters, properties, code]; code gets the parameters and may return the exit status
my %COMMANDS = (
    exec => [['vmid', 'extra-args'], { vmid => $VMID, 'keep-env' => $FLAG, 'extra-args' => $WORDS }, \&exec_in],
    enter => [['vmid'], { vmid => $VMID, 'keep-env' => $FLAG }, \&enter],
    status => [['vmid'], { vmid => $VMID, verbose => $FLAG }, \&show_status],
    list => [[], {}, \&list],
    config => [['vmid'], { vmid => $VMID, current => $FLAG, snapshot => $OPTIONAL_TEXT }, \&show_config],
    pending => [['vmid'], { vmid => $VMID }, \&show_pending],
    set => [
        ['vmid'],
        { config_properties()->%*, vmid => $VMID, delete => $KEYS, revert => $KEYS, digest => $OPTIONAL_TEXT },
        \&set,
    ],
    unlock => [['vmid'], { vmid => $VMID }, \&unlock],
    start => [['vmid'], { vmid => $VMID, skiplock => $FLAG, debug => $FLAG }, \&start_container],
    stop => [['vmid'], { vmid => $VMID, skiplock => $FLAG, 'overrule-shutdown' => $FLAG }, \&stop_container],
    shutdown => [['vmid'], { vmid => $VMID, timeout => $SECONDS, forceStop => $FLAG }, \&shutdown_container],
    reboot => [['vmid'], { vmid => $VMID, timeout => $SECONDS }, \&reboot_container],
    push => [
        ['vmid', 'file', 'destination'], { vmid => $VMID, file => $TEXT, destination => $TEXT, %OWNER }, \&push_into,
    ],
    pull => [
        ['vmid', 'path', 'destination'], { vmid => $VMID, path => $TEXT, destination => $TEXT, %OWNER }, \&pull_from,
    ],
    help => [['extra-args'], { 'extra-args' => $WORDS, verbose => $FLAG }, \&help],
);

# the rest of the real one's, which count when a name is abbreviated
my @LEFT_OUT = qw(
    clone console cpusets create delsnapshot destroy df fsck fstrim listsnapshot migrate mount move-volume
    remote-migrate rescan resize restore resume rollback snapshot suspend template unmount
);

sub main (@arguments) {
    run_program(sub { run(@arguments) });
}

sub run ($name = undef, @arguments) {
    return abort('no command specified') if !defined $name;
    connect_to_cluster();
    my ($command, @others) = complete_command($name);
    return abort(@others ? "incomplete command 'pct $name'" : "unknown command 'pct $name'") if !$command;
    fail("pct stand-in: '$command' is not reproduced in the lab") if !$COMMANDS{$command};

    my ($positional, $properties, $code) = $COMMANDS{$command}->@*;
    my $exit = eval { $code->(parse_arguments(\@arguments, $positional, $properties)) };
    if (my $fault = $@) {
        $fault->{text} .= usage($command, $positional, $properties)
            if blessed $fault && delete $fault->{arguments};
        die $fault;
    }
    return $exit;
}

sub complete_command ($name) { return complete($name, keys %COMMANDS, @LEFT_OUT) }

sub abort ($reason) {
    print STDERR "ERROR: $reason\n", summary();
    return 255;
}

sub summary () {
    return "USAGE: pct <COMMAND> [ARGS] [OPTIONS]\n\n",
        map { '       ' . usage($_, $COMMANDS{$_}->@[0, 1]) } sort keys %COMMANDS;
}

sub help ($given) {
    my ($name) = ($given->{'extra-args'} // [])->@*;
    if (!defined $name) {
        print summary();
        return 0;
    }
    my ($command) = complete_command($name);
    return abort("unknown command '$name'") if !$command || !$COMMANDS{$command};
    my ($positional, $properties) = $COMMANDS{$command}->@*;
    print 'USAGE: ', usage($command, $positional, $properties);
    print map {"  --$_ <$properties->{$_}{type}>\n"} sort keys %$properties;
    return 0;
}

# ---- commands and shells inside

sub exec_in ($given) {
    attach($given, sub {
        my @words = $given->{'extra-args'}->@*;
        fail('missing command at /usr/share/perl5/PVE/CLI/pct.pm line 246.') if !@words;
        return ('--', @words);
    });
}

sub enter ($given) {
    attach($given, sub { () });
}

# Become lxc-attach, so that exit status, stdin, stdout and stderr are its own.
sub attach ($given, $more) {
    my $vmid = $given->{vmid};
    load($vmid);
    fail("container '$vmid' not running!") if !is_running($vmid);
    my @words = $more->();
    delete @ENV{qw(SSL_CERT_FILE SSL_CERT_DIR)};
    exec 'lxc-attach', '-n', $vmid, $given->{'keep-env'} // 1 ? '--keep-env' : '--clear-env', @words;
}

# ---- what is there

sub show_status ($given) {
    my $status = status($given->{vmid}, load($given->{vmid}));
    if ($given->{verbose}) {
        print map {"$_: $status->{$_}\n"} grep { defined $status->{$_} } sort keys %$status;
    } else {
        print "status: $status->{status}\n";
    }
    return 0;
}

sub list ($given) {
    my @ids = all_ids() or return 0;
    my $format = "%-10s %-10s %-12s %-20s\n";
    printf $format, qw(VMID Status Lock Name);
    for my $vmid (@ids) {
        my $values = load($vmid)->{values};
        printf $format, $vmid, is_running($vmid) ? 'running' : 'stopped', $values->{lock} // '',
            $values->{hostname} || "CT$vmid";
    }
    return 0;
}

sub show_config ($given) {
    my $config = load($given->{vmid});
    fail("snapshot '$given->{snapshot}' does not exist") if defined $given->{snapshot};
    my $values = $given->{current} ? $config->{values} : current($config);
    print map { "$_: " . printable($_, $values->{$_}) . "\n" } sort keys %$values;
    print map {"$_->[0]: $_->[1]\n"} $config->{lxc}->@*;
    return 0;
}

sub show_pending ($given) {
    my $config = load($given->{vmid});
    my ($values, $pending) = ($config->{values}, $config->{pending}{values});
    my %deleted = map { $_ => 1 } pending_deletions($config);
    my %keys = (%$values, %$pending);
    delete $keys{delete};
    for my $key (sort keys %keys) {
        my ($old, $new) = map { defined ? printable($key, $_) : undef } $values->{$key}, $pending->{$key};
        print $deleted{$key} ? 'del' : 'cur', " $key: $old\n" if defined $old;
        print "new $key: $new\n" if defined $new && !$deleted{$key};
    }
    return 0;
}

sub printable ($key, $value) { return $key eq 'description' ? encode_text($value) : $value }

# ---- changes

sub set ($given) {
    my %changes = %$given;
    my $vmid = delete $changes{vmid};
    my ($delete, $revert) = map { [split /[,;\s]+/, $_ // ''] } delete @changes{qw(delete revert)};
    my $digest = delete $changes{digest};
    fail_not_found('no options specified') if keys %$given < 2;    # errno is still that of looking for modules
    my $known = config_properties();
    for my $key (@$delete, @$revert) {
        my $option = (grep { $_ eq $key } @$delete) ? 'delete' : 'revert';
        fail_arguments('Parameter verification failed.', { $option => "unknown option '$key'" }) if !$known->{$key};
    }
    with_lock($vmid, sub {
        my $config = load($vmid);
        check_lock($config);
        fail('detected modified configuration - file changed by other user? Try again.')
            if defined $digest && $digest ne $config->{digest};
        my $unprivileged = $config->{values}{unprivileged};
        my $hotplug = is_running($vmid) ? sub ($text) { hotplug_device($vmid, $text, $unprivileged) } : undef;
        set_values($config, $hotplug, \%changes, $delete, $revert);

        # the real one writes first as well: an error below does not mean that nothing has changed
        save($vmid, $config);
        write_lxc_config($vmid, $config);
    });
    return 0;
}

sub unlock ($given) {
    with_lock($given->{vmid}, sub {
        my $config = load($given->{vmid});
        delete $config->{values}{lock} or fail('no lock found trying to remove any lock');
        save($given->{vmid}, $config);
    });
    return 0;
}

# ---- start and stop

sub start_container ($given) {
    my $vmid = $given->{vmid};
    fail("CT $vmid already running") if is_running($vmid);
    return locked_task('vzstart', $vmid, sub ($config) {
        fail("you can't start a CT if it's a template") if $config->{values}{template};
        check_lock_unless($given->{skiplock}, $config);
        start($vmid, $config);
    });
}

sub stop_container ($given) {
    my $vmid = $given->{vmid};
    fail("CT $vmid not running") if !is_running($vmid);
    return locked_task('vzstop', $vmid, sub ($config) {
        check_lock_unless($given->{skiplock}, $config);
        stop($vmid, kill => 1);
    });
}

sub shutdown_container ($given) {
    my $vmid = $given->{vmid};
    fail("CT $vmid not running") if !is_running($vmid);
    return locked_task('vzshutdown', $vmid, sub ($config) {
        check_lock($config);
        stop($vmid, timeout => $given->{timeout} // 60, force => $given->{forceStop});
    });
}

sub reboot_container ($given) {
    my $vmid = $given->{vmid};
    fail("VM $vmid not running") if !is_running($vmid);
    return locked_task('vzreboot', $vmid, sub ($config) {
        return if !is_running($vmid);
        stop($vmid, timeout => $given->{timeout}, force => 1);
        start($vmid, load($vmid));
    });
}

sub locked_task ($type, $vmid, $code) {
    my $succeeded = run_task(sub { with_lock($vmid, sub { $code->(load($vmid)) }) }, $type, $vmid);
    return $succeeded ? 0 : 255;
}

sub check_lock_unless ($skip, $config) {
    check_lock($config) if !$skip && ($config->{values}{lock} // '') ne 'mounted';
}

# ---- files

# Both exit 0 once the task has begun, whatever becomes of it.
sub push_into ($given) {
    my $vmid = $given->{vmid};
    with_lock($vmid, sub {
        fail('can only push files to a running CT') if !is_running($vmid);
        my $unprivileged = load($vmid)->{values}{unprivileged};
        run_task(sub { push_file(pid($vmid), $unprivileged, $given->@{qw(file destination)}, $given) });
    });
    return 0;
}

sub pull_from ($given) {
    my $vmid = $given->{vmid};
    with_lock($vmid, sub {
        fail('can only pull files from a running VM at /usr/share/perl5/PVE/CLI/pct.pm line 664.')
            if !is_running($vmid);
        run_task(sub { pull(pid($vmid), $given->@{qw(path destination)}, $given) });
    });
    return 0;
}

1;
