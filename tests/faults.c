// Preloaded into a process: the k-th open, write or fsync of a file below a directory fails, or ends the process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, KINDS };
enum { ONCE, ALWAYS, DIE };
static char below[4096];
static long count[KINDS], at[KINDS];
static int how, trace = -1;

void fault_watch(const char *directory) { snprintf(below, sizeof below, "%s", directory); }
long fault_count(int kind) { return count[kind]; }
void fault_trace(int fd) { trace = fd; }
void fault_arm(int kind, long k, int manner) {
    memset(count, 0, sizeof count);
    memset(at, 0, sizeof at);
    if (kind >= 0) at[kind] = k;
    how = manner;
}

static int faulty(int kind, const char *what, const char *path) {
    static ssize_t (*real_write)(int, const void *, size_t);
    if (!below[0] || strncmp(path, below, strlen(below)) != 0) return 0;
    if (trace >= 0) {
        if (!real_write) real_write = dlsym(RTLD_NEXT, "write");
        char line[4200];
        int size = snprintf(line, sizeof line, "%s %s\n", what, path);
        if (real_write(trace, line, size) != size) return 1;
    }
    if (kind == KINDS) return 0;
    count[kind]++;
    if (!at[kind] || (how == ALWAYS ? count[kind] < at[kind] : count[kind] != at[kind])) return 0;
    if (how == DIE) kill(getpid(), SIGKILL);
    errno = kind == OPEN ? EMFILE : kind == WRITE ? ENOSPC : EIO;
    return 1;
}

static int faulty_fd(int kind, const char *what, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return faulty(kind, what, path);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = va_arg(list, mode_t); \
        va_end(list); \
        return faulty(OPEN, "open", path) ? -1 : real(path, flags, mode); \
    }
#define WRITES(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset where) { \
        REAL(name); \
        return faulty_fd(WRITE, "write", fd) ? -1 : real(fd, data, size, where); \
    }
#define SYNCS(name) \
    int name(int fd) { \
        REAL(name); \
        return faulty_fd(FSYNC, "fsync", fd) ? -1 : real(fd); \
    }

OPENS(open)
OPENS(open64)
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)
SYNCS(fsync)
SYNCS(fdatasync)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return faulty_fd(WRITE, "write", fd) ? -1 : real(fd, data, size);
}
int unlink(const char *path) {
    REAL(unlink);
    return faulty(KINDS, "unlink", path) ? -1 : real(path);
}
