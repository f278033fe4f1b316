/* Faults beneath every library: loaded before libc (LD_PRELOAD), it counts what is written to files and makes the n-th
 * and all later writes fail as on a full disk, or ends the process there; and it makes the clock jump. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { COUNT, FULL, KILL };
static long seen, at;
static int mode, jumping;
static uint64_t state = 88172645463325252u;

void faults_arm(int what, long n) { seen = 0; at = n; mode = what; }
long faults_seen(void) { return seen; }
void faults_jump(int on) { jumping = on; }

static int is_file(int fd) {
    struct stat found;
    return fd > 2 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

/* Whether this touch of the disk is refused. */
static int refused(void) {
    long n = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (mode == COUNT || n < at) return 0;
    if (mode == KILL) kill(getpid(), SIGKILL);
    errno = ENOSPC;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

/* The first half of what the n-th write was given reaches the disk. */
ssize_t write(int fd, const void *bytes, size_t n) {
    REAL(ssize_t, "write", int, const void *, size_t)
    if (!is_file(fd)) return real(fd, bytes, n);
    if (mode != COUNT && seen + 1 == at && n > 1) real(fd, bytes, n / 2);
    return refused() ? -1 : real(fd, bytes, n);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL(ssize_t, "writev", int, const struct iovec *, int)
    return is_file(fd) && refused() ? -1 : real(fd, parts, n);
}

#define AT_PLACE(name, offset) \
    ssize_t name(int fd, const void *bytes, size_t n, offset place) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset) \
        return is_file(fd) && refused() ? -1 : real(fd, bytes, n, place); \
    }
AT_PLACE(pwrite, off_t)
AT_PLACE(pwrite64, off64_t)

#define ROOM(name, offset) \
    int name(int fd, offset start, offset n) { \
        REAL(int, #name, int, offset, offset) \
        return refused() ? ENOSPC : real(fd, start, n); \
    }
ROOM(posix_fallocate, off_t)
ROOM(posix_fallocate64, off64_t)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t rights = va_arg(more, mode_t); \
        va_end(more); \
        REAL(int, #name, const char *, int, ...) \
        return (flags & O_CREAT) && refused() ? -1 : real(path, flags, rights); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t rights = va_arg(more, mode_t); \
        va_end(more); \
        REAL(int, #name, int, const char *, int, ...) \
        return (flags & O_CREAT) && refused() ? -1 : real(folder, path, flags, rights); \
    }
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t rights) {
    REAL(int, "mkdir", const char *, mode_t)
    return refused() ? -1 : real(path, rights);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *)
    return refused() ? -1 : real(from, to);
}

int fsync(int fd) {
    REAL(int, "fsync", int)
    return is_file(fd) && refused() ? -1 : real(fd);
}

/* Seconds between ten years back and ten years on, others at every look. */
static time_t jump(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (time_t)(state % 630720000u) - 315360000;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *)
    int code = real(clock, now);
    if (jumping && clock == CLOCK_REALTIME && code == 0) now->tv_sec += jump();
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    REAL(int, "gettimeofday", struct timeval *, void *)
    int code = real(now, zone);
    if (jumping && code == 0) now->tv_sec += jump();
    return code;
}

time_t time(time_t *now) {
    REAL(time_t, "time", time_t *)
    time_t found = real(now) + (jumping ? jump() : 0);
    if (now) *now = found;
    return found;
}
