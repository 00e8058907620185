/* The moments of elements, and the sketch that counts them.
 *
 * Elements come in blocks: sums go in double, and each element makes one increment of the sketch,
 * which is kept several times over so that a run of equal values does not wait for its own store.
 * Blocks are merged by Chan's formula, which keeps the variance exact where the mean is large.
 */
#ifndef BACKLIGHT_KERNEL_SKETCH_H
#define BACKLIGHT_KERNEL_SKETCH_H

#include "_kernel_tensor.h"

enum { BLOCK = 2048 };
enum { BINS32 = 2048, COPIES32 = 8, SUBNORMAL32 = 2 * 23 * 4 };
enum { BINS64 = 16384, COPIES64 = 4, SUBNORMAL64 = 2 * 52 * 4 };

/* The copies do not lie a power of two apart: their addresses would look alike to the processor. */
enum { ROW32 = BINS32 + 64, ROW64 = BINS64 + 16 };

/* Between which magnitudes (exponent and two mantissa bits) bins were counted into: only these are
 * looked at, and put back to 0, which is what makes small tensors cheap. */
typedef struct {
    int low, high, has_subnormal;
} Range;

/* Elements that are counted by twos, before they come to the bins: see _kernel_couples.h. */
enum { PLACES = 64, CELLS_BYTES = 3 << 14, WAITING = 64 /* couples */, OTHERS_WAIT = 1024 };
enum { WORTHWHILE = 4096 /* elements: of fewer, to empty the cells takes longer */ };
typedef struct {
    unsigned char room[UINT16_MAX + CELLS_BYTES];
    uint16_t *cells; /* in the room, where an address ends with sixteen zeros; 0 but within a tensor */
    uint16_t waiting[2 * WAITING] __attribute__((aligned(64)));
    uint32_t others[OTHERS_WAIT]; /* elements beyond the window */
    int base; /* the bin that the window begins with; 0 where there is no window */
    int count, beyond, misfits, is_worthwhile;
    unsigned next;
} Couples;

typedef struct {
    uint32_t bins[COPIES32][ROW32], subnormal[SUBNORMAL32];
    Range range;
    Couples couples;
    int is_spread; /* over the copies, as it is but where all elements were counted by twos */
} Sketch32;

typedef struct {
    uint32_t bins[COPIES64][ROW64], subnormal[SUBNORMAL64];
    Range range;
} Sketch64;

static const Range EMPTY = {BINS64, -1, 0};
static __thread Sketch32 sketch32; /* 0 and EMPTY outside of a task */
static __thread Sketch64 sketch64;

static void (*end_couples)(Sketch32 *); /* brings them to the bins, where the processor counts by twos */

static void widen(Range *range, int low, int high, int has_subnormal) {
    if (low < range->low) range->low = low;
    if (high > range->high) range->high = high;
    range->has_subnormal |= has_subnormal;
}

/* ---------------------------------------------------------------- moments */

typedef struct {
    int64_t finite, zeros, nans, infs;
    double mean, m2, abs_sum, min, max;
} Moments;

static void clear_moments(Moments *m) {
    memset(m, 0, sizeof *m);
    m->min = INFINITY;
    m->max = -INFINITY;
}

static double larger_magnitude(const Moments *m) { return -m->min > m->max ? -m->min : m->max; }

static void merge_moments(Moments *into, const Moments *from) {
    into->zeros += from->zeros;
    into->nans += from->nans;
    into->infs += from->infs;
    if (from->finite == 0) return;
    double n = (double)(into->finite + from->finite), delta = from->mean - into->mean;
    into->m2 += from->m2 + delta * delta * ((double)into->finite * (double)from->finite / n);
    into->mean += delta * ((double)from->finite / n);
    into->abs_sum += from->abs_sum;
    into->finite += from->finite;
    if (from->min < into->min) into->min = from->min;
    if (from->max > into->max) into->max = from->max;
}

/* ---------------------------------------------------------------- one look at a block */

/* Deviations are from the block's first element: it is one of them, so the sum of squares loses at most
 * ten bits to cancellation. Zeros are told by their words, so that they are right where the processor
 * flushes subnormals to zero. */
typedef struct {
    double first, sum, square, abs_sum, low, high;
    uint64_t small; /* the word of the smallest magnitude other than 0, less 1 */
    int64_t zeros;
} Look;

static const Look NOTHING_SEEN = {0.0, 0.0, 0.0, 0.0, INFINITY, -INFINITY, UINT64_MAX, 0};

#define DEFINE_LOOK(NAME, TYPE, WORD, SKETCH, COPIES, SHIFT)                                                   \
    INLINE void NAME##_on(const TYPE *x, int n, Look *look, SKETCH *sketch) {                                  \
        for (int i = 0; i < n; i++) {                                                                          \
            double value = (double)x[i], d = value - look->first;                                              \
            WORD word;                                                                                         \
            memcpy(&word, x + i, sizeof word);                                                                 \
            uint64_t size = word & ((WORD)~(WORD)0 >> 1);                                                      \
            look->sum += d;                                                                                    \
            look->square += d * d;                                                                             \
            look->abs_sum += fabs(value);                                                                      \
            look->low = value < look->low ? value : look->low;                                                 \
            look->high = value > look->high ? value : look->high;                                              \
            look->small = size - 1u < look->small ? size - 1u : look->small; /* 0 wraps and never wins */      \
            look->zeros += size == 0;                                                                          \
            if (sketch) sketch->bins[i % COPIES][word >> SHIFT]++;                                             \
        }                                                                                                      \
    }                                                                                                          \
    static Look NAME##_plain(const TYPE *x, int n, SKETCH *sketch) {                                           \
        Look look = NOTHING_SEEN;                                                                              \
        look.first = (double)x[0];                                                                             \
        NAME##_on(x, n, &look, sketch);                                                                        \
        return look;                                                                                           \
    }                                                                                                          \
    static Look (*NAME)(const TYPE *, int, SKETCH *) = NAME##_plain;
DEFINE_LOOK(look32, float, uint32_t, Sketch32, COPIES32, 21)
DEFINE_LOOK(look64, double, uint64_t, Sketch64, COPIES64, 50)

#ifdef HAS_AVX2
/* Vector arithmetic and scalar increments in one loop: they wait for different parts of the processor. */

AVX2 INLINE double sum_of(__m256d a, __m256d b) {
    double parts[4];
    _mm256_storeu_pd(parts, _mm256_add_pd(a, b));
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

AVX2 INLINE __m256d magnitude_of(__m256d value) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), value); }

/* What is gathered of floats beside their sums and squares, eight at a time. */
typedef struct {
    __m256d abs_a, abs_b;
    __m256 low, high;
    __m256i zeros, small;
} Lanes32;

AVX2 INLINE Lanes32 start_lanes32(void) {
    __m256d none = _mm256_setzero_pd();
    return (Lanes32){none, none, _mm256_set1_ps(INFINITY), _mm256_set1_ps(-INFINITY), _mm256_setzero_si256(),
                     _mm256_set1_epi32(-1)};
}

/* `a` and `b` are the halves of `v`. */
AVX2 INLINE void see_eight(Lanes32 *l, __m256 v, __m256d a, __m256d b) {
    __m256i size = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(INT32_MAX));
    l->abs_a = _mm256_add_pd(l->abs_a, magnitude_of(a));
    l->abs_b = _mm256_add_pd(l->abs_b, magnitude_of(b));
    l->low = _mm256_min_ps(l->low, v);
    l->high = _mm256_max_ps(l->high, v);
    l->zeros = _mm256_sub_epi32(l->zeros, _mm256_cmpeq_epi32(size, _mm256_setzero_si256()));
    l->small = _mm256_min_epu32(l->small, _mm256_sub_epi32(size, _mm256_set1_epi32(1)));
}

AVX2 INLINE void count_eight(const float *x, Sketch32 *sketch) {
    for (int k = 0; k < 8; k += 2) { /* two words in one load */
        uint64_t words;
        memcpy(&words, x + k, 8);
        sketch->bins[k][(uint32_t)words >> 21]++;
        sketch->bins[k + 1][words >> 53]++;
    }
}

AVX2 INLINE void end_lanes32(const Lanes32 *l, Look *look) {
    float low[8], high[8];
    uint32_t small[8], zeros[8];
    _mm256_storeu_ps(low, l->low);
    _mm256_storeu_ps(high, l->high);
    _mm256_storeu_si256((__m256i *)(void *)small, l->small);
    _mm256_storeu_si256((__m256i *)(void *)zeros, l->zeros);
    look->abs_sum += sum_of(l->abs_a, l->abs_b);
    for (int k = 0; k < 8; k++) {
        look->low = low[k] < look->low ? low[k] : look->low;
        look->high = high[k] > look->high ? high[k] : look->high;
        /* No magnitude at all stays larger than any. */
        look->small = small[k] != UINT32_MAX && small[k] < look->small ? small[k] : look->small;
        look->zeros += zeros[k];
    }
}

AVX2 static Look look32_avx2(const float *x, int n, Sketch32 *sketch) {
    Look look = NOTHING_SEEN;
    look.first = (double)x[0];
    Lanes32 lanes = start_lanes32();
    const __m256d first = _mm256_set1_pd(look.first);
    __m256d sum_a = _mm256_setzero_pd(), sum_b = sum_a, square_a = sum_a, square_b = sum_a;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + i)), b = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
        see_eight(&lanes, _mm256_loadu_ps(x + i), a, b);
        a = _mm256_sub_pd(a, first);
        b = _mm256_sub_pd(b, first);
        sum_a = _mm256_add_pd(sum_a, a);
        sum_b = _mm256_add_pd(sum_b, b);
        square_a = _mm256_fmadd_pd(a, a, square_a);
        square_b = _mm256_fmadd_pd(b, b, square_b);
        if (sketch) count_eight(x + i, sketch);
    }
    end_lanes32(&lanes, &look);
    look.sum = sum_of(sum_a, sum_b);
    look.square = sum_of(square_a, square_b);
    look32_on(x + i, n - i, &look, sketch);
    return look;
}

/* Signed comparison has to do for the smallest word, so its lowest bit is left out: the range may begin
 * one bin early. */
AVX2 static Look look64_avx2(const double *x, int n, Sketch64 *sketch) {
    Look look = NOTHING_SEEN;
    look.first = x[0];
    const __m256d first = _mm256_set1_pd(look.first);
    __m256d sum = _mm256_setzero_pd(), square = sum, abs = sum;
    __m256d low = _mm256_set1_pd(INFINITY), high = _mm256_set1_pd(-INFINITY);
    __m256i zeros = _mm256_setzero_si256(), small = _mm256_set1_epi64x(INT64_MAX);
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256d v = _mm256_loadu_pd(x + i), size = magnitude_of(v), d = _mm256_sub_pd(v, first);
        __m256i word = _mm256_castpd_si256(size);
        __m256i half = _mm256_srli_epi64(_mm256_sub_epi64(word, _mm256_set1_epi64x(1)), 1);
        abs = _mm256_add_pd(abs, size);
        sum = _mm256_add_pd(sum, d);
        square = _mm256_fmadd_pd(d, d, square);
        low = _mm256_min_pd(low, v);
        high = _mm256_max_pd(high, v);
        zeros = _mm256_sub_epi64(zeros, _mm256_cmpeq_epi64(word, _mm256_setzero_si256()));
        small = _mm256_blendv_epi8(small, half, _mm256_cmpgt_epi64(small, half));
        for (int k = 0; sketch && k < 4; k++) {
            uint64_t bits;
            memcpy(&bits, x + i + k, 8);
            sketch->bins[k][bits >> 50]++;
        }
    }
    double lows[4], highs[4];
    uint64_t smalls[4], counts[4];
    _mm256_storeu_pd(lows, low);
    _mm256_storeu_pd(highs, high);
    _mm256_storeu_si256((__m256i *)(void *)smalls, small);
    _mm256_storeu_si256((__m256i *)(void *)counts, zeros);
    look.abs_sum = sum_of(abs, _mm256_setzero_pd());
    look.sum = sum_of(sum, _mm256_setzero_pd());
    look.square = sum_of(square, _mm256_setzero_pd());
    for (int k = 0; k < 4; k++) {
        look.low = lows[k] < look.low ? lows[k] : look.low;
        look.high = highs[k] > look.high ? highs[k] : look.high;
        look.small = smalls[k] != INT64_MAX && smalls[k] * 2 < look.small ? smalls[k] * 2 : look.small;
        look.zeros += (int64_t)counts[k];
    }
    look64_on(x + i, n - i, &look, sketch);
    return look;
}
#endif

/* ---------------------------------------------------------------- blocks */

static void note_look(const Look *look, int n, Moments *m) {
    m->finite = n;
    m->abs_sum = look->abs_sum;
    m->mean = look->first + look->sum / n;
    m->m2 = look->square - look->sum * (look->sum / n);
    if (m->m2 < 0) m->m2 = 0;
    m->min = look->low;
    m->max = look->high;
}

/* The finite elements of a block that has others, one after the other. */
#define DEFINE_KEEP(NAME, TYPE)                                                \
    CLONES static int NAME(const TYPE *x, int n, TYPE *finite, Moments *m) {   \
        int kept = 0, nans = 0;                                                \
        for (int i = 0; i < n; i++) nans += isnan(x[i]) != 0;                  \
        for (int i = 0; i < n; i++) {                                          \
            finite[kept] = x[i];                                               \
            kept += isfinite(x[i]) != 0;                                       \
        }                                                                      \
        m->nans = nans;                                                        \
        m->infs = n - kept - nans;                                             \
        return kept;                                                           \
    }
DEFINE_KEEP(keep_finite32, float)
DEFINE_KEEP(keep_finite64, double)

/* The moments of up to BLOCK elements of which some are not finite. */
static void note_finite32(const float *x, int n, Moments *m) {
    float finite[BLOCK];
    int kept = keep_finite32(x, n, finite, m);
    if (kept == 0) return;
    Look look = look32(finite, kept, NULL);
    note_look(&look, kept, m);
}

static void note_finite64(const double *x, int n, Moments *m) {
    double finite[BLOCK];
    int kept = keep_finite64(x, n, finite, m);
    if (kept == 0) return;
    Look look = look64(finite, kept, NULL);
    note_look(&look, kept, m);
}

/* In which bins of a sketch the finite elements lie. */
static void note_range32(const Look *look, const Moments *m, Range *range) {
    float largest = (float)larger_magnitude(m);
    if (m->finite && look->small != UINT64_MAX)
        widen(range, (int)((look->small + 1) >> 21), (int)(float_bits(largest) >> 21), look->small < 0x7fffffu);
}

static void note_range64(const Look *look, const Moments *m, Range *range) {
    double largest = larger_magnitude(m);
    uint64_t word;
    memcpy(&word, &largest, 8);
    if (m->finite && look->small != UINT64_MAX)
        widen(range, (int)((look->small + 1) >> 50), (int)(word >> 50), look->small < 0xfffffffffffffull);
}

static void block32(const float *x, int n, Moments *total, Sketch32 *sketch) {
    Moments m;
    clear_moments(&m);
    Look look = look32(x, n, sketch);
    m.zeros = look.zeros;
    if (isfinite(look.abs_sum)) note_look(&look, n, &m);
    else note_finite32(x, n, &m);
    note_range32(&look, &m, &sketch->range);
    merge_moments(total, &m);
}

static void block64(const double *x, int n, Moments *total, Sketch64 *sketch) {
    Moments m;
    clear_moments(&m);
    Look look = look64(x, n, sketch);
    m.zeros = look.zeros;
    /* A sum beyond the range of double is worked out again with a scale. */
    if (isfinite(look.abs_sum)) note_look(&look, n, &m);
    else note_finite64(x, n, &m);
    if (sketch) note_range64(&look, &m, &sketch->range);
    merge_moments(total, &m);
}

static void count_subnormal(uint64_t mantissa, int bits, int negative, uint32_t *bins) {
    int lead = 63 - __builtin_clzll(mantissa);
    uint64_t quarter = lead >= 2 ? (mantissa >> (lead - 2)) & 3 : (mantissa << (2 - lead)) & 3;
    bins[(negative ? bits * 4 : 0) + lead * 4 + (int)quarter]++;
}

INLINE void count_if_subnormal(float x, Sketch32 *sketch) {
    uint32_t word = float_bits(x), size = word & 0x7fffffffu;
    if (size && size < 0x00800000u) count_subnormal(size, 23, word >> 31, sketch->subnormal);
}

static void count_subnormals32_plain(const float *x, int n, Sketch32 *sketch) {
    for (int i = 0; i < n; i++) count_if_subnormal(x[i], sketch);
}

static void (*count_subnormals32)(const float *, int, Sketch32 *) = count_subnormals32_plain;

#ifdef HAS_AVX2
/* They are few, and far between: averages of gradients that are 0 by now become ever smaller. */
AVX2 static void count_subnormals32_avx2(const float *x, int n, Sketch32 *sketch) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i word = _mm256_castps_si256(_mm256_loadu_ps(x + i));
        __m256i less = _mm256_sub_epi32(_mm256_and_si256(word, _mm256_set1_epi32(INT32_MAX)), _mm256_set1_epi32(1));
        __m256i is_small = _mm256_cmpeq_epi32(_mm256_min_epu32(less, _mm256_set1_epi32(0x7ffffe)), less);
        int lanes = _mm256_movemask_ps(_mm256_castsi256_ps(is_small));
        for (; lanes; lanes &= lanes - 1) count_if_subnormal(x[i + __builtin_ctz((unsigned)lanes)], sketch);
    }
    count_subnormals32_plain(x + i, n - i, sketch);
}
#endif

static void count_subnormals64(const double *x, int n, Sketch64 *sketch) {
    for (int i = 0; i < n; i++) {
        uint64_t word;
        memcpy(&word, x + i, 8);
        uint64_t size = word & INT64_MAX;
        if (size && size < 0x0010000000000000ull) count_subnormal(size, 52, (int)(word >> 63), sketch->subnormal);
    }
}

#endif
