#!/bin/sh
# Runs Debian's cron with one file of entries until it is killed: debian-cron.sh FILE
#
# For root. Without an installed cron it takes the program from the package, and installs nothing. Everything is in a
# mount namespace: it sees no other crontab, and the host's own cron does not see this one.
set -eu
cron=$(command -v cron) || {
    folder=$(mktemp -d)
    chmod 755 "$folder"
    (cd "$folder" && apt-get -qq download cron && dpkg -x cron_*.deb .) >&2
    cron=$folder/usr/sbin/cron
}
exec unshare --mount sh -ceu '
    mkdir -p /etc/cron.d /var/spool/cron/crontabs
    mount -t tmpfs tmpfs /var/spool/cron/crontabs
    mount -t tmpfs tmpfs /etc/cron.d
    # Entries with wrong permissions are ignored.
    cat "$2" >/etc/cron.d/bench
    [ ! -e /etc/crontab ] || mount --bind /dev/null /etc/crontab
    if [ "$1" != /usr/sbin/cron ]; then
        cat "$1" >/var/spool/cron/crontabs/.program
        chmod 755 /var/spool/cron/crontabs/.program
        rm -r "${1%/usr/sbin/cron}"
        set -- /var/spool/cron/crontabs/.program
    fi
    mount -t tmpfs tmpfs /run
    exec "$1" -f
' - "$cron" "$1"
