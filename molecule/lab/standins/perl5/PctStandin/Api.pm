# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# `pvesh VERB PATH`: what the API tells of the node's containers, and what it does with them.
package PctStandin::Api;

use v5.36;

use Encode ();
use JSON::PP ();
use POSIX ();
use Scalar::Util qw(blessed);

use PctStandin::Arguments qw(parse_arguments validate);
use PctStandin::Command ();
use PctStandin::Config qw(
    all_ids config_properties current load parse_property_string pending_deletions save set_values vmid_property
    with_lock
);
use PctStandin::Container qw(status);
use PctStandin::Fault qw(fail fail_arguments fail_not_found);
use PctStandin::Program qw(complete connect_to_cluster run_program);
use PctStandin::Task qw(last_task run_task task_end);

my @COMMANDS = qw(create delete get help ls set usage);
my $ENVIRONMENT = 'lxc.environment.runtime';
my $USAGE = "pvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]\n";
my $VERSION = '9.2.11';
my $TEMPLATES = '/var/lib/vz/template/cache';    # of the storage `local`; the storage `lab` has the root file systems

my $FLAG = { type => 'boolean', optional => 1 };
my $TEXT = { type => 'string' };
my $OPTIONAL_TEXT = { type => 'string', optional => 1 };
my $SECONDS = { type => 'integer', minimum => 0, optional => 1 };
my %OPTIONS = (
    api_path => { type => 'string' },
    'output-format' => { type => 'string', enum => [qw(text json json-pretty yaml)], optional => 1 },
    map { $_ => $FLAG } qw(noproxy quiet noheader noborder human-readable),
);

# path => [code, its own options]; code gets them and what stands for {...} in the path. That of a node is without it.
my %HANDLERS = (
    get => {
        '/version' => [sub ($, $) { +{ version => $VERSION, release => '9.2', repoid => 'standin' } }, {}],
        '/cluster/resources' => [\&resources, { type => $OPTIONAL_TEXT }],
        'lxc' => [\&list, {}],
        'lxc/{vmid}/config' => [\&config, { current => $FLAG, snapshot => $OPTIONAL_TEXT }],
        'lxc/{vmid}/pending' => [\&pending, {}],
        'lxc/{vmid}/status/current' => [\&current_status, {}],
        'storage/{storage}/content' => [\&content, { content => $OPTIONAL_TEXT }],
        'tasks/{upid}/status' => [\&task_status, {}],
        'tasks/{upid}/log' => [sub ($, $upid) { [+{ n => 1, t => task_end($upid) }] }, { limit => $SECONDS }],
    },
    set => {
        'lxc/{vmid}/config' => [
            \&change, { config_properties()->%*, map { $_ => $OPTIONAL_TEXT } qw(delete revert digest) },
        ],
        'lxc/{vmid}/resize' => [\&resize, { disk => $TEXT, size => $TEXT }],
    },
    create => {
        'lxc' => [
            \&create,
            {
                config_properties()->%*, vmid => vmid_property(), ostemplate => $TEXT,
                map { $_ => $OPTIONAL_TEXT } qw(pool ssh-public-keys),
            },
        ],
        'lxc/{vmid}/status/start' => [task_of(\&PctStandin::Command::start_container), {}],
        'lxc/{vmid}/status/stop' => [task_of(\&PctStandin::Command::stop_container), {}],
        'lxc/{vmid}/status/shutdown' =>
            [task_of(\&PctStandin::Command::shutdown_container), { timeout => $SECONDS, forceStop => $FLAG }],
    },
);

# what the real API has besides: at the top, below /nodes/NODE, and below a container
my %TOP = map { $_ => 1 } qw(access cluster nodes pools storage version);
my %OF_NODE = map { $_ => 1 } qw(
    aplinfo apt capabilities ceph certificates config disks dns firewall hardware hosts journal lxc network qemu
    query-oci-repo-tags query-url-metadata replication report rrd rrddata scan sdn services status storage subscription
    syslog tasks time version vncwebsocket vzdump
);
my %OF_CONTAINER = map { $_ => 1 } qw(feature firewall interfaces migrate rrd rrddata snapshot status vncwebsocket);

sub main (@arguments) {
    run_program(sub { run(@arguments) });
}

sub run (@arguments) {
    while (@arguments && $arguments[0] =~ /^--(?:noproxy|nooutput)\z/) {
        push @arguments, '--quiet' if shift @arguments eq '--nooutput';
    }
    my ($name, @words) = @arguments;
    my $path = $words[0];

    # the real one looks the path up while it loads, before it asks who runs it
    my $method = ($name // '') =~ /^(?:get|set|create|delete)\z/;
    if ($method && length($path // '') && !find($name, $path)) {
        print STDERR "No '$name' handler defined for '$path'\n";
        return 1;
    }
    return abort('no command specified') if !defined $name;
    connect_to_cluster();
    my ($command, @others) = complete($name, @COMMANDS);
    return abort("unknown command 'pvesh $name'") if !$command;
    fail("pvesh stand-in: '$command' is not reproduced in the lab") if !$HANDLERS{$command};

    my $exit = eval { call($command, @words) };
    if (my $fault = $@) {
        $fault->{text} .= $USAGE =~ s/get/$command/r if blessed $fault && delete $fault->{arguments};
        die $fault;
    }
    return $exit;
}

sub abort ($reason) {
    print STDERR "ERROR: $reason\nUSAGE: pvesh <COMMAND> [ARGS] [OPTIONS]\n\n", "       $USAGE";
    return 255;
}

# [code, options, node, what stands for {...}] of a path, [] where only the real API has something, undef where nobody
# has.
sub find ($verb, $path) {
    my ($top, $node, $kind, $id, @more) = grep {length} split m{/+}, $path;
    return [] if !defined $top;
    return undef if !$TOP{$top};
    my $known = $HANDLERS{$verb} // {};
    my $whole = '/' . join '/', grep {length} split m{/+}, $path;
    return [$known->{$whole}->@*] if $known->{$whole};
    return [] if $top ne 'nodes' || !defined $kind;
    return undef if !$OF_NODE{$kind};
    state $placeholders = { lxc => '{vmid}', storage => '{storage}', tasks => '{upid}' };
    my $pattern = join '/', $kind, defined $id ? $placeholders->{$kind} // $id : (), @more;
    return [$known->{$pattern}->@*, $node, $id] if $known->{$pattern};
    my $somewhere = grep { $_->{$pattern} } values %HANDLERS;
    return $kind eq 'lxc' && @more && !$somewhere && !$OF_CONTAINER{ $more[0] } ? undef : [];
}

sub call ($verb, @words) {
    my ($code, $options, $node, $id) = (find($verb, $words[0] // '') // [])->@*;
    my $given = parse_arguments(\@words, ['api_path'], { %OPTIONS, ($options // {})->%* });
    my $path = delete $given->{api_path};
    fail("pvesh stand-in: '$verb $path' is not reproduced in the lab") if !$code;
    my $undefined = 'property is not defined in schema and the schema does not allow additional properties';
    fail_arguments('Parameter verification failed.', { noproxy => $undefined }) if defined $given->{noproxy};
    if (defined $node && $node ne 'localhost' && $node ne node_name()) {
        my $unknown = "failed to get address info for: $node: Name or service not known";
        fail_not_found("hostname lookup '$node' failed - $unknown");
    }
    validate({ vmid => $id }, { vmid => vmid_property() }) if defined $id && $path =~ m{/lxc/};

    my ($format, $quiet) = ($given->{'output-format'} // 'text', $given->{quiet});
    delete $given->@{ keys %OPTIONS };
    my $answer = $code->($given, $id);
    return 0 if $quiet || !defined $answer;
    fail("pvesh stand-in: the format $format is not reproduced in the lab") if $format !~ /^json/;
    my $json = JSON::PP->new->utf8->canonical->allow_nonref->pretty($format eq 'json-pretty');
    print $json->encode($answer) =~ s/\n?\z/\n/r;
    return 0;
}

sub node_name () { return (POSIX::uname())[1] =~ s/\..*//r }

# In no order, as the real one gives them.
sub list ($, $) {
    my %containers = map { $_ => load($_) } all_ids();
    return [map { listed($_, $containers{$_}) } keys %containers];
}

sub listed ($vmid, $config) {
    my $status = status($vmid, $config);
    my %as_text = map { $_ => 1 } qw(lock name status tags type);
    $as_text{cpus} = !$config->{values}{cores} && $config->{values}{cpulimit};
    return { map { $_ => $as_text{$_} ? "$status->{$_}" : 0 + $status->{$_} } grep { defined $status->{$_} } keys %$status };
}

sub current_status ($, $vmid) {
    return { listed($vmid, load($vmid))->%*, ha => { managed => 0 } };
}

sub config ($given, $vmid) {
    my $config = load($vmid);
    fail("snapshot '$given->{snapshot}' does not exist") if defined $given->{snapshot};
    my $values = $given->{current} ? $config->{values} : current($config);
    my %answer = (raw_keys($config), map { $_ => typed($_, $values->{$_}) } keys %$values);
    my @lxc = grep { $_->[0] ne $ENVIRONMENT } $config->{lxc}->@*;
    $answer{lxc} = \@lxc if @lxc;
    return \%answer;
}

sub pending ($, $vmid) {
    my $config = load($vmid);
    my %values = ($config->{values}->%*, raw_keys($config));
    my %changes = $config->{pending}{values}->%*;
    delete $changes{delete};

    # 2 is a deletion by force, and so the real one calls also that of a key that is not set
    my %deletions = map { /^(!?)(.*)/ ? ($2 => $1 || !defined $values{$2} ? 2 : 1) : () } pending_deletions($config);
    my %keys = (%values, %changes, %deletions);
    my @items;
    for my $key (keys %keys) {
        my %item = (key => $key);
        $item{value} = typed($key, $values{$key}) if defined $values{$key};
        $item{pending} = typed($key, $changes{$key}) if defined $changes{$key};
        $item{delete} = $deletions{$key} if $deletions{$key};
        push @items, \%item;
    }
    return \@items;
}

# What the API makes keys of: the file's digest, and the raw keys for variables of the init process in one.
sub raw_keys ($config) {
    my @environment = map { $_->[0] eq $ENVIRONMENT ? $_->[1] : () } $config->{lxc}->@*;
    return (digest => $config->{digest}, @environment ? (env => join "\0", @environment) : ());
}

# Whole numbers and booleans are numbers in JSON, all others are text; only a description is decoded.
sub typed ($key, $value) {
    my $type = (config_properties()->{$key} // {})->{type} // 'string';
    return 0 + $value if $type =~ /^(?:integer|boolean)\z/ && $value =~ /^\d+\z/;
    return $key eq 'description' ? Encode::decode('utf8', $value) : "$value";
}

# ---- the cluster, storages and tasks

sub resources ($given, $) {
    my @shown = qw(lock maxdisk maxmem name status tags template type uptime vmid);
    my @found;
    for my $vmid (all_ids()) {
        my $listed = listed($vmid, load($vmid));
        my %known = map { $_ => $listed->{$_} } grep { defined $listed->{$_} } @shown;
        push @found, { id => "lxc/$vmid", node => node_name(), template => 0, %known };
    }
    return \@found;
}

sub check_storage ($name) {
    fail_not_found("storage '$name' does not exist") if $name !~ /^(?:lab|local)\z/;
}

sub content ($given, $storage) {
    check_storage($storage);
    return [] if $storage ne 'local' || ($given->{content} // 'vztmpl') ne 'vztmpl';
    my @found;
    for my $path (grep {/\.tar\.(?:gz|xz|zst)\z/} glob "$TEMPLATES/*") {
        my ($file, $kind) = $path =~ m{([^/]+\.(\w+))\z};
        push @found, { volid => "local:vztmpl/$file", content => 'vztmpl', format => "t$kind", size => -s $path };
    }
    return \@found;
}

sub task_status ($, $upid) {
    my $end = task_end($upid) // fail_arguments('Parameter verification failed.', { upid => 'no such task' });
    my (undef, $node, $pid, $pstart, $starttime, $type, $id, $user) = split /:/, $upid;
    return {
        upid => $upid, node => $node, type => $type, id => $id, user => $user, status => 'stopped',
        (map { $_->[0] => hex $_->[1] } ['pid', $pid], ['pstart', $pstart], ['starttime', $starttime]),
        exitstatus => $end =~ s/^TASK (?:ERROR: |(?=WARNINGS|OK))//r,
    };
}

# What `code` of pct does as a task; the answer is its UPID, whatever has become of it.
sub task_of ($code) {
    return sub ($given, $vmid) {
        $code->({ %$given, vmid => $vmid });
        return last_task();
    };
}

# ---- changes

sub change ($given, $vmid) {
    PctStandin::Command::set({ %$given, vmid => $vmid });
    return undef;
}

sub resize ($given, $vmid) {
    my ($disk, $size) = $given->@{qw(disk size)};
    my $text = load($vmid)->{values}{$disk} // fail("disk '$disk' does not exist");
    run_task(sub {
        with_lock($vmid, sub {
            my $config = load($vmid);
            PctStandin::Config::check_lock($config);
            $config->{values}{$disk} = $text =~ s/,size=[^,]*|\z/,size=$size/r;
            save($vmid, $config);
        });
    }, 'resize', $vmid);
    return last_task();
}

# A container of the lab: its root file system is one of the lab's images, whichever template there is.
sub create ($given, $) {
    my %values = %$given;
    my ($vmid, $template) = delete @values{qw(vmid ostemplate ssh-public-keys pool)};
    fail_not_found("CT $vmid already exists on node '" . node_name() . "'") if grep { $_ == $vmid } all_ids();
    my ($storage, $file) = $template =~ m{^(\w+):vztmpl/([^/]+)\z} or fail("unable to parse volume ID '$template'");
    check_storage($storage);
    my $size = delete $values{rootfs} // 'lab:4';
    my ($on, $gib) = $size =~ /^([\w-]+):(\d+)\z/ or fail("unable to parse volume ID '$size'");
    check_storage($on);
    fail("storage '$on' does not support container directories") if $on ne 'lab';
    my $unprivileged = delete $values{unprivileged} // 1;
    my $config = { values => {}, lxc => [], pending => { values => {}, lxc => [] }, snapshots => '' };
    set_values($config, undef, \%values, [], []);
    $config->{values} = {
        arch => 'amd64', hostname => "CT$vmid", memory => 512, ostype => 'debian', swap => 512, $config->{values}->%*,
        rootfs => 'lab:' . ($unprivileged ? 'base-u' : 'base') . ",size=${gib}G",
        $unprivileged ? (unprivileged => 1) : (),
    };
    run_task(sub {
        fail("unable to create CT $vmid - volume '$template' does not exist") if !-e "$TEMPLATES/$file";
        with_lock($vmid, sub { save($vmid, $config) });
    }, 'vzcreate', $vmid);
    return last_task();
}

1;
