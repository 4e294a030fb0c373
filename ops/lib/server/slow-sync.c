/* Makes every sync to disk take SLOW_SYNC_US microseconds longer: a slower disk, for measurements.
   Preloaded into a server by ops/lib/server/hardship.sh. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void delay(void) {
  const char *microseconds = getenv("SLOW_SYNC_US");
  if (microseconds) usleep((useconds_t)atoi(microseconds));
}

int fsync(int file) {
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  delay();
  return next(file);
}

int fdatasync(int file) {
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  delay();
  return next(file);
}
