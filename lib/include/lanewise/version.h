/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the header a program was built with, and of the library it runs with. */
#ifndef LANEWISE_VERSION_H
#define LANEWISE_VERSION_H

#include <lanewise/types.h>

#define LW_VERSION_MAJOR 0
#define LW_VERSION_MINOR 1
#define LW_VERSION_PATCH 0
#define LW_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the loaded library as major << 16 | minor << 8 | patch. Any thread. Never blocks, never fails. */
LW_API uint32_t lw_version(void);

/* The same as text, "major.minor.patch". Static storage. Any thread. Never blocks, never fails. */
LW_API const char *lw_version_string(void);

#ifdef __cplusplus
}
#endif
#endif
