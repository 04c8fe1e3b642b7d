#!/bin/bash
# parallel.sh - runs a command for each of its files (of specs, of whatever else) on all cores, a
# process for each, and adds up what they report.
#
#   tests/parallel.sh COMMAND... -- FILE...
#
# A core that is free takes the next file; what takes long comes first. tests/cuda/ops_spec.lua,
# as long as all that stand beside it, is two: UL_TEST_HALF says which half. Files that fail are
# shown last. The last line is "N passed, N failed, N skipped".
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
command=()
while [[ $1 != -- ]]; do command+=("$1") && shift; done
shift
long='/(ops|recipes|cudnn|hf_generate|hf_recipes|hf_recipes_settings|gradcheck|train|recipes_golden|ranks|resume)_spec'

one() { # FILE [HALF]
    local log status line
    log="$folder/$(basename "$1")-$2"
    if [[ $2 ]]; then export UL_TEST_HALF=$2; fi
    "${command[@]}" "$1" >"$log" 2>&1 </dev/null
    status=$?
    line=$(grep -aoE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if [[ -z $line ]]; then
        printf '\n%s has no closing line\n0 passed, 1 failed, 0 skipped\n' "$1" >>"$log"
    elif ((status)) && [[ $line == *' 0 failed'* ]]; then
        printf '\n%s: exit status %s\n%s\n' "$1" "$status" "${line/ 0 failed/ 1 failed}" >>"$log"
    fi
    if ((status)) || [[ -z $line ]]; then mv "$log" "$log.failed"; fi
}

cores=$(nproc) running=0
while read -r file half; do
    if ((running == cores)); then wait -n; else ((++running)); fi
    one "$file" $half &
done < <({ printf '%s\n' "$@" | grep -E "$long"; printf '%s\n' "$@" | grep -vE "$long"; } |
    sed 's|.*/cuda/ops_spec\.lua$|& 1\n& 2|')
wait
shopt -s nullglob
for log in "$folder"/*-*; do [[ $log == *.failed ]] || cat "$log"; done
failed=("$folder"/*.failed)
((${#failed[@]})) && cat "${failed[@]}"
for log in "$folder"/*; do
    grep -aoE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1
done | awk '{ p += $1; f += $3; s += $5 }
    END { printf "%d passed, %d failed, %d skipped\n", p, f, s }'
exit $((${#failed[@]} > 0))
