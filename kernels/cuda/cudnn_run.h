/* cudnn_run.h - attention by cuDNN, for the entry points of attention: bf16 where cuDNN takes the
 * shape and is wanted.
 */
#ifndef UL_CUDNN_RUN_H
#define UL_CUDNN_RUN_H

#include "../kernels.h"

extern "C" {
/* The scratch that a call needs from cuDNN; 0 where our own kernels run. All of these return what
 * the backend's failures return where cuDNN has been asked for and does not take the call. */
int ul_cudnn_work(ul_stream *s, int64_t *bytes, const ul_attention_args *a, int backward);
/* 1: done; 0: it is for our own kernels. */
int ul_cudnn_attention(ul_stream *s, void *o, void *lse, const void *q, const void *k,
                       const void *v, const ul_attention_args *a, void *work);
int ul_cudnn_attention_backward(ul_stream *s, ul_grad dq, ul_grad dk, ul_grad dv, const void *d_o,
                                const void *o, const void *lse, const void *q, const void *k,
                                const void *v, const ul_attention_args *a, void *work);
/* Who has computed how many calls, and why cuDNN has not. */
const char *ul_cudnn_report(void);

/* cudnn_device.cu */
/* What cuDNN wants to know of documents, from their offsets: at [7][step]: where
 * each of `batch` begins, in elements of seven tensors whose tokens are strides[] apart, and where
 * the last one ends; how many tokens it has. Those from n_docs on are empty. */
int ul_cudnn_docs(ul_stream *s, int64_t *at, int64_t step, const int64_t strides[7],
                  int32_t *q_tokens, int32_t *k_tokens, const ul_attention_args *a, int64_t batch);
/* [B, H, T] from [B T, H], or the other way. */
int ul_cudnn_turn_rows(ul_stream *s, float *to, const float *from, const ul_attention_args *a,
                       int to_tokens);
void *ul_cudnn_stream(ul_stream *s);
int ul_cudnn_capability(const ul_stream *s); /* 90: Hopper */
int64_t ul_cudnn_memory(const ul_stream *s); /* bytes of the device, whether in use or not */
/* Keeps the sentence of a failure; the result is what the caller returns. */
int ul_cudnn_fail(const char *sentence);
}

#endif
