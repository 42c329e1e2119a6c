#!/bin/sh
# Runs Debian's cron with the entries in FOLDER/entries until it is killed: debian-cron.sh FOLDER
#
# For root. Without an installed cron it unpacks the package in the folder, and installs nothing. Everything is in a
# mount namespace: it sees no other crontab, and the host's own cron does not see this one.
set -eu
cd "$1"
cron=$(command -v cron) || {
    # As root, because apt's own user cannot write to the folder.
    apt-get -qq -o APT::Sandbox::User=root download cron >&2
    dpkg -x cron_*.deb .
    cron=$PWD/usr/sbin/cron
}
exec unshare --mount sh -ceu '
    mkdir -p /etc/cron.d /var/spool/cron/crontabs
    mount -t tmpfs tmpfs /var/spool/cron/crontabs
    mount -t tmpfs tmpfs /etc/cron.d
    install -m 644 entries /etc/cron.d/bench
    [ ! -e /etc/crontab ] || mount --bind /dev/null /etc/crontab
    mount -t tmpfs tmpfs /run
    exec "$1" -f
' - "$cron"
