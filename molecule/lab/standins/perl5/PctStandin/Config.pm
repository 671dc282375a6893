# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# A container's configuration file in Proxmox's format, its lock, and what changes in it.
#
# A configuration is {values => {key => value}, lxc => [[key, value], ...], pending => {values => ..., lxc => ...},
# snapshots => "text as it was found", digest => SHA1 of the file}.
package PctStandin::Config;

use v5.36;

use Digest::SHA qw(sha1_hex);
use Exporter qw(import);
use Fcntl qw(:flock);
use File::Path ();
use POSIX ();

use PctStandin::Arguments qw(parse_boolean);
use PctStandin::Fault qw(fail fail_arguments fail_lock fail_not_found);

our @EXPORT_OK = qw(
    all_ids apply_pending check_lock config_properties current decode_text encode_text load parse_property_string
    pending_deletions save set_values vmid_property with_lock
);

my $FOLDER = '/etc/pve/lxc';
my $LOCK_FOLDER = '/run/lock/lxc';
my $LOCK_SECONDS = 10;

# what a running container takes over at once, as it does a device at a key that it has not; the real one hot-plugs
# networks and mount points too
my %AT_ONCE = map { $_ => 1 }
    qw(description onboot startup protection hostname hookscript cores tags lock cpulimit cpuunits memory swap);

my $RAW_KEY = qr/^lxc\.(?:
    apparmor\.(?:profile|allow_incomplete|allow_nesting|raw) | selinux\.context | include | arch | uts\.name
    | signal\.(?:halt|reboot|stop) | init\.(?:cmd|cwd|uid|gid|groups) | (?:pty|tty)\.max | devtty\.dir | autodev | kmsg
    | console\.(?:logfile|path) | mount\.(?:fstab|entry|auto) | rootfs\.mount | cap\.(?:drop|keep) | idmap
    | seccomp\.profile | seccomp\.notify\.(?:proxy|cookie) | log\.(?:level|file) | hook\.[a-z-]+
    | start\.auto | start\.delay | start\.order | group | environment | environment\.(?:runtime|hooks)
    | sysctl\.(?:fs\.mqueue|kernel\.(?:msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced))
    | (?:cgroup2?|prlimit|net)\..+
)$/x;

my %PROPERTY_STRINGS = (
    net => {
        known => [qw(type name bridge hwaddr mtu ip gw ip6 gw6 firewall tag trunks rate link_down host-managed)],
        needed => 'name',
    },
    mp => {
        known => [qw(volume size acl mountoptions idmap ro quota replicate shared backup mp keepattrs)],
        default => 'volume',
        needed => 'mp',
    },
    rootfs => {
        known => [qw(volume size acl mountoptions idmap ro quota replicate shared)],
        default => 'volume',
        needed => 'volume',
    },
    dev => { known => [qw(path mode uid gid deny-write)], default => 'path' },
    unused => { known => ['volume'], default => 'volume', needed => 'volume' },
    features => { known => [qw(mount nesting keyctl fuse mknod force_rw_sys)] },
);

# The number of a container, as an argument.
sub vmid_property () {
    return {
        type => 'integer',
        format => sub ($id) { $id =~ /^[1-9][0-9]{2,8}$/ or die "value does not look like a valid VM ID\n" },
    };
}

# The options of a container, as `pct set` takes them.
sub config_properties () {
    state $properties = do {
        my %all = map { $_ => { type => 'boolean' } } qw(onboot template console protection unprivileged debug);
        $all{$_} = { type => 'string' }
            for qw(description startup hookscript timezone entrypoint env hostname);
        $all{$_} = { type => 'string', list => 1 } for qw(searchdomain nameserver tags);
        $all{arch} = { type => 'string', enum => [qw(amd64 i386 arm64 armhf riscv32 riscv64)] };
        $all{ostype} = {
            type => 'string',
            enum => [qw(debian devuan ubuntu centos fedora opensuse archlinux alpine gentoo nixos unmanaged)],
        };
        $all{lock} = {
            type => 'string',
            enum => [qw(backup create destroyed disk fstrim migrate mounted rollback snapshot snapshot-delete)],
        };
        $all{cmode} = { type => 'string', enum => [qw(shell console tty)] };
        $all{tty} = { type => 'integer', minimum => 0, maximum => 6 };
        $all{cores} = { type => 'integer', minimum => 1, maximum => 8192 };
        $all{cpulimit} = { type => 'number', minimum => 0, maximum => 8192 };
        $all{cpuunits} = { type => 'integer', minimum => 0, maximum => 500000 };
        $all{memory} = { type => 'integer', minimum => 16 };
        $all{swap} = { type => 'integer', minimum => 0 };
        my %count = (net => 32, mp => 256, dev => 256, unused => 256);
        for my $key ('rootfs', 'features', map { my $k = $_; map {"$k$_"} 0 .. $count{$k} - 1 } keys %count) {
            $all{$key} = { type => 'string', format => sub ($text) { parse_property_string($key, $text) } };
        }
        $_->{optional} = 1 for values %all;
        \%all;
    };
    return $properties;
}

# `name=eth0,bridge=vmbr0` -> {name => 'eth0', bridge => 'vmbr0'}
sub parse_property_string ($key, $text) {
    my $format = $PROPERTY_STRINGS{ $key =~ s/\d+\z//r };
    my %known = map { $_ => 1 } $format->{known}->@*;
    my %found;
    for my $part (grep {/\S/} split /,/, $text) {
        my ($name, $value) = $part =~ /^([^=]+)=(.+)$/;
        if (!defined $name) {
            die "missing key in comma-separated list property\n" if $part =~ /=/;
            $name = $format->{default}
                // die "value without key, but schema does not define a default key\n";
            $value = $part;
        }
        die "invalid key in comma-separated list property: $name\n" if !$known{$name};
        die "duplicate key in comma-separated list property: $name\n" if defined $found{$name};
        $found{$name} = $value;
    }
    my $needed = $format->{needed};
    die "format error\n$needed: property is missing and it is not optional\n" if $needed && !defined $found{$needed};
    my $path = $found{path};
    die "format error\npath: invalid format - $path is not a valid device path\n"
        if defined $path && ($path !~ m{^/dev/} || $path =~ m{/\.\.?(?:/|$)});
    return \%found;
}

sub all_ids () {
    return sort { $a <=> $b } map { m{/([1-9]\d{2,8})\.conf\z} ? $1 : () } glob "$FOLDER/*.conf";
}

sub load ($vmid) {
    my $node = (POSIX::uname())[1] =~ s/\..*//r;
    open my $file, '<', "$FOLDER/$vmid.conf"
        or fail_not_found("Configuration file 'nodes/$node/lxc/$vmid.conf' does not exist");
    my $text = do { local $/; <$file> } // '';
    my %config = (%{ empty_section() }, pending => empty_section(), snapshots => '', digest => sha1_hex($text));
    my $section = \%config;
    for my $line (split /^/, $text) {
        next if $line !~ /\S/;
        if ($line =~ /^\[pve:pending\]\s*$/i) {
            $section = $config{pending};
        } elsif ($line =~ /^\[[a-z][a-z0-9_-]+\]\s*$/i) {
            $section = undef;
        }
        if ($line =~ /^\[/) {
            $config{snapshots} .= "\n$line" if !$section;
        } elsif (!$section) {
            $config{snapshots} .= $line;
        } else {
            chomp $line;
            parse_line($vmid, $section, $line);
        }
    }
    return \%config;
}

sub empty_section () { return { values => {}, lxc => [] } }

sub parse_line ($vmid, $section, $line) {
    my $values = $section->{values};
    if ($line =~ /^#(.*)$/) {
        $values->{description} .= decode_text($1) . "\n";
    } elsif ($line =~ /^(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*(.*?)\s*$/) {
        my ($key, $value) = ($1, $2);
        if ($key =~ $RAW_KEY) {
            push $section->{lxc}->@*, [$key, $value];
        } else {
            warn "vm $vmid - unable to parse config: $line\n";
        }
    } elsif ($line =~ /^description:\s*(.*\S)\s*$/) {
        $values->{description} .= decode_text($1);
    } elsif ($line =~ /^([a-z][a-z_]*\d*):\s*(.+?)\s*$/) {
        my ($key, $value) = ($1, $2);
        my $property = config_properties()->{$key};
        if ($property) {
            $value = parse_boolean($value) // $value if $property->{type} eq 'boolean';
            eval { check_value($property, $value); 1 } or warn "vm $vmid - unable to parse value of '$key' - $@";
        } elsif ($key !~ /^(?:parent|snaptime|delete)$/) {
            warn "vm $vmid - unable to parse value of '$key' - unknown setting '$key'\n";
        }
        $values->{$key} = $value;
    } else {
        warn "vm $vmid - unable to parse config: $line\n";
    }
}

# What is wrong is said and kept.
sub check_value ($property, $value) {
    state $patterns = { boolean => qr/^[01]$/, integer => qr/^\d+$/, number => qr/^\d+(?:\.\d+)?$/ };
    my ($type, $format) = $property->@{qw(type format)};
    die "type check ('$type') failed - got '$value'\n" if $patterns->{$type} && $value !~ $patterns->{$type};
    $format->($value) if $format;
}

sub save ($vmid, $config) {
    my $text = section_text($config);
    $text .= "\n[pve:pending]\n" . section_text($config->{pending}) if $config->{pending}{values}->%*;
    $text .= $config->{snapshots};
    my $partial = "$FOLDER/.$vmid.conf.$$";
    open my $file, '>', $partial or fail("unable to open file '$partial' - $!");
    print $file $text;
    close $file or fail("unable to write '$partial' - $!");
    rename $partial, "$FOLDER/$vmid.conf" or fail("unable to rename '$partial' - $!");
}

sub section_text ($section) {
    my $values = $section->{values};
    my $text = join '', map { '#' . encode_text($_) . "\n" } split /\n/, $values->{description} // '';
    $text .= "$_: $values->{$_}\n" for grep { $_ ne 'description' } sort keys %$values;
    $text .= "$_->[0]: $_->[1]\n" for $section->{lxc}->@*;
    return $text;
}

sub encode_text ($text) { return $text =~ s/([^\x20-\x24\x26-\x39\x3b-\x7e])/sprintf '%%%02X', ord $1/ger }
sub decode_text ($text) { return $text =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ger }

# Run `code` under the container's lock; without it after ten seconds.
sub with_lock ($vmid, $code) {
    File::Path::make_path($LOCK_FOLDER);
    my $path = "$LOCK_FOLDER/pve-config-$vmid.lock";
    open my $file, '>>', $path or fail("can't lock file '$path' - can't open file - $!");
    if (!flock $file, LOCK_EX | LOCK_NB) {
        print STDERR "trying to acquire lock...\n";
        eval {
            local $SIG{ALRM} = sub ($) { die "got timeout\n" };
            alarm $LOCK_SECONDS;
            flock $file, LOCK_EX;
            alarm 0;
            1;
        } or fail_lock("can't lock file '$path' - $@");
        print STDERR " OK\n";
    }
    return $code->();
}

sub check_lock ($config) {
    my $lock = $config->{values}{lock};
    fail("CT is locked ($lock)") if $lock;
}

# The values with the pending ones taken in, which is what `pct config` shows.
sub current ($config) {
    my %values = ($config->{values}->%*, $config->{pending}{values}->%*);
    delete $values{delete};
    delete $values{$_} for grep { $values{$_} } pending_deletions($config);    # so a 0 stays in the real one's answer
    return \%values;
}

sub pending_deletions ($config) {
    return grep { length } split /[,;\s]+/, $config->{pending}{values}{delete} // '';
}

# Put changes into `config`: at once where that is possible, else into its pending section.
# `hotplug` brings a device into a running container; without it none is running.
sub set_values ($config, $hotplug, $changes, $deletions, $reverts) {
    my ($values, $pending) = ($config->{values}, $config->{pending}{values});
    my %deleted = map { $_ => 1 } pending_deletions($config);
    delete $pending->{$_}, delete $deleted{$_} for @$reverts;
    for my $key (@$deletions) {
        if (!defined $values->{$key} && !defined $pending->{$key}) {
            print STDERR "cannot delete '$key' - not set in current configuration!\n";
            next;
        }
        fail("unable to delete required option '$key'") if $key =~ /^(?:memory|rootfs|ostype)$/;
        fail("unable to delete read-only option: '$key'") if $key eq 'unprivileged';
        fail("can't remove CT drive '$key' - protection mode enabled") if $key =~ /^mp\d/ && $values->{protection};
        delete $pending->{$key};
        $deleted{$key} = 1 if defined $values->{$key};
    }
    for my $key (sort keys %$changes) {
        fail("unable to modify read-only option: '$key'") if $key eq 'unprivileged';
        check_device(parse_property_string($key, $changes->{$key})->{path}) if $key =~ /^dev\d/;
        $pending->{$key} = $changes->{$key};
        delete $deleted{$key};
    }
    $pending->{delete} = join ',', sort keys %deleted;
    delete $pending->{delete} if !%deleted;
    apply_pending($config, sub ($key) {
        return 1 if !$hotplug || $AT_ONCE{$key};
        return 0 if $key !~ /^dev\d/ || defined $values->{$key} || !defined $pending->{$key};
        $hotplug->($pending->{$key});
        return 1;
    });
}

# Move from the pending section into the configuration what `wanted` says.
sub apply_pending ($config, $wanted = sub ($key) {1}) {
    my ($values, $pending) = ($config->{values}, $config->{pending}{values});
    my @deletions = pending_deletions($config);
    delete $values->{$_} for grep { $wanted->($_) } @deletions;
    my @left = grep { !$wanted->($_) } @deletions;
    $pending->{delete} = join ',', @left;
    delete $pending->{delete} if !@left;
    for my $key (grep { $_ ne 'delete' } keys %$pending) {
        my $same = defined $values->{$key} && $values->{$key} eq $pending->{$key};
        my $now = !$same && $wanted->($key);
        $values->{$key} = $key =~ /^net\d/ ? complete_network($pending->{$key}) : $pending->{$key} if $now;
        delete $pending->{$key} if $same || $now;
    }
}

# What every interface has.
sub complete_network ($text) {
    $text .= sprintf ',hwaddr=BC:24:11:%02X:%02X:%02X', map { int rand 256 } 1 .. 3 if $text !~ /hwaddr=/;
    return $text =~ /type=/ ? $text : "$text,type=veth";
}

sub check_device ($path) {
    fail('Path is not defined for passthrough device') if !defined $path;
    fail_not_found("Device $path does not exist") if !-e $path;
    fail("$path is not a device") if !-b _ && !-c _;
}

1;
