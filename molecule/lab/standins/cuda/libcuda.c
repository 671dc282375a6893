// SPDX-License-Identifier: GPL-3.0-or-later
/* Stands in for NVIDIA's libcuda.so.1 as far as gpu_info asks it, and does what was seen of 580.159.04 on an H200: cuInit
 * mends a device node's mode when it may, and fails with 304 when it can not remove its own temporary file.
 *
 *   cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.580.159.04 libcuda.c
 *
 * STANDIN_CUINIT is what cuInit returns, or 'hang' or 'crash'; STANDIN_CUDA_NODE the file whose mode it mends,
 * STANDIN_CUDA_TEMPORARY the file that it makes and removes.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value ? value : otherwise;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuInit(unsigned flags)
{
    const char *answer = setting("STANDIN_CUINIT", "0");
    const char *node = getenv("STANDIN_CUDA_NODE"), *temporary = getenv("STANDIN_CUDA_TEMPORARY");
    (void)flags;
    if (strcmp(answer, "hang") == 0)
        for (;;)
            pause();
    if (strcmp(answer, "crash") == 0)
        raise(SIGSEGV);
    if (node)
        chmod(node, 0666);
    if (temporary) {
        close(open(temporary, O_CREAT | O_RDWR, 0600));
        if (unlink(temporary) != 0)
            return 304;
    }
    return atoi(answer);
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == 0 ? "CUDA_SUCCESS" : NULL;
    return *name ? 0 : 1;
}

int cuDeviceGetCount(int *count)
{
    *count = atoi(setting("STANDIN_CUDA_DEVICES", "1"));
    return 0;
}
