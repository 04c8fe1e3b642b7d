/* cudnn_plan.cc - from a graph to a plan: an engine, its configuration, its workspace; and running
 * it.
 */
#include "cudnn_graph.h"

namespace cudnn
{

static const int64_t MOST_CONFIGS = 16;

/* What the heuristics propose, best first. */
std::vector<descriptor> graph::proposed(const target &t, descriptor operation_graph)
{
    const int mode = HEUR_MODE_A;
    descriptor heuristics = make(BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(heuristics, ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph);
    set(heuristics, ATTR_ENGINEHEUR_MODE, TYPE_HEUR_MODE, 1, &mode);
    if (t.properties) set(heuristics, ATTR_ENGINEHEUR_DEVICEPROP, t.properties);
    finalize(heuristics);
    std::vector<descriptor> configs(MOST_CONFIGS);
    for (descriptor &config : configs) config = make(BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t n = 0;
    if (good()) {
        int status =
            cudnn->BackendGetAttribute(heuristics, ATTR_ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR,
                                       MOST_CONFIGS, &n, configs.data());
        if (status) fail("the heuristics", status);
    }
    configs.resize((size_t)(n > MOST_CONFIGS ? MOST_CONFIGS : n));
    return configs;
}

descriptor graph::configured(const target &t, descriptor operation_graph, const pinned &choice)
{
    descriptor chosen = make(BACKEND_ENGINE_DESCRIPTOR);
    set(chosen, ATTR_ENGINE_OPERATION_GRAPH, operation_graph);
    set(chosen, ATTR_ENGINE_GLOBAL_INDEX, TYPE_INT64, 1, &choice.engine);
    if (t.properties) set(chosen, ATTR_ENGINE_DEVICEPROP, t.properties);
    finalize(chosen);
    std::vector<descriptor> knobs;
    for (const auto &knob : choice.knobs) {
        descriptor d = make(BACKEND_KNOB_CHOICE_DESCRIPTOR);
        set(d, ATTR_KNOB_CHOICE_KNOB_TYPE, TYPE_KNOB_TYPE, 1, &knob.first);
        set(d, ATTR_KNOB_CHOICE_KNOB_VALUE, TYPE_INT64, 1, &knob.second);
        finalize(d);
        knobs.push_back(d);
    }
    descriptor config = make(BACKEND_ENGINECFG_DESCRIPTOR);
    set(config, ATTR_ENGINECFG_ENGINE, chosen);
    set(config, ATTR_ENGINECFG_KNOB_CHOICES, TYPE_BACKEND_DESCRIPTOR, (int64_t)knobs.size(),
        knobs.data());
    finalize(config);
    return config;
}

/* Which engine the plan has. */
void graph::describe_engine(descriptor config)
{
    int64_t count = 0;
    descriptor used = make(BACKEND_ENGINE_DESCRIPTOR);
    if (!cudnn->BackendGetAttribute(config, ATTR_ENGINECFG_ENGINE, TYPE_BACKEND_DESCRIPTOR, 1,
                                    &count, &used))
        cudnn->BackendGetAttribute(used, ATTR_ENGINE_GLOBAL_INDEX, TYPE_INT64, 1, &count, &engine);
}

bool graph::take(const target &t, descriptor config)
{
    descriptor d = make(BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(d, ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (t.device) set(d, ATTR_EXECUTION_PLAN_HANDLE, TYPE_HANDLE, 1, &t.device);
    if (t.properties) set(d, ATTR_EXECUTION_PLAN_DEVICEPROP, t.properties);
    if (!good() || cudnn->BackendFinalize(d)) return false;
    int64_t count = 0;
    int status = cudnn->BackendGetAttribute(d, ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1,
                                            &count, &workspace);
    if (status) fail("the workspace", status);
    plan = d;
    describe_engine(config);
    return true;
}

void graph::finish(const target &t, const pinned &choice)
{
    descriptor operation_graph = make(BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(operation_graph, ATTR_OPERATIONGRAPH_OPS, TYPE_BACKEND_DESCRIPTOR,
        (int64_t)operations.size(), operations.data());
    if (t.device) set(operation_graph, ATTR_OPERATIONGRAPH_HANDLE, TYPE_HANDLE, 1, &t.device);
    finalize(operation_graph);
    std::vector<descriptor> configs;
    if (choice.engine >= 0)
        configs.push_back(configured(t, operation_graph, choice));
    else
        configs = proposed(t, operation_graph);
    for (descriptor config : configs)
        if (good() && take(t, config)) return;
    if (good()) trouble = "no engine of cuDNN takes this shape";
}

int graph::execute(handle h, int n, const int64_t *ids, void *const *pointers, void *memory)
{
    size_t before = all.size();
    descriptor pack = make(BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(pack, ATTR_VARIANT_PACK_UNIQUE_IDS, TYPE_INT64, n, ids);
    set(pack, ATTR_VARIANT_PACK_DATA_POINTERS, TYPE_VOID_PTR, n, pointers);
    set(pack, ATTR_VARIANT_PACK_WORKSPACE, TYPE_VOID_PTR, 1, &memory);
    finalize(pack);
    if (good() && h) {
        int status = cudnn->BackendExecute(h, plan, pack);
        if (status) fail("running a plan", status);
    }
    while (all.size() > before) {
        cudnn->BackendDestroyDescriptor(all.back());
        all.pop_back();
    }
    return good();
}

} // namespace cudnn
