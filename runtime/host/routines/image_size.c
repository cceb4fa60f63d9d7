#include "images.h"

int rutc_routine_image_size(const rutc_call *call) {
  rutc_image image;
  int status = rutc_image_open(call, &image);
  if (status != RUTC_OK) return status;
  *(int64_t *)call->outs[0].data = image.height;
  *(int64_t *)call->outs[1].data = image.width;
  return RUTC_OK;
}
