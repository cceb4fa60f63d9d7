/* Tensor descriptors, binary compatible with DLPack 1.x.
 *
 * Only what a compiled model exchanges is declared here. A program that also uses DLPack's own
 * header includes that one first (or has it in the include path as <dlpack/dlpack.h>); its
 * declarations are then used instead of these.
 */
#if !defined(DLPACK_DLPACK_H_) && !defined(RUTC_DLPACK_H)
#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#endif

#if !defined(DLPACK_DLPACK_H_) && !defined(RUTC_DLPACK_H)
#define RUTC_DLPACK_H

#include <stdint.h>

/* Where a tensor's memory is. Models compiled for the CPU accept kDLCPU only. */
typedef enum {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

/* The kind of an element; its width stands beside it. */
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U,
  kDLFloat8_e4m3fn = 10U,
  kDLFloat8_e4m3fnuz = 11U,
  kDLFloat8_e5m2 = 12U,
  kDLFloat8_e5m2fnuz = 13U,
  kDLFloat8_e8m0fnu = 14U
} DLDataTypeCode;

typedef struct {
  uint8_t code;   /* a DLDataTypeCode */
  uint8_t bits;   /* of one element */
  uint16_t lanes; /* 1: a scalar element */
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;     /* in elements; NULL: dense, last dimension fastest */
  uint64_t byte_offset; /* from data to the first element */
} DLTensor;

#endif
