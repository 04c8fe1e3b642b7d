/* attention.h - what attention on one rank and attention in a ring of ranks share.
 */
#ifndef UL_OP_ATTENTION_H
#define UL_OP_ATTENTION_H

#include "../internal.h"

/* What a call has saved: its inputs (last dim contiguous), its outputs, and its maps. */
enum { Q, K, V, O, LSE, DOCS, KV_HEAD };

/* Checks the inputs and the options of a call, makes its outputs and saves all that its rule needs;
 * tokens: of the rows that docs are about (-1: q's). Sets call->rc.
 */
void ul__attention_prepare(ul_call *call, const ul_attention_options *options, int64_t tokens);
/* The kernels' arguments, from what the call has saved. */
ul_attention_args ul__attention_args(const ul_call *call);
/* Sets who is to compute it, and in what order. */
void ul__choose_attention(ul_attention_args *a);
/* The memory that a kernel needs for a while. */
int ul__attention_work(ul_tensor **work, const ul_tensor *q, const ul_attention_args *a,
                       int backward);

#endif
