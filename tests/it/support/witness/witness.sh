# witness.sh FILE [COMMAND...]: records in FILE that a run began, runs COMMAND, records its end, exits with its code.
file=$1
shift

say() {
    printf '%s %s %s %s %s %s %s %s %s\n' "$1" "$CRONKEEPER_JOB" "$CRONKEEPER_RUN_ID" "$CRONKEEPER_ATTEMPT" \
        "$CRONKEEPER_SCHEDULED_AT" "$CRONKEEPER_NODE" "$CRONKEEPER_FENCING_TOKEN" "$$" "$(date +%s%N)" >>"$file"
}

# Each node has its share of a job on every node.
case $CRONKEEPER_RUN_ID in
*@*) share=@${CRONKEEPER_RUN_ID##*@} ;;
*) share= ;;
esac

# All processes that COMMAND starts inherit the lock: it is free only when the last of them is gone.
exec 9>>"$file.$CRONKEEPER_JOB$share.lock"
flock -n 9 || say overlap
say start
"$@"
code=$?
say end
exit "$code"
