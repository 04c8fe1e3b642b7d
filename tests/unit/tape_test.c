/* tape_test.c - recording, backward, lifetimes: what is freed when, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ulysses.h"

static int64_t live(void)
{
    ul_memory_stats stats;
    ul_memory(&stats, UL_CPU);
    return stats.live;
}

static int64_t handles(void)
{
    ul_memory_stats stats;
    ul_memory(&stats, UL_CPU);
    return stats.live_tensors;
}

static ul_tensor *filled(int64_t n, double value, int needs_grad)
{
    ul_tensor *t = NULL;
    CHECK(ul_tensor_new(&t, UL_F64, UL_CPU, 1, &n) == UL_OK, "%s", ul_last_error());
    CHECK(ul_fill_(t, value) == UL_OK, "%s", ul_last_error());
    if (needs_grad) CHECK(ul_tensor_require_grad(t, 1) == UL_OK);
    return t;
}

static double first(ul_tensor *t)
{
    double value = NAN;
    int64_t index[UL_MAX_DIMS] = {0};
    if (t) CHECK(ul_tensor_get(&value, t, index) == UL_OK, "%s", ul_last_error());
    return value;
}

/* The gradient's first element, NAN where there is none. */
static double grad(ul_tensor *t)
{
    ul_tensor *g = NULL;
    CHECK(ul_tensor_grad(&g, t) == UL_OK);
    double value = first(g);
    ul_tensor_free(g);
    return value;
}

static ul_tensor *mul(ul_tensor *a, ul_tensor *b)
{
    ul_tensor *y = NULL;
    CHECK(ul_mul(&y, a, b) == UL_OK, "%s", ul_last_error());
    return y;
}

static ul_tensor *sum(ul_tensor *a)
{
    ul_tensor *y = NULL;
    CHECK(ul_sum(&y, a, 0, NULL, 0) == UL_OK, "%s", ul_last_error());
    return y;
}

static void product_rule(void)
{
    int64_t before = handles();
    ul_tensor *a = filled(3, 2, 1), *b = filled(3, 5, 1), *y = mul(a, b), *loss = sum(y);
    CHECK(first(loss) == 30);
    CHECK(ul_backward(loss, NULL, 0) == UL_OK, "%s", ul_last_error());
    CHECK(grad(a) == 5 && grad(b) == 2);
    ul_tensor_free(y), ul_tensor_free(loss), ul_tensor_free(a), ul_tensor_free(b);
    CHECK(handles() == before);
}

static void the_same_input_twice(void)
{
    ul_tensor *a = filled(300, 3, 1), *y = mul(a, a), *loss = sum(y);
    CHECK(ul_backward(loss, NULL, 0) == UL_OK);
    CHECK(grad(a) == 6);
    ul_tensor_free(a), ul_tensor_free(y), ul_tensor_free(loss);
}

static void gradients_accumulate_until_dropped(void)
{
    ul_tensor *a = filled(3, 2, 1);
    for (int i = 1; i <= 3; i++) {
        ul_tensor *loss = sum(a);
        CHECK(ul_backward(loss, NULL, 0) == UL_OK);
        CHECK(grad(a) == i);
        ul_tensor_free(loss);
    }
    CHECK(ul_tensor_set_grad(a, NULL) == UL_OK && isnan(grad(a)));
    ul_tensor_free(a);
}

static void one_value_used_by_many(void)
{
    /* y = a + a; z = y + y; the shared gradient must not be changed under the other's feet */
    ul_tensor *a = filled(3, 1, 1), *y = NULL, *z = NULL, *w = NULL;
    CHECK(ul_add(&y, a, a) == UL_OK && ul_add(&z, y, y) == UL_OK && ul_add(&w, z, y) == UL_OK);
    ul_tensor *loss = sum(w);
    CHECK(ul_backward(loss, NULL, 0) == UL_OK);
    CHECK(grad(a) == 6);
    ul_tensor_free(a), ul_tensor_free(y), ul_tensor_free(z), ul_tensor_free(w),
        ul_tensor_free(loss);
}

static void the_tape_lets_go_as_backward_passes(void)
{
    int64_t before = live();
    ul_tensor *x = filled(1000, 1.0001, 1);
    ul_tensor *y = ul_tensor_retain(x);
    for (int i = 0; i < 10; i++) {
        ul_tensor *next = mul(y, y);
        ul_tensor_free(y);
        y = next;
    }
    ul_tensor *loss = sum(y);
    ul_tensor_free(y);
    CHECK(live() >= before + 10 * 8000);
    CHECK(ul_backward(loss, NULL, 0) == UL_OK);
    CHECK(live() <= before + 2 * 8064 + 64, "%lld", (long long)(live() - before));
    ul_tensor_free(loss), ul_tensor_free(x);
    CHECK(live() == before);
}

static void what_nobody_can_ask_for_is_dropped_without_backward(void)
{
    int64_t before = live();
    ul_tensor *x = filled(1000, 1, 1), *y = ul_tensor_retain(x);
    for (int i = 0; i < 100000; i++) { /* far deeper than a stack would stand */
        ul_tensor *next = NULL;
        CHECK(ul_neg(&next, y) == UL_OK);
        ul_tensor_free(y);
        y = next;
    }
    ul_tensor_free(y), ul_tensor_free(x);
    CHECK(live() == before);
}

static void two_losses_do_not_eat_each_other(void)
{
    ul_tensor *a = filled(3, 2, 1), *b = filled(3, 5, 1);
    ul_tensor *p = mul(a, a), *q = mul(b, b), *lp = sum(p), *lq = sum(q);
    CHECK(ul_backward(lp, NULL, 0) == UL_OK && grad(a) == 4 && isnan(grad(b)));
    CHECK(ul_backward(lq, NULL, 0) == UL_OK && grad(b) == 10 && grad(a) == 4);
    ul_tensor_free(a), ul_tensor_free(b), ul_tensor_free(p), ul_tensor_free(q);
    ul_tensor_free(lp), ul_tensor_free(lq);
}

static void a_spent_history_is_refused_unless_retained(void)
{
    ul_tensor *a = filled(3, 2, 1), *p = mul(a, a), *l = sum(p), *m = NULL;
    CHECK(ul_backward(l, NULL, 1) == UL_OK && ul_backward(l, NULL, 0) == UL_OK && grad(a) == 8);
    CHECK(ul_backward(l, NULL, 0) == UL_EGRAD && strstr(ul_last_error(), "retain"), "%s",
          ul_last_error());
    CHECK(ul_neg(&m, p) == UL_OK);
    ul_tensor *late = sum(m);
    CHECK(ul_backward(late, NULL, 0) == UL_EGRAD && grad(a) == 8, "%s", ul_last_error());
    ul_tensor_free(a), ul_tensor_free(p), ul_tensor_free(l), ul_tensor_free(m),
        ul_tensor_free(late);
}

static void changes_in_place_are_seen(void)
{
    ul_tensor *a = filled(3, 2, 1), *c = filled(3, 7, 0), *y = mul(a, c), *l = sum(y);
    CHECK(ul_fill_(a, 1) == UL_EGRAD, "%s", ul_last_error());
    CHECK(ul_fill_(c, 1) == UL_OK);
    CHECK(ul_backward(l, NULL, 0) == UL_EGRAD && strstr(ul_last_error(), "mul needs"), "%s",
          ul_last_error());
    ul_tensor_free(a), ul_tensor_free(c), ul_tensor_free(y), ul_tensor_free(l);
}

static void no_grad_and_detach_cut(void)
{
    ul_tensor *a = filled(3, 2, 1), *d = NULL;
    CHECK(ul_set_grad_enabled(0) == 1);
    ul_tensor *y = mul(a, a);
    CHECK(!ul_tensor_requires_grad(y) && ul_set_grad_enabled(1) == 0);
    CHECK(ul_grad_was_seen() && !ul_grad_was_seen());
    ul_tensor_free(y);
    CHECK(ul_detach(&d, a) == UL_OK && !ul_tensor_requires_grad(d));
    y = mul(a, d);
    ul_tensor *l = sum(y);
    CHECK(ul_backward(l, NULL, 0) == UL_OK && grad(a) == 2);
    ul_tensor_free(a), ul_tensor_free(d), ul_tensor_free(y), ul_tensor_free(l);
}

static void results_keep_gradients_where_asked(void)
{
    ul_tensor *a = filled(3, 2, 1), *y = mul(a, a), *z = mul(y, y), *l = sum(z);
    CHECK(ul_tensor_retain_grad(y) == UL_OK);
    CHECK(ul_backward(l, NULL, 1) == UL_OK && grad(y) == 8 && isnan(grad(z)));
    CHECK(ul_backward(l, NULL, 0) == UL_OK && grad(y) == 16 && grad(a) == 64);
    ul_tensor_free(a), ul_tensor_free(y), ul_tensor_free(z), ul_tensor_free(l);
}

static void seeds_weigh_and_are_checked(void)
{
    ul_tensor *a = filled(3, 2, 1), *y = mul(a, a), *seed = filled(3, 10, 0),
              *two = filled(2, 1, 0);
    CHECK(ul_backward(y, NULL, 0) == UL_EGRAD);
    CHECK(ul_backward(y, two, 0) == UL_ESHAPE, "%s", ul_last_error());
    CHECK(ul_backward(y, seed, 0) == UL_OK && grad(a) == 40 && first(seed) == 10);
    ul_tensor_free(a), ul_tensor_free(y), ul_tensor_free(seed), ul_tensor_free(two);
}

/* A custom node y = 2 x whose rule runs a whole forward and backward of its own. */
static int doubled_backward(void *context, ul_tensor **dx, int n, ul_tensor *const *dy, int m)
{
    int *calls = context;
    (void)n, (void)m;
    (*calls)++;
    ul_tensor *inner = filled(3, 4, 1), *y, *l;
    int before = ul_set_grad_enabled(1);
    y = mul(inner, inner);
    l = sum(y);
    CHECK(ul_backward(l, NULL, 0) == UL_OK && grad(inner) == 8);
    ul_set_grad_enabled(before);
    ul_tensor_free(inner), ul_tensor_free(y), ul_tensor_free(l);
    return ul_add(&dx[0], dy[0], dy[0]);
}

static int released;
static void count_release(void *context)
{
    (void)context;
    released++;
}

static void custom_nodes_may_nest(void)
{
    int calls = 0;
    ul_custom node = {"double", doubled_backward, count_release, &calls};
    ul_tensor *a = filled(3, 2, 1), *y = filled(3, 4, 0), *z, *l;
    CHECK(ul_custom_record(&node, &a, 1, &y, 1, 0) == UL_OK && ul_tensor_requires_grad(y));
    z = mul(y, a);
    l = sum(z);
    CHECK(ul_backward(l, NULL, 0) == UL_OK, "%s", ul_last_error());
    CHECK(calls == 1 && released == 1 && grad(a) == 4 + 2 * 2);
    ul_tensor_free(a), ul_tensor_free(y), ul_tensor_free(z), ul_tensor_free(l);
}

static int step(void)
{
    ul_tensor *a = NULL, *b = NULL, *y = NULL, *z = NULL, *l = NULL, *g = NULL;
    int64_t n = 30;
    int rc = ul_tensor_new(&a, UL_F32, UL_CPU, 1, &n);
    if (rc == UL_OK) rc = ul_fill_(a, 2);
    if (rc == UL_OK) rc = ul_tensor_require_grad(a, 1);
    if (rc == UL_OK) rc = ul_cast(&b, a, UL_BF16);
    if (rc == UL_OK) rc = ul_exp(&y, b);
    if (rc == UL_OK) rc = ul_mul(&z, y, b);
    if (rc == UL_OK) rc = ul_sum(&l, z, 0, NULL, 0);
    if (rc == UL_OK) rc = ul_backward(l, NULL, 0);
    if (rc == UL_OK) rc = ul_tensor_grad(&g, a);
    ul_tensor_free(g), ul_tensor_free(l), ul_tensor_free(z), ul_tensor_free(y), ul_tensor_free(b);
    ul_tensor_free(a);
    return rc;
}

static void every_allocation_of_a_step_may_fail(void)
{
    CHECK(step() == UL_OK, "%s", ul_last_error());
    int64_t before = live(), count = ul_debug_allocations();
    CHECK(step() == UL_OK);
    count = ul_debug_allocations() - count;
    CHECK(count > 20);
    for (int64_t n = 1; n <= count; n++) {
        int64_t handles_before = handles();
        ul_debug_fail_allocation(n);
        CHECK(step() == UL_ENOMEM, "allocation %lld of %lld", (long long)n, (long long)count);
        CHECK(live() == before && handles() == handles_before, "allocation %lld leaks",
              (long long)n);
        ul_debug_fail_allocation(0);
        CHECK(step() == UL_OK);
    }
}

int main(void)
{
    RUN(product_rule);
    RUN(the_same_input_twice);
    RUN(gradients_accumulate_until_dropped);
    RUN(one_value_used_by_many);
    RUN(the_tape_lets_go_as_backward_passes);
    RUN(what_nobody_can_ask_for_is_dropped_without_backward);
    RUN(two_losses_do_not_eat_each_other);
    RUN(a_spent_history_is_refused_unless_retained);
    RUN(changes_in_place_are_seen);
    RUN(no_grad_and_detach_cut);
    RUN(results_keep_gradients_where_asked);
    RUN(seeds_weigh_and_are_checked);
    RUN(custom_nodes_may_nest);
    RUN(every_allocation_of_a_step_may_fail);
    return check_done();
}
