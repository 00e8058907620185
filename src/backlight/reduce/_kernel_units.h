/* What the units of an activation do over its batch: spec.py says which numbers and what they mean.
 *
 * A tile is a run of positions that lie beside each other, over all samples. For each position it holds
 * the sums of the differences from the first sample. The moments of the tile follow from these sums, so a
 * narrow tensor is read once for both; and a sum of squares of 0 says that all samples are equal, as
 * differences of floats, and their squares, are never too small for a double. Those of doubles are, so a
 * wide tile also holds which bits ever differed.
 */
#ifndef BACKLIGHT_KERNEL_UNITS_H
#define BACKLIGHT_KERNEL_UNITS_H

#include "_kernel_sketch.h"

enum { TILE = 512, PANEL = 4, CACHED = 4 };
enum { NOT_DEAD = 1, NOT_CONSTANT = 2, UNKNOWN = 4 }; /* flags of positions and of units */
enum { ABREAST = 16 };     /* positions that are seen together */

typedef struct {
    Tensor tensor;     /* samples first, then positions */
    int64_t samples, positions, units;
    int64_t inner;     /* positions of one unit that lie beside each other */
    int64_t per_task;  /* positions */
    uint8_t *flags;    /* of each unit */
} Units;

/* The standard deviations over the batch of some positions. */
typedef struct {
    double sum;
    int64_t count;
} Spread;

typedef struct {
    double first[TILE], sum[TILE], square[TILE];
    uint64_t differed[TILE];
} Tile64;

typedef struct {
    float first[TILE];
    double sum[TILE], square[TILE];
} Tile32;

/* ---------------------------------------------------------------- some samples of a tile */

INLINE void add_sample32(const float *x, int start, int n, Tile32 *tile) {
    for (int i = start; i < n; i++) {
        double d = (double)x[i] - (double)tile->first[i];
        tile->sum[i] += d;
        tile->square[i] += d * d;
    }
}

CLONES static void add_sample64(const double *x, int n, Tile64 *tile) {
    for (int i = 0; i < n; i++) {
        double d = x[i] - tile->first[i];
        uint64_t word, first;
        memcpy(&word, x + i, sizeof word);
        memcpy(&first, tile->first + i, sizeof first);
        tile->sum[i] += d;
        tile->square[i] += d * d;
        tile->differed[i] |= word ^ first;
    }
}

CLONES static void see_plain(const float *x, int64_t stride, int64_t samples, int n, Tile32 *tile, Look *look,
                             Sketch32 *sketch) {
    for (int64_t s = 0; s < samples; s++, x += stride) {
        look32_on(x, n, look, sketch);
        add_sample32(x, 0, n, tile);
    }
}

/* Adds samples that lie `stride` elements apart to a tile, to a look and to a sketch. */
static void (*see_samples)(const float *, int64_t, int64_t, int, Tile32 *, Look *, Sketch32 *) = see_plain;

#ifdef HAS_AVX2
/* Sums eight positions over some samples; the sums stay in registers meanwhile. */
AVX2 INLINE void add_eight(const float *x, int64_t stride, int64_t samples, Tile32 *tile, int i) {
    const __m256d first_a = _mm256_cvtps_pd(_mm_loadu_ps(tile->first + i));
    const __m256d first_b = _mm256_cvtps_pd(_mm_loadu_ps(tile->first + i + 4));
    __m256d sum_a = _mm256_loadu_pd(tile->sum + i), sum_b = _mm256_loadu_pd(tile->sum + i + 4);
    __m256d square_a = _mm256_loadu_pd(tile->square + i), square_b = _mm256_loadu_pd(tile->square + i + 4);
    for (int64_t s = 0; s < samples; s++, x += stride) {
        __m256d a = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x)), first_a);
        __m256d b = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + 4)), first_b);
        sum_a = _mm256_add_pd(sum_a, a);
        sum_b = _mm256_add_pd(sum_b, b);
        square_a = _mm256_fmadd_pd(a, a, square_a);
        square_b = _mm256_fmadd_pd(b, b, square_b);
    }
    _mm256_storeu_pd(tile->sum + i, sum_a);
    _mm256_storeu_pd(tile->sum + i + 4, sum_b);
    _mm256_storeu_pd(tile->square + i, square_a);
    _mm256_storeu_pd(tile->square + i + 4, square_b);
}

/* Twice over a few samples that are in the cache: one loop for all would not have registers enough. */
AVX2 static void see_avx2(const float *x, int64_t stride, int64_t samples, int n, Tile32 *tile, Look *look,
                          Sketch32 *sketch) {
    Lanes32 lanes = start_lanes32();
    int whole = n / 8 * 8;
    for (int64_t s = 0; s < samples; s += CACHED) {
        int64_t few = samples - s < CACHED ? samples - s : CACHED;
        for (int64_t r = s; r < s + few; r++)
            for (const float *at = x + r * stride, *end = at + whole; at < end; at += 8) {
                __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(at)), b = _mm256_cvtps_pd(_mm_loadu_ps(at + 4));
                see_eight(&lanes, _mm256_loadu_ps(at), a, b);
                count_eight(at, sketch);
            }
        for (int i = 0; i < whole; i += 8) add_eight(x + s * stride + i, stride, few, tile, i);
    }
    end_lanes32(&lanes, look);
    for (int64_t s = 0; s < samples && whole < n; s++) {
        look32_on(x + s * stride + whole, n - whole, look, sketch);
        add_sample32(x + s * stride, whole, n, tile);
    }
}
#endif

/* ---------------------------------------------------------------- what a tile says */

/* Many sums side by side: each waits for itself at every addition. */
INLINE double sum_values(const double *x, int n) {
    enum { SUMS = 16 };
    double part[SUMS] = {0.0};
    int i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int k = 0; k < SUMS; k++) part[k] += x[i + k];
    for (; i < n; i++) part[0] += x[i];
    for (int half = SUMS / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++) part[k] += part[k + half];
    return part[0];
}

/* Adds the standard deviations over the batch where they are finite; `deviation` is the sum of the squared
 * deviations of each position, and becomes the standard deviation. */
INLINE void note_spread(double *deviation, int n, double share, Spread *spread) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        int is_known = deviation[i] <= 1.7976931348623157e308; /* not Inf, not NaN */
        deviation[i] = sqrt(is_known && deviation[i] > 0.0 ? deviation[i] * share : 0.0);
        count += is_known;
    }
    spread->sum += sum_values(deviation, n);
    spread->count += count;
}

/* Sums over the positions of a tile, from which its moments and its spread follow. */
typedef struct {
    double base; /* one of the elements: means are less this */
    double mean, mean_square, deviation, spread;
    int64_t known; /* positions whose spread is finite */
} TileSums;

CLONES static void sum_tile(const Tile32 *tile, int n, double samples, TileSums *sums) {
    double deviation[TILE], mean[TILE], square[TILE], share = 1.0 / samples;
    Spread spread = {0.0, 0};
    sums->base = tile->first[0];
    for (int i = 0; i < n; i++) {
        mean[i] = ((double)tile->first[i] - sums->base) + tile->sum[i] * share;
        square[i] = mean[i] * mean[i];
        deviation[i] = tile->square[i] - tile->sum[i] * (tile->sum[i] * share);
    }
    sums->mean = sum_values(mean, n);
    sums->mean_square = sum_values(square, n);
    sums->deviation = sum_values(deviation, n);
    note_spread(deviation, n, share, &spread);
    sums->spread = spread.sum;
    sums->known = spread.count;
}

/* The moments are to be used if all elements of the tile are finite. */
static void note_sums(const TileSums *sums, int n, double samples, Moments *m, Spread *spread) {
    m->finite = (int64_t)n * (int64_t)samples;
    m->mean = sums->base + sums->mean / n;
    m->m2 = sums->deviation + samples * (sums->mean_square - sums->mean * (sums->mean / n));
    if (m->m2 < 0) m->m2 = 0;
    spread->sum += sums->spread;
    spread->count += sums->known;
}

/* Does all of a tile at once where the processor can: sums, look, sketch and flags; returns whether a flag
 * says UNKNOWN. */
static int (*see_columns)(const float *, int64_t, int64_t, int, TileSums *, Look *, Sketch32 *, uint8_t *);

CLONES static void note_wide_spread(const Tile64 *tile, int n, double samples, Spread *spread) {
    double deviation[TILE], share = 1.0 / samples;
    for (int i = 0; i < n; i++) deviation[i] = tile->square[i] - tile->sum[i] * (tile->sum[i] * share);
    note_spread(deviation, n, share, spread);
}

/* Whether a position differs between samples, where sums cannot tell: NaN differs from itself, while the
 * difference of two infinities is NaN and says nothing. */
static int differs_at(const Units *u, int64_t position) {
    double first = 0.0, room[1];
    for (int64_t s = 0; s < u->samples; s++) {
        const void *at = elements(&u->tensor, s * u->positions + position, 1, room);
        double value = is_wide(u->tensor.dtype) ? *(const double *)at : (double)*(const float *)at;
        if (s == 0) first = value;
        if (value != first || isnan(value)) return 1;
    }
    return 0;
}

static void find_unknown(const Units *u, int64_t at, int n, uint8_t *flag) {
    for (int i = 0; i < n; i++)
        if (flag[i] & UNKNOWN) flag[i] = NOT_DEAD | (differs_at(u, at + i) ? NOT_CONSTANT : 0);
}

/* A unit is dead where the first sample is 0 and no other differs. */
CLONES static int find_flags32(const Tile32 *tile, int n, uint8_t *flag) {
    int has_unknown = 0;
    for (int i = 0; i < n; i++) {
        int differs = tile->square[i] != 0.0, is_unknown = tile->square[i] != tile->square[i];
        flag[i] = (uint8_t)((differs | (tile->first[i] != 0.0f)) * NOT_DEAD | differs * NOT_CONSTANT | is_unknown * UNKNOWN);
        has_unknown |= is_unknown;
    }
    return has_unknown;
}

/* 0 and -0 are the same value. */
CLONES static int find_flags64(const Tile64 *tile, int n, uint8_t *flag) {
    int has_unknown = 0;
    for (int i = 0; i < n; i++) {
        int is_zero = tile->first[i] == 0.0;
        int differs = (is_zero ? tile->differed[i] << 1 : tile->differed[i]) != 0;
        int is_unknown = tile->square[i] != tile->square[i];
        flag[i] = (uint8_t)((differs | !is_zero) * NOT_DEAD | differs * NOT_CONSTANT | is_unknown * UNKNOWN);
        has_unknown |= is_unknown;
    }
    return has_unknown;
}

static void note_flag(uint8_t *unit, uint8_t found) {
    if (found & (uint8_t)~__atomic_load_n(unit, __ATOMIC_RELAXED)) __atomic_fetch_or(unit, found, __ATOMIC_RELAXED);
}

/* Flags of units that lie beside each other: in most tiles they say what is known already. */
static void note_run(uint8_t *units, const uint8_t *flag, int n) {
    int i = 0;
    for (; i < n && (uintptr_t)(units + i) % 8; i++) note_flag(&units[i], flag[i]);
    for (; i + 8 <= n; i += 8) {
        uint64_t *known = (uint64_t *)(void *)(units + i), found;
        memcpy(&found, flag + i, 8);
        if (found & ~__atomic_load_n(known, __ATOMIC_RELAXED)) __atomic_fetch_or(known, found, __ATOMIC_RELAXED);
    }
    for (; i < n; i++) note_flag(&units[i], flag[i]);
}

/* Brings the flags of positions to their units. */
static void note_flags(const Units *u, int64_t at, int n, const uint8_t *flag) {
    int64_t unit = at / u->inner % u->units, left = u->inner - at % u->inner;
    for (int i = 0; i < n;) {
        if (u->inner == 1) { /* positions take turns: up to where they begin again */
            int run = at_most(u->units - unit, n - i);
            note_run(&u->flags[unit], flag + i, run);
            unit += run;
            i += run;
        } else {
            uint8_t found = 0;
            for (int end = at_most(left + i, n); i < end; i++) found |= flag[i];
            note_flag(&u->flags[unit++], found);
            left = u->inner;
        }
        if (unit == u->units) unit = 0;
    }
}

/* ---------------------------------------------------------------- tiles */

/* A tile of a narrow tensor that has elements that are not finite. */
static void note_finite_rows(const Units *u, int64_t at, int n, Moments *total) {
    float room[TILE];
    for (int64_t s = 0; s < u->samples; s++) {
        Moments m;
        clear_moments(&m);
        note_finite32(elements(&u->tensor, s * u->positions + at, n, room), n, &m);
        merge_moments(total, &m);
    }
}

/* Position by position, through memory for a few samples at a time. */
static int see_tile(const Units *u, int64_t at, int n, TileSums *sums, Look *look, Sketch32 *sketch, uint8_t *flag) {
    Tile32 tile;
    float room[PANEL][TILE];
    const float *first = elements(&u->tensor, at, n, room[0]);
    memcpy(tile.first, first, (size_t)n * sizeof *first);
    memset(tile.sum, 0, (size_t)n * sizeof *tile.sum);
    memset(tile.square, 0, (size_t)n * sizeof *tile.square);
    if (first != room[0]) see_samples(first, u->positions, u->samples, n, &tile, look, sketch);
    for (int64_t s = 0; first == room[0] && s < u->samples; s += PANEL) {
        int count = u->samples - s < PANEL ? (int)(u->samples - s) : PANEL;
        for (int r = 0; r < count; r++) copy_elements(&u->tensor, u->tensor.data, (s + r) * u->positions + at, n, room[r]);
        see_samples(room[0], TILE, count, n, &tile, look, sketch);
    }
    sum_tile(&tile, n, (double)u->samples, sums);
    return find_flags32(&tile, n, flag);
}

/* Moments, sketch and units of some positions of a narrow tensor. */
static void narrow_tile(const Units *u, int64_t at, int n, Moments *total, Sketch32 *sketch, Spread *spread) {
    Moments m = {0};
    Look look = NOTHING_SEEN;
    TileSums sums;
    uint8_t flag[TILE];
    const Tensor *t = &u->tensor;
    const char *from = t->data + at * DTYPE_BYTES[t->dtype];
    int is_simple = see_columns && n % ABREAST == 0 && t->dtype == FLOAT32 && t->is_dense && is_aligned(from, FLOAT32);
    if (!is_simple) sketch->is_spread = 1;
    int has_unknown = is_simple ? see_columns((const float *)(const void *)from, u->positions, u->samples, n, &sums, &look, sketch, flag)
                                : see_tile(u, at, n, &sums, &look, sketch, flag);
    note_sums(&sums, n, (double)u->samples, &m, spread);
    m.abs_sum = look.abs_sum;
    m.min = look.low;
    m.max = look.high;
    if (!isfinite(look.abs_sum)) {
        clear_moments(&m);
        note_finite_rows(u, at, n, &m);
    }
    m.zeros = look.zeros;
    note_range32(&look, &m, &sketch->range);
    merge_moments(total, &m);
    if (has_unknown) find_unknown(u, at, n, flag);
    note_flags(u, at, n, flag);
}

/* The units alone of some positions of a wide tensor. */
static void wide_tile(const Units *u, int64_t at, int n, Spread *spread) {
    Tile64 tile;
    double room[TILE];
    uint8_t flag[TILE];
    memset(&tile, 0, sizeof tile);
    memcpy(tile.first, elements(&u->tensor, at, n, room), (size_t)n * sizeof *room);
    for (int64_t s = 0; s < u->samples; s++) add_sample64(elements(&u->tensor, s * u->positions + at, n, room), n, &tile);
    note_wide_spread(&tile, n, (double)u->samples, spread);
    if (find_flags64(&tile, n, flag)) find_unknown(u, at, n, flag);
    note_flags(u, at, n, flag);
}

/* ---------------------------------------------------------------- which tensors have units */

static int has_units(const Tensor *t, int unit_dim) {
    return unit_dim >= 1 && unit_dim < t->dims && t->shape[0] >= 2 && t->count > 0 && t->shape[unit_dim] <= INT32_MAX;
}

/* The order of positions is free, so it is the one of memory; returns where the units' dimension went. */
static int order_positions(Tensor *t, int unit_dim) {
    for (int i = 2; i < t->dims; i++)
        for (int d = i; d > 1 && t->stride[d] > t->stride[d - 1]; d--) {
            swap_dims(t, d, d - 1);
            if (unit_dim == d || unit_dim == d - 1) unit_dim = 2 * d - 1 - unit_dim;
        }
    return unit_dim;
}

static int prepare_units(Units *u, const Tensor *logical, int unit_dim, int64_t elements_per_task) {
    u->tensor = *logical;
    u->samples = logical->shape[0];
    u->units = logical->shape[unit_dim];
    u->positions = logical->count / u->samples;
    unit_dim = order_positions(&u->tensor, unit_dim);
    u->inner = 1;
    for (int d = unit_dim + 1; d < logical->dims; d++) u->inner *= u->tensor.shape[d];
    join_dims(&u->tensor);
    int64_t per_task = elements_per_task / u->samples;
    u->per_task = per_task < 64 ? 64 : per_task / 8 * 8;
    u->flags = calloc(1, (size_t)u->units);
    return u->flags == NULL ? -1 : 0;
}

#endif
