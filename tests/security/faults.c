/* Fail or kill at the n-th call that changes a file below a folder. Loaded with LD_PRELOAD; armed by fault_arm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[4096];
static long fail_at, calls;
static int fail_with; /* an errno; 0: SIGKILL; -1: half of the data is written, then SIGKILL */

void fault_arm(const char *folder, long at, int with) {
  snprintf(root, sizeof root, "%s", folder);
  fail_at = at, fail_with = with, calls = 0;
}
long fault_calls(void) { return calls; }

static int below(const char *path) {
  char whole[8192], cwd[4096];
  if (!root[0] || !path) return 0;
  if (path[0] == '/') return strncmp(path, root, strlen(root)) == 0;
  if (!getcwd(cwd, sizeof cwd)) return 0;
  snprintf(whole, sizeof whole, "%s/%s", cwd, path);
  return strncmp(whole, root, strlen(root)) == 0;
}

static int below_fd(int fd) {
  char link[64], path[4096];
  if (!root[0] || fd < 3) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return below(path);
}

/* Whether this call is to fail: errno is set, or the process ends here. */
static int fails(void) {
  if (++calls != fail_at) return 0;
  if (fail_with <= 0) kill(getpid(), SIGKILL);
  errno = fail_with;
  return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t count) {
  if (below_fd(fd)) {
    if (fail_with == -1 && calls + 1 == fail_at) (void)!NEXT(write)(fd, data, count / 2);
    if (fails()) return -1;
  }
  return NEXT(write)(fd, data, count);
}
int fsync(int fd) { return below_fd(fd) && fails() ? -1 : NEXT(fsync)(fd); }
int fchmod(int fd, mode_t mode) { return below_fd(fd) && fails() ? -1 : NEXT(fchmod)(fd, mode); }
int rename(const char *from, const char *to) { return below(to) && fails() ? -1 : NEXT(rename)(from, to); }
int link(const char *from, const char *to) { return below(to) && fails() ? -1 : NEXT(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
  return below(to) && fails() ? -1 : NEXT(linkat)(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t mode) { return below(path) && fails() ? -1 : NEXT(mkdir)(path, mode); }

static int open_common(const char *symbol, const char *path, int flags, mode_t mode) {
  if ((flags & O_CREAT) && below(path) && fails()) return -1;
  int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, symbol);
  return next(path, flags, mode);
}
int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, int);
  va_end(rest);
  return open_common("open", path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = va_arg(rest, int);
  va_end(rest);
  return open_common("open64", path, flags, mode);
}
