/* Dense tensors on the CPU, for C programs of tests: to be included after a model's header. */

static inline DLTensor tensor(void *data, DLDataType dtype, int32_t ndim, int64_t *shape) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype,
                    .shape = shape};
}

static inline DLTensor floats(void *data, int32_t ndim, int64_t *shape) {
  return tensor(data, (DLDataType){kDLFloat, 32, 1}, ndim, shape);
}
