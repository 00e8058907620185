/* Elements counted two at a time, for processors with wide vectors.
 *
 * To count an element is to store a number, and a processor stores one a cycle: that is what a sketch costs. Most of
 * a tensor's elements lie within a few binades, so that the keys of two of them fit one small index: the first's key
 * and the second's say which cell of a square is counted up, and the sums over its rows and columns are how often each
 * key was seen. What lies beyond the window, and is not 0, is put aside and counted one by one; but subnormals, which are counted
 * apart in any case, only say that there are some. Vectors make the couples, which wait a
 * while before they are read: right after their store the processor is not done with it.
 */
#ifndef BACKLIGHT_KERNEL_COUPLES_H
#define BACKLIGHT_KERNEL_COUPLES_H

#include "_kernel_sketch.h"

#ifdef HAS_AVX2
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi2,popcnt")))

/* A key is a sign and a place in the window. Behind its bins there are places for what is not counted, several, so
 * that many zeros do not wait for each other's store. */
enum { KEY_SIGN = 64, KEY_BINS = 60, BELOW = 42 /* of these, below the middle */, LOWEST_NORMAL = 4 };

/* Sums have 16 bits. A window fits where at most one element in so many is beyond; after some others no more are tried. */
enum { MOST_COUPLES = 32000, MOST_SAMPLES = 2048 /* of sixteen elements each */, FEW_BEYOND = 5, MOST_MISFITS = 3 };
enum { TRIED = 1024 /* elements, by which a window is chosen */, EXPONENT = 0x7f800000, AT_ONCE = 32 /* couples */ };
#define EVEN 0x55555555u /* lanes */

/* As the first of a couple, and as the second. */
#define NO_KEYS_FROM(A, B, C, D) A, B, C, D, A + KEY_SIGN, B + KEY_SIGN, C + KEY_SIGN, D + KEY_SIGN
static const uint16_t NO_KEYS[2][AT_ONCE] = {
    {NO_KEYS_FROM(60, 61, 62, 63), NO_KEYS_FROM(60, 61, 62, 63), NO_KEYS_FROM(60, 61, 62, 63), NO_KEYS_FROM(60, 61, 62, 63)},
    {NO_KEYS_FROM(60, 61, 62, 63), NO_KEYS_FROM(61, 62, 63, 60), NO_KEYS_FROM(62, 63, 60, 61), NO_KEYS_FROM(63, 60, 61, 62)}};

/* Couples go round: behind the last place comes the first. */
INLINE unsigned turned(unsigned at) { return at & (2 * WAITING - 1); }

AVX512 INLINE void count_couples(Couples *c, unsigned at) {
    uint16_t *cells = c->cells[0];
    const uint16_t *couples = c->waiting + at;
#pragma GCC unroll 32
    for (int k = 0; k < AT_ONCE; k++) {
        uint16_t *cell = cells + couples[k];
        __asm__("" : "+r"(cell)); /* as one register: with a sum of two as its address, an increment is twice the work */
        ++*cell;
    }
}

AVX512 INLINE __m512i couples_of(__m512i first, __m512i second) {
    return _mm512_or_si512(first, _mm512_slli_epi16(second, KEY_BITS));
}

AVX512 static void clear_couples(Couples *c) {
    __m512i none = couples_of(_mm512_loadu_si512(NO_KEYS[0]), _mm512_loadu_si512(NO_KEYS[1]));
    for (int at = 0; at < 2 * WAITING; at += AT_ONCE) _mm512_storeu_si512(c->waiting + at, none);
    c->next = 0;
}

/* Sets a window around the middle of the first elements, whatever the largest is; 0 where all are 0, or subnormal. */
AVX512 static int choose_window(Couples *c, const float *x, int64_t stride, int64_t samples, int n) {
    __m512i sum = _mm512_setzero_si512();
    int filled = 0;
    for (int64_t s = 0, tried = 0; s < samples && tried < TRIED; s++, x += stride)
        for (int i = 0; i + 16 <= n && tried < TRIED; i += 16, tried += 16) {
            __m512i word = _mm512_loadu_si512(x + i);
            sum = _mm512_add_epi32(sum, _mm512_srli_epi32(_mm512_slli_epi32(word, 1), 22));
            filled += __builtin_popcount(_mm512_test_epi32_mask(word, _mm512_set1_epi32(EXPONENT)));
        }
    if (filled == 0) return 0;
    int base = _mm512_reduce_add_epi32(sum) / filled - BELOW, most = BINS32 / 2 - KEY_BINS;
    c->base = base < LOWEST_NORMAL ? LOWEST_NORMAL : base > most ? most : base;
    clear_couples(c);
    return 1;
}

/* Moves what was counted in the window to the sketch's bins. */
AVX512 static void empty_cells(Sketch32 *sketch) {
    Couples *c = &sketch->couples;
    const __m512i none = _mm512_setzero_si512(), one = _mm512_set1_epi16(1);
    __m512i sums[4] = {none, none, none, none};
    uint32_t times_second[KEYS_IN_ALL];
    uint16_t times_first[KEYS_IN_ALL];
    for (unsigned at = 0; at < WAITING; at += AT_ONCE) count_couples(c, turned(c->next + WAITING + at));
    clear_couples(c);
    for (int row = 0; row < KEYS_IN_ALL; row++) {
        __m512i all = none;
        for (int k = 0; k < 4; k++) {
            __m512i cells = _mm512_loadu_si512(c->cells[row] + 32 * k);
            _mm512_storeu_si512(c->cells[row] + 32 * k, none);
            sums[k] = _mm512_add_epi16(sums[k], cells);
            all = _mm512_add_epi16(all, cells);
        }
        times_second[row] = (uint32_t)_mm512_reduce_add_epi32(_mm512_madd_epi16(all, one));
    }
    for (int k = 0; k < 4; k++) _mm512_storeu_si512(times_first + 32 * k, sums[k]);
    int low = KEY_BINS, high = -1;
    for (int key = 0; key < KEYS_IN_ALL; key++) {
        int place = key % KEY_SIGN;
        uint32_t count = times_second[key] + times_first[key];
        if (place >= KEY_BINS || count == 0) continue;
        sketch->bins[0][key / KEY_SIGN * (BINS32 / 2) + c->base + place] += count;
        low = place < low ? place : low;
        high = place > high ? place : high;
    }
    if (high >= 0) widen(&sketch->range, c->base + low, c->base + high, 0);
    c->count = 0;
}

/* A thread is done with a tensor. */
AVX512 static void end_couples_avx512(Sketch32 *sketch) {
    if (sketch->couples.base) empty_cells(sketch);
    sketch->couples.base = sketch->couples.misfits = 0;
}

/* Whether samples of so many elements can be counted by twos. */
AVX512 static int can_couple(Sketch32 *sketch, const float *x, int64_t stride, int64_t samples, int n) {
    Couples *c = &sketch->couples;
    int is_fit = c->is_worthwhile && c->misfits < MOST_MISFITS && samples <= MOST_SAMPLES &&
                 (c->base || choose_window(c, x, stride, samples, n));
    if (!is_fit || n % 16) sketch->is_spread = 1;
    c->beyond = 0;
    return is_fit;
}

/* Counts what was put aside. */
static __attribute__((noinline)) void count_others(Sketch32 *sketch) {
    Couples *c = &sketch->couples;
    int low = BINS32, high = -1;
    for (int i = 0; i < c->others_count; i++) {
        int bin = (int)(c->others[i] >> 21), place = bin % (BINS32 / 2);
        sketch->bins[0][bin]++;
        low = place < low ? place : low;
        high = place > high ? place : high;
    }
    widen(&sketch->range, low, high, 0);
    c->beyond += c->others_count;
    c->others_count = 0;
}

AVX512 INLINE void put_lanes_aside(Couples *c, __m512i words, unsigned lanes) {
    _mm512_storeu_si512(c->others + c->others_count, _mm512_maskz_compress_epi32((__mmask16)lanes, words));
    c->others_count += __builtin_popcount(lanes);
}

/* Puts some of both words aside, which take turns in `lanes`. */
AVX512 INLINE void put_aside(Sketch32 *sketch, __m512i even, __m512i odd, unsigned lanes) {
    Couples *c = &sketch->couples;
    if (c->others_count > OTHERS_WAIT - AT_ONCE) count_others(sketch);
    put_lanes_aside(c, even, _pext_u32(lanes, EVEN));
    put_lanes_aside(c, odd, _pext_u32(lanes, ~EVEN));
}

/* What stays in registers meanwhile. */
typedef struct {
    __m512i base;
    unsigned next, small; /* whether any element is subnormal */
    int64_t filled;       /* elements that are not 0 */
} Sending;

AVX512 INLINE Sending start_sending(const Couples *c) { return (Sending){_mm512_set1_epi16((short)c->base), c->next, 0, 0}; }

/* Makes sure that so many couples can be sent: no sum may become too large. */
AVX512 INLINE void make_room(Sending *s, Sketch32 *sketch, int64_t couples) {
    Couples *c = &sketch->couples;
    if (c->count + couples + WAITING > MOST_COUPLES) {
        c->next = s->next;
        empty_cells(sketch);
        s->next = c->next;
    }
    c->count += (int)couples;
}

AVX512 INLINE __m512i no_keys(int is_second) { return _mm512_loadu_si512(NO_KEYS[is_second]); }

/* The keys of sixteen elements and of sixteen others. They are all in the upper halves of words. */
AVX512 INLINE __m512i keys_of(Sending *s, Sketch32 *sketch, __m512 v, __m512 w, int is_second) {
    enum { A_OR_B_AND_C = 0xF8, SIGN = BINS32 / 2 };
    __m512i word = _mm512_castps_si512(v), other = _mm512_castps_si512(w);
    __m512i half = _mm512_mask_blend_epi16(~EVEN, _mm512_srli_epi32(word, 16), other);
    __m512i above = _mm512_sub_epi16(_mm512_srli_epi16(half, 5), s->base);
    __m512i place = _mm512_and_si512(above, _mm512_set1_epi16((short)~SIGN));
    __m512i key = _mm512_ternarylogic_epi32(place, _mm512_srli_epi16(above, 4), _mm512_set1_epi16(KEY_SIGN), A_OR_B_AND_C);
    __mmask32 is_inside = _mm512_cmplt_epu16_mask(place, _mm512_set1_epi16(KEY_BINS));
    s->filled += AT_ONCE;
    if (__builtin_expect(!_kortestc_mask32_u8(is_inside, is_inside), 0)) {
        const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
        unsigned is_zero = (unsigned)_mm512_testn_epi32_mask(word, magnitude), other_zero = (unsigned)_mm512_testn_epi32_mask(other, magnitude);
        unsigned is_normal = _mm512_test_epi16_mask(half, _mm512_set1_epi16(EXPONENT >> 16)), beyond = is_normal & ~is_inside;
        int zeros = __builtin_popcount(is_zero | other_zero << 16);
        s->filled -= zeros;
        s->small |= (unsigned)(AT_ONCE - zeros - __builtin_popcount(is_normal));
        if (beyond) put_aside(sketch, word, other, beyond);
        key = _mm512_mask_mov_epi16(no_keys(is_second), is_inside, key);
    }
    return key;
}

/* Couples are put behind those that wait, of which the foremost are counted. */
AVX512 INLINE void send_couples(Sending *s, Couples *c, __m512i first, __m512i second) {
    _mm512_storeu_si512(c->waiting + s->next, couples_of(first, second));
    count_couples(c, turned(s->next + WAITING));
    s->next = turned(s->next + AT_ONCE);
}

/* Sixteen elements that are left over, each coupled with nothing. */
AVX512 INLINE void send_alone(Sending *s, Sketch32 *sketch, __m512 v) {
    send_couples(s, &sketch->couples, keys_of(s, sketch, v, _mm512_setzero_ps(), 0), no_keys(1));
}

/* How many of so many elements are 0. Where too many lay beyond the window, the next ones get another. */
AVX512 INLINE int64_t end_sending(const Sending *s, Sketch32 *sketch, int64_t n) {
    Couples *c = &sketch->couples;
    c->next = s->next;
    count_others(sketch);
    sketch->range.has_subnormal |= s->small != 0;
    if (c->beyond > n / FEW_BEYOND) {
        empty_cells(sketch);
        c->base = 0;
        c->misfits++;
    }
    return n - s->filled;
}
#endif

#endif
