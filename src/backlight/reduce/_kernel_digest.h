/* Has a tensor changed? A number of where it lies and of its bytes says so. */
#ifndef BACKLIGHT_KERNEL_DIGEST_H
#define BACKLIGHT_KERNEL_DIGEST_H

#include "_kernel_tensor.h"

enum { LINE = 64, LANES = LINE / 8, FEW_BYTES = 1 << 14, MOST_LINES = 128 };

/* Sums, and sums of sums, so that the order counts too. */
typedef struct {
    uint64_t sums[LANES], orders[LANES];
} Digest;

typedef uint64_t Words __attribute__((vector_size(LINE / 2), aligned(1), may_alias)); /* one register */

/* Whole lines alone. */
CLONES static void digest_lines(Digest *d, const char *bytes, size_t size, size_t stride) {
    Words *sums = (Words *)d->sums, *orders = (Words *)d->orders;
    Words sum_a = sums[0], sum_b = sums[1], order_a = orders[0], order_b = orders[1];
    for (size_t at = 0; at + LINE <= size; at += stride) {
        const Words *words = (const Words *)(const void *)(bytes + at);
        sum_a += words[0];
        sum_b += words[1];
        order_a += sum_a;
        order_b += sum_b;
    }
    sums[0] = sum_a;
    sums[1] = sum_b;
    orders[0] = order_a;
    orders[1] = order_b;
}

/* As if the lines of `next`, so many, had come behind those of `d`. */
static void join_digest(Digest *d, const Digest *next, uint64_t lines) {
    for (int i = 0; i < LANES; i++) {
        d->orders[i] += next->orders[i] + lines * d->sums[i];
        d->sums[i] += next->sums[i];
    }
}

/* Never 0. What is left behind the last whole line is added here. */
static uint64_t digest_number(Digest *d, const char *bytes, size_t size) {
    char last[LINE] = {0};
    memcpy(last, bytes + size - size % LINE, size % LINE);
    digest_lines(d, last, LINE, LINE);
    uint64_t hash = (uint64_t)(uintptr_t)bytes ^ (uint64_t)size;
    for (int i = 0; i < LANES; i++) {
        hash = (hash ^ d->sums[i]) * 0x9e3779b97f4a7c15;
        hash = ((hash ^ (hash >> 29)) ^ d->orders[i]) * 0xbf58476d1ce4e5b9;
    }
    return hash | 1;
}

/* How far the lines lie apart of which so many are looked at. */
static size_t stride_of(size_t size) { return size > FEW_BYTES ? size / MOST_LINES / LINE * LINE : LINE; }

/* Of some of the lines where there are many; 0 where the tensor has gaps. */
static uint64_t quick_digest(Tensor *t) {
    order_dims(t);
    join_dims(t);
    size_t size = (size_t)t->count * (size_t)DTYPE_BYTES[t->dtype];
    if (!t->is_dense || size == 0) return 0;
    Digest d = {{0}, {0}};
    digest_lines(&d, t->data, size, stride_of(size));
    return digest_number(&d, t->data, size);
}

#endif
