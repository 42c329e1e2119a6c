# witness.sh FILE [COMMAND...]: tells FILE that a run began, runs COMMAND, tells that it ended, ends with COMMAND's code.
file=$1
shift

say() {
    printf '%s %s %s %s %s %s %s %s %s\n' "$1" "$CRONKEEPER_JOB" "$CRONKEEPER_RUN_ID" "$CRONKEEPER_ATTEMPT" \
        "$CRONKEEPER_SCHEDULED_AT" "$CRONKEEPER_NODE" "$CRONKEEPER_FENCING_TOKEN" "$$" "$(date +%s%N)" >>"$file"
}

# Inherited by all that COMMAND starts: free only when the last of them is gone.
exec 9>>"$file.$CRONKEEPER_JOB.lock"
flock -n 9 || say overlap
say start
"$@"
code=$?
say end
exit "$code"
