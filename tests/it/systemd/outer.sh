# outer.sh DIR SCRIPT ...: runs SCRIPT ... as process 1 of new namespaces, in a new cgroup, until stdin ends.
# The process at the other end of stdin may be killed at any time: everything ends then, and nothing is left behind.
dir=$1
shift
fail() {
    echo "$1" >"$dir/failed"
    exit 69
}

namespaces="--pid --mount --uts --ipc --cgroup --propagation private"
# Unquoted on purpose: several words.
# shellcheck disable=SC2086
unshare --fork $namespaces true 2>>"$dir/log" || fail "no namespaces can be made"
cgroups=$(findmnt -rn -t cgroup2 -o TARGET | head -n 1)
[ -n "$cgroups" ] || fail "no cgroup2 file system is mounted here"
own=$cgroups/cronkeeper-it-$$
mkdir "$own" "$own.owner" 2>>"$dir/log" || fail "no cgroup can be made below $cgroups"
echo "$own" >"$dir/cgroup"

(
    echo 0 >"$own/cgroup.procs" || fail "no process can be moved to $own"
    # shellcheck disable=SC2086
    exec unshare --fork --kill-child=KILL $namespaces -- sh "$@"
) </dev/null >>"$dir/log" 2>&1 &
parent=$!

# Moves the parent out, so that its child, the future systemd, is alone in the cgroup: a cgroup with processes of its
# own cannot enable controllers for those below.
until [ -s "$dir/pid" ] || ! kill -0 "$parent" 2>>"$dir/log"; do sleep 0.05; done
kill -0 "$parent" 2>>"$dir/log" && echo "$parent" >"$own.owner/cgroup.procs"
: >"$dir/alone"

cat >/dev/null
# Kills process 1 too, and with that all processes in the namespaces.
kill -KILL "$parent"
wait "$parent"
for _ in $(seq 100); do
    find "$own" "$own.owner" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$own" ] || [ -d "$own.owner" ] || exit 0
    sleep 0.1
done
