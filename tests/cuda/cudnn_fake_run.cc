/* cudnn_fake_run.cc - runs a graph node by node: every tensor is a matrix for each b and h, and
 * what no node has made, or lies beyond a document's end, is NaN.
 */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "cudnn_fake.h"

namespace cudnn
{

/* ---- tensors ---- */

struct value {
    descriptor d;
    int64_t dims[4], strides[4], id;
    int type;
    bool is_virtual, is_value;
    char *memory;
    const int64_t *begins; /* of a ragged one: where the elements of the batch begin */
    int64_t times;         /* what that is multiplied with */
    std::vector<double> x; /* [dims] once it is known */

    int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
    /* The offset in memory of [b, h, i, j], or -1 where it is beyond the document's end. */
    int64_t offset(const int64_t *at) const
    {
        int64_t within = at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
        if (!begins) return at[0] * strides[0] + within;
        int64_t begin = begins[at[0]] * times, end = begins[at[0] + 1] * times;
        return begin + within < end ? begin + within : -1;
    }
    /* The element that belongs to one of a tensor with other dims: those of 1 are broadcast, heads
     * are shared. */
    double at(const int64_t *index, const int64_t *of) const
    {
        int64_t flat = 0;
        for (int k = 0; k < 4; k++)
            flat = flat * dims[k] + (dims[k] == of[k] ? index[k] : index[k] * dims[k] / of[k]);
        return x[(size_t)flat];
    }
};

/* Calls f(index, flat) for each element of dims. */
template <class F> static void each(const int64_t *dims, F f)
{
    int64_t at[4], flat = 0;
    for (at[0] = 0; at[0] < dims[0]; at[0]++)
        for (at[1] = 0; at[1] < dims[1]; at[1]++)
            for (at[2] = 0; at[2] < dims[2]; at[2]++)
                for (at[3] = 0; at[3] < dims[3]; at[3]++) f(at, flat++);
}

static double rounded(int type, double x)
{
    float f = (float)x;
    uint32_t u;
    if (type == DATA_FLOAT || type == DATA_INT32 || f != f) return f;
    if (type == DATA_BOOLEAN) return x != 0;
    memcpy(&u, &f, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return f;
}

static double read_element(int type, const char *memory, int64_t at)
{
    if (type == DATA_FLOAT) return ((const float *)memory)[at];
    if (type == DATA_INT32) return ((const int32_t *)memory)[at];
    uint32_t u = (uint32_t)((const uint16_t *)memory)[at] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void write_element(int type, char *memory, int64_t at, double x)
{
    float f = (float)rounded(type, x);
    uint32_t u;
    memcpy(&u, &f, 4);
    if (type == DATA_FLOAT)
        ((float *)memory)[at] = f;
    else
        ((uint16_t *)memory)[at] = (uint16_t)(u >> 16);
}

/* ---- the tensors of a graph ---- */

struct machine {
    std::map<descriptor, value> tensors;
    std::map<int64_t, char *> pack;
    std::map<descriptor, int64_t> least; /* token strides of those with one offset tensor */
    int rc;

    void fail(const std::string &what)
    {
        if (rc == 0) rc = wrong(what);
    }
    value &get(descriptor d);
    const value &input(descriptor d);
    void output(value &y);
};

/* What a tensor is; it is read from memory where no node has made it. */
value &machine::get(descriptor d)
{
    auto found = tensors.find(d);
    if (found != tensors.end()) return found->second;
    value &v = tensors[d];
    v.d = d;
    std::vector<int64_t> dims = d->all<int64_t>(ATTR_TENSOR_DIMENSIONS),
                         strides = d->all<int64_t>(ATTR_TENSOR_STRIDES);
    std::copy(dims.begin(), dims.end(), v.dims);
    std::copy(strides.begin(), strides.end(), v.strides);
    v.id = d->one<int64_t>(ATTR_TENSOR_UNIQUE_ID);
    v.type = d->one<int>(ATTR_TENSOR_DATA_TYPE);
    v.is_virtual = d->one<char>(ATTR_TENSOR_IS_VIRTUAL, 0);
    v.is_value = d->one<char>(ATTR_TENSOR_IS_BY_VALUE, 0);
    v.times = 1;
    descriptor offsets = d->link(ATTR_TENSOR_RAGGED_OFFSET_DESC);
    if (offsets) {
        v.begins = (const int64_t *)get(offsets).memory;
        v.times = strides[2] == 1 ? 1 : std::max<int64_t>(1, strides[2] / least[offsets]);
    }
    if (v.is_virtual) return v;
    v.memory = pack[v.id];
    if (!v.memory) fail("tensor " + std::to_string(v.id) + " is not in the variant pack");
    if (!v.is_value && ((uintptr_t)v.memory & 15)) fail("a tensor is not aligned");
    return v;
}

const value &machine::input(descriptor d)
{
    value &v = get(d);
    if (!v.x.empty() || rc) return v;
    if (v.is_virtual) fail("a node comes before the one that makes its input");
    v.x.assign((size_t)v.size(), NAN);
    if (rc == 0)
        each(v.dims, [&](const int64_t *at, int64_t flat) {
            int64_t offset = v.offset(at);
            if (offset >= 0) v.x[(size_t)flat] = read_element(v.type, v.memory, offset);
        });
    return v;
}

void machine::output(value &y)
{
    for (double &x : y.x) x = rounded(y.type, x);
    if (y.is_virtual || rc) return;
    each(y.dims, [&](const int64_t *at, int64_t flat) {
        int64_t offset = y.offset(at);
        if (offset >= 0) write_element(y.type, y.memory, offset, y.x[(size_t)flat]);
    });
}

/* ---- nodes ---- */

/* How many rows, columns or terms an element of the batch has. */
static int64_t length(machine &m, descriptor lengths, int64_t b, int64_t otherwise)
{
    return lengths ? (int64_t)m.input(lengths).x[(size_t)b] : otherwise;
}

static void run_matmul(machine &m, descriptor node)
{
    const value &a = m.input(node->link(ATTR_OPERATION_MATMUL_ADESC));
    const value &b = m.input(node->link(ATTR_OPERATION_MATMUL_BDESC));
    value &c = m.get(node->link(ATTR_OPERATION_MATMUL_CDESC));
    descriptor rows = node->link(ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC),
               columns = node->link(ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC),
               terms = node->link(ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
    descriptor what = node->link(ATTR_OPERATION_MATMUL_DESC);
    double beyond = what->one<double>(ATTR_MATMUL_PADDING_VALUE, NAN);
    if (a.dims[3] != b.dims[2] || a.dims[2] != c.dims[2] || b.dims[3] != c.dims[3])
        m.fail("matrices do not fit");
    c.x.assign((size_t)c.size(), beyond);
    if (m.rc) return;
    const int64_t a_of[4] = {c.dims[0], c.dims[1], a.dims[2], a.dims[3]};
    const int64_t b_of[4] = {c.dims[0], c.dims[1], b.dims[2], b.dims[3]};
    each(c.dims, [&](const int64_t *at, int64_t flat) {
        if (at[2] >= length(m, rows, at[0], c.dims[2])) return;
        if (at[3] >= length(m, columns, at[0], c.dims[3])) return;
        int64_t n = length(m, terms, at[0], a.dims[3]);
        double sum = 0;
        for (int64_t k = 0; k < n; k++) {
            const int64_t left[4] = {at[0], at[1], at[2], k}, right[4] = {at[0], at[1], k, at[3]};
            sum += a.at(left, a_of) * b.at(right, b_of);
        }
        c.x[(size_t)flat] = sum;
    });
    m.output(c);
}

static double apply(int mode, double x, double b)
{
    switch (mode) {
    case POINTWISE_ADD:
        return x + b;
    case POINTWISE_SUB:
        return x - b;
    case POINTWISE_MUL:
        return x * b;
    case POINTWISE_DIV:
        return x / b;
    case POINTWISE_EXP:
        return exp(x);
    case POINTWISE_LOG:
        return log(x);
    case POINTWISE_IDENTITY:
        return x;
    case POINTWISE_CMP_GT:
        return x > b;
    case POINTWISE_CMP_GE:
        return x >= b;
    case POINTWISE_CMP_LT:
        return x < b;
    case POINTWISE_LOGICAL_AND:
        return x != 0 && b != 0;
    default:
        return NAN;
    }
}

static void run_pointwise(machine &m, descriptor node)
{
    descriptor what = node->link(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    descriptor second = node->link(ATTR_OPERATION_POINTWISE_BDESC),
               third = node->link(ATTR_OPERATION_POINTWISE_TDESC);
    int mode = what->one<int>(ATTR_POINTWISE_MODE);
    int64_t axis = what->one<int64_t>(ATTR_POINTWISE_AXIS, 0);
    const value &x = m.input(node->link(ATTR_OPERATION_POINTWISE_XDESC));
    const value *b = second ? &m.input(second) : nullptr, *t = third ? &m.input(third) : nullptr;
    value &y = m.get(node->link(ATTR_OPERATION_POINTWISE_YDESC));
    if ((mode == POINTWISE_BINARY_SELECT) != (t != nullptr)) m.fail("a mask without a choice");
    y.x.assign((size_t)y.size(), NAN);
    if (m.rc) return;
    each(y.dims, [&](const int64_t *at, int64_t flat) {
        double left = x.at(at, y.dims), right = b ? b->at(at, y.dims) : 0;
        double &to = y.x[(size_t)flat];
        if (mode == POINTWISE_GEN_INDEX)
            to = (double)at[axis];
        else if (t)
            to = t->at(at, y.dims) != 0 ? left : right;
        else
            to = apply(mode, left, right);
    });
    m.output(y);
}

static void run_reduction(machine &m, descriptor node)
{
    const value &x = m.input(node->link(ATTR_OPERATION_REDUCTION_XDESC));
    value &y = m.get(node->link(ATTR_OPERATION_REDUCTION_YDESC));
    int mode = node->link(ATTR_OPERATION_REDUCTION_DESC)->one<int>(ATTR_REDUCTION_OPERATOR);
    y.x.assign((size_t)y.size(), mode == REDUCE_TENSOR_MAX ? -INFINITY : 0);
    if (m.rc) return;
    each(x.dims, [&](const int64_t *at, int64_t flat) {
        int64_t to = 0;
        for (int k = 0; k < 4; k++) to = to * y.dims[k] + at[k] * y.dims[k] / x.dims[k];
        double &sum = y.x[(size_t)to], next = x.x[(size_t)flat];
        sum = mode == REDUCE_TENSOR_MAX ? (next > sum ? next : sum) : sum + next;
    });
    m.output(y);
}

/* The same memory, seen with other dims and strides. */
static void run_reshape(machine &m, descriptor node)
{
    const value &x = m.input(node->link(ATTR_OPERATION_RESHAPE_XDESC));
    value &y = m.get(node->link(ATTR_OPERATION_RESHAPE_YDESC));
    std::map<int64_t, double> memory;
    auto place = [](const value &v, const int64_t *at) {
        return at[0] * v.strides[0] + at[1] * v.strides[1] + at[2] * v.strides[2] +
               at[3] * v.strides[3];
    };
    if (m.rc) return;
    each(x.dims,
         [&](const int64_t *at, int64_t flat) { memory[place(x, at)] = x.x[(size_t)flat]; });
    y.x.assign((size_t)y.size(), NAN);
    each(y.dims, [&](const int64_t *at, int64_t flat) {
        auto found = memory.find(place(y, at));
        if (found != memory.end()) y.x[(size_t)flat] = found->second;
    });
    m.output(y);
}

/* ---- a graph ---- */

static const int tensor_links[] = {
    ATTR_OPERATION_MATMUL_ADESC,    ATTR_OPERATION_MATMUL_BDESC,    ATTR_OPERATION_MATMUL_CDESC,
    ATTR_OPERATION_POINTWISE_XDESC, ATTR_OPERATION_POINTWISE_BDESC, ATTR_OPERATION_POINTWISE_TDESC,
    ATTR_OPERATION_POINTWISE_YDESC, ATTR_OPERATION_REDUCTION_XDESC, ATTR_OPERATION_REDUCTION_YDESC,
    ATTR_OPERATION_RESHAPE_XDESC,   ATTR_OPERATION_RESHAPE_YDESC};

static const int length_links[] = {ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
                                   ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
                                   ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC};

/* Offsets are those of the narrowest tensor that has them: wider ones multiply. */
static void note_ragged(machine &m, descriptor tensor)
{
    descriptor offsets = tensor->link(ATTR_TENSOR_RAGGED_OFFSET_DESC);
    std::vector<int64_t> stride = tensor->all<int64_t>(ATTR_TENSOR_STRIDES),
                         dims = tensor->all<int64_t>(ATTR_TENSOR_DIMENSIONS);
    if (!offsets || stride[2] == 1) return;
    int64_t &least = m.least[offsets];
    least = least ? std::min(least, stride[2]) : stride[2];
}

/* The variant pack holds what the graph has in memory, and nothing else. */
static void check_pack(machine &m, const std::vector<descriptor> &nodes)
{
    std::map<int64_t, bool> known;
    for (descriptor node : nodes) {
        for (int link : tensor_links)
            if (descriptor t = node->link(link)) {
                note_ragged(m, t);
                known[t->one<int64_t>(ATTR_TENSOR_UNIQUE_ID)] = true;
                if (descriptor o = t->link(ATTR_TENSOR_RAGGED_OFFSET_DESC))
                    known[o->one<int64_t>(ATTR_TENSOR_UNIQUE_ID)] = true;
            }
        for (int link : length_links)
            if (descriptor t = node->link(link))
                known[t->one<int64_t>(ATTR_TENSOR_UNIQUE_ID)] = true;
    }
    for (const auto &given : m.pack)
        if (!known[given.first])
            m.fail("tensor " + std::to_string(given.first) + " is in no node of the graph");
}

static void run_node(machine &m, descriptor node)
{
    switch (node->kind) {
    case BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        run_matmul(m, node);
        break;
    case BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        run_pointwise(m, node);
        break;
    case BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        run_reduction(m, node);
        break;
    case BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        run_reshape(m, node);
        break;
    default:
        m.fail("there is no such node");
    }
}

int run_graph(descriptor plan, descriptor pack)
{
    machine m = {};
    std::vector<int64_t> ids = pack->all<int64_t>(ATTR_VARIANT_PACK_UNIQUE_IDS);
    std::vector<char *> pointers = pack->all<char *>(ATTR_VARIANT_PACK_DATA_POINTERS);
    std::vector<descriptor> nodes = graph_of(plan)->all<descriptor>(ATTR_OPERATIONGRAPH_OPS);
    for (size_t i = 0; i < ids.size(); i++) m.pack[ids[i]] = pointers[i];
    check_pack(m, nodes);
    for (descriptor node : nodes)
        if (m.rc == 0) run_node(m, node);
    return m.rc;
}

} // namespace cudnn
