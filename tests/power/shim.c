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

int open(const char *path, int flags, ...) {
    MODE(flags);
    int there = exists(AT_FDCWD, path);
    if (!there && (flags & O_CREAT)) before_path('c', path);
    return opened(REAL(open)(path, flags, mode), flags, there);
}
int open64(const char *path, int flags, ...) {
    MODE(flags);
    int there = exists(AT_FDCWD, path);
    if (!there && (flags & O_CREAT)) before_path('c', path);
    return opened(REAL(open64)(path, flags, mode), flags, there);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    int there = exists(folder, path);
    if (!there && (flags & O_CREAT)) before_path('c', path);
    return opened(REAL(openat)(folder, path, flags, mode), flags, there);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags);
    int there = exists(folder, path);
    if (!there && (flags & O_CREAT)) before_path('c', path);
    return opened(REAL(openat64)(folder, path, flags, mode), flags, there);
}

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    before_fd('w', fd);
    ssize_t done = REAL(write)(fd, data, size);
    if (done > 0 && path_of(fd, path)) put('w', lseek(fd, 0, SEEK_CUR) - done, path, data, done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    char path[PATH_MAX];
    before_fd('w', fd);
    ssize_t done = REAL(pwrite)(fd, data, size, offset);
    if (done > 0 && path_of(fd, path)) put('w', offset, path, data, done);
    return done;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    char path[PATH_MAX];
    before_fd('w', fd);
    ssize_t done = REAL(pwrite64)(fd, data, size, offset);
    if (done > 0 && path_of(fd, path)) put('w', offset, path, data, done);
    return done;
}
int ftruncate(int fd, off_t size) {
    char path[PATH_MAX];
    before_fd('t', fd);
    int done = REAL(ftruncate)(fd, size);
    if (done == 0 && path_of(fd, path)) put('t', size, path, "", 0);
    return done;
}
int ftruncate64(int fd, off64_t size) {
    char path[PATH_MAX];
    before_fd('t', fd);
    int done = REAL(ftruncate64)(fd, size);
    if (done == 0 && path_of(fd, path)) put('t', size, path, "", 0);
    return done;
}
int fsync(int fd) {
    char path[PATH_MAX];
    before_fd('s', fd);
    int done = REAL(fsync)(fd);
    if (done == 0 && path_of(fd, path)) put('s', 0, path, "", 0);
    return done;
}
int fdatasync(int fd) {
    char path[PATH_MAX];
    before_fd('s', fd);
    int done = REAL(fdatasync)(fd);
    if (done == 0 && path_of(fd, path)) put('s', 0, path, "", 0);
    return done;
}
int unlink(const char *path) {
    char whole[PATH_MAX];
    before_path('u', path);
    int done = REAL(unlink)(path);
    full(path, whole);
    if (done == 0 && watched(whole)) put('u', 0, whole, "", 0);
    return done;
}
int rename(const char *from, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    before_path('r', from);
    int done = REAL(rename)(from, to);
    full(from, old);
    full(to, new);
    if (done == 0 && watched(old)) put('r', 0, old, new, strlen(new));
    return done;
}
int link(const char *from, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    before_path('l', to);
    int done = REAL(link)(from, to);
    full(from, old);
    full(to, new);
    if (done == 0 && watched(old)) put('l', 0, old, new, strlen(new));
    return done;
}
int chmod(const char *path, mode_t mode) {
    char whole[PATH_MAX];
    before_path('m', path);
    int done = REAL(chmod)(path, mode);
    full(path, whole);
    if (done == 0 && watched(whole)) put('m', mode, whole, "", 0);
    return done;
}
int fchmod(int fd, mode_t mode) {
    char path[PATH_MAX];
    before_fd('m', fd);
    int done = REAL(fchmod)(fd, mode);
    if (done == 0 && path_of(fd, path)) put('m', mode, path, "", 0);
    return done;
}
