# inner.sh DIR NAME PROGRAM UNITS: as process 1 of fresh namespaces, makes a host of its own over this machine's files,
# in memory, with PROGRAM and UNITS installed in it, and becomes its systemd.
set -e
dir=$1 name=$2 program=$3 units=$4
trap 'echo "no host can be made in them" >"$dir/failed"' EXIT
# From the machine's own /proc: the number by which others know this process.
read -r pid rest </proc/self/stat

mount -t tmpfs -o mode=755,size=64m tmpfs "$dir/root"
mkdir "$dir/root/upper" "$dir/root/work" "$dir/root/all"
root=$dir/root/all
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/root/upper,workdir=$dir/root/work" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# Nothing in there may change what the kernel does for all.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro,nosuid,nodev,noexec "$root/proc/sys"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755,nosuid,size=4m tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
for place in run tmp var/lib/cronkeeper etc/systemd/system etc/cronkeeper etc/sysusers.d; do
    mkdir -p "$root/$place"
    mount -t tmpfs -o mode=755,nosuid tmpfs "$root/$place"
done
chmod 1777 "$root/tmp"

# As the README says, but for the program, which is large.
: >"$root/usr/bin/cronkeeper"
mount --bind "$program" "$root/usr/bin/cronkeeper"
install -m 644 "$units/cronkeeper.service" "$units/cronkeeper@.service" "$root/etc/systemd/system/"
install -m 644 "$units/sysusers.d/cronkeeper.conf" "$root/etc/sysusers.d/"
install -m 640 "$units/cronkeeper.env" "$root/etc/cronkeeper/"
# Of all the units that a machine has, no more than what cronkeeper's stand on.
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
    SYSTEMD_UNIT_PATH=/etc/systemd/system /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
