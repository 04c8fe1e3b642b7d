/* cudnn_run.cc - runs attention by cuDNN: which calls, on which plan, with what in the scratch
 * memory.
 */
#include <math.h>
#include <string.h>

#include <map>
#include <memory>

#include "cudnn_run.h"
#include "cudnn_attention.h"

using namespace cudnn;

/* ---- cuDNN on this device ---- */

static handle device;
static std::string device_trouble;

static std::string version_words(int v)
{
    return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
           std::to_string(v % 100);
}

static int version_at_hand() { return library() ? library()->version : 0; }

/* NULL, or why there is none. */
static const char *open_device(ul_stream *s)
{
    const api *a = library();
    if (!a) return library_trouble();
    if (device || !device_trouble.empty()) return device ? nullptr : device_trouble.c_str();
    int status = a->Create(&device);
    if (status == 0) status = a->SetStream(device, ul_cudnn_stream(s));
    if (status == 0) return nullptr;
    device = nullptr;
    device_trouble = "cuDNN " + version_words(a->version) +
                     " can not use this device: " + a->GetErrorString(status);
    return device_trouble.c_str();
}

/* ---- from a call to a shape ---- */

static int64_t power_above(int64_t n)
{
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

/* Each row of the batch is one document: no different from none. */
static bool is_ragged(const ul_attention_args *a) { return a->docs && a->n_docs > a->batch; }

/* Rows lie one behind another, so that a document's place is one offset. */
static bool is_flat(const ul_attention_args *a)
{
    int64_t t = a->q_tokens;
    return a->batch == 1 ||
           (a->q_stride[0] == t * a->q_stride[1] && a->k_stride[0] == t * a->k_stride[1] &&
            a->v_stride[0] == t * a->v_stride[1] && a->o_stride[0] == t * a->o_stride[1]);
}

/* Documents come in other numbers and lengths with each batch, plans take seconds: one is for up to
 * twice as many documents, and up to twice as long ones. */
static shape shape_of(ul_stream *stream, const ul_attention_args *a, int backward)
{
    shape s = {};
    s.ragged = is_ragged(a);
    s.batch = s.ragged ? power_above(a->n_docs) : a->batch;
    s.q_tokens = a->q_tokens;
    s.k_tokens = a->k_tokens;
    if (s.ragged && a->longest_doc > 0 && power_above(a->longest_doc) < a->q_tokens)
        s.q_tokens = s.k_tokens = power_above(a->longest_doc);
    s.heads = a->n_heads;
    s.kv_heads = a->n_kv_heads;
    s.dim = a->head_dim;
    for (int d = 0; d < 3; d++) {
        s.q_stride[d] = a->q_stride[d];
        s.k_stride[d] = a->k_stride[d];
        s.v_stride[d] = a->v_stride[d];
        s.o_stride[d] = a->o_stride[d];
    }
    s.causal = a->causal != 0;
    s.window = a->window > 0 && a->window < a->k_tokens;
    s.backward = backward;
    s.deterministic =
        backward && (!a->any_order ||
                     is_always_in_order(s.dim, version_at_hand(), ul_cudnn_capability(stream)));
    return s;
}

/* Prompts come in all lengths, each a plan of its own. Who computes must not depend on what has run
 * before: a run that goes on from a checkpoint gives the bits of one that was never stopped. */
enum { FEWEST_TOKENS = 1024 };

/* NULL, or why a call is not for cuDNN, whatever its shape. */
static const char *unsuited_call(const ul_attention_args *a)
{
    if (a->backend == UL_ATTENTION_NATIVE) return "the native one was asked for";
    if (a->partial || a->row_tokens) return "keys that go round a ring come in parts";
    if (!a->grouped) return "kv_head is no equal share of heads";
    if (a->backend == UL_ATTENTION_AUTO && a->k_tokens < FEWEST_TOKENS)
        return "rows of under 1024 tokens do not repay the seconds that a plan takes";
    if (is_ragged(a) && !is_flat(a)) return "rows of the batch do not follow each other";
    return nullptr;
}

/* ---- plans ---- */

/* Never destroyed: when a process ends, cuDNN may have ended before. */
static std::map<shape, std::unique_ptr<graph>> &plans =
    *new std::map<shape, std::unique_ptr<graph>>;

static graph *plan_for(ul_stream *s, const shape &x)
{
    std::unique_ptr<graph> &g = plans[x];
    if (g) return g.get();
    g.reset(new graph(library()));
    build(*g, x, target{device, nullptr, ul_cudnn_capability(s)});
    return g.get();
}

/* ---- scratch memory ---- */

struct layout {
    int64_t at[IDS], bytes;
};

static layout lay_out(ul_stream *s, const graph &g, const shape &x, const ul_attention_args *a)
{
    layout l;
    l.bytes = (g.workspace + 255) / 256 * 256;
    for (int id = 0; id < IDS; id++) {
        l.at[id] = l.bytes;
        l.bytes += bytes_of(x, id, a->batch * a->q_tokens, ul_cudnn_capability(s));
    }
    return l;
}

/* ---- who computes a call ---- */

/* The plan of a call, or NULL and why not. */
static graph *choose(ul_stream *s, const ul_attention_args *a, int backward, std::string &why)
{
    const char *reason = unsuited_call(a);
    if (!reason) reason = open_device(s);
    shape x = shape_of(s, a, backward);
    if (!reason) reason = unsuited(x, library()->version, ul_cudnn_capability(s));
    if (!reason && x.deterministic &&
        !has_deterministic_backward(library()->version, ul_cudnn_capability(s)))
        reason = "its backward adds in any order, or needs memory quadratic in the tokens, on this "
                 "GPU with this version, and deterministic(false) is not set";
    graph *g = reason ? nullptr : plan_for(s, x);
    if (g && !g->good()) reason = g->trouble.c_str();
    why = reason ? reason : "";
    if (!reason && a->backend == UL_ATTENTION_AUTO) {
        int64_t bytes = lay_out(s, *g, x, a).bytes;
        if (bytes > ul_cudnn_memory(s) / 16)
            why = "its " + std::to_string(bytes >> 20) +
                  " MiB of scratch memory are over a sixteenth of the GPU's";
    }
    return why.empty() ? g : nullptr;
}

/* ---- what has run ---- */

struct account {
    int backward;
    std::string who;

    bool operator<(const account &x) const
    {
        return backward != x.backward ? backward < x.backward : who < x.who;
    }
};

static std::map<account, int64_t> accounts;
enum { MOST_ACCOUNTS = 32 };

static void count(int backward, const std::string &who)
{
    account key = {backward, who};
    if (accounts.size() < MOST_ACCOUNTS || accounts.count(key)) accounts[key]++;
}

const char *ul_cudnn_report(void)
{
    static std::string text;
    text = library() ? "cuDNN " + version_words(library()->version) : "no cuDNN";
    for (const auto &each : accounts)
        text += std::string("\n") + (each.first.backward ? "backward" : "forward") + ": " +
                std::to_string(each.second) + (each.second == 1 ? " call" : " calls") + " by " +
                each.first.who;
    return text.c_str();
}

/* ---- choosing, once for the scratch memory and once to run ---- */

/* It was asked for by name and can not run: that is an error. */
static int refuse(const ul_attention_args *a, int backward, const std::string &why)
{
    std::string sentence = std::string("attention") + (backward ? " (backward)" : "") +
                           ": cuDNN was asked for, but " + why + " (head size " +
                           std::to_string(a->head_dim);
    if (library()) sentence += ", cuDNN " + version_words(library()->version);
    sentence += ")";
    sentence += "; attention_backend 'auto' runs what cuDNN does not take on our own kernel";
    return ul_cudnn_fail(sentence.c_str());
}

/* Parts of a ring have no other way: they are no error. */
static bool is_asked_for(const ul_attention_args *a)
{
    return a->backend == UL_ATTENTION_CUDNN && !a->partial && !a->row_tokens;
}

int ul_cudnn_work(ul_stream *s, int64_t *bytes, const ul_attention_args *a, int backward)
{
    std::string why;
    graph *g = choose(s, a, backward, why);
    *bytes = g ? lay_out(s, *g, shape_of(s, a, backward), a).bytes : 0;
    return !g && is_asked_for(a) ? refuse(a, backward, why) : 0;
}

/* ---- running ---- */

/* The variant pack of a call. */
struct pack_of {
    int64_t ids[IDS];
    void *pointers[IDS];
    int n;
    float scale, one, hidden, window;

    void add(int id, const void *p)
    {
        ids[n] = id;
        pointers[n++] = (void *)p;
    }
};

static void add_values(pack_of &p, const shape &x, const ul_attention_args *a)
{
    p.scale = (float)a->scale;
    p.one = 1;
    p.hidden = -INFINITY;
    p.window = (float)a->window;
    p.add(SCALE, &p.scale);
    if (x.backward) p.add(ONE, &p.one);
    if (x.causal || x.ragged) p.add(HIDDEN, &p.hidden);
    if (x.window) p.add(WINDOW, &p.window);
}

/* Makes offsets and lengths of documents in the scratch memory. */
static int add_docs(ul_stream *s, pack_of &p, const shape &x, const layout &l,
                    const ul_attention_args *a, char *work)
{
    const int64_t h = a->n_heads, d = a->head_dim;
    const int64_t strides[7] = {a->q_stride[1],
                                a->k_stride[1],
                                a->v_stride[1],
                                a->o_stride[1],
                                h * d,
                                a->n_kv_heads * d,
                                h};
    if (!x.ragged) return 0;
    for (int id = AT_Q; id <= K_TOKENS; id++)
        if (x.backward || (id != AT_D_Q && id != AT_D_K)) p.add(id, work + l.at[id]);
    return ul_cudnn_docs(s, (int64_t *)(work + l.at[AT_Q]), (l.at[AT_K] - l.at[AT_Q]) / 8, strides,
                         (int32_t *)(work + l.at[Q_TOKENS]), (int32_t *)(work + l.at[K_TOKENS]), a,
                         x.batch);
}

static const char *misplaced(std::initializer_list<const void *> pointers)
{
    for (const void *p : pointers)
        if ((uintptr_t)p & 15) return "a tensor does not begin at a multiple of 16 bytes";
    return nullptr;
}

/* 1, or what the failure returns. */
static int execute(graph *g, const pack_of &p, char *work, int backward)
{
    if (!g->execute(device, p.n, p.ids, p.pointers, work))
        return ul_cudnn_fail(("attention: cuDNN: " + g->trouble).c_str());
    count(backward, "cuDNN, engine " + std::to_string(g->engine));
    return 1;
}

static int decline(const ul_attention_args *a, int backward, const std::string &why, bool strict)
{
    if (strict && is_asked_for(a)) return refuse(a, backward, why);
    count(backward, "our own kernel: " + why);
    return 0;
}

int ul_cudnn_attention(ul_stream *s, void *o, void *lse, const void *q, const void *k,
                       const void *v, const ul_attention_args *a, void *memory)
{
    std::string why;
    graph *g = choose(s, a, 0, why);
    const char *wrong = misplaced({q, k, v, o});
    if (!g || wrong) return decline(a, 0, g ? wrong : why, true);
    shape x = shape_of(s, a, 0);
    layout l = lay_out(s, *g, x, a);
    char *work = (char *)memory;
    void *rows = x.ragged ? work + l.at[LSE] : lse;
    pack_of p = {};
    p.add(Q, q);
    p.add(K, k);
    p.add(V, v);
    p.add(O, o);
    p.add(LSE, rows);
    add_values(p, x, a);
    int rc = add_docs(s, p, x, l, a, work);
    if (rc == 0) rc = execute(g, p, work, 0);
    if (rc == 1 && x.ragged) {
        int turned = ul_cudnn_turn_rows(s, (float *)lse, (const float *)rows, a, 0);
        if (turned < 0) rc = turned;
    }
    return rc;
}

/* NULL, or why these gradients are not for cuDNN. */
static const char *unsuited_gradients(ul_grad dq, ul_grad dk, ul_grad dv)
{
    if (!dq.data || !dk.data || !dv.data) return "not all gradients are wanted";
    if (dq.add || dk.add || dv.add) return "gradients are added to what is there";
    return nullptr;
}

int ul_cudnn_attention_backward(ul_stream *s, ul_grad dq, ul_grad dk, ul_grad dv, const void *d_o,
                                const void *o, const void *lse, const void *q, const void *k,
                                const void *v, const ul_attention_args *a, void *memory)
{
    std::string why;
    const char *wrong = unsuited_gradients(dq, dk, dv);
    if (wrong) return decline(a, 1, wrong, false);
    graph *g = choose(s, a, 1, why);
    wrong = misplaced({q, k, v, o, d_o, dq.data, dk.data, dv.data});
    if (!g || wrong) return decline(a, 1, g ? wrong : why, true);
    shape x = shape_of(s, a, 1);
    layout l = lay_out(s, *g, x, a);
    char *work = (char *)memory;
    const void *rows = x.ragged ? work + l.at[LSE] : lse;
    pack_of p = {};
    const void *const given[] = {q, k, v, o, rows, d_o, dq.data, dk.data, dv.data};
    for (int id = Q; id <= D_V; id++) p.add(id, given[id - Q]);
    for (int id = SUMS; id <= WHOLE_D_V; id++)
        if (bytes_of(x, id, 1, ul_cudnn_capability(s)) > 0) p.add(id, work + l.at[id]);
    add_values(p, x, a);
    int rc = add_docs(s, p, x, l, a, work);
    if (rc == 0 && x.ragged)
        rc = ul_cudnn_turn_rows(s, (float *)(work + l.at[LSE]), (const float *)lse, a, 1);
    return rc < 0 ? rc : execute(g, p, work, 1);
}
