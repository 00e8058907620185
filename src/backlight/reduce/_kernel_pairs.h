/* A sketch as it is stored: ascending keys, each with its count. */
#ifndef BACKLIGHT_KERNEL_PAIRS_H
#define BACKLIGHT_KERNEL_PAIRS_H

#include <stdlib.h>

#include "_kernel_sketch.h"

typedef struct {
    int16_t *keys;
    uint32_t *counts;
    int64_t length, capacity;
} Pairs;

static int reserve_pairs(Pairs *p, int64_t more) {
    if (p->length + more <= p->capacity) return 0;
    int64_t capacity = (p->length + more) * 2;
    int16_t *keys = realloc(p->keys, (size_t)capacity * sizeof *keys);
    if (keys) p->keys = keys;
    uint32_t *counts = realloc(p->counts, (size_t)capacity * sizeof *counts);
    if (counts) p->counts = counts;
    if (!keys || !counts) return -1;
    p->capacity = capacity;
    return 0;
}

static void free_pairs(Pairs *p) {
    free(p->keys);
    free(p->counts);
}

static int append_pairs(Pairs *into, const Pairs *from, int64_t start, int64_t end) {
    if (start == end) return 0;
    if (reserve_pairs(into, end - start)) return -1;
    memcpy(into->keys + into->length, from->keys + start, (size_t)(end - start) * sizeof *from->keys);
    memcpy(into->counts + into->length, from->counts + start, (size_t)(end - start) * sizeof *from->counts);
    into->length += end - start;
    return 0;
}

/* A stretch of somebody's pairs, keys ascending. */
typedef struct {
    const Pairs *of;
    int64_t start, end;
} Stretch;

/* Both in one; no count of them together needs more than 32 bits. */
static int join_pairs(Pairs *into, Stretch a, Stretch b) {
    if (reserve_pairs(into, a.end - a.start + b.end - b.start)) return -1;
    while (a.start < a.end && b.start < b.end) {
        int16_t left = a.of->keys[a.start], right = b.of->keys[b.start];
        into->keys[into->length] = left < right ? left : right;
        into->counts[into->length++] =
            (left <= right ? a.of->counts[a.start] : 0) + (right <= left ? b.of->counts[b.start] : 0);
        a.start += left <= right;
        b.start += right <= left;
    }
    return append_pairs(into, a.of, a.start, a.end) | append_pairs(into, b.of, b.start, b.end);
}

/* ---------------------------------------------------------------- from bins to pairs */

/* Where a sketch's bins lie among the keys. */
typedef struct {
    int bins, subnormal; /* on each side of 0 */
    int first_key, first_small;
} Layout;
static const Layout NARROW = {BINS32 / 2, SUBNORMAL32 / 2, 3789, 3701}, WIDE = {BINS64 / 2, SUBNORMAL64 / 2, 205, 1};
enum { KEYS = 8400 };

/* Exponent 0 is zero and the subnormals, the last one Inf and NaN: neither is read from the bins. */
static void clip(Range *range, const Layout *at) {
    if (range->low < 4) range->low = 4;
    if (range->high > at->bins - 5) range->high = at->bins - 5;
}

/* Sums eight bins over the copies and leaves them 0. */
typedef uint32_t Eight __attribute__((vector_size(32)));
INLINE void take_eight(uint32_t *bins, int copies, int row, uint32_t *to) {
    Eight sum = {0}, none = {0};
    for (int c = 0; c < copies; c++) {
        Eight copy;
        memcpy(&copy, bins + c * row, sizeof copy);
        memcpy(bins + c * row, &none, sizeof none);
        sum += copy;
    }
    memcpy(to, &sum, sizeof sum);
}

/* Writes a pair and steps on if there is anything in it: no branch that cannot be foreseen. */
#define PUT(KEY, COUNT) (keys[length] = (int16_t)(KEY), counts[length] = (COUNT), length += (COUNT) != 0)

/* The bins of one sign, eight at a time. The last eight may reach beyond the range: what lies there is
 * 0, or counts zeros, Inf and NaN, which nobody reads. */
INLINE int64_t take_side(int16_t *keys, uint32_t *counts, int64_t length, uint32_t *bins, int copies, int row,
                         const Range *range, int first_key, int sign) {
    uint32_t sum[8];
    for (int left = range->high - range->low + 1, at = sign > 0 ? range->low : range->high - 7; left > 0; left -= 8) {
        take_eight(bins + at, copies, row, sum);
        for (int k = 0, end = left < 8 ? left : 8; k < end; k++) {
            int place = sign > 0 ? k : 7 - k;
            PUT(sign * (first_key + at + place), sum[place]);
        }
        at += sign * 8;
    }
    return length;
}

/* Moves the counts out of a sketch and leaves it empty. Keys ascend: the most negative value first,
 * the subnormals in the middle. */
INLINE int take_sketch(Pairs *p, uint32_t *bins, int copies, int row, uint32_t *subnormal, Range *range,
                       const Layout *at) {
    clip(range, at);
    int small = range->has_subnormal ? at->subnormal : 0;
    int64_t width = range->high >= range->low ? range->high - range->low + 1 : 0;
    if (reserve_pairs(p, 2 * (width + small) + 1)) return -1; /* PUT may write one more than it keeps */
    int16_t *keys = p->keys;
    uint32_t *counts = p->counts;
    int64_t length = take_side(keys, counts, p->length, bins + at->bins, copies, row, range, at->first_key, -1);
    for (int b = small - 1; b >= 0; b--) PUT(-(at->first_small + b), subnormal[at->subnormal + b]);
    for (int b = 0; b < small; b++) PUT(at->first_small + b, subnormal[b]);
    p->length = take_side(keys, counts, length, bins, copies, row, range, at->first_key, 1);
    if (small) memset(subnormal, 0, sizeof *subnormal * 2 * (size_t)small);
    *range = EMPTY;
    return 0;
}

CLONES static int take_sketch32(Pairs *p, Sketch32 *from) {
    int is_spread = from->is_spread || !end_couples;
    from->is_spread = 0;
    return is_spread ? take_sketch(p, from->bins[0], COPIES32, ROW32, from->subnormal, &from->range, &NARROW)
                     : take_sketch(p, from->bins[0], 1, ROW32, from->subnormal, &from->range, &NARROW);
}

CLONES static int take_sketch64(Pairs *p, Sketch64 *from) {
    return take_sketch(p, from->bins[0], COPIES64, ROW64, from->subnormal, &from->range, &WIDE);
}

/* ---------------------------------------------------------------- the pairs of many chunks as one */

/* What the chunks of one tensor counted, by the key's magnitude; 0 outside of a call. */
typedef struct {
    uint64_t negative[KEYS], positive[KEYS];
    int low, high;
} Gathered;
static __thread Gathered gathered;

static void gather_pairs(Gathered *into, const Pairs *from, int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i++) {
        int key = from->keys[i], size = key < 0 ? -key : key;
        (key < 0 ? into->negative : into->positive)[size] += from->counts[i];
        if (size < into->low) into->low = size;
        if (size > into->high) into->high = size;
    }
}

/* A count beyond 32 bits is split: keys that repeat are added up by whoever reads them. */
static int push_pair(Pairs *p, int key, uint64_t *bin) {
    uint64_t count = *bin;
    *bin = 0;
    while (count) {
        uint32_t part = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
        if (reserve_pairs(p, 1)) return -1;
        p->keys[p->length] = (int16_t)key;
        p->counts[p->length++] = part;
        count -= part;
    }
    return 0;
}

static int take_gathered(Pairs *p, Gathered *from) {
    int bad = 0;
    for (int size = from->high; size >= from->low; size--) bad |= push_pair(p, -size, &from->negative[size]);
    for (int size = from->low; size <= from->high; size++) bad |= push_pair(p, size, &from->positive[size]);
    return bad;
}

#endif
