#!/bin/bash
# events.sh - takes waits for events out of what connects ranks, one at a time, and fails where two
# ranks do not notice: one stream's work is done at once, the other's as late as events let it.
#
#   tests/cuemu/events.sh build/release
#
# The last line is "N passed, N failed, N skipped".
cd "$(dirname "$0")/../.." || exit 1
root=$PWD/$1 source=engine/comm/nccl.c
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0
export LUA_PATH="lua/?.lua;lua/?/init.lua;?.lua;;" UL_THREADS=1

# The engine with an edit of nccl.c.
build() {
    sed "$1" $source >"$folder/nccl.c"
    if cmp -s $source "$folder/nccl.c" && [[ $1 ]]; then
        echo "the edit of $source changes nothing: $1"
        return 1
    fi
    mkdir -p "$folder/ulysses"
    cc -std=gnu11 -fPIC -fvisibility=hidden -iquote engine/comm -c "$folder/nccl.c" \
        -o "$folder/nccl.o" &&
        (cd "$root" && eval "$(sed "s|-o [^ ]*|-o $folder/ulysses/core.so $folder/nccl.o|" \
            CMakeFiles/core.dir/link.txt)")
}

# found: whether a rank must notice
try() { # WHAT EDIT ORDER FOUND
    local rank good=1
    build "$2" || { failed=$((failed + 1)) && return; }
    for rank in 0 1; do
        { LUA_CPATH="$folder/?.so;;" UL_CUDA_BACKEND=$root/libulysses_cuda_emulated.so \
            CUEMU_DEVICES=2 CUEMU_STREAMS=$3 UL_CUDA_LIB_PATH=$root/fake UL_COMM_TIMEOUT=20 \
            RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=$((20000 + $$ % 20000)) \
            timeout 60 luajit tests/cuemu/streams.lua && echo "rank $rank is well"; } \
            >"$folder/log.$rank" 2>&1 &
    done
    wait
    for rank in 0 1; do
        [[ $(<"$folder/log.$rank") == "rank $rank is well" ]] || good=0
    done
    if [[ $4 == found ]] && ((!good)) && cat "$folder"/log.? | grep -qaF streams.lua: ||
        { [[ $4 != found ]] && ((good)); }; then
        passed=$((passed + 1))
    else
        echo "$1, streams in the order '$3': not as it must be"
        tail -n 20 "$folder"/log.?
        failed=$((failed + 1))
    fi
}

for order in compute exchange random; do try 'no fault' '' $order ''; done
try 'what is sent before it is computed' '/event_wait(cuda->exchange_stream/d' exchange found
try 'what is used before it has arrived' \
    's/return .*event_wait(.*stream(), .*arrived).*/return UL_OK;/' compute found
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed > 0))
