#include "images.h"
#include "inflate.h"

/* A row of a PNG from differences to bytes; `before` is the row above, or zeros. */
static int unfilter(uint8_t *row, const uint8_t *before, int64_t bytes, int64_t pixel, int kind) {
  for (int64_t i = 0; i < bytes; i++) {
    int left = i >= pixel ? row[i - pixel] : 0, above = before[i];
    int corner = i >= pixel ? before[i - pixel] : 0, guess = 0;
    if (kind == 1) guess = left;
    if (kind == 2) guess = above;
    if (kind == 3) guess = (left + above) / 2;
    if (kind == 4) {
      int a = above - corner, b = left - corner, c = a + b;
      a = a < 0 ? -a : a;
      b = b < 0 ? -b : b;
      c = c < 0 ? -c : c;
      guess = a <= b && a <= c ? left : b <= c ? above : corner;
    }
    row[i] = (uint8_t)(row[i] + guess);
  }
  return kind <= 4;
}

/* Sample `at` of a row, widened or narrowed to 8 bits unless it is an index of the palette. */
static uint8_t sample(const rutc_image *self, const uint8_t *row, int64_t at) {
  if (self->bits == 16) return row[2 * at];
  if (self->bits == 8) return row[at];
  int per = 8 / self->bits, most = (1 << self->bits) - 1;
  int value = row[at / per] >> (8 - self->bits * (1 + (int)(at % per))) & most;
  return (uint8_t)(self->color == 3 ? value : value * (255 / most));
}

static int damaged(const rutc_call *call) { return rutc_call_fail(call, "the image is damaged"); }

static int read_png(const rutc_call *call, const rutc_image *self, uint8_t *out) {
  static const int samples[] = {1, 0, 3, 1, 2, 0, 4};
  int64_t row_bytes = (self->width * samples[self->color] * self->bits + 7) / 8;
  int64_t pixel = samples[self->color] * self->bits / 8;
  int64_t raw_bytes = (row_bytes + 1) * self->height, packed = 0;
  uint8_t *raw = rutc_call_scratch(call, raw_bytes + self->bytes + row_bytes);
  if (raw == NULL) return RUTC_OUT_OF_MEMORY;
  uint8_t *stream = raw + raw_bytes, *before = stream + self->bytes;
  const uint8_t *palette = NULL;
  int64_t colors = 0;
  for (int64_t at = 8; at + 12 <= self->bytes;) {
    int64_t size = rutc_big(self->data + at);
    const uint8_t *name = self->data + at + 4, *body = name + 4;
    if (size > self->bytes - at - 12) return damaged(call);
    if (memcmp(name, "PLTE", 4) == 0) {
      palette = body;
      colors = size / 3;
    }
    if (memcmp(name, "IDAT", 4) == 0) {
      memcpy(stream + packed, body, (size_t)size);
      packed += size;
    }
    at += size + 12;
  }
  if (packed < 2 || !rutc_inflate(stream, packed, raw, raw_bytes)) return damaged(call);
  memset(before, 0, (size_t)row_bytes);
  for (int64_t y = 0; y < self->height; y++) {
    uint8_t *row = raw + y * (row_bytes + 1) + 1;
    if (!unfilter(row, before, row_bytes, pixel > 0 ? pixel : 1, row[-1])) return damaged(call);
    before = row;
    for (int64_t x = 0; x < self->width; x++, out += 3) {
      int64_t first = x * samples[self->color];
      uint8_t value = sample(self, row, first);
      if (self->color == 3 && value >= colors) return damaged(call);
      for (int c = 0; c < 3; c++) {
        int wide = self->color == 2 || self->color == 6;
        out[c] = self->color == 3 ? palette[3 * value + c]
                 : wide           ? sample(self, row, first + c)
                                  : value;
      }
    }
  }
  return RUTC_OK;
}

static int read_bmp(const rutc_call *call, const rutc_image *self, uint8_t *out) {
  int64_t row_bytes = (self->width * self->bits + 31) / 32 * 4, pixel = self->bits / 8;
  if (self->start > self->bytes || self->height > (self->bytes - self->start) / row_bytes) {
    return damaged(call);
  }
  for (int64_t y = 0; y < self->height; y++) {
    int64_t line = self->upside_down ? self->height - 1 - y : y;
    const uint8_t *row = self->data + self->start + line * row_bytes;
    for (int64_t x = 0; x < self->width; x++, out += 3) {
      const uint8_t *color = row + x * pixel;
      if (self->bits == 8) {
        int64_t place = self->palette + 4 * (int64_t)row[x];
        if (place + 3 > self->start) return damaged(call);
        color = self->data + place;
      }
      for (int c = 0; c < 3; c++) out[c] = color[2 - c];
    }
  }
  return RUTC_OK;
}

static int read_pnm(const rutc_call *call, const rutc_image *self, uint8_t *out) {
  int64_t pixels = self->width * self->height;
  if (self->start + pixels * self->channels > self->bytes) return damaged(call);
  const uint8_t *in = self->data + self->start;
  for (int64_t i = 0; i < pixels; i++) {
    for (int c = 0; c < 3; c++) out[3 * i + c] = in[i * self->channels + c % self->channels];
  }
  return RUTC_OK;
}

int rutc_routine_image_pixels(const rutc_call *call) {
  rutc_image image;
  int status = rutc_image_open(call, &image);
  if (status != RUTC_OK) return status;
  const DLTensor *out = &call->outs[0];
  if (out->shape[0] != image.height || out->shape[1] != image.width) return damaged(call);
  if (image.format == RUTC_PNG) return read_png(call, &image, out->data);
  if (image.format == RUTC_BMP) return read_bmp(call, &image, out->data);
  return read_pnm(call, &image, out->data);
}
