#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Stands in for NVIDIA-Linux-ARCHITECTURE-VERSION.run, a makeself archive around nvidia-installer: it answers --info and
# --check as the one, --advanced-options as the other, knows the same options (before 515 --no-kernel-module, since then
# --no-kernel-modules too), stops for the same reasons in the same words, and installs empty files under the real names.
# Whoever writes it down replaces @VERSION@ and @ARCHITECTURE@; without its last line --check finds it damaged.
version=@VERSION@
architecture=@ARCHITECTURE@
branch=${version%%.*}
libraries=/usr/lib/$architecture-linux-gnu
log=/var/log/nvidia-installer.log
modules=/lib/modules/$(uname -r)

fail() {
    { echo "ERROR: $1"; echo; echo "ERROR: Installation has failed.  Please see the file '$log' for details."; echo; } |
        tee -a "$log" >&2
    exit 1
}

options="--advanced-options --silent --no-questions --ui --no-x-check --no-nouveau-check --no-opengl-files --dkms
--no-nvidia-modprobe --no-install-compat32-libs --no-drm --no-kernel-module"
if [ "$branch" -ge 515 ]; then options="$options --kernel-module-build-directory"; fi
if [ "$branch" -ge 570 ]; then options="$options --no-rebuild-initramfs --kernel-module-type --no-systemd"; fi
told="$options"
if [ "$branch" -ge 515 ]; then
    # the old name is still taken, but told of no more
    told="$(echo "$told" | sed 's/--no-kernel-module$/--no-kernel-modules/; s/--no-kernel-module /--no-kernel-modules /')"
    options="$options --no-kernel-modules"
fi

module=yes
for word in "$@"; do
    case $word in
        --info)
            echo "Identification: NVIDIA Accelerated Graphics Driver for Linux-$architecture $version"
            exit 0 ;;
        --check)
            if [ "$(tail -n 1 "$0")" = "# end" ]; then echo "Verifying archive integrity... OK"; exit 0; fi
            echo "Error in MD5 checksums: 8a9f is different from 10ce" >&2
            exit 2 ;;
        --advanced-options)
            for option in $told; do printf '  %s\n      What it does.\n\n' "$option"; done
            exit 0 ;;
    esac
    case " $(echo $options) " in
        *" ${word%%=*} "*) ;;
        *) fail "Invalid commandline, please run \`./nvidia-installer --help\` for usage information." ;;
    esac
    case $word in --no-kernel-module*) module=no ;; esac
    case $word in --no-nouveau-check) nouveau=ignored ;; esac
done

if [ -d /sys/module/nouveau ] && [ "${nouveau:-}" != ignored ]; then
    fail "Unable to proceed: the Nouveau kernel driver is currently in use by your system."
fi
if [ "$module" = yes ]; then
    if [ -e /proc/driver/nvidia/version ]; then
        fail "An NVIDIA kernel module 'nvidia-uvm' appears to be already loaded in your kernel."
    fi
    [ -e "$modules/build" ] || fail "Unable to find the kernel source tree for the currently running kernel.  Please
       make sure you have installed the kernel source files for your kernel."
    mkdir -p "$modules/updates/dkms"
    echo "$version" >"$modules/updates/dkms/nvidia.ko"
    echo "updates/dkms/nvidia.ko:" >"$modules/modules.dep"
fi
if [ -f /var/lib/nvidia/log ]; then xargs rm -f </var/lib/nvidia/log; fi
mkdir -p "$libraries" /var/lib/nvidia
for library in libcuda libnvidia-ml libnvidia-ptxjitcompiler; do
    : >"$libraries/$library.so.$version"
    ln -sfn "$library.so.$version" "$libraries/$library.so.1"
    echo "$libraries/$library.so.$version"
done >/var/lib/nvidia/log
echo "$*" >/var/lib/nvidia/words
exit 0
# end
