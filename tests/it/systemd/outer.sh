# outer.sh DIR SCRIPT ...: runs SCRIPT ... as process 1 of namespaces of its own, in a cgroup of its own, until stdin ends.
# Whoever holds the other end of stdin may be killed outright: all goes with it, and nothing stays behind.
dir=$1
shift
fail() {
    echo "$1" >"$dir/failed"
    exit 69
}

namespaces="--pid --mount --uts --ipc --cgroup --propagation private"
# Not quoted: several words.
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

# Its child, which is systemd soon, is alone there then: a cgroup that has processes of its own shares no controllers out.
until [ -s "$dir/pid" ] || ! kill -0 "$parent" 2>>"$dir/log"; do sleep 0.05; done
kill -0 "$parent" 2>>"$dir/log" && echo "$parent" >"$own.owner/cgroup.procs"
: >"$dir/alone"

cat >/dev/null
# With it dies process 1, and with that one all that is in there.
kill -KILL "$parent"
wait "$parent"
for _ in $(seq 100); do
    find "$own" "$own.owner" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$own" ] || [ -d "$own.owner" ] || exit 0
    sleep 0.1
done
