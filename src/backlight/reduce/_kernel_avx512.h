/* The two inner loops once more, sixteen floats at a time, for processors whose vectors are that wide. */
#ifndef BACKLIGHT_KERNEL_AVX512_H
#define BACKLIGHT_KERNEL_AVX512_H

#include "_kernel_couples.h"
#include "_kernel_units.h"

#ifdef HAS_AVX2

/* How many floats are fetched before they are read: along a tensor, and of samples that lie far apart, where
 * too many would drive each other out of the cache. */
enum { AHEAD = 512, SHORTLY = 32 };

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
    l->abs_a = _mm512_add_pd(l->abs_a, _mm512_abs_pd(a));
    l->abs_b = _mm512_add_pd(l->abs_b, _mm512_abs_pd(b));
    l->low = _mm512_min_ps(l->low, v);
    l->high = _mm512_max_ps(l->high, v);
}

/* Zeros, and how small others are, where nobody else tells. */
AVX512 INLINE void see_sizes(Lanes512 *l, __m512 v) {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i size = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MAX));
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

/* What is summed of eight elements at a time, as differences from the first. */
typedef struct {
    __m512d first, sum, square;
} Half;

AVX512 INLINE void add_half(Half *h, __m512d value) {
    __m512d d = _mm512_sub_pd(value, h->first);
    h->sum = _mm512_add_pd(h->sum, d);
    h->square = _mm512_fmadd_pd(d, d, h->square);
}

/* Adds sixteen elements to all sums. */
AVX512 INLINE __m512 add_sixteen(const float *x, Lanes512 *lanes, Half *a, Half *b) {
    __m512d low = eight_at(x), high = eight_at(x + 8);
    __m512 v = _mm512_loadu_ps(x);
    see_sixteen(lanes, v, low, high);
    add_half(a, low);
    add_half(b, high);
    return v;
}

/* Counts sixteen elements one by one. */
AVX512 INLINE void count_lanes(Lanes512 *lanes, Sketch32 *sketch, const float *x, __m512 v) {
    see_sizes(lanes, v);
    if (sketch) count_sixteen(x, sketch);
}

AVX512 INLINE Look look_at(const float *x, int n, Sketch32 *sketch, const int by_twos) {
    Look look = NOTHING_SEEN;
    look.first = (double)x[0];
    Lanes512 lanes = start_lanes512();
    Sending sending = by_twos ? start_sending(&sketch->couples) : (Sending){.next = 0};
    const __m512d none = _mm512_setzero_pd();
    Half a = {_mm512_set1_pd(look.first), none, none}, b = a;
    int i = 0;
    if (by_twos) make_room(&sending, sketch, n / 64 * AT_ONCE + 3 * AT_ONCE);
    for (; by_twos && i + 64 <= n; i += 64) {
        __m512i keys[2];
        for (int k = 0; k < 2; k++) {
            const float *at = x + i + 32 * k;
            _mm_prefetch((const char *)(at + AHEAD), _MM_HINT_T0);
            _mm_prefetch((const char *)(at + AHEAD + 16), _MM_HINT_T0);
            __m512 v = add_sixteen(at, &lanes, &a, &b), w = add_sixteen(at + 16, &lanes, &a, &b);
            keys[k] = keys_of(&sending, sketch, v, w, k);
        }
        send_couples(&sending, &sketch->couples, keys[0], keys[1]);
    }
    for (; i + 16 <= n; i += 16) {
        __m512 v = add_sixteen(x + i, &lanes, &a, &b);
        if (by_twos) send_alone(&sending, sketch, v);
        else count_lanes(&lanes, sketch, x + i, v);
    }
    end_lanes512(&lanes, &look);
    if (by_twos) look.zeros += end_sending(&sending, sketch, i);
    look.sum = _mm512_reduce_add_pd(_mm512_add_pd(a.sum, b.sum));
    look.square = _mm512_reduce_add_pd(_mm512_add_pd(a.square, b.square));
    look32_on(x + i, n - i, &look, sketch);
    return look;
}

AVX512 static Look look32_avx512(const float *x, int n, Sketch32 *sketch) {
    return sketch && can_couple(sketch, x, n, 1, n) ? look_at(x, n, sketch, 1) : look_at(x, n, sketch, 0);
}

/* The mantissa of a subnormal number, taken for a whole one, is a float that tells where it is counted: its exponent
 * is the place of the leading bit, and the two bits behind that follow it. Averages that have faded are all alike, so
 * they are counted in copies, too. */
AVX512 static void count_subnormals32_avx512(const float *x, int n, Sketch32 *sketch) {
    uint32_t places[BLOCK + 16];
    int length = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i word = _mm512_loadu_si512(x + i), size = _mm512_and_si512(word, _mm512_set1_epi32(INT32_MAX));
        __mmask16 is_small = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(size, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fffff));
        __m512i place = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(size)), 21);
        place = _mm512_sub_epi32(place, _mm512_set1_epi32(127 * 4));
        place = _mm512_mask_add_epi32(place, _mm512_movepi32_mask(word), place, _mm512_set1_epi32(SUBNORMAL32 / 2));
        _mm512_storeu_si512(places + length, _mm512_maskz_compress_epi32(is_small, place));
        length += __builtin_popcount(is_small);
    }
    if (length < SUBNORMAL32) {
        for (int k = 0; k < length; k++) sketch->subnormal[places[k]]++;
    } else {
        uint32_t copies[4][SUBNORMAL32] = {{0}};
        for (int k = 0; k < 4; k++) places[length + k] = 0; /* of which as many are taken off */
        for (int k = 0; k < length; k += 4)
            for (int c = 0; c < 4; c++) copies[c][places[k + c]]++;
        copies[0][0] -= (uint32_t)(-length & 3);
        for (int c = 0; c < 4; c++)
            for (int k = 0; k < SUBNORMAL32; k++) sketch->subnormal[k] += copies[c][k];
    }
    count_subnormals32_plain(x + i, n - i, sketch);
}

typedef struct {
    __m512d base, share, mean, mean_square, deviation, spread;
    int64_t known;
} Sums512;

AVX512 INLINE void note_half(const Half *h, Sums512 *sums) {
    __m512d mean = _mm512_fmadd_pd(h->sum, sums->share, _mm512_sub_pd(h->first, sums->base));
    __m512d deviation = _mm512_fnmadd_pd(h->sum, _mm512_mul_pd(h->sum, sums->share), h->square);
    __mmask8 known = _mm512_cmp_pd_mask(deviation, _mm512_set1_pd(1.7976931348623157e308), _CMP_LE_OQ);
    __mmask8 some = _mm512_mask_cmp_pd_mask(known, deviation, _mm512_setzero_pd(), _CMP_GT_OQ);
    sums->mean = _mm512_add_pd(sums->mean, mean);
    sums->mean_square = _mm512_fmadd_pd(mean, mean, sums->mean_square);
    sums->deviation = _mm512_add_pd(sums->deviation, deviation);
    sums->spread = _mm512_add_pd(sums->spread, _mm512_maskz_sqrt_pd(some, _mm512_mul_pd(deviation, sums->share)));
    sums->known += __builtin_popcount(known);
}

AVX512 INLINE __mmask16 both_halves(__mmask8 a, __mmask8 b) { return (__mmask16)(a | b << 8); }

/* Sixteen positions over all samples; nothing of them but keys goes through memory. */
AVX512 INLINE int see_positions(const float *x, int64_t stride, int64_t samples, int n, TileSums *sums, Look *look,
                                Sketch32 *sketch, uint8_t *flag, const int by_twos) {
    const __m512d none = _mm512_setzero_pd();
    Lanes512 lanes = start_lanes512();
    Sending sending = by_twos ? start_sending(&sketch->couples) : (Sending){.next = 0};
    Sums512 all = {_mm512_set1_pd((double)x[0]), _mm512_set1_pd(1.0 / (double)samples), none, none, none, none, 0};
    __mmask16 unknown = 0;
    for (int i = 0; i < n; i += ABREAST) {
        const float *at = x + i;
        Half a = {eight_at(at), none, none}, b = {eight_at(at + 8), none, none};
        if (by_twos) make_room(&sending, sketch, samples / 4 * AT_ONCE + 3 * AT_ONCE);
        __mmask16 filled = _mm512_cmp_ps_mask(_mm512_loadu_ps(at), _mm512_setzero_ps(), _CMP_NEQ_UQ);
        int64_t left = samples;
        for (; by_twos && left >= 4; left -= 4) {
            __m512i keys[2];
            for (int k = 0; k < 2; k++, at += 2 * stride) {
                _mm_prefetch((const char *)(at + SHORTLY), _MM_HINT_T0);
                _mm_prefetch((const char *)(at + stride + SHORTLY), _MM_HINT_T0);
                __m512 v = add_sixteen(at, &lanes, &a, &b), w = add_sixteen(at + stride, &lanes, &a, &b);
                keys[k] = keys_of(&sending, sketch, v, w, k);
            }
            send_couples(&sending, &sketch->couples, keys[0], keys[1]);
        }
        for (; left; left--, at += stride) {
            __m512 v = add_sixteen(at, &lanes, &a, &b);
            if (by_twos) send_alone(&sending, sketch, v);
            else count_lanes(&lanes, sketch, at, v);
        }
        note_half(&a, &all);
        note_half(&b, &all);
        __mmask16 differs = both_halves(_mm512_cmp_pd_mask(a.square, none, _CMP_NEQ_UQ), _mm512_cmp_pd_mask(b.square, none, _CMP_NEQ_UQ));
        __mmask16 lost = both_halves(_mm512_cmp_pd_mask(a.square, none, _CMP_UNORD_Q), _mm512_cmp_pd_mask(b.square, none, _CMP_UNORD_Q));
        __m128i flags = _mm_maskz_set1_epi8((__mmask16)(differs | filled), NOT_DEAD);
        flags = _mm_or_si128(flags, _mm_maskz_set1_epi8(differs, NOT_CONSTANT));
        flags = _mm_or_si128(flags, _mm_maskz_set1_epi8(lost, UNKNOWN));
        _mm_storeu_si128((__m128i *)(void *)(flag + i), flags);
        unknown |= lost;
    }
    end_lanes512(&lanes, look);
    if (by_twos) look->zeros += end_sending(&sending, sketch, samples * n);
    *sums = (TileSums){(double)x[0], _mm512_reduce_add_pd(all.mean), _mm512_reduce_add_pd(all.mean_square),
                       _mm512_reduce_add_pd(all.deviation), _mm512_reduce_add_pd(all.spread), all.known};
    return unknown != 0;
}

AVX512 static int columns_avx512(const float *x, int64_t stride, int64_t samples, int n, TileSums *sums, Look *look,
                                 Sketch32 *sketch, uint8_t *flag) {
    return can_couple(sketch, x, stride, samples, n) ? see_positions(x, stride, samples, n, sums, look, sketch, flag, 1)
                                                     : see_positions(x, stride, samples, n, sums, look, sketch, flag, 0);
}
#endif

#endif
