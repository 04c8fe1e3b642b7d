/* cudnn_graph.h - makes a graph of cuDNN's operations, node by node, and a plan that runs it.
 *
 * What fails is kept, the first of it, and all that follows does nothing: a caller asks once, at
 * the end.
 */
#ifndef UL_CUDNN_GRAPH_H
#define UL_CUDNN_GRAPH_H

#include <string>
#include <vector>

#include "cudnn_api.h"

namespace cudnn
{

/* Four numbers, of a tensor's dims b h s d or of their strides. */
struct quad {
    int64_t v[4];
};

struct tensor {
    descriptor d;
    quad dims, strides;
};

/* Where a plan is to run: a handle of the device at hand, or the properties of another one. */
struct target {
    handle device;
    descriptor properties;
    int capability; /* 90: Hopper */
};

/* An engine and its knobs, in place of what the heuristics choose; engine -1: they choose. */
struct pinned {
    int64_t engine;
    std::vector<std::pair<int, int64_t>> knobs;
};

struct graph {
    const api *cudnn;
    std::vector<descriptor> all, operations;
    int64_t next_id;
    std::string trouble; /* empty: none */
    descriptor plan;
    int64_t workspace, engine;

    explicit graph(const api *a) : cudnn(a), next_id(1000), plan(nullptr), workspace(0), engine(-1)
    {
    }
    graph(const graph &) = delete;
    ~graph();

    bool good() const { return trouble.empty(); }
    descriptor make(int kind);
    void set(descriptor d, int attribute, int type, int64_t count, const void *values);
    void set(descriptor d, int attribute, descriptor value);
    void finalize(descriptor d);
    void fail(const char *what, int status);

    /* A tensor in memory, known to the variant pack by its id. offsets: where each element of the
     * batch begins, of a ragged one. */
    tensor real(int64_t id, int type, quad dims, quad strides, const tensor *offsets = nullptr);
    tensor scalar(int64_t id);
    /* One between two nodes. */
    tensor between(int type, quad dims, quad strides, const tensor *offsets = nullptr);

    /* Nodes. y: where the result goes; NULL: to a new one like x, of y_type. */
    tensor pointwise(int mode, int y_type, const tensor &x, const tensor *b = nullptr,
                     const tensor *mask = nullptr, const tensor *y = nullptr,
                     int compute = DATA_FLOAT);
    tensor index(const tensor &like, int64_t axis, int compute);
    tensor reduce(int operation, const tensor &x, const tensor &y);
    tensor transpose(const tensor &x, const tensor &y);
    /* m, n, k: lengths for each element of the batch, or NULL. */
    tensor matmul(const tensor &a, const tensor &b, const tensor &c, const tensor *m,
                  const tensor *n, const tensor *k, bool padded = false);

    /* The first configuration that can be made a plan for the target; trouble where none can. */
    void finish(const target &t, const pinned &choice);
    /* Runs the plan: `n` tensors by id. By-value ones are pointers to the host. */
    int execute(handle h, int n, const int64_t *ids, void *const *pointers, void *workspace);

  private:
    tensor make_tensor(int64_t id, int type, quad dims, quad strides, const tensor *offsets,
                       bool is_virtual, bool is_value);
    descriptor begin_pointwise(int mode, int compute, const int64_t *axis, const tensor &x,
                               const tensor &y);
    void run_operation(descriptor d);
    std::vector<descriptor> proposed(const target &t, descriptor operation_graph);
    descriptor configured(const target &t, descriptor operation_graph, const pinned &choice);
    bool take(const target &t, descriptor config);
    void describe_engine(descriptor config);
};

} // namespace cudnn

#endif
