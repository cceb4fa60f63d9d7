#define _GNU_SOURCE
#include "cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernel rejects masks smaller than its own, so the size grows until one fits. */
static cpu_set_t *affinity_mask(size_t *bytes, int *capacity) {
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t *mask = CPU_ALLOC((size_t)cpus);
    if (mask == NULL) return NULL;
    *bytes = CPU_ALLOC_SIZE((size_t)cpus);
    *capacity = cpus;
    if (sched_getaffinity(0, *bytes, mask) == 0) return mask;
    CPU_FREE(mask);
  }
  return NULL;
}

int rutc_cpu_affinity(void) {
  size_t bytes;
  int capacity;
  cpu_set_t *mask = affinity_mask(&bytes, &capacity);
  if (mask == NULL) return 1;
  int count = CPU_COUNT_S(bytes, mask);
  CPU_FREE(mask);
  return count > 0 ? count : 1;
}

int rutc_cpu_nth(int number) {
  size_t bytes;
  int capacity;
  cpu_set_t *mask = affinity_mask(&bytes, &capacity);
  if (mask == NULL) return 0;
  int count = CPU_COUNT_S(bytes, mask);
  int remaining = count > 0 ? number % count : 0;
  int found = 0;
  for (int cpu = 0; cpu < capacity; cpu++) {
    if (!CPU_ISSET_S((size_t)cpu, bytes, mask)) continue;
    found = cpu;
    if (remaining-- == 0) break;
  }
  CPU_FREE(mask);
  return found;
}

/* Whole CPUs of a quota, or 0 for none. Rounding down keeps the process from being throttled. */
static int whole_cpus(long quota, long period) {
  if (quota <= 0 || period <= 0) return 0;
  return quota < period ? 1 : (int)(quota / period);
}

static int read_long(const char *directory, const char *file, long *value) {
  char path[1300];
  snprintf(path, sizeof path, "%s/%s", directory, file);
  FILE *stream = fopen(path, "re");
  if (stream == NULL) return 0;
  int read = fscanf(stream, "%ld", value);
  fclose(stream);
  return read == 1;
}

/* The quota set in one cgroup directory: cpu.max (version 2) or cpu.cfs_* (version 1); 0: none. */
static int quota_of(const char *directory) {
  char path[1300];
  long quota = 0, period = 0;
  snprintf(path, sizeof path, "%s/cpu.max", directory);
  FILE *stream = fopen(path, "re");
  if (stream != NULL) {
    int read = fscanf(stream, "%ld %ld", &quota, &period);
    fclose(stream);
    return read == 2 ? whole_cpus(quota, period) : 0;
  }
  if (!read_long(directory, "cpu.cfs_quota_us", &quota)) return 0;
  if (!read_long(directory, "cpu.cfs_period_us", &period)) return 0;
  return whole_cpus(quota, period);
}

/* The least quota on the way from a cgroup up to its hierarchy's root. In a container the paths of
 * /proc/self/cgroup may be those of the host and not exist; the root then carries the quota. */
static int quota_upwards(const char *root, const char *group) {
  char directory[1200];
  int least = 0;
  snprintf(directory, sizeof directory, "%s%s", root, group);
  size_t root_length = strlen(root);
  for (;;) {
    int quota = quota_of(directory);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    char *slash = strrchr(directory, '/');
    if (strlen(directory) <= root_length || slash == NULL) return least;
    *slash = '\0';
    if (strlen(directory) < root_length) return least;
  }
}

static int cgroup_quota(void) {
  int least = 0;
  FILE *stream = fopen("/proc/self/cgroup", "re");
  if (stream == NULL) return 0;
  char line[1100];
  while (fgets(line, sizeof line, stream) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (group == NULL) continue;
    *group++ = '\0';
    controllers++;
    int quota = 0;
    if (controllers[0] == '\0') {
      quota = quota_upwards("/sys/fs/cgroup", group);
    } else if (strcmp(controllers, "cpu") == 0 || strncmp(controllers, "cpu,", 4) == 0 ||
               strstr(controllers, ",cpu") != NULL) {
      quota = quota_upwards("/sys/fs/cgroup/cpu", group);
    }
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  }
  fclose(stream);
  return least;
}

int rutc_cpu_available(void) {
  int cpus = rutc_cpu_affinity();
  int quota = cgroup_quota();
  return quota > 0 && quota < cpus ? quota : cpus;
}
