/* cudnn_plans.cc - makes cuDNN's plans for attention, by the code that runs them, for GPUs that are
 * not there: devices/NAME.json has the properties of each. It needs cuDNN and, beside itself, the
 * libcuda.so.1 that is made of fake_libcuda.c.
 *
 *   cudnn_plans FOLDER [all] NAME ...     all: every mask x heads x size x length, many minutes
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <fstream>
#include <sstream>

#include "cudnn_attention.h"

using namespace cudnn;

static int passed, failed, skipped;

/* ---- the devices ---- */

static int capability_of(const std::string &name) { return atoi(name.c_str() + 3); }

static descriptor properties_of(graph &g, const std::string &file)
{
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    std::string json = text.str();
    descriptor d = g.make(BACKEND_DEVICEPROP_DESCRIPTOR);
    g.set(d, ATTR_DEVICEPROP_JSON_REPRESENTATION, TYPE_CHAR, (int64_t)json.size(), json.c_str());
    g.finalize(d);
    return d;
}

/* ---- the cases ---- */

static void lay_out(int64_t *stride, int64_t tokens, int64_t heads, int64_t dim)
{
    stride[0] = tokens * heads * dim;
    stride[1] = heads * dim;
    stride[2] = dim;
}

struct masks {
    int64_t causal, window, ragged;
};

static shape shape_of(const masks &m, int64_t heads, int64_t kv_heads, int64_t dim, int64_t tokens)
{
    shape s = {};
    s.batch = tokens > 65536 ? 1 : 2;
    s.q_tokens = s.k_tokens = tokens;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.dim = dim;
    s.causal = m.causal;
    s.window = m.window;
    s.ragged = m.ragged;
    lay_out(s.q_stride, tokens, heads, dim);
    lay_out(s.k_stride, tokens, kv_heads, dim);
    lay_out(s.v_stride, tokens, kv_heads, dim);
    lay_out(s.o_stride, tokens, heads, dim);
    return s;
}

/* q, k and v are parts of one tensor, as a product with one weight for all three leaves them. */
static shape interleaved(shape s)
{
    int64_t width = (s.heads + 2 * s.kv_heads) * s.dim;
    for (int64_t *stride : {s.q_stride, s.k_stride, s.v_stride}) {
        stride[0] = s.q_tokens * width;
        stride[1] = width;
    }
    return s;
}

/* Head sizes over 128 have a backward on Hopper, and since cuDNN 9.23 on Blackwell in one order. */
static bool has_plan(const shape &s, int version, int capability)
{
    if (!s.backward || s.dim <= 128 || capability / 10 == 9) return true;
    return s.deterministic && is_always_in_order(s.dim, version, capability);
}

/* ---- one plan ---- */

static std::string words(const std::string &device, const shape &s)
{
    char text[200];
    snprintf(text, sizeof text, "%s %s%s %s%s%s q%lld kv%lld d%lld t%lld%s", device.c_str(),
             s.backward ? "backward" : "forward", s.deterministic ? " in order" : "",
             s.causal ? "causal" : "full", s.window ? " window" : "", s.ragged ? " ragged" : "",
             (long long)s.heads, (long long)s.kv_heads, (long long)s.dim, (long long)s.q_tokens,
             s.q_stride[1] != s.heads * s.dim ? " interleaved" : "");
    return text;
}

/* Memory of a plan that is linear in the tokens: some copies of q, accumulators, and statistics. */
static int64_t linear_bytes(const shape &s)
{
    return 24 * s.batch * s.q_tokens * s.heads * s.dim + (64 << 20);
}

static const char *wrong(const graph &g, const shape &s, bool expected)
{
    if (g.good() != expected) return expected ? g.trouble.c_str() : "there should be no plan";
    if (!expected) return nullptr;
    if (g.workspace > linear_bytes(s)) return "its workspace is not linear in the tokens";
    return nullptr;
}

/* The call that a GPU run makes, with addresses that nothing follows: is the variant pack whole? */
static void try_pack(graph &g)
{
    int64_t ids[IDS];
    void *pointers[IDS];
    float value = 1;
    int n = 0;
    for (int id = Q; id < IDS; id++, n++) {
        ids[n] = id;
        pointers[n] = (void *)(uintptr_t)(((uint64_t)id << 32) + (1ull << 44));
        if (id >= SCALE && id <= WINDOW) pointers[n] = &value;
    }
    void *workspace = g.workspace ? (void *)(uintptr_t)(1ull << 45) : nullptr;
    g.execute(nullptr, n, ids, pointers, workspace);
}

static void check(const std::string &folder, const std::string &device, const shape &s)
{
    const api *a = library();
    int capability = capability_of(device);
    std::string name = words(device, s);
    if (s.deterministic && !has_deterministic_backward(a->version, capability)) return;
    const char *why = unsuited(s, a->version, capability);
    if (why) {
        printf("  %s: not for cuDNN: %s\n", name.c_str(), why);
        return;
    }
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    graph g(a);
    target t = {nullptr, properties_of(g, folder + "/" + device + ".json"), capability};
    if (g.good()) build(g, s, t);
    if (g.good()) try_pack(g);
    clock_gettime(CLOCK_MONOTONIC, &to);
    why = wrong(g, s, has_plan(s, a->version, capability));
    (why ? failed : passed)++;
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    if (!g.good())
        printf("%s %s: no plan\n", why ? "!!" : "  ", name.c_str());
    else
        printf("%s %s: %zu nodes, engine %lld, workspace %.1f MB, %.1f s\n", why ? "!!" : "  ",
               name.c_str(), g.operations.size(), (long long)g.engine, (double)g.workspace / 1e6,
               seconds);
    if (why) printf("   %s\n", why);
    fflush(stdout);
}

/* Forward and both backwards. */
static void check_ways(const std::string &folder, const std::string &device, shape s)
{
    check(folder, device, s);
    s.backward = 1;
    check(folder, device, s);
    s.deterministic = 1;
    check(folder, device, s);
}

/* ---- the grids ---- */

static void check_all(const std::string &folder, const std::string &device)
{
    for (masks m : {masks{0, 0, 0}, masks{1, 0, 0}, masks{1, 1, 0}, masks{0, 0, 1}, masks{1, 0, 1},
                    masks{1, 1, 1}})
        for (int64_t kv_heads : {8, 32})
            for (int64_t dim : {64, 96, 128, 256})
                for (int64_t tokens : {1000, 4096, 131072})
                    check_ways(folder, device, shape_of(m, 32, kv_heads, dim, tokens));
    for (int64_t ragged : {0, 1})
        check_ways(folder, device, interleaved(shape_of(masks{1, 0, ragged}, 32, 8, 128, 4096)));
}

static void check_some(const std::string &folder, const std::string &device)
{
    check_ways(folder, device, shape_of(masks{1, 0, 0}, 32, 8, 128, 131072));
    check_ways(folder, device, interleaved(shape_of(masks{1, 1, 1}, 32, 8, 128, 4096)));
    check_ways(folder, device, shape_of(masks{1, 1, 0}, 4, 4, 64, 1000));
    check(folder, device, shape_of(masks{0, 0, 0}, 8, 8, 96, 256));
    check_ways(folder, device, shape_of(masks{1, 0, 0}, 8, 8, 256, 512));
}

int main(int n, char **arguments)
{
    bool all = n > 2 && !strcmp(arguments[2], "all");
    if (n < (all ? 4 : 3)) return fputs("cudnn_plans FOLDER [all] NAME ...\n", stderr), 2;
    std::string folder = arguments[1];
    std::vector<std::string> devices(arguments + (all ? 3 : 2), arguments + n);
    if (!library()) {
        printf("%s\n", library_trouble());
        skipped++;
        devices.clear();
    } else {
        printf("cuDNN %d\n", library()->version);
    }
    for (const std::string &device : devices) (all ? check_all : check_some)(folder, device);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}
