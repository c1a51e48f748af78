# SPDX-License-Identifier: Apache-2.0
# The functions that CMakeLists.txt is made of. Patterns are relative to the source folder.

set(LW_TEST_TIMEOUT 360) # seconds; under a sanitizer the longest takes most of it
set(LW_LAB_TIMEOUT 480)  # of a test that boots virtual machines
set(LW_TEST_SKIP 77)     # exit status of a test that was skipped

# Sources of the patterns, re-evaluated at each build.
function(lw_glob out)
	list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/)
	file(GLOB found CONFIGURE_DEPENDS ${ARGN})
	set(${out} ${found} PARENT_SCOPE)
endfunction()

# Warnings, sanitizers and include folders of all our own code.
function(lw_flags name)
	add_library(${name} INTERFACE)
	target_compile_definitions(${name} INTERFACE _GNU_SOURCE)
	target_compile_options(${name} INTERFACE -Wall -Wextra -Wshadow -Wmissing-prototypes -Wvla -Wconversion)
	if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
		# It guesses from what the optimiser happens to know, and cutting a text is what snprintf is for.
		target_compile_options(${name} INTERFACE -Wno-format-truncation)
	endif()
	if(LW_WERROR)
		target_compile_options(${name} INTERFACE -Werror)
	endif()
	target_include_directories(${name} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/lib/include>)
	if(LW_SANITIZE STREQUAL "address")
		set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
	elseif(LW_SANITIZE STREQUAL "thread")
		set(sanitize -fsanitize=thread -fno-omit-frame-pointer)
		if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
			target_compile_options(${name} INTERFACE -Wno-tsan) # atomic_thread_fence is used by DPDK's headers
		endif()
	elseif(LW_SANITIZE)
		message(FATAL_ERROR "LW_SANITIZE is \"${LW_SANITIZE}\"; it may be empty, address or thread")
	endif()
	target_compile_options(${name} INTERFACE ${sanitize})
	target_link_options(${name} INTERFACE ${sanitize})
	if(LW_COVERAGE)
		if(NOT CMAKE_C_COMPILER_ID STREQUAL "GNU")
			message(FATAL_ERROR "LW_COVERAGE needs gcc; the preset coverage sets it")
		endif()
		# Several threads count, and processes that are killed in the end have counted before.
		target_compile_options(${name} INTERFACE --coverage -fprofile-update=atomic)
		target_link_options(${name} INTERFACE --coverage)
	endif()
	if(LW_FUZZ)
		if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang" OR NOT LW_SANITIZE STREQUAL "address")
			message(FATAL_ERROR "LW_FUZZ needs clang, and LW_SANITIZE to be address; the preset fuzz sets both")
		endif()
		target_compile_options(${name} INTERFACE -fsanitize=fuzzer-no-link)
	endif()
endfunction()

# DPDK, always from its static archives: its shared form loads every driver it has into the process and clashes with a
# DPDK of the host's. The archives go in whole, since parts of them register themselves by constructors.
function(lw_find_dpdk name)
	find_package(PkgConfig REQUIRED)
	pkg_check_modules(DPDK REQUIRED libdpdk>=22.11)
	add_library(${name} INTERFACE)

	set(includes ${DPDK_INCLUDE_DIRS})
	list(FILTER includes INCLUDE REGEX dpdk)
	target_include_directories(${name} SYSTEM INTERFACE ${includes})
	target_compile_options(${name} INTERFACE "SHELL:-include rte_config.h")
	if(LW_MARCH)
		target_compile_options(${name} INTERFACE -march=${LW_MARCH})
	endif()

	set(archives)
	foreach(part ring rcu eal kvargs telemetry)
		find_library(DPDK_${part}_ARCHIVE librte_${part}.a HINTS ${DPDK_LIBRARY_DIRS} ${DPDK_LIBDIR} REQUIRED)
		mark_as_advanced(DPDK_${part}_ARCHIVE)
		list(APPEND archives ${DPDK_${part}_ARCHIVE})
	endforeach()
	list(JOIN archives "," archives)
	target_link_libraries(${name} INTERFACE "$<LINK_LIBRARY:WHOLE_ARCHIVE,${archives}>" numa bsd m dl)
	# The EAL would change its host's syslog ident, make a directory under /var/run and hand its descriptors on to
	# programs that the host starts: lib/host.c answers these calls.
	target_link_options(${name} INTERFACE -Wl,-u,__wrap_openlog -Wl,--wrap=openlog -Wl,--wrap=syslog -Wl,--wrap=mkdir
	                    -Wl,--wrap=pipe -Wl,--wrap=epoll_create -Wl,--wrap=timerfd_create
	                    -Wl,--wrap=memfd_create)
endfunction()

# Links a target across files: a request crosses six of them, and `./dev bench core` shows what their calls cost.
function(lw_lto target)
	if(LW_LTO AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
		target_link_options(${target} PRIVATE -flto=auto -O2)
	endif()
endfunction()

# Links a test from the plain code in the fat objects: seconds less for each.
function(lw_no_lto target)
	if(LW_LTO AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
		target_link_options(${target} PRIVATE -fno-lto)
	endif()
endfunction()

# NAME_core: everything as one static archive with hidden symbols, for tests. NAME: the shared library made of the same
# objects, which exports what the public headers mark and lib/NAME.map lists.
function(lw_library name)
	lw_glob(sources ${ARGN})
	add_library(${name}_core STATIC ${sources})
	target_include_directories(${name}_core PUBLIC ${CMAKE_SOURCE_DIR})
	target_link_libraries(${name}_core PUBLIC lw_flags lw_dpdk PkgConfig::CJSON lw_uring Threads::Threads)

	if(LW_LTO AND CMAKE_C_COMPILER_ID STREQUAL "GNU") # fat objects: what is linked without it, tests, links as fast as ever
		target_compile_options(${name}_core PRIVATE -flto -ffat-lto-objects)
	endif()

	set(map ${CMAKE_SOURCE_DIR}/lib/${name}.map)
	add_library(${name} SHARED $<TARGET_OBJECTS:${name}_core>)
	set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
	                      LINK_DEPENDS ${map} LINKER_LANGUAGE C)
	target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR}/lib/include)
	target_link_libraries(${name} PRIVATE lw_flags lw_dpdk PkgConfig::CJSON lw_uring Threads::Threads)
	target_link_options(${name} PRIVATE -Wl,--version-script=${map} -Wl,--exclude-libs,ALL -Wl,--as-needed -Wl,-z,now
	                    -Wl,-z,relro)
	lw_lto(${name})
	if(NOT (LW_SANITIZE AND CMAKE_C_COMPILER_ID MATCHES "Clang")) # clang's sanitizers live in the program only
		target_link_options(${name} PRIVATE -Wl,-z,defs)
	endif()
endfunction()

# The driver of the folder drivers/NAME becomes part of the library.
function(lw_driver name)
	lw_glob(sources drivers/${name}/*.c)
	target_sources(lanewise_core PRIVATE ${sources})
endfunction()

# libNAME.so on top of the shared library, with the interface that FOLDER/NAME.map lists. It has no version in its name,
# as the library has none whose place it takes; it stays loaded, since threads and handlers of the process may be in it.
function(lw_compat name folder)
	lw_glob(sources ${folder}/*.c)
	set(map ${CMAKE_SOURCE_DIR}/${folder}/${name}.map)
	add_library(${name} SHARED ${sources})
	set_target_properties(${name} PROPERTIES LINK_DEPENDS ${map} INSTALL_RPATH "$ORIGIN")
	target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
	target_link_libraries(${name} PRIVATE lw_flags lanewise PkgConfig::CJSON Threads::Threads)
	target_link_options(${name} PRIVATE -Wl,--version-script=${map} -Wl,--as-needed -Wl,-z,now -Wl,-z,relro
	                    -Wl,-z,nodelete)
	if(NOT (LW_SANITIZE AND CMAKE_C_COMPILER_ID MATCHES "Clang")) # clang's sanitizers live in the program only
		target_link_options(${name} PRIVATE -Wl,-z,defs)
	endif()
endfunction()

# The program apps/NAME needs libraries beside ours, as pkg-config calls them; where one is missing, the program is left
# out. Before lw_apps.
function(lw_app_uses name)
	string(TOUPPER LW_${name}_USES uses)
	pkg_check_modules(${uses} QUIET IMPORTED_TARGET ${ARGN})
	if(${uses}_FOUND)
		set_property(GLOBAL PROPERTY ${uses} PkgConfig::${uses})
	else()
		list(JOIN ARGN ", " modules)
		message(STATUS "${name} is left out: it needs ${modules} (./dev setup installs that)")
		set_property(GLOBAL APPEND PROPERTY LW_APPS_LEFT_OUT ${name})
	endif()
endfunction()

# Each folder apps/NAME is a program NAME on the shared library; apps/common is linked into all of them.
function(lw_apps folder)
	set(common)
	lw_glob(sources ${folder}/common/*.c)
	if(sources)
		add_library(lw_apps_common STATIC ${sources})
		target_include_directories(lw_apps_common PUBLIC ${CMAKE_SOURCE_DIR})
		target_link_libraries(lw_apps_common PUBLIC lw_flags lanewise PkgConfig::CJSON Threads::Threads m)
		set(common lw_apps_common)
	endif()
	file(GLOB names RELATIVE ${CMAKE_SOURCE_DIR}/${folder} LIST_DIRECTORIES true CONFIGURE_DEPENDS
	     ${CMAKE_SOURCE_DIR}/${folder}/*)
	get_property(left_out GLOBAL PROPERTY LW_APPS_LEFT_OUT)
	list(REMOVE_ITEM names common ${left_out})
	foreach(name IN LISTS names)
		lw_glob(sources ${folder}/${name}/*.c)
		string(TOUPPER LW_${name}_USES uses)
		get_property(uses GLOBAL PROPERTY ${uses})
		if(sources)
			add_executable(${name} ${sources})
			target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
			target_link_libraries(${name} PRIVATE ${common} ${uses} lw_flags lanewise PkgConfig::CJSON
			                      Threads::Threads m)
			set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
			install(TARGETS ${name} RUNTIME)
		endif()
	endforeach()
endfunction()

# Helpers that every test and benchmark is linked with.
function(lw_test_common folder)
	add_library(lw_test_common INTERFACE)
	target_link_libraries(lw_test_common INTERFACE lanewise_core PkgConfig::CMOCKA)
	target_include_directories(lw_test_common INTERFACE ${CMAKE_SOURCE_DIR}/test)
	lw_glob(sources ${folder}/*.c)
	if(sources)
		add_library(lw_test_helpers STATIC ${sources})
		target_link_libraries(lw_test_helpers PUBLIC lanewise_core PkgConfig::CMOCKA)
		target_include_directories(lw_test_helpers PUBLIC ${CMAKE_SOURCE_DIR}/test)
		target_link_libraries(lw_test_common INTERFACE lw_test_helpers)
	endif()
endfunction()

# The shared library libgpu_standin.so that tests open in the place of GPU runtimes; nothing is linked with it.
function(lw_standin folder)
	lw_glob(sources ${folder}/*.c)
	add_library(gpu_standin MODULE ${sources})
	set_target_properties(gpu_standin PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test/standin)
	target_include_directories(gpu_standin PRIVATE ${CMAKE_SOURCE_DIR})
	target_link_libraries(gpu_standin PRIVATE lw_flags Threads::Threads)
endfunction()

# One test: name, label, command. The test finds its build tree in LW_BUILD_DIR and the modules of test/common, and runs
# in the source folder.
function(lw_test name label)
	set(launcher)
	set(timeout ${LW_TEST_TIMEOUT})
	if(LW_COVERAGE) # not optimised, and counting; a test that is ended by force counts for nothing
		math(EXPR timeout "3 * ${timeout}")
	endif()
	if(LW_SANITIZE STREQUAL "thread") # ThreadSanitizer can't run where the kernel randomises addresses widely
		find_program(LW_SETARCH setarch)
		mark_as_advanced(LW_SETARCH)
		if(LW_SETARCH)
			set(launcher ${LW_SETARCH} -R)
		endif()
	endif()
	add_test(NAME ${label}.${name} COMMAND ${launcher} ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
	set_tests_properties(${label}.${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout}
	                     SKIP_RETURN_CODE ${LW_TEST_SKIP}
	                     ENVIRONMENT "LW_BUILD_DIR=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/test/common")
endfunction()

# The target PROGRAM_LABEL, made of these sources: test/LABEL/PROGRAM of the build tree.
function(lw_test_program program label)
	add_executable(${program}_${label} ${ARGN})
	set_target_properties(${program}_${label} PROPERTIES OUTPUT_NAME ${program}
	                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test/${label})
	target_link_libraries(${program}_${label} PRIVATE lw_test_common)
	lw_no_lto(${program}_${label})
endfunction()

# Each test/LABEL/test_NAME.c is a program and a test; so is each test/LABEL/test_NAME.sh.
function(lw_tests label)
	lw_glob(sources test/${label}/test_*.c)
	foreach(source IN LISTS sources)
		get_filename_component(program ${source} NAME_WE)
		string(REGEX REPLACE "^test_" "" name ${program})
		lw_test_program(${program} ${label} ${source})
		lw_test(${name} ${label} $<TARGET_FILE:${program}_${label}>)
	endforeach()
	lw_test_scripts(${label})
endfunction()

# Each test/LABEL/test_NAME.sh is a test.
function(lw_test_scripts label)
	lw_glob(scripts test/${label}/test_*.sh)
	foreach(script IN LISTS scripts)
		get_filename_component(name ${script} NAME_WE)
		string(REGEX REPLACE "^test_" "" name ${name})
		lw_test(${name}_sh ${label} bash ${script})
	endforeach()
endfunction()

# Each test/LABEL/test_NAME.c is a program, with the folder's other sources linked in, and a test that runs in the lab's
# virtual machine; each test/LABEL/test_NAME.sh runs on this host and starts machines itself.
function(lw_lab_tests label)
	lw_glob(sources test/${label}/*.c)
	set(helpers ${sources})
	list(FILTER helpers EXCLUDE REGEX "/test_[^/]*$")
	list(FILTER sources INCLUDE REGEX "/test_[^/]*$")
	foreach(source IN LISTS sources)
		get_filename_component(program ${source} NAME_WE)
		string(REGEX REPLACE "^test_" "" name ${program})
		lw_test_program(${program} ${label} ${source} ${helpers})
		lw_test(${name} ${label} bash test/lab/inside.sh $<TARGET_FILE:${program}_${label}>)
	endforeach()
	lw_test_scripts(${label})
	get_property(tests DIRECTORY PROPERTY TESTS)
	list(FILTER tests INCLUDE REGEX "^${label}\\.")
	set_tests_properties(${tests} PROPERTIES TIMEOUT ${LW_LAB_TIMEOUT})
endfunction()

# Each FOLDER/test_NAME.c is a host of the library lw_compat made: it knows its headers and nothing else of ours. The other
# sources of the folder are linked into each.
function(lw_compat_tests folder library headers)
	lw_glob(sources ${folder}/*.c)
	set(helpers ${sources})
	list(FILTER helpers EXCLUDE REGEX "/test_[^/]*$")
	list(FILTER sources INCLUDE REGEX "/test_[^/]*$")
	foreach(source IN LISTS sources)
		get_filename_component(program ${source} NAME_WE)
		string(REGEX REPLACE "^test_" "" name ${program})
		add_executable(${program}_compat ${source} ${helpers})
		set_target_properties(${program}_compat PROPERTIES OUTPUT_NAME ${program}
		                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test/compat)
		target_include_directories(${program}_compat PRIVATE ${CMAKE_SOURCE_DIR}/${headers} ${CMAKE_SOURCE_DIR}/test)
		target_link_libraries(${program}_compat PRIVATE lw_flags ${library} PkgConfig::CMOCKA Threads::Threads)
		lw_test(${name} compat $<TARGET_FILE:${program}_compat>)
	endforeach()
endfunction()

# Each FOLDER/fuzz_NAME.c is a fuzzer. With LW_FUZZ libFuzzer drives it; else a plain main, which is all that the test
# needs: it runs the fuzzer once over each file of FOLDER/seeds/NAME.
function(lw_fuzzers folder)
	add_custom_target(fuzzers)
	lw_glob(sources ${folder}/fuzz_*.c)
	foreach(source IN LISTS sources)
		get_filename_component(program ${source} NAME_WE)
		string(REGEX REPLACE "^fuzz_" "" name ${program})
		lw_glob(parts ${folder}/${name}_*.c) # its own
		add_executable(${program} ${source} ${parts} ${folder}/input.c)
		set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test/fuzz)
		target_link_libraries(${program} PRIVATE lw_test_common)
		target_link_options(${program} PRIVATE -Wl,--wrap=clock_gettime) # time is what the input says
		lw_no_lto(${program})
		add_dependencies(fuzzers ${program})
		if(LW_FUZZ)
			target_compile_options(${program} PRIVATE -fno-sanitize=fuzzer-no-link) # its own branches lead nowhere
			target_link_options(${program} PRIVATE -fsanitize=fuzzer)
			lw_test(${name} fuzz $<TARGET_FILE:${program}> -runs=0 ${folder}/seeds/${name})
		else()
			target_sources(${program} PRIVATE ${folder}/replay.c)
			lw_test(${name} fuzz $<TARGET_FILE:${program}> ${folder}/seeds/${name})
		endif()
	endforeach()
endfunction()

# FOLDER is one program: the engine with the clock, the drivers and the control thread that FOLDER brings in the place of
# the real ones. As tests it runs COUNT schedules, in four parts so that a slow machine ends each in its time; a tenth of
# that under a sanitizer.
function(lw_sim folder count)
	lw_glob(sources ${folder}/*.c)
	add_executable(sim ${sources})
	set_target_properties(sim PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test/sim)
	target_link_libraries(sim PRIVATE lw_test_common)
	target_link_options(sim PRIVATE -Wl,--wrap=clock_gettime -Wl,--wrap=lw_batch_ended)
	lw_no_lto(sim)
	if(LW_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
		math(EXPR count "${count} / 10")
	endif()
	math(EXPR count "${count} / 4")
	foreach(part 1 2 3 4)
		lw_test(schedules_${part} sim $<TARGET_FILE:sim> --count ${count})
	endforeach()
endfunction()

# FOLDER/gpu_check.c runs on real GPUs, by FOLDER/run.sh; the test is that it runs, over the stand-in or over none.
function(lw_gpu_check folder)
	lw_test_program(gpu_check gpu ${folder}/gpu_check.c)
	lw_test_scripts(gpu)
endfunction()

# Each test/bench/NAME.c is a program of its own; test/bench/run.sh runs them. The one called compat is linked with the
# libraries as hosts are: the one that lw_compat made, and the shared one.
function(lw_benches folder compat)
	lw_glob(sources ${folder}/*.c)
	foreach(source IN LISTS sources)
		get_filename_component(name ${source} NAME_WE)
		add_executable(${name} ${source})
		set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test/bench)
		if(name STREQUAL "compat")
			target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/test)
			target_link_libraries(${name} PRIVATE lw_flags ${compat} lanewise Threads::Threads)
		else()
			target_link_libraries(${name} PRIVATE lw_test_common)
			lw_lto(${name})
		endif()
	endforeach()
endfunction()

# Headers, library and pkg-config file, which finds its prefix from where it lies.
function(lw_install name)
	file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
	configure_file(${CMAKE_SOURCE_DIR}/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/${name}.pc @ONLY)
	install(TARGETS ${name} LIBRARY)
	install(DIRECTORY ${CMAKE_SOURCE_DIR}/lib/include/${name} TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
	install(FILES ${CMAKE_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# What lw_compat made, the headers that programs include without a folder, and a pkg-config file.
function(lw_install_compat name folder)
	file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
	configure_file(${CMAKE_SOURCE_DIR}/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/${name}.pc @ONLY)
	install(TARGETS ${name} LIBRARY)
	lw_glob(headers ${folder}/${name}_*.h)
	install(FILES ${headers} TYPE INCLUDE)
	install(FILES ${CMAKE_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
