/* attention_backend.c - who computes attention where there is a choice, and whether sums may come
 * in any order.
 */
#include <string.h>

#include "attention.h"

static const char *const names[] = {
    [UL_ATTENTION_AUTO] = "auto", [UL_ATTENTION_CUDNN] = "cudnn", [UL_ATTENTION_NATIVE] = "native"};
static int backend = UL_ATTENTION_AUTO;
static int deterministic = 1;

const char *ul_attention_backend(void) { return names[backend]; }

int ul_set_attention_backend(const char *name)
{
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        backend = i;
        return UL_OK;
    }
    return ul__fail(UL_EVALUE, "attention_backend: there is no '%s' (auto, cudnn, native)", name);
}

int ul_deterministic(void) { return deterministic; }
void ul_set_deterministic(int yes) { deterministic = yes != 0; }

const char *ul_attention_report(void)
{
    return ul__cuda() ? ul__cuda()->attention_report() : "nothing has run on cuda";
}

void ul__choose_attention(ul_attention_args *a)
{
    a->backend = backend;
    a->any_order = !deterministic;
}
