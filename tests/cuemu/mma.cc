/* mma.cc - the instructions of kernels/cuda/mma.h, by what NVIDIA's PTX manual says of each lane.
 */
#include "cuemu.h"

namespace cuemu
{
namespace
{
enum { ALL_LANES = -1 };

float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The two elements of a register, the first in its low half. */
void widen(float *to, uint32_t pair)
{
    to[0] = float_of(pair << 16);
    to[1] = float_of(pair & 0xffff0000u);
}

struct operands {
    uint32_t a[4], b[2];
};

/* 16 bytes as numbers: TSan does not see a memcpy that the compiler has put in line. */
void move_16(void *to, const void *from)
{
    uint64_t *y = (uint64_t *)to;
    const uint64_t *x = (const uint64_t *)from;
    y[0] = x[0];
    y[1] = x[1];
}
} // namespace

void check_aligned(const void *at, int line)
{
    if ((uintptr_t)at & 15) stop("an address that is no multiple of 16", line, (int)(uintptr_t)at);
}

/* Lane 4 g + t has rows g and g + 8 of A and d, column g of B, and of each pairs from 2 t on; a's
 * registers go down the rows first, then 8 columns on.
 */
void multiply_matrices(float *d, const uint32_t *a, const uint32_t *b, int line)
{
    operands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    exchange((unsigned)ALL_LANES, &mine, sizeof mine, 0, line);
    int g = lane() / 4, t = lane() % 4;
    float rows[2][16], columns[2][16];
    for (int from = 0; from < 4; from++) {
        const operands *row = (const operands *)published_by(4 * g + from);
        for (int r = 0; r < 4; r++) widen(&rows[r % 2][r / 2 * 8 + 2 * from], row->a[r]);
        for (int c = 0; c < 2; c++) {
            const operands *column = (const operands *)published_by(4 * (2 * t + c) + from);
            for (int r = 0; r < 2; r++) widen(&columns[c][r * 8 + 2 * from], column->b[r]);
        }
    }
    for (int i = 0; i < 4; i++) {
        float sum = d[i];
        for (int k = 0; k < 16; k++) sum += rows[i / 2][k] * columns[i % 2][k];
        d[i] = sum;
    }
}

/* Lane i gives the address of row i % 8 of matrix i / 8. */
void read_matrices(uint32_t *r, const void *row, int turned, int line)
{
    alignas(16) uint16_t mine[8];
    check_aligned(row, line);
    move_16(mine, row);
    exchange((unsigned)ALL_LANES, mine, sizeof mine, 0, line);
    int g = lane() / 4, t = lane() % 4;
    for (int m = 0; m < 4; m++) {
        const uint16_t *low = (const uint16_t *)published_by(8 * m + (turned ? 2 * t : g));
        const uint16_t *high = (const uint16_t *)published_by(8 * m + (turned ? 2 * t + 1 : g));
        r[m] = low[turned ? g : 2 * t] | (uint32_t)high[turned ? g : 2 * t + 1] << 16;
    }
}

void begin_copy(void *to, const void *from, int bytes, int line)
{
    static const uint64_t nan[2] = {~(uint64_t)0, ~(uint64_t)0};
    const async_copy copy = {to, from, bytes};
    check_aligned(to, line);
    check_aligned(from, line);
    move_16(to, nan);
    queue_copy(&copy, line);
}

void end_copies(int groups_left)
{
    async_copy copy;
    while (next_copy(&copy, groups_left)) {
        uint64_t value[2] = {0, 0};
        memcpy(value, copy.from, (size_t)copy.bytes);
        move_16(copy.to, value);
    }
}
} // namespace cuemu
