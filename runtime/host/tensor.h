/* Checks of the caller's tensors and copies from and to strided ones. */
#ifndef RUTC_TENSOR_H
#define RUTC_TENSOR_H

#include "error.h"
#include "program.h"
#include "rutc_dlpack.h"

/* Checks everything but the data pointer: device, dtype, shape. `role` is "input" or "output";
 * `shape` NULL: the port's, whose symbols may have any size. */
int rutc_tensor_check(const rutc_port *port, const char *role, const DLTensor *tensor,
                      const int64_t *shape, rutc_error *error);

/* Checks that the data pointer to `bytes` bytes is set and aligned to the element type. */
int rutc_tensor_check_data(const rutc_port *port, const char *role, const DLTensor *tensor,
                           int64_t bytes, rutc_error *error);

/* The address of the first element. */
char *rutc_tensor_data(const DLTensor *tensor);

/* Whether the elements lie densely in memory, last dimension fastest. */
int rutc_tensor_is_dense(const DLTensor *tensor);

/* Copies between a dense buffer and a strided tensor. */
void rutc_tensor_gather(char *dense, const DLTensor *tensor, int32_t element_bytes);
void rutc_tensor_scatter(const DLTensor *tensor, const char *dense, int32_t element_bytes);

/* Writes the type and the shape of a tensor: `float32[2, 3]`. */
void rutc_tensor_describe(const DLTensor *tensor, char *text, size_t size);

#endif
