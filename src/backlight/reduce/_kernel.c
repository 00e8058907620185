/* The statistics and the sketch of a CPU tensor in one native call.
 *
 * A tensor is read once, in blocks: sums go in double, and each element makes one increment of the
 * sketch, which is kept four times over so that a run of equal values does not wait for its own
 * store. Blocks are merged by Chan's formula, which keeps the variance exact where the mean is large.
 * spec.py says what each number means.
 *
 * Large tensors are cut into chunks for the threads of the OpenMP runtime that torch has loaded
 * already; it is looked up at run time, so the module neither links nor starts a second one. The
 * chunks do not depend on the number of threads, so neither does any result.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2
#endif

enum { BLOCK = 1024, TILE = 256, MAX_DIMS = 64 };
enum { BINS32 = 2048, COPIES = 4, SUBNORMAL32 = 2 * 23 * 4, BINS64 = 16384, SUBNORMAL64 = 2 * 52 * 4 };
enum { CHUNK = 1 << 15 };

/* ---------------------------------------------------------------- dtypes */

enum Dtype {
    FLOAT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E4M3FNUZ, FLOAT8_E5M2FNUZ,
    INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8, BOOL, DTYPES
};
static const char *const DTYPE_NAMES[DTYPES] = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"
};
static const int DTYPE_BYTES[DTYPES] = {8, 4, 2, 2, 1, 1, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1};

/* What float32 holds exactly is worked on as float32, the rest as float64. */
static int is_wide(int dtype) {
    return dtype == FLOAT64 || dtype == INT64 || dtype == INT32 || dtype == UINT64 || dtype == UINT32;
}

static float FLOAT8[4][256];

static float decode_float8(int byte, int exponent_bits, int bias, int fnuz, int has_inf) {
    int mantissa_bits = 7 - exponent_bits;
    int exponent = (byte >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = byte & ((1 << mantissa_bits) - 1);
    int top = (1 << exponent_bits) - 1, full = (1 << mantissa_bits) - 1;
    float sign = byte & 0x80 ? -1.0f : 1.0f;
    if (fnuz && byte == 0x80) return NAN;
    if (has_inf && exponent == top) return mantissa ? NAN : sign * INFINITY;
    if (!fnuz && !has_inf && exponent == top && mantissa == full) return NAN;
    if (exponent == 0) return sign * ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return sign * ldexpf((float)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
}

static void fill_float8(void) {
    for (int byte = 0; byte < 256; byte++) {
        FLOAT8[0][byte] = decode_float8(byte, 4, 7, 0, 0);
        FLOAT8[1][byte] = decode_float8(byte, 5, 15, 0, 1);
        FLOAT8[2][byte] = decode_float8(byte, 4, 8, 1, 0);
        FLOAT8[3][byte] = decode_float8(byte, 5, 16, 1, 0);
    }
}

static inline float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Subnormals go through an integer, so that they survive where the processor flushes them to zero. */
static inline float half_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu);
    uint32_t normal = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u);
    float small = (float)(int32_t)rest * 0x1p-24f;
    uint32_t small_bits;
    memcpy(&small_bits, &small, 4);
    return bits_float(sign | (rest < 0x0400u ? small_bits : normal));
}

/* ---------------------------------------------------------------- a tensor's elements */

typedef struct {
    const char *data;
    int dtype, dims, is_dense; /* dense: in row-major order without gaps */
    int64_t count, shape[MAX_DIMS], stride[MAX_DIMS];
} Tensor;

#define CONVERT(TYPE, EXPRESSION)                                         \
    for (int64_t i = 0; i < n; i++) {                                     \
        TYPE v;                                                           \
        memcpy(&v, from + i * step, sizeof v);                            \
        to[i] = (EXPRESSION);                                             \
    }                                                                     \
    break

CLONES static void convert_narrow(const char *from, int64_t step, int dtype, int64_t n, float *to) {
    switch (dtype) {
    case FLOAT32: CONVERT(float, v);
    case FLOAT16: CONVERT(uint16_t, half_float(v));
    case BFLOAT16: CONVERT(uint16_t, bits_float((uint32_t)v << 16));
    case INT16: CONVERT(int16_t, (float)v);
    case UINT16: CONVERT(uint16_t, (float)v);
    case INT8: CONVERT(int8_t, (float)v);
    case UINT8: CONVERT(uint8_t, (float)v);
    case BOOL: CONVERT(uint8_t, v ? 1.0f : 0.0f);
    default: CONVERT(uint8_t, FLOAT8[dtype - FLOAT8_E4M3FN][v]);
    }
}

CLONES static void convert_wide(const char *from, int64_t step, int dtype, int64_t n, double *to) {
    switch (dtype) {
    case INT64: CONVERT(int64_t, (double)v);
    case INT32: CONVERT(int32_t, (double)v);
    case UINT64: CONVERT(uint64_t, (double)v);
    case UINT32: CONVERT(uint32_t, (double)v);
    default: CONVERT(double, v);
    }
}

static void convert(const char *from, int64_t step, int dtype, int64_t n, void *to) {
    if (is_wide(dtype)) convert_wide(from, step, dtype, n, to);
    else convert_narrow(from, step, dtype, n, to);
}

/* n elements from `start` in logical order: in place where they lie so, else copied into `room`. */
static const void *elements(const Tensor *t, int64_t start, int64_t n, void *room) {
    int size = DTYPE_BYTES[t->dtype];
    if (t->is_dense) {
        const char *from = t->data + start * size;
        if ((t->dtype == FLOAT32 && ((uintptr_t)from & 3) == 0) ||
            (t->dtype == FLOAT64 && ((uintptr_t)from & 7) == 0))
            return from;
        convert(from, size, t->dtype, n, room);
        return room;
    }
    int64_t index[MAX_DIMS], rest = start, offset = 0;
    for (int d = t->dims - 1; d >= 0; d--) {
        index[d] = rest % t->shape[d];
        rest /= t->shape[d];
        offset += index[d] * t->stride[d];
    }
    int last = t->dims - 1, width = is_wide(t->dtype) ? 8 : 4;
    for (int64_t done = 0; done < n;) {
        int64_t run = t->shape[last] - index[last];
        if (run > n - done) run = n - done;
        convert(t->data + offset * size, t->stride[last] * size, t->dtype, run, (char *)room + done * width);
        done += run;
        index[last] += run;
        offset += run * t->stride[last];
        for (int d = last; d > 0 && index[d] == t->shape[d]; d--) {
            offset += t->stride[d - 1] - t->shape[d] * t->stride[d];
            index[d] = 0;
            index[d - 1]++;
        }
    }
    return room;
}

static void drop_dim(Tensor *t, int d) {
    for (int i = d; i < t->dims - 1; i++) {
        t->shape[i] = t->shape[i + 1];
        t->stride[i] = t->stride[i + 1];
    }
    t->dims--;
}

/* Dimensions that follow each other in memory become one. */
static void join_dims(Tensor *t) {
    for (int d = t->dims - 1; d >= 0; d--)
        if (t->shape[d] == 1) drop_dim(t, d);
    for (int d = t->dims - 2; d >= 0; d--)
        if (t->stride[d] == t->shape[d + 1] * t->stride[d + 1]) {
            t->shape[d] *= t->shape[d + 1];
            t->stride[d] = t->stride[d + 1];
            drop_dim(t, d + 1);
        }
    t->is_dense = t->dims == 0 || (t->dims == 1 && t->stride[0] == 1);
}

/* For sums over all elements the order is free: the one of memory is the fastest. */
static void order_dims(Tensor *t) {
    for (int i = 1; i < t->dims; i++)
        for (int d = i; d > 0 && t->stride[d] > t->stride[d - 1]; d--) {
            int64_t stride = t->stride[d], shape = t->shape[d];
            t->stride[d] = t->stride[d - 1];
            t->shape[d] = t->shape[d - 1];
            t->stride[d - 1] = stride;
            t->shape[d - 1] = shape;
        }
}

/* ---------------------------------------------------------------- moments and sketch */

typedef struct {
    int64_t finite, zeros, nans, infs;
    double mean, m2, abs_sum, min, max;
} Moments;

/* Between which magnitudes (exponent and two mantissa bits) bins were counted into: only these are
 * looked at, and put back to 0, which is what makes small tensors cheap. */
typedef struct {
    int low, high, has_subnormal;
} Range;

/* The copies do not lie a power of two apart: their addresses would look alike to the processor. */
enum { ROW32 = BINS32 + 16 };
typedef struct {
    uint32_t bins[COPIES][ROW32], subnormal[SUBNORMAL32];
    Range range;
} Sketch32;

typedef struct {
    uint32_t bins[BINS64], subnormal[SUBNORMAL64];
    Range range;
} Sketch64;

static const Range EMPTY = {BINS64, -1, 0};
static __thread Sketch32 sketch32;
static __thread Sketch64 sketch64;

static void widen(Range *range, int low, int high) {
    if (low < range->low) range->low = low;
    if (high > range->high) range->high = high;
}

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

/* What one look at a block finds. Deviations are from the block's first element: it is one of them, so
 * the sum of squares loses at most ten bits to cancellation. */
typedef struct {
    double first, sum, square, abs_sum;
    float low, high;
    uint32_t small; /* the word of the smallest magnitude other than 0, less 1 */
    int64_t zeros;
} Look;

/* Adds elements one by one, and counts them into the bins of `sketch` if there is one. Zeros are told
 * by their words, so that it holds where the processor flushes subnormals to zero. */
static inline __attribute__((always_inline)) void look_on(const float *x, int n, Look *look, Sketch32 *sketch) {
    for (int i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, x + i, 4);
        uint32_t size = word & 0x7fffffffu;
        double d = (double)x[i] - look->first;
        look->sum += d;
        look->square += d * d;
        look->abs_sum += fabs((double)x[i]);
        look->low = x[i] < look->low ? x[i] : look->low;
        look->high = x[i] > look->high ? x[i] : look->high;
        look->small = size - 1u < look->small ? size - 1u : look->small; /* 0 wraps and never wins */
        look->zeros += size == 0;
        if (sketch) sketch->bins[i % COPIES][word >> 21]++;
    }
}

static Look look_plain(const float *x, int n, Sketch32 *sketch) {
    Look look = {(double)x[0], 0.0, 0.0, 0.0, INFINITY, -INFINITY, UINT32_MAX, 0};
    look_on(x, n, &look, sketch);
    return look;
}

static Look (*look_at)(const float *, int, Sketch32 *) = look_plain;

#ifdef HAS_AVX2
/* Vector arithmetic and scalar increments in one loop: they wait for different parts of the processor. */
__attribute__((target("avx2,fma"))) static Look look_avx2(const float *x, int n, Sketch32 *sketch) {
    Look look = {(double)x[0], 0.0, 0.0, 0.0, INFINITY, -INFINITY, UINT32_MAX, 0};
    const __m256i top = _mm256_set1_epi32(INT32_MAX), one = _mm256_set1_epi32(1), none = _mm256_setzero_si256();
    const __m256d magnitude = _mm256_castsi256_pd(_mm256_set1_epi64x(INT64_MAX)), first = _mm256_set1_pd(look.first);
    __m256d sum_a = _mm256_setzero_pd(), sum_b = sum_a, square_a = sum_a, square_b = sum_a, abs_a = sum_a, abs_b = sum_a;
    __m256 low = _mm256_set1_ps(INFINITY), high = _mm256_set1_ps(-INFINITY);
    __m256i zeros = none, small = _mm256_set1_epi32(-1);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(x + i)), b = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
        abs_a = _mm256_add_pd(abs_a, _mm256_and_pd(a, magnitude));
        abs_b = _mm256_add_pd(abs_b, _mm256_and_pd(b, magnitude));
        a = _mm256_sub_pd(a, first);
        b = _mm256_sub_pd(b, first);
        sum_a = _mm256_add_pd(sum_a, a);
        sum_b = _mm256_add_pd(sum_b, b);
        square_a = _mm256_fmadd_pd(a, a, square_a);
        square_b = _mm256_fmadd_pd(b, b, square_b);
        low = _mm256_min_ps(low, v);
        high = _mm256_max_ps(high, v);
        __m256i size = _mm256_and_si256(_mm256_castps_si256(v), top);
        zeros = _mm256_sub_epi32(zeros, _mm256_cmpeq_epi32(size, none));
        small = _mm256_min_epu32(small, _mm256_sub_epi32(size, one));
        if (sketch) {
            uint32_t word[8];
            memcpy(word, x + i, sizeof word);
            for (int k = 0; k < 8; k++) sketch->bins[k % COPIES][word[k] >> 21]++;
        }
    }
    double sums[4], squares[4], abs_sums[4];
    float lows[8], highs[8];
    uint32_t smalls[8], zero_counts[8];
    _mm256_storeu_pd(sums, _mm256_add_pd(sum_a, sum_b));
    _mm256_storeu_pd(squares, _mm256_add_pd(square_a, square_b));
    _mm256_storeu_pd(abs_sums, _mm256_add_pd(abs_a, abs_b));
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    _mm256_storeu_si256((__m256i *)(void *)smalls, small);
    _mm256_storeu_si256((__m256i *)(void *)zero_counts, zeros);
    for (int k = 0; k < 4; k++) look.sum += sums[k], look.square += squares[k], look.abs_sum += abs_sums[k];
    for (int k = 0; k < 8; k++) {
        look.low = lows[k] < look.low ? lows[k] : look.low;
        look.high = highs[k] > look.high ? highs[k] : look.high;
        look.small = smalls[k] < look.small ? smalls[k] : look.small;
        look.zeros += zero_counts[k];
    }
    look_on(x + i, n - i, &look, sketch);
    return look;
}
#endif

static void choose_look(void) {
#ifdef HAS_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) look_at = look_avx2;
#endif
}

static void note_look(const Look *look, int n, Moments *m) {
    m->finite = n;
    m->abs_sum = look->abs_sum;
    m->mean = look->first + look->sum / n;
    m->m2 = look->square - look->sum * (look->sum / n);
    if (m->m2 < 0) m->m2 = 0;
    m->min = look->low;
    m->max = look->high;
}

static int bin_of(double magnitude) {
    float value = (float)magnitude;
    uint32_t word;
    memcpy(&word, &value, 4);
    return (int)(word >> 21);
}

/* The finite elements of a block that has others, one after the other. */
static int keep_finite32(const float *x, int n, float *finite, Moments *m) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, x + i, 4);
        word &= 0x7fffffffu;
        if (word < 0x7f800000u) finite[kept++] = x[i];
        else if (word == 0x7f800000u) m->infs++;
        else m->nans++;
    }
    return kept;
}

static void block32(const float *x, int n, Moments *total, Sketch32 *sketch) {
    Moments m;
    clear_moments(&m);
    Look look = look_at(x, n, sketch);
    m.zeros = look.zeros;
    if (isfinite(look.abs_sum)) {
        note_look(&look, n, &m);
    } else {
        float finite[BLOCK];
        int kept = keep_finite32(x, n, finite, &m);
        if (kept) {
            Look again = look_at(finite, kept, NULL);
            note_look(&again, kept, &m);
        }
    }
    if (m.finite) widen(&sketch->range, (int)((look.small + 1u) >> 21), bin_of(larger_magnitude(&m)));
    sketch->range.has_subnormal |= look.small < 0x007fffffu;
    merge_moments(total, &m);
}

static inline __attribute__((always_inline)) void finite_block64(const double *x, int n, Moments *m) {
    double sum = 0.0, abs_sum = 0.0, square = 0.0, first = x[0];
    for (int i = 0; i < n; i++) {
        double d = x[i] - first;
        sum += d;
        square += d * d;
        abs_sum += fabs(x[i]);
        if (x[i] < m->min) m->min = x[i];
        if (x[i] > m->max) m->max = x[i];
    }
    m->finite = n;
    m->abs_sum = abs_sum;
    m->mean = first + sum / n;
    m->m2 = square - sum * (sum / n);
    if (m->m2 < 0) m->m2 = 0;
}

static void count_subnormal(uint64_t mantissa, int bits, int negative, uint32_t *bins) {
    int lead = 63 - __builtin_clzll(mantissa);
    uint64_t quarter = lead >= 2 ? (mantissa >> (lead - 2)) & 3 : (mantissa << (2 - lead)) & 3;
    bins[(negative ? bits * 4 : 0) + lead * 4 + (int)quarter]++;
}

static void count_subnormals32(const float *x, int n, Sketch32 *sketch) {
    for (int i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, x + i, 4);
        uint32_t magnitude = word & 0x7fffffffu;
        if (magnitude && magnitude < 0x00800000u) count_subnormal(magnitude, 23, word >> 31, sketch->subnormal);
    }
}

/* `scale` keeps squares of extreme values inside the range of double. */
CLONES static void block64(const double *x, int n, double scale, Moments *total, Sketch64 *sketch) {
    double finite[BLOCK];
    Moments m;
    clear_moments(&m);
    int kept = 0;
    uint64_t largest = 0, smallest = UINT64_MAX >> 1;
    int has_subnormal = 0;
    for (int i = 0; i < n; i++) {
        uint64_t w;
        memcpy(&w, x + i, 8);
        uint64_t magnitude = w & 0x7fffffffffffffffull;
        m.zeros += magnitude == 0;
        largest = magnitude > largest ? magnitude : largest;
        smallest = magnitude && magnitude < smallest ? magnitude : smallest;

        if (magnitude > 0x7ff0000000000000ull) m.nans++;
        else if (magnitude == 0x7ff0000000000000ull) m.infs++;
        else finite[kept++] = x[i] * scale;
        if (sketch == NULL) continue;
        sketch->bins[w >> 50]++;
        if (magnitude && magnitude < 0x0010000000000000ull) {
            count_subnormal(magnitude, 52, (int)(w >> 63), sketch->subnormal);
            has_subnormal = 1;
        }
    }
    if (kept) finite_block64(finite, kept, &m);
    merge_moments(total, &m);
    if (!sketch) return;
    widen(&sketch->range, (int)(smallest >> 50), (int)(largest >> 50));
    sketch->range.has_subnormal |= has_subnormal;
}

/* ---------------------------------------------------------------- one key and its count */

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

/* A count beyond 32 bits is split: keys that repeat are added up by whoever reads them. */
static int push_pair(Pairs *p, int key, uint64_t count) {
    while (count) {
        uint32_t part = count > UINT32_MAX ? UINT32_MAX : (uint32_t)count;
        if (reserve_pairs(p, 1)) return -1;
        p->keys[p->length] = (int16_t)key;
        p->counts[p->length++] = part;
        count -= part;
    }
    return 0;
}

/* Where a sketch's bins lie among the keys. */
typedef struct {
    int bins, subnormal; /* on each side of 0 */
    int first_key, first_small;
} Layout;
static const Layout NARROW = {BINS32 / 2, SUBNORMAL32 / 2, 3789, 3701}, WIDE = {BINS64 / 2, SUBNORMAL64 / 2, 205, 1};

/* Exponent 0 is zero and the subnormals, the last one Inf and NaN: neither is read from the bins. */
static void clip(Range *range, const Layout *at) {
    if (range->low < 4) range->low = 4;
    if (range->high > at->bins - 5) range->high = at->bins - 5;
}

/* What all chunks of a tensor counted; 0 outside of a call. */
typedef struct {
    uint64_t bins[BINS64], subnormal[SUBNORMAL64];
    Range range;
} Gathered;
static __thread Gathered gathered;

static int take_bin(Pairs *p, int key, uint64_t *bin) {
    uint64_t count = *bin;
    *bin = 0;
    return count ? push_pair(p, key, count) : 0;
}

/* Moves the counts out. Keys ascend: the most negative value first, the subnormals in the middle. */
static int take_sketch(Pairs *p, Gathered *from, const Layout *at) {
    int low = from->range.low, high = from->range.high, bad = 0;
    int small = from->range.has_subnormal ? at->subnormal : 0;
    for (int b = high; b >= low; b--) bad |= take_bin(p, -(at->first_key + b), &from->bins[at->bins + b]);
    for (int b = small - 1; b >= 0; b--) bad |= take_bin(p, -(at->first_small + b), &from->subnormal[at->subnormal + b]);
    for (int b = 0; b < small; b++) bad |= take_bin(p, at->first_small + b, &from->subnormal[b]);
    for (int b = low; b <= high; b++) bad |= take_bin(p, at->first_key + b, &from->bins[b]);
    return bad;
}

/* ---------------------------------------------------------------- threads */

typedef void (*Body)(void *);
static void (*parallel)(Body, void *, unsigned, unsigned);

static void find_threads(void) {
#if !defined(_WIN32)
    *(void **)&parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
#endif
}

typedef struct {
    void (*work)(void *, int64_t);
    void *argument;
    int64_t tasks, next;
} Queue;

static void drain(void *pointer) {
    Queue *queue = pointer;
    for (;;) {
        int64_t task = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED);
        if (task >= queue->tasks) return;
        queue->work(queue->argument, task);
    }
}

static void run_tasks(void (*work)(void *, int64_t), void *argument, int64_t tasks, int threads) {
    Queue queue = {work, argument, tasks, 0};
    if (tasks > 1 && threads > 1 && parallel == NULL) find_threads();
    if (tasks > 1 && threads > 1 && parallel != NULL)
        parallel(drain, &queue, tasks < threads ? (unsigned)tasks : (unsigned)threads, 0);
    else
        drain(&queue);
}

/* ---------------------------------------------------------------- all elements */

typedef struct {
    const Tensor *tensor;
    double scale;
    Moments *moments;    /* one for each chunk */
    Gathered *gathered;  /* shared by the chunks; NULL where only the moments are wanted */
} Pass;

/* Adds counts to those of the tensor and leaves 0. Most bins are empty: eight are passed at once. */
static void move_bins(uint64_t *into, uint32_t *from, int low, int high) {
    for (int b = low; b <= high;) {
        if (b + 8 <= high) {
            uint64_t eight[4];
            memcpy(eight, from + b, sizeof eight);
            if (!(eight[0] | eight[1] | eight[2] | eight[3])) {
                b += 8;
                continue;
            }
        }
        if (from[b]) __atomic_fetch_add(&into[b], from[b], __ATOMIC_RELAXED);
        from[b++] = 0;
    }
}

static void note_range(Range *into, const Range *from) {
    for (int low = into->low; from->low < low;)
        if (__atomic_compare_exchange_n(&into->low, &low, from->low, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
    for (int high = into->high; from->high > high;)
        if (__atomic_compare_exchange_n(&into->high, &high, from->high, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
    if (from->has_subnormal) __atomic_store_n(&into->has_subnormal, 1, __ATOMIC_RELAXED);
}

/* Adds a chunk's counts to the tensor's and leaves the chunk's at 0. */
static void gather(Gathered *into, uint32_t *bins, int copies, int row, uint32_t *subnormal, Range *range,
                   const Layout *at) {
    clip(range, at);
    for (int c = 0; c < copies; c++)
        for (int side = 0; side < 2; side++) {
            int first = side * at->bins;
            move_bins(into->bins, bins + c * row, first + range->low, first + range->high);
        }
    if (range->has_subnormal) move_bins(into->subnormal, subnormal, 0, 2 * at->subnormal - 1);
    note_range(&into->range, range);
}

static int64_t chunk_end(const Tensor *t, int64_t chunk) {
    return (chunk + 1) * CHUNK < t->count ? (chunk + 1) * CHUNK : t->count;
}

static void narrow_chunk(void *argument, int64_t chunk) {
    Pass *pass = argument;
    float room[BLOCK];
    int64_t end = chunk_end(pass->tensor, chunk);
    Moments total;
    clear_moments(&total);
    sketch32.range = EMPTY;
    for (int64_t at = chunk * CHUNK; at < end; at += BLOCK) {
        int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
        block32(elements(pass->tensor, at, n, room), n, &total, &sketch32);
    }
    pass->moments[chunk] = total;
    for (int64_t at = chunk * CHUNK; sketch32.range.has_subnormal && at < end; at += BLOCK) {
        int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
        count_subnormals32(elements(pass->tensor, at, n, room), n, &sketch32);
    }
    gather(pass->gathered, sketch32.bins[0], COPIES, ROW32, sketch32.subnormal, &sketch32.range, &NARROW);
}

static void wide_chunk(void *argument, int64_t chunk) {
    Pass *pass = argument;
    double room[BLOCK];
    int64_t end = chunk_end(pass->tensor, chunk);
    Moments total;
    clear_moments(&total);
    sketch64.range = EMPTY;
    for (int64_t at = chunk * CHUNK; at < end; at += BLOCK) {
        int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
        block64(elements(pass->tensor, at, n, room), n, pass->scale, &total, pass->gathered ? &sketch64 : NULL);
    }
    pass->moments[chunk] = total;
    if (pass->gathered) gather(pass->gathered, sketch64.bins, 1, BINS64, sketch64.subnormal, &sketch64.range, &WIDE);
}

static int sum_pass(const Tensor *t, double scale, int threads, Moments *total, Gathered *into) {
    int64_t chunks = (t->count + CHUNK - 1) / CHUNK;
    Moments few[8], *moments = chunks <= 8 ? few : malloc((size_t)chunks * sizeof *moments);
    if (moments == NULL) return -1;
    Pass pass = {t, scale, moments, into};
    run_tasks(is_wide(t->dtype) ? wide_chunk : narrow_chunk, &pass, chunks, threads);
    clear_moments(total);
    for (int64_t c = 0; c < chunks; c++) merge_moments(total, &moments[c]);
    if (moments != few) free(moments);
    return 0;
}

/* ---------------------------------------------------------------- a row of the table */

typedef struct {
    int64_t count, zeros, nans, infs;
    double mean, std, min, max, abs_mean, abs_max, rms, batch_std;
    int32_t order, iteration, site, units, dead_units, constant_units;
    int8_t quantity, dtype, has_finite, has_units;
} Row;

static int observe_all(const Tensor *logical, int threads, Row *row, Pairs *pairs) {
    Tensor t = *logical;
    order_dims(&t);
    join_dims(&t);
    int wide = is_wide(t.dtype);
    Moments m;
    double scale = 1.0;
    gathered.range = EMPTY;
    int failed = sum_pass(&t, scale, threads, &m, &gathered);
    failed |= take_sketch(pairs, &gathered, wide ? &WIDE : &NARROW);
    double magnitude = larger_magnitude(&m), min = m.min, max = m.max;
    if (!failed && wide && m.finite && magnitude > 0 && (magnitude > 0x1p500 || magnitude < 0x1p-400)) {
        scale = magnitude > 1 ? 0x1p-540 : 0x1p540;
        failed = sum_pass(&t, scale, threads, &m, NULL);
    }
    if (failed) return -1;
    row->count = t.count;
    row->zeros = m.zeros;
    row->nans = m.nans;
    row->infs = m.infs;
    row->has_finite = m.finite > 0;
    if (!m.finite) return 0;
    double n = (double)m.finite, variance = m.m2 / n;
    row->std = sqrt(variance) / scale;
    row->rms = sqrt(variance + m.mean * m.mean) / scale;
    row->mean = m.mean / scale;
    row->abs_mean = m.abs_sum / n / scale;
    row->abs_max = magnitude;
    row->min = min;
    row->max = max;
    return 0;
}

/* ---------------------------------------------------------------- units over the batch */

typedef struct {
    const Tensor *tensor;
    int64_t samples, positions, units, inner;
    uint8_t *flags;      /* for each unit: 1 not dead, 2 not constant */
    double *std_sum;     /* for each tile */
    int64_t *std_count;
} UnitPass;

/* For positions that lie beside each other: sums of the differences from the first sample, and which
 * bits were ever set and ever differed. Four samples at a time, so that the sums are read and written
 * a fourth as often. */
#define DEFINE_TILE(NAME, TYPE, WORD)                                                                   \
    static inline __attribute__((always_inline)) void NAME##_rows(                                      \
        const TYPE *const *x, const int rows, const TYPE *restrict first, int n, double *restrict sum,  \
        double *restrict square, WORD *restrict set, WORD *restrict differed) {                         \
        for (int i = 0; i < n; i++) {                                                                   \
            double base = (double)first[i], s = sum[i], q = square[i];                                  \
            WORD start, any = set[i], change = differed[i];                                             \
            memcpy(&start, first + i, sizeof start);                                                    \
            for (int r = 0; r < rows; r++) {                                                            \
                double d = (double)x[r][i] - base;                                                      \
                WORD word;                                                                              \
                memcpy(&word, x[r] + i, sizeof word);                                                   \
                s += d;                                                                                 \
                q += d * d;                                                                             \
                any |= word;                                                                            \
                change |= word ^ start;                                                                 \
            }                                                                                           \
            sum[i] = s;                                                                                 \
            square[i] = q;                                                                              \
            set[i] = any;                                                                               \
            differed[i] = change;                                                                       \
        }                                                                                               \
    }                                                                                                   \
    CLONES static void NAME(const Tensor *t, int64_t samples, int64_t positions, int64_t at, int n,     \
                            double *sum, double *square, uint8_t *flag) {                               \
        TYPE first[TILE], room[4][TILE];                                                                \
        WORD set[TILE], differed[TILE];                                                                 \
        const TYPE *x[4] = {elements(t, at, n, room[0])};                                               \
        memcpy(first, x[0], (size_t)n * sizeof *first);                                                 \
        memcpy(set, x[0], (size_t)n * sizeof *set);                                                     \
        memset(differed, 0, sizeof differed);                                                           \
        memset(sum, 0, (size_t)n * sizeof *sum);                                                        \
        memset(square, 0, (size_t)n * sizeof *square);                                                  \
        int64_t s = 1;                                                                                  \
        for (; s + 4 <= samples; s += 4) {                                                              \
            for (int r = 0; r < 4; r++) x[r] = elements(t, (s + r) * positions + at, n, room[r]);       \
            NAME##_rows(x, 4, first, n, sum, square, set, differed);                                    \
        }                                                                                               \
        for (; s < samples; s++) {                                                                      \
            x[0] = elements(t, s * positions + at, n, room[0]);                                         \
            NAME##_rows(x, 1, first, n, sum, square, set, differed);                                    \
        }                                                                                               \
        const WORD magnitude = (WORD)~(WORD)0 >> 1; /* 0 and -0 are the same value */                   \
        for (int i = 0; i < n; i++)                                                                     \
            flag[i] = (uint8_t)(((set[i] & magnitude) != 0) |                                           \
                                ((((set[i] & magnitude) != 0 && differed[i] != 0) || isnan(square[i])) << 1)); \
    }
DEFINE_TILE(tile32, float, uint32_t)
DEFINE_TILE(tile64, double, uint64_t)

static void unit_tile(void *argument, int64_t tile) {
    UnitPass *pass = argument;
    double sum[TILE], square[TILE], total = 0.0;
    uint8_t flag[TILE];
    int64_t at = tile * TILE, count = 0;
    int n = pass->positions - at < TILE ? (int)(pass->positions - at) : TILE;
    (is_wide(pass->tensor->dtype) ? tile64 : tile32)(pass->tensor, pass->samples, pass->positions, at, n, sum, square, flag);
    double share = 1.0 / (double)pass->samples;
    for (int i = 0; i < n; i++) {
        double mean = sum[i] * share, variance = square[i] * share - mean * mean;
        if (isfinite(variance)) {
            total += sqrt(variance > 0 ? variance : 0.0);
            count++;
        }
    }
    for (int i = 0; i < n;) { /* positions of one unit lie beside each other, or units take turns */
        int64_t unit = ((at + i) / pass->inner) % pass->units;
        int64_t run = pass->inner - (at + i) % pass->inner;
        uint8_t found = 0;
        for (int end = run < n - i ? i + (int)run : n; i < end; i++) found |= flag[i];
        if (found & (uint8_t)~__atomic_load_n(&pass->flags[unit], __ATOMIC_RELAXED))
            __atomic_fetch_or(&pass->flags[unit], found, __ATOMIC_RELAXED);
    }
    pass->std_sum[tile] = total;
    pass->std_count[tile] = count;
}

static int observe_units(const Tensor *logical, int unit_dim, int threads, Row *row) {
    row->has_units = 0;
    int dims = logical->dims;
    if (unit_dim < 1 || unit_dim >= dims || logical->shape[0] < 2 || logical->count == 0) return 0;
    Tensor t = *logical;
    int64_t samples = t.shape[0], units = t.shape[unit_dim], inner = 1, positions = t.count / samples;
    for (int d = unit_dim + 1; d < dims; d++) inner *= t.shape[d];
    join_dims(&t);
    int64_t tiles = (positions + TILE - 1) / TILE;
    char *room = calloc(1, (size_t)(units + tiles * 16 + 8));
    if (room == NULL) return -1;
    double *std_sum = (double *)(void *)room;
    int64_t *std_count = (int64_t *)(void *)(room + tiles * 8);
    UnitPass pass = {&t, samples, positions, units, inner, (uint8_t *)room + tiles * 16, std_sum, std_count};
    run_tasks(unit_tile, &pass, tiles, t.count >= CHUNK ? threads : 1);
    double total = 0.0;
    int64_t count = 0;
    for (int64_t i = 0; i < tiles; i++) total += std_sum[i], count += std_count[i];
    row->has_units = 1;
    row->units = (int32_t)units;
    row->dead_units = row->constant_units = 0;
    for (int64_t u = 0; u < units; u++) {
        row->dead_units += !(pass.flags[u] & 1);
        row->constant_units += !(pass.flags[u] & 2);
    }
    row->batch_std = count ? total / (double)count : NAN;
    free(room);
    return 0;
}

/* ---------------------------------------------------------------- the table */

typedef struct {
    PyObject_HEAD
    Row *rows;
    int64_t *shapes;
    int32_t *shape_ends, *pair_ends;
    int64_t length, capacity, shape_length, shape_capacity;
    Pairs pairs;
} Table;

static int reserve_row(Table *table, int dims) {
    if (table->length == table->capacity) {
        int64_t capacity = table->capacity ? table->capacity * 2 : 64;
        Row *rows = realloc(table->rows, (size_t)capacity * sizeof *rows);
        if (rows) table->rows = rows;
        int32_t *shape_ends = realloc(table->shape_ends, (size_t)capacity * 4);
        if (shape_ends) table->shape_ends = shape_ends;
        int32_t *pair_ends = realloc(table->pair_ends, (size_t)capacity * 4);
        if (pair_ends) table->pair_ends = pair_ends;
        if (!rows || !shape_ends || !pair_ends) return -1;
        table->capacity = capacity;
    }
    if (table->shape_length + dims > table->shape_capacity) {
        int64_t capacity = (table->shape_length + dims) * 2 + 64;
        int64_t *shapes = realloc(table->shapes, (size_t)capacity * 8);
        if (!shapes) return -1;
        table->shapes = shapes;
        table->shape_capacity = capacity;
    }
    return 0;
}

static int add_row(Table *table, const Row *row, const Tensor *t, const Pairs *pairs) {
    if (reserve_row(table, t->dims) || reserve_pairs(&table->pairs, pairs->length)) return -1;
    if (t->dims) memcpy(table->shapes + table->shape_length, t->shape, (size_t)t->dims * 8);
    if (pairs->length) {
        memcpy(table->pairs.keys + table->pairs.length, pairs->keys, (size_t)pairs->length * 2);
        memcpy(table->pairs.counts + table->pairs.length, pairs->counts, (size_t)pairs->length * 4);
    }
    table->shape_length += t->dims;
    table->pairs.length += pairs->length;
    table->shape_ends[table->length] = (int32_t)table->shape_length;
    table->pair_ends[table->length] = (int32_t)table->pairs.length;
    table->rows[table->length++] = *row;
    return 0;
}

static int read_tensor(Tensor *t, PyObject *shape, PyObject *stride) {
    Py_ssize_t dims = PyTuple_Size(shape);
    if (dims < 0 || PyTuple_Size(stride) != dims || dims > MAX_DIMS) {
        PyErr_SetString(PyExc_ValueError, "shape and stride must be tuples of one length, 64 at most");
        return -1;
    }
    t->dims = (int)dims;
    t->count = 1;
    for (int d = 0; d < t->dims; d++) {
        t->shape[d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
        t->stride[d] = PyLong_AsLongLong(PyTuple_GetItem(stride, d));
        t->count *= t->shape[d];
    }
    if (PyErr_Occurred()) return -1;
    t->is_dense = 0;
    return 0;
}

static PyObject *table_observe(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (given != 10) {
        PyErr_SetString(PyExc_TypeError,
                        "observe takes order, iteration, site, quantity, unit_dim, dtype, pointer, shape, stride, threads");
        return NULL;
    }
    Table *table = (Table *)self;
    Row row;
    Tensor t;
    memset(&row, 0, sizeof row);
    row.order = (int32_t)PyLong_AsLong(arguments[0]);
    row.iteration = (int32_t)PyLong_AsLong(arguments[1]);
    row.site = (int32_t)PyLong_AsLong(arguments[2]);
    row.quantity = (int8_t)PyLong_AsLong(arguments[3]);
    int unit_dim = (int)PyLong_AsLong(arguments[4]);
    t.dtype = (int)PyLong_AsLong(arguments[5]);
    t.data = (const char *)PyLong_AsVoidPtr(arguments[6]);
    int threads = (int)PyLong_AsLong(arguments[9]);
    if (PyErr_Occurred() || read_tensor(&t, arguments[7], arguments[8])) return NULL;
    if (t.dtype < 0 || t.dtype >= DTYPES) {
        PyErr_SetString(PyExc_ValueError, "unknown dtype code");
        return NULL;
    }
    row.dtype = (int8_t)t.dtype;
    Pairs pairs = {0};
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = observe_all(&t, threads, &row, &pairs);
    if (!failed) failed = observe_units(&t, unit_dim, threads, &row);
    Py_END_ALLOW_THREADS
    if (!failed) failed = add_row(table, &row, &t, &pairs);
    free(pairs.keys);
    free(pairs.counts);
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* The last row once more, for another site that the very same tensor is seen at. */
static PyObject *table_repeat(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    Table *table = (Table *)self;
    if (given != 2 || table->length == 0) {
        PyErr_SetString(PyExc_TypeError, "repeat takes order and site, after at least one row");
        return NULL;
    }
    Row row = table->rows[table->length - 1];
    row.order = (int32_t)PyLong_AsLong(arguments[0]);
    row.site = (int32_t)PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    int64_t shape_at = table->length > 1 ? table->shape_ends[table->length - 2] : 0;
    int64_t pairs_at = table->length > 1 ? table->pair_ends[table->length - 2] : 0;
    Tensor t = {.dims = (int)(table->shape_length - shape_at)};
    if (t.dims) memcpy(t.shape, table->shapes + shape_at, (size_t)t.dims * 8);
    int64_t length = table->pairs.length - pairs_at;
    if (reserve_pairs(&table->pairs, length)) return PyErr_NoMemory();
    Pairs last = {table->pairs.keys + pairs_at, table->pairs.counts + pairs_at, length, length};
    if (add_row(table, &row, &t, &last)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define SET(NAME, TYPE, EXPRESSION)                                                    \
    do {                                                                               \
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(TYPE)); \
        if (!bytes) goto failed;                                                       \
        TYPE *to = (TYPE *)(void *)PyBytes_AsString(bytes);                            \
        for (int64_t i = 0; i < n; i++) {                                              \
            const Row *r = &table->rows[i];                                            \
            to[i] = (TYPE)(EXPRESSION);                                                \
        }                                                                              \
        int bad = PyDict_SetItemString(columns, NAME, bytes);                          \
        Py_DECREF(bytes);                                                              \
        if (bad) goto failed;                                                          \
    } while (0)

static int set_bytes(PyObject *columns, const char *name, const void *data, int64_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize(size ? data : "", (Py_ssize_t)size);
    if (!bytes) return -1;
    int bad = PyDict_SetItemString(columns, name, bytes);
    Py_DECREF(bytes);
    return bad;
}

static int set_offsets(PyObject *columns, const char *name, const int32_t *ends, int64_t n) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n + 1) * 4);
    if (!bytes) return -1;
    int32_t *to = (int32_t *)(void *)PyBytes_AsString(bytes);
    to[0] = 0;
    if (n) memcpy(to + 1, ends, (size_t)n * 4);
    int bad = PyDict_SetItemString(columns, name, bytes);
    Py_DECREF(bytes);
    return bad;
}

static PyObject *table_columns(PyObject *self, PyObject *unused) {
    (void)unused;
    Table *table = (Table *)self;
    Py_ssize_t n = (Py_ssize_t)table->length;
    PyObject *columns = PyDict_New();
    if (!columns) return NULL;
    SET("iteration", int32_t, r->iteration);
    SET("order", int32_t, r->order);
    SET("site", int32_t, r->site);
    SET("quantity", int8_t, r->quantity);
    SET("dtype", int8_t, r->dtype);
    SET("count", int64_t, r->count);
    SET("zeros", int64_t, r->zeros);
    SET("nans", int64_t, r->nans);
    SET("infs", int64_t, r->infs);
    SET("mean", double, r->mean);
    SET("std", double, r->std);
    SET("min", double, r->min);
    SET("max", double, r->max);
    SET("abs_mean", double, r->abs_mean);
    SET("abs_max", double, r->abs_max);
    SET("rms", double, r->rms);
    SET("units", int32_t, r->units);
    SET("dead_units", int32_t, r->dead_units);
    SET("constant_units", int32_t, r->constant_units);
    SET("batch_std", double, r->batch_std);
    SET("has_finite", int8_t, r->has_finite);
    SET("has_units", int8_t, r->has_units);
    if (set_bytes(columns, "shape_values", table->shapes, table->shape_length * 8) ||
        set_offsets(columns, "shape_offsets", table->shape_ends, n) ||
        set_bytes(columns, "sketch_keys", table->pairs.keys, table->pairs.length * 2) ||
        set_bytes(columns, "sketch_counts", table->pairs.counts, table->pairs.length * 4) ||
        set_offsets(columns, "sketch_offsets", table->pair_ends, n))
        goto failed;
    return columns;
failed:
    Py_DECREF(columns);
    return NULL;
}

static PyObject *table_clear(PyObject *self, PyObject *unused) {
    (void)unused;
    Table *table = (Table *)self;
    table->length = table->shape_length = table->pairs.length = 0;
    Py_RETURN_NONE;
}

static Py_ssize_t table_length(PyObject *self) { return (Py_ssize_t)((Table *)self)->length; }

static void table_dealloc(PyObject *self) {
    Table *table = (Table *)self;
    PyTypeObject *type = Py_TYPE(self);
    free(table->rows);
    free(table->shapes);
    free(table->shape_ends);
    free(table->pair_ends);
    free(table->pairs.keys);
    free(table->pairs.counts);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"observe", (PyCFunction)(void (*)(void))table_observe, METH_FASTCALL,
     "Add the statistics of one tensor as a row."},
    {"repeat", (PyCFunction)(void (*)(void))table_repeat, METH_FASTCALL, "Add the last row again, for another site."},
    {"columns", table_columns, METH_NOARGS, "Every column's buffer, by name."},
    {"clear", table_clear, METH_NOARGS, "Forget all rows."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_doc, "Rows of statistics, filled tensor by tensor."},
    {Py_tp_methods, table_methods},
    {Py_tp_dealloc, table_dealloc},
    {Py_sq_length, table_length},
    {0, NULL},
};
static PyType_Spec table_spec = {"backlight.reduce._kernel.Table", sizeof(Table), 0, Py_TPFLAGS_DEFAULT, table_slots};

static int fill_module(PyObject *module) {
    fill_float8();
    choose_look();
    PyObject *type = PyType_FromSpec(&table_spec);
    if (!type || PyModule_AddObjectRef(module, "Table", type)) {
        Py_XDECREF(type);
        return -1;
    }
    Py_DECREF(type);
    PyObject *names = PyTuple_New(DTYPES);
    if (!names) return -1;
    for (int d = 0; d < DTYPES; d++) PyTuple_SetItem(names, d, PyUnicode_FromString(DTYPE_NAMES[d]));
    int bad = PyModule_AddObjectRef(module, "DTYPES", names);
    Py_DECREF(names);
    return bad;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "Statistics and sketches of CPU tensors.", 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&module_definition); }
