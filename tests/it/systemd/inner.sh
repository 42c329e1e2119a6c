# inner.sh DIR NAME PROGRAM UNITS: runs as process 1 of new namespaces. Builds a simulated host in memory, on top of this
# machine's files, with PROGRAM and UNITS installed, and then executes its systemd. Without PROGRAM (an empty word) nothing
# is installed, so that a package can be.
set -e
dir=$1 name=$2 program=$3 units=$4
trap 'echo "no host can be made in them" >"$dir/failed"' EXIT
# Read from the machine's own /proc: the pid of this process outside.
read -r pid rest </proc/self/stat

mount -t tmpfs -o mode=755,size=1g tmpfs "$dir/root"
mkdir "$dir/root/upper" "$dir/root/work" "$dir/root/all"
root=$dir/root/all
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/root/upper,workdir=$dir/root/work" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# Read-only: nothing on the simulated host may change kernel settings of the machine.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro,nosuid,nodev,noexec "$root/proc/sys"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755,nosuid,size=4m tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
places="run tmp etc/systemd/system usr/lib/systemd/system"
# A package removes these itself, which it could not if something were mounted there.
[ -z "$program" ] || places="$places var/lib/cronkeeper etc/cronkeeper etc/sysusers.d"
for place in $places; do
    mkdir -p "$root/$place"
    mount -t tmpfs -o mode=755,nosuid tmpfs "$root/$place"
done
chmod 1777 "$root/tmp"

# Installed as in the README, except the program: it is too large to copy.
if [ -n "$program" ]; then
    : >"$root/usr/bin/cronkeeper"
    mount --bind "$program" "$root/usr/bin/cronkeeper"
    install -m 644 "$units/cronkeeper.service" "$units/cronkeeper@.service" "$root/etc/systemd/system/"
    install -m 644 "$units/sysusers.d/cronkeeper.conf" "$root/etc/sysusers.d/"
    install -m 640 "$units/cronkeeper.env" "$root/etc/cronkeeper/"
fi
# Only those units of the machine that cronkeeper's units need.
for unit in sysinit.target basic.target multi-user.target shutdown.target systemd-journald.socket systemd-journald.service; do
    install -m 644 "/lib/systemd/system/$unit" "$root/etc/systemd/system/"
done
mkdir "$root/etc/systemd/system/sysinit.target.wants"
ln -s ../systemd-journald.service "$root/etc/systemd/system/sysinit.target.wants/"

echo "$name" >"$root/etc/hostname"
echo "$pid" >"$dir/pid"
until [ -e "$dir/alone" ]; do sleep 0.05; done
cd "$root"
pivot_root . .
umount -l .
cd /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 container=cronkeeper-it \
    SYSTEMD_UNIT_PATH=/etc/systemd/system:/usr/lib/systemd/system /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
