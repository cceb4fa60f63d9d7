#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "session.h"
#include "sizes.h"
#include "tensor.h"

static int64_t port_bytes(const rutc_session *session, int32_t port) {
  return rutc_size(session->sizes, session->program->ports[port].bytes);
}

static int allocate_memory(rutc_session *session, int32_t port, const char *role) {
  rutc_binding *binding = &session->bindings[port];
  int64_t bytes = port_bytes(session, port);
  if (binding->memory != NULL && bytes <= binding->capacity) return RUTC_OK;
  free(binding->memory);
  binding->bound = NULL;
  binding->memory = rutc_allocate(bytes);
  binding->capacity = bytes;
  if (binding->memory != NULL) return RUTC_OK;
  return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY, "no memory for %lld bytes of %s \"%s\"",
                   (long long)bytes, role, session->program->ports[port].name);
}

static void point_port(rutc_session *session, int32_t port, char *address) {
  if (session->bindings[port].bound == address) return;
  session->bindings[port].bound = address;
  const rutc_program *program = session->program;
  const rutc_port *description = &program->ports[port];
  const int64_t *patches = program->patches + description->first_patch;
  for (int64_t i = 0; i < description->patch_count; i++) {
    int64_t offset = rutc_size(session->sizes, program->buffers[patches[i]].offset);
    session->buffers[patches[i]] = address + offset;
  }
}

static int overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && (uintptr_t)a < (uintptr_t)b + (uint64_t)b_bytes &&
         (uintptr_t)b < (uintptr_t)a + (uint64_t)a_bytes;
}

/* Completes the descriptor of an output that the caller gave no memory for. */
static int provide_output(rutc_session *session, int32_t port, DLTensor *tensor) {
  const rutc_port *description = &session->program->ports[port];
  int status = allocate_memory(session, port, "output");
  if (status != RUTC_OK) return status;
  if (tensor->shape == NULL) {
    tensor->device = (DLDevice){kDLCPU, 0};
    tensor->dtype = (DLDataType){description->dtype_code, description->dtype_bits, 1};
    tensor->ndim = description->ndim;
    tensor->shape = session->bindings[port].shape;
  } else {
    status = rutc_tensor_check(description, "output", tensor, session->bindings[port].shape,
                               &session->error);
    if (status != RUTC_OK) return status;
  }
  tensor->data = session->bindings[port].memory;
  tensor->strides = NULL;
  tensor->byte_offset = 0;
  return RUTC_OK;
}

static int bind_output(rutc_session *session, int32_t index, DLTensor *tensor) {
  int32_t port = session->program->input_count + index;
  const rutc_port *description = &session->program->ports[port];
  if (tensor == NULL) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "output \"%s\" is NULL",
                     description->name);
  }
  if (description->block >= 0) return RUTC_OK; /* its shape is not known yet */
  int status = RUTC_OK;
  if (tensor->data == NULL) {
    status = provide_output(session, port, tensor);
  } else {
    status = rutc_tensor_check(description, "output", tensor, session->bindings[port].shape,
                               &session->error);
    if (status == RUTC_OK) {
      int64_t bytes = port_bytes(session, port);
      status = rutc_tensor_check_data(description, "output", tensor, bytes, &session->error);
    }
  }
  if (status != RUTC_OK) return status;
  int dense = rutc_tensor_is_dense(tensor);
  if (!dense) status = allocate_memory(session, port, "output");
  if (status != RUTC_OK) return status;
  point_port(session, port,
                dense ? rutc_tensor_data(tensor) : session->bindings[port].memory);
  return RUTC_OK;
}

static int check_outputs_apart(rutc_session *session) {
  const rutc_program *program = session->program;
  const rutc_port *ports = program->ports + program->input_count;
  const rutc_binding *bindings = session->bindings + program->input_count;
  for (int32_t i = 0; i < program->output_count; i++) {
    if (ports[i].block >= 0) continue;
    int64_t bytes = port_bytes(session, program->input_count + i);
    for (int32_t j = 0; j < i; j++) {
      if (ports[j].block >= 0) continue;
      int64_t others = port_bytes(session, program->input_count + j);
      if (!overlap(bindings[i].bound, bytes, bindings[j].bound, others)) continue;
      return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                       "outputs \"%s\" and \"%s\" overlap in memory", ports[j].name,
                       ports[i].name);
    }
  }
  return RUTC_OK;
}

static int overlaps_an_output(const rutc_session *session, const DLTensor *tensor, int64_t bytes) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < program->output_count; i++) {
    int32_t port = program->input_count + i;
    if (program->ports[port].block >= 0) continue;
    if (overlap(rutc_tensor_data(tensor), bytes, session->bindings[port].bound,
                port_bytes(session, port))) {
      return 1;
    }
  }
  return 0;
}

static int check_fixed(rutc_session *session, int32_t index) {
  const rutc_port *description = &session->program->ports[index];
  if (description->fixed == NULL || description->bytes == 0) return RUTC_OK;
  const char *given = session->bindings[index].bound;
  if (memcmp(given, description->fixed, (size_t)description->bytes) == 0) return RUTC_OK;
  return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                   "input \"%s\" must be %s: the model was compiled for this value",
                   description->name, description->fixed_text);
}

/* Kernels read dense inputs that no output overwrites; any other input is copied first. */
static int bind_input(rutc_session *session, int32_t index, const DLTensor *tensor) {
  const rutc_port *description = &session->program->ports[index];
  int64_t bytes = port_bytes(session, index);
  int status = rutc_tensor_check_data(description, "input", tensor, bytes, &session->error);
  if (status != RUTC_OK) return status;
  if (bytes == 0) {
    /* Kernels may look at the first element of a tensor that has none. */
    status = allocate_memory(session, index, "input");
    if (status == RUTC_OK) point_port(session, index, session->bindings[index].memory);
    return status;
  }
  if (rutc_tensor_is_dense(tensor) && !overlaps_an_output(session, tensor, bytes)) {
    point_port(session, index, rutc_tensor_data(tensor));
    return check_fixed(session, index);
  }
  status = allocate_memory(session, index, "input");
  if (status != RUTC_OK) return status;
  rutc_tensor_gather(session->bindings[index].memory, tensor, description->element_bytes);
  point_port(session, index, session->bindings[index].memory);
  return check_fixed(session, index);
}

/* Checks that the axis which tells a symbol has an extent that the symbol may give it. */
static int check_symbol(rutc_session *session, const rutc_symbol *symbol,
                        const DLTensor *const *inputs) {
  const rutc_port *port = &session->program->ports[symbol->input];
  int64_t factor = symbol->factor, extent = inputs[symbol->input]->shape[symbol->axis];
  int64_t low = symbol->low * factor, high = symbol->high * factor;
  if (extent >= low && extent <= high && extent % factor == 0) return RUTC_OK;
  if (factor > 1) {
    return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                     "axis %d of input \"%s\" is %lld; the model was compiled for multiples of %lld "
                     "from %lld to %lld",
                     (int)symbol->axis, port->name, (long long)extent, (long long)factor,
                     (long long)low, (long long)high);
  }
  return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                   "axis %d of input \"%s\" is %s = %lld; the model was compiled for %s from "
                   "%lld to %lld",
                   (int)symbol->axis, port->name, symbol->name, (long long)extent, symbol->name,
                   (long long)low, (long long)high);
}

/* Compares one axis of an input with the axis that tells its symbol. An axis whose extent is
 * computed from symbols is compared later. */
static int check_axis(rutc_session *session, const DLTensor *const *inputs, int32_t index,
                      int32_t axis) {
  const rutc_program *program = session->program;
  const rutc_port *port = &program->ports[index];
  int64_t place = -1 - port->shape[axis], extent = inputs[index]->shape[axis];
  if (place >= program->symbol_count) return RUTC_OK;
  const rutc_symbol *symbol = &program->symbols[place];
  int64_t value = inputs[symbol->input]->shape[symbol->axis] / symbol->factor;
  if (extent == value) return RUTC_OK;
  return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                   "axis %d of input \"%s\" is %s, which is %lld by axis %d of input \"%s\", "
                   "but %lld here",
                   (int)axis, port->name, symbol->name, (long long)value, (int)symbol->axis,
                   program->ports[symbol->input].name, (long long)extent);
}

int rutc_bind_sizes(rutc_session *session, const DLTensor *const *inputs) {
  const rutc_program *program = session->program;
  int changed = !session->sized;
  for (int32_t i = 0; i < program->input_count; i++) {
    const rutc_port *port = &program->ports[i];
    if (inputs[i] == NULL) {
      return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "input \"%s\" is NULL", port->name);
    }
    int status = rutc_tensor_check(port, "input", inputs[i], NULL, &session->error);
    if (status != RUTC_OK) return status;
  }
  if (program->symbol_count == 0) return RUTC_OK;
  for (int64_t place = 0; place < program->symbol_count; place++) {
    int status = check_symbol(session, &program->symbols[place], inputs);
    if (status != RUTC_OK) return status;
  }
  for (int32_t i = 0; i < program->input_count; i++) {
    for (int32_t axis = 0; axis < program->ports[i].ndim; axis++) {
      if (program->ports[i].shape[axis] >= 0) continue;
      int status = check_axis(session, inputs, i, axis);
      if (status != RUTC_OK) return status;
      changed |= inputs[i]->shape[axis] != session->bindings[i].shape[axis];
    }
  }
  if (!changed) return RUTC_OK;
  for (int64_t place = 0; place < program->symbol_count; place++) {
    const rutc_symbol *symbol = &program->symbols[place];
    session->sizes[place] = inputs[symbol->input]->shape[symbol->axis] / symbol->factor;
  }
  int status = rutc_resize(session);
  for (int32_t i = 0; i < program->input_count && status == RUTC_OK; i++) {
    status = rutc_tensor_check(&program->ports[i], "input", inputs[i], session->bindings[i].shape,
                               &session->error);
  }
  if (status != RUTC_OK) session->sized = 0;
  return status;
}

int rutc_bind(rutc_session *session, const DLTensor *const *inputs, DLTensor *const *outputs) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < program->output_count; i++) {
    int status = bind_output(session, i, outputs[i]);
    if (status != RUTC_OK) return status;
  }
  int status = check_outputs_apart(session);
  if (status != RUTC_OK) return status;
  for (int32_t i = 0; i < program->input_count; i++) {
    status = bind_input(session, i, inputs[i]);
    if (status != RUTC_OK) return status;
  }
  return RUTC_OK;
}

/* Hands out an output of a shape that the program has computed: the block that it lies in, or a
 * copy in the caller's memory. */
static int hand_out(rutc_session *session, int32_t port, DLTensor *tensor) {
  const rutc_port *description = &session->program->ports[port];
  int64_t *shape = session->bindings[port].shape;
  char *memory = session->blocks[description->block].memory;
  for (int32_t d = 0; d < description->ndim; d++) {
    shape[d] = rutc_size(session->sizes, description->shape[d]);
  }
  if (tensor->data == NULL) {
    *tensor = (DLTensor){.data = memory,
                         .device = {kDLCPU, 0},
                         .ndim = description->ndim,
                         .dtype = {description->dtype_code, description->dtype_bits, 1},
                         .shape = shape};
    return RUTC_OK;
  }
  int status = rutc_tensor_check(description, "output", tensor, shape, &session->error);
  if (status != RUTC_OK) return status;
  int64_t bytes = port_bytes(session, port);
  status = rutc_tensor_check_data(description, "output", tensor, bytes, &session->error);
  if (status == RUTC_OK) rutc_tensor_scatter(tensor, memory, description->element_bytes);
  return status;
}

int rutc_unbind(rutc_session *session, DLTensor *const *outputs) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < program->output_count; i++) {
    int32_t port = program->input_count + i;
    if (program->ports[port].block >= 0) {
      int status = hand_out(session, port, outputs[i]);
      if (status != RUTC_OK) return status;
    } else if (!rutc_tensor_is_dense(outputs[i])) {
      rutc_tensor_scatter(outputs[i], session->bindings[port].memory,
                          program->ports[port].element_bytes);
    }
  }
  return RUTC_OK;
}
