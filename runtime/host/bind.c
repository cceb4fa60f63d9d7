#include <stddef.h>
#include <string.h>

#include "memory.h"
#include "session.h"
#include "tensor.h"

static int allocate_memory(rutc_session *session, int32_t port, const char *role) {
  rutc_binding *binding = &session->bindings[port];
  if (binding->memory != NULL) return RUTC_OK;
  const rutc_port *description = &session->program->ports[port];
  binding->memory = rutc_allocate(description->bytes);
  if (binding->memory != NULL) return RUTC_OK;
  return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY, "no memory for %lld bytes of %s \"%s\"",
                   (long long)description->bytes, role, description->name);
}

static void point_buffers(rutc_session *session, int32_t port, char *address) {
  if (session->bindings[port].bound == address) return;
  session->bindings[port].bound = address;
  const rutc_program *program = session->program;
  const rutc_port *description = &program->ports[port];
  const int64_t *patches = program->patches + description->first_patch;
  for (int64_t i = 0; i < description->patch_count; i++) {
    session->buffers[patches[i]] = address + program->buffers[patches[i]].offset;
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
    tensor->shape = (int64_t *)description->shape;
  } else {
    status = rutc_tensor_check(description, "output", tensor, &session->error);
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
  int status = RUTC_OK;
  if (tensor->data == NULL) {
    status = provide_output(session, port, tensor);
  } else {
    status = rutc_tensor_check(description, "output", tensor, &session->error);
    if (status == RUTC_OK) {
      status = rutc_tensor_check_data(description, "output", tensor, &session->error);
    }
  }
  if (status != RUTC_OK) return status;
  int dense = rutc_tensor_is_dense(tensor);
  if (!dense) status = allocate_memory(session, port, "output");
  if (status != RUTC_OK) return status;
  point_buffers(session, port,
                dense ? rutc_tensor_data(tensor) : session->bindings[port].memory);
  return RUTC_OK;
}

static int check_outputs_apart(rutc_session *session) {
  const rutc_program *program = session->program;
  const rutc_port *ports = program->ports + program->input_count;
  const rutc_binding *bindings = session->bindings + program->input_count;
  for (int32_t i = 0; i < program->output_count; i++) {
    for (int32_t j = 0; j < i; j++) {
      if (!overlap(bindings[i].bound, ports[i].bytes, bindings[j].bound, ports[j].bytes)) continue;
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
    if (overlap(rutc_tensor_data(tensor), bytes, session->bindings[port].bound,
                program->ports[port].bytes)) {
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
  if (tensor == NULL) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "input \"%s\" is NULL",
                     description->name);
  }
  int status = rutc_tensor_check(description, "input", tensor, &session->error);
  if (status != RUTC_OK) return status;
  status = rutc_tensor_check_data(description, "input", tensor, &session->error);
  if (status != RUTC_OK) return status;
  if (rutc_tensor_is_dense(tensor) &&
      !overlaps_an_output(session, tensor, description->bytes)) {
    point_buffers(session, index, rutc_tensor_data(tensor));
    return check_fixed(session, index);
  }
  status = allocate_memory(session, index, "input");
  if (status != RUTC_OK) return status;
  rutc_tensor_gather(session->bindings[index].memory, tensor, description->element_bytes);
  point_buffers(session, index, session->bindings[index].memory);
  return check_fixed(session, index);
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

void rutc_unbind(rutc_session *session, DLTensor *const *outputs) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < program->output_count; i++) {
    int32_t port = program->input_count + i;
    if (!rutc_tensor_is_dense(outputs[i])) {
      rutc_tensor_scatter(outputs[i], session->bindings[port].memory,
                          program->ports[port].element_bytes);
    }
  }
}
