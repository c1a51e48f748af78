/* SPDX-License-Identifier: Apache-2.0 */
#include <lanewise/version.h>

uint32_t lw_version(void)
{
	return (uint32_t)LW_VERSION_MAJOR << 16 | (uint32_t)LW_VERSION_MINOR << 8 | (uint32_t)LW_VERSION_PATCH;
}

const char *lw_version_string(void)
{
	return LW_VERSION_STRING;
}
