#!/bin/bash
# halves.sh - runs specs in two processes at once, and adds up what they report.
#
#   tests/halves.sh COMMAND... -- FILE...
#
# Files are dealt in turn; tests/cuda/ops_spec.lua, which is as long as all that stand beside it,
# goes to both, each of which does half of it (UL_TEST_HALF). The last line is "N passed, N failed,
# N skipped".
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
command=()
while [[ $1 != -- ]]; do command+=("$1") && shift; done
shift
turn=0 first=() second=()
for file; do
    if [[ $file == */ops_spec.lua ]]; then
        first+=("$file") second+=("$file")
    elif ((turn ^= 1)); then
        first+=("$file")
    else
        second+=("$file")
    fi
done
run() { # NAME FILE...
    local name=$1
    shift
    (($#)) || { echo '0 passed, 0 failed, 0 skipped' >"$folder/$name" && return 0; }
    env UL_TEST_HALF="$name" "${command[@]}" "$@" >"$folder/$name" 2>&1
}
run 1 "${first[@]}" &
run 2 "${second[@]}"
status=$?
wait $! || status=$?
cat "$folder/1" "$folder/2"
for half in 1 2; do
    grep -aoE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$folder/$half" | tail -n 1 |
        grep . || { echo "half $half has no closing line" >&2 && echo '0 passed, 1 failed, 0 skipped'; }
done | awk '{ p += $1; f += $3; s += $5 } END { print p ", " f ", " s }' |
    sed -E 's/^(.*), (.*), (.*)$/\1 passed, \2 failed, \3 skipped/'
exit $status
