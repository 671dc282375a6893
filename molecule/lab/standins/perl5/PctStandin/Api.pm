# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# `pvesh get PATH`: what the API tells of the node's containers.
package PctStandin::Api;

use v5.36;

use Encode ();
use JSON::PP ();
use POSIX ();
use Scalar::Util qw(blessed);

use PctStandin::Arguments qw(parse_arguments validate);
use PctStandin::Config qw(all_ids config_properties current load pending_deletions vmid_property);
use PctStandin::Container qw(status);
use PctStandin::Fault qw(fail fail_arguments fail_not_found);
use PctStandin::Program qw(complete connect_to_cluster run_program);

my @COMMANDS = qw(create delete get help ls set usage);
my $ENVIRONMENT = 'lxc.environment.runtime';
my $USAGE = "pvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]\n";

my $FLAG = { type => 'boolean', optional => 1 };
my %OPTIONS = (
    api_path => { type => 'string' },
    'output-format' => { type => 'string', enum => [qw(text json json-pretty yaml)], optional => 1 },
    map { $_ => $FLAG } qw(noproxy quiet noheader noborder human-readable),
);

# path below /nodes/NODE => [code, its own options]; code gets them and the container's number
my %HANDLERS = (
    'lxc' => [\&list, {}],
    'lxc/{vmid}/config' => [\&config, { current => $FLAG, snapshot => { type => 'string', optional => 1 } }],
    'lxc/{vmid}/pending' => [\&pending, {}],
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
    if ($method && length($path // '') && !find($path)) {
        print STDERR "No '$name' handler defined for '$path'\n";
        return 1;
    }
    return abort('no command specified') if !defined $name;
    connect_to_cluster();
    my ($command, @others) = complete($name, @COMMANDS);
    return abort("unknown command 'pvesh $name'") if !$command;
    fail("pvesh stand-in: '$command' is not reproduced in the lab") if $command ne 'get';

    my $exit = eval { get(@words) };
    if (my $fault = $@) {
        $fault->{text} .= $USAGE if blessed $fault && delete $fault->{arguments};
        die $fault;
    }
    return $exit;
}

sub abort ($reason) {
    print STDERR "ERROR: $reason\nUSAGE: pvesh <COMMAND> [ARGS] [OPTIONS]\n\n", "       $USAGE";
    return 255;
}

# [code, options, node, container] of a path, [] where only the real API has something, undef where nobody has.
sub find ($path) {
    my ($top, $node, $kind, $vmid, $what, @more) = grep {length} split m{/+}, $path;
    return [] if !defined $top;
    return undef if !$TOP{$top};
    return [] if $top ne 'nodes' || !defined $kind;
    return undef if !$OF_NODE{$kind};
    return [] if $kind ne 'lxc';
    my $pattern = join '/', $kind, defined $vmid ? '{vmid}' : (), $what // (), @more;
    return [$HANDLERS{$pattern}->@*, $node, $vmid] if $HANDLERS{$pattern};
    return defined $what && !$OF_CONTAINER{$what} ? undef : [];
}

sub get (@words) {
    my ($code, $options, $node, $vmid) = (find($words[0] // '') // [])->@*;
    my $given = parse_arguments(\@words, ['api_path'], { %OPTIONS, ($options // {})->%* });
    my $path = $given->{api_path};
    fail("pvesh stand-in: '$path' is not reproduced in the lab") if !$code;
    my $undefined = 'property is not defined in schema and the schema does not allow additional properties';
    fail_arguments('Parameter verification failed.', { noproxy => $undefined }) if defined $given->{noproxy};
    if ($node ne 'localhost' && $node ne (POSIX::uname())[1] =~ s/\..*//r) {
        my $unknown = "failed to get address info for: $node: Name or service not known";
        fail_not_found("hostname lookup '$node' failed - $unknown");
    }
    validate({ vmid => $vmid }, { vmid => vmid_property() }) if defined $vmid;

    my $answer = $code->($given, $vmid);
    my $format = $given->{'output-format'} // 'text';
    return 0 if $given->{quiet};
    fail("pvesh stand-in: the format $format is not reproduced in the lab") if $format !~ /^json/;
    my $json = JSON::PP->new->utf8->canonical->pretty($format eq 'json-pretty');
    print $json->encode($answer) =~ s/\n?\z/\n/r;
    return 0;
}

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

1;
