/* A tensor as it lies in memory, and its elements as float or double. */
#ifndef BACKLIGHT_KERNEL_TENSOR_H
#define BACKLIGHT_KERNEL_TENSOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2
#define AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#endif

#define INLINE static inline __attribute__((always_inline))

enum { MAX_DIMS = 12 };

static int at_most(int64_t n, int limit) { return n < limit ? (int)n : limit; }

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

INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

INLINE float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Subnormals go through an integer, so that they survive where the processor flushes them to zero. */
INLINE float half_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu);
    uint32_t normal = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u);
    uint32_t small = float_bits((float)(int32_t)rest * 0x1p-24f);
    return bits_float(sign | (rest < 0x0400u ? small : normal));
}

/* ---------------------------------------------------------------- a tensor's elements */

typedef struct {
    const char *data;
    const char *minus; /* a tensor of the same layout to take away, element by element; NULL for most */
    int dtype, dims, is_dense; /* dense: in row-major order without gaps */
    int64_t count, shape[MAX_DIMS], stride[MAX_DIMS];
} Tensor;

/* A step that is known when compiling lets the compiler use vectors. */
#define CONVERT_BY(TYPE, EXPRESSION, STEP)                                \
    for (int64_t i = 0; i < n; i++) {                                     \
        TYPE v;                                                           \
        memcpy(&v, from + i * (int64_t)(STEP), sizeof v);                 \
        to[i] = (EXPRESSION);                                             \
    }
#define CONVERT(TYPE, EXPRESSION)                                         \
    if (step == (int64_t)sizeof(TYPE)) CONVERT_BY(TYPE, EXPRESSION, sizeof(TYPE))  \
    else CONVERT_BY(TYPE, EXPRESSION, step)                               \
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

#ifdef HAS_AVX2
/* The processor's own conversion keeps subnormals whatever the mode. */
AVX2 static void convert_halves(const char *from, int64_t n, float *to) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + 2 * i))));
    for (; i < n; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, 2);
        to[i] = half_float(half);
    }
}
#endif

static int has_avx2; /* and fma, f16c and bmi2, which came with it */

static void convert(const char *from, int64_t step, int dtype, int64_t n, void *to) {
#ifdef HAS_AVX2
    if (has_avx2 && dtype == FLOAT16 && step == 2) {
        convert_halves(from, n, to);
        return;
    }
#endif
    if (is_wide(dtype)) convert_wide(from, step, dtype, n, to);
    else convert_narrow(from, step, dtype, n, to);
}

static int is_aligned(const char *from, int dtype) {
    return (dtype == FLOAT32 && ((uintptr_t)from & 3) == 0) || (dtype == FLOAT64 && ((uintptr_t)from & 7) == 0);
}

/* n elements from `start` in logical order, of the tensor's layout with its elements at `data`. */
static void copy_elements(const Tensor *t, const char *data, int64_t start, int64_t n, void *room) {
    int size = DTYPE_BYTES[t->dtype];
    if (t->is_dense) {
        convert(data + start * size, size, t->dtype, n, room);
        return;
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
        convert(data + offset * size, t->stride[last] * size, t->dtype, run, (char *)room + done * width);
        done += run;
        index[last] += run;
        offset += run * t->stride[last];
        for (int d = last; d > 0 && index[d] == t->shape[d]; d--) {
            offset += t->stride[d - 1] - t->shape[d] * t->stride[d];
            index[d] = 0;
            index[d - 1]++;
        }
    }
}

/* n elements from `start` of what lies at `data`: in place where they lie so, else copied into `room`. */
INLINE const void *elements_of(const Tensor *t, const char *data, int64_t start, int64_t n, void *room) {
    const char *from = data + start * DTYPE_BYTES[t->dtype];
    if (t->is_dense && is_aligned(from, t->dtype)) return from;
    copy_elements(t, data, start, n, room);
    return room;
}

/* The nearest number that float16 holds, ties to even. Where float16 is subnormal its spacing is that
 * of float32 between 0.5 and 1, so adding 0.5 rounds. */
INLINE float round_half(float value) {
    uint32_t bits = float_bits(value), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
    uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u)) & ~0x1fffu;
    uint32_t small = float_bits((bits_float(size) + 0.5f) - 0.5f);
    if (size < 0x38800000u) normal = small;
    else if (size >= 0x7f800000u) normal = size;
    else if (normal >= 0x47800000u) normal = 0x7f800000u;
    return bits_float(sign | normal);
}

INLINE float round_bfloat(float value) {
    uint32_t bits = float_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    return (bits & 0x7fffffffu) > 0x7f800000u ? value : bits_float(rounded);
}

/* `to` may be `a`. */
CLONES static void subtract_narrow(const float *a, const float *b, int64_t n, int dtype, float *to) {
    for (int64_t i = 0; i < n; i++) to[i] = a[i] - b[i];
    if (dtype == FLOAT16)
        for (int64_t i = 0; i < n; i++) to[i] = round_half(to[i]);
    if (dtype == BFLOAT16)
        for (int64_t i = 0; i < n; i++) to[i] = round_bfloat(to[i]);
}

CLONES static void subtract_wide(const double *a, const double *b, int64_t n, double *to) {
    for (int64_t i = 0; i < n; i++) to[i] = a[i] - b[i];
}

/* Differences, rounded to the dtype as torch rounds them. */
static void copy_differences(const Tensor *t, int64_t start, int64_t n, void *room) {
    enum { PIECE = 256 };
    double space[PIECE];
    int width = is_wide(t->dtype) ? 8 : 4;
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        void *to = (char *)room + done * width;
        const void *a = elements_of(t, t->data, start + done, count, to);
        const void *b = elements_of(t, t->minus, start + done, count, space);
        if (is_wide(t->dtype)) subtract_wide(a, b, count, to);
        else subtract_narrow(a, b, count, t->dtype, to);
    }
}

/* n elements from `start` in logical order: in place where they lie so, else made in `room`. */
INLINE const void *elements(const Tensor *t, int64_t start, int64_t n, void *room) {
    if (t->minus == NULL) return elements_of(t, t->data, start, n, room);
    copy_differences(t, start, n, room);
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

static void swap_dims(Tensor *t, int a, int b) {
    int64_t shape = t->shape[a], stride = t->stride[a];
    t->shape[a] = t->shape[b];
    t->stride[a] = t->stride[b];
    t->shape[b] = shape;
    t->stride[b] = stride;
}

/* For sums over all elements the order is free: the one of memory is the fastest. */
static void order_dims(Tensor *t) {
    for (int i = 1; i < t->dims; i++)
        for (int d = i; d > 0 && t->stride[d] > t->stride[d - 1]; d--) swap_dims(t, d, d - 1);
}

#endif
