/* The two inner loops once more, sixteen floats at a time, for processors whose vectors are that wide. */
#ifndef BACKLIGHT_KERNEL_AVX512_H
#define BACKLIGHT_KERNEL_AVX512_H

#include "_kernel_units.h"

#ifdef HAS_AVX2
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,fma,bmi2")))

enum { AHEAD = 256 }; /* floats that are fetched before they are read: samples lie far apart */

/* What is gathered of floats beside their sums and squares. */
typedef struct {
    __m512d abs_a, abs_b;
    __m512 low, high;
    __m512i zeros, small;
} Lanes512;

AVX512 INLINE Lanes512 start_lanes512(void) {
    __m512d none = _mm512_setzero_pd();
    return (Lanes512){none, none, _mm512_set1_ps(INFINITY), _mm512_set1_ps(-INFINITY), _mm512_setzero_si512(),
                      _mm512_set1_epi32(-1)};
}

/* `a` and `b` are the halves of `v`. */
AVX512 INLINE void see_sixteen(Lanes512 *l, __m512 v, __m512d a, __m512d b) {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i size = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MAX));
    l->abs_a = _mm512_add_pd(l->abs_a, _mm512_abs_pd(a));
    l->abs_b = _mm512_add_pd(l->abs_b, _mm512_abs_pd(b));
    l->low = _mm512_min_ps(l->low, v);
    l->high = _mm512_max_ps(l->high, v);
    l->zeros = _mm512_mask_add_epi32(l->zeros, _mm512_testn_epi32_mask(size, size), l->zeros, one);
    l->small = _mm512_min_epu32(l->small, _mm512_sub_epi32(size, one));
}

AVX512 INLINE void count_sixteen(const float *x, Sketch32 *sketch) {
    for (int k = 0; k < 16; k += 2) { /* two words in one load */
        uint64_t words;
        memcpy(&words, x + k, 8);
        sketch->bins[k % COPIES32][(uint32_t)words >> 21]++;
        sketch->bins[k % COPIES32 + 1][words >> 53]++;
    }
}

AVX512 INLINE void end_lanes512(const Lanes512 *l, Look *look) {
    double low = _mm512_reduce_min_ps(l->low), high = _mm512_reduce_max_ps(l->high);
    uint32_t small = _mm512_reduce_min_epu32(l->small);
    look->abs_sum += _mm512_reduce_add_pd(_mm512_add_pd(l->abs_a, l->abs_b));
    look->low = low < look->low ? low : look->low;
    look->high = high > look->high ? high : look->high;
    look->small = small != UINT32_MAX && small < look->small ? small : look->small;
    look->zeros += (uint32_t)_mm512_reduce_add_epi32(l->zeros);
}

AVX512 INLINE __m512d eight_at(const float *x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }

AVX512 static Look look32_avx512(const float *x, int n, Sketch32 *sketch) {
    Look look = NOTHING_SEEN;
    look.first = (double)x[0];
    Lanes512 lanes = start_lanes512();
    const __m512d first = _mm512_set1_pd(look.first);
    __m512d sum_a = _mm512_setzero_pd(), sum_b = sum_a, square_a = sum_a, square_b = sum_a;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512d a = eight_at(x + i), b = eight_at(x + i + 8);
        see_sixteen(&lanes, _mm512_loadu_ps(x + i), a, b);
        a = _mm512_sub_pd(a, first);
        b = _mm512_sub_pd(b, first);
        sum_a = _mm512_add_pd(sum_a, a);
        sum_b = _mm512_add_pd(sum_b, b);
        square_a = _mm512_fmadd_pd(a, a, square_a);
        square_b = _mm512_fmadd_pd(b, b, square_b);
        if (sketch) count_sixteen(x + i, sketch);
    }
    end_lanes512(&lanes, &look);
    look.sum = _mm512_reduce_add_pd(_mm512_add_pd(sum_a, sum_b));
    look.square = _mm512_reduce_add_pd(_mm512_add_pd(square_a, square_b));
    look32_on(x + i, n - i, &look, sketch);
    return look;
}

/* Sixteen positions of some samples; all sums stay in registers meanwhile. */
AVX512 INLINE void see_positions(const float *x, int64_t stride, int64_t samples, Tile32 *tile, int i, Lanes512 *lanes,
                                 Sketch32 *sketch) {
    const __m512d first_a = eight_at(tile->first + i), first_b = eight_at(tile->first + i + 8);
    __m512d sum_a = _mm512_loadu_pd(tile->sum + i), sum_b = _mm512_loadu_pd(tile->sum + i + 8);
    __m512d square_a = _mm512_loadu_pd(tile->square + i), square_b = _mm512_loadu_pd(tile->square + i + 8);
    for (int64_t s = 0; s < samples; s++, x += stride) {
        __m512d a = eight_at(x), b = eight_at(x + 8);
        _mm_prefetch((const char *)(x + AHEAD), _MM_HINT_T0);
        see_sixteen(lanes, _mm512_loadu_ps(x), a, b);
        a = _mm512_sub_pd(a, first_a);
        b = _mm512_sub_pd(b, first_b);
        sum_a = _mm512_add_pd(sum_a, a);
        sum_b = _mm512_add_pd(sum_b, b);
        square_a = _mm512_fmadd_pd(a, a, square_a);
        square_b = _mm512_fmadd_pd(b, b, square_b);
        count_sixteen(x, sketch);
    }
    _mm512_storeu_pd(tile->sum + i, sum_a);
    _mm512_storeu_pd(tile->sum + i + 8, sum_b);
    _mm512_storeu_pd(tile->square + i, square_a);
    _mm512_storeu_pd(tile->square + i + 8, square_b);
}

/* A few samples at a time: the processor fetches ahead along no more than some. */
AVX512 static void see_avx512(const float *x, int64_t stride, int64_t samples, int n, Tile32 *tile, Look *look,
                              Sketch32 *sketch) {
    Lanes512 lanes = start_lanes512();
    int whole = n / 16 * 16;
    for (int64_t s = 0; s < samples; s += CACHED) {
        int64_t few = samples - s < CACHED ? samples - s : CACHED;
        for (int i = 0; i < whole; i += 16) see_positions(x + s * stride + i, stride, few, tile, i, &lanes, sketch);
    }
    end_lanes512(&lanes, look);
    for (int64_t s = 0; s < samples && whole < n; s++) {
        look32_on(x + s * stride + whole, n - whole, look, sketch);
        add_sample32(x + s * stride, whole, n, tile);
    }
}
#endif

#endif
