/* SPDX-License-Identifier: Apache-2.0 */
/* Copies inside this process' address space. */
#ifndef LW_SHM_COPY_H
#define LW_SHM_COPY_H

#include <stdbool.h>
#include <stdint.h>

/* Copies length bytes; the ranges may overlap. past_cache: the bytes are not wanted in this CPU's cache, since there
 * are more of them than it holds. */
void shm_copy(void *to, const void *from, uint64_t length, bool past_cache);

#endif
