/* Images in the formats PNG, BMP and PNM: their size, and their pixels as red, green and blue. */
#ifndef RUTC_IMAGES_H
#define RUTC_IMAGES_H

#include <stdint.h>
#include <string.h>

#include "call.h"

typedef enum rutc_image_format { RUTC_PNG, RUTC_BMP, RUTC_PNM } rutc_image_format;

typedef struct rutc_image {
  rutc_image_format format;
  const uint8_t *data;
  int64_t bytes;
  int64_t width, height;
  int64_t start;   /* of the pixels (BMP, PNM) */
  int bits;        /* of a sample (PNG) or pixel (BMP) */
  int color;       /* PNG's color type */
  int channels;    /* of PNM */
  int upside_down; /* BMP's rows begin at the bottom */
  int64_t palette; /* where BMP's begins */
} rutc_image;

enum { RUTC_IMAGE_SIDE = 1 << 20, RUTC_IMAGE_PIXELS = 1 << 28 };

static inline uint32_t rutc_big(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint32_t rutc_little(const uint8_t *p) {
  return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static inline int rutc_png_header(rutc_image *self) {
  const uint8_t *p = self->data;
  if (self->bytes < 33 || memcmp(p + 12, "IHDR", 4) != 0) return 0;
  self->width = rutc_big(p + 16);
  self->height = rutc_big(p + 20);
  self->bits = p[24];
  self->color = p[25];
  int known = self->color == 0 || self->color == 2 || self->color == 3 || self->color == 4 ||
              self->color == 6;
  int narrow = self->bits == 1 || self->bits == 2 || self->bits == 4;
  int fits = self->bits == 8 || (self->bits == 16 && self->color != 3) ||
             (narrow && (self->color == 0 || self->color == 3));
  return known && fits && p[28] == 0;
}

static inline int rutc_bmp_header(rutc_image *self) {
  const uint8_t *p = self->data;
  if (self->bytes < 54) return 0;
  int64_t height = (int32_t)rutc_little(p + 22);
  self->start = rutc_little(p + 10);
  self->palette = 14 + (int64_t)rutc_little(p + 14);
  self->width = (int32_t)rutc_little(p + 18);
  self->upside_down = height > 0;
  self->height = height < 0 ? -height : height;
  self->bits = p[28] | p[29] << 8;
  uint32_t packing = rutc_little(p + 30);
  return (self->bits == 24 || self->bits == 8 || self->bits == 32) &&
         (packing == 0 || (packing == 3 && self->bits == 32));
}

/* The next number of a PNM header from `at` on, comments left out; -1 where there is none. */
static inline int64_t rutc_pnm_number(const rutc_image *self, int64_t *at) {
  int64_t i = *at, value = 0;
  for (; i < self->bytes; i++) {
    if (self->data[i] == '#') {
      while (i < self->bytes && self->data[i] != '\n') i++;
    } else if (self->data[i] > ' ') {
      break;
    }
  }
  int64_t first = i;
  for (; i < self->bytes && self->data[i] >= '0' && self->data[i] <= '9' && i < first + 9; i++) {
    value = 10 * value + (self->data[i] - '0');
  }
  *at = i;
  return i > first ? value : -1;
}

static inline int rutc_pnm_header(rutc_image *self) {
  int64_t at = 2;
  self->channels = self->data[1] == '6' ? 3 : 1;
  self->width = rutc_pnm_number(self, &at);
  self->height = rutc_pnm_number(self, &at);
  int64_t most = rutc_pnm_number(self, &at);
  self->start = at + 1;
  return most == 255;
}

/* What follows the formats that are read in the message of a failure: the format of the image. */
static inline const char *rutc_other_format(const rutc_image *self) {
  static const struct {
    int64_t at, bytes;
    const char *mark, *told;
  } others[] = {
      {0, 3, "\xFF\xD8\xFF", ", but a JPEG"}, {4, 4, "jP  ", ", but a JPEG 2000"},
      {0, 4, "\xFF\x4F\xFF\x51", ", but a JPEG 2000"}, {8, 4, "WEBP", ", but a WebP"},
      {0, 4, "II*\0", ", but a TIFF"}, {0, 4, "MM\0*", ", but a TIFF"},
      {0, 4, "GIF8", ", but a GIF"},
  };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    int64_t at = others[i].at, bytes = others[i].bytes;
    if (self->bytes >= at + bytes && memcmp(self->data + at, others[i].mark, (size_t)bytes) == 0) {
      return others[i].told;
    }
  }
  return "";
}

/* Reads the header; the status of a failure otherwise. */
static inline int rutc_image_open(const rutc_call *call, rutc_image *self) {
  static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  const DLTensor *stream = &call->args[0];
  memset(self, 0, sizeof *self);
  self->data = stream->data;
  self->bytes = stream->shape[0];
  int fits = 0;
  if (self->bytes >= 8 && memcmp(self->data, png, 8) == 0) {
    self->format = RUTC_PNG;
    fits = rutc_png_header(self);
  } else if (self->bytes >= 2 && self->data[0] == 'B' && self->data[1] == 'M') {
    self->format = RUTC_BMP;
    fits = rutc_bmp_header(self);
  } else if (self->bytes >= 3 && self->data[0] == 'P' &&
             (self->data[1] == '5' || self->data[1] == '6')) {
    self->format = RUTC_PNM;
    fits = rutc_pnm_header(self);
  }
  if (!fits || self->width < 1 || self->height < 1 || self->width > RUTC_IMAGE_SIDE ||
      self->height > RUTC_IMAGE_SIDE || self->width * self->height > RUTC_IMAGE_PIXELS) {
    return rutc_call_fail(call, "the image is no PNG (without interlacing), BMP or binary PNM%s",
                          rutc_other_format(self));
  }
  return RUTC_OK;
}

#endif
