#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "session.h"
#include "sizes.h"
#include "tensor.h"

/* The ports that are the caller's: states follow them. */
static int32_t taken_count(const rutc_program *program) {
  return program->input_count - program->state_count;
}

static int32_t given_count(const rutc_program *program) {
  return program->output_count - program->state_count;
}

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

/* Memory of the session that runs give the caller as an output. */
static rutc_region_memory lent_memory(const rutc_session *session, int32_t port) {
  const rutc_port *description = &session->program->ports[port];
  if (description->block >= 0) return session->blocks[description->block];
  const rutc_binding *binding = &session->bindings[port];
  return (rutc_region_memory){.memory = binding->memory, .capacity = binding->capacity};
}

/* Whether memory is that of an output of an earlier run. */
static int is_lent(const rutc_session *session, rutc_span span) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < given_count(program); i++) {
    rutc_region_memory lent = lent_memory(session, program->input_count + i);
    if (lent.memory != NULL &&
        rutc_spans_overlap(span, (rutc_span){lent.memory, lent.capacity})) {
      return 1;
    }
  }
  return 0;
}

/* Whether memory is that of an element which the last run gave, and which is not kept. */
static int is_in_a_box(const rutc_session *session, rutc_span span) {
  if (session->keeps_last) return 0;
  for (int64_t i = 0; i < session->boxes.count; i++) {
    const rutc_box *box = session->boxes.items[i];
    if (rutc_spans_overlap(span, (rutc_span){box->memory, box->capacity})) return 1;
  }
  return 0;
}

/* Whether an element of a sequence, or of one in it, lies in the memory of an output. What is no
 * tensor is refused when the run takes it. */
static int has_lent_element(const rutc_session *session, const DLTensor *sequence) {
  const DLTensor *const *elements = (const DLTensor *const *)rutc_tensor_data(sequence);
  int64_t stride = sequence->strides != NULL ? sequence->strides[0] : 1;
  for (int64_t i = 0; i < sequence->shape[0]; i++) {
    const DLTensor *element = elements[i * stride];
    if (element == NULL || element->data == NULL || element->ndim < 0 ||
        element->ndim > RUTC_MAX_NDIM || (element->ndim > 0 && element->shape == NULL)) {
      continue;
    }
    if (is_lent(session, rutc_tensor_span(element, element->dtype.bits / 8))) return 1;
    int holds = element->dtype.code == kDLOpaqueHandle && element->dtype.bits == 64;
    if (holds && element->ndim == 1 && has_lent_element(session, element)) return 1;
  }
  return 0;
}

/* Leaves it to the session to provide an output whose descriptor still has what it provided before;
 * what it provided otherwise is no memory for one. */
static int take_back(rutc_session *session, int32_t port, DLTensor *tensor) {
  if (!session->lends || tensor->data == NULL) return RUTC_OK;
  if (tensor->data == lent_memory(session, port).memory && tensor->byte_offset == 0) {
    tensor->data = NULL;
    return RUTC_OK;
  }
  rutc_span first = {rutc_tensor_data(tensor), 1};
  if (!is_lent(session, first) && !is_in_a_box(session, first)) return RUTC_OK;
  return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                   "output \"%s\" lies in memory that belongs to the session",
                   session->program->ports[port].name);
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
  session->lends = 1;
  return RUTC_OK;
}

static int bind_output(rutc_session *session, int32_t index, DLTensor *tensor) {
  int32_t port = session->program->input_count + index;
  const rutc_port *description = &session->program->ports[port];
  if (tensor == NULL) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "output \"%s\" is NULL",
                     description->name);
  }
  session->bindings[port].given = (rutc_span){0};
  int status = take_back(session, port, tensor);
  /* The shape of a computed one is not known yet. */
  if (status != RUTC_OK || description->block >= 0) return status;
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
  session->bindings[port].given =
      dense ? (rutc_span){rutc_tensor_data(tensor), port_bytes(session, port)}
            : rutc_tensor_span(tensor, description->element_bytes);
  rutc_point_port(session, port,
                dense ? rutc_tensor_data(tensor) : session->bindings[port].memory);
  return RUTC_OK;
}

static int check_outputs_apart(rutc_session *session, DLTensor *const *outputs) {
  const rutc_program *program = session->program;
  const rutc_port *ports = program->ports + program->input_count;
  const rutc_binding *bindings = session->bindings + program->input_count;
  for (int32_t i = 0; i < given_count(program); i++) {
    if (bindings[i].given.bytes > 0 && !rutc_tensor_is_dense(outputs[i]) &&
        rutc_tensor_overlaps_itself(outputs[i], ports[i].element_bytes)) {
      return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                       "elements of output \"%s\" overlap in memory", ports[i].name);
    }
    for (int32_t j = 0; j < i; j++) {
      if (!rutc_spans_overlap(bindings[i].given, bindings[j].given) ||
          !rutc_tensors_overlap(outputs[i], ports[i].element_bytes, outputs[j],
                                ports[j].element_bytes)) {
        continue;
      }
      return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                       "outputs \"%s\" and \"%s\" overlap in memory", ports[j].name,
                       ports[i].name);
    }
  }
  return RUTC_OK;
}

/* Whether memory is what kernels write an output to. */
static int overlaps_an_output(const rutc_session *session, rutc_span span) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < given_count(program); i++) {
    int32_t port = program->input_count + i;
    if (program->ports[port].block >= 0) continue;
    rutc_span output = {session->bindings[port].bound, port_bytes(session, port)};
    if (rutc_spans_overlap(span, output)) return 1;
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

/* An input with its shape as it was checked: the caller's descriptor may have it in the session. */
static DLTensor checked_input(const rutc_session *session, int32_t index, const DLTensor *tensor) {
  DLTensor input = *tensor;
  input.shape = session->bindings[index].shape;
  return input;
}

static int copy_input(rutc_session *session, int32_t index, const DLTensor *tensor) {
  int status = allocate_memory(session, index, "input");
  if (status != RUTC_OK) return status;
  rutc_tensor_gather(session->bindings[index].memory, tensor,
                     session->program->ports[index].element_bytes);
  rutc_point_port(session, index, session->bindings[index].memory);
  return check_fixed(session, index);
}

/* Checks the data of an input, and copies what this run would overwrite or release: outputs of an
 * earlier one. */
static int save_input(rutc_session *session, int32_t index, const DLTensor *tensor) {
  const rutc_port *description = &session->program->ports[index];
  rutc_binding *binding = &session->bindings[index];
  int64_t bytes = port_bytes(session, index);
  int status = rutc_tensor_check_data(description, "input", tensor, bytes, &session->error);
  binding->saved = 0;
  if (status != RUTC_OK || !session->lends || bytes == 0) return status;
  DLTensor input = checked_input(session, index, tensor);
  rutc_span span = rutc_tensor_span(&input, description->element_bytes);
  binding->saved = is_lent(session, span) || is_in_a_box(session, span);
  if (description->dtype_code == kDLOpaqueHandle && description->dtype_bits == 64 &&
      has_lent_element(session, &input)) {
    return rutc_fail(&session->error, RUTC_BAD_TENSOR,
                     "an element of input \"%s\" lies in memory of an output, which belongs to "
                     "the session: copy it first",
                     description->name);
  }
  return binding->saved ? copy_input(session, index, &input) : RUTC_OK;
}

/* Kernels read dense inputs that no output overwrites; any other input is copied first. */
static int bind_input(rutc_session *session, int32_t index, const DLTensor *tensor) {
  int64_t bytes = port_bytes(session, index);
  if (session->bindings[index].saved) return RUTC_OK;
  int status = RUTC_OK;
  if (bytes == 0) {
    /* Kernels may look at the first element of a tensor that has none. */
    status = allocate_memory(session, index, "input");
    if (status == RUTC_OK) rutc_point_port(session, index, session->bindings[index].memory);
    return status;
  }
  rutc_span span = {rutc_tensor_data(tensor), bytes};
  int read_in_place = !overlaps_an_output(session, span);
  if (tensor->strides != NULL || !read_in_place) {
    DLTensor input = checked_input(session, index, tensor);
    if (!read_in_place || !rutc_tensor_is_dense(&input)) return copy_input(session, index, &input);
  }
  rutc_point_port(session, index, rutc_tensor_data(tensor));
  return check_fixed(session, index);
}

/* Checks that the axis which tells a symbol has an extent that the symbol may give it. */
static int check_symbol(rutc_session *session, const rutc_symbol *symbol,
                        const DLTensor *const *inputs) {
  const rutc_port *port = &session->program->ports[symbol->input];
  int64_t factor = symbol->factor, extent = inputs[symbol->input]->shape[symbol->axis];
  int64_t low = symbol->low * factor, high = symbol->high * factor;
  if (extent >= low && extent <= high && extent % factor == 0) return RUTC_OK;
  if (symbol->input >= taken_count(session->program) && extent > high) {
    return rutc_states_full(session, symbol->input - taken_count(session->program));
  }
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
  if (status == RUTC_OK) rutc_shape_outputs(session);
  return status;
}

int rutc_bind(rutc_session *session, const DLTensor *const *inputs, DLTensor *const *outputs) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < taken_count(program); i++) {
    int status = save_input(session, i, inputs[i]);
    if (status != RUTC_OK) return status;
  }
  for (int32_t i = 0; i < given_count(program); i++) {
    int status = bind_output(session, i, outputs[i]);
    if (status != RUTC_OK) return status;
  }
  int status = check_outputs_apart(session, outputs);
  if (status != RUTC_OK) return status;
  for (int32_t i = 0; i < taken_count(program); i++) {
    status = bind_input(session, i, inputs[i]);
    if (status != RUTC_OK) return status;
  }
  return RUTC_OK;
}

/* Checks the caller's tensor for an output of a shape that the program has computed. */
static int check_computed(rutc_session *session, int32_t port, const DLTensor *tensor) {
  const rutc_port *description = &session->program->ports[port];
  rutc_binding *binding = &session->bindings[port];
  for (int32_t d = 0; d < description->ndim; d++) {
    binding->shape[d] = rutc_size(session->sizes, description->shape[d]);
  }
  if (tensor->data == NULL) return RUTC_OK;
  int status = rutc_tensor_check(description, "output", tensor, binding->shape, &session->error);
  if (status != RUTC_OK) return status;
  int64_t bytes = port_bytes(session, port);
  status = rutc_tensor_check_data(description, "output", tensor, bytes, &session->error);
  if (status == RUTC_OK) binding->given = rutc_tensor_span(tensor, description->element_bytes);
  return status;
}

/* Hands out an output of a computed shape: the block that it lies in, or a copy in the caller's
 * memory. */
static void hand_out(rutc_session *session, int32_t port, DLTensor *tensor) {
  const rutc_port *description = &session->program->ports[port];
  char *memory = session->blocks[description->block].memory;
  if (tensor->data != NULL) {
    rutc_tensor_scatter(tensor, memory, description->element_bytes);
    return;
  }
  *tensor = (DLTensor){.data = memory,
                       .device = {kDLCPU, 0},
                       .ndim = description->ndim,
                       .dtype = {description->dtype_code, description->dtype_bits, 1},
                       .shape = session->bindings[port].shape};
  session->lends = 1;
}

int rutc_unbind(rutc_session *session, DLTensor *const *outputs) {
  const rutc_program *program = session->program;
  int computed = 0;
  for (int32_t i = 0; i < given_count(program); i++) {
    int32_t port = program->input_count + i;
    if (program->ports[port].block < 0) continue;
    int status = check_computed(session, port, outputs[i]);
    if (status != RUTC_OK) return status;
    computed = 1;
  }
  int status = computed ? check_outputs_apart(session, outputs) : RUTC_OK;
  if (status != RUTC_OK) return status;
  for (int32_t i = 0; i < given_count(program); i++) {
    int32_t port = program->input_count + i;
    if (program->ports[port].block >= 0) {
      hand_out(session, port, outputs[i]);
    } else if (!rutc_tensor_is_dense(outputs[i])) {
      rutc_tensor_scatter(outputs[i], session->bindings[port].memory,
                          program->ports[port].element_bytes);
    }
  }
  return RUTC_OK;
}
