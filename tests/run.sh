#!/usr/bin/env bash
# Runs all tests. On a bare Debian with Rust it first installs the packages that are missing, then runs `cargo test`.
# CRONKEEPER_TEST_ARGS: more arguments for cargo, e.g. "--test it servers".
# On other systems it installs nothing and lists the packages that are missing.
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

if [[ -n ${CRONKEEPER_TEST_ARGS:-} ]]; then
    # Not quoted, because the variable holds several arguments.
    # shellcheck disable=SC2086
    exec cargo test --locked $CRONKEEPER_TEST_ARGS
fi

# The unit tests are not optimised: that takes longer than they do.
cargo test --locked --lib --config 'profile.dev.package.cronkeeper.opt-level=0'
cargo test --locked --bins --test it
cargo test --locked --doc
