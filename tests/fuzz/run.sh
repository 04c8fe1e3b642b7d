#!/bin/bash
# run.sh - readers of files against what libFuzzer makes of small files, two at a time.
#
#   tests/fuzz/run.sh               20 s each
#   tests/fuzz/run.sh tekken        those with "tekken" in the name
#   UL_FUZZ_SECONDS=600 tests/fuzz/run.sh
#
# What a reader fails at lies in build/fuzz/findings. It is kept in tests/fuzz/kept/<target>, with
# which each run begins, once the reader is mended. The last line is
# "N passed, N failed, N skipped"; all is skipped where there is no clang.
cd "$(dirname "$0")/../.." || exit 1
seconds=${UL_FUZZ_SECONDS:-20}
targets=(safetensors config tokenizer_json tekken sentencepiece)
out=build/fuzz
passed=0 failed=0

skip() {
    echo "fuzz: skipped, $1"
    echo "0 passed, 0 failed, ${#targets[@]} skipped"
    exit 0
}

stop() {
    tail -n 50 $out/log
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

# Whether clang has what a fuzzer is linked with; not every package of it does.
command -v clang >/dev/null || skip 'there is no clang'
mkdir -p $out/findings
echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d[0] == n; }' |
    clang -x c -fsanitize=fuzzer,address,undefined -o $out/probe - 2>/dev/null ||
    skip 'this clang has no libFuzzer'

{ cmake -S tests/fuzz -B $out -DCMAKE_C_COMPILER=clang && cmake --build $out -j "$(nproc)"; } \
    >$out/log 2>&1 || stop
env "LUA_PATH=lua/?.lua;lua/?/init.lua;?.lua;;" "LUA_CPATH=build/release/?.so;;" \
    luajit tests/fuzz/seeds.lua $out/seeds >$out/log 2>&1 || stop

# What Lua's collector will free looks lost to LeakSanitizer, which does not look into its memory.
# New inputs are written to the first folder; the others are only read.
fuzz() {
    mkdir -p $out/found/"$1" tests/fuzz/kept/"$1"
    local leaks=1
    [[ $1 == config ]] && leaks=0
    ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=$leaks UBSAN_OPTIONS=print_stacktrace=1 \
        $out/"$1"_fuzz -max_total_time="$seconds" -detect_leaks=$leaks -timeout=20 \
        -rss_limit_mb=3000 \
        -max_len=32768 -dict=tests/fuzz/words.dict -artifact_prefix=$out/findings/"$1"- \
        $out/found/"$1" $out/seeds/"$1" tests/fuzz/kept/"$1" >$out/"$1".log 2>&1
}

say() {
    if [[ $2 == 0 ]]; then
        passed=$((passed + 1))
        echo "fuzz $1: $(grep -a '^Done' $out/"$1".log)"
    else
        failed=$((failed + 1))
        echo "fuzz $1: a finding"
        grep -aE '^(==|SUMMARY|    #|Test unit|artifact_prefix)|ERROR|error:' $out/"$1".log |
            head -n 30
    fi
}

chosen=()
for target in "${targets[@]}"; do [[ $target == *"$1"* ]] && chosen+=("$target"); done
for ((i = 0; i < ${#chosen[@]}; i += 2)); do
    fuzz "${chosen[i]}" & first=$!
    second=
    [[ ${chosen[i + 1]} ]] && { fuzz "${chosen[i + 1]}" & second=$!; }
    wait $first
    say "${chosen[i]}" $?
    [[ $second ]] || continue
    wait $second
    say "${chosen[i + 1]}" $?
done
rmdir tests/fuzz/kept/* 2>/dev/null # that hold nothing
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed > 0))
