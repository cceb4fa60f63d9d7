/* Numbers as text with a decimal point, whatever locale the program has set. */
#ifndef RUTC_C_LOCALE_H
#define RUTC_C_LOCALE_H

#include <locale.h>

typedef struct rutc_plain_locale {
  locale_t plain;
  locale_t before;
} rutc_plain_locale;

static inline rutc_plain_locale rutc_enter_plain_locale(void) {
  rutc_plain_locale state = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
  if (state.plain != (locale_t)0) state.before = uselocale(state.plain);
  return state;
}

static inline void rutc_leave_plain_locale(rutc_plain_locale state) {
  if (state.plain == (locale_t)0) return;
  uselocale(state.before);
  freelocale(state.plain);
}

#endif
