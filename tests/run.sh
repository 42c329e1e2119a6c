#!/usr/bin/env bash
# Runs all tests. On a bare Debian with Rust it first installs the packages that are missing, then runs `cargo test`.
# On other systems it installs nothing and lists the packages that are missing.
#
# At its end it lists what was skipped and what failed. A test that fails is run once more by itself, when all others
# have ended, and fails only if it fails again. target/failed/TEST has what explains a failure, target/logs all output.
#
#   CRONKEEPER_TEST_ARGS="--test it servers"   only `cargo test` with these arguments
#   CRONKEEPER_LONG=1                          more random inputs and simulated clusters; takes hours
#   CRONKEEPER_STRICT=1                        a test that fails once fails the run
#   CRONKEEPER_STRICT_SKIPS=1                  so does a skip for lack of something that this machine has
set -euo pipefail
cd "$(dirname "$0")/.."

jars=${ZK_JARS:-/usr/share/java}
missing=()
need() { # PACKAGE CHECK...
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

# A C compiler, for SQLite and the TLS library.
need gcc command -v cc
need libc6-dev test -e /usr/include/stdlib.h
# A JDK, not only a runtime: the test with Curator compiles a small program.
need default-jdk-headless command -v javac
need libzookeeper-java test -e "$jars/zookeeper.jar"
need libnetty-java test -e "$jars/netty-codec.jar"
need libslf4j-java test -e "$jars/slf4j-simple.jar"
need libcurator-recipes-java test -e "$jars/curator-recipes.jar"
need python3-kazoo /usr/bin/python3 -c 'import kazoo'
need util-linux command -v setpriv
# Gives a command a terminal.
need bsdutils command -v script
# Boots hosts in namespaces; it touches nothing else on the machine.
need systemd test -x /lib/systemd/systemd
# promtool, which checks the metrics and the alert rules. Where systemd runs, the package also starts a Prometheus.
need prometheus command -v promtool
# Separate hosts for the nemesis, and rules that cut the links between them.
need iproute2 env PATH="$PATH:/usr/sbin:/sbin" bash -c 'command -v ip'
need nftables env PATH="$PATH:/usr/sbin:/sbin" bash -c 'command -v nft'
# A database, and a pool of connections to it. Where systemd runs, the packages also start one of their own.
need pgbouncer env PATH="$PATH:/usr/sbin" bash -c 'command -v pgbouncer'
need postgresql bash -c 'ls /usr/lib/postgresql/*/bin/postgres'
# Members of another store, and the program that administers them.
need etcd-server command -v etcd
need etcd-client command -v etcdctl
# A server of another store, and what watches it. Where systemd runs, the packages also start one each.
need redis-server command -v redis-server
need redis-sentinel command -v redis-sentinel
# A browser for the page, and the program that drives it.
need chromium command -v chromium
need chromium-driver command -v chromedriver

if ((${#missing[@]})); then
    sudo=()
    ((EUID == 0)) || sudo=(sudo -n)
    if command -v apt-get >/dev/null && "${sudo[@]}" true 2>/dev/null; then
        echo "tests/run.sh: installing ${missing[*]}" >&2
        install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
        "${install[@]}" update
        "${install[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "tests/run.sh: please install these packages (Debian names): ${missing[*]}" >&2
        echo "tests/run.sh: ZooKeeper's jars may also be in a directory named by ZK_JARS" >&2
        exit 69
    fi
fi

# More threads than cores: most tests spend their time waiting for processes, servers and sessions.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((4 * $(nproc)))}

# Absolute, because tests change their directory.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$target"
# Read by the tests, see tests/it/support/mod.rs: where skips are noted, and where what explains failures is kept. The
# program, which the tests call, refuses variables that begin with CRONKEEPER_ and that it does not know, and takes
# CRONKEEPER_STRICT for an option of its own.
export TESTS_SKIPPED=$target/skipped TESTS_FAILED=$target/failed
export -n CRONKEEPER_TEST_ARGS CRONKEEPER_STRICT CRONKEEPER_STRICT_SKIPS
: >"$TESTS_SKIPPED"

if [[ -n ${CRONKEEPER_TEST_ARGS:-} ]]; then
    # Not quoted, because the variable holds several arguments.
    # shellcheck disable=SC2086
    exec cargo test --locked $CRONKEEPER_TEST_ARGS
fi

# A machine that builds only here never builds twice in a row, so it does not prepare for an incremental build.
[[ -d $target/debug/incremental ]] || export CARGO_INCREMENTAL=0

logs=$target/logs beside_pid='' real='' simulation=''
rm -rf "$TESTS_FAILED" "$logs"
mkdir -p "$logs"
trap '[[ -z $beside_pid ]] || kill -- -"$beside_pid" 2>/dev/null || true' EXIT
failed=() flaky=()
# If more tests fail at the same time, the reason is not one test's bad luck.
most_again=10

names_of_failed() { # LOG: from the list at its end.
    awk '/^failures:$/ { list = "" }
        sub(/^    /, "") { list = list $0 "\n" }
        /^test result: FAILED/ { printf "%s", list }' "$1"
}

output_of() { # TEST LOG
    awk -v head="---- $1 stdout ----" '$0 == head { on = 1; print; next }
        on && /^(---- .* stdout ----|failures:)$/ { exit }
        on' "$2"
}

seed_of() { # OUTPUT: how to repeat it, e.g. CRONKEEPER_SIM_SEED=7, if it says so.
    grep -aoE 'CRONKEEPER_[A-Z]+_SEED=[0-9]+' "$1" | tail -n 1 || true
}

path_of() { # TEST BINARY
    sed -n "s/^ *Executable .*(\\(.*\\/deps\\/$1-[0-9a-f]*\\))$/\\1/p" "$logs/build"
}

# How long the real tests may take: twice what they take on two processors. 0: without end.
longest=${CRONKEEPER_LONG:+0}
longest=${longest:-40m}

# The kinds of tests. `real` are those of real processes. A crate that fails must not hide the tests of the others.
run_kind() { # KIND ARGUMENTS OF THE TEST BINARY...
    case $1 in
    # A test that hangs ends the run, which then names it, and not the patience of whoever waits.
    real) timeout --foreground --kill-after=10 "$longest" "$real" "${@:2}" ;;
    unit) cargo test --locked --no-fail-fast --workspace --lib --bins -- "${@:2}" ;;
    simulation) "$simulation" "${@:2}" ;;
    documentation) cargo test --locked --no-fail-fast --workspace --doc -- "${@:2}" ;;
    esac
}

# Runs tests. Only what has passed leaves a mark: what was killed has not.
run_all_of() { # KIND
    run_kind "$1" 2>&1 </dev/null | tee "$logs/$1" && touch "$logs/$1.passed"
}

# Runs those again that failed, each by itself and with its seed, as real processes may fail by accident. Keeps what
# explains a failure.
run_again() { # KIND
    local kind=$1 names name folder seed
    [[ ! -e $logs/$kind.passed ]] || return 0
    mapfile -t names < <(names_of_failed "$logs/$kind")
    # What does not compile, or was killed, has no list.
    if [[ $kind == real ]] && ! grep -q '^test result: ' "$logs/$kind"; then
        echo "tests/run.sh: the real tests did not end. Those that take long:" >&2
        grep 'has been running for over 60 seconds' "$logs/$kind" >&2 || true
    fi
    if ((${#names[@]} == 0)) || grep -q "^ *process didn't exit successfully: .* (signal: " "$logs/$kind"; then
        failed+=("the $kind tests as a whole: see $logs/$kind")
    fi
    for name in "${names[@]}"; do
        # As `tests/it/support` names them; a test of documentation has the path of its file in its name.
        folder=${name//::/__}
        folder=$TESTS_FAILED/${folder//\//_}
        mkdir -p "$folder"
        output_of "$name" "$logs/$kind" >"$folder/output"
        seed=$(seed_of "$folder/output")
        if ((${#names[@]} > most_again)); then
            failed+=("$name${seed:+ $seed}")
            continue
        fi
        echo "tests/run.sh: $name failed, and is run again${seed:+ with $seed}"
        if (
            [[ -z $seed ]] || export "${seed?}"
            RUST_TEST_THREADS=1 run_kind "$kind" --exact "$name"
        ) 2>&1 | tee "$folder/output-again"; then
            # Only processes, servers and a busy machine may make a difference.
            if [[ $kind == real ]]; then
                flaky+=("$name${seed:+ $seed}")
            else
                failed+=("$name${seed:+ $seed} (it has passed since)")
            fi
        else
            failed+=("$name${seed:+ $seed}")
        fi
    done
}

# Whether this machine has what a test lacked, by the names of `Facility` in tests/it/support/mod.rs.
has() { # FACILITY
    local mounted own
    mounted=$(findmnt -rn -t cgroup2 -o TARGET | head -n 1) || true
    case $1 in
    Root) ((EUID == 0)) ;;
    Namespaces) unshare --mount --net --pid --fork --propagation private mount -t tmpfs none /sys/fs/cgroup ;;
    Hosts)
        # What the commands of `ip` and `nft` in the tests need of the kernel.
        env PATH="$PATH:/usr/sbin:/sbin" unshare --mount --net sh -c 'ip link add bridge type bridge &&
            ip link add line type veth peer name other && nft add table ip trial'
        ;;
    # Where the tests are.
    Cgroups) own=$(sed -n 's/^0:://p' /proc/self/cgroup) && [[ -n $own ]] && takes_processes "$mounted$own" ;;
    Controllers) ((EUID == 0)) && grep -w memory "$mounted/cgroup.subtree_control" | grep -w pids ;;
    Systemd) has Root && has Namespaces && takes_processes "$mounted" && grep -w overlay /proc/filesystems ;;
    # By this script.
    Installed) true ;;
    Packages) [[ -n ${CRONKEEPER_PACKAGES:-} ]] ;;
    # Only the tests can tell.
    Kernel) false ;;
    # A new facility needs a line here.
    *) true ;;
    esac >/dev/null 2>&1
}

takes_processes() { # CGROUP
    local trial status=0
    trial=$(mktemp -d -p "$1") || return
    # The file takes the process that writes, and counts it until it has ended.
    sh -c "echo 0 >'$trial/cgroup.procs'" || status=1
    # The kernel may still count the process that has just ended.
    timeout 5 sh -c "until rmdir '$trial'; do sleep 0.1; done" || true
    return "$status"
}

# Lists what was skipped; false if a test lacked what this machine has.
list_skipped() {
    local name lacks why is_fine=true verdict
    local -A known=()
    echo "skipped: $(cut -f 1 "$TESTS_SKIPPED" | sort -u | wc -l)"
    while IFS=$'\t' read -r name lacks why; do
        if [[ -z ${known[$lacks]:-} ]]; then
            if has "$lacks"; then known[$lacks]="which this machine HAS"; else known[$lacks]="not here"; fi
        fi
        verdict=${known[$lacks]}
        [[ $verdict == "not here" ]] || is_fine=false
        echo "  $name: $why ($lacks: $verdict)"
    done < <(sort -u "$TESTS_SKIPPED")
    $is_fine
}

# The simulation is built together with the program, because the one crate after the other leaves a processor free.
CARGO_TERM_COLOR=never cargo test --locked --workspace --test it --test simulation --no-run 2>&1 | tee "$logs/build"
real=$(path_of it) simulation=$(path_of simulation)
[[ -x $real && -x $simulation ]] || {
    echo "tests/run.sh: cargo does not say where the test binaries are"
    exit 70
}

# The tests of real processes wait most of the time. What takes the whole processor runs at the same time and yields to
# them: in its own process group, so that it can be ended with this script, but in the same session, because between
# sessions the kernel heeds no nice value.
beside=(unit simulation documentation)
set -m
{
    renice -n 19 -p "$BASHPID"
    for kind in "${beside[@]}"; do run_all_of "$kind" || true; done
} >/dev/null &
beside_pid=$!
set +m
run_all_of real || true
# Tells scripts that wait for it that only the simulation is left.
touch "$logs/real.ended"
wait "$beside_pid" || true
beside_pid=''
for kind in "${beside[@]}"; do cat "$logs/$kind" || true; done
for kind in real "${beside[@]}"; do run_again "$kind"; done
# Tests that expect a panic keep something too.
for folder in "$TESTS_FAILED"/*/; do
    [[ -e $folder/output ]] || rm -rf "$folder"
done

verdict=0
echo
if ! list_skipped && [[ ${CRONKEEPER_STRICT_SKIPS:-} == 1 ]]; then
    echo "tests/run.sh: tests were skipped that this machine could have run"
    verdict=1
fi
if ((${#flaky[@]})); then
    printf 'FLAKY %s\n' "${flaky[@]}"
    [[ ${CRONKEEPER_STRICT:-} != 1 ]] || verdict=1
fi
if ((${#failed[@]})); then
    printf 'FAILED %s\n' "${failed[@]}"
    verdict=1
fi
((${#failed[@]} + ${#flaky[@]} == 0)) || echo "What explains it is in $TESTS_FAILED"
exit "$verdict"
