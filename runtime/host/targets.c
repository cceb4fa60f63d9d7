#include "targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "session.h"

/* Writes the names of all targets, as far as there is room. */
static void list_targets(char *text, size_t size, const rutc_model *model,
                         const rutc_target *targets) {
  size_t length = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < model->program_count && length < size; i++) {
    int added = snprintf(text + length, size - length, "%s%s", i > 0 ? ", " : "", targets[i].name);
    length += added > 0 ? (size_t)added : 0;
  }
}

/* Says so if there is no program that this CPU can run; any other error stays as it is. */
static void explain_refusal(const rutc_model *model, const rutc_target *targets) {
  char names[512];
  rutc_error last;
  for (int32_t i = 0; i < model->program_count; i++) {
    if (rutc_cpu_require(model->programs[i]->features, &last) == RUTC_OK) return;
  }
  list_targets(names, sizeof names, model, targets);
  rutc_fail(rutc_thread_error(), RUTC_UNSUPPORTED,
            "this CPU fits none of the library's targets %s; for the last of them: %s", names,
            last.text);
}

rutc_session *rutc_targets_open(const rutc_model *model, const rutc_target *targets,
                                const char *name, const rutc_options *options) {
  const char *asked = name != NULL ? name : getenv(RUTC_TARGET_VARIABLE);
  if (asked == NULL || (name == NULL && asked[0] == '\0')) {
    rutc_session *session = rutc_session_open(model, options);
    if (session == NULL) explain_refusal(model, targets);
    return session;
  }
  for (int32_t i = 0; i < model->program_count; i++) {
    if (strcmp(asked, targets[i].name) != 0) continue;
    rutc_session *session = rutc_session_open(&targets[i].alone, options);
    if (session != NULL) session->model = model;
    return session;
  }
  char names[512];
  list_targets(names, sizeof names, model, targets);
  rutc_fail(rutc_thread_error(), RUTC_BAD_ARGUMENT,
            "the library has no target \"%s\"%s: it has %s", asked,
            name == NULL ? ", which " RUTC_TARGET_VARIABLE " asks for" : "", names);
  return NULL;
}

const char *rutc_targets_name(const rutc_session *session, const rutc_model *model,
                              const rutc_target *targets) {
  if (session == NULL || session->model != model) return NULL;
  for (int32_t i = 0; i < model->program_count; i++) {
    if (session->program == model->programs[i]) return targets[i].name;
  }
  return NULL;
}
