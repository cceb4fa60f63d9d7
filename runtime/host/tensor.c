#include "tensor.h"

#include <stdio.h>
#include <string.h>

char *rutc_tensor_data(const DLTensor *tensor) {
  return (char *)tensor->data + tensor->byte_offset;
}

static void write_shape(char *text, size_t size, int32_t ndim, const int64_t *shape) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < ndim && used < size; i++) {
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? ", " : "",
                             (long long)shape[i]);
  }
  if (used < size) snprintf(text + used, size - used, "]");
}

static void write_dtype(char *text, size_t size, DLDataType dtype) {
  static const char *const names[] = {
      "int",         "uint",       "float",         "handle",   "bfloat",
      "complex",     "bool",       "float8_e3m4_",  "float8_e4m3_", "float8_e4m3b11fnuz_",
      "float8_e4m3fn_", "float8_e4m3fnuz_", "float8_e5m2_", "float8_e5m2fnuz_",
      "float8_e8m0fnu_"};
  if (dtype.code < sizeof names / sizeof names[0]) {
    snprintf(text, size, "%s%d", names[dtype.code], dtype.bits);
  } else {
    snprintf(text, size, "dtype code %d with %d bits", dtype.code, dtype.bits);
  }
  if (dtype.lanes != 1) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "x%d", dtype.lanes);
  }
}

void rutc_tensor_describe(const DLTensor *tensor, char *text, size_t size) {
  write_dtype(text, size, tensor->dtype);
  size_t used = strlen(text);
  write_shape(text + used, size - used, tensor->ndim, tensor->shape);
}

/* Whether a tensor has the shape; NULL: that of the port, whose symbols may be any size. */
static int same_shape(const rutc_port *port, const DLTensor *tensor, const int64_t *shape) {
  if (tensor->ndim != port->ndim) return 0;
  for (int32_t i = 0; i < port->ndim; i++) {
    int64_t wanted = shape == NULL ? port->shape[i] : shape[i];
    if (wanted >= 0 ? tensor->shape[i] != wanted : tensor->shape[i] < 0) return 0;
  }
  return 1;
}

int rutc_tensor_check(const rutc_port *port, const char *role, const DLTensor *tensor,
                      const int64_t *shape, rutc_error *error) {
  if (tensor->device.device_type != kDLCPU) {
    return rutc_fail(error, RUTC_BAD_TENSOR,
                     "%s \"%s\" is on DLPack device type %d; this model takes CPU memory (%d)",
                     role, port->name, (int)tensor->device.device_type, (int)kDLCPU);
  }
  if (tensor->dtype.code != port->dtype_code || tensor->dtype.bits != port->dtype_bits ||
      tensor->dtype.lanes != 1) {
    char given[64];
    write_dtype(given, sizeof given, tensor->dtype);
    return rutc_fail(error, RUTC_BAD_TENSOR, "%s \"%s\" must have dtype %s, not %s", role,
                     port->name, port->dtype, given);
  }
  if (tensor->ndim < 0 || tensor->ndim > RUTC_MAX_NDIM) {
    return rutc_fail(error, RUTC_BAD_TENSOR, "%s \"%s\" must have %d dimension%s, not %d", role,
                     port->name, (int)port->ndim, rutc_plural(port->ndim), (int)tensor->ndim);
  }
  if (tensor->ndim > 0 && tensor->shape == NULL) {
    return rutc_fail(error, RUTC_BAD_TENSOR, "%s \"%s\" has %d dimension%s but no shape", role,
                     port->name, (int)tensor->ndim, rutc_plural(tensor->ndim));
  }
  if (!same_shape(port, tensor, shape)) {
    char wanted[256], given[256];
    if (shape != NULL) write_shape(wanted, sizeof wanted, port->ndim, shape);
    write_shape(given, sizeof given, tensor->ndim, tensor->shape);
    return rutc_fail(error, RUTC_BAD_TENSOR, "%s \"%s\" must have shape %s, not %s", role,
                     port->name, shape != NULL ? wanted : port->shape_text, given);
  }
  return RUTC_OK;
}

int rutc_tensor_check_data(const rutc_port *port, const char *role, const DLTensor *tensor,
                           int64_t bytes, rutc_error *error) {
  if (bytes == 0) return RUTC_OK;
  if (tensor->data == NULL) {
    return rutc_fail(error, RUTC_BAD_TENSOR, "%s \"%s\" has no data (NULL)", role, port->name);
  }
  if ((uintptr_t)rutc_tensor_data(tensor) % (uintptr_t)port->alignment != 0) {
    return rutc_fail(error, RUTC_BAD_TENSOR,
                     "the data of %s \"%s\" must be aligned to %d bytes, the size of its elements",
                     role, port->name, (int)port->alignment);
  }
  return RUTC_OK;
}

int rutc_tensor_is_dense(const DLTensor *tensor) {
  if (tensor->strides == NULL) return 1;
  int64_t expected = 1;
  for (int32_t i = 0; i < tensor->ndim; i++) {
    if (tensor->shape[i] == 0) return 1;
  }
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return 0;
    expected *= tensor->shape[i];
  }
  return 1;
}

/* Copies `count` elements between two rows; the sizes that occur most get loops of their own. */
static void copy_row(char *dst, int64_t dst_stride, const char *src, int64_t src_stride,
                     int64_t count, int32_t element_bytes) {
  if (dst_stride == element_bytes && src_stride == element_bytes) {
    memcpy(dst, src, (size_t)(count * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 4:
      for (int64_t i = 0; i < count; i++) memcpy(dst + i * dst_stride, src + i * src_stride, 4);
      break;
    case 8:
      for (int64_t i = 0; i < count; i++) memcpy(dst + i * dst_stride, src + i * src_stride, 8);
      break;
    default:
      for (int64_t i = 0; i < count; i++) {
        memcpy(dst + i * dst_stride, src + i * src_stride, (size_t)element_bytes);
      }
  }
}

enum direction { GATHER, SCATTER };

static void copy_strided(const DLTensor *tensor, char *dense, int32_t element_bytes,
                         enum direction direction) {
  int64_t index[RUTC_MAX_NDIM] = {0};
  char *strided = rutc_tensor_data(tensor);
  int32_t last = tensor->ndim - 1;
  for (int32_t i = 0; i < tensor->ndim; i++) {
    if (tensor->shape[i] == 0) return;
  }
  int64_t row_stride = tensor->strides[last] * element_bytes;
  int64_t row_bytes = tensor->shape[last] * element_bytes;
  for (;;) {
    if (direction == GATHER) {
      copy_row(dense, element_bytes, strided, row_stride, tensor->shape[last], element_bytes);
    } else {
      copy_row(strided, row_stride, dense, element_bytes, tensor->shape[last], element_bytes);
    }
    dense += row_bytes;
    int32_t dim = last - 1;
    for (; dim >= 0; dim--) {
      strided += tensor->strides[dim] * element_bytes;
      if (++index[dim] < tensor->shape[dim]) break;
      strided -= tensor->shape[dim] * tensor->strides[dim] * element_bytes;
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

static void copy_dense(char *dst, const char *src, const DLTensor *tensor, int32_t element_bytes) {
  int64_t bytes = element_bytes;
  for (int32_t i = 0; i < tensor->ndim; i++) bytes *= tensor->shape[i];
  if (bytes > 0) memcpy(dst, src, (size_t)bytes);
}

void rutc_tensor_gather(char *dense, const DLTensor *tensor, int32_t element_bytes) {
  if (rutc_tensor_is_dense(tensor)) {
    copy_dense(dense, rutc_tensor_data(tensor), tensor, element_bytes);
  } else {
    copy_strided(tensor, dense, element_bytes, GATHER);
  }
}

void rutc_tensor_scatter(const DLTensor *tensor, const char *dense, int32_t element_bytes) {
  if (rutc_tensor_is_dense(tensor)) {
    copy_dense(rutc_tensor_data(tensor), dense, tensor, element_bytes);
  } else {
    copy_strided(tensor, (char *)dense, element_bytes, SCATTER);
  }
}
