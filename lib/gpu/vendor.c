/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/gpu/vendor.h"

const struct lw_gpu_names lw_gpu_names[LW_GPU_VENDORS] = {
	[LW_GPU_CUDA] =
		{
			.name = "cuda",
			.prefix = "cuda",
			.host_alloc = "cudaHostAlloc",
			.host_free = "cudaFreeHost",
			.libraries = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so", NULL},
			.light = true,
			.driver = "libcuda.so.1",
			.driver_prefix = "cu",
			.package = "the CUDA toolkit's runtime",
		},
	[LW_GPU_HIP] =
		{
			/* Releases before 6 number the kinds of memory otherwise. */
			.name = "hip",
			.prefix = "hip",
			.host_alloc = "hipHostMalloc",
			.host_free = "hipHostFree",
			.libraries = {"libamdhip64.so.7", "libamdhip64.so.6", NULL},
			.driver_prefix = "hip",
			.package = "ROCm 6 or newer",
		},
	[LW_GPU_MUSA] =
		{
			.name = "musa",
			.prefix = "musa",
			.host_alloc = "musaHostAlloc",
			.host_free = "musaFreeHost",
			.libraries = {"libmusart.so.4", "libmusart.so.3", "libmusart.so", NULL},
			.driver = "libmusa.so.1",
			.driver_prefix = "mu",
			.package = "the MUSA toolkit's runtime",
		},
	[LW_GPU_MACA] =
		{
			.name = "maca",
			.prefix = "mc",
			.host_alloc = "mcMallocHost",
			.host_free = "mcFreeHost",
			.libraries = {"libmcruntime.so", NULL},
			.driver_prefix = "mc",
			.package = "the MACA toolkit's runtime",
		},
};
