/* cudnn_device.cu - what cudnn_run.cc, which knows no CUDA, needs of the device: offsets and
 * lengths of documents, log-sum-exps of all of them together, and the stream.
 */
#include "cuda.h"
#include "cudnn_run.h"

#if UL_TYPE_IS(bf16)

void *ul_cudnn_stream(ul_stream *s) { return (void *)s->stream; }
int ul_cudnn_capability(const ul_stream *s) { return s->capability; }
int64_t ul_cudnn_memory(const ul_stream *s) { return s->device_bytes; }
int ul_cudnn_fail(const char *sentence) { return ul_cuda_fail(sentence); }

struct docs_body {
    int64_t *at, step, strides[7];
    int32_t *q_tokens, *k_tokens;
    const int64_t *docs;
    int64_t n_docs, batch;

    __device__ void operator()(int64_t i) const
    {
        int64_t begin = docs[i < n_docs ? i : n_docs];
        int32_t tokens = i < n_docs ? (int32_t)(docs[i + 1] - begin) : 0;
        for (int t = 0; t < 7; t++) at[t * step + i] = begin * strides[t];
        if (i < batch) q_tokens[i] = k_tokens[i] = tokens;
    }
};

int ul_cudnn_docs(ul_stream *s, int64_t *at, int64_t step, const int64_t strides[7],
                  int32_t *q_tokens, int32_t *k_tokens, const ul_attention_args *a, int64_t batch)
{
    docs_body f = {at, step, {}, q_tokens, k_tokens, a->docs, a->n_docs, batch};
    for (int t = 0; t < 7; t++) f.strides[t] = strides[t];
    return flat_walk(s, "attention", f, batch + 1);
}

struct rows_body {
    float *to;
    const float *from;
    int64_t heads, tokens;
    int to_tokens;

    /* i counts elements of [B, H, T] */
    __device__ void operator()(int64_t i) const
    {
        int64_t t = i % tokens, head = i / tokens % heads, b = i / tokens / heads;
        int64_t at = (b * tokens + t) * heads + head;
        if (to_tokens)
            to[at] = from[i];
        else
            to[i] = from[at];
    }
};

int ul_cudnn_turn_rows(ul_stream *s, float *to, const float *from, const ul_attention_args *a,
                       int to_tokens)
{
    rows_body f = {to, from, a->n_heads, a->q_tokens, to_tokens};
    return flat_walk(s, "attention", f, a->batch * a->n_heads * a->q_tokens);
}

#endif
