/* SHA-256 (FIPS 180-4). */
#ifndef RUTC_SHA256_H
#define RUTC_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { RUTC_SHA256_BYTES = 32 };

void rutc_sha256(const uint8_t *data, size_t bytes, uint8_t digest[RUTC_SHA256_BYTES]);

#endif
