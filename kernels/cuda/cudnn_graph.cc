/* cudnn_graph.cc - descriptors of tensors and operations.
 */
#include "cudnn_graph.h"

namespace cudnn
{

graph::~graph()
{
    for (size_t i = all.size(); i-- > 0;) cudnn->BackendDestroyDescriptor(all[i]);
}

void graph::fail(const char *what, int status)
{
    char more[512] = "";
    if (!good()) return;
    cudnn->GetLastErrorString(more, sizeof more);
    trouble = std::string(what) + ": " + cudnn->GetErrorString(status);
    for (char *c = more; *c; c++)
        if (*c == '\n') *c = ' ';
    if (more[0]) trouble += std::string(" (") + more + ")";
}

descriptor graph::make(int kind)
{
    descriptor d = nullptr;
    if (!good()) return d;
    int status = cudnn->BackendCreateDescriptor(kind, &d);
    if (status)
        fail("a descriptor", status);
    else
        all.push_back(d);
    return d;
}

void graph::set(descriptor d, int attribute, int type, int64_t count, const void *values)
{
    if (!good()) return;
    int status = cudnn->BackendSetAttribute(d, attribute, type, count, values);
    if (status) fail(("attribute " + std::to_string(attribute)).c_str(), status);
}

void graph::set(descriptor d, int attribute, descriptor value)
{
    set(d, attribute, TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void graph::finalize(descriptor d)
{
    if (!good()) return;
    int status = cudnn->BackendFinalize(d);
    if (status) fail("a descriptor", status);
}

/* ---- tensors ---- */

tensor graph::make_tensor(int64_t id, int type, quad dims, quad strides, const tensor *offsets,
                          bool is_virtual, bool is_value)
{
    tensor t = {make(BACKEND_TENSOR_DESCRIPTOR), dims, strides};
    const int64_t alignment = 16;
    const bool yes = true;
    set(t.d, ATTR_TENSOR_DATA_TYPE, TYPE_DATA_TYPE, 1, &type);
    set(t.d, ATTR_TENSOR_DIMENSIONS, TYPE_INT64, 4, dims.v);
    set(t.d, ATTR_TENSOR_STRIDES, TYPE_INT64, 4, strides.v);
    set(t.d, ATTR_TENSOR_UNIQUE_ID, TYPE_INT64, 1, &id);
    set(t.d, ATTR_TENSOR_BYTE_ALIGNMENT, TYPE_INT64, 1, &alignment);
    if (is_virtual) set(t.d, ATTR_TENSOR_IS_VIRTUAL, TYPE_BOOLEAN, 1, &yes);
    if (is_value) set(t.d, ATTR_TENSOR_IS_BY_VALUE, TYPE_BOOLEAN, 1, &yes);
    if (offsets) set(t.d, ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets->d);
    finalize(t.d);
    return t;
}

tensor graph::real(int64_t id, int type, quad dims, quad strides, const tensor *offsets)
{
    return make_tensor(id, type, dims, strides, offsets, false, false);
}

tensor graph::scalar(int64_t id)
{
    const quad one = {{1, 1, 1, 1}};
    return make_tensor(id, DATA_FLOAT, one, one, nullptr, false, true);
}

tensor graph::between(int type, quad dims, quad strides, const tensor *offsets)
{
    return make_tensor(next_id++, type, dims, strides, offsets, true, false);
}

/* ---- nodes ---- */

void graph::run_operation(descriptor d)
{
    finalize(d);
    operations.push_back(d);
}

/* A node that is yet to be run, for further operands. */
descriptor graph::begin_pointwise(int mode, int compute, const int64_t *axis, const tensor &x,
                                  const tensor &y)
{
    descriptor what = make(BACKEND_POINTWISE_DESCRIPTOR);
    set(what, ATTR_POINTWISE_MODE, TYPE_POINTWISE_MODE, 1, &mode);
    set(what, ATTR_POINTWISE_MATH_PREC, TYPE_DATA_TYPE, 1, &compute);
    if (axis) set(what, ATTR_POINTWISE_AXIS, TYPE_INT64, 1, axis);
    finalize(what);
    descriptor node = make(BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(node, ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
    set(node, ATTR_OPERATION_POINTWISE_XDESC, x.d);
    set(node, ATTR_OPERATION_POINTWISE_YDESC, y.d);
    return node;
}

tensor graph::pointwise(int mode, int y_type, const tensor &x, const tensor *b, const tensor *mask,
                        const tensor *given, int compute)
{
    tensor y = given ? *given : between(y_type, x.dims, x.strides);
    descriptor node = begin_pointwise(mode, compute, nullptr, x, y);
    if (b) set(node, ATTR_OPERATION_POINTWISE_BDESC, b->d);
    if (mask) set(node, ATTR_OPERATION_POINTWISE_TDESC, mask->d);
    run_operation(node);
    return y;
}

tensor graph::index(const tensor &like, int64_t axis, int compute)
{
    tensor y = between(DATA_INT32, like.dims, like.strides);
    run_operation(begin_pointwise(POINTWISE_GEN_INDEX, compute, &axis, like, y));
    return y;
}

tensor graph::reduce(int operation, const tensor &x, const tensor &y)
{
    const int type = DATA_FLOAT;
    descriptor what = make(BACKEND_REDUCTION_DESCRIPTOR);
    set(what, ATTR_REDUCTION_OPERATOR, TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
    set(what, ATTR_REDUCTION_COMP_TYPE, TYPE_DATA_TYPE, 1, &type);
    finalize(what);
    descriptor node = make(BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set(node, ATTR_OPERATION_REDUCTION_XDESC, x.d);
    set(node, ATTR_OPERATION_REDUCTION_YDESC, y.d);
    set(node, ATTR_OPERATION_REDUCTION_DESC, what);
    run_operation(node);
    return y;
}

tensor graph::transpose(const tensor &x, const tensor &y)
{
    descriptor node = make(BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set(node, ATTR_OPERATION_RESHAPE_XDESC, x.d);
    set(node, ATTR_OPERATION_RESHAPE_YDESC, y.d);
    run_operation(node);
    return y;
}

tensor graph::matmul(const tensor &a, const tensor &b, const tensor &c, const tensor *m,
                     const tensor *n, const tensor *k, bool padded)
{
    const int type = DATA_FLOAT;
    const double zero = 0;
    descriptor what = make(BACKEND_MATMUL_DESCRIPTOR);
    set(what, ATTR_MATMUL_COMP_TYPE, TYPE_DATA_TYPE, 1, &type);
    if (padded) set(what, ATTR_MATMUL_PADDING_VALUE, TYPE_DOUBLE, 1, &zero);
    finalize(what);
    descriptor node = make(BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set(node, ATTR_OPERATION_MATMUL_ADESC, a.d);
    set(node, ATTR_OPERATION_MATMUL_BDESC, b.d);
    set(node, ATTR_OPERATION_MATMUL_CDESC, c.d);
    set(node, ATTR_OPERATION_MATMUL_DESC, what);
    if (m) set(node, ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m->d);
    if (n) set(node, ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n->d);
    if (k) set(node, ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k->d);
    run_operation(node);
    return c;
}

} // namespace cudnn
