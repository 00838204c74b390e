/* Logs what a process does to the files under POWER_ROOT, or kills it in front of it.
 *
 * Preloaded (LD_PRELOAD).  With POWER_TALLY every operation that is about to be made is noted there,
 * a line each ("w path"), and with POWER_KILL=N the process is killed before the N-th of them.
 * With POWER_LOG an operation is logged there, once it was made and worked, as a record:
 *   1 byte   what: w(rite) t(runcate) s(ync) c(reate) u(nlink) r(ename) l(ink) m(ode)
 *   8 bytes  offset, or size after truncation, or the new mode
 *   4 bytes  length of the path, 4 bytes length of the data (of a rename: the new path)
 *   path, data
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int watched(const char *path) {
    const char *root = getenv("POWER_ROOT");
    return root && strncmp(path, root, strlen(root)) == 0;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return watched(path);
}

static void full(const char *path, char *out) {
    if (path[0] == '/') { snprintf(out, PATH_MAX, "%s", path); return; }
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) here[0] = 0;
    snprintf(out, PATH_MAX, "%.2000s/%.2000s", here, path);
}

static void before(char what, const char *path) {
    static int tally = -1, count = 0;
    const char *told = getenv("POWER_TALLY"), *at = getenv("POWER_KILL");
    if (!told && !at) return;
    pthread_mutex_lock(&lock);
    if (told && tally < 0)
        tally = REAL(open)(told, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (told) dprintf(tally, "%c %s\n", what, path);
    if (at && atoi(at) == ++count) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&lock);
}

static void before_fd(char what, int fd) {
    char path[PATH_MAX];
    if (path_of(fd, path)) before(what, path);
}

static void before_path(char what, const char *path) {
    char whole[PATH_MAX];
    full(path, whole);
    if (watched(whole)) before(what, whole);
}

static void put(char what, int64_t offset, const char *path, const void *data, uint32_t size) {
    ssize_t (*real)(int, const struct iovec *, int) = REAL(writev);
    if (!getenv("POWER_LOG")) return;
    pthread_mutex_lock(&lock);
    if (log_file < 0)
        log_file = REAL(open)(getenv("POWER_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    uint32_t length = strlen(path);
    char front[17];
    front[0] = what;
    memcpy(front + 1, &offset, 8);
    memcpy(front + 9, &length, 4);
    memcpy(front + 13, &size, 4);
    struct iovec parts[3] = {{front, 17}, {(void *)path, length}, {(void *)data, size}};
    if (real(log_file, parts, 3) != (ssize_t)(17 + length + size)) abort();
    pthread_mutex_unlock(&lock);
}

static int opened(int fd, int flags, int existed) {
    char path[PATH_MAX];
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC)) && path_of(fd, path)) {
        if (!existed) put('c', 0, path, "", 0);
        else if (flags & O_TRUNC) put('t', 0, path, "", 0);
    }
    return fd;
}

static int exists(int folder, const char *path) {
    struct stat found;
    return fstatat(folder, path, &found, 0) == 0;
}

#define MODE(flags) va_list rest; va_start(rest, flags); \
    mode_t mode = (flags & O_CREAT) ? va_arg(rest, mode_t) : 0; va_end(rest)

#define OPENS(name, at, PARAMETERS, ARGUMENTS) \
int name PARAMETERS { \
    MODE(flags); \
    int there = exists(at, path); \
    if (!there && (flags & O_CREAT)) before_path('c', path); \
    return opened(REAL(name) ARGUMENTS, flags, there); \
}
OPENS(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENS(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

/* What is done to an open file: its letter, and the offset and the data that are logged. */
#define OF_FILE(what, type, name, PARAMETERS, ARGUMENTS, worked, offset, data, size) \
type name PARAMETERS { \
    char path[PATH_MAX]; \
    before_fd(what, fd); \
    type done = REAL(name) ARGUMENTS; \
    if (worked && path_of(fd, path)) put(what, offset, path, data, size); \
    return done; \
}
#define WRITES(name, off, PARAMETERS, ARGUMENTS) \
    OF_FILE('w', ssize_t, name, PARAMETERS, ARGUMENTS, done > 0, off, data, done)
WRITES(write, lseek(fd, 0, SEEK_CUR) - done, (int fd, const void *data, size_t size), (fd, data, size))
WRITES(pwrite, at, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITES(pwrite64, at, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
OF_FILE('t', int, ftruncate, (int fd, off_t size), (fd, size), done == 0, size, "", 0)
OF_FILE('t', int, ftruncate64, (int fd, off64_t size), (fd, size), done == 0, size, "", 0)
OF_FILE('s', int, fsync, (int fd), (fd), done == 0, 0, "", 0)
OF_FILE('s', int, fdatasync, (int fd), (fd), done == 0, 0, "", 0)
OF_FILE('m', int, fchmod, (int fd, mode_t mode), (fd, mode), done == 0, mode, "", 0)

/* What is done to a name; of two, which one is announced. */
#define OF_NAME(what, name, PARAMETERS, ARGUMENTS, offset) \
int name PARAMETERS { \
    char whole[PATH_MAX]; \
    before_path(what, path); \
    int done = REAL(name) ARGUMENTS; \
    full(path, whole); \
    if (done == 0 && watched(whole)) put(what, offset, whole, "", 0); \
    return done; \
}
OF_NAME('u', unlink, (const char *path), (path), 0)
OF_NAME('m', chmod, (const char *path, mode_t mode), (path, mode), mode)
#define OF_NAMES(what, name, announced) \
int name(const char *from, const char *to) { \
    char old[PATH_MAX], new[PATH_MAX]; \
    before_path(what, announced); \
    int done = REAL(name)(from, to); \
    full(from, old); \
    full(to, new); \
    if (done == 0 && watched(old)) put(what, 0, old, new, strlen(new)); \
    return done; \
}
OF_NAMES('r', rename, from)
OF_NAMES('l', link, to)
