/* cudnn_rules.cc - what cuDNN's attention is known to take, and what it is known to get wrong.
 */
#include "cudnn_attention.h"

namespace cudnn
{

bool has_deterministic_backward(int version, int capability)
{
    return (capability / 10 == 10 && version >= 91800) ||
           (capability / 10 == 9 && version >= 92500);
}

bool accumulates(const shape &s, int capability)
{
    return s.backward && (!s.deterministic || capability / 10 == 9);
}

bool is_always_in_order(int64_t dim, int version, int capability)
{
    return dim == 256 && capability / 10 == 10 && version >= 92300;
}

static bool is_aligned(const int64_t *stride)
{
    return stride[0] % 8 == 0 && stride[1] % 8 == 0 && stride[2] % 8 == 0;
}

static const char *unsuited_ragged(const shape &s, int version, int capability)
{
    int is_small = capability / 10 == 8 || capability / 10 == 12; /* engines of Ampere */
    if (is_small && version < 91801) return "documents on this GPU need cuDNN 9.18.1 or newer";
    if (!s.backward) return nullptr;
    if (is_small) return "its backward needs much more memory for documents on this GPU";
    if (s.dim % 16 != 0) return "its backward of documents needs a head size divisible by 16";
    return nullptr;
}

/* Keys beyond the last, in a tile of 128 that is half full, have scored 0, not -inf: NaN where
 * log-sum-exps are below -88. A causal order or lengths hide them. */
static const char *unsuited_backward(const shape &s, int version)
{
    if (s.q_tokens < 2 || s.k_tokens < 2) return "its backward of one token gives NaN";
    if (!s.ragged && !s.causal && s.k_tokens % 128 != 0)
        return "its backward may give NaN where keys without causal order are not a multiple of "
               "128";
    if (!s.ragged && s.k_tokens % 128 != 0 && version <= 91500)
        return "its backward of tokens that are not a multiple of 128 needs cuDNN 9.15.1 or newer";
    return nullptr;
}

const char *unsuited(const shape &s, int version, int capability)
{
    if (s.dim % 8 != 0) return "the head size is not divisible by 8";
    if (s.dim > 256) return "the head size is over 256";
    if (s.kv_heads == 0 || s.heads % s.kv_heads != 0)
        return "query heads do not share kv heads equally";
    if (s.batch * s.q_tokens * s.k_tokens == 0) return "there is nothing to do";
    if (s.causal && s.q_tokens != s.k_tokens)
        return "there are not as many queries as keys in causal order";
    if (!is_aligned(s.q_stride) || !is_aligned(s.k_stride) || !is_aligned(s.v_stride) ||
        !is_aligned(s.o_stride))
        return "heads do not begin at multiples of 16 bytes";
    if (s.window && version == 91400 && s.k_tokens > 1024)
        return "windows are wrong in cuDNN 9.14.0";
    const char *why = s.ragged ? unsuited_ragged(s, version, capability) : nullptr;
    if (!why && s.backward) why = unsuited_backward(s, version);
    return why;
}

int64_t bytes_of(const shape &s, int id, int64_t tokens, int capability)
{
    int64_t all = s.ragged ? tokens : s.batch * s.q_tokens, bytes = 0;
    bool is_shared = s.heads != s.kv_heads;
    switch (id) {
    case LSE:
        bytes = s.ragged ? all * s.heads * 4 : 0;
        break;
    case SUMS:
        bytes = s.backward ? all * s.heads * 4 : 0;
        break;
    case ACCUMULATED:
        bytes = accumulates(s, capability) ? all * s.heads * s.dim * 4 : 0;
        break;
    case WHOLE_D_K:
    case WHOLE_D_V:
        bytes = s.backward && s.ragged && is_shared ? all * s.heads * s.dim * 2 : 0;
        break;
    case AT_Q:
    case AT_K:
    case AT_V:
    case AT_O:
    case AT_D_Q:
    case AT_D_K:
    case AT_LSE:
        bytes = s.ragged ? (s.batch + 1) * 8 : 0;
        break;
    case Q_TOKENS:
    case K_TOKENS:
        bytes = s.ragged ? s.batch * 4 : 0;
        break;
    default:
        break;
    }
    return (bytes + 255) / 256 * 256;
}

} // namespace cudnn
