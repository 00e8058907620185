/* Elements counted two at a time, for processors with wide vectors.
 *
 * To count an element is to store a number, and a processor stores one or two a cycle: that is what a sketch costs. Most
 * of a tensor's elements lie within a few binades, so that the keys of two of them fit one small index: the first's key
 * and the second's say which cell of a square is counted up, and the sums over its rows and columns are how often each
 * key was seen. What lies beyond the window, and is not 0, is put aside and counted one by one; but subnormals, which are
 * counted apart in any case, only say that there are some. Vectors make the couples, which wait a while before they are
 * read: right after their store the processor is not done with it.
 */
#ifndef BACKLIGHT_KERNEL_COUPLES_H
#define BACKLIGHT_KERNEL_COUPLES_H

#include "_kernel_sketch.h"

#ifdef HAS_AVX2
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi2,popcnt")))

/* A key is a sign and a place in the window. Behind its bins there are places for what is not counted, several, so
 * that many zeros do not wait for each other's store. */
enum { KEY_BINS = 60, LOWEST_NORMAL = 4 };

/* A cell lies so many bytes behind the first as its couple says: the bits of the second's place, its sign, and the
 * first's place lie above the lowest, and the first's sign above all of them. So they are taken from a float's upper
 * half, less where the window begins, by few shifts. */
enum { FIRST_PLACE = 1, SECOND_SIGN = 7, SECOND_PLACE = 8, FIRST_SIGN = 15 };
enum { HALF_PLACE = 5 /* where the upper half has its place */, OF_FIRST = 1 << FIRST_SIGN | (PLACES - 1) << FIRST_PLACE };

/* Of the bins, how many are above the largest of the elements by which a window is chosen, and how many at the least and
 * at the most are below their middle. */
enum { ROOM_ABOVE = 2, LEAST_BELOW = 26, MOST_BELOW = 50 };

/* Sums have 16 bits. A window fits where at most one element in so many is beyond; after some others no more are tried. */
enum { MOST_COUPLES = 32000, MOST_SAMPLES = 2048 /* of sixteen elements each */, FEW_BEYOND = 5, MOST_MISFITS = 3 };
enum { TRIED = 1024 /* elements, by which a window is chosen */, EXPONENT = 0x7f800000, AT_ONCE = 32 /* couples */ };
#define EVEN 0x55555555u /* lanes */

/* As the first of a couple, and as the second. */
#define NO_FIRST(PLACE) (PLACE) << FIRST_PLACE
#define NO_SECOND(PLACE) (PLACE) << SECOND_PLACE
#define SIGNED(NO, SIGN, A, B, C, D) NO(A), NO(B), NO(C), NO(D), NO(A) | 1 << SIGN, NO(B) | 1 << SIGN, NO(C) | 1 << SIGN, NO(D) | 1 << SIGN
#define NO_FIRSTS SIGNED(NO_FIRST, FIRST_SIGN, 60, 61, 62, 63)
#define NO_SECONDS(A, B, C, D) SIGNED(NO_SECOND, SECOND_SIGN, A, B, C, D)
static const uint16_t NO_KEYS[2][AT_ONCE] = {
    {NO_FIRSTS, NO_FIRSTS, NO_FIRSTS, NO_FIRSTS},
    {NO_SECONDS(60, 61, 62, 63), NO_SECONDS(61, 62, 63, 60), NO_SECONDS(62, 63, 60, 61), NO_SECONDS(63, 60, 61, 62)}};

INLINE int between(int value, int least, int most) { return value < least ? least : value > most ? most : value; }

/* Couples go round: behind the last place comes the first. */
INLINE unsigned turned(unsigned at) { return at & (2 * WAITING - 1); }

/* The cells begin where an address ends with sixteen zeros, so that a couple is the rest of it: to load it there makes
 * the address of its cell. */
AVX512 INLINE void count_couples(Couples *c, unsigned at) {
    enum { ADDRESSES = 4 /* that do not wait for each other */ };
    uintptr_t first = (uintptr_t)c->cells, cells[ADDRESSES] = {first, first, first, first};
    const uint16_t *couples = c->waiting + at;
#pragma GCC unroll 32
    for (int k = 0; k < AT_ONCE; k++) {
        uintptr_t *cell = &cells[k % ADDRESSES];
        __asm__("movw %1, %w0" : "+r"(*cell) : "m"(couples[k]));
        ++*(uint16_t *)*cell;
    }
}

enum { SELECT = 0xCA /* the second where the first has a bit, else the third */ };

AVX512 INLINE __m512i couples_of(__m512i first, __m512i second) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16((short)OF_FIRST), first, second, SELECT);
}

/* Other work may have driven the cells out of the cache since the last tensor: they are fetched all at once, which is
 * sooner than each when it is first counted up. */
static void fetch_cells(const Couples *c) {
    for (int sign = 0; sign < 2; sign++)
        for (const char *at = (const char *)c->cells + (sign << FIRST_SIGN), *end = at + CELLS_BYTES / 3; at < end; at += 64)
            __builtin_prefetch(at, 1);
}

AVX512 static void clear_couples(Couples *c) {
    __m512i none = couples_of(_mm512_loadu_si512(NO_KEYS[0]), _mm512_loadu_si512(NO_KEYS[1]));
    for (int at = 0; at < 2 * WAITING; at += AT_ONCE) _mm512_storeu_si512(c->waiting + at, none);
    c->next = 0;
    c->cells = (uint16_t *)(((uintptr_t)c->room + UINT16_MAX) & ~(uintptr_t)UINT16_MAX);
}

/* Sets a window for the first elements: the largest is just below its upper end, unless it is far from their middle. */
AVX512 static int choose_window(Couples *c, const float *x, int64_t stride, int64_t samples, int n) {
    __m512i sum = _mm512_setzero_si512(), largest = sum;
    int filled = 0;
    for (int64_t s = 0, tried = 0; s < samples && tried < TRIED; s++, x += stride)
        for (int i = 0; i + 16 <= n && tried < TRIED; i += 16, tried += 16) {
            __m512i word = _mm512_loadu_si512(x + i), bin = _mm512_srli_epi32(_mm512_slli_epi32(word, 1), 22);
            sum = _mm512_add_epi32(sum, bin);
            largest = _mm512_max_epu32(largest, bin);
            filled += __builtin_popcount(_mm512_test_epi32_mask(word, _mm512_set1_epi32(EXPONENT)));
        }
    if (filled == 0) return 0;
    int middle = _mm512_reduce_add_epi32(sum) / filled;
    int base = between((int)_mm512_reduce_max_epu32(largest) + ROOM_ABOVE - KEY_BINS, middle - MOST_BELOW, middle - LEAST_BELOW);
    c->base = between(base, LOWEST_NORMAL, BINS32 / 2 - KEY_BINS);
    clear_couples(c);
    fetch_cells(c);
    return 1;
}

/* How often elements of one sign and of each place were the first of a couple. */
typedef struct {
    __m512i low, high;
} Firsts;

/* Adds the cells of one second to those of each first, and puts them back to 0; they are the answer, in words. */
AVX512 INLINE __m512i take_cells(uint16_t *cells, Firsts *firsts) {
    const __m512i none = _mm512_setzero_si512();
    __m512i low = _mm512_loadu_si512(cells), high = _mm512_loadu_si512(cells + PLACES / 2);
    _mm512_storeu_si512(cells, none);
    _mm512_storeu_si512(cells + PLACES / 2, none);
    firsts->low = _mm512_add_epi16(firsts->low, low);
    firsts->high = _mm512_add_epi16(firsts->high, high);
    return _mm512_madd_epi16(_mm512_add_epi16(low, high), _mm512_set1_epi16(1));
}

/* Moves what was counted in the window to the sketch's bins. */
AVX512 static void empty_cells(Sketch32 *sketch) {
    enum { NEGATIVE = 1 << (FIRST_SIGN - 1) /* cells, of two bytes */ };
    Couples *c = &sketch->couples;
    const __m512i none = _mm512_setzero_si512();
    Firsts firsts[2] = {{none, none}, {none, none}};
    uint32_t seconds[2][PLACES];
    uint16_t times[2][PLACES];
    for (unsigned at = 0; at < WAITING; at += AT_ONCE) count_couples(c, turned(c->next + WAITING + at));
    clear_couples(c);
    for (int place = 0; place < PLACES; place++)
        for (int sign = 0; sign < 2; sign++) {
            uint16_t *cells = c->cells + (place << (SECOND_PLACE - 1) | sign << (SECOND_SIGN - 1));
            __m512i both = _mm512_add_epi32(take_cells(cells, &firsts[0]), take_cells(cells + NEGATIVE, &firsts[1]));
            seconds[sign][place] = (uint32_t)_mm512_reduce_add_epi32(both);
        }
    int low = KEY_BINS, high = -1;
    for (int sign = 0; sign < 2; sign++) {
        _mm512_storeu_si512(times[sign], firsts[sign].low);
        _mm512_storeu_si512(times[sign] + PLACES / 2, firsts[sign].high);
        for (int place = 0; place < KEY_BINS; place++) {
            uint32_t count = seconds[sign][place] + times[sign][place];
            if (count == 0) continue;
            sketch->bins[0][sign * (BINS32 / 2) + c->base + place] += count;
            low = place < low ? place : low;
            high = place > high ? place : high;
        }
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

/* What stays in registers meanwhile. */
typedef struct {
    __m512i base;
    unsigned next, small; /* whether any element is subnormal */
    int others;           /* how many are put aside */
    int64_t filled;       /* elements that are not 0 */
} Sending;

AVX512 INLINE Sending start_sending(const Couples *c) { return (Sending){_mm512_set1_epi16((short)(c->base << HALF_PLACE)), c->next, 0, 0, 0}; }

/* Counts so many that were put aside. */
AVX512 static __attribute__((noinline)) void count_others(Sketch32 *sketch, int others) {
    Couples *c = &sketch->couples;
    __m512i low = _mm512_set1_epi32(BINS32), high = _mm512_set1_epi32(-1);
    for (int i = 0; i < others; i += 16) {
        __mmask16 lanes = _cvtu32_mask16(0xffffu >> (16 - at_most(others - i, 16)));
        __m512i place = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_loadu_si512(c->others + i), 1), 22);
        low = _mm512_mask_min_epi32(low, lanes, low, place);
        high = _mm512_mask_max_epi32(high, lanes, high, place);
    }
    for (int i = 0; i < others; i++) sketch->bins[0][c->others[i] >> 21]++;
    widen(&sketch->range, _mm512_reduce_min_epi32(low), _mm512_reduce_max_epi32(high), 0);
    c->beyond += others;
}

AVX512 INLINE void put_lanes_aside(uint32_t *others, __m512i words, unsigned lanes) {
    _mm512_storeu_si512(others, _mm512_maskz_compress_epi32((__mmask16)lanes, words));
}

/* Puts some of both words aside, which take turns in `lanes`. */
AVX512 INLINE void put_aside(Sending *s, Sketch32 *sketch, __m512i even, __m512i odd, unsigned lanes) {
    uint32_t *others = sketch->couples.others;
    if (s->others > OTHERS_WAIT - AT_ONCE) {
        count_others(sketch, s->others);
        s->others = 0;
    }
    put_lanes_aside(others + s->others, even, _pext_u32(lanes, EVEN));
    put_lanes_aside(others + s->others + __builtin_popcount(lanes & EVEN), odd, _pext_u32(lanes, ~EVEN));
    s->others += __builtin_popcount(lanes);
}

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

/* The first or the second keys of couples, as what lies above where the window begins says, if it lies inside. */
AVX512 INLINE __m512i key_of(__m512i above, int is_second) {
    if (is_second)
        return _mm512_ternarylogic_epi32(_mm512_set1_epi16(1 << SECOND_SIGN), _mm512_srli_epi16(above, 15 - SECOND_SIGN),
                                         _mm512_slli_epi16(above, SECOND_PLACE - HALF_PLACE), SELECT);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(1 << FIRST_SIGN), above, _mm512_srli_epi16(above, HALF_PLACE - FIRST_PLACE), SELECT);
}

/* The keys of sixteen elements and of sixteen others. They are all in the upper halves of words. */
AVX512 INLINE __m512i keys_of(Sending *s, Sketch32 *sketch, __m512 v, __m512 w, int is_second) {
    __m512i word = _mm512_castps_si512(v), other = _mm512_castps_si512(w);
    __m512i half = _mm512_mask_blend_epi16(~EVEN, _mm512_srli_epi32(word, 16), other);
    __m512i above = _mm512_sub_epi16(half, s->base), key = key_of(above, is_second);
    __mmask32 is_inside = _mm512_cmplt_epu16_mask(_mm512_and_si512(above, _mm512_set1_epi16(INT16_MAX)), _mm512_set1_epi16(KEY_BINS << HALF_PLACE));
    s->filled += AT_ONCE;
    if (__builtin_expect(!_kortestc_mask32_u8(is_inside, is_inside), 0)) {
        const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
        unsigned is_zero = (unsigned)_mm512_testn_epi32_mask(word, magnitude), other_zero = (unsigned)_mm512_testn_epi32_mask(other, magnitude);
        unsigned is_normal = _mm512_test_epi16_mask(half, _mm512_set1_epi16(EXPONENT >> 16)), beyond = is_normal & ~is_inside;
        int zeros = __builtin_popcount(is_zero | other_zero << 16);
        s->filled -= zeros;
        s->small |= (unsigned)(AT_ONCE - zeros - __builtin_popcount(is_normal));
        if (beyond) put_aside(s, sketch, word, other, beyond);
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
    if (s->others) count_others(sketch, s->others);
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
