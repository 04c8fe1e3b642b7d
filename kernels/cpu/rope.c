/* rope.c - rotary position embedding, half-split as in Transformers. */
#define _GNU_SOURCE
#include "rows.h"

typedef struct table_job {
    acc *cosine, *sine;
    const int64_t *positions;
    const double *inv_freq;
    int64_t half;
    double scale;
} table_job;

/* Angles in f64: an f32 angle is off by a radian at position 10^7. */
static void table_row(const void *arg, int64_t row)
{
    const table_job *job = arg;
    for (int64_t i = 0; i < job->half; i++) {
        double angle = (double)job->positions[row] * job->inv_freq[i];
        job->cosine[row * job->half + i] = (acc)(job->scale * cos(angle));
        job->sine[row * job->half + i] = (acc)(job->scale * sin(angle));
    }
}

int CPU(rope_table)(ul_stream *s, void *cosine, void *sine, const int64_t *positions,
                    const double *inv_freq, int64_t n, int64_t half, double scale)
{
    table_job job = {cosine, sine, positions, inv_freq, half, scale};
    rows_walk(s, n, half * 32, table_row, &job);
    return 0;
}

typedef struct rope_job {
    ul_grad y;
    const real *x;
    const acc *cosine, *sine;
    int64_t tokens, heads, half, table_step;
    acc sign;
} rope_job;

/* One head: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. */
static inline void rope_head(real *y, int add, const real *x, const acc *c, const acc *s,
                             int64_t half, acc sign)
{
    if (add) INDEPENDENT for (int64_t i = 0; i < half; i++)
        {
            acc a = load(x[i]), b = load(x[half + i]), sine = sign * s[i];
            y[i] = store(load(y[i]) + (a * c[i] - b * sine));
            y[half + i] = store(load(y[half + i]) + (b * c[i] + a * sine));
        }
    else
        INDEPENDENT for (int64_t i = 0; i < half; i++)
        {
            acc a = load(x[i]), b = load(x[half + i]), sine = sign * s[i];
            y[i] = store(a * c[i] - b * sine);
            y[half + i] = store(b * c[i] + a * sine);
        }
}

/* One token of all heads. */
static void rope_token(const void *arg, int64_t row)
{
    const rope_job *job = arg;
    int64_t half = job->half, batch = row / job->tokens, token = row % job->tokens;
    int64_t at = (batch * job->table_step + token) * half;
    for (int64_t head = 0; head < job->heads; head++) {
        int64_t start = (row * job->heads + head) * 2 * half;
        rope_head((real *)job->y.data + start, job->y.add, job->x + start, job->cosine + at,
                  job->sine + at, half, job->sign);
    }
}

int CPU(rope)(ul_stream *s, ul_grad y, const void *x, const void *cosine, const void *sine,
              int64_t batch, int64_t tokens, int64_t heads, int64_t dim, int64_t table_step,
              double sign)
{
    rope_job job = {y, x, cosine, sine, tokens, heads, dim / 2, table_step, (acc)sign};
    if (y.data) rows_walk(s, batch * tokens, heads * dim, rope_token, &job);
    return 0;
}
