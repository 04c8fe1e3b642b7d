/* streams.cc - streams that run beside the host and beside each other, each a thread of its own.
 *
 * Kernels are run one at a time, as ever: what is shown is which stream's work may come first. Late
 * work waits until somebody waits for it, or for a while: a rank's part of an exchange must come
 * even if nobody here asks for it, as the other ranks do.
 */
#include "cuemu.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <signal.h>
#include <thread>
#include <vector>

namespace
{
/* What an event was recorded for; who waits for it keeps it, whatever becomes of the event. */
struct record {
    cudaStream_t stream;
    int64_t place; /* in that stream's work */
    int has_come;
};

struct job {
    std::unique_ptr<cuemu::task> task;
    int is_kernels; /* one of these at a time */
    std::shared_ptr<record> awaited;
    int is_late;
};
} // namespace

struct cuemu_event {
    std::shared_ptr<record> last; /* none: it was never recorded */
};

struct cuemu_stream {
    int number;
    std::deque<job> jobs;
    int64_t asked, done, wanted; /* counts of jobs */
};

int64_t cuemu_waits;

namespace
{
enum { PATIENCE = 20 /* ms */ };

/* What threads use is there until the process ends. */
std::mutex &lock = *new std::mutex, &kernels = *new std::mutex;
std::condition_variable &changed = *new std::condition_variable;
std::map<const char *, size_t> &pinned = *new std::map<const char *, size_t>;
int n_streams;
uint64_t random_bits = 88172645463325252u;

enum order { AT_ONCE, COMPUTE_FIRST, EXCHANGE_FIRST, BACK_LAST, RANDOM };
enum { BACK = 3 /* the number of the stream that copies to the host */ };

order order_of()
{
    const char *wish = getenv("CUEMU_STREAMS");
    if (!wish || !*wish) return AT_ONCE;
    if (!strcmp(wish, "compute")) return COMPUTE_FIRST;
    if (!strcmp(wish, "exchange")) return EXCHANGE_FIRST;
    if (!strcmp(wish, "back")) return BACK_LAST;
    if (!strcmp(wish, "random")) return RANDOM;
    cuemu::stop("CUEMU_STREAMS must be compute, exchange, back or random", 0, 0);
}

int is_late(const cuemu_stream *s)
{
    static const order how = order_of();
    random_bits ^= random_bits << 13;
    random_bits ^= random_bits >> 7;
    random_bits ^= random_bits << 17;
    if (how == BACK_LAST) return s->number == BACK;
    return how == RANDOM ? random_bits >> 32 & 1 : (s->number > 0) == (how == COMPUTE_FIRST);
}

/* All up to there is wanted now. */
void want(cuemu_stream *s, int64_t count)
{
    if (s->wanted >= count) return;
    s->wanted = count;
    changed.notify_all();
}

/* What a stream does, one after the other. */
void work(cuemu_stream *s)
{
    std::unique_lock<std::mutex> held(lock);
    for (;;) {
        changed.wait(held, [=] { return !s->jobs.empty(); });
        job &next = s->jobs.front();
        if (next.is_late)
            changed.wait_for(held, std::chrono::milliseconds(PATIENCE),
                             [=] { return s->wanted > s->done; });
        if (next.awaited) {
            want(next.awaited->stream, next.awaited->place);
            changed.wait(held, [&] { return next.awaited->has_come; });
        }
        held.unlock();
        if (next.is_kernels) {
            std::lock_guard<std::mutex> alone(kernels);
            next.task->run();
        } else if (next.task) {
            next.task->run();
        }
        held.lock();
        s->jobs.pop_front();
        s->done++;
        changed.notify_all();
    }
}

/* Signals are the host's. */
void start(cuemu_stream *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(work, s).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ask(cuemu_stream *s, job &&j)
{
    if (!s->asked++) start(s);
    j.is_late = is_late(s);
    s->jobs.push_back(std::move(j));
    changed.notify_all();
}
} // namespace

namespace cuemu
{
int streams_wait()
{
    static const int they_do = order_of() != AT_ONCE;
    return they_do;
}

void enqueue_task(cudaStream_t s, task *t, int is_kernels)
{
    std::lock_guard<std::mutex> held(lock);
    ask(s, job{std::unique_ptr<task>(t), is_kernels, nullptr, 0});
}

cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    if (!streams_wait()) return memcpy(to, from, bytes), cudaSuccess;
    const char *host = (const char *)(kind == cudaMemcpyHostToDevice ? from : to);
    auto after = pinned.upper_bound(host);
    int is_pinned = after != pinned.begin() && host < (--after)->first + after->second;
    if (kind == cudaMemcpyHostToDevice && !is_pinned) { /* it may be changed at once */
        std::vector<char> kept((const char *)from, (const char *)from + bytes);
        enqueue(
            s, [to, kept = std::move(kept)] { memcpy(to, kept.data(), kept.size()); }, 1);
        return cudaSuccess;
    }
    enqueue(
        s, [=] { memcpy(to, from, bytes); }, 1);
    if (kind == cudaMemcpyDeviceToHost && !is_pinned) wait_for(s);
    return cudaSuccess;
}

void wait_for(cudaStream_t s)
{
    if (!streams_wait()) return;
    std::unique_lock<std::mutex> held(lock);
    int64_t all = s->asked;
    want(s, all);
    changed.wait(held, [=] { return s->done >= all; });
}
} // namespace cuemu

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = new cuemu_stream();
    (*s)->number = n_streams++;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cuemu_waits++;
    cuemu::wait_for(s);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    return *event = new cuemu_event(), cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::mutex> held(lock);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    if (!cuemu::streams_wait()) return event->last.reset(), cudaSuccess;
    std::lock_guard<std::mutex> held(lock);
    auto now = std::make_shared<record>(record{s, s->asked + 1, 0});
    event->last = now;
    auto come = [=] {
        std::lock_guard<std::mutex> again(lock);
        now->has_come = 1;
    };
    ask(s,
        job{std::unique_ptr<cuemu::task>(new cuemu::task_of<decltype(come)>(come)), 0, nullptr, 0});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    std::lock_guard<std::mutex> held(lock);
    return !event->last || event->last->has_come ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned)
{
    std::lock_guard<std::mutex> held(lock);
    if (event->last) ask(s, job{nullptr, 0, event->last, 0});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cuemu_waits++;
    std::unique_lock<std::mutex> held(lock);
    auto last = event->last;
    if (!last) return cudaSuccess;
    want(last->stream, last->place);
    changed.wait(held, [=] { return last->has_come; });
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **data, size_t bytes)
{
    *data = cuemu::allocate(bytes);
    if (!*data) return cudaErrorMemoryAllocation;
    pinned[(const char *)*data] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    pinned.erase((const char *)data);
    cuemu::release(data);
    return cudaSuccess;
}

/* For fakes of libraries: run(argument) is the stream's work; 0: it was not taken, all runs at once
 * here. */
extern "C" __attribute__((visibility("default"))) int
cuemu_enqueue(void *stream, void (*run)(void *), void *argument)
{
    if (!cuemu::streams_wait()) return 0;
    cuemu::enqueue((cudaStream_t)stream, [=] { run(argument); }, 0);
    return 1;
}
