#!/usr/bin/env bash
# Checks that the tests find deliberate bugs: applies every patch of tests/mutants to a copy of the tree, one at a time,
# and runs the test that the patch's head names. Exits with 1 if a bug is not found.
#
#   tests/mutants.sh [NAME...]     only patches whose names begin with NAME: tests/mutants.sh 03 11
#
# The head of a patch: `Bug` and `Rule` are for people; `Test` must fail; `Seeds` is the most seeds it is given; `Says`
# is a text that its failure must contain. A patch that does not compile, hangs, whose test does not run, or that fails
# with another message counts as not found.
# Needs git. Builds in a separate directory below the target directory; the first mutant takes minutes, each other one
# seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

limit=${CRONKEEPER_MUTANT_SECONDS:-600}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants
unset CRONKEEPER_SIM_SEED
# Not under /tmp: Cargo's configuration in the directories above the tree must apply to the copy too. And not under
# Cargo's directory: it looks for the files there by their old paths, so if the copy of a killed run is left, it takes
# that run's build for this one's.
mkdir -p "$CARGO_TARGET_DIR"
copy=$(mktemp -d -p "${CARGO_TARGET_DIR%/*}" mutants-XXXXXX)
trap 'rm -rf "$copy"' EXIT
output=$copy/output
tree=$copy/tree

mkdir "$tree"
# With new times: the build that is there may contain the last run's last mutant.
tar --exclude=./target --exclude=./.git -cf - . | tar -xmf - -C "$tree"

head_of() { # KEY PATCH
    sed -n "/^diff /q; s/^$1: //p" "$2"
}

put() { # PATCH [OPTION]: git must not treat the copy as part of a surrounding repository.
    (cd "$tree" && GIT_CEILING_DIRECTORIES=$copy git apply "${@:2}" "$1")
}

test_it() { # PATCH: prints the result; false if the bug survives.
    local test where says status=0
    test=$(head_of Test "$1") says=$(head_of Says "$1") where=(--workspace --test it)
    # A test of the simulation bears the name of its binary before its own, a unit test that of its crate.
    case $test in
        simulation::*) where=(--workspace --test simulation) test=${test#*::} ;;
        cluster::*) where=(-p cronkeeper-cluster --lib) test=${test#*::} ;;
        core::*) where=(-p cronkeeper-core --lib) test=${test#*::} ;;
    esac
    if ! (cd "$tree" && cargo test --locked --quiet "${where[@]}" --no-run) >"$output" 2>&1; then
        echo "does not compile"
        return 1
    fi
    (cd "$tree" && CRONKEEPER_SIM_SEEDS=$(head_of Seeds "$1") \
        timeout "$limit" cargo test --locked --quiet "${where[@]}" -- --exact "$test") >"$output" 2>&1 || status=$?
    if ((status == 124)); then
        echo "hangs: no verdict in $limit s"
    elif grep -q '^running 0 tests$' "$output"; then
        echo "its test did not run: there is no $test"
    elif ((status == 0)) && grep -qE '^SKIPPED: |^test result: ok\. 0 passed' "$output"; then
        echo "its test did not run: $test is skipped here"
    elif ((status == 0)); then
        echo "SURVIVES $test"
    elif ! grep -qF "$says" "$output" || ! grep -q '^test result: FAILED' "$output"; then
        echo "fails without \"$says\""
    else
        echo "\"$says\", $(grep -aoEm1 '^seed [0-9]+' "$output" || echo 'no seed')"
        return 0
    fi
    return 1
}

is_chosen() { # NAME CHOICE...
    local name=$1 choice
    shift
    (($# == 0)) && return 0
    for choice; do [[ $name == "$choice"* ]] && return 0; done
    return 1
}

survivors=0 tried=0
printf '%-42s %8s  %s\n' mutant seconds 'found by'
for patch in "$PWD"/tests/mutants/*.patch; do
    name=$(basename "$patch" .patch)
    is_chosen "$name" "$@" || continue
    tried=$((tried + 1)) begun=$SECONDS
    if ! put "$patch"; then
        verdict="does not apply: recreate it from the present tree"
        survivors=$((survivors + 1))
    else
        verdict=$(test_it "$patch") || {
            survivors=$((survivors + 1))
            tail -n 40 "$output" >&2
        }
        put "$patch" --reverse
    fi
    printf '%-42s %8d  %s\n' "$name" $((SECONDS - begun)) "$verdict"
done
echo "$tried tried, $survivors not found"
((tried > 0 && survivors == 0))
