#!/usr/bin/env bash
# Runs all tests. On a bare Debian with Rust it first installs the packages that are missing, then runs `cargo test`.
# On other systems it installs nothing and lists the packages that are missing.
#
# At its end it lists what was skipped and what failed. A test of real processes that fails is run once more, alone, and
# fails only if it fails again. What explains a failure is in target/failed/TEST.
#
#   CRONKEEPER_TEST_ARGS="--test it servers"   only `cargo test` with these arguments
#   CRONKEEPER_LONG=1                          more random inputs and simulated clusters; takes hours
#   CRONKEEPER_STRICT=1                        a test that fails once fails the run
#   CRONKEEPER_STRICT_SKIPS=1                  so does a skip for want of what this machine has
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
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(nproc)))}

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

rm -rf "$TESTS_FAILED"
log=$(mktemp) beside=$(mktemp)
beside_pid='' beside_arguments=()
trap '[[ -z $beside_pid ]] || kill -- -"$beside_pid"; rm -f "$log" "$beside"' EXIT
failed=() flaky=() names=()
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

build() { # ARGUMENTS OF CARGO TEST...
    # Only documentation cannot be built apart.
    [[ " $* " == *" --doc "* ]] || cargo test --locked "$@" --no-run
}

# Puts the names of the tests that failed into `names`.
read_failed() { # LOG ARGUMENTS OF CARGO TEST...
    mapfile -t names < <(names_of_failed "$1")
    # A test binary that was killed has no list.
    ((${#names[@]})) || failed+=("cargo test ${*:2}")
}

# Runs the tests of one kind. If their build fails, the run ends. The names of those that fail are in `names`.
run() { # ARGUMENTS OF CARGO TEST...
    build "$@"
    names=()
    # One crate that fails must not hide the tests of the others.
    cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$log" || read_failed "$log" "$@"
}

# Tests whose failure is certain.
run_once() { # ARGUMENTS OF CARGO TEST...
    run "$@"
    failed+=("${names[@]}")
}

# Tests whose failure is certain, and that take all of the processor: they run beside those that wait for processes most
# of the time, and yield to them. `end_beside` waits for them.
run_beside() { # ARGUMENTS OF CARGO TEST...
    build "$@"
    beside_arguments=("$@")
    # A process group of its own, so that nothing of it outlives this script.
    setsid nice -n 19 cargo test --locked "$@" >"$beside" 2>&1 &
    beside_pid=$!
}

end_beside() {
    names=()
    wait "$beside_pid" || read_failed "$beside" "${beside_arguments[@]}"
    beside_pid=''
    cat "$beside"
    failed+=("${names[@]}")
}

# Tests of real processes, which may fail by accident: those that fail are run again, each alone and with its seed.
run_twice() { # ARGUMENTS OF CARGO TEST...
    local name folder seed
    run "$@"
    for name in "${names[@]}"; do
        folder=$TESTS_FAILED/${name//::/__}
        mkdir -p "$folder"
        output_of "$name" "$log" >"$folder/output"
        seed=$(seed_of "$folder/output")
        if ((${#names[@]} > most_again)); then
            failed+=("$name${seed:+ $seed}")
            continue
        fi
        echo "tests/run.sh: $name failed, and is run again${seed:+ with $seed}"
        if env ${seed:+"$seed"} RUST_TEST_THREADS=1 cargo test --locked "$@" -- --exact "$name" 2>&1 |
            tee "$folder/output-again"; then
            flaky+=("$name${seed:+ $seed}")
        else
            failed+=("$name${seed:+ $seed}")
        fi
    done
    # Tests that expect a panic keep something too.
    for folder in "$TESTS_FAILED"/*/; do
        [[ -e $folder/output ]] || rm -rf "$folder"
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
    timeout 5 sh -c "until rmdir '$trial'; do :; done" || true
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

# Always of the whole workspace, so that all have the same features of their dependencies, and nothing is built twice.
run_once --workspace --lib --bins
run_beside --workspace --test simulation
run_twice --workspace --test it
end_beside
run_once --workspace --doc

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
