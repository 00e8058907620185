/* CRC-32 as zlib has it, many times as fast where the processor multiplies polynomials. */
#ifndef BACKLIGHT_KERNEL_CRC_H
#define BACKLIGHT_KERNEL_CRC_H

#include "_kernel_tensor.h"

enum { CRC_SLICES = 8, CRC_BLOCK = 16, CRC_STRIDE = 4 * CRC_BLOCK };

static uint32_t crc_tables[CRC_SLICES][256];

static void fill_crc_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t rest = i;
        for (int bit = 0; bit < 8; bit++) rest = rest & 1 ? rest >> 1 ^ 0xedb88320 : rest >> 1;
        crc_tables[0][i] = rest;
    }
    for (int slice = 1; slice < CRC_SLICES; slice++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t last = crc_tables[slice - 1][i];
            crc_tables[slice][i] = last >> 8 ^ crc_tables[0][last & 255];
        }
}

/* Eight bytes at a time, by tables; `crc` is the inverted one. */
static uint32_t crc_plain(uint32_t crc, const uint8_t *at, size_t size) {
    for (; size >= CRC_SLICES; size -= CRC_SLICES, at += CRC_SLICES) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = crc_tables[7][low & 255] ^ crc_tables[6][low >> 8 & 255] ^ crc_tables[5][low >> 16 & 255] ^
              crc_tables[4][low >> 24] ^ crc_tables[3][at[4]] ^ crc_tables[2][at[5]] ^ crc_tables[1][at[6]] ^
              crc_tables[0][at[7]];
    }
    for (; size; size--, at++) crc = crc >> 8 ^ crc_tables[0][(crc ^ *at) & 255];
    return crc;
}

#ifdef HAS_AVX2
#define CLMUL __attribute__((target("pclmul,sse4.1")))

/* Powers of x modulo the polynomial, bits reversed: what carries 128 bits over the next 512, or the next 128. */
#define FAR_LOW 0x0154442bd4
#define FAR_HIGH 0x01c6e41596
#define NEAR_LOW 0x01751997d0
#define NEAR_HIGH 0x00ccaa009e
#define LAST 0x0163cd6124
#define POLYNOMIAL 0x01db710641
#define QUOTIENT 0x01f7011641

CLMUL static __m128i carry_over(__m128i sum, __m128i powers, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(sum, powers, 0x00), high = _mm_clmulepi64_si128(sum, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CLMUL static __m128i load_block(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

/* From 128 bits to the remainder, by Barrett's reduction. */
CLMUL static uint32_t remainder_of(__m128i sum) {
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0), modulo = _mm_set_epi64x(QUOTIENT, POLYNOMIAL);
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, _mm_set_epi64x(NEAR_HIGH, NEAR_LOW), 0x10));
    __m128i high = _mm_srli_si128(sum, 4);
    sum = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(sum, low32), _mm_set_epi64x(0, LAST), 0x00), high);
    __m128i times = _mm_clmulepi64_si128(_mm_and_si128(sum, low32), modulo, 0x10);
    times = _mm_clmulepi64_si128(_mm_and_si128(times, low32), modulo, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, times), 1);
}

/* A multiple of 16 bytes, at least 64 of them. */
CLMUL static uint32_t crc_clmul(uint32_t crc, const uint8_t *at, size_t size) {
    const __m128i far = _mm_set_epi64x(FAR_HIGH, FAR_LOW), near = _mm_set_epi64x(NEAR_HIGH, NEAR_LOW);
    __m128i sums[4];
    for (int i = 0; i < 4; i++) sums[i] = load_block(at + CRC_BLOCK * i);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)crc));
    for (at += CRC_STRIDE, size -= CRC_STRIDE; size >= CRC_STRIDE; at += CRC_STRIDE, size -= CRC_STRIDE)
        for (int i = 0; i < 4; i++) sums[i] = carry_over(sums[i], far, load_block(at + CRC_BLOCK * i));
    for (int i = 1; i < 4; i++) sums[i] = carry_over(sums[i - 1], near, sums[i]);
    for (; size; at += CRC_BLOCK, size -= CRC_BLOCK) sums[3] = carry_over(sums[3], near, load_block(at));
    return remainder_of(sums[3]);
}
#endif

static uint32_t crc32_from(uint32_t crc, const uint8_t *at, size_t size) {
    crc = ~crc;
#ifdef HAS_AVX2
    size_t blocks = size / CRC_BLOCK * CRC_BLOCK;
    if (size >= CRC_STRIDE && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        crc = crc_clmul(crc, at, blocks);
        at += blocks;
        size -= blocks;
    }
#endif
    return ~crc_plain(crc, at, size);
}

#endif
