/* SPDX-License-Identifier: Apache-2.0 */
/* How direct requests (O_DIRECT) to an open file have to be aligned. No state: any thread. */
#ifndef LW_NVMEOF_ALIGN_H
#define LW_NVMEOF_ALIGN_H

#include <stdbool.h>
#include <stdint.h>

/* Offsets and lengths have to be multiples of *block, addresses of *memory; both are powers of two, *block from 512 to
 * 65,536. Asks the kernel, and reads a block for a try. False: the file can't be used directly. */
bool nvmeof_alignment(int fd, uint32_t *block, uint32_t *memory);

#endif
