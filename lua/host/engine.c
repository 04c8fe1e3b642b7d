/* engine.c - what concerns the engine as a whole: seeds, memory, threads, and hooks for tests. */
#include <stdio.h>
#include <string.h>

#include "host.h"

static int manual_seed(lua_State *L)
{
    host_arguments(L, "manual_seed", 1);
    ul_manual_seed(host_seed(L, 1, "manual_seed"));
    return 0;
}

/* random_state() -> seed, next: where the generator stands */
static int random_state(lua_State *L)
{
    uint64_t seed, next;
    host_arguments(L, "random_state", 0);
    ul_random_state(&seed, &next);
    host_push_seed(L, seed);
    host_push_seed(L, next);
    return 2;
}

static int set_random_state(lua_State *L)
{
    host_arguments(L, "set_random_state", 2);
    uint64_t seed = host_seed(L, 1, "set_random_state");
    ul_random_set_state(seed, host_seed(L, 2, "set_random_state"));
    return 0;
}

/* default_device() -> where tensors are made unless a call says otherwise */
static int default_device(lua_State *L)
{
    host_arguments(L, "default_device", 0);
    lua_pushstring(L, ul_device_name(host_device));
    return 1;
}

static int set_default_device(lua_State *L)
{
    host_arguments(L, "set_default_device", 1);
    host_device = (ul_device)host_choice(L, 1, "set_default_device", "device", host_devices);
    return 0;
}

/* planning() -> boolean; planning(true): from now on all that a script makes is on meta */
static int planning(lua_State *L)
{
    host_arguments(L, "planning", 1);
    if (host_boolean(L, 1, "planning", "planned", 0)) host_plans = 1, host_device = UL_META;
    lua_pushboolean(L, host_plans);
    return 1;
}

/* tf32() -> boolean; tf32(boolean) sets it */
static int tf32(lua_State *L)
{
    host_arguments(L, "tf32", 1);
    ul_set_tf32(host_boolean(L, 1, "tf32", "allowed", ul_tf32()));
    lua_pushboolean(L, ul_tf32());
    return 1;
}

/* ---- memory ---- */

static void push_stats(lua_State *L, ul_device device)
{
    ul_memory_stats stats;
    ul_memory(&stats, device);
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {{"live", stats.live},
                  {"peak", stats.peak},
                  {"reserved", stats.reserved},
                  {"cached", stats.cached},
                  {"system_allocations", stats.system_allocations},
                  {"live_tensors", stats.live_tensors},
                  {"scratch", stats.scratch},
                  {"off_device", stats.off_device},
                  {"off_device_peak", stats.off_device_peak},
                  {"off_device_reserved", stats.off_device_reserved}};
    enum { N = sizeof fields / sizeof *fields };
    lua_createtable(L, 0, N);
    for (int i = 0; i < N; i++) {
        lua_pushnumber(L, (lua_Number)fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
}

/* memory() -> { cpu = { live =, peak =, cached =, .. }, meta = { .. } }; memory('cpu') -> one of
 * them */
static int memory(lua_State *L)
{
    host_arguments(L, "memory", 1);
    if (!lua_isnil(L, 1)) {
        push_stats(L, (ul_device)host_choice(L, 1, "memory", "device", host_devices));
        return 1;
    }
    lua_createtable(L, 0, UL_DEVICES);
    for (int d = 0; d < UL_DEVICES; d++) {
        if (d == UL_CUDA && !ul_cuda_is_open()) continue;
        push_stats(L, (ul_device)d);
        lua_setfield(L, -2, host_devices[d]);
    }
    return 1;
}

static int reset_peak_memory(lua_State *L)
{
    host_arguments(L, "reset_peak_memory", 0);
    for (int d = 0; d < UL_DEVICES; d++) ul_memory_reset_peak((ul_device)d);
    return 0;
}

/* set_memory_limit(device, bytes); 0: as much as the machine has */
static int set_memory_limit(lua_State *L)
{
    const char *op = "set_memory_limit";
    host_arguments(L, op, 2);
    int device = host_choice(L, 1, op, "device", host_devices);
    int64_t bytes = host_integer(L, 2, op, "bytes");
    if (bytes < 0) host_fail(L, "set_memory_limit: %lld bytes", (long long)bytes);
    ul_memory_set_limit((ul_device)device, bytes);
    return 0;
}

static int trim_memory(lua_State *L)
{
    host_arguments(L, "trim_memory", 0);
    for (int d = 0; d < UL_DEVICES; d++) ul_memory_trim((ul_device)d);
    return 0;
}

/* meta_counts() -> flops, bytes counted on the meta device since reset_meta_counts() */
static int meta_counts(lua_State *L)
{
    double flops, bytes;
    host_arguments(L, "meta_counts", 0);
    ul_meta_counts(&flops, &bytes);
    lua_pushnumber(L, flops);
    lua_pushnumber(L, bytes);
    return 2;
}

/* meta_kernels() -> { { name =, dtype =, calls =, flops =, bytes = }, .. } of what was called */
static int meta_kernels(lua_State *L)
{
    double calls, flops, bytes;
    const char *name;
    host_arguments(L, "meta_kernels", 0);
    lua_newtable(L);
    for (int k = 0, n = 0; (name = ul_meta_kernel(k, UL_F32, &calls, &flops, &bytes)); k++)
        for (int dtype = 0; dtype < UL_DTYPES; dtype++) {
            ul_meta_kernel(k, (ul_dtype)dtype, &calls, &flops, &bytes);
            if (calls == 0) continue;
            lua_createtable(L, 0, 5);
            lua_pushstring(L, name);
            lua_setfield(L, -2, "name");
            lua_pushstring(L, host_dtypes[dtype]);
            lua_setfield(L, -2, "dtype");
            lua_pushnumber(L, calls);
            lua_setfield(L, -2, "calls");
            lua_pushnumber(L, flops);
            lua_setfield(L, -2, "flops");
            lua_pushnumber(L, bytes);
            lua_setfield(L, -2, "bytes");
            lua_rawseti(L, -2, ++n);
        }
    return 1;
}

static int reset_meta_counts(lua_State *L)
{
    host_arguments(L, "reset_meta_counts", 0);
    ul_meta_reset();
    return 0;
}

/* ---- the cpu ---- */

/* threads() -> how many; threads(n) sets it */
static int threads(lua_State *L)
{
    host_arguments(L, "threads", 1);
    int64_t n = host_integer_or(L, 1, "threads", "the number", ul_threads());
    if (n < 1 || n > 256) host_fail(L, "threads: %lld is outside [1, 256]", (long long)n);
    if (n != ul_threads()) host_check(L, ul_set_threads((int)n));
    lua_pushinteger(L, ul_threads());
    return 1;
}

/* isa() -> the instruction set level in force; isa(name) sets it */
static int isa(lua_State *L)
{
    host_arguments(L, "isa", 1);
    if (!lua_isnil(L, 1)) {
        if (lua_type(L, 1) != LUA_TSTRING) host_fail(L, "isa: the name must be a string");
        host_check(L, ul_set_isa(lua_tostring(L, 1)));
    }
    lua_pushstring(L, ul_isa());
    return 1;
}

/* ---- attention on cuda ---- */

/* attention_backend() -> who computes it; attention_backend(name) sets it */
static int attention_backend(lua_State *L)
{
    static const char *const names[] = {"auto", "cudnn", "native", NULL};
    host_arguments(L, "attention_backend", 1);
    if (!lua_isnil(L, 1)) {
        int choice = host_choice(L, 1, "attention_backend", "backend", names);
        host_check(L, ul_set_attention_backend(names[choice]));
    }
    lua_pushstring(L, ul_attention_backend());
    return 1;
}

/* deterministic() -> boolean; deterministic(boolean) sets it */
static int deterministic(lua_State *L)
{
    host_arguments(L, "deterministic", 1);
    ul_set_deterministic(host_boolean(L, 1, "deterministic", "yes", ul_deterministic()));
    lua_pushboolean(L, ul_deterministic());
    return 1;
}

/* attention_report() -> lines */
static int attention_report(lua_State *L)
{
    host_arguments(L, "attention_report", 0);
    lua_pushstring(L, ul_attention_report());
    return 1;
}

/* flops() -> FLOPs of all products and attention so far */
static int flops(lua_State *L)
{
    host_arguments(L, "flops", 0);
    lua_pushnumber(L, ul_flops());
    return 1;
}

/* backward_passes() -> how many have begun so far */
static int backward_passes(lua_State *L)
{
    host_arguments(L, "backward_passes", 0);
    lua_pushnumber(L, (lua_Number)ul_backward_passes());
    return 1;
}

/* gpu() -> "NVIDIA H200", its UUID in hexadecimal; nil where there is none */
static int gpu(lua_State *L)
{
    host_arguments(L, "gpu", 0);
    const unsigned char *uuid;
    const char *name = ul_cuda_gpu(&uuid);
    if (!name) return lua_pushnil(L), 1;
    char hexadecimal[33];
    for (int i = 0; i < 16; i++) snprintf(hexadecimal + 2 * i, 3, "%02x", uuid[i]);
    lua_pushstring(L, name);
    lua_pushstring(L, hexadecimal);
    return 2;
}

/* peak_flops(dtype) -> FLOP/s that the cpu reaches at best */
static int peak_flops(lua_State *L)
{
    host_arguments(L, "peak_flops", 1);
    int dtype = UL_F32;
    if (!lua_isnil(L, 1)) dtype = host_choice(L, 1, "peak_flops", "dtype", host_dtypes);
    if (dtype != UL_F32 && dtype != UL_BF16 && dtype != UL_F64)
        host_fail(L, "peak_flops: dtype must be f32, bf16 or f64, got %s", host_dtypes[dtype]);
    lua_pushnumber(L, ul_peak_flops((ul_dtype)dtype));
    return 1;
}

/* ---- for tests ---- */

/* debug_fail_allocation(n): makes the n-th allocation from now fail; 0 turns that off */
static int debug_fail_allocation(lua_State *L)
{
    host_arguments(L, "debug_fail_allocation", 1);
    ul_debug_fail_allocation(host_integer(L, 1, "debug_fail_allocation", "n"));
    return 0;
}

static int debug_allocations(lua_State *L)
{
    host_arguments(L, "debug_allocations", 0);
    lua_pushnumber(L, (lua_Number)ul_debug_allocations());
    return 1;
}

const host_function host_engine[] = {
    {"manual_seed", manual_seed, NULL, HOST_MODULE},
    {"random_state", random_state, NULL, HOST_MODULE},
    {"set_random_state", set_random_state, NULL, HOST_MODULE},
    {"default_device", default_device, NULL, HOST_MODULE},
    {"set_default_device", set_default_device, NULL, HOST_MODULE},
    {"planning", planning, NULL, HOST_MODULE},
    {"tf32", tf32, NULL, HOST_MODULE},
    {"memory", memory, NULL, HOST_MODULE},
    {"reset_peak_memory", reset_peak_memory, NULL, HOST_MODULE},
    {"set_memory_limit", set_memory_limit, NULL, HOST_MODULE},
    {"trim_memory", trim_memory, NULL, HOST_MODULE},
    {"meta_counts", meta_counts, NULL, HOST_MODULE},
    {"meta_kernels", meta_kernels, NULL, HOST_MODULE},
    {"reset_meta_counts", reset_meta_counts, NULL, HOST_MODULE},
    {"threads", threads, NULL, HOST_MODULE},
    {"isa", isa, NULL, HOST_MODULE},
    {"attention_backend", attention_backend, NULL, HOST_MODULE},
    {"deterministic", deterministic, NULL, HOST_MODULE},
    {"attention_report", attention_report, NULL, HOST_MODULE},
    {"flops", flops, NULL, HOST_MODULE},
    {"backward_passes", backward_passes, NULL, HOST_MODULE},
    {"gpu", gpu, NULL, HOST_MODULE},
    {"peak_flops", peak_flops, NULL, HOST_MODULE},
    {"debug_fail_allocation", debug_fail_allocation, NULL, HOST_MODULE},
    {"debug_allocations", debug_allocations, NULL, HOST_MODULE},
    {NULL, NULL, NULL, 0},
};
