#!/bin/bash
# events.sh - takes waits for events out of the engine, one at a time, and fails where ranks that
# exchange, or a process that keeps state off its device, do not notice: one stream's work is done
# at once, another's as late as events let it.
#
#   tests/cuemu/events.sh build/release
#
# The last line is "N passed, N failed, N skipped".
cd "$(dirname "$0")/../.." || exit 1
root=$PWD/$1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0
export LUA_PATH="lua/?.lua;lua/?/init.lua;?.lua;;" UL_THREADS=1

# The engine with an edit of one file.
build() { # SOURCE EDIT
    sed "$2" "$1" >"$folder/edited.c"
    if cmp -s "$1" "$folder/edited.c" && [[ $2 ]]; then
        echo "the edit of $1 changes nothing: $2"
        return 1
    fi
    mkdir -p "$folder/ulysses"
    cc -std=gnu11 -fPIC -fvisibility=hidden -iquote "$(dirname "$1")" -c "$folder/edited.c" \
        -o "$folder/edited.o" &&
        (cd "$root" && eval "$(sed "s|-o [^ ]*|-o $folder/ulysses/core.so $folder/edited.o|" \
            CMakeFiles/core.dir/link.txt)")
}

# found: whether a rank must notice
try() { # WHAT EDIT ORDER FOUND
    local rank good=1
    build engine/comm/nccl.c "$2" || { failed=$((failed + 1)) && return; }
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

# A process of its own, whose copies to the host are late.
try_turns() { # WHAT SOURCE EDIT
    build "$2" "$3" || { failed=$((failed + 1)) && return; }
    LUA_CPATH="$folder/?.so;;" UL_CUDA_BACKEND=$root/libulysses_cuda_emulated.so \
        CUEMU_STREAMS=back UL_DEVICE=cuda timeout 60 luajit tests/cuemu/turns.lua \
        >"$folder/log" 2>&1
    if grep -qF 'an event is missing' "$folder/log"; then
        passed=$((passed + 1))
    else
        echo "$1: not found"
        tail -n 20 "$folder/log"
        failed=$((failed + 1))
    fi
}

for order in compute exchange random; do try 'no fault' '' $order ''; done
try 'what is sent before it is computed' 's/ul__stream_after(cuda->exchange_stream.*;/UL_OK;/' exchange found
try 'what is used before it has arrived' \
    's/return .*event_wait(.*stream(), .*arrived).*/return UL_OK;/' compute found
try_turns 'state that is read before it is back' engine/stage.c \
    's/if (off.i.) UL_TRY(ul__slot_order(.*/;/'
try_turns "a slot that is loaded before it is stored" engine/off_device.c \
    '/^static int copy(/,/^}/s/UL_TRY(ul__slot_order(slot, s));//'
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed > 0))
