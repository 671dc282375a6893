# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The real LXC container behind a Proxmox configuration: its LXC configuration, state, start and stop.
package PctStandin::Container;

use v5.36;

use Exporter qw(import);
use Fcntl qw(S_ISBLK);
use File::Basename qw(dirname);
use File::Path qw(make_path remove_tree);
use IO::Select ();
use IO::Socket::UNIX ();

use PctStandin::Config qw(apply_pending load parse_property_string save);
use PctStandin::Fault qw(fail);
use PctStandin::Task qw(warn_in_task);

our @EXPORT_OK = qw(hotplug_device is_running pid start status stop write_lxc_config);

my $LXC = '/var/lib/lxc';
my $IMAGES = '/srv/img';    # where the lab keeps what Proxmox would have on a storage: read-only root file systems
my $FIRST_ID = 100000;      # of an unprivileged container, on the node

# What common.conf allows and userns.conf takes back. LXC denies all that is not listed once one device is.
my @STANDARD_DEVICES = (
    'c *:* m', 'b *:* m', map {"c $_ rwm"} qw(1:3 1:5 1:7 1:8 1:9 5:0 5:1 5:2 136:* 10:229)
);
my $UNIT = '/run/systemd/system/pve-container@.service';

# Running is whoever listens on LXC's command socket; a frozen container counts.
sub is_running ($vmid) {
    open my $sockets, '<', '/proc/net/unix' or return 0;
    return !!grep {m{\s\@\Q$LXC\E/$vmid/command$}} <$sockets>;
}

sub pid ($vmid) {
    my ($pid) = capture('lxc-info', '-n', $vmid, '-p', '-H') =~ /^(\d+)/;
    return $pid // die "unable to get PID for CT $vmid (not running?)\n";
}

# ---- the LXC configuration

# Write it as pct does at each start and after each `pct set`.
sub write_lxc_config ($vmid, $config) {
    my $values = $config->{values};
    for my $needed (qw(arch ostype rootfs)) {
        fail("missing '$needed' configuration") if !defined $values->{$needed};
    }
    my $unprivileged = $values->{unprivileged};
    my @lines = (
        'lxc.cgroup.relative = 0',
        "lxc.cgroup.dir.monitor = lxc.monitor/$vmid",
        "lxc.cgroup.dir.container = lxc/$vmid",
        'lxc.cgroup.dir.container.inner = ns',
        "lxc.arch = $values->{arch}",
        'lxc.include = /usr/share/lxc/config/common.conf',
    );
    push @lines, 'lxc.include = /usr/share/lxc/config/userns.conf', map {"lxc.idmap = $_ 0 $FIRST_ID 65536"} qw(u g)
        if $unprivileged;
    push @lines,
        'lxc.apparmor.profile = unconfined',    # the lab's kernel may have none
        'lxc.mount.auto = proc:mixed sys:mixed',

        # as on a Proxmox node; it lets systemd run in a container of a container, on a cgroup v1 host too
        'lxc.mount.entry = cgroup2 sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0',
        'lxc.monitor.unshare = 1',
        'lxc.tty.max = ' . ($values->{tty} // 2),
        'lxc.environment = TERM=linux',
        'lxc.uts.name = ' . ($values->{hostname} || "CT$vmid"),
        'lxc.rootfs.path = ' . rootfs_path($vmid, $values->{rootfs});

    # without it overlayfs can not mark a directory as new inside a user namespace, and dpkg's renames fail
    push @lines, 'lxc.rootfs.options = userxattr' if $unprivileged;
    push @lines, 'lxc.console.path = none' if !($values->{console} // 1);
    push @lines, "lxc.init.cmd = $values->{entrypoint}" if defined $values->{entrypoint};
    push @lines, limit_lines($values);
    push @lines, map {"lxc.cgroup2.devices.allow = $_"} @STANDARD_DEVICES if grep {/^dev\d/} keys %$values;
    for my $key (sort keys %$values) {
        push @lines, device_lines($vmid, $values->{$key}) if $key =~ /^dev\d/;
        push @lines, mount_line($values->{$key}, $unprivileged) if $key =~ /^mp\d/;
        push @lines, network_lines($vmid, $1, $values->{$key}) if $key =~ /^net(\d+)/;
    }
    push @lines, map {"$_->[0] = $_->[1]"} $config->{lxc}->@*;

    make_path("$LXC/$vmid");
    write_file("$LXC/$vmid/config", join('', map {"$_\n"} @lines));
}

# `lab:base,size=8G` -> a writable layer of the container's own over the image `base`
sub rootfs_path ($vmid, $text) {
    my ($storage, $image) = (parse_property_string('rootfs', $text)->{volume}) =~ /^([^:]+):([\w.-]+)\z/;
    fail("unable to parse volume ID '$text'") if !defined $image;
    fail("storage '$storage' does not exist") if $storage ne 'lab';
    return "overlay:$IMAGES/$image:$LXC/$vmid/delta";
}

# Limits only for controllers that the node's cgroup2 has; a lab on a cgroup v1 host has none.
sub limit_lines ($values) {
    my %has = map { $_ => 1 } split ' ', read_file('/sys/fs/cgroup/cgroup.controllers') // '';
    my @lines;
    if ($has{memory}) {
        push @lines, 'lxc.cgroup2.memory.max = ' . ($values->{memory} || 512) * 1024**2,
            'lxc.cgroup2.memory.swap.max = ' . ($values->{swap} // 0) * 1024**2;
    }
    if ($has{cpu}) {
        push @lines, 'lxc.cgroup2.cpu.max = ' . int(100000 * $values->{cpulimit}) . ' 100000' if $values->{cpulimit};
        push @lines, "lxc.cgroup2.cpu.weight = $values->{cpuunits}" if $values->{cpuunits};
    }
    return @lines;
}

# A device is a node of its own, made at start with the wanted mode and owner; see prepare_devices.
sub device_lines ($vmid, $text) {
    my $device = parse_property_string('dev', $text);
    PctStandin::Config::check_device($device->{path});
    my ($kind, $major, $minor) = device_number($device->{path});
    my $rights = $device->{'deny-write'} ? 'r' : 'rw';
    my $target = $device->{path} =~ s{^/}{}r;
    return (
        "lxc.cgroup2.devices.allow = $kind $major:$minor $rights",
        'lxc.mount.entry = ' . escape("$LXC/$vmid/passthrough$device->{path}") . ' ' . escape($target)
            . ' none bind,create=file 0 0',
    );
}

sub device_number ($path) {
    my ($mode, $number) = (stat $path)[2, 6];
    my $major = ($number >> 8) & 0xfff | ($number >> 32) & ~0xfff;
    my $minor = $number & 0xff | ($number >> 12) & ~0xff;
    return (S_ISBLK($mode) ? 'b' : 'c', $major, $minor);
}

sub mount_line ($text, $unprivileged) {
    my $mount = parse_property_string('mp', $text);
    my $source = $mount->{volume};
    fail("storage '$1' does not exist") if $source =~ /^([^\/:]+):/;
    fail("directory '$source' does not exist") if !-d $source;
    my $options = 'bind,create=dir' . ($mount->{ro} ? ',ro' : '') . ($unprivileged ? ',idmap=container' : '');
    return 'lxc.mount.entry = ' . escape($source) . ' ' . escape($mount->{mp} =~ s{^/}{}r) . " none $options 0 0";
}

sub network_lines ($vmid, $index, $text) {
    my $network = parse_property_string('net', $text);
    my $bridge = $network->{bridge} // '';
    my $bridge_mtu = read_file("/sys/class/net/$bridge/mtu") // fail("bridge '$bridge' does not exist");
    my $mtu = $network->{mtu} || $bridge_mtu =~ s/\s+//r;
    fail("net$index: MTU size '$mtu' is bigger than bridge MTU '" . ($bridge_mtu + 0) . "'") if $mtu > $bridge_mtu;
    my %options = (
        type => 'veth',
        link => $bridge,
        'veth.pair' => "veth${vmid}i$index",
        name => $network->{name},
        hwaddr => $network->{hwaddr},
        mtu => $mtu,
        flags => $network->{link_down} ? undef : 'up',
        'ipv4.address' => $network->{ip},
        'ipv4.gateway' => $network->{gw},
        'ipv6.address' => $network->{ip6},
        'ipv6.gateway' => $network->{gw6},
    );
    return map {"lxc.net.$index.$_ = $options{$_}"}
        grep { defined $options{$_} && $options{$_} !~ /^(?:dhcp|manual|auto)\z/ }
        sort { ($b eq 'type') <=> ($a eq 'type') || $a cmp $b } keys %options;
}

# a blank in a path of an fstab line
sub escape ($path) { return $path =~ s/ /\\040/gr }

# ---- start and stop

# Start the container and return when LXC says that it runs, which is before its services are up.
sub start ($vmid, $config) {
    if ($config->{pending}{values}->%*) {
        apply_pending($config);
        save($vmid, $config);
    }
    my $values = $config->{values};
    write_lxc_config($vmid, $config);
    prepare_devices($vmid, $values);
    prepare_rootfs($vmid, $values);
    prepare_unit();
    my $log = "/run/pve/ct-$vmid.stderr";
    make_path('/run/pve');
    unlink $log;
    warn_about_nesting($values);
    my ($output, $status) = capture('systemctl', 'start', "pve-container\@$vmid");
    return if $status == 0 && is_running($vmid);
    print STDERR map { s/^.*? - \S+\.c:(\w+):(\d+) - /$1: $2 /r } split /^/, read_file($log) // $output;
    fail("startup for container '$vmid' failed");
}

# Stop it: at once if `kill`, else in an orderly way within `timeout` seconds; then, if `force`, at once.
# Returns when LXC's monitor has gone, because the container's mounts are undone only then.
sub stop ($vmid, %how) {
    my $socket = IO::Socket::UNIX->new(Peer => "\0$LXC/$vmid/command")
        or fail("failed to open container ${vmid}'s command socket: $!");
    my @command = ('lxc-stop', '-n', $vmid);
    my $patience;
    if ($how{kill}) {
        push @command, '--kill';
    } else {
        push @command, '--nokill' if !$how{force};
        if (defined $how{timeout}) {
            push @command, '--timeout', $how{timeout};
            $patience = $how{timeout} + 5;
        }
    }
    my ($output, $status) = capture(@command);
    if ($status == 0) {
        return if !sysread $socket, my $buffer, 1;
    } else {
        print STDERR $output, "command '@command' failed: exit code $status\n";
        return if IO::Select->new($socket)->can_read($patience) && !sysread $socket, my $buffer, 1;
    }
    fail('container did not stop');
}

# Nodes for devN, in a folder of their own, so that their mode and owner are the container's affair.
sub prepare_devices ($vmid, $values) {
    my $folder = "$LXC/$vmid/passthrough";
    remove_tree($folder);
    for my $key (grep {/^dev\d/} sort keys %$values) {
        prepare_device($folder, parse_property_string('dev', $values->{$key}), $values->{unprivileged});
    }
}

sub prepare_device ($folder, $device, $unprivileged) {
    my $node = "$folder$device->{path}";
    make_path(dirname($node));
    my ($kind, $major, $minor) = device_number($device->{path});
    my ($mode, $uid, $gid) = ($device->{mode} // '0660', $device->{uid} // 0, $device->{gid} // 0);
    my ($output, $status) = capture('mknod', '-m', $mode, $node, $kind, $major, $minor);
    fail("failed to mknod $node: $output") if $status;
    my $shift = $unprivileged ? $FIRST_ID : 0;
    chown $shift + $uid, $shift + $gid, $node or fail("failed to chown $node: $!");
    return $node;
}

# Bring a device into a running container: its node is made outside and moved onto a file inside.
sub hotplug_device ($vmid, $text, $unprivileged) {
    my $device = parse_property_string('dev', $text);
    my $folder = "$LXC/$vmid/passthrough";
    unlink "$folder$device->{path}";
    my $node = prepare_device($folder, $device, $unprivileged);
    my ($mounts, $users) = map {
        open my $file, '<', '/proc/' . pid($vmid) . "/ns/$_" or fail("failed to open a namespace of $vmid: $!");
        $file;
    } qw(mnt user);
    my $child = fork // die "unable to fork - $!\n";
    if (!$child) {
        my ($setns, $open_tree, $move_mount) = (308, 428, 429);
        my ($here, $clone, $from_empty_path, $nothing) = (-100, 1, 4, '');
        my $tree = syscall $open_tree, $here, $node, $clone;
        my $there = !$unprivileged || syscall($setns, fileno $users, 0) == 0 && POSIX::setgid(0) && POSIX::setuid(0);
        $there &&= syscall($setns, fileno $mounts, 0) == 0 && chdir '/';
        make_path(dirname($device->{path})) if $there;
        $there &&= open my $file, '>>', $device->{path};
        $there &&= syscall($move_mount, $tree, $nothing, $here, $device->{path}, $from_empty_path) == 0;
        POSIX::_exit($there ? 0 : 1);
    }
    waitpid $child, 0;
    fail("unable to hotplug device: move_mount failed") if $?;
}

# The writable layer and overlayfs's work folder beside it, with the host name, hosts and (if there is a name server)
# resolv.conf that Proxmox writes.
sub prepare_rootfs ($vmid, $values) {
    my (undef, $image, $delta) = split /:/, rootfs_path($vmid, $values->{rootfs});
    fail("image '$image' does not exist") if !-d $image;
    my $root = $values->{unprivileged} ? $FIRST_ID : 0;
    for my $folder ($delta, dirname($delta) . '/work', "$delta/etc") {
        next if -d $folder;
        make_path($folder, { mode => 0755 });
        chown $root, $root, $folder;
    }
    my $name = $values->{hostname} || 'localhost';
    my $short = $name =~ s/\..*//r;
    my $network = $values->{net0} ? parse_property_string('net', $values->{net0}) : {};
    my $address = ($network->{ip} // '') =~ m{^([\d.]+)/} ? $1 : '127.0.1.1';
    my %files = (
        hostname => "$short\n",
        hosts => "127.0.0.1 localhost.localnet localhost\n::1 localhost.localnet localhost\n$address "
            . ($name eq $short ? $name : "$name $short") . "\n",
    );
    if (my $servers = $values->{nameserver}) {
        my $search = ($values->{searchdomain} // '') =~ s/[,;\s]+/ /gr;
        $files{'resolv.conf'} = ($search ? "search $search\n" : '')
            . join('', map {"nameserver $_\n"} split /[,;\s]+/, $servers);
    }
    for my $file (keys %files) {
        my $path = "$delta/etc/$file";
        my $old = read_file($path) // ($file eq 'hosts' ? read_file("$image/etc/hosts") : undef) // '';
        my $new = $file eq 'hosts' ? with_section($old, $files{$file}) : $files{$file};
        next if $new eq $old;
        write_file($path, $new);
        chown $root, $root, $path;
    }
}

# Lines that Proxmox owns in a file of the container; all others are left as they are.
sub with_section ($old, $section) {
    my ($begin, $end) = ("# --- BEGIN PVE ---\n", "# --- END PVE ---\n");
    my $marked = $begin . $section . $end;
    return $old if index($old, $marked) >= 0;
    return $old =~ s/\Q$begin\E.*?\Q$end\E/$marked/sr if $old =~ /^\Q$begin\E/m;
    return $old . (length $old && $old !~ /\n\z/ ? "\n" : '') . $marked;
}

# A container is a unit of the node, so it starts with the node's clean environment and limits, not the caller's.
sub prepare_unit () {
    my $unit = <<~'UNIT';
        [Unit]
        Description=PVE LXC Container: %i
        [Service]
        Type=forking
        PIDFile=/run/pve/ct-%i.pid
        Delegate=yes
        KillMode=mixed
        TimeoutStopSec=120s
        ExecStart=/usr/bin/lxc-start -d -n %i -p /run/pve/ct-%i.pid -o /run/pve/ct-%i.stderr -l ERROR
        ExecStop=-/usr/bin/lxc-stop -n %i --timeout 30
        StandardOutput=null
        StandardError=null
        UNIT
    return if (read_file($UNIT) // '') eq $unit;
    make_path(dirname($UNIT));
    write_file($UNIT, $unit);
    my ($output, $status) = capture('systemctl', 'daemon-reload');
    fail("unable to load $UNIT: $output") if $status;
}

# The real one looks at the systemd of the container and warns from version 242 on.
sub warn_about_nesting ($values) {
    my $features = parse_property_string('features', $values->{features} // '');
    return if $features->{nesting};
    my $image = (split /:/, rootfs_path(0, $values->{rootfs}))[1];
    my ($version) = map {/-(\d+)\.so$/} glob "$image/usr/lib/systemd/libsystemd-shared-*.so
        $image/usr/lib/*-linux-gnu/systemd/libsystemd-shared-*.so";
    warn_in_task("Systemd $version detected. You may need to enable nesting.") if defined $version && $version > 241;
}

# ---- state

# What `pct status --verbose` and the API's list show.
sub status ($vmid, $config) {
    my $values = $config->{values};
    my $running = is_running($vmid);
    my %status = (
        vmid => $vmid,
        type => 'lxc',
        status => $running ? 'running' : 'stopped',
        name => ($values->{hostname} || "CT$vmid") =~ s/\s//gr,
        cpus => $values->{cores} || $values->{cpulimit} || scalar(() = read_file('/proc/cpuinfo') =~ /^processor/mg),
        maxmem => ($values->{memory} || 512) * 1024**2,
        maxswap => ($values->{swap} // 0) * 1024**2,
        lock => $values->{lock},
        tags => $values->{tags},
        $values->{template} ? (template => 1) : (),
        map { $_ => 0 } qw(cpu disk diskread diskwrite mem netin netout swap uptime),
    );
    my %unit = (K => 1024, M => 1024**2, G => 1024**3, T => 1024**4);
    my ($size, $letter) = ($values->{rootfs} // '') =~ /\bsize=(\d+)([KMGT]?)/;
    $status{maxdisk} = defined $size ? $size * ($unit{$letter} // 1) : 4 * 1024**3;
    return \%status if !$running;

    my $pid = $status{pid} = pid($vmid);
    my ($block, $blocks, $free) = split ' ', capture('stat', '-f', '-c', '%S %b %f', "/proc/$pid/root/");
    @status{qw(maxdisk disk)} = ($block * $blocks, $block * ($blocks - $free)) if defined $free;
    my $started = (split ' ', (read_file("/proc/$pid/stat") // '') =~ s/.*\)//r)[19] // 0;
    $status{uptime} = int((split ' ', read_file('/proc/uptime'))[0] - $started / POSIX::sysconf(POSIX::_SC_CLK_TCK()));
    my $memory = read_file("/sys/fs/cgroup/lxc/$vmid/memory.current");
    $status{mem} = $memory + 0 if defined $memory;
    for (split /^/, read_file('/proc/net/dev')) {
        my ($received, $sent) = /^\s*veth${vmid}i\d+:\s*(\d+)(?:\s+\d+){7}\s+(\d+)/ or next;
        $status{netout} += $received;
        $status{netin} += $sent;
    }
    return \%status;
}

# ---- files

sub read_file ($path) {
    open my $file, '<', $path or return undef;
    local $/;
    return scalar <$file>;
}

sub write_file ($path, $text) {
    open my $file, '>', "$path.partial" or fail("unable to open file '$path.partial' - $!");
    print $file $text;
    close $file or fail("unable to write '$path.partial' - $!");
    rename "$path.partial", $path or fail("unable to rename '$path.partial' - $!");
}

# Output (stdout and stderr) and exit status of a command; only the output in scalar context.
sub capture (@command) {
    my $child = open(my $pipe, '-|') // die "unable to fork - $!\n";
    if (!$child) {
        open STDIN, '<', '/dev/null';
        open STDERR, '>&', \*STDOUT;
        $SIG{PIPE} = 'DEFAULT';
        exec @command or POSIX::_exit(127);
    }
    my $output = do { local $/; <$pipe> } // '';
    close $pipe;
    return wantarray ? ($output, $? >> 8 || $? & 127) : $output;
}

1;
