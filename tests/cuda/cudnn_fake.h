/* cudnn_fake.h - a libcudnn.so.9 for tests/cuda/cudnn_spec.lua: it keeps the graphs that it is
 * given, and runs them node by node on the CPU.
 *
 * FAKE_CUDNN_VERSION: what it says it is (91900). FAKE_CUDNN_CREATE: what cudnnCreate() returns.
 * FAKE_CUDNN_WORKSPACE: bytes that each plan wants.
 */
#ifndef CUDNN_FAKE_H
#define CUDNN_FAKE_H

#include <map>
#include <string>
#include <vector>

#include "cudnn_api.h"

namespace cudnn
{

/* What has been set, by attribute. */
struct opaque {
    int kind;
    bool is_final;
    std::map<int, std::vector<char>> values;

    bool has(int attribute) const { return values.count(attribute) > 0; }
    template <class T> std::vector<T> all(int attribute) const
    {
        auto at = values.find(attribute);
        if (at == values.end()) return {};
        const T *begin = (const T *)at->second.data();
        return std::vector<T>(begin, begin + at->second.size() / sizeof(T));
    }
    template <class T> T one(int attribute, T otherwise = T()) const
    {
        std::vector<T> values = all<T>(attribute);
        return values.empty() ? otherwise : values[0];
    }
    descriptor link(int attribute) const { return one<descriptor>(attribute, nullptr); }
};

/* The graph that a plan was made of. */
descriptor graph_of(descriptor plan);

/* Keeps what is wrong; the result is the status that says so. */
int wrong(const std::string &what);

/* Runs the nodes of a plan's graph; 0, or wrong(). */
int run_graph(descriptor plan, descriptor pack);

} // namespace cudnn

#endif
