# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Command line of one sub-command, read as Proxmox reads it: Getopt::Long with permutation, abbreviations and one or
# two dashes, where every positional parameter is an option as well. So without `--` the options of a command given to
# `pct exec` are eaten: `-v` is `--vmid`, `-k` is `--keep-env`, `-e` is `--extra-args`.
package PctStandin::Arguments;

use v5.36;

use Exporter qw(import);
use Getopt::Long ();

use PctStandin::Fault qw(fail_arguments);

our @EXPORT_OK = qw(parse_arguments usage parse_boolean validate);

# A property is {type, format, optional, list, minimum, maximum, enum}; `positional` lists names in their order.

sub parse_arguments ($arguments, $positional, $properties) {
    my @arguments = @$arguments;
    my @specification;
    for my $name (keys %$properties) {
        my ($type, $list) = $properties->{$name}->@{qw(type list)};
        push @specification, $name . ($type eq 'boolean' ? ':s' : $list || $type eq 'array' ? '=s@' : '=s');
    }
    my %given;
    Getopt::Long::Configure('prefix_pattern=(--|-)');
    Getopt::Long::GetOptionsFromArray(\@arguments, \%given, @specification)
        or fail_arguments('unable to parse option');

    for my $name (@$positional) {
        if ($name eq 'extra-args') {
            $given{$name} = @arguments ? [splice @arguments] : [];
            last;
        }
        fail_arguments('internal error: extra-args must be the last argument') if $given{'extra-args'} && @arguments;
        if (!@arguments) {
            fail_arguments('not enough arguments') if !$properties->{$name}{optional};
            next;
        }
        $given{$name} = shift @arguments;
    }
    fail_arguments('too many arguments') if @arguments;

    for my $name (keys %given) {
        my $value = $given{$name};
        if (ref $value) {
            $_ = decode($_) for @$value;
            $given{$name} = join(',', @$value) if $properties->{$name}{list};
        } elsif ($properties->{$name}{type} eq 'boolean') {
            $given{$name} = $value eq '' ? 1 : parse_boolean($value)
                // fail_arguments('unable to parse boolean option');
        } else {
            $given{$name} = decode($value);
        }
    }
    validate(\%given, $properties);
    return \%given;
}

sub usage ($command, $positional, $properties) {
    my $line = "pct $command " . join(' ', map { $properties->{$_}{optional} ? "[<$_>]" : "<$_>" } @$positional);
    my %is_positional = map { $_ => 1 } @$positional;
    return $line . ((grep { !$is_positional{$_} } keys %$properties) ? " [OPTIONS]\n" : "\n");
}

sub parse_boolean ($text) {
    return $text =~ /^(1|on|yes|true)$/i ? 1 : $text =~ /^(0|off|no|false)$/i ? 0 : undef;
}

# Bytes that are no characters of the caller's locale become U+FFFD, each of them. A login over ssh that carries no
# LANG has the locale C, in which that is every byte above 127: `pct exec 101 -- touch grün` makes a file `gr??n`.
sub decode ($text) {
    my $copy = $text;
    return $text if ${^UTF8LOCALE} && utf8::decode($copy);
    state $character = qr/[\x00-\x7f]
        | [\xc2-\xdf][\x80-\xbf]
        | (?: \xe0[\xa0-\xbf] | [\xe1-\xec\xee\xef][\x80-\xbf] | \xed[\x80-\x9f] ) [\x80-\xbf]
        | (?: \xf0[\x90-\xbf] | [\xf1-\xf3][\x80-\xbf] | \xf4[\x80-\x8f] ) [\x80-\xbf]{2}/x;
    my $good = ${^UTF8LOCALE} ? $character : qr/[\x00-\x7f]/;
    return $text =~ s{($good)|.}{$1 // "\xef\xbf\xbd"}gser;
}

sub validate ($given, $properties) {
    my %errors;
    for my $name (keys %$given) {
        my $wrong = wrong_with($given->{$name}, $properties->{$name});
        $errors{$name} = $wrong if defined $wrong;
    }
    fail_arguments('Parameter verification failed.', \%errors) if %errors;
}

sub wrong_with ($value, $property) {
    my $type = $property->{type};
    return "type check ('integer') failed - got '$value'" if $type eq 'integer' && $value !~ /^[+-]?\d+$/;
    return "type check ('number') failed - got '$value'" if $type eq 'number' && $value !~ /^[+-]?(\d+\.?\d*|\.\d+)$/;
    if (my $format = $property->{format}) {
        eval { $format->($value); 1 } or return "invalid format - $@";
    }
    if ($type eq 'integer' || $type eq 'number') {
        my ($minimum, $maximum) = $property->@{qw(minimum maximum)};
        return "value must have a maximum value of $maximum" if defined $maximum && $value > $maximum;
        return "value must have a minimum value of $minimum" if defined $minimum && $value < $minimum;
    }
    if (my $enum = $property->{enum}) {
        return "value '$value' does not have a value in the enumeration '" . join(', ', @$enum) . "'"
            if !grep { $_ eq $value } @$enum;
    }
    return undef;
}

1;
